"""Grid folding: grids as CUDA launches them, and those of tilekit's, which have no limits along an axis.

CUDA launches up to 2^31 - 1 blocks along axis 0, and 65535 along the others. A grid beyond that is folded: its blocks are
numbered, axis 0 fastest, and launched in that order, along axis 0, and along axis 1 where there are more of them. The kernel gets
the grid as three parameters more, and a block works out from its number where it is. That is a specialisation of its own: all
others pay nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["AXIS_LIMITS", "FOLDED_SLOTS", "MOST_BLOCKS", "Fold", "Visits", "fold_of", "folded_grid"]

Triple = tuple[int, int, int]

AXIS_LIMITS = (2**31 - 1, 65535, 65535)
"""The most blocks that CUDA launches along the axes 0, 1, 2."""

MOST_BLOCKS = AXIS_LIMITS[0] * AXIS_LIMITS[1]
"""The most blocks of a grid that is folded: some 10^14, which take a GPU days."""

FOLDED_SLOTS = 3
"""How many parameters a kernel has for its grid, if that is folded: its blocks along each axis, of 64 bits each."""


class Fold(NamedTuple):
    """How a grid is folded, as far as the code of the kernel depends on it.

    Attributes:
        wide: whether blocks are counted in 64 bits, because there are 2^31 or more. Some may then be launched that do not exist.
        axes: how many axes have more than one block, counted up to the last of them: what lies along the others is known.
    """

    wide: bool
    axes: int


class Visits(NamedTuple):
    """In which order the blocks of a grid are visited, as far as a kernel decides about it.

    Attributes:
        axes: of the grid, the fastest first. Those beyond them are slower still.
        group: so many places along the first of them go together along all of the second; 0 for all of them.
        backwards: the axes along which the last places come first.
    """

    axes: tuple[int, ...]
    group: int
    backwards: frozenset[int]

    def __str__(self) -> str:
        first, *others = (f"axis {axis}{', from its end' if axis in self.backwards else ''}" for axis in self.axes)
        if self.group:
            first = f"{self.group} places of {first}, by all of {others.pop(0)}"
        return "; then ".join([first, *others])


def fold_of(grid: Triple) -> Fold | None:
    """How to fold a grid; None for one that CUDA launches as it is."""
    if all(count <= limit for count, limit in zip(grid, AXIS_LIMITS, strict=True)) or 0 in grid:
        return None
    axes = max(axis + 1 for axis, count in enumerate(grid) if count > 1)
    return Fold(math.prod(grid) > AXIS_LIMITS[0], axes)


def folded_grid(grid: Triple) -> Triple:
    """The grid to launch for one that is folded: as many blocks, or if they are not that many to a row, a few more."""
    total = math.prod(grid)
    rows = -(-total // AXIS_LIMITS[0])
    return -(-total // rows), rows, 1
