"""Products whose tiles have other numbers of columns than powers of two: 160, where 128 are too few and 256 too many.

A tile of the language has a power of two. So two stand next to each other, of `BN` and `BE` columns, and are added up in one
loop; the compiler makes their products one, as wide as both (`compiler.passes.abreast`).
"""

from __future__ import annotations

from typing import Any

import tilekit as tk

__all__ = ["abreast_columns", "columns_of", "parts_abreast", "place_of", "store_left", "store_right", "sums_abreast"]

BM, BN, BE, BK = tk.generics("BM BN BE BK")

# So many rows of tiles, and then the next columns: what is near each other uses the same operands while these are in the cache.
_TOGETHER = 8
# What there is besides powers of two: the two lie behind each other in a stage as rows of one if K is contiguous in b, and as
# panels of one if its columns are, which have 16 bits.
_COLUMNS = (80, 96, 144, 160, 192)


def abreast_columns(b: Any) -> tuple[int, ...]:
    """The columns that tiles of a product may have besides powers of two; `b` is the second operand."""
    return _COLUMNS if b.itemsize == 2 or b.unit == len(b.shape) - 2 else ()


def columns_of(columns: int) -> tuple[int, int] | None:
    """`BN` and `BE` of so many columns; None of a power of two, or what is not the sum of two."""
    first = 1 << columns.bit_length() - 1
    return (first, columns - first) if columns.bit_count() == 2 else None


@tk.function
def place_of(at, rows, columns):
    """The row and the column of a tile, by its number in that order."""
    top = at // (_TOGETHER * columns) * _TOGETHER
    index = at - top * columns
    height = min(_TOGETHER, rows - top)
    column = index // height
    return top + index - column * height, column


@tk.function
def sums_abreast(a, b, n, i, j, first, last, dtype, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const):
    """Two tiles of a product, of the tiles along K from `first` to `last`. The second is the first again if it has no columns.

    Of a batch, it is those of product `n`: `each` says for `a` and for `b` whether it has a matrix for each product (1), or one
    for all (0). It is () where both are matrices, and (1,) where `b` alone has more dimensions.
    """
    left, right = tk.zeros((BM, BN), dtype), tk.zeros((BM, BE), dtype)
    begin = (BN + BE) * j
    if len(each) == 0:
        beyond = begin + BN if begin + BN < b.shape[1] else begin
        left_of, right_of = b.slice(1, begin), b.slice(1, beyond)
        columns, more = left_of.tiles((BK, BN))[first:last, 0], right_of.tiles((BK, BE))[first:last, 0]
    else:
        beyond = begin + BN if begin + BN < b.shape[2] else begin
        left_of, right_of, of = b.slice(2, begin), b.slice(2, beyond), n * each[len(each) - 1]
        columns, more = left_of.tiles((1, BK, BN))[of, first:last, 0], right_of.tiles((1, BK, BE))[of, first:last, 0]
    if len(each) < 2:
        rows = a.tiles((BM, BK))[i, first:last]
    else:
        rows = a.tiles((1, BM, BK))[n * each[0], i, first:last]
    for ta, tb, tc in tk.pipelined(rows, columns, more, warp_specialize=warp_specialize):
        tile = ta.reshape((BM, BK))
        left = tk.mma(tile, tb.reshape((BK, BN)), left, precision=precision)
        right = tk.mma(tile, tc.reshape((BK, BE)), right, precision=precision)
    return left, right


@tk.function
def store_left(x, at, tile, rank: tk.Const):
    """Store the first of two tiles in a matrix at `at`, (row, column), or in a stack of them, at (matrix, row, column)."""
    if rank == 2:
        x.tiled_view((BM, BN), traversal_steps=(BM, BN + BE)).store(at, tile)
    else:
        x.tiled_view((1, BM, BN), traversal_steps=(1, BM, BN + BE)).store(at, tile.reshape((1, BM, BN)))


@tk.function
def store_right(x, at, tile, rank: tk.Const):
    """The same of the second."""
    if rank == 2:
        x.slice(1, BN).tiled_view((BM, BE), traversal_steps=(BM, BN + BE)).store(at, tile)
    else:
        x.slice(2, BN).tiled_view((1, BM, BE), traversal_steps=(1, BM, BN + BE)).store(at, tile.reshape((1, BM, BE)))


@tk.kernel
def parts_abreast(
    parts: tk.Out, a: tk.In, b: tk.In, count: int, share: int, precision: tk.Const, warp_specialize: tk.Const, each: tk.Const
):
    """The first `count` parts are those of the first product of a batch, and so on. Part `s` of the sums of a product has tiles
    `s * share` to `(s + 1) * share` along K.
    """
    rows, columns = tk.cdiv(parts.shape[1], BM), tk.cdiv(parts.shape[2], BN + BE)
    for at in range(tk.bid(0), parts.shape[0] * rows * columns, tk.num_blocks(0)):
        s = at // (rows * columns)
        i, j = place_of(at - s * rows * columns, rows, columns)
        n = s // count if len(each) > 0 else 0
        first = (s - n * count) * share
        left, right = sums_abreast(a, b, n, i, j, first, first + share, parts.dtype, precision, warp_specialize, each)
        store_left(parts, (s, i, j), left, 3)
        if (BN + BE) * j + BN < parts.shape[2]:
            store_right(parts, (s, i, j), right, 3)
