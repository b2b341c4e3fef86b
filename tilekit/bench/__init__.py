"""Benchmarks: tilekit beside its peers, in one run, with the results checked. `python -m tilekit bench` runs them.

A benchmark is a module of this package, named in `BENCHMARKS`, with a function `run(options)` that returns a `report.Record`.
`harness` compares contestants, `environment` says where that was, `report` shows and keeps what came out. Peers are imported
only by the functions that need them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilekit.device import Device

if TYPE_CHECKING:
    from tilekit.bench.report import Record

__all__ = ["BENCHMARKS", "Options", "run"]

BENCHMARKS: Mapping[str, str] = {
    "saxpy": "y = a * x + y in place, float32: how near to the speed of the memory",
}
"""The benchmarks, and what each one is about."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a benchmark is asked to do.

    Attributes:
        device: where it runs.
        n: the size of the problem; None leaves it to the benchmark.
        rounds: how many samples are taken of each contestant, in turns.
        command: the command line that asked for it, for the record.
    """

    device: Device
    n: int | None = None
    rounds: int = 20
    command: str | None = None

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 1:
            raise ValueError(f"n = {self.n}: a benchmark needs at least one element")
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds}: a benchmark needs at least one round")


def run(name: str, options: Options) -> Record:
    """Run the benchmark `name`. Blocks until it is done.

    Raises:
        ValueError: there is no such benchmark.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    record: Record = importlib.import_module(f"{__name__}.{name}").run(options)
    return record
