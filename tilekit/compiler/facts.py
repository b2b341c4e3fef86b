"""Argument facts: alignment, divisibility, contiguity, which a specialisation assumes. Equal facts share one compiled kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

__all__ = [
    "MOST_NARROW", "ArgumentFacts", "Role", "ScalarFacts", "TensorFacts", "divisor", "extent_divisor", "is_positive", "is_short",
    "tile_extents",
]  # fmt: skip

Role = Literal["in", "out", "inout"]

MOST_NARROW = 2**31 - 2**24
"""Extents up to this leave room for the overhang of a tile in 32-bit index arithmetic; of a larger one a tensor is `wide`."""


class TensorFacts(NamedTuple):
    """Facts about a tensor argument.

    A kernel receives a tensor as: its address (unsigned 64 bits), its extents (32 bits, or 64 where `wide`), and the strides, in
    elements (64 bits), of every dimension but `unit`.

    Attributes:
        dtype: name of the element type.
        role: `in` (a tensor to read), `out` or `inout` (a partition, or a tensor that is scattered into).
        tile: tile shape of a partition, None for all else.
        rank: number of dimensions.
        unit: the dimension whose stride is one (the last such), or None.
        align: the largest power of two, up to 16, that divides the address, in bytes.
        extents: for each dimension a power of two that divides the extent (see `extent_divisor`); the tile's own extent if that
            does. More than 1 says that the extent is not 0, too.
        strides: for each dimension a power of two that divides the stride in elements; 0 for `unit`.
        wide: whether an extent is beyond `MOST_NARROW`.
        covered: whether the extents are those of the partition that the grid follows, so that a tile index inside the grid
            is a tile index inside this tensor.
        group: of a mapped partition, the number of tiles in a group along each dimension; None for all else.
        cut_class: of a mapped partition, a number that those share which have the same shape, tiles, group and cluster.
        cluster: of a mapped partition, the number of tiles in a cluster along each dimension; None if there are none.
        blocks_per_tile: of a mapped partition, how many blocks visit each tile together.
        many: whether tiles of all its dimensions may be so many together that to count them takes more than 31 bits: a tensor
            has so many elements, or a mapped partition so many tiles.
        steps: whether each stride is one that a tensor map can have: not negative, and below 2^40 bytes.
        short: the extent of `unit`, if that is one that products are told (see `is_short`); else 0.
    """

    dtype: str
    role: Role
    tile: tuple[int, ...] | None
    rank: int
    unit: int | None
    align: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    wide: bool
    covered: bool
    group: tuple[int, ...] | None = None
    cut_class: int = 0
    cluster: tuple[int, ...] | None = None
    blocks_per_tile: int = 1
    many: bool = False
    steps: bool = True
    short: int = 0

    def present(self, extent: int) -> int:
        """How many elements along `unit` may exist of a tile that has so many there, whichever tile it is."""
        return min(extent, self.short or extent)


class ScalarFacts(NamedTuple):
    """Facts about a scalar argument.

    Attributes:
        dtype: name of the type: `int64`, `float64`, `bool`, or a NumPy scalar's own.
        positive: whether it is known to be positive, see `is_positive`. It is asked of Python's floats, by kernels that take
            exponentials: of scores times a positive number, the maximum is that of the scores, times the number.
    """

    dtype: str
    positive: bool = False


def is_positive(number: float) -> bool:
    """Whether a number is positive, and so are its products with numbers from 2^-20 to 2^20, in float32, too."""
    return 2.0**-100 <= number <= 2.0**100


ArgumentFacts = TensorFacts | ScalarFacts


def divisor(n: int) -> int:
    """A power of two that divides `n`, at most 4096; above 16 only powers of four, which keeps specialisations few."""
    d = min(n & -n, 4096) if n else 4096
    return d if d <= 16 else 1 << ((d.bit_length() - 1) & ~1)


def extent_divisor(n: int, tiles: Iterable[int] = ()) -> int:
    """What is known of an extent: as `divisor`, or the largest of `tiles` that divides it, if that is more; of 0 it is 1.

    Loads by tiles that divide the extent need no mask. There is a specialisation more for each of `tiles`, at most.
    """
    return max(divisor(n), *(tile for tile in (1, *tiles) if n % tile == 0)) if n else 1


_SHORT_STEP, _MOST_SHORT = 8, 256  # the columns of a product come in steps; and there are no more of an instruction's


def is_short(n: int, tiles: Collection[int], *, others: bool = False) -> bool:
    """Whether rows of `n` elements are shorter than tiles may be: of what does not exist, products compute nothing.

    Then the extent itself is known: there is a specialisation for each, of which there are 31 at most. What is a tile's own
    extent says so by `extents`.

    Args:
        n: see above.
        tiles: the extents that tiles are known to have.
        others: whether they may have others.
    """
    if not 0 < n < _MOST_SHORT or n % _SHORT_STEP or n in tiles:
        return False
    return n < max(tiles, default=0) or (others and n & (n - 1) != 0)


def tile_extents(values: Iterable[Any]) -> tuple[int, ...]:
    """The extents that a kernel's tiles may have, as far as the launch shows: the powers of two among ints and tuples of them."""
    numbers = (n for value in values for n in (value if isinstance(value, tuple) else (value,)))
    return tuple(sorted({n for n in numbers if isinstance(n, int) and n > 0 and not n & (n - 1)}))
