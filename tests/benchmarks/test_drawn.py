"""Sweeps: the distribution, what is computed and checked of every family, records of pieces; all on a CPU device."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest

import tilekit_benchmarks as bench
from tilekit import api, cli, kernels
from tilekit._runtime.device import Device
from tilekit_benchmarks import Drawn, Options, drawn, report
from tilekit_benchmarks.drawn import measuring
from tilekit_benchmarks.drawn.distribution import LIMITS, SIZES, Draw
from tilekit_benchmarks.drawn.families import FAMILIES, drawn_case
from tilekit_benchmarks.drawn.problem import Operands, error_of
from tilekit_benchmarks.drawn.record import CaseResult, geometric_mean, join, load, worst

GPU, CPU = LIMITS["cuda"], LIMITS["cpu"]
MANY = 600


# the distribution


def draws(sizes=None, count=MANY):
    """Draws of many cases, of one kind."""
    every = (Draw("rows", 7, number, 0, GPU) for number in range(count))
    return [draw for draw in every if sizes in (None, draw.sizes)]


def is_uniform(values):
    """Whether the values, between 0 and 1, are distributed evenly: Kolmogorov and Smirnov's test, at one in a thousand."""
    ordered = sorted(values)
    off = max(max(x - at / len(ordered), (at + 1) / len(ordered) - x) for at, x in enumerate(ordered))
    return off < 1.95 / math.sqrt(len(ordered))


def test_a_third_of_the_cases_is_of_each_kind():
    kinds = Counter(draw.sizes for draw in draws())
    assert set(kinds) == set(SIZES)
    assert all(abs(count - MANY / 3) < 4 * math.sqrt(MANY * 2 / 9) for count in kinds.values())


@pytest.mark.parametrize("sizes", SIZES)
def test_sizes_are_of_their_kind_and_log_uniform(sizes):
    drawn_sizes = [draw.size(1, 16384) for draw in draws(sizes, 3 * MANY)]
    assert min(drawn_sizes) >= 1 and max(drawn_sizes) <= 16384
    if sizes == "powers of two":
        assert all(size & (size - 1) == 0 for size in drawn_sizes)
        counts = Counter(drawn_sizes)
        expected = len(drawn_sizes) / 15
        assert set(counts) == {1 << at for at in range(15)}
        assert all(abs(count - expected) < 4 * math.sqrt(expected) for count in counts.values())
        return
    step = 8 if sizes == "multiples of 8" else 1
    assert all(size % step == 0 for size in drawn_sizes)
    # A size stands for all numbers up to the next one.
    inside = [draw._uniform() for draw in draws(sizes, 3 * MANY)]
    spread = [math.log(size / step + part) / math.log(16384 / step + 1) for size, part in zip(drawn_sizes, inside)]
    assert is_uniform(spread)


def test_bytes_and_columns_are_log_uniform():
    shapes = [draw.matrix(4.0) for draw in draws("anything", 3 * MANY)]
    low, high = GPU.nbytes
    assert is_uniform([math.log(4 * m * n / low) / math.log(high / low) for m, n in shapes])
    # Columns are, too, where there are so many elements that all of them fit.
    large = [n for m, n in shapes if m * n >= 4 * GPU.row]
    assert is_uniform([math.log(n / 16) / math.log(GPU.row / 16) for n in large])


def test_sizes_between_which_there_is_none_of_the_kind():
    assert {draw.size(5, 7) for draw in draws()} == {5, 6, 7}
    assert {draw.size(1, 1) for draw in draws()} == {1}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limits", [GPU, CPU], ids=["gpu", "cpu"])
def test_cases_are_within_the_limits(family, limits):
    cases = [drawn_case(family, 3, number, limits) for number in range(100)]
    for case in cases:
        assert min(case.shape) >= 1
        assert case.nbytes <= 1.5 * limits.nbytes[1]
        assert (case.operations or 0) <= limits.operations
        if family in ("gemm", "grouped"):
            assert max(case.shape[-3:]) <= limits.extent
        else:
            assert case.nbytes >= 0.4 * limits.nbytes[0]  # batches of rows are rounded down
    assert {case.sizes for case in cases} == set(SIZES)
    assert 10 <= sum(case.compiled for case in cases) <= 42
    assert len({case.label for case in cases}) > 90
    json.dumps([vars(case) for case in cases])


def test_products_have_all_layouts_batches_and_gaps():
    cases = [drawn_case("gemm", 3, number, GPU) for number in range(200)]
    assert {case.layout for case in cases} == {"NN", "NT", "TN", "TT"}
    assert {len(case.shape) for case in cases} == {3, 4}
    assert {"gap" in case.options for case in cases} == {True, False}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_case_follows_from_seed_and_number(family):
    case = drawn_case(family, 11, 5, GPU)
    assert case == drawn_case(family, 11, 5, GPU)
    others = [drawn_case(family, 12, 5, GPU), drawn_case(family, 11, 6, GPU), drawn_case(family, 11, 5, GPU, attempt=1)]
    assert all(replace(other, number=5, attempt=0) != case for other in others)


def test_cases_do_not_change():
    # Recorded runs name their seed: with it the same cases are drawn as then.
    case = drawn_case("gemm", 1, 0, GPU)
    assert (case.dtype, case.shape, case.layout) == ("float32", (7320, 13544, 832), "TN")


# what is computed


def measured(family, numbers, seed=1, rounds=1, limits=CPU):
    with Device("cpu").stream() as stream:
        at = measuring.Bench(stream, limits, rounds)
        with at.use():
            return measuring.measure(at, family, seed, numbers)[0]


def first_of_each_kernel(family):
    """The number of a case of each kernel, and of each layout that is no batch with gaps."""
    numbers = {}
    for number in range(200):
        case = drawn_case(family, 1, number, CPU)
        if case.layout != "batches with gaps":
            numbers.setdefault(case.kernel, number)
            numbers.setdefault(case.layout, number)
            numbers.setdefault(case.dtype, number)
    return sorted(set(numbers.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_is_right_beside_pytorch(family):
    pytest.importorskip("torch", reason="torch is not installed")
    results = measured(family, first_of_each_kernel(family))
    assert not [(result.case.label, result.failure) for result in results if result.failure]
    assert not [one for result in results for one in result.left_out if one.cause == "wrong"]
    for result in results:
        assert result.best_peer is not None
        assert result.ratio > 0 and result.own_us > 0
    explained = [result for result in results if result.explained]
    assert {result.case.number for result in explained} == {result.case.number for result in worst(results)}
    assert any("for the CPU" in line for result in explained for line in result.explained)


@pytest.fixture
def changed(monkeypatch):
    """Lets the problems of a family be others."""
    pytest.importorskip("torch", reason="torch is not installed")

    def change(family, **fields):
        before = FAMILIES[family]

        def other(case, operands):
            problem = before.problem(case, operands)
            return replace(problem, **{name: field(problem) for name, field in fields.items()})

        monkeypatch.setitem(FAMILIES, family, replace(before, problem=other))

    return change


def failing(*_, **__):
    raise RuntimeError("no such luck\nsecond line")


def test_a_wrong_result_of_tilekits_is_a_ratio_of_0(changed):
    changed("scans", own=lambda p: lambda: p.own().then(lambda y: y.fill(1.0)))
    (result,) = measured("scans", [0])
    assert (result.ratio, result.own_us) == (0.0, None)
    assert result.failure.cause == "wrong"
    assert result.error > 0


def test_rows_are_measured_by_their_own_size():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    right = torch.full((100, 8), 0.01, dtype=torch.float64)
    right[0] = 1.0
    right[0, 0] = 0.0
    for row, by_rows, size in ((0, False, 0.1), (0, True, 1.0), (5, False, 0.1), (5, True, 0.1)):
        result = right.clone()
        result[row, 0] += 1e-3
        found = error_of(torch, [result], [right], by_rows)
        assert found == pytest.approx(1e-3 / (float(right[row, 0]) + size), rel=0.1), (row, by_rows)


@pytest.mark.parametrize("seed", [3, 5])
def test_gradients_are_those_of_the_rounded_result(cpu, seed):
    """Of a long sequence with a causal mask: the first rows are large, and sensitive to the rounding of the result."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = replace(
        drawn_case("gradients", 1, 0, CPU),
        dtype="float16", shape=(1, 1, 1500, 64), options={"keys": 1500, "key_heads": 1, "causal": True},
    )  # fmt: skip
    problem = FAMILIES["gradients"].problem(case, Operands(torch, torch.device("cpu"), seed, case))
    results = problem.part(tuple(map(torch.from_dlpack, problem.own().sync())))
    assert error_of(torch, results, problem.reference(), problem.by_rows) < problem.tolerance / 4


@pytest.mark.parametrize("value", [math.nan, 1.5])
def test_one_wrong_element_is_seen(value, changed):
    def spoilt(problem):
        def call():
            y = problem.peers["torch"]().clone()
            y.view(-1)[-1] = value
            return y

        return {"torch": problem.peers["torch"], "bad": call}

    changed("scans", peers=spoilt)
    number = next(n for n in range(99) if drawn_case("scans", 1, n, CPU).dtype == "float32")
    (result,) = measured("scans", [number])
    assert [(one.name, one.cause) for one in result.left_out] == [("bad", "wrong")]
    assert list(result.peers_us) == ["torch"]


def test_failures_are_written_down(changed):
    changed("scans", own=lambda p: failing, peers=lambda p: {**p.peers, "broken": failing})
    first, second = measured("scans", [0, 1])
    assert first.ratio == second.ratio == 0.0
    assert {(one.name, one.cause, one.reason) for one in first.left_out} == {
        ("tilekit", "failed", "RuntimeError: no such luck"),
        ("broken", "failed", "RuntimeError: no such luck"),
    }
    assert first.explained == ("no explanation: RuntimeError: no such luck",)


def test_launches_whose_arguments_are_ops_are_explained(cpu):
    """And those that are tried out with tensors that have no memory, as the steps of gradients are."""
    x = api.zeros((64, 48), dtype="float16").sync()
    explained = []
    for op in (kernels.gelu(x.T), kernels.rms_norm_backward(x, x, api.zeros(48, dtype="float16").sync())):
        launches = list(measuring._launches(op))
        explained += [launch.kernel.name for launch in launches if launch.explain("sm_90a").accesses]
    assert explained[0] == "_gelu"
    assert "_norm_backward" in explained


def test_a_case_without_memory_is_nobodys_failure(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setitem(FAMILIES, "scans", replace(FAMILIES["scans"], problem=failing))
    (result,) = measured("scans", [0])
    assert result.ratio is None and result.failure is None
    assert result.left_out[0].name == "the case"


def test_a_case_without_a_peer_has_no_ratio(changed):
    changed("scans", peers=lambda p: {})
    (result,) = measured("scans", [0])
    assert result.ratio is None and result.own_us > 0


def test_short_cases_are_drawn_again(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(measuring, "_ATTEMPTS", 3)
    limits = replace(CPU, shortest_us=1e9)
    (result,) = measured("scans", [4], limits=limits)
    assert result.case == drawn_case("scans", 1, 4, limits, attempt=2)
    assert len(result.drawn_again) == 2
    assert drawn_case("scans", 1, 4, limits).label in result.drawn_again[0]


def test_a_fault_ends_the_run(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    with Device("cpu").stream() as stream:
        at = measuring.Bench(stream, CPU, 1)
        monkeypatch.setattr(at, "usable", lambda: False)
        with at.use():
            results, ended = measuring.measure(at, "scans", 1, range(3))
    assert len(results) == 1
    assert "--from 1" in ended


def test_a_fault_while_all_are_timed(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(measuring, "compete", failing)
    (result,) = measured("scans", [0])
    assert result.ratio is None and result.failure is None
    assert result.left_out[-1].reason == "RuntimeError: no such luck"


# records


def result(number, ratio, **fields):
    case = drawn_case("rows", 1, number, CPU)
    timed = {"own_us": 10.0, "peers_us": {"torch": 10.0 * ratio}, "best_peer": "torch"} if ratio else {}
    return CaseResult(case=case, ratio=ratio, **timed, **fields)


def run_of(*results, cases=10):
    pytest.importorskip("torch", reason="torch is not installed")
    run = bench.run("sweep", Options(device=Device("cpu"), rounds=1, drawn=Drawn(family="rows", seed=1, cases=cases, stop=1)))
    return replace(run, results=results)


def test_statistics():
    failed = report.LeftOut(name="tilekit", cause="failed", reason="RuntimeError: it did")
    slow = result(3, 0.25, explained=("line 7: mma.sync, not wgmma: too small",))
    run = run_of(result(0, 2.0), result(1, 2.0), result(2, None), slow, result(4, 0.0, left_out=(failed,)), result(5, 1.0))
    text = report.table(run)
    assert "6 of 10 cases; not measured: 6 to 9" in text
    assert "geometric mean 0.000: 1 of 5 failed, and count as 0; of the others 1.000" in text
    assert "at least as fast as the best peer in 60%" in text
    at = [text.index(part) for part in ("The worst 5", "failed: RuntimeError: it did", "line 7: mma.sync", "Without a peer")]
    assert at == sorted(at)
    assert not run.all_correct


def test_the_worst_come_first():
    results = [result(number, ratio) for number, ratio in enumerate((1.0, 0.5, 3.0, 0.0, 2.0, 0.7, 0.9))]
    assert [one.ratio for one in worst(results)] == [0.0, 0.5, 0.7, 0.9, 1.0]


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([1.0, 0.0]) == 0.0
    assert math.isnan(geometric_mean([]))


def swept(tmp_path, name, *words):
    path = tmp_path / name
    status = cli.main(["bench", "sweep", "scans", "--seed", "5", "--rounds", "1", "--device", "cpu", *words, "--out", str(path)])
    assert status == 0
    return path


def test_pieces_join_to_the_whole(tmp_path, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    whole = load(swept(tmp_path, "whole.json", "--cases", "4"))
    first = swept(tmp_path, "first.json", "--cases", "4", "--to", "1")
    rest = swept(tmp_path, "rest.json", "--cases", "4", "--from", "1")
    joined, picture = tmp_path / "joined.json", tmp_path / "joined.png"
    files = ["--join", str(rest), str(first)]
    capsys.readouterr()
    assert cli.main(["bench", "sweep", *files, "--json", str(joined), "--plot", str(picture)]) == 0
    assert "4 of 4 cases" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    run = load(joined)
    assert [one.case for one in run.results] == [one.case for one in whole.results]
    assert [(piece.start, piece.stop) for piece in run.pieces] == [(0, 1), (1, 4)]
    assert run.seed == 5
    assert join([joined]).results == run.results


def test_runs_with_the_same_lock_take_turns(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    fcntl = pytest.importorskip("fcntl", reason="locks of files are Unix's")
    lock = tmp_path / "lock"
    swept(tmp_path, "locked.json", "--cases", "1", "--lock", str(lock))
    with Device("cpu").stream() as stream, lock.open() as other:
        with measuring.Bench(stream, CPU, 1, lock).turn(), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_is_no_piece_is_not_joined(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    first = swept(tmp_path, "first.json", "--cases", "3", "--to", "1")
    again = swept(tmp_path, "again.json", "--cases", "3", "--to", "2")
    with pytest.raises(ValueError, match="have both measured case 0"):
        join([first, again])
    fields = json.loads(again.read_text())
    for name, value in {"seed": 6, "commit": "abc", "family": "rows", "cases": 4}.items():
        (tmp_path / "other.json").write_text(json.dumps({**fields, name: value}))
        with pytest.raises(ValueError, match=f"cannot be joined with .*{name}"):
            join([first, tmp_path / "other.json"])
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(ValueError, match="none.json is no record of `bench sweep`: KeyError"):
        load(tmp_path / "none.json")


def test_a_seed_is_fresh_where_none_is_asked_for():
    pytest.importorskip("torch", reason="torch is not installed")
    options = Options(device=Device("cpu"), rounds=1, drawn=Drawn(family="scans", cases=1))
    assert bench.run("sweep", options).seed != bench.run("sweep", options).seed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nothing"], "a family is one of rows, columns"),
        ([], "a family is one of rows, columns"),
        (["rows", "--from", "60"], "there are no cases 60 to 60 among 60"),
        (["rows", "--cases", "4", "--to", "5"], "there are no cases 0 to 5 among 4"),
    ],
)
def test_what_cannot_be_swept_is_refused(words, text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "sweep", *words, "--device", "cpu"])
    assert text in capsys.readouterr().err
    assert drawn.FAMILIES
