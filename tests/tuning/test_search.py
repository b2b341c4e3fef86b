"""Every decision of a search, with times and code that were made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilekit as tk
from tilekit.compiler.kernel import CompiledKernel
from tilekit.errors import CompileError, DeviceError, TilekitError
from tilekit.tuning.search import ROUNDS, Report, Tuning, difference, refusal, search

CODE = CompiledKernel(
    entry="k",
    ptx="",
    cubin=b"",
    target="sm_90a",
    registers=32,
    shared_bytes=0,
    local_bytes=0,
    block=(128, 1, 1),
    param_format="<",
)


class Made(Exception):
    """Raised by a workbench."""


class Bench:
    """A workbench with what it is told.

    Args:
        times: microseconds of each configuration, by its `n`.
        noise: how much a sample may be longer, as a share.
        reports: of the compiler.
        results: what is computed, or raised.
    """

    def __init__(
        self,
        times: Sequence[float],
        noise: float = 0.0,
        reports: dict[int, Report] | None = None,
        results: dict[int, Any] | None = None,
    ) -> None:
        self.times, self.noise, self.reports, self.results = times, noise, reports or {}, results or {}
        self.random, self.sampled, self.ran, self.spent = random.Random(7), [], [], 0.0  # type: ignore[var-annotated]

    def compile(self, configs: Sequence[tk.Config], step: Callable[[], object]) -> list[Report]:
        for _ in configs:
            step()
        return [self.reports.get(config.n) for config in configs]

    def run(self, config: tk.Config) -> list[Any]:
        self.ran.append(config.n)
        result = self.results.get(config.n, [1.0])
        if isinstance(result, Exception):
            raise result
        return list(result)

    def sample_us(self, config: tk.Config) -> float:
        self.sampled.append(config.n)
        time = self.times[config.n] * (1 + self.noise * self.random.random())
        self.spent += time
        return time


def tuned(bench: Bench, **options: Any) -> Tuning:
    return search([tk.Config(n=n) for n in range(len(bench.times))], bench, who="a test", **options)


def reason(tuning: Tuning, n: int) -> str | None:
    return next(one.reason for one in tuning.candidates if one.config.n == n)


def test_the_fastest_is_chosen() -> None:
    tuning = tuned(Bench([5.0, 3.0, 4.0]))
    assert (tuning.best, tuning.us) == (tk.Config(n=1), 3.0)
    assert tuning.candidates[0].config == tuning.best
    assert tuning.candidates[0].reason is None
    assert not tuning.from_record


@pytest.mark.parametrize("seed", range(20))
def test_it_is_within_3_percent_of_exhaustive_search_in_a_fifth_of_its_time(seed: int) -> None:
    draw = random.Random(seed)
    times = [10 * draw.lognormvariate(0, 0.5) for _ in range(60)]
    bench = Bench(times, noise=0.05)
    bench.random = random.Random(seed)
    best = tuned(bench, seed=seed).best
    exhaustive = sum(ROUNDS) * sum(times)
    assert times[best.n] <= 1.03 * min(times)
    assert bench.spent <= exhaustive / 5


def test_candidates_take_turns_and_the_slower_ones_leave() -> None:
    bench = Bench([10.0, 11.0, 12.0, 13.0, 14.0, 15.0])
    tuning = tuned(bench)
    first = bench.sampled[: 6 * ROUNDS[0]]
    assert all(sorted(first[at : at + 6]) == [0, 1, 2, 3, 4, 5] for at in range(0, len(first), 6))
    second = bench.sampled[len(first) : len(first) + 2 * ROUNDS[1]]
    assert all(sorted(second[at : at + 2]) == [0, 1] for at in range(0, len(second), 2))
    assert reason(tuning, 5) == "1.50 times as long as the best in round 1"
    assert len(tuning.candidates[0].samples) == sum(ROUNDS)


def test_those_that_are_close_stay() -> None:
    bench = Bench([10.0, 10.1, 10.2, 10.25, 20.0, 21.0])
    tuning = tuned(bench)
    assert all(reason(tuning, n) is None for n in range(4))


def test_the_hopeless_are_sampled_once() -> None:
    bench = Bench([10.0, 40.0, 20.0])
    tuned(bench)
    assert bench.sampled.count(1) == 1
    assert bench.sampled.count(2) >= ROUNDS[0]


def test_a_seed_decides_the_order_and_nothing_else_does() -> None:
    orders = []
    for seed in (1, 1, 2):
        bench = Bench([float(n) for n in range(10, 20)])
        tuned(bench, seed=seed)
        orders.append(bench.sampled)
    assert orders[0] == orders[1] != orders[2]


def test_one_candidate_is_measured_for_its_time() -> None:
    bench = Bench([4.0])
    assert tuned(bench).us == 4.0
    assert len(bench.sampled) == ROUNDS[0]


def test_code_that_cannot_be_good_is_thrown_out_before_it_runs() -> None:
    reports: dict[int, Report] = {
        0: CODE,
        1: replace(CODE, local_bytes=64),
        2: replace(CODE, dynamic_shared_bytes=300_000),
        3: CompileError("line 3: no such thing\nmore"),
    }
    bench = Bench([9.0, 1.0, 1.0, 1.0], reports=reports)
    tuning = tuned(bench)
    assert tuning.best.n == 0
    assert bench.ran == [0]
    assert "spills: each thread keeps 64 bytes" in str(reason(tuning, 1))
    assert "needs 300,000 bytes of shared memory" in str(reason(tuning, 2))
    assert reason(tuning, 3) == "cannot be compiled: CompileError: line 3: no such thing"
    assert "32" in str(tuning)


def test_where_all_spill_those_that_spill_least_run() -> None:
    reports: dict[int, Report] = {
        0: replace(CODE, local_bytes=64),
        1: replace(CODE, local_bytes=16),
        2: replace(CODE, local_bytes=16),
    }
    bench = Bench([1.0, 3.0, 2.0], reports=reports)
    assert tuned(bench).best.n == 2
    assert bench.ran == [1, 2]


def test_an_occupancy_that_there_is_no_room_for() -> None:
    large = replace(CODE, dynamic_shared_bytes=100_000)
    assert refusal(tk.Config(occupancy=2), large) is None
    assert refusal(tk.Config(occupancy=3), large) == "a multiprocessor has room for 2 blocks, not 3, for its shared memory"


def test_wrong_results_are_thrown_out() -> None:
    right = [np.array([1.0, 2.0, 3.0], np.float32)]
    results = dict.fromkeys(range(4), right) | {2: [np.array([1.0, 2.5, 3.0], np.float32)]}
    bench = Bench([9.0, 5.0, 1.0, 7.0], results=results)
    tuning = tuned(bench)
    assert tuning.best.n == 1
    assert reason(tuning, 2) == ("is wrong beside Config(n=0): the result differs in 1 of 3 elements: 2.5 at (1,), not 2.0")
    assert tuned(Bench([9.0, 5.0, 1.0, 7.0], results=results), check=False).best.n == 2
    assert tuned(Bench([9.0, 5.0, 1.0, 7.0], results=results), rtol=0.3).best.n == 2


def test_what_fails_is_thrown_out_and_the_next_is_right() -> None:
    bench = Bench([1.0, 3.0, 2.0], results={0: Made("no"), 1: [1.0], 2: DeviceError("too large")})
    tuning = tuned(bench)
    assert tuning.best.n == 1
    assert reason(tuning, 0) == "fails: Made: no"
    assert reason(tuning, 2) == "fails: DeviceError: too large"


def test_a_device_that_is_lost_ends_the_search() -> None:
    with pytest.raises(DeviceError, match="gone"):
        tuned(Bench([1.0, 2.0], results={0: DeviceError("gone", lost=True)}))


def test_if_none_is_left_each_has_its_reason() -> None:
    with pytest.raises(TilekitError, match="a test: none of 2 configurations") as error:
        tuned(Bench([1.0, 1.0], reports={0: ValueError("odd")}, results={1: Made("late")}))
    assert "Config(n=0): cannot be compiled: ValueError: odd" in str(error.value)
    assert "Config(n=1): fails: Made: late" in str(error.value)


def test_progress_is_told_of_every_stage() -> None:
    seen: list[tuple[str, int, int]] = []
    tuned(Bench([1.0, 2.0, 3.0]), progress=lambda *step: seen.append(step))
    assert seen[:6] == [("compile", n, 3) for n in (1, 2, 3)] + [("check", n, 3) for n in (1, 2, 3)]
    assert ("measure 3", ROUNDS[0], ROUNDS[0]) in seen


def test_the_table_has_every_candidate() -> None:
    text = str(tuned(Bench([5.0, 3.0, 40.0])))
    assert text.startswith("Config(n=1): 3.0 us, of 3, in ")
    assert len(text.splitlines()) == 5
    assert "registers" not in text


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_sums_in_another_order_are_no_difference(dtype: Any) -> None:
    terms = np.random.default_rng(0).normal(size=4096)
    one = np.array([terms.sum(), 100.0]).astype(dtype)
    other = (one.astype(np.float64) * (1 + 4 * float(ml_dtypes.finfo(dtype).eps))).astype(dtype)
    assert difference([one], [other], None, None) is None
    assert difference([one], [one + np.asarray(50, dtype)], None, None) is not None


def test_differences_are_told() -> None:
    whole = np.arange(6).reshape(2, 3)
    assert difference([whole], [whole], None, None) is None
    assert difference([whole], [whole, whole], None, None) == "gives 1 results, not 2"
    assert "int64 of shape (2, 3), not int64 of shape (3, 2)" in str(difference([whole], [whole.T], None, None))
    assert "result 1 differs in 6 of 6" in str(difference([whole, whole], [whole, whole + 1], None, None))
    assert difference([np.float32("nan")], [np.float32("nan")], None, None) is None
    assert "nan, not 1.0" in str(difference([np.float32("nan")], [np.float32(1)], None, None))
    assert difference([np.array([np.inf, 1.0])], [np.array([np.inf, 1.0])], None, None) is None
