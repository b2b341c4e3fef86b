"""Running sums of rows.

A row that fits a tile is scanned by one block. So is a longer one, tile by tile, where there are rows enough for all
multiprocessors. Else it is cut into tiles, each by a block of its own, in two passes: the sum of each tile; and the running sums
in each tile, from the sum of those before it on. Where a row has very many tiles, the running sums of the tiles' sums come
between. Each sum is taken in the same order in every run. The gradient of running sums is the running sums of the gradients, from
behind: so both directions are here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    a_tensor,
    batches_of,
    compute_dtype,
    lacks_rows,
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    rows_of,
    shaped,
    takes_ops,
)
from tilekit.kernels._tiles import of_parts
from tilekit.ops import DeviceOp, Spec

__all__ = ["cumsum"]

# Bytes of a row that one block scans, and of a tile of longer ones. What is scanned at once is read once; smaller tiles leave a
# multiprocessor room for several blocks.
_LONGEST, _TILE = 1 << 17, 1 << 15
# Tiles of a row whose sums each block adds up by itself: this many float32 are an eighth of what it reads anyway.
_FEW = 1024
# Blocks that go along longer rows: bytes of a tile, warps, how many a multiprocessor has room for, and how much of that room, in
# as many rounds as the rows take, these fill at least. (Two passes read twice, which is two thirds of the speed.)
_STEP, _STEP_WARPS, _MANY, _FILLED = 1 << 14, 8, 4, 0.45
# A GPU starts about one block a clock: an H200 1.65 in a nanosecond, of whatever size. Blocks of as many warps get several short
# rows, where so many blocks for each multiprocessor are left: those of one warp are soon all that it starts.
_LEAST_WARPS, _BLOCKS = 4, 8
_DTYPES = (tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.int32, tk.int64)


@tk.kernel
def _cumsum(y: tk.Out, x: tk.In, reverse: tk.Const):
    y.store(tk.cumsum(tk.load_tile_like(x, y), -1, reverse=reverse).astype(y.dtype))


@tk.kernel
def _cumsum_along(y: tk.Out, x: tk.In, tiles: int, dtype: tk.Const, reverse: tk.Const):
    """A block goes along its row tile by tile. The dimensions are rows, batches, and what the sums are along."""
    i, k = tk.bid(0), tk.bid(1)
    start = tk.zeros((y.tile_shape[0], 1, 1), dtype)
    for step in range(tiles):
        j = tiles - 1 - step if reverse else step
        t = tk.load(x, (i, k, j), y.tile_shape).astype(dtype)
        tk.store(y, (i, k, j), (tk.cumsum(t, 2, reverse=reverse) + start).astype(y.dtype))
        start = start + tk.sum(t, 2, keepdims=True)


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


@takes_ops
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
    dtype, destination = compute_dtype(x.dtype), out_or_new("cumsum", out, x)
    if not lacks_rows(x) and not lacks_rows(out):
        rows = rows_of("cumsum", x)

        def steps(new):
            y = new(shaped(destination, rows.shape))
            yield from _scanned(new, y, rows, dtype, reverse)
            return shaped(y, x.shape) if out is None else out

        return Launches(x, steps, x)
    count, length = math.prod(x.shape[:-1]), x.shape[-1]
    batches = None if _way(x, count, length).apart else batches_of(x, destination)

    def steps_of_batches(new):
        y = new(batches[1])
        yield _way(x, count, length).launch(y, batches[0], reverse)
        return shaped(y, x.shape) if out is None else out

    def steps_by_copies(new):
        rows = shaped((yield x.dup()) if lacks_rows(x) else x, (count, length))
        y = new(Spec(rows.shape, x.dtype) if lacks_rows(out) else shaped(destination, rows.shape))
        yield from _scanned(new, y, rows, dtype, reverse)
        if lacks_rows(out):
            yield shaped(y, x.shape).copy_into(out)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps_by_copies if batches is None else steps_of_batches, x)


class _Way(NamedTuple):
    """How rows are dealt out to blocks.

    Attributes:
        rows, columns: extents of a tile.
        warps: of a block.
        tiles: of a row.
        along: whether a block goes along its row.
    """

    rows: int
    columns: int
    warps: int
    tiles: int
    along: bool

    @property
    def apart(self) -> bool:
        """Whether a row is taken apart, by several blocks."""
        return self.tiles > 1 and not self.along

    def launch(self, y, x, reverse):
        """One launch for all: `y` and `x` are matrices, or batches of these."""
        tile = (*(1,) * (len(x.shape) - 2), self.rows, self.columns)
        if not self.along:
            return _cumsum(y.partition(tile), x, reverse).num_warps(self.warps)
        if len(x.shape) == 2:
            y, x = (shaped(matrix, (1, *matrix.shape)) for matrix in (y, x))
        cut = y.permute(1, 0, 2).partition((self.rows, 1, self.columns)).prefix((-(-y.shape[1] // self.rows), y.shape[0], 1))
        args = self.tiles, compute_dtype(x.dtype), reverse
        return _cumsum_along(cut, x.permute(1, 0, 2), *args).num_warps(self.warps)


def _way(x, count, length):
    """How `count` rows of `length` elements are dealt out, of the dtype and on the device of `x`."""
    width, columns = max(4, x.itemsize), power(length)  # bytes as it is calculated
    busy = 0 if on_cpu(x) else multiprocessors(x)
    if busy and columns * width > _TILE:
        rounds = -(-count // (_MANY * busy))
        if count >= _FILLED * rounds * _MANY * busy:
            return _Way(1, _STEP // width, _STEP_WARPS, -(-length // (_STEP // width)), True)
    if columns * width > _LONGEST:
        columns = _TILE // width
    warps = max(1, min(columns * width // 2048, 8 if columns * width <= _TILE else 16))
    while busy and warps < _LEAST_WARPS and count * columns >= 1024 * warps * _BLOCKS * busy:
        warps *= 2
    elements = 512 * warps if busy else 1 << 15
    return _Way(min(power(count), max(1, elements // columns)), columns, warps, -(-length // columns), False)


def _scanned(new, y, x, dtype, reverse):
    """The steps that write the running sums of the rows of `x` to `y`, of each from behind if `reverse`."""
    count, length = x.shape
    way = _way(x, count, length)
    if not way.apart:
        yield way.launch(y, x, reverse)
        return
    tile, warps, tiles = (way.rows, way.columns), way.warps, way.tiles
    sums = of_parts(new, count, tiles, dtype)
    yield _tile_sums(sums.partition((tile[0], 1)), x, way.columns).num_warps(warps)
    if tiles <= _FEW:
        yield _cumsum_after(y.partition(tile), x, sums, power(tiles), reverse).num_warps(warps)
        return
    yield from _scanned(new, sums, sums, dtype, reverse)
    yield _cumsum_from(y.partition(tile), x, sums, tiles - 1, reverse).num_warps(warps)
