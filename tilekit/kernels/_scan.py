"""Running sums of rows.

A row that fits a tile is scanned by one block. A longer one is cut into tiles, each by a block of its own, in two passes: the
sum of each tile; and the running sums in each tile, from the sum of those before it on. Where a row has very many tiles, the
running sums of the tiles' sums come between. Each sum is taken in the same order in every run. The gradient of running sums is
the running sums of the gradients, from behind: so both directions are here.
"""

from __future__ import annotations

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    compute_dtype,
    of_parts,
    on_cpu,
    out_or_new,
    power,
    rows_of,
    shaped,
    takes_rows,
)
from tilekit.ops import DeviceOp

__all__ = ["cumsum"]

# Bytes of a row that one block scans, and of a tile of longer ones. What is scanned at once is read once; smaller tiles leave a
# multiprocessor room for several blocks.
_LONGEST, _TILE = 1 << 17, 1 << 15
# Tiles of a row whose sums each block adds up by itself: this many float32 are an eighth of what it reads anyway.
_FEW = 1024
_DTYPES = (tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.int32, tk.int64)


@tk.kernel
def _cumsum(y: tk.Out, x: tk.In, reverse: tk.Const):
    y.store(tk.cumsum(tk.load_tile_like(x, y), 1, reverse=reverse).astype(y.dtype))


@tk.kernel
def _tile_sums(y: tk.Out, x: tk.In, columns: tk.Const):
    t = tk.load(x, (tk.bid(0), tk.bid(1)), (y.tile_shape[0], columns)).astype(y.dtype)
    y.store(tk.sum(t, 1, keepdims=True))


@tk.kernel
def _cumsum_after(y: tk.Out, x: tk.In, sums: tk.In, parts: tk.Const, reverse: tk.Const):
    """As `_cumsum`, plus the sums of the tiles before this one, or behind it. A row has up to `parts` tiles."""
    i, j, tile = tk.bid(0), tk.bid(1), tk.arange(parts)[None, :]
    others = tk.where(tile > j if reverse else tile < j, tk.load(sums, (i, 0), (y.tile_shape[0], parts)), 0)
    start = tk.sum(others, 1, keepdims=True)
    y.store((tk.cumsum(tk.load_tile_like(x, y).astype(sums.dtype), 1, reverse=reverse) + start).astype(y.dtype))


@tk.kernel
def _cumsum_from(y: tk.Out, x: tk.In, sums: tk.In, last: int, reverse: tk.Const):
    """As `_cumsum_after`, of the running sums of the tiles' sums. The last tile has the index `last`."""
    i, j, one = tk.bid(0), tk.bid(1), (y.tile_shape[0], 1)
    if reverse:
        start = tk.where(tk.full(one, j, tk.int32) < last, tk.load(sums, (i, min(j + 1, last)), one), 0)
    else:
        start = tk.where(tk.full(one, j, tk.int32) > 0, tk.load(sums, (i, max(j - 1, 0)), one), 0)
    y.store((tk.cumsum(tk.load_tile_like(x, y).astype(sums.dtype), 1, reverse=reverse) + start).astype(y.dtype))


@takes_rows
def cumsum(x: Operand, *, reverse: bool = False, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The sums of each element and all before it along the last dimension.

    Args:
        x: a tensor of float16, bfloat16 (calculated in float32), float32, float64, int32 or int64 (which wrap); or an op that
            produces one.
        reverse: whether the sums are of each element and all behind it, which is the gradient of those of all before it.
        out: where the result goes, a tensor of the same shape and dtype; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    a_tensor("cumsum", x=x)
    if x.dtype not in _DTYPES:
        raise TypeError(f"cumsum: x holds {x.dtype.name}; it takes {', '.join(d.name for d in _DTYPES)}")
    if not isinstance(reverse, bool):
        raise TypeError(f"cumsum: reverse is True or False, not {reverse!r}")
    rows, dtype = rows_of("cumsum", x), compute_dtype(x.dtype)
    destination = shaped(out_or_new("cumsum", out, x), rows.shape)

    def steps(new):
        y = new(destination)
        yield from _scanned(new, y, rows, dtype, reverse)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)


def _scanned(new, y, x, dtype, reverse):
    """The steps that write the running sums of the rows of `x` to `y`, of each from behind if `reverse`."""
    count, length = x.shape
    width = max(4, x.itemsize)  # as it is calculated
    columns = power(length) if power(length) * width <= _LONGEST else _TILE // width
    warps = max(1, min(columns * width // 2048, 8 if columns * width <= _TILE else 16))
    elements = 1 << 15 if on_cpu(x) else 512 * warps
    tile = (min(power(count), max(1, elements // columns)), columns)
    tiles = -(-length // columns)
    if tiles <= 1:
        yield _cumsum(y.partition(tile), x, reverse).num_warps(warps)
        return
    sums = of_parts(new, count, tiles, dtype)
    yield _tile_sums(sums.partition((tile[0], 1)), x, columns).num_warps(warps)
    if tiles <= _FEW:
        yield _cumsum_after(y.partition(tile), x, sums, power(tiles), reverse).num_warps(warps)
        return
    yield from _scanned(new, sums, sums, dtype, reverse)
    yield _cumsum_from(y.partition(tile), x, sums, tiles - 1, reverse).num_warps(warps)
