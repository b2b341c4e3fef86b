"""softmax and log-softmax of rows.

    softmax(x) = exp(x - max(x)) / sum(exp(x - max(x)))        log_softmax(x) = x - max(x) - log(sum(exp(x - max(x))))

The maximum keeps `exp` from overflowing. A row that fits a tile is read once and stays in registers. A longer one is read twice:
the first time the maximum and the sum are kept up to date together, as in Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018. Each thread does so for the elements that it reads, and waits for the others only at the end of the row.
Where long rows are few, several blocks have a part of one each, and another kernel joins what they found.
"""

from __future__ import annotations

import numpy as np

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    check,
    compute_dtype,
    exponential,
    out_or_new,
    power,
    rows_in,
    same_shape,
    shaped,
    takes_batches,
)
from tilekit.kernels._tiles import Measured, of_parts, row_tile
from tilekit.ops import DeviceOp

__all__ = ["block_row", "log_softmax", "log_softmax_backward", "softmax", "softmax_backward", "softmax_parts", "weighed"]

# Warps and occupancy by the bytes of an element and the columns, as measured (`row_tile`).
_SOFTMAX = Measured({(4, 4096): (16, 4)})
# Of gradients of short rows: the warps of a block, and how many times as many rows each has (`row_tile`).
_SHORT_ROWS = (2, 2)
# Blocks of the loop over a long row that a multiprocessor has room for: a thread then gets 48 registers, and can do with them.
_LOOPS = 5


@tk.function
def _inverse(total):
    """1 / total, of float32 to 2 units in the last place: no sum of a softmax is subnormal, so that nothing has to branch."""
    if total.dtype == tk.float64:
        inverse = 1.0 / total
    else:
        inverse = tk.truediv(1.0, total, rounding_mode=tk.RoundingMode.APPROX)
    return inverse


@tk.kernel
def _softmax(y: tk.Out, x: tk.In, dtype: tk.Const, mode: tk.Const, log: tk.Const):
    t = tk.load_tile_like(x, y, padding_mode="-inf").astype(dtype)
    t = t - tk.max(t, -1, keepdims=True)
    e = tk.exp(t, rounding_mode=mode)
    total = tk.sum(e, -1, keepdims=True)
    if log:
        y.store((t - tk.log(total)).astype(y.dtype))
    else:
        y.store((e * _inverse(total)).astype(y.dtype))  # one division a row instead of one an element


@tk.function
def block_row(shape):
    """The row of a block whose tiles have such a shape; of rows in batches also the batch."""
    if len(shape) == 2:
        at = (tk.bid(0),)
    else:
        at = (tk.bid(0), tk.bid(1))
    return at


@tk.function
def weighed(x, at, first, last, shape, dtype, lowest, mode):
    """The maximum of row `at` in the tiles from `first` to `last`, and the sum of the exponentials below it."""
    # Not from -inf, which minus itself is no number.
    top, total = tk.full((*shape[:-1], 1), lowest, dtype), tk.zeros((*shape[:-1], 1), dtype)
    for j in range(first, last):
        t = tk.load(x, (*at, j), shape, padding_mode="-inf").astype(dtype)
        higher = tk.maximum(top, tk.max(t, -1, keepdims=True))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t - higher, rounding_mode=mode), -1, keepdims=True)
        top = higher
    return top, total


@tk.kernel
def _softmax_long(y: tk.Out, x: tk.In, chunks: int, dtype: tk.Const, lowest: tk.Const, mode: tk.Const, log: tk.Const):
    at = block_row(y.tile_shape)
    peak, whole = weighed(x, at, 0, chunks, y.tile_shape, dtype, lowest, mode)
    for j in range(chunks):
        t = tk.load(x, (*at, j), y.tile_shape, padding_mode="-inf").astype(dtype) - peak
        if log:
            tk.store(y, (*at, j), (t - tk.log(whole)).astype(y.dtype))
        else:
            tk.store(y, (*at, j), (tk.exp(t, rounding_mode=mode) * _inverse(whole)).astype(y.dtype))


@tk.kernel
def softmax_parts(
    peaks: tk.Out, sums: tk.Out, x: tk.In, chunks: int, share: int, shape: tk.Const, lowest: tk.Const, mode: tk.Const,
):  # fmt: skip
    """Block (i, s) has the s-th part of row i: `share` tiles of it."""
    s = tk.bid(len(shape) - 1)
    last = min(chunks, (s + 1) * share)
    peak, whole = weighed(x, block_row(shape), s * share, last, shape, sums.dtype, lowest, mode)
    peaks.store(peak.reshape(peaks.tile_shape))
    sums.store(whole.reshape(sums.tile_shape))


@tk.kernel
def _softmax_joined(y: tk.Out, x: tk.In, peaks: tk.In, sums: tk.In, parts: tk.Const, mode: tk.Const, log: tk.Const):
    at, shape = (*block_row(y.tile_shape), 0), (*y.tile_shape[:-1], parts)
    t = tk.load_tile_like(x, y).astype(sums.dtype)
    each = tk.load(peaks, at, shape, padding_mode="-inf")
    peak = tk.max(each, -1, keepdims=True)
    whole = tk.sum(tk.load(sums, at, shape) * tk.exp(each - peak), -1, keepdims=True)
    if log:
        y.store((t - peak - tk.log(whole)).astype(y.dtype))
    else:
        y.store((tk.exp(t - peak, rounding_mode=mode) * _inverse(whole)).astype(y.dtype))


@tk.kernel
def _softmax_backward(dx: tk.Out, dy: tk.In, y: tk.In, dtype: tk.Const, mode: tk.Const, log: tk.Const):
    g, p = tk.load_tile_like(dy, dx).astype(dtype), tk.load_tile_like(y, dx).astype(dtype)
    if log:
        dx.store((g - tk.exp(p, rounding_mode=mode) * tk.sum(g, -1, keepdims=True)).astype(dx.dtype))
    else:
        dx.store((p * (g - tk.sum(g * p, -1, keepdims=True))).astype(dx.dtype))


@tk.function
def _along(dy, y, at, first, last, shape, dtype, log):
    """The sum over row `at` in the tiles from `first` to `last` of the gradients, times results that are no logarithms."""
    total = tk.zeros((*shape[:-1], 1), dtype)
    for j in range(first, last):
        g = tk.load(dy, (*at, j), shape).astype(dtype)
        if not log:
            g = g * tk.load(y, (*at, j), shape).astype(dtype)
        total = total + tk.sum(g, -1, keepdims=True)
    return total


@tk.kernel
def _softmax_backward_long(dx: tk.Out, dy: tk.In, y: tk.In, chunks: int, dtype: tk.Const, mode: tk.Const, log: tk.Const):
    at = block_row(dx.tile_shape)
    whole = _along(dy, y, at, 0, chunks, dx.tile_shape, dtype, log)
    for j in range(chunks):
        g, p = tk.load(dy, (*at, j), dx.tile_shape).astype(dtype), tk.load(y, (*at, j), dx.tile_shape).astype(dtype)
        if log:
            tk.store(dx, (*at, j), (g - tk.exp(p, rounding_mode=mode) * whole).astype(dx.dtype))
        else:
            tk.store(dx, (*at, j), (p * (g - whole)).astype(dx.dtype))


@tk.kernel
def _softmax_backward_parts(sums: tk.Out, dy: tk.In, y: tk.In, chunks: int, share: int, shape: tk.Const, log: tk.Const):
    """As `softmax_parts`."""
    s = tk.bid(len(shape) - 1)
    whole = _along(dy, y, block_row(shape), s * share, min(chunks, (s + 1) * share), shape, sums.dtype, log)
    sums.store(whole.reshape(sums.tile_shape))


@tk.kernel
def _softmax_backward_joined(dx: tk.Out, dy: tk.In, y: tk.In, sums: tk.In, parts: tk.Const, mode: tk.Const, log: tk.Const):
    g, p = tk.load_tile_like(dy, dx).astype(sums.dtype), tk.load_tile_like(y, dx).astype(sums.dtype)
    whole = tk.sum(tk.load(sums, (*block_row(dx.tile_shape), 0), (*dx.tile_shape[:-1], parts)), -1, keepdims=True)
    if log:
        dx.store((g - tk.exp(p, rounding_mode=mode) * whole).astype(dx.dtype))
    else:
        dx.store((p * (g - whole)).astype(dx.dtype))


@takes_batches
def softmax(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """softmax along the last dimension, calculated in float32 (float64 in float64).

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        out: where the result goes, a tensor of the same shape and dtype, `x` itself for one; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("softmax", x=x)
    return _forward("softmax", x, out, False)


@takes_batches
def log_softmax(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The logarithm of softmax along the last dimension; arguments, result and errors as for `softmax`."""
    check("log_softmax", x=x)
    return _forward("log_softmax", x, out, True)


@takes_batches
def softmax_backward(grad: Operand, y: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `softmax` by its argument: `y * (grad - sum(grad * y))` along the last dimension.

    Args:
        grad: the gradient by the result.
        y: the result, `softmax(x)`.
        out: where the gradient goes; by default a new tensor.

    Raises:
        TypeError, ValueError: no such tensors, or of different shapes.
    """
    check("softmax_backward", grad=grad, y=y)
    return _backward("softmax_backward", grad, y, out, False)


@takes_batches
def log_softmax_backward(grad: Operand, y: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `log_softmax` by its argument: `grad - exp(y) * sum(grad)`; `y` is the result of `log_softmax`."""
    check("log_softmax_backward", grad=grad, y=y)
    return _backward("log_softmax_backward", grad, y, out, True)


def _forward(name, x, out, log):
    wanted = out_or_new(name, out, x)
    rows, destination = rows_in(name, x, wanted)
    tile = row_tile(rows, blocks=_LOOPS if x.itemsize <= 4 else None, measured=_SOFTMAX)
    dtype, mode = compute_dtype(x.dtype), exponential(x.dtype)
    lowest, (parts, share), shape = float(np.finfo(dtype).min), tile.parts(rows), tile.shape(rows)

    def steps(new):
        y = new(destination)
        if tile.chunks == 1:
            launch = _softmax(tile.cut(y), rows, dtype, mode, log)
        elif parts > 1:
            peaks, sums = (of_parts(new, rows.shape[:-1], parts, dtype) for _ in range(2))
            cuts = (each.partition((1,) * len(shape)) for each in (peaks, sums))
            yield tile.launch(softmax_parts(*cuts, rows, tile.chunks, share, shape, lowest, mode))
            launch = _softmax_joined(y.partition(shape), rows, peaks, sums, power(parts), mode, log)
        else:
            launch = _softmax_long(tile.cut(y), rows, tile.chunks, dtype, lowest, mode, log)
        yield tile.launch(launch)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)


def _backward(name, grad, y, out, log):
    same_shape(name, grad=grad, y=y)
    rows, grads, destination = rows_in(name, y, grad, out_or_new(name, out, y))
    tile, dtype, mode = row_tile(rows, held=2, more=_SHORT_ROWS), compute_dtype(y.dtype), exponential(y.dtype)
    (parts, share), shape = tile.parts(rows), tile.shape(rows)

    def steps(new):
        dx = new(destination)
        if tile.chunks == 1:
            launch = _softmax_backward(tile.cut(dx), grads, rows, dtype, mode, log)
        elif parts > 1:
            sums = of_parts(new, rows.shape[:-1], parts, dtype)
            cut = sums.partition((1,) * len(shape))
            yield tile.launch(_softmax_backward_parts(cut, grads, rows, tile.chunks, share, shape, log))
            launch = _softmax_backward_joined(dx.partition(shape), grads, rows, sums, power(parts), mode, log)
        else:
            launch = _softmax_backward_long(tile.cut(dx), grads, rows, tile.chunks, dtype, mode, log)
        yield tile.launch(launch)
        return shaped(dx, y.shape) if out is None else out

    return Launches(y, steps, y)
