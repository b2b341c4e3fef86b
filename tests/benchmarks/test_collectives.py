"""The benchmark of collectives: tiny, among CPU devices; and what a GPU's peer does, against stand-ins."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest
from fake_gpu import fake_device
from fake_nccl import FakeNccl

import tilekit as tk
import tilekit_benchmarks as bench
from tilekit._groups import gpus
from tilekit_benchmarks import Options, collectives, product_members, report, saxpy_peers
from tilekit_benchmarks.collective_cases import DEFAULT_N, OPS, SIZES, Case, cases, size_label
from tilekit_benchmarks.collective_crew import Crew, CrewError, Refused
from tilekit_benchmarks.collective_members import GRAPH_OPS, EventClock, OfTilekit, process_each
from tilekit_benchmarks.collective_record import Samples, results

LIMIT_S = 120


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setattr(saxpy_peers, "find_spec", lambda name: None)


@pytest.fixture
def crew(cpu_devices):
    """Two processes, each a member of a group."""
    cpu_devices(2)
    address = tk.Group.free_address()
    with Crew("two", process_each, [(rank, 2, address, f"cpu:{rank}") for rank in range(2)]) as crew:
        assert crew.started(LIMIT_S) == [{}, {}]
        yield crew


# What is measured


def test_sizes():
    assert [case.nbytes for case in cases(1 << 30, 2, ["broadcast"])] == list(SIZES)
    assert [case.nbytes for case in cases(5000, 2, ["broadcast"])] == [1024, 5000]
    assert [(case.elements, case.inputs, case.outputs) for case in cases(64, 3, ["all_gather", "reduce_scatter"])] == [
        (15, 5, 15),
        (15, 15, 5),
    ]
    assert [case.elements for case in cases(1, 2, ["all_reduce"])] == [2]
    assert {case.op for case in cases(64, 2)} == set(OPS)
    assert DEFAULT_N == {"cuda": 1 << 30, "cpu": 1 << 20}
    assert [size_label(n) for n in (12, 1024, 1025, 1 << 22, 1 << 30)] == ["12 B", "1 KiB", "1025 B", "4 MiB", "1 GiB"]


def test_bus_bandwidth_is_as_nccls_tests_have_it():
    factors = {op: Case(op=op, members=4, elements=8).bus_factor for op in OPS}
    assert factors == {"all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "broadcast": 1.0, "send_recv": 1.0}


@pytest.mark.parametrize("op", OPS)
def test_what_must_come_out(op):
    case = Case(op=op, members=3, elements=300)
    xs = [case.data(rank, 1) for rank in range(3)]
    total = np.sum(xs, axis=0, dtype=np.float64)
    by_op = {
        "all_reduce": [total] * 3,
        "all_gather": [np.concatenate(xs)] * 3,
        "reduce_scatter": np.array_split(total, 3),
        "broadcast": [xs[0]] * 3,
        "send_recv": [xs[2], xs[0], xs[1]],
    }
    for rank, expected in enumerate(by_op[op]):
        assert np.array_equal(case.expected(rank, 1), expected)
        assert case.difference(expected.astype(np.float32), rank, 1) is None
        stale = case.difference(case.expected(rank, 0), rank, 1)
        assert stale is not None and f"of rank {rank} {case.outputs} of {case.outputs} elements are wrong in turn 1" in stale
    assert case.difference(np.zeros(2), 0, 0) == f"rank 0 has (2,), not ({case.outputs},)"


@pytest.mark.parametrize("members", [2, 3])
def test_sums_of_sums(members):
    case = Case(op="all_reduce", members=members, elements=12)
    sums = case.expected(0, 0) * np.float32(1)
    for _ in range(GRAPH_OPS - 1):
        sums = np.sum([sums] * members, axis=0, dtype=np.float32)
    assert case.difference(sums, 0, 0, GRAPH_OPS) is None
    assert "3 of 12 elements are wrong in turn 0, the first at 1" in case.difference(
        np.where(np.arange(12) % 4 == 1, sums * np.float32(1.001), sums), 0, 0, GRAPH_OPS
    )


def test_medians_quartiles_and_ratios():
    case = Case(op="all_reduce", members=2, elements=1000)

    def samples(name, variant, device_us, host_us):
        return Samples(
            name=name, version="1", variant=variant, reference="NCCL", ops=1, launches=7, device_us=device_us, host_us=host_us
        )

    torch = samples("torch", "NCCL", [10.0, 20.0, 30.0], [5.0, 5.0, 5.0])
    own = samples("tilekit", "one process", [20.0, 20.0, 20.0], [1.0, 2.0, 10.0])
    done = results(case, {"torch, NCCL": torch, "tilekit, one process": own})
    assert (done.nbytes, done.bus_factor) == (4000, 1.0)
    theirs, ours = done.results
    assert (theirs.device_us, theirs.device_quartiles_us, theirs.bus_gb_per_s, theirs.ratio) == (20, (15, 25), 0.2, 1)
    assert (ours.ratio, ours.host_ratio, ours.host_us, ours.host_quartiles_us) == (1.0, 2.5, 2.0, (1.5, 6.0))
    (alone,) = results(case, {"tilekit, one process": own}).results
    assert alone.ratio is None and alone.host_ratio is None


# Runs


def check(run, variants):
    assert run.all_correct, run.left_out
    assert run.devices == ("cpu:0", "cpu:1")
    assert {case.op for case in run.cases} == set(OPS)
    assert not run.notes
    for case in run.cases:
        assert {f"{r.name}, {r.variant}" for r in case.results} == {name for name, ops in variants.items() if case.op in ops}
        for r in case.results:
            low, high = r.device_quartiles_us
            assert 0 < low <= r.device_us <= high
            assert r.host_us > 0
            assert len(r.device_samples_us) == len(r.host_samples_us) == run.rounds
            assert r.bus_gb_per_s == pytest.approx(1e-3 * case.bus_factor * case.nbytes / r.device_us)
    json.dumps([vars(r) for case in run.cases for r in case.results])
    text = report.table(run)
    assert "collectives, 2 devices" in text
    assert all(op in text for op in OPS)


def test_beside_torch(cpu_devices, monkeypatch, tmp_path):
    torch = pytest.importorskip("torch", reason="the peer is torch.distributed")
    cpu_devices(2)
    monkeypatch.setattr(collectives, "_SAMPLE_US", 1e3)
    run = bench.run("collectives", Options(device=tk.Device("cpu"), n=1200, rounds=2, command="c"))
    assert not run.left_out
    check(run, dict.fromkeys(["torch, gloo", "tilekit, one process", "tilekit, a process each"], OPS))
    assert [case.nbytes for case in run.cases] == [1024, 1200] * len(OPS)
    assert all(r.ratio is not None and r.host_ratio is not None for case in run.cases for r in case.results)
    assert run.versions["torch"] == torch.__version__
    report.save(run, tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["cases"][0]["results"][0]["reference"] == "gloo"
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    report.plot(run, tmp_path / "run.svg")


def test_without_torch_and_in_graphs(cpu_devices, no_torch, monkeypatch):
    cpu_devices(2)
    monkeypatch.setattr(collectives, "_GRAPHS", ("cpu",))
    monkeypatch.setattr(collectives, "_SAMPLE_US", 1e3)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    run = bench.run("collectives", Options(device=tk.Device("cpu"), n=64, rounds=1))
    assert run.environment["NCCL_NVLS_ENABLE"] == "0" and "NCCL_NVLS_ENABLE=0" in report.table(run)
    missing = {one.name: one.reason for one in run.left_out if one.cause == "missing"}
    assert missing.pop("torch") == "not installed: pip install torch"
    variants = dict.fromkeys(["tilekit, one process", "tilekit, a process each", "tilekit, a process each, in a graph"], OPS)
    if not missing:
        variants["tilekit, kernels.all_reduce, in a graph"] = ("all_reduce",)
    check(run, variants)
    in_graph = [r for case in run.cases for r in case.results if r.variant.endswith("in a graph")]
    assert {r.ops_per_launch for r in in_graph} == {GRAPH_OPS}
    assert all(r.ratio is None for case in run.cases for r in case.results)


def test_one_device_is_not_enough(cpu_devices):
    cpu_devices(1)
    with pytest.raises(ValueError, match=r"they need two devices at least, and there is cpu:0: set TILEKIT_CPU_DEVICES=2"):
        bench.run("collectives", Options(device=tk.Device("cpu")))


def test_who_takes_part_on_gpus():
    able, left_out = collectives.candidates("cuda")
    labels = [candidate.label for candidate in able]
    assert {"tilekit, one process", "tilekit, a process each", "tilekit, a process each, in a graph"} <= set(labels)
    assert len(set(labels)) == len(labels)
    optional = {candidate.label for candidate in able if candidate.optional}
    assert all(("in a graph" in label) == (label in optional) for label in labels)
    if not any(one.name == "torch" for one in left_out):
        assert {"torch, NCCL", "torch, NCCL, in a graph", "torch, symmetric memory, one-shot, in a graph"} <= set(labels)


# What goes wrong


def test_a_member_that_dies_is_named(crew):
    os.kill(crew.pids[1], signal.SIGKILL)
    with pytest.raises(
        CrewError, match=rf"two: the process of rank 1 \({crew.pids[1]}\) has ended, with signal SIGKILL, while drop"
    ):
        crew.ask("drop", timeout_s=LIMIT_S)
    assert crew.lost
    with pytest.raises(CrewError, match="two: its processes have ended"):
        crew.ask("drop")


def test_a_member_that_is_late_is_named(crew):
    os.kill(crew.pids[0], signal.SIGSTOP)
    with pytest.raises(CrewError, match=r"two: rank 0 did not answer within 2 s, while drop"):
        crew.ask("drop", timeout_s=2)
    assert crew.lost


def test_what_members_refuse_is_told_and_they_go_on(crew):
    case = Case(op="broadcast", members=2, elements=8)
    with pytest.raises(Refused, match="NotImplementedError: there is no kernel for broadcast"):
        crew.ask("build", "kernel", case, timeout_s=LIMIT_S)
    assert crew.ask("build", "eager", case, timeout_s=LIMIT_S) == [None, None]
    assert all(device_us > 0 and host_us > 0 for device_us, host_us in crew.ask("sample", "eager", 2, timeout_s=LIMIT_S))
    assert crew.ask("drop", timeout_s=LIMIT_S) == [None, None]
    assert crew.close() == []


def test_members_that_cannot_start(cpu_devices):
    cpu_devices(2)
    with Crew("two", process_each, [(0, 2, "nowhere", "cpu:0")]) as crew:
        with pytest.raises(Refused, match="ValueError: Group.join: 'nowhere' is no host and port"):
            crew.started(LIMIT_S)
        assert crew.lost


class Played:
    """A crew that answers what it was told to."""

    lost = False

    def __init__(self, **answers):
        self.answers = answers

    def ask(self, method, *arguments):
        answer = self.answers.get(method, [None, None])
        if isinstance(answer, CrewError):
            self.lost = True
        if isinstance(answer, Exception):
            raise answer
        return answer


def played(optional=False, **answers):
    """What becomes of a candidate of tilekit's at two collectives, and why it was left out."""
    (candidate,) = [one for one in collectives.candidates("cpu")[0] if one.variant == "one process"]
    candidate = dataclasses.replace(candidate, optional=optional)
    left_out = []
    bench = collectives._Bench(None, ["cpu:0", "cpu:1"], left_out)
    bench._crews[candidate.crew] = Played(**answers)
    done = [bench.measure(Case(op="broadcast", members=2, elements=n), [candidate], rounds=1) for n in (8, 16)]
    return [len(case.results) for case in done], [(one.cause, one.reason) for one in left_out]


def test_who_is_left_out():
    assert played(sample=[(2.0, 1.0), (3.0, 0.5)]) == ([1, 1], [])
    assert played(build=[None, "3 is wrong"]) == ([0, 0], [("wrong", "3 is wrong")])
    assert played(build=Refused("it cannot")) == ([0, 0], [("failed", "it cannot")])
    assert played(sample=Refused("it cannot")) == ([0, 0], [("failed", "it cannot")])
    assert played(optional=True, build=CrewError("it is gone")) == ([0, 0], [("failed", "it is gone")])
    with pytest.raises(CrewError, match="it is gone"):
        played(build=CrewError("it is gone"))


def test_events_are_around_what_is_timed():
    seen = []
    clock = EventClock(lambda: seen.append("start"), lambda: seen.append("end"), lambda: seen.append("wait"), lambda: 0.5)
    device_us, host_us = clock.sample_us(lambda: seen.append("launch"), 2)
    assert seen == ["launch", "start", "launch", "launch", "end", "wait"]
    assert device_us == 250 and host_us > 0


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_what_tilekit_does_on_a_gpu(monkeypatch, way):
    with fake_device() as (device, _):
        nccl = FakeNccl()
        monkeypatch.setattr(gpus, "load", lambda: nccl.library)
        member = OfTilekit(tk.Group.join(0, 1, address=tk.Group.free_address(), device=device))
        assert isinstance(member.clock, EventClock)
        for op in OPS[:-1]:  # one member has no other to send to
            before = len(nccl.calls)
            member.build(way, Case(op=op, members=1, elements=8))
            device_us, host_us = member.sample(way, 2)
            assert device_us > 0 and host_us > 0
            # Three turns and as many launches of a sample, or what is done once before it is recorded, and what is.
            assert [call[0] for call in nccl.calls[before:]] == [op] * (1 + GRAPH_OPS if way == "graph" else 6)
            member.drop()
        member.close()
        assert nccl.calls[-1][0] == "destroy"


def test_what_torch_does_on_a_gpu(monkeypatch):
    torch = pytest.importorskip("torch", reason="the peer is torch.distributed")
    import contextlib
    from types import SimpleNamespace

    from tilekit_benchmarks import collective_peers

    seen, zeros, graphs = [], torch.zeros, []

    class Graph:
        def replay(self):
            for work in self.work:
                work()

        def reset(self):
            seen.append("reset")

    @contextlib.contextmanager
    def recorded(graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        graph.work = recording = []
        graphs.append(recording)
        yield
        graphs.pop()

    def doing(function):
        return lambda *given: graphs[-1].append(lambda: function(*given)) if graphs else function(*given)

    event = SimpleNamespace(record=lambda: seen.append("event"), elapsed_time=lambda end: 1.0)
    monkeypatch.setattr(torch, "zeros", lambda count, device: zeros(count))
    for name, value in {
        "set_device": lambda ordinal: seen.append(f"device {ordinal}"),
        "synchronize": lambda device: None,
        "empty_cache": lambda: seen.append("emptied"),
        "Event": lambda enable_timing: event,
        "CUDAGraph": Graph,
        "graph": recorded,
        "nccl": SimpleNamespace(version=lambda: (2, 28, 9)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    dist = torch.distributed
    options = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **given: options.update(given, backend=backend))
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: seen.append("destroyed"))
    monkeypatch.setattr(dist, "all_reduce", doing(lambda x: x))
    monkeypatch.setattr(dist, "all_gather_into_tensor", doing(lambda y, x: y.copy_(x)))
    member = collective_peers.join(0, 1, "127.0.0.1:1", "cuda", 3)
    assert options["backend"] == "nccl" and options["device_id"] == torch.device("cuda", 3)
    assert options["init_method"] == "tcp://127.0.0.1:1" and (options["rank"], options["world_size"]) == (0, 1)
    assert member.about == {"torch": torch.__version__, "nccl of torch": "2.28.9"}
    for op in ("all_reduce", "all_gather"):
        case = Case(op=op, members=1, elements=8)
        assert member.build("eager", case) is None
        assert member.build("graph", case) is None
        assert member.sample("graph", 2)[0] == 500 / GRAPH_OPS
    with pytest.raises(NotImplementedError, match="torch's symmetric memory has no all_gather"):
        member.build("two_shot", case)
    member.drop()
    member.close()
    assert seen[0] == "device 3"
    assert seen.count("event") == 4 and seen.count("reset") == 1 and seen[-1] == "destroyed"


def test_products_of_groups(cpu_devices, no_torch):
    """Among two CPU devices: built, checked, measured, recorded."""
    cpu_devices(2)
    run = bench.run("products", Options(device=tk.Device("cpu"), n=64, rounds=2, command="c"))
    assert [(case.op, case.shape) for case in run.cases] == [
        (op, (m, 64, 64)) for m in (64, 32) for op in ("all_gather_matmul", "matmul_reduce_scatter")
    ]
    for case in run.cases:
        (own,) = case.results
        assert set(own.times_us) == {"product", "collective", "in turn", "together"}
        assert all(len(samples) == 2 and min(samples) > 0 for samples in own.samples_us.values())
    text = report.table(run)
    assert "products, 2 devices" in text and "all_gather_matmul 64x64x64" in text and "hidden" in text
    json.dumps(dataclasses.asdict(run))


def test_a_wrong_product_is_told_of():
    product = product_members.Product(op="matmul_reduce_scatter", shape=(32, 16, 16), dtype="float32")
    operands = [product.operands(rank, 2) for rank in range(2)]
    whole = sum(x @ w for x, w in operands)
    assert [product.difference(whole[16 * rank :][:16], rank, 2) for rank in range(2)] == [None, None]
    whole[20] += 5
    assert product.difference(whole[16:], 1, 2) == "rank 1: 16 of 256 elements are wrong"
