"""Collectives as they are measured: which, of how many bytes, with which data, and what counts as bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEFAULT_N", "OPS", "SIZES", "Array", "Case", "cases", "size_label"]

Array = NDArray[np.float32]

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")
"""What is measured. `send_recv`: each member sends to the next one, and receives from the one before it, in a ring."""

SIZES = tuple(1 << power for power in (10, 13, 16, 19, 20, 22, 25, 27, 30))
"""Bytes of the messages."""

DEFAULT_N = {"cuda": SIZES[-1], "cpu": 1 << 20}
"""The bytes of the largest message, by the kind of device."""

_ITEM = 4  # float32
_PERIOD = 97  # of the pattern; sums of numbers as small, and of what tells members and turns apart, are exact in float32


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective among members that each have a tensor of float32.

    Attributes:
        op: one of `OPS`.
        members: how many there are.
        elements: of the larger of a member's tensors. `all_gather` and `reduce_scatter` have one of `elements / members`, too.
    """

    op: str
    members: int
    elements: int

    @property
    def nbytes(self) -> int:
        """What NCCL's tests call the size: the bytes of the larger tensor of a member."""
        return _ITEM * self.elements

    @property
    def inputs(self) -> int:
        """The elements of a member's input."""
        return self.elements // self.members if self.op == "all_gather" else self.elements

    @property
    def outputs(self) -> int:
        """The elements of a member's output."""
        return self.elements // self.members if self.op == "reduce_scatter" else self.elements

    @property
    def bus_factor(self) -> float:
        """What part of the size crosses the slowest link, at best, by the definitions of NCCL's tests.

        See https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; that of `send_recv` is in src/sendrecv.cu.
        """
        n = self.members
        return {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n}.get(self.op, 1.0)

    def data(self, rank: int, turn: int) -> Array:
        """The input of member `rank` in turn `turn`: another one for each."""
        return _pattern(self.inputs) + np.float32(_mark(rank, turn))

    def expected(self, rank: int, turn: int, repeats: int = 1) -> Array:
        """What member `rank` gets in turn `turn`.

        Args:
            rank, turn: as `data`.
            repeats: how often the members' tensors are added up in place, each time the sums of the time before.
        """
        if self.op == "send_recv":
            return self.data((rank - 1) % self.members, turn)
        if self.op == "broadcast":
            return self.data(0, turn)
        if self.op == "all_gather":
            return np.concatenate([self.data(member, turn) for member in range(self.members)])
        marks = sum(_mark(member, turn) for member in range(self.members))
        if self.op == "reduce_scatter":
            part = _pattern(self.inputs)[rank * self.outputs : (rank + 1) * self.outputs]
            return part * np.float32(self.members) + np.float32(marks)
        total = _pattern(self.inputs) * np.float32(self.members) + np.float32(marks)
        total *= np.float32(float(self.members) ** (repeats - 1))
        return total

    def difference(self, result: Any, rank: int, turn: int, repeats: int = 1) -> str | None:
        """What is wrong with `result`; None if nothing is. The other arguments are those of `expected`."""
        expected = self.expected(rank, turn, repeats)
        if result.shape != expected.shape:
            return f"rank {rank} has {result.shape}, not {expected.shape}"
        # Powers of two scale exactly; with other numbers of members, sums of sums are rounded.
        exact = repeats == 1 or not self.members & (self.members - 1)
        wrong = result != expected if exact else ~np.isclose(result, expected, rtol=1e-5)
        count = int(np.count_nonzero(wrong))
        if not count:
            return None
        at = int(np.argmax(wrong))
        return (
            f"of rank {rank} {count} of {wrong.size} elements are wrong in turn {turn}, the first at {at}: {result[at]:g}, not "
            f"{expected[at]:g}"
        )


@lru_cache(maxsize=1)
def _pattern(count: int) -> Array:
    return (np.arange(count, dtype=np.int32) % _PERIOD).astype(np.float32)


def _mark(rank: int, turn: int) -> int:
    """What tells a member's data in a turn from all others."""
    return 100 * (rank + 1) + 7 * turn


def cases(largest: int, members: int, ops: Sequence[str] = OPS) -> list[Case]:
    """All collectives of all sizes up to `largest` bytes, in parts of equal size for all members."""
    sizes = [*(size for size in SIZES if size < largest), largest]
    counts = sorted({max(1, size // (_ITEM * members)) * members for size in sizes})
    return [Case(op=op, members=members, elements=count) for op in ops for count in counts]


def size_label(nbytes: int) -> str:
    """As text: `64 KiB`, `1 GiB`; bytes where it is not whole."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power and not nbytes % (1 << power):
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"
