"""Products of a few rows by a matrix: each element of the matrix is read once and used so few times that nothing else matters.

A block has a tile of the matrix's columns and goes along K with the products of elements that lie at the same place, and adds
these up at the end. Tensor cores would need tiles of 16 rows, and operands that come to shared memory: any rows will do here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import power

__all__ = ["FEW_VECTORS", "Vectors", "products_of_vectors", "vectors_of"]

BM, BN, BK = tk.generics("BM BN BK")

FEW_VECTORS = 4
"""Rows, or columns, up to which this is worthwhile: each has sums of its own for all elements of a tile."""

# Of a tile, for up to two rows: its elements, and those along what is contiguous; the warps of a block.
_ELEMENTS, _ALONG, _WARPS = 4096, 512, 4
_LANES = 32  # of a warp: of fewer elements each would have none along K
# So many blocks keep a multiprocessor busy.
_FULL = 4
# With fewer blocks than this for each of them, tiles have fewer columns, but no fewer than these. (Of 1 x 266 x 14181 there would
# be 64 blocks in all, of 512 columns.)
_BUSY, _LEAST_ALONG = 2, 64
# As many blocks as a multiprocessor has room for, of which each goes on for so many tiles at least.
_BLOCKS, _LEAST_STEPS, _MOST_SPLITS = 8, 4, 64


class Vectors(NamedTuple):
    """How the work is dealt out.

    Attributes:
        columns, depth: of a tile of the matrix, `BN` and `BK`.
        splits: the parts that sums are taken in.
        share: how many tiles along K each part has.
        deep: whether the matrix is contiguous along K.
    """

    columns: int
    depth: int
    splits: int
    share: int
    deep: bool


def vectors_of(batch: int, rows: int, columns: int, k: int, deep: bool, run: int, count: int) -> Vectors:
    """For so many rows and columns on so many multiprocessors.

    A thread loads `run` elements of the matrix at once. Where it is contiguous along K, and a tile would have few steps, these
    are shorter, and the tile has more rows: what threads have of sums is added up once for a tile, by 5 shuffles for each of 32
    elements that they have. (That, and not the loads, is what a batch of 32 of 1 x 2213 x 91 waited for in tiles of one step.)
    """
    held = _ELEMENTS // max(1, power(rows) // 2)
    if deep:
        depth = min(_ALONG, power(k))
        width = min(power(columns), held // depth)
        while depth > _LANES * run and -(-k // depth) < _LEAST_STEPS and batch * -(-columns // (2 * width)) >= _FULL * count:
            depth, width = depth // 2, width * 2
    else:
        width = min(_ALONG, power(columns))

        def blocks(width: int) -> int:
            steps = -(-k // min(power(k), held // width))
            return batch * -(-columns // width) * min(_MOST_SPLITS, max(1, steps // _LEAST_STEPS))

        while width > _LEAST_ALONG and blocks(width) < min(_BUSY * count, blocks(width // 2)):
            width //= 2
        depth = min(power(k), held // width)
    tiles, steps = batch * -(-columns // width), -(-k // depth)
    parts = max(1, min(_MOST_SPLITS, steps // _LEAST_STEPS, _BLOCKS * count // tiles))
    share = -(-steps // parts)
    return Vectors(width, depth, -(-steps // share), share, deep)


@tk.kernel
def _products_of_vectors(
    parts: tk.Out, w: tk.In, x: tk.In, splits: int, share: int, deep: tk.Const, dtype: tk.Const, each: tk.Const
):
    """Part `s` of a product of a batch has tiles `s * share` to `(s + 1) * share` along K: of a `deep` x the last dimension."""
    columns = tk.cdiv(parts.shape[2], BN)
    s, j = tk.bid(0) // columns, tk.bid(0) % columns
    n = s // splits
    first = (s - n * splits) * share
    last = min(first + share, tk.cdiv(w.shape[2], BK))
    if deep:
        acc = tk.zeros((BM, BN, BK), dtype)
        for k in range(first, last):
            tile = tk.load(x, (n * each[1], j, k), (1, BN, BK)).astype(dtype)
            acc = acc + tile * tk.load(w, (n * each[0], 0, k), (1, BM, BK)).astype(dtype).reshape((BM, 1, BK))
        result = tk.sum(acc, 2)
    else:
        acc = tk.zeros((BM, BK, BN), dtype)
        for k in range(first, last):
            tile = tk.load(x, (n * each[1], k, j), (1, BK, BN)).astype(dtype)
            acc = acc + tile * tk.load(w, (n * each[0], 0, k), (1, BM, BK)).astype(dtype).reshape((BM, BK, 1))
        result = tk.sum(acc, 1)
    tk.store(parts, (s, 0, j), result.astype(parts.dtype).reshape((1, BM, BN)))


def products_of_vectors(parts: Tensor, w: Tensor, x: Tensor, vectors: Vectors, dtype: Any, each: tuple[int, int]) -> Any:
    """The launch that writes the parts, `(batch * splits, rows, columns)`, of `w @ x`, which are added up in `dtype`.

    Both are stacks of matrices, `(batch, rows, K)` and `(batch, K, columns)`, or of one for all where `each` says 0.
    """
    x = x.permute(0, 2, 1) if vectors.deep else x
    blocks = parts.shape[0] * -(-parts.shape[2] // vectors.columns)
    launch = _products_of_vectors(parts.scattered(), w, x, vectors.splits, vectors.share, vectors.deep, dtype, each)
    return launch.grid(blocks).generics(BM=power(parts.shape[1]), BN=vectors.columns, BK=vectors.depth).num_warps(_WARPS)
