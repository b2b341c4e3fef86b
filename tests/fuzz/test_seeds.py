"""The seeds of the fuzzers: fresh, distinct between processes, as many as were asked for, and told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import seeds


class _Config:
    rootpath = Path("/somewhere")

    def getoption(self, name, default=None):
        return {"--device": "cpu"}.get(name, default)


def request():
    """What a test of a fuzzer is asked for its cases with."""
    node = SimpleNamespace(
        originalname="test_x",
        path=Path("/somewhere/tests/fuzz/test_x.py"),
        callspec=SimpleNamespace(params={"kind": "wild", "cases": 0}),
    )
    return SimpleNamespace(config=_Config(), node=node, module=SimpleNamespace(BUDGET=0.001))


@pytest.fixture
def chosen(monkeypatch):
    """Sets the variables; gives the seeds of each process."""

    def choose(**variables):
        for name in ("TILEKIT_FUZZ", "TILEKIT_FUZZ_SEED", "TILEKIT_FUZZ_FIRST", "PYTEST_XDIST_WORKER_COUNT"):
            monkeypatch.setenv(name, "")  # so that what the module sets is undone as well
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return [list(seeds.Cases(request(), share)) for share in range(seeds.shares())]

    return choose


def test_the_seeds_are_distinct_between_processes(chosen):
    even, odd = chosen(TILEKIT_FUZZ="7", PYTEST_XDIST_WORKER_COUNT="2")
    assert sorted(even + odd) == list(range(even[0], even[0] + 7))


def test_each_run_starts_elsewhere(chosen):
    assert len({chosen(TILEKIT_FUZZ="1")[0][0] for _ in range(5)}) > 1


def test_a_seed_is_one_case(chosen):
    assert chosen(TILEKIT_FUZZ_SEED="17", PYTEST_XDIST_WORKER_COUNT="2") == [[17]]
    assert chosen(TILEKIT_FUZZ_SEED="17", TILEKIT_FUZZ="3") == [[17, 18, 19]]


def test_without_a_number_time_decides(chosen):
    assert all(chosen(PYTEST_XDIST_WORKER_COUNT="2"))


def test_a_failure_tells_its_command():
    command = seeds.Cases(request(), 0).command(17)
    assert command == "TILEKIT_FUZZ_SEED=17 pytest --device=cpu 'tests/fuzz/test_x.py' -k 'test_x[wild]'"


def test_what_ran_is_told(chosen):
    chosen(TILEKIT_FUZZ_SEED="17")
    reports = [
        SimpleNamespace(nodeid=f"tests/fuzz/test_x.py::test_x[{share}]", user_properties=[(seeds.RAN, 5)]) for share in (0, 1)
    ]
    assert seeds.summary(reports) == "fuzzers started at seed 17: test_x 10 cases"
    assert seeds.summary([]) is None
