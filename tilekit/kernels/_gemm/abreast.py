"""Products whose tiles have other numbers of columns than powers of two: 160, where 128 are too few and 256 too many.

A tile of the language has a power of two. So two stand next to each other, of `BN` and `BE` columns, and are added up in one
loop; the compiler makes their products one, as wide as both (`compiler.passes.abreast`).
"""

from __future__ import annotations

import tilekit as tk

__all__ = ["columns_of", "parts_abreast", "place_of", "sums_abreast"]

BM, BN, BE, BK = tk.generics("BM BN BE BK")

# So many rows of tiles, and then the next columns: what is near each other uses the same operands while these are in the cache.
_TOGETHER = 8


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
    return top + index % height, index // height


@tk.function
def sums_abreast(a, b, i, j, first, last, dtype, precision: tk.Const, warp_specialize: tk.Const):
    """Two tiles of a product, of the tiles along K from `first` to `last`. The second is the first again if it has no columns."""
    left, right = tk.zeros((BM, BN), dtype), tk.zeros((BM, BE), dtype)
    begin = (BN + BE) * j
    beyond = begin + BN if begin + BN < b.shape[1] else begin
    left_of, right_of = b.slice(1, begin), b.slice(1, beyond)
    for ta, tb, tc in tk.pipelined(
        a.tiles((BM, BK))[i, first:last],
        left_of.tiles((BK, BN))[first:last, 0],
        right_of.tiles((BK, BE))[first:last, 0],
        warp_specialize=warp_specialize,
    ):
        left = tk.mma(ta, tb, left, precision=precision)
        right = tk.mma(ta, tc, right, precision=precision)
    return left, right


@tk.kernel
def parts_abreast(parts: tk.Out, a: tk.In, b: tk.In, share: int, precision: tk.Const, warp_specialize: tk.Const):
    """Part `s` of the sums has tiles `s * share` to `(s + 1) * share` along K."""
    rows, columns = tk.cdiv(a.shape[0], BM), tk.cdiv(b.shape[1], BN + BE)
    for at in range(tk.bid(0), parts.shape[0] * rows * columns, tk.num_blocks(0)):
        s = at // (rows * columns)
        i, j = place_of(at - s * rows * columns, rows, columns)
        left, right = sums_abreast(a, b, i, j, s * share, (s + 1) * share, parts.dtype, precision, warp_specialize)
        steps = (1, BM, BN + BE)
        parts.tiled_view((1, BM, BN), traversal_steps=steps).store((s, i, j), left.reshape((1, BM, BN)))
        if (BN + BE) * j + BN < b.shape[1]:
            beyond = parts.slice(2, BN).tiled_view((1, BM, BE), traversal_steps=steps)
            beyond.store((s, i, j), right.reshape((1, BM, BE)))
