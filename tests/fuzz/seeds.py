"""Seeds of the fuzzers: which cases a run takes, for how long, and what it prints of them.

A case is all that one integer, its seed, decides. The only tests that are not deterministic are those in this folder: each run
of pytest starts at a fresh seed, which it prints, and takes the integers that follow.

| variable | what a fuzzer runs |
| --- | --- |
| neither | as many cases as fit its time: `QUICK_S`, with `--thorough` `THOROUGH_S` |
| `TILEKIT_FUZZ=10000` | so many cases, spread over the processes of `pytest -n` |
| `TILEKIT_FUZZ_SEED=17` | that case alone |
| both | so many cases, from that seed on |

A test takes the fixture `cases`, once, and runs each seed that it gives::

    def test_graphs(device, cases):
        for seed in cases:
            problem = run(plan(seed))
            assert problem is None, cases.report(seed, problem)

Its time is that of the tests of its file together: `BUDGET = 0.5` in the file, where two tests share it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

QUICK_S, THOROUGH_S = 5.0, 15.0
RAN = "cases of the fuzzers"  # the name of the property of a test's report that tells how many it ran
_FIRST = "TILEKIT_FUZZ_FIRST"  # tells pytest's worker processes where the run starts


def first_seed() -> int:
    """Where this run starts: the same in all processes of it."""
    chosen = os.environ.get("TILEKIT_FUZZ_SEED") or os.environ.get(_FIRST)
    if chosen is None:
        chosen = os.environ[_FIRST] = str(random.SystemRandom().randrange(1, 10**6) * 1000)
    return int(chosen)


def count() -> int | None:
    """How many cases each fuzzer runs, over all processes. None: as many as there is time for."""
    number = os.environ.get("TILEKIT_FUZZ")
    if number is not None:
        return int(number)
    return 1 if "TILEKIT_FUZZ_SEED" in os.environ else None


def shares() -> int:
    """Over how many tests a fuzzer's cases are spread: one for each process."""
    return 1 if count() == 1 else int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


class Cases:
    """The seeds of one test, in the order in which they are to be run."""

    def __init__(self, request: pytest.FixtureRequest, share: int) -> None:
        config = request.config
        self.ran = 0
        self._share, self._shares, self._count = share, shares(), count()
        seconds = THOROUGH_S if config.getoption("--thorough", default=False) else QUICK_S
        self.seconds = seconds * getattr(request.module, "BUDGET", 1.0) / self._shares
        # The name without the parameter that is the share.
        parameters = {name: value for name, value in request.node.callspec.params.items() if name != "cases"}
        name = request.node.originalname + (f"[{'-'.join(map(str, parameters.values()))}]" if parameters else "")
        path = request.node.path.relative_to(config.rootpath)
        self._command = f"pytest --device={config.getoption('--device')} '{path}' -k '{name}'"

    def __iter__(self) -> Iterator[int]:
        first, end = first_seed(), time.monotonic() + self.seconds
        number = self._share
        while number < self._count if self._count is not None else time.monotonic() < end or not self.ran:
            self.ran += 1
            yield first + number
            number += self._shares

    def block(self) -> tuple[int, int, int, float]:
        """For a process that runs the cases by itself: the first seed, the step to the next, at most how many, for how long."""
        if self._count is None:
            return first_seed() + self._share, self._shares, 10**9, self.seconds
        return first_seed() + self._share, self._shares, len(range(self._share, self._count, self._shares)), 10.0**9

    def command(self, seed: int) -> str:
        """The command that runs the case again."""
        return f"TILEKIT_FUZZ_SEED={seed} {self._command}"

    def report(self, seed: int, problem: str) -> str:
        """What a failing test says."""
        return f"seed {seed}: {problem}\nagain: {self.command(seed)}"


def summary(reports: list[pytest.TestReport]) -> str | None:
    """One line on what the fuzzers of a finished run did, if any ran."""
    ran: dict[str, int] = {}
    for report in reports:
        for name, value in report.user_properties:
            if name == RAN:
                test = report.nodeid.rpartition("::")[2].partition("[")[0]
                ran[test] = ran.get(test, 0) + int(str(value))
    if not ran:
        return None
    return f"fuzzers started at seed {first_seed()}: " + ", ".join(f"{test} {number} cases" for test, number in ran.items())
