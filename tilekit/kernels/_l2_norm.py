"""l2_norm: rows divided by their Euclidean norms, with its gradient.

    l2_norm(x) = x / max(sqrt(sum(x * x)), eps)

The gradient by a row of norm `n`, whose result is `y`, is `(grad - y * sum(grad * y)) / n`; if the norm is less than `eps`, it is
`grad / eps`.

A row that fits a tile is read once and stays in registers. A longer one is read twice: for the sum, and for the result.
"""

from __future__ import annotations

import math
import numbers

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    check,
    compute_dtype,
    index_dtype,
    out_or_new,
    power,
    rows_in,
    same_shape,
    shaped,
    takes_batches,
)
from tilekit.kernels._norm import norm_parts
from tilekit.kernels._softmax import block_row
from tilekit.kernels._tiles import of_parts, row_tile
from tilekit.launch.copying import as_real
from tilekit.ops import DeviceOp

__all__ = ["l2_norm", "l2_norm_backward"]


@tk.kernel
def _l2_norm(y: tk.Out, x: tk.In, steepest: float, dtype: tk.Const):
    t = tk.load_tile_like(x, y).astype(dtype)
    y.store((t * tk.minimum(tk.rsqrt(tk.sum(t * t, -1, keepdims=True)), steepest)).astype(y.dtype))


@tk.kernel
def _l2_norm_long(y: tk.Out, x: tk.In, chunks: int, steepest: float, dtype: tk.Const):
    at = block_row(y.tile_shape)
    square = tk.zeros((*y.tile_shape[:-1], 1), dtype)
    for j in range(chunks):
        t = tk.load(x, (*at, j), y.tile_shape).astype(dtype)
        square = square + tk.sum(t * t, -1, keepdims=True)
    r = tk.minimum(tk.rsqrt(square), steepest)
    for j in range(chunks):
        tk.store(y, (*at, j), (tk.load(x, (*at, j), y.tile_shape).astype(dtype) * r).astype(y.dtype))


@tk.function
def _total(sums, shape, parts):
    """The sum of what the parts of a block's row have, of which it has tiles of such a shape."""
    return tk.sum(tk.load(sums, (*block_row(shape), 0), (*shape[:-1], parts)), -1, keepdims=True)


@tk.kernel
def _l2_norm_joined(y: tk.Out, x: tk.In, squares: tk.In, steepest: float, parts: tk.Const):
    """Of rows whose parts other blocks have gone over."""
    square = _total(squares, y.tile_shape, parts)
    y.store((tk.load_tile_like(x, y).astype(squares.dtype) * tk.minimum(tk.rsqrt(square), steepest)).astype(y.dtype))


@tk.function
def _gradient(g, t, square, along, steepest):
    """Of elements `t` and gradients `g` of rows whose squares have the sum `square`, and `g * t` the sum `along`."""
    steep = tk.rsqrt(square)
    r = tk.minimum(steep, steepest)
    # What the divisor does, if the row decides it. Not by r * r * r, which is infinite where r is not.
    slope = tk.where(steep > steepest, 0.0, along * r)
    return (g - t * r * slope) * r


@tk.kernel
def _l2_norm_backward(dx: tk.Out, dy: tk.In, x: tk.In, steepest: float, dtype: tk.Const):
    g, t = tk.load_tile_like(dy, dx).astype(dtype), tk.load_tile_like(x, dx).astype(dtype)
    square, along = tk.sum(t * t, -1, keepdims=True), tk.sum(g * t, -1, keepdims=True)
    dx.store(_gradient(g, t, square, along, steepest).astype(dx.dtype))


@tk.function
def _sums(dy, x, at, first, last, shape, dtype):
    """Over row `at` in the tiles from `first` to `last` the sums of the squares, and of the elements times their gradients."""
    square, along = tk.zeros((*shape[:-1], 1), dtype), tk.zeros((*shape[:-1], 1), dtype)
    for j in range(first, last):
        t, g = tk.load(x, (*at, j), shape).astype(dtype), tk.load(dy, (*at, j), shape).astype(dtype)
        square = square + tk.sum(t * t, -1, keepdims=True)
        along = along + tk.sum(g * t, -1, keepdims=True)
    return square, along


@tk.kernel
def _l2_norm_backward_long(dx: tk.Out, dy: tk.In, x: tk.In, chunks: int, steepest: float, dtype: tk.Const):
    at = block_row(dx.tile_shape)
    square, along = _sums(dy, x, at, 0, chunks, dx.tile_shape, dtype)
    for j in range(chunks):
        g, t = tk.load(dy, (*at, j), dx.tile_shape).astype(dtype), tk.load(x, (*at, j), dx.tile_shape).astype(dtype)
        tk.store(dx, (*at, j), _gradient(g, t, square, along, steepest).astype(dx.dtype))


@tk.kernel
def _l2_norm_backward_parts(squares: tk.Out, alongs: tk.Out, dy: tk.In, x: tk.In, chunks: int, share: int, shape: tk.Const):
    """Block (i, s) has the s-th part of row i: `share` tiles of it."""
    s = tk.bid(len(shape) - 1)
    square, along = _sums(dy, x, block_row(shape), s * share, min(chunks, (s + 1) * share), shape, squares.dtype)
    squares.store(square.reshape(squares.tile_shape))
    alongs.store(along.reshape(alongs.tile_shape))


@tk.kernel
def _l2_norm_backward_joined(dx: tk.Out, dy: tk.In, x: tk.In, squares: tk.In, alongs: tk.In, steepest: float, parts: tk.Const):
    """Of rows whose parts other blocks have gone over."""
    dtype = squares.dtype
    g, t = tk.load_tile_like(dy, dx).astype(dtype), tk.load_tile_like(x, dx).astype(dtype)
    square, along = _total(squares, dx.tile_shape, parts), _total(alongs, dx.tile_shape, parts)
    dx.store(_gradient(g, t, square, along, steepest).astype(dx.dtype))


@takes_batches
def l2_norm(x: Operand, eps: float = 1e-12, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Rows divided by their Euclidean norms, along the last dimension: `x / max(sqrt(sum(x * x)), eps)`.

    Calculated in float32 (float64 in float64), where squares are infinite from 1e38 on: such a row becomes 0.

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        eps: the smallest divisor, a positive number.
        out: where the result goes, a tensor of the shape and dtype of `x`, `x` itself for one; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("l2_norm", x=x)
    rows, destination = rows_in("l2_norm", x, out_or_new("l2_norm", out, x))
    tile, dtype = row_tile(rows), compute_dtype(x.dtype)
    steepest, (parts, share) = _steepest("l2_norm", eps, dtype), tile.parts(rows)

    def steps(new):
        y = new(destination)
        target = tile.cut(y)
        if tile.chunks == 1:
            launch = _l2_norm(target, rows, steepest, dtype)
        elif parts > 1:
            n, shape, ones = rows.shape[-1], tile.shape(rows), (1,) * len(rows.shape)
            means, squares = (of_parts(new, rows.shape[:-1], parts, dtype) for _ in range(2))
            cuts = means.partition(ones), squares.partition(ones)
            yield tile.launch(norm_parts(*cuts, rows, tile.chunks, share, n, shape, False, index_dtype(n)))
            launch = _l2_norm_joined(y.partition(shape), rows, squares, steepest, power(parts))
        else:
            launch = _l2_norm_long(target, rows, tile.chunks, steepest, dtype)
        yield tile.launch(launch)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)


@takes_batches
def l2_norm_backward(grad: Operand, x: Operand, eps: float = 1e-12, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `l2_norm` by its argument. Of rows whose norm is less than `eps` it is `grad / eps`.

    Args:
        grad: the gradient by the result, of the shape and dtype of `x`.
        x, eps: what `l2_norm` was given.
        out: where the gradient goes; by default a new tensor.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "l2_norm_backward"
    check(name, grad=grad, x=x)
    same_shape(name, grad=grad, x=x)
    rows, grads, destination = rows_in(name, x, grad, out_or_new(name, out, x))
    tile, dtype = row_tile(rows, held=2), compute_dtype(x.dtype)
    steepest, (parts, share) = _steepest(name, eps, dtype), tile.parts(rows)

    def steps(new):
        dx = new(destination)
        if tile.chunks == 1:
            launch = _l2_norm_backward(tile.cut(dx), grads, rows, steepest, dtype)
        elif parts > 1:
            sums, shape = [of_parts(new, rows.shape[:-1], parts, dtype) for _ in range(2)], tile.shape(rows)
            cuts = (each.partition((1,) * len(shape)) for each in sums)
            yield tile.launch(_l2_norm_backward_parts(*cuts, grads, rows, tile.chunks, share, shape))
            launch = _l2_norm_backward_joined(dx.partition(shape), grads, rows, *sums, steepest, power(parts))
        else:
            launch = _l2_norm_backward_long(tile.cut(dx), grads, rows, tile.chunks, steepest, dtype)
        yield tile.launch(launch)
        return shaped(dx, x.shape) if out is None else out

    return Launches(x, steps, x)


def _steepest(name, eps, dtype):
    """1 / eps: 1 / max(norm, eps) is min(1 / norm, 1 / eps), which divides nothing. Finite, so that a row of zeros stays one."""
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real):
        raise TypeError(f"{name}: eps is a number, not {eps!r}")
    if not 0 < eps < math.inf:
        raise ValueError(f"{name}: eps is positive and finite, not {eps!r}")
    return 1.0 / max(as_real(eps, f"{name}: eps"), 1e-300 if dtype == tk.float64 else 1e-38)
