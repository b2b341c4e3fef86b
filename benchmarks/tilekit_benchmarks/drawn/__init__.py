"""Sweeps: tilekit beside its peers on cases that are drawn at random, from a distribution that is written down.

`distribution` draws cases, a pure function of a seed and their numbers; a module for each family says what is drawn and how it is
computed, `families` has them by name; `problem` is what a case is once it has memory; `measuring` measures it; `record` has the
statistics, the picture, and joins the records of pieces. `tilekit_benchmarks.sweep` is something else: it measures the host's
side along an axis.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from tilekit._environment import version_of
from tilekit_benchmarks import Options
from tilekit_benchmarks.drawn import record
from tilekit_benchmarks.drawn.distribution import LIMITS
from tilekit_benchmarks.drawn.families import FAMILIES
from tilekit_benchmarks.drawn.measuring import Bench, measure
from tilekit_benchmarks.drawn.record import CaseResult, DrawnRun, Piece
from tilekit_benchmarks.report import surroundings

__all__ = ["FAMILIES", "join", "run"]


def run(options: Options) -> DrawnRun:
    """Draw cases of `options.drawn` and measure them. Blocks until it is done.

    Raises:
        ValueError: there is no such family, or nothing is asked for.
    """
    asked = options.drawn
    if asked is None or asked.family not in FAMILIES:
        what = "none" if asked is None else repr(asked.family)
        raise ValueError(f"sweep: a family is one of {', '.join(FAMILIES)}, not {what}")
    device = options.device
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    stop = asked.cases if asked.stop is None else asked.stop
    where = surroundings(device, ())  # after a fault nobody could ask the device
    results: list[CaseResult] = []
    ended: str | None = None
    try:
        with device.stream() as stream:
            bench = Bench(stream, LIMITS[device.kind], options.rounds, asked.lock)
            with bench.use():
                results, ended = measure(bench, asked.family, seed, range(asked.start, stop))
    except Exception:
        if ended is None:  # after a fault streams and events cannot be given up either
            raise
    where["versions"] |= {"torch": version_of("torch"), "triton": version_of("triton")}
    return DrawnRun(
        **where,
        benchmark="sweep",
        rounds=options.rounds,
        timer="device events" if device.kind == "cuda" else "host clock",
        command=options.command,
        notes=() if ended is None else (ended,),
        family=asked.family,
        seed=seed,
        cases=asked.cases,
        pieces=(Piece(start=asked.start, stop=stop, date=where["date"], command=options.command),),
        results=tuple(results),
    )


def join(paths: Sequence[Path]) -> DrawnRun:
    """One record of those of several pieces; see `record.join`."""
    return record.join(paths)
