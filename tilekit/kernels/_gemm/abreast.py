"""Products whose tiles have other numbers of columns than powers of two: 160, where 128 are too few and 256 too many.

A tile of the language has a power of two. So two or three stand next to each other, of `BN`, `BE` and `BF` columns, and are added
up in one loop; the compiler makes their products one, as wide as all (`compiler.passes.abreast`).
"""

from __future__ import annotations

from typing import Any

import tilekit as tk
from tilekit import dtypes

__all__ = [
    "abreast_columns", "columns_of", "parts_abreast", "place_of", "store_part", "sums_abreast", "sums_of_three",
]  # fmt: skip

BM, BN, BE, BF, BK = tk.generics("BM BN BE BF BK")

# So many rows of tiles, and then the next columns: what is near each other uses the same operands while these are in the cache.
_TOGETHER = 8
# What there is besides powers of two: several lie behind each other in a stage as rows of one if K is contiguous in b, and two as
# panels of one if its columns are, which have 16 bits.
_COLUMNS, _COLUMNS_OF_THREE = (80, 96, 144, 160, 192), (104, 112, 176, 208, 224)
_OF_INTEGERS = 16  # instructions have multiples of so many


def abreast_columns(b: Any, *, tiles: int = 3) -> tuple[int, ...]:
    """The columns that tiles of a product may have besides powers of two, of so many tiles; `b` is the second operand."""
    if b.unit != len(b.shape) - 2:
        return _COLUMNS if b.itemsize == 2 else ()
    columns = _COLUMNS + _COLUMNS_OF_THREE if tiles == 3 else _COLUMNS
    return tuple(n for n in columns if n % _OF_INTEGERS == 0) if b.dtype in (dtypes.int8, dtypes.uint8) else columns


def columns_of(columns: int, *, tiles: int = 3) -> tuple[int, ...] | None:
    """`BN`, `BE`, and `BF` of three, of so many columns; None of a power of two, or what is no sum of up to so many `tiles`."""
    powers = [1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1]
    return tuple(powers) if 1 < len(powers) <= tiles else None


@tk.function
def place_of(at, rows, columns):
    """The row and the column of a tile, by its number in that order."""
    top = at // (_TOGETHER * columns) * _TOGETHER
    index = at - top * columns
    height = min(_TOGETHER, rows - top)
    column = index // height
    return top + index - column * height, column


@tk.function
def _columns(b, n, begin, offset: tk.Const, columns: tk.Const, first, last, each: tk.Const):
    """The tiles from `first` to `last` along K of so many columns, from `begin` and an offset on; the first if there are none.

    Of a batch, they are those of product `n`: `each` says for `a` and for `b` whether it has a matrix for each product (1), or
    one for all (0). It is () where both are matrices, and (1,) where `b` alone has more dimensions.
    """
    if len(each) == 0:
        at = begin + offset if begin + offset < b.shape[1] else 0
        tiles = b.slice(1, at).tiles((BK, columns))[first:last, 0]
    else:
        at = begin + offset if begin + offset < b.shape[2] else 0
        tiles = b.slice(2, at).tiles((1, BK, columns))[n * each[len(each) - 1], first:last, 0]
    return tiles


@tk.function
def _rows(a, n, i, first, last, each: tk.Const):
    if len(each) < 2:
        tiles = a.tiles((BM, BK))[i, first:last]
    else:
        tiles = a.tiles((1, BM, BK))[n * each[0], i, first:last]
    return tiles


@tk.function
def sums_abreast(a, b, n, i, j, first, last, dtype, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const):
    """Two tiles of a product, of the tiles along K from `first` to `last`. The second is any other if it has no columns."""
    left, right = tk.zeros((BM, BN), dtype), tk.zeros((BM, BE), dtype)
    begin = (BN + BE) * j
    of_left = _columns(b, n, begin, 0, BN, first, last, each)
    of_right = _columns(b, n, begin, BN, BE, first, last, each)
    rows = _rows(a, n, i, first, last, each)
    for ta, tb, tc in tk.pipelined(rows, of_left, of_right, warp_specialize=warp_specialize):
        tile = ta.reshape((BM, BK))
        left = tk.mma(tile, tb.reshape((BK, BN)), left, precision=precision)
        right = tk.mma(tile, tc.reshape((BK, BE)), right, precision=precision)
    return left, right


@tk.function
def sums_of_three(a, b, n, i, j, first, last, dtype, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const):
    """The same of three tiles."""
    left, middle, right = tk.zeros((BM, BN), dtype), tk.zeros((BM, BE), dtype), tk.zeros((BM, BF), dtype)
    begin = (BN + BE + BF) * j
    of_left = _columns(b, n, begin, 0, BN, first, last, each)
    of_middle = _columns(b, n, begin, BN, BE, first, last, each)
    of_right = _columns(b, n, begin, BN + BE, BF, first, last, each)
    rows = _rows(a, n, i, first, last, each)
    for ta, tb, tc, td in tk.pipelined(rows, of_left, of_middle, of_right, warp_specialize=warp_specialize):
        tile = ta.reshape((BM, BK))
        left = tk.mma(tile, tb.reshape((BK, BN)), left, precision=precision)
        middle = tk.mma(tile, tc.reshape((BK, BE)), middle, precision=precision)
        right = tk.mma(tile, td.reshape((BK, BF)), right, precision=precision)
    return left, middle, right


@tk.function
def store_part(x, at, tile, rank: tk.Const, offset: tk.Const, columns: tk.Const, wide: tk.Const):
    """Store one of several tiles, which have `wide` columns together, in a matrix at `at`, (row, column), or in a stack of them,
    at (matrix, row, column): that of so many columns behind an offset, if the matrix has some there."""
    if offset == 0:
        _store(x, at, tile, rank, columns, wide)
    elif wide * at[rank - 1] + offset < x.shape[rank - 1]:
        _store(x.slice(rank - 1, offset), at, tile, rank, columns, wide)


@tk.function
def _store(x, at, tile, rank: tk.Const, columns: tk.Const, wide: tk.Const):
    if rank == 2:
        x.tiled_view((BM, columns), traversal_steps=(BM, wide)).store(at, tile)
    else:
        x.tiled_view((1, BM, columns), traversal_steps=(1, BM, wide)).store(at, tile.reshape((1, BM, columns)))


@tk.kernel
def parts_abreast(
    parts: tk.Out, a: tk.In, b: tk.In, count: int, share: int, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const,
    wide: tk.Const,
):  # fmt: skip
    """The first `count` parts are those of the first product of a batch, and so on. Part `s` of the sums of a product has tiles
    `s * share` to `(s + 1) * share` along K. Tiles have `wide` columns, of two or three.
    """
    rows, columns = tk.cdiv(parts.shape[1], BM), tk.cdiv(parts.shape[2], wide)
    for at in range(tk.bid(0), parts.shape[0] * rows * columns, tk.num_blocks(0)):
        s = at // (rows * columns)
        i, j = place_of(at - s * rows * columns, rows, columns)
        n = s // count if len(each) > 0 else 0
        first = (s - n * count) * share
        if wide == BN + BE:
            left, right = sums_abreast(a, b, n, i, j, first, first + share, parts.dtype, precision, warp_specialize, each)
            store_part(parts, (s, i, j), left, 3, 0, BN, wide)
            store_part(parts, (s, i, j), right, 3, BN, BE, wide)
        else:
            left, middle, right = sums_of_three(
                a, b, n, i, j, first, first + share, parts.dtype, precision, warp_specialize, each
            )  # fmt: skip
            store_part(parts, (s, i, j), left, 3, 0, BN, wide)
            store_part(parts, (s, i, j), middle, 3, BN, BE, wide)
            store_part(parts, (s, i, j), right, 3, BN + BE, BF, wide)
