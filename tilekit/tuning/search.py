"""Which configuration is the fastest: all decisions of a search, and none of the work, which a `Workbench` does.

First all candidates are compiled, and those thrown out whose code cannot be good. Then each runs once, for its result to be
compared with that of the first. The others are measured by successive halving: in each round all that are left take turns, a few
samples each, and the slower ones leave. What drifts (clocks, temperature, other users) drifts for all of a round.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from tilekit import dtypes
from tilekit.compiler.explain import resident_blocks
from tilekit.compiler.kernel import CompiledKernel
from tilekit.compiler.target import named
from tilekit.errors import DeviceError, TilekitError, check_flag
from tilekit.lang.tile import scalar_kind
from tilekit.tuning.configs import Config

__all__ = ["Candidate", "Progress", "Tuning", "Workbench", "difference", "refusal", "search", "search_options"]

ROUNDS = (3, 5, 9, 17)  # samples of each candidate in each round
_STAY = 3  # one of so many goes on to the next round
_CLOSE = 1.03  # and whoever is no slower than that many times the best
_HOPELESS = 3.0  # times the best one so far: no more samples are taken
_SPILLS = "spills"

Report = CompiledKernel | Exception | None
Progress = Callable[[str, int, int], object]
"""Told of a stage, how many steps of it are done, and of how many."""


class Workbench(Protocol):
    """What is done with candidates, by their numbers."""

    def compile(self, configs: Sequence[Config], step: Callable[[], object]) -> list[Report]:
        """The compiled kernel of each, or why there is none; None where nothing is known before it runs.

        Calls `step` for each.
        """
        ...

    def run(self, config: Config) -> list[Any]:
        """What it computes, as arrays of the host's: each time of the same input."""
        ...

    def sample_us(self, config: Config) -> float:
        """How long it takes once, in microseconds."""
        ...


@dataclass(kw_only=True)
class Candidate:
    """A configuration that was looked at.

    Attributes:
        config: it.
        samples: of its time, in microseconds.
        reason: why it was not chosen; None for the best, and for those that were measured to the end.
        registers, shared_bytes: a thread's and a block's, on a GPU; None where it was not compiled for one.
    """

    config: Config
    samples: list[float] = field(default_factory=list)
    reason: str | None = None
    registers: int | None = None
    shared_bytes: int | None = None

    @property
    def us(self) -> float | None:
        """The median of its samples, in microseconds; None if it was not measured."""
        return statistics.median(self.samples) if self.samples else None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a search found. It prints as a table.

    Attributes:
        best: the configuration that was chosen.
        us: how long it takes, in microseconds: the median.
        candidates: all that were looked at, the best first, then those that were measured to the end, and the others. Those of a
            record have one sample, the median.
        seconds: how long the search took; 0 if `from_record`.
        from_record: whether an earlier search had found it.
    """

    best: Config
    us: float
    candidates: tuple[Candidate, ...]
    seconds: float = 0.0
    from_record: bool = False

    def __str__(self) -> str:
        source = f"of {len(self.candidates)}, " + ("from a record" if self.from_record else f"in {self.seconds:.1f} s")
        rows: list[tuple[str, ...]] = [("us", "samples", "registers", "shared", "configuration", "")]
        for one in self.candidates:
            time_us = "" if one.us is None else f"{one.us:.1f}"
            numbers = ("" if number is None else str(number) for number in (one.registers, one.shared_bytes))
            rows.append((time_us, str(len(one.samples) or ""), *numbers, repr(one.config), one.reason or ""))
        if all(one.registers is None for one in self.candidates):
            rows = [(*row[:2], *row[4:]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(_aligned(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"{self.best!r}: {self.us:.1f} us, {source}", *table])


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if not cell or cell[0].isdigit() or width < 10 else cell.ljust(width)


def search(
    configs: Sequence[Config],
    bench: Workbench,
    *,
    who: str,
    check: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    progress: Progress = lambda stage, step, steps: None,
) -> Tuning:
    """The fastest of some configurations. The same seed takes the same decisions, where times are the same.

    Args:
        configs: them; what the first that runs computes is right.
        bench: what compiles, runs and times them.
        who: what is tuned, for messages.
        check: whether results are compared.
        rtol, atol: how far they may be apart, as of `numpy.allclose`; by default what the dtype allows.
        seed: of the order in which candidates take turns.
        progress: told how far it is.

    Raises:
        TilekitError: none of them runs. DeviceError: the device is lost.
    """
    start = time.perf_counter()
    candidates = [Candidate(config=config) for config in configs]
    kept = _compiled(candidates, bench, progress)
    kept = _right(kept, bench, check, rtol, atol, progress)
    if not kept:
        reasons = "\n".join(f"  {one.config!r}: {one.reason}" for one in candidates)
        raise TilekitError(f"{who}: none of {len(candidates)} configurations can be used:\n{reasons}")
    best = _fastest(kept, bench, random.Random(seed), progress)
    assert best.us is not None, "it was measured"
    ranked = sorted(candidates, key=lambda one: (one is not best, one.reason is not None, -len(one.samples), one.us or 0.0))
    seconds = time.perf_counter() - start
    return Tuning(best=best.config, us=best.us, candidates=tuple(ranked), seconds=seconds)


def search_options(who: str, check: Any, rtol: Any, atol: Any, seed: Any) -> dict[str, Any]:
    """The options of a search, for `search`.

    Raises:
        TypeError, ValueError: one of them is no flag, no tolerance, or no int.
    """
    tolerances: dict[str, float | None] = {}
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance is not None and (scalar_kind(tolerance) not in (int, float) or not tolerance >= 0):
            raise ValueError(f"{who}: {name} is a number that is not negative, or None, not {tolerance!r}")
        tolerances[name] = None if tolerance is None else float(min(tolerance, sys.float_info.max))
    if scalar_kind(seed) is not int:
        raise TypeError(f"{who}: seed is an int, not {seed!r}")
    return {"check": check_flag(f"{who}: check", check), **tolerances, "seed": int(seed)}


def refusal(config: Config, kernel: CompiledKernel) -> str | None:
    """Why code like this is not worth running; None if it is."""
    target = named(kernel.target)
    shared = kernel.shared_bytes + kernel.dynamic_shared_bytes
    if shared > target.room:
        return f"needs {shared:,} bytes of shared memory, a block of {kernel.target} has {target.room:,}"
    blocks, limit, _ = resident_blocks(kernel)
    if blocks < (config["occupancy"] or 1):
        return f"a multiprocessor has room for {blocks} blocks, not {config['occupancy'] or 1}, for its {limit}"
    if kernel.spilled_bytes:
        return f"{_SPILLS}: each thread keeps {kernel.spilled_bytes:,} bytes in memory for which it has no registers"
    return None


def difference(result: Sequence[Any], expected: Sequence[Any], rtol: float | None, atol: float | None) -> str | None:
    """How a result differs from the one that is right; None if it does not."""
    if len(result) != len(expected):
        return f"gives {len(result)} results, not {len(expected)}"
    for at, (one, other) in enumerate(zip(result, expected, strict=True)):
        ours, theirs = np.asarray(one), np.asarray(other)
        which = f"result {at}" if len(expected) > 1 else "the result"
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{which} is {ours.dtype} of shape {ours.shape}, not {theirs.dtype} of shape {theirs.shape}"
        if not dtypes.is_float(theirs.dtype):
            apart = ours != theirs
        else:
            # Sums in another order are off by some roundings of their terms, which may be larger than they are.
            rounding = float(ml_dtypes.finfo(theirs.dtype).eps)  # type: ignore[no-untyped-call]
            sizes = np.abs(theirs.astype(np.float64))
            scale = float(np.max(sizes[np.isfinite(sizes)], initial=0.0))
            relative = 32 * rounding if rtol is None else rtol
            absolute = 32 * rounding * scale if atol is None else atol
            with np.errstate(over="ignore"):
                apart = ~np.isclose(ours.astype(np.float64), theirs.astype(np.float64), relative, absolute, equal_nan=True)
        count = int(np.count_nonzero(apart))
        if count:
            where = tuple(int(index) for index in np.argwhere(apart)[0]) if ours.ndim else ()
            at_index = f" at {where}" if where else ""
            return f"{which} differs in {count:,} of {ours.size:,} elements: {ours[where]}{at_index}, not {theirs[where]}"
    return None


def _compiled(candidates: Sequence[Candidate], bench: Workbench, progress: Progress) -> list[Candidate]:
    """Those whose code is worth running. If all that can run spill, those that spill least are."""
    done = iter(range(1, len(candidates) + 1))
    reports = bench.compile([one.config for one in candidates], lambda: progress("compile", next(done), len(candidates)))
    spilled: dict[int, list[Candidate]] = {}
    for one, report in zip(candidates, reports, strict=True):
        if isinstance(report, Exception):
            one.reason = f"cannot be compiled: {_line(report)}"
        elif report is not None:
            one.registers, one.shared_bytes = report.registers, report.shared_bytes + report.dynamic_shared_bytes
            one.reason = refusal(one.config, report)
            if (one.reason or "").startswith(_SPILLS):
                spilled.setdefault(report.spilled_bytes, []).append(one)
    kept = [one for one in candidates if one.reason is None]
    if not kept and spilled:
        kept = spilled[min(spilled)]
        for one in kept:
            one.reason = None
    return kept


def _right(
    candidates: Sequence[Candidate], bench: Workbench, check: bool, rtol: float | None, atol: float | None, progress: Progress
) -> list[Candidate]:
    """Those that run, and compute what the first of them does."""
    expected: tuple[Config, list[Any]] | None = None
    for at, one in enumerate(candidates, 1):
        try:
            result = bench.run(one.config)
        except Exception as error:
            if isinstance(error, DeviceError) and error.lost:
                raise
            one.reason = f"fails: {_line(error)}"
        else:
            if expected is None:
                expected = one.config, result
            elif check:
                wrong = difference(result, expected[1], rtol, atol)
                one.reason = wrong and f"is wrong beside {expected[0]!r}: {wrong}"
        progress("check", at, len(candidates))
    return [one for one in candidates if one.reason is None]


def _fastest(candidates: list[Candidate], bench: Workbench, order: random.Random, progress: Progress) -> Candidate:
    """By rounds, in which those that are left take turns."""
    for number, samples in enumerate(ROUNDS, 1):
        hopeless: set[int] = set()
        for turn in range(samples):
            order.shuffle(candidates)
            for one in candidates:
                if id(one) in hopeless:
                    continue
                one.samples.append(bench.sample_us(one.config))
            best = min(min(one.samples) for one in candidates)
            hopeless = {id(one) for one in candidates if min(one.samples) > _HOPELESS * best}
            progress(f"measure {len(candidates)}", turn + 1, samples)
        times = {id(one): statistics.median(one.samples) for one in candidates}
        candidates.sort(key=lambda one: times[id(one)])
        if number == len(ROUNDS) or len(candidates) == 1:
            break
        fastest = times[id(candidates[0])]
        stay = max(2, math.ceil(len(candidates) / _STAY))
        left = [one for at, one in enumerate(candidates) if at < stay or times[id(one)] <= _CLOSE * fastest]
        for one in candidates[len(left) :]:
            one.reason = f"{times[id(one)] / fastest:.2f} times as long as the best in round {number}"
        candidates = left
    return candidates[0]


def _line(error: BaseException) -> str:
    """The first line of an error's text, behind its type."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
