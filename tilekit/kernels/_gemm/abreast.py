"""Products whose tiles have three times a power of two of columns: 192, where 128 are too few and 256 too many.

A tile of the language has a power of two. So three stand next to each other, and are added up in one loop; the compiler makes
their products one, of 192 columns (`compiler.passes.abreast`). A launch has `BN` for a third of a tile.
"""

from __future__ import annotations

import tilekit as tk

__all__ = ["ABREAST", "parts_abreast", "place_of", "sums_abreast"]

BM, BN, BK = tk.generics("BM BN BK")

ABREAST = 3
# So many rows of tiles, and then the next columns: what is near each other uses the same operands while these are in the cache.
_TOGETHER = 8


@tk.function
def place_of(at, rows, columns):
    """The row and the column of a tile, by its number in that order."""
    top = at // (_TOGETHER * columns) * _TOGETHER
    index = at - top * columns
    height = min(_TOGETHER, rows - top)
    return top + index % height, index // height


@tk.function
def sums_abreast(a, b, i, j, first, last, dtype, precision: tk.Const, warp_specialize: tk.Const):
    """Three tiles of a product, of the tiles along K from `first` to `last`. Behind the last column it is the last one again."""
    behind = tk.cdiv(b.shape[1], BN) - 1
    second, third = min(3 * j + 1, behind), min(3 * j + 2, behind)
    left = tk.zeros((BM, BN), dtype)
    middle = tk.zeros((BM, BN), dtype)
    right = tk.zeros((BM, BN), dtype)
    for ta, tb, tc, td in tk.pipelined(
        a.tiles((BM, BK))[i, first:last],
        b.tiles((BK, BN))[first:last, 3 * j],
        b.tiles((BK, BN))[first:last, second],
        b.tiles((BK, BN))[first:last, third],
        warp_specialize=warp_specialize,
    ):
        left = tk.mma(ta, tb, left, precision=precision)
        middle = tk.mma(ta, tc, middle, precision=precision)
        right = tk.mma(ta, td, right, precision=precision)
    return left, middle, right


@tk.kernel
def parts_abreast(parts: tk.Out, a: tk.In, b: tk.In, share: int, precision: tk.Const, warp_specialize: tk.Const):
    """Part `s` of the sums has tiles `s * share` to `(s + 1) * share` along K."""
    rows, columns = tk.cdiv(a.shape[0], BM), tk.cdiv(b.shape[1], 3 * BN)
    for at in range(tk.bid(0), parts.shape[0] * rows * columns, tk.num_blocks(0)):
        s = at // (rows * columns)
        i, j = place_of(at - s * rows * columns, rows, columns)
        left, middle, right = sums_abreast(a, b, i, j, s * share, (s + 1) * share, parts.dtype, precision, warp_specialize)
        tk.store(parts, (s, i, 3 * j), left.reshape((1, BM, BN)))
        if 3 * j + 1 < tk.cdiv(b.shape[1], BN):
            tk.store(parts, (s, i, 3 * j + 1), middle.reshape((1, BM, BN)))
        if 3 * j + 2 < tk.cdiv(b.shape[1], BN):
            tk.store(parts, (s, i, 3 * j + 2), right.reshape((1, BM, BN)))
