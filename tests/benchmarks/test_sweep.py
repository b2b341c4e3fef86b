"""Contestants along an axis: who takes part, what is recorded, how it is shown."""

import json
from contextlib import contextmanager

import pytest

from tilekit_benchmarks import Options, report
from tilekit_benchmarks.harness import Prepared, Unwaited, WallTimer
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import Missing
from tilekit_benchmarks.sweep import Candidate, Work, survey, sweep


@pytest.fixture
def timer():
    timer = WallTimer()
    yield timer
    timer.close()


def test_a_wall_timer_awaits_coroutine_functions_in_one_task(timer):
    import asyncio

    seen = []

    async def launch():
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)

    assert timer.sample_us(launch, 3) > 0
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_a_single_launch_is_the_one_that_is_timed(timer):
    seen = []
    timer.sample_us(lambda: seen.append(1), 1)
    assert seen == [1]
    timer.sample_us(lambda: seen.append(1), 2)
    assert len(seen) == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_preparation_is_not_timed(timer, monkeypatch, asynchronous):
    now = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])

    def make():
        now[0] += 1_000_000
        return 2000

    def run(ns):
        now[0] += ns

    async def run_async(ns):
        now[0] += ns

    assert timer.sample_us(Prepared(make, run_async if asynchronous else run), 5) == 2.0
    assert Prepared(make, run)() is None


def doing(name, variant="v", *, launch=lambda: None, wrong=None, fail=None):
    def build(place):
        if fail is not None and place == fail[0]:
            raise fail[1]
        return Work(launch=launch, reset=lambda: None, check=lambda: wrong)

    return Candidate(name=name, version="1", variant=variant, build=build)


def surveyed(*candidates, places=(1, 2), rate=False):
    left_out = []
    found = survey(
        candidates, places, items=lambda n: n or 1, rate=rate, reference=candidates[0].label, rounds=2, left_out=left_out
    )
    return found, left_out


def test_who_is_missing_fails_or_is_wrong_is_left_out_with_the_reason():
    found, left_out = surveyed(
        doing("good"),
        doing("absent", fail=(1, Missing("not installed: pip install absent"))),
        doing("sick", fail=(2, RuntimeError("no kernel image\nis available"))),
        doing("bad", wrong="3 elements differ"),
    )
    assert [(series.name, [p.at for p in series.points]) for series in found] == [("good", [1, 2]), ("sick", [1])]
    assert {(one.name, one.cause, one.reason) for one in left_out} == {
        ("absent, v", "missing", "not installed: pip install absent"),
        ("sick, v", "failed", "at 2: RuntimeError: no kernel image"),
        ("bad, v", "wrong", "at 1: 3 elements differ"),
    }


def test_tilekit_itself_may_not_fail():
    with pytest.raises(RuntimeError, match="broken"):
        surveyed(doing(OWN, fail=(1, RuntimeError("broken"))))


def test_values_are_times_of_a_piece_or_rates_of_them(monkeypatch):
    taken_us = {"reference": 10.0, "twice": 20.0}
    current = []

    def launch_of(name):
        def launch():
            current.append(name)

        return launch

    def sample(self, launch, launches):
        launch()
        return taken_us[current[-1]]

    monkeypatch.setattr(WallTimer, "sample_us", sample)
    pair = [doing(name, launch=launch_of(name)) for name in taken_us]
    (_, slow), _ = surveyed(*pair, places=(4,))
    assert (slow.points[0].value, slow.points[0].ratio, slow.points[0].median_us) == (5.0, 2.0, 20.0)
    (_, slow), _ = surveyed(*pair, places=(4,), rate=True)
    assert (slow.points[0].value, slow.points[0].ratio) == (pytest.approx(2e5), 0.5)


@pytest.mark.parametrize("places", [(7,), (0, 10, 1000)])
@pytest.mark.parametrize("rate", [False, True])
def test_a_record_is_shown_saved_and_drawn(device, tmp_path, places, rate):
    run = sweep(
        Options(device=device, rounds=2, command="c"),
        [doing("peer"), doing(OWN, "mine"), doing("bad", wrong="off by one")],
        places,
        benchmark="chain",
        axis="ops",
        unit="us per op",
        rate=rate,
        items=lambda n: n or 1,
        parameters={"n": 1000, "op_us": 51.234},
    )
    assert not run.all_correct
    text = report.table(run)
    for part in ("chain, n = 1000, op_us = 51.23", device.name, "mine", "Ratios are to peer, v;", "bad, v: wrong: at", "(1.00)"):
        assert part in text or (part == "(1.00)" and len(places) == 1), part
    report.save(run, tmp_path / "run.json")
    read = json.loads((tmp_path / "run.json").read_text())
    assert {"commit", "dirty", "date", "device", "driver", "versions", "axis", "unit", "reference"} <= set(read)
    assert [len(series["points"]) for series in read["results"]] == [len(places)] * 2
    assert read["results"][0]["points"][0]["at"] == places[0]
    assert len(read["results"][0]["points"][0]["samples_us"]) == 2
    pytest.importorskip("matplotlib", reason="drawing needs the extra bench")
    report.plot(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_launch_that_is_not_waited_for(timer, monkeypatch):
    now, calls = [0], []

    def after(name, ns):
        calls.append(name)
        now[0] += ns

    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    launch = Unwaited(lambda: after("launch", 2000), lambda: after("wait", 1_000_000))
    assert timer.sample_us(launch, 3) == 2.0
    assert calls == ["launch", "wait", "launch", "launch", "launch", "wait"]
    assert timer.sample_us(launch, 1) == 2.0
    calls.clear()
    fed = Unwaited(lambda name, ns: after(name, ns), lambda: None, lambda: after("make", 500) or ("launch", 2000))
    assert timer.sample_us(fed, 2) == 2.0
    assert calls == ["make", "launch", "make", "make", "launch", "launch"]


def test_a_way_that_there_is_not_everywhere():
    here = doing("here")
    sometimes = Candidate(name="sometimes", version="1", variant="v", build=here.build, places=(2, 4))
    found, left_out = surveyed(here, sometimes, places=(1, 2, 3, 4))
    assert [[p.at for p in series.points] for series in found] == [[1, 2, 3, 4], [2, 4]]
    assert not left_out
    found, _ = surveyed(sometimes, places=(1, 2))
    assert [p.at for p in found[0].points] == [2]


def test_a_contestants_context_is_there_when_it_launches():
    active, seen = [], []

    @contextmanager
    def context():
        active.append(1)
        yield
        active.pop()

    work = Work(
        launch=lambda: seen.append(len(active)),
        reset=lambda: seen.append(-len(active)),
        check=lambda: seen.append(-len(active)),
        active=context,
    )
    surveyed(Candidate(name="one", version="1", variant="v", build=lambda place: work), places=(1,))
    assert set(seen) == {0, 1}
    assert seen[:4] == [1, 0, 1, 0]
