"""The gradients of layer_norm and rms_norm, of a sum too.

That by `x` needs sums along the rows, that by the weights sums along the columns. Where `x` is a sum that has another
gradient, `extra`, that is added before the result is rounded. On a GPU, blocks that stay take one tile of whole rows after the
other, and keep the sums along the columns in registers: everything is read once. Rows for which these are too many are read once
for their statistics, and again by blocks that have a tile of the columns and a part of the rows each. What blocks have found is
added up by another kernel, always in the same order: the result is the same in every run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tilekit as tk
from tilekit import api
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    check,
    compute_dtype,
    index_dtype,
    lacks_rows,
    multiprocessors,
    on_cpu,
    power,
    rows_in,
    same_shape,
    shaped,
    takes_batches,
)
from tilekit.kernels._norm import _check_weight, _joined, _mean, _per, first_mean
from tilekit.kernels._tiles import Measured, RowTile, of_parts, row_tile, vector_width
from tilekit.ops import DeviceOp, Spec

__all__ = ["add_rms_norm_backward", "layer_norm_backward", "rms_norm_backward"]

# Warps and occupancy by the bytes of an element and the columns, as measured (`row_tile`).
_BACKWARD = Measured({(2, 8192): (8, 2)})
# Blocks that add up weight gradients: some for each multiprocessor of a large GPU.
_BLOCKS = 512
# A block adds up so many tiles of rows by itself: each takes a microsecond, and another launch two.
_ALONE = 3
# Of a block that adds up parts: those that it reads at a time, which it waits for; the elements of its tile, at least and at
# most; the columns at least, a sector; and about how many blocks there are. (16 warps, as a tile of 8192 needs, take longer to
# exchange what each has, 32 vectors a thread from shared memory, than to read the tile.)
_HIGHEST, _ELEMENTS, _MOST_ELEMENTS, _NARROWEST, _BLOCKS_OF_SUMS = 512, 2048, 4096, 8, 512
# Of blocks that stay: the 32-bit values of a tile that a thread has, with which there is room to load the next tile ahead; the
# warps, at least, and at most, as many as rows get that no two warps share: fewer blocks leave less to add up. The values at
# most, of longer rows, of which none are loaded ahead; and the registers that a thread gets, of 16-bit types and of such rows, of
# others, and of longer ones. With these, nothing goes to local memory on sm_90a. (Blocks of 16 warps, one to a multiprocessor,
# took twice the time for rows of 2344.)
_VALUES, _LEAST_WARPS, _MOST_WARPS, _MOST_VALUES = 8, 4, 8, 16
_REGISTERS_NARROW, _REGISTERS, _REGISTERS_LONG = 80, 96, 128
_STAYING = (9, 0)  # the compute capability that these are for
# What blocks add up of two weights, in float32, is so many times less than what they read and write: of few rows there are fewer
# blocks, down to a part of so many.
_SPARED, _FEWER = 8, 2
# So many elements are left to one block, which saves the launch that adds up what several have.
_ONE_BLOCK = 4096


@tk.kernel
def _norm_backward(
    dx: tk.Out, mean: tk.Out, rstd: tk.Out, dy: tk.In, x: tk.In, w: tk.In, extra: tk.In, n: int, per_n: float, eps: float,
    ragged: tk.Const, centred: tk.Const, dtype: tk.Const,
):  # fmt: skip
    t = tk.load_tile_like(x, dx).astype(dtype)
    if centred:
        middle = _mean(tk.sum(t, 1, keepdims=True), n, per_n)
        mean.store(middle.reshape(mean.tile_shape))
        t = t - middle
        if ragged:
            t = tk.where(tk.arange(dx.tile_shape[1]) < n, t, 0.0)
    r = tk.rsqrt(tk.sum(t * t, 1, keepdims=True) * per_n + eps)
    rstd.store(r.reshape(rstd.tile_shape))
    t = t * r
    g = tk.load_tile_like(dy, dx).astype(dtype) * tk.load(w, 0, dx.tile_shape[1]).astype(dtype)
    d = g - t * (tk.sum(g * t, 1, keepdims=True) * per_n)
    if centred:
        d = d - tk.sum(g, 1, keepdims=True) * per_n
    d = d * r
    if extra is not None:
        d = d + tk.load_tile_like(extra, dx).astype(dtype)
    dx.store(d.astype(dx.dtype))


@tk.function
def _tile_at(i, shape):
    """The index of the `i`-th tile of whole rows, of the block's batch where they are in batches."""
    if len(shape) == 2:
        at = (i, 0)
    else:
        at = (tk.bid(0), i, 0)
    return at


@tk.function
def _tile(x, i, shape):
    """The tile, a matrix."""
    return tk.load(x, _tile_at(i, shape), shape).reshape(shape[-2:])


@tk.kernel
def _norm_backward_staying(
    dx: tk.Out, dw: tk.Out, db: tk.Out, dy: tk.In, x: tk.In, w: tk.In, extra: tk.In, tiles: int, n: int, per_n: float,
    eps: float, ahead: tk.Const, ragged: tk.Const, centred: tk.Const, dtype: tk.Const,
):  # fmt: skip
    """Blocks that stay, and take every so-manieth tile of whole rows. What is `ahead` are the loads of the next tile."""
    shape, axis = dx.tile_shape, len(dx.tile_shape) - 2
    first, step = tk.bid(axis), tk.num_blocks(axis)
    columns = shape[-1]
    weight, bias = tk.zeros(columns, dtype), tk.zeros(columns, dtype)
    if ahead:
        next_x, next_dy = _tile(x, first, shape), _tile(dy, first, shape)
    for i in range(first, tiles, step):
        if ahead:
            t, g = next_x.astype(dtype), next_dy.astype(dtype)
            if i + step < tiles:
                next_x, next_dy = _tile(x, i + step, shape), _tile(dy, i + step, shape)
        else:
            t, g = _tile(x, i, shape).astype(dtype), _tile(dy, i, shape).astype(dtype)
        if centred:
            t = t - _mean(tk.sum(t, 1, keepdims=True), n, per_n)
            if ragged:
                t = tk.where(tk.arange(columns) < n, t, 0.0)
            bias = bias + tk.sum(g, 0)
        r = tk.rsqrt(tk.sum(t * t, 1, keepdims=True) * per_n + eps)
        t = t * r
        weight = weight + tk.sum(g * t, 0)
        g = g * tk.load(w, 0, columns).astype(dtype)
        d = g - t * (tk.sum(g * t, 1, keepdims=True) * per_n)
        if centred:
            d = d - tk.sum(g, 1, keepdims=True) * per_n
        d = d * r
        if extra is not None:
            d = d + _tile(extra, i, shape).astype(dtype)
        tk.store(dx, _tile_at(i, shape), d.astype(dx.dtype).reshape(shape))
    dw.store(weight.astype(dw.dtype).reshape(dw.tile_shape))
    if centred:
        db.store(bias.astype(db.dtype).reshape(db.tile_shape))


@tk.function
def _sums_of_row(x, dy, w, i, first, last, shape, n, count, per_count, centred, dtype, index):
    """As `moments`, and of the gradients times the weights the sums, times what is beyond the mean, and alone."""
    columns, mean = shape[1], tk.zeros((1, 1), dtype)
    total, square, along, level = mean, mean, mean, mean
    if centred:
        mean = first_mean(x, (i,), first, shape, count, dtype)
    for j in range(first, last):  # beyond the edge the gradients are zeros
        t = tk.load(x, (i, j), shape).astype(dtype)
        g = tk.load(dy, (i, j), shape).astype(dtype) * tk.load(w, j, columns).astype(dtype)
        if centred:
            t = tk.where(tk.arange(columns, dtype=index) + j * columns < n, t - mean, 0.0)
            total = total + tk.sum(t, 1, keepdims=True)
            level = level + tk.sum(g, 1, keepdims=True)
        square = square + tk.sum(t * t, 1, keepdims=True)
        along = along + tk.sum(g * t, 1, keepdims=True)
    if centred:
        beyond = total * per_count
        mean, square, along = mean + beyond, tk.maximum(square - total * beyond, 0.0), along - beyond * level
    return mean, square, along, level


@tk.kernel
def _norm_backward_long(
    mean: tk.Out, rstd: tk.Out, slope: tk.Out, offset: tk.Out, dy: tk.In, x: tk.In, w: tk.In, chunks: int, n: int, per_n: float,
    eps: float, shape: tk.Const, centred: tk.Const, index: tk.Const,
):  # fmt: skip
    """Of each row what `_gradients_by_columns` needs of it."""
    middle, square, along, level = _sums_of_row(x, dy, w, tk.bid(0), 0, chunks, shape, n, n, per_n, centred, rstd.dtype, index)
    r = tk.rsqrt(square * per_n + eps)
    mean.store(middle.reshape(1))
    rstd.store(r.reshape(1))
    slope.store((along * per_n * r * r).reshape(1))
    offset.store((level * per_n).reshape(1))


@tk.kernel
def _norm_backward_parts(
    means: tk.Out, squares: tk.Out, alongs: tk.Out, levels: tk.Out, dy: tk.In, x: tk.In, w: tk.In, chunks: int, share: int,
    n: int, shape: tk.Const, centred: tk.Const, index: tk.Const,
):  # fmt: skip
    """As `norm_parts`, and the other sums of `_sums_of_row`."""
    i, s = tk.bid(0), tk.bid(1)
    first, last = s * share, min(chunks, (s + 1) * share)
    count = min(n, last * shape[1]) - first * shape[1]
    per_count = 1.0 / tk.full((1, 1), count, squares.dtype)
    mean, square, along, level = _sums_of_row(x, dy, w, i, first, last, shape, n, count, per_count, centred, squares.dtype, index)
    means.store(mean)
    squares.store(square)
    alongs.store(along)
    levels.store(level)


@tk.kernel
def _norm_backward_sums(
    mean: tk.Out, rstd: tk.Out, slope: tk.Out, offset: tk.Out, means: tk.In, squares: tk.In, alongs: tk.In, levels: tk.In,
    size: int, n: int, per_n: float, eps: float, parts: tk.Const, centred: tk.Const, index: tk.Const,
):  # fmt: skip
    """Of each row what its parts say together, as in `_norm_joined`."""
    i = tk.bid(0)
    at, shape = (i, 0), (1, parts)
    square, along, level = tk.load(squares, at, shape), tk.load(alongs, at, shape), tk.load(levels, at, shape)
    middle = tk.zeros((1, 1), squares.dtype)
    if centred:
        middle, square, beyond = _joined(tk.load(means, at, shape), square, size, n, per_n, index)
        along = along + beyond * level
    r = tk.rsqrt(tk.sum(square, 1) * per_n + eps)
    mean.store(middle.reshape(1))
    rstd.store(r)
    slope.store(tk.sum(along, 1) * per_n * r * r)
    offset.store(tk.sum(level, 1) * per_n)


@tk.kernel
def _weight_gradients(
    dw: tk.Out, db: tk.Out, dy: tk.In, x: tk.In, mean: tk.In, rstd: tk.In, tiles: int, share: int,
    rows: tk.Const, centred: tk.Const, dtype: tk.Const,
):  # fmt: skip
    """Block (s, j) has the columns of tile j, and the s-th part of the rows: `share` tiles of them."""
    s, j = tk.bid(0), tk.bid(1)
    shape = (rows, dw.tile_shape[1])
    weight, bias = tk.zeros(shape, dtype), tk.zeros(shape, dtype)
    for i in range(s * share, min(tiles, (s + 1) * share)):
        g, t = tk.load(dy, (i, j), shape).astype(dtype), tk.load(x, (i, j), shape).astype(dtype)
        if centred:
            t = t - tk.load(mean, i, rows)[:, None]
            bias = bias + g
        weight = weight + g * t * tk.load(rstd, i, rows)[:, None]
    dw.store(tk.sum(weight, 0, keepdims=True).astype(dw.dtype))
    if centred:
        db.store(tk.sum(bias, 0, keepdims=True).astype(db.dtype))


@tk.kernel
def _gradients_by_columns(
    dx: tk.Out, dw: tk.Out, db: tk.Out, dy: tk.In, x: tk.In, w: tk.In, extra: tk.In, mean: tk.In, rstd: tk.In, slope: tk.In,
    offset: tk.In, tiles: int, share: int, centred: tk.Const, dtype: tk.Const,
):  # fmt: skip
    """As `_weight_gradients`, and by `x`, of rows whose sums are known."""
    s, j = tk.bid(0), tk.bid(1)
    (rows, columns), shape = dx.tile_shape, dx.tile_shape
    weight, bias = tk.zeros(shape, dtype), tk.zeros(shape, dtype)
    factor = tk.load(w, j, columns).astype(dtype)
    for i in range(s * share, min(tiles, (s + 1) * share)):
        g, t = tk.load(dy, (i, j), shape).astype(dtype), tk.load(x, (i, j), shape).astype(dtype)
        r = tk.load(rstd, i, rows)[:, None]
        if centred:
            t = t - tk.load(mean, i, rows)[:, None]
            bias = bias + g
        weight = weight + g * t * r
        d = g * factor - t * tk.load(slope, i, rows)[:, None]
        if centred:
            d = d - tk.load(offset, i, rows)[:, None]
        d = d * r
        if extra is not None:
            d = d + tk.load(extra, (i, j), shape).astype(dtype)
        tk.store(dx, (i, j), d.astype(dx.dtype))
    dw.store(tk.sum(weight, 0, keepdims=True).astype(dw.dtype))
    if centred:
        db.store(tk.sum(bias, 0, keepdims=True).astype(db.dtype))


@tk.kernel
def _column_sums(y: tk.Out, x: tk.In, tiles: int, rows: tk.Const):
    total = tk.zeros((rows, y.tile_shape[0]), x.dtype)
    for i in range(tiles):
        total = total + tk.load(x, (i, tk.bid(0)), (rows, y.tile_shape[0]))
    y.store(tk.sum(total, 0).astype(y.dtype))


@tk.kernel
def _column_sums_of_two(y: tk.Out, z: tk.Out, a: tk.In, b: tk.In, tiles: int, rows: tk.Const):
    """`_column_sums` of two matrices of one shape: a launch less."""
    shape = (rows, y.tile_shape[0])
    total, other = tk.zeros(shape, a.dtype), tk.zeros(shape, b.dtype)
    for i in range(tiles):
        total = total + tk.load(a, (i, tk.bid(0)), shape)
        other = other + tk.load(b, (i, tk.bid(0)), shape)
    y.store(tk.sum(total, 0).astype(y.dtype))
    z.store(tk.sum(other, 0).astype(z.dtype))


@takes_batches
def layer_norm_backward(grad: Operand, x: Operand, weight: Operand, eps: float = 1e-5) -> DeviceOp[tuple[Tensor, ...]]:
    """The gradients of `layer_norm` by `x`, `weight` and `bias`.

    Args:
        grad: the gradient by the result, of the shape and dtype of `x`.
        x, weight, eps: what `layer_norm` was given.

    Returns:
        An op whose result is the tuple of the three gradients, in the dtypes of `x` and `weight`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    return _backward("layer_norm_backward", grad, x, weight, eps, True)


@takes_batches
def rms_norm_backward(grad: Operand, x: Operand, weight: Operand, eps: float = 1e-6) -> DeviceOp[tuple[Tensor, ...]]:
    """The gradients of `rms_norm` by `x` and `weight`, a tuple; arguments and errors as for `layer_norm_backward`."""
    return _backward("rms_norm_backward", grad, x, weight, eps, False)


@takes_batches
def add_rms_norm_backward(
    grad: Operand, grad_h: Operand, h: Operand, weight: Operand, eps: float = 1e-6
) -> DeviceOp[tuple[Tensor, ...]]:
    """The gradients of `add_rms_norm` by `h`, which is that by `x` and by `residual`, and by `weight`.

    Args:
        grad, grad_h: the gradients by its two results, of the shape and dtype of `h`.
        h: the second result of `add_rms_norm`, the sum.
        weight, eps: what `add_rms_norm` was given.

    Returns:
        An op whose result is the tuple of the two gradients, in the dtypes of `h` and `weight`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("add_rms_norm_backward", h=h, grad_h=grad_h)
    same_shape("add_rms_norm_backward", h=h, grad_h=grad_h)
    return _backward("add_rms_norm_backward", grad, h, weight, eps, False, grad_h)


def _backward(name, grad, x, weight, eps, centred, extra=None):
    check(name, grad=grad, x=x, weight=weight)
    same_shape(name, x=x, grad=grad)
    (rows, grads, *others), n = rows_in(name, x, grad, *([] if extra is None else [extra])), x.shape[-1]
    _check_weight(name, n, "weight", weight)
    if not x.size:
        return tk.zip(api.zeros(x.shape, x.dtype), *(api.zeros(n, weight.dtype) for _ in range(1 + centred)))
    staying = _staying(rows, grads, Spec(rows.shape, x.dtype))
    if staying is None and len(rows.shape) > 2:
        copies = [each.dup() if lacks_rows(each) else tk.value(each) for each in (grad, x, *others)]
        return tk.zip(*copies).then(lambda each: _backward(name, *each[:2], weight, eps, centred, *each[2:]))
    extra = others[0] if others else None
    count, dtype, cpu = math.prod(rows.shape[:-1]), compute_dtype(x.dtype), on_cpu(rows)
    tile = row_tile(rows, held=2, room=3, measured=_BACKWARD)
    split, apiece = tile.parts(rows)
    wide, high, parts, share = _shares(count, n, cpu, 16 if tile.chunks == 1 else 8)  # with what else it keeps
    if staying is not None:
        parts = staying.parts

    def steps(new):
        dx = new(Spec(rows.shape, x.dtype))
        # Sums over all rows are the gradients. (A kernel without a bias has the second for nothing, and does not write it.)
        both = new(Spec((2, parts, n), weight.dtype if parts == 1 else dtype))
        partial = both[0], both[1]
        if staying is not None:
            yield staying.launch(dx, *partial, grads, rows, weight, extra, eps, centred, dtype)
        else:
            yield from by_parts(new, dx, [part.partition((1, wide)) for part in partial], -(-count // high))
        if parts == 1:
            return shaped(dx, x.shape), *(shaped(part, (n,)) for part in partial[: 1 + centred])
        gradients = [new(Spec((n,), weight.dtype)) for _ in range(1 + centred)]
        tall, narrow = high, wide
        if not cpu:
            tall = min(_HIGHEST, power(parts))
            narrow = max(_NARROWEST, _ELEMENTS // tall, power(n) // _BLOCKS_OF_SUMS)
            tall = min(tall, max(1, _MOST_ELEMENTS // narrow))
        cuts, sums = [each.partition(narrow) for each in gradients], _column_sums_of_two if centred else _column_sums
        warps = max(4, tall * narrow // 512)
        yield sums(*cuts, *partial[: 1 + centred], -(-parts // tall), tall).num_warps(warps)
        return shaped(dx, x.shape), *gradients

    def by_parts(new, dx, cuts, tiles):
        mean, rstd, slope, offset = (new(Spec((count,), dtype)) for _ in range(4))
        if tile.chunks == 1:
            own = tile.cut(dx), mean.partition(tile.rows), rstd.partition(tile.rows)
            each = n, _per(n), eps, n != tile.columns, centred, dtype
            yield tile.launch(_norm_backward(*own, grads, rows, weight, extra, *each))
            yield _weight_gradients(*cuts, grads, rows, mean, rstd, tiles, share, high, centred, dtype).num_warps(4)
            return
        shape, index = (1, tile.columns), index_dtype(n)
        ones = [each.partition(1) for each in (mean, rstd, slope, offset)]
        if split > 1:
            sums = [of_parts(new, count, split, dtype) for _ in range(4)]
            own, each = (each.partition((1, 1)) for each in sums), (tile.chunks, apiece, n, shape, centred, index)
            yield tile.launch(_norm_backward_parts(*own, grads, rows, weight, *each))
            each = apiece * tile.columns, n, _per(n), eps, power(split), centred, index
            yield _norm_backward_sums(*ones, *sums, *each).num_warps(1)
        else:
            each = tile.chunks, n, _per(n), eps, shape, centred, index
            yield tile.launch(_norm_backward_long(*ones, grads, rows, weight, *each))
        own = dx.partition((high, wide)).prefix((parts, -(-n // wide))), *cuts
        each = tiles, share, centred, dtype
        yield _gradients_by_columns(*own, grads, rows, weight, extra, mean, rstd, slope, offset, *each).num_warps(4)

    return Launches(x, steps)


class _Staying(NamedTuple):
    """How rows are dealt out to blocks that stay.

    Attributes:
        tile: of whole rows.
        parts: the blocks.
        tiles: those of all of them, of each batch where rows are in batches.
        ahead: whether the next tile is loaded ahead.
    """

    tile: RowTile
    parts: int
    tiles: int
    ahead: bool

    def launch(self, dx, dw, db, grads, rows, weight, extra, eps, centred, dtype):
        """The launch, of a matrix and of matrices with a row for each block."""
        n, tile = rows.shape[-1], self.tile
        grid = (*rows.shape[:-2], self.parts // math.prod(rows.shape[:-2]), 1)
        cuts = (shaped(each, (*grid[:-1], n)).partition((*(1,) * (len(grid) - 1), tile.columns)) for each in (dw, db))
        cut = dx.partition(tile.shape(rows)).prefix(grid)
        each = self.tiles, n, _per(n), eps, self.ahead, n != tile.columns, centred, dtype
        return tile.launch(_norm_backward_staying(cut, *cuts, grads, rows, weight, extra, *each))


def _staying(rows, grads, dx):
    """How blocks that stay do it; None where the sums of their columns would be too many for registers, and on a CPU device.

    Below compute capability 9.0 the compiler needs more registers for the same, and some would go to local memory.
    """
    (*dims, apiece, n), itemsize = rows.shape, rows.itemsize
    batches, count = math.prod(dims), math.prod(dims) * apiece
    columns, words = power(n), max(1, itemsize // 4)
    older = rows.device is not None and (rows.device.compute_capability or _STAYING) < _STAYING
    if older or on_cpu(rows) or columns * words > 32 * _MOST_WARPS * _MOST_VALUES:
        return None
    vector = min(columns, vector_width(rows, grads, dx))
    alone = columns <= 32 * vector  # a warp has whole rows, and waits for no other
    warps = _MOST_WARPS if alone else max(_LEAST_WARPS, min(_MOST_WARPS, columns * words // (32 * _VALUES)))
    values = max(_VALUES, columns * words // (32 * warps))
    high = min(max(1, 32 * warps * values // (columns * words)), power(apiece))
    warps = max(1, min(warps, high * columns * words // (32 * values)))
    registers = _REGISTERS_LONG if values > _VALUES else _REGISTERS_NARROW if itemsize < (8 if alone else 4) else _REGISTERS
    tile = RowTile(high, columns, 1, warps, max(1, (1 << 16) // (32 * warps * registers)))
    tiles = -(-apiece // high)
    blocks = 1 if batches * tiles * high * columns <= _ONE_BLOCK else tile.occupancy * multiprocessors(rows)
    sparing = 3 * count * itemsize // (_SPARED * 2 * 4)
    if 1 < min(blocks, batches * tiles) > sparing:  # of few rows the sums of all blocks are too much beside them
        if min(blocks, batches * tiles) > _FEWER * sparing:
            return None
        blocks = sparing
    parts = batches * -(-tiles // -(-tiles // max(1, blocks // batches)))
    return _Staying(tile, parts, tiles, values <= _VALUES)


def _shares(count, n, cpu, highest):
    """How the weight gradients of a matrix are dealt out: the columns and rows of a tile, the parts that the rows are taken in,
    and how many tiles one of these has. On a GPU a tile has up to so many rows.
    """
    if cpu:
        wide, high = min(512, power(n)), 64
    else:  # of few rows more columns
        high = min(highest, power(count))
        wide = min(512, 128 * highest // high)
    tiles = -(-count // high)
    parts = 1 if cpu or tiles <= _ALONE else max(1, min(tiles, round(_BLOCKS * wide / max(n, 1))))
    share = -(-tiles // parts)
    return wide, high, -(-tiles // max(share, 1)), share
