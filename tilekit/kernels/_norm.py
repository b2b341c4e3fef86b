"""layer_norm and rms_norm of rows, of a sum too; their gradients are in `_norm_gradients`.

    layer_norm(x) = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        (Ba, Kiros and Hinton, 2016)
    rms_norm(x)   = x / sqrt(mean(x * x) + eps) * weight                      (Zhang and Sennrich, 2019)

A row stays in registers between its sums and its result. The weights are read after the sums: before them they would only take
up registers, and so leave room for fewer blocks, whose loads are what keeps the memory busy. Where long rows are few, several
blocks have a part of one each, and another kernel joins what they found.
"""

from __future__ import annotations

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
from tilekit.kernels._softmax import block_row
from tilekit.kernels._tiles import Measured, narrow_rows, of_parts, row_tile
from tilekit.ops import DeviceOp, Spec

__all__ = ["add_rms_norm", "first_mean", "layer_norm", "norm_parts", "rms_norm"]

# Warps and occupancy by the bytes of an element and the columns, as measured (`row_tile`).
_RMS_NORM = Measured({(2, 4096): (8, None), (2, 8192): (2, 4)})
_LAYER_NORM = Measured({(2, 4096): (4, 3), (2, 8192): (4, 4)})
# Rows of up to so many elements leave room for several blocks, however narrow their accesses are.
_SHORT = 8192
# Elements that a block adds up where the sums of two tensors are written first: of long rows that are few.
_ADDED = 1024


@tk.function
def _mean(total, n, per_n):
    """`total / n`, where `per_n` is `1 / n` rounded: exact for equal elements, whose variance is then 0; it divides nothing."""
    quotient = total * per_n
    return tk.fma(tk.fma(-quotient, n, total), per_n, quotient)


@tk.kernel
def _layer_norm(
    y: tk.Out, x: tk.In, w: tk.In, b: tk.In, n: int, per_n: float, eps: float, ragged: tk.Const, dtype: tk.Const
):  # fmt: skip
    t = tk.load_tile_like(x, y).astype(dtype)
    t = t - _mean(tk.sum(t, -1, keepdims=True), n, per_n)
    if ragged:  # beyond the edge there were zeros
        t = tk.where(tk.arange(y.tile_shape[-1]) < n, t, 0.0)
    r = tk.rsqrt(tk.sum(t * t, -1, keepdims=True) * per_n + eps)
    t = t * r * tk.load(w, 0, y.tile_shape[-1]).astype(dtype)
    y.store((t + tk.load(b, 0, y.tile_shape[-1]).astype(dtype)).astype(y.dtype))


@tk.kernel
def _rms_norm(y: tk.Out, x: tk.In, w: tk.In, per_n: float, eps: float, dtype: tk.Const):
    t = tk.load_tile_like(x, y).astype(dtype)
    r = tk.rsqrt(tk.sum(t * t, -1, keepdims=True) * per_n + eps)
    y.store((t * r * tk.load(w, 0, y.tile_shape[-1]).astype(dtype)).astype(y.dtype))


@tk.kernel
def _add_rms_norm(y: tk.Out, h: tk.Out, x: tk.In, residual: tk.In, w: tk.In, per_n: float, eps: float, dtype: tk.Const):
    s = (tk.load_tile_like(x, y).astype(dtype) + tk.load_tile_like(residual, y).astype(dtype)).astype(h.dtype)
    h.store(s)
    t = s.astype(dtype)  # what is stored is what is normalised
    r = tk.rsqrt(tk.sum(t * t, -1, keepdims=True) * per_n + eps)
    y.store((t * r * tk.load(w, 0, y.tile_shape[-1]).astype(dtype)).astype(y.dtype))


@tk.kernel
def _add_rms_norm_long(
    y: tk.Out, h: tk.InOut, x: tk.In, residual: tk.In, w: tk.In, chunks: int, per_n: float, eps: float, dtype: tk.Const,
):  # fmt: skip
    """A row of sums is read again by the block that has just written it."""
    at, shape = block_row(y.tile_shape), y.tile_shape
    square = tk.zeros((*shape[:-1], 1), dtype)
    for j in range(chunks):
        s = (tk.load(x, (*at, j), shape).astype(dtype) + tk.load(residual, (*at, j), shape).astype(dtype)).astype(h.dtype)
        tk.store(h, (*at, j), s)
        t = s.astype(dtype)
        square = square + tk.sum(t * t, -1, keepdims=True)
    r = tk.rsqrt(square * per_n + eps)
    for j in range(chunks):
        t = tk.load(h, (*at, j), shape).astype(dtype) * r * tk.load(w, j, shape[-1]).astype(dtype)
        tk.store(y, (*at, j), t.astype(y.dtype))


@tk.function
def first_mean(x, at, first, shape, count, dtype):
    """Of the `count` elements of row `at` in the tiles from `first` on, the mean of those in the first of these.

    The mean of all is near it: the square of what is between them is at most so many times the variance as there are tiles.
    So the sum of the squares beyond the one follows from that beyond the other, and all is read once.
    """
    total, size = tk.sum(tk.load(x, (*at, first), shape).astype(dtype), -1, keepdims=True), min(count, shape[-1])
    return _mean(total, size, 1.0 / tk.full((1, 1), size, dtype))


@tk.function
def moments(x, at, first, last, shape, n, count, per_count, centred, dtype, index):
    """Of the `count` elements of row `at` in the tiles from `first` to `last`: the mean, 0 if it is not asked for, and the sum of
    the squares of what is beyond that. A row has `n` elements.
    """
    columns, mean = shape[-1], tk.zeros((*shape[:-1], 1), dtype)
    total, square = mean, mean
    if centred:
        mean = first_mean(x, at, first, shape, count, dtype)
    for j in range(first, last):
        t = tk.load(x, (*at, j), shape).astype(dtype)
        if centred:
            t = tk.where(tk.arange(columns, dtype=index) + j * columns < n, t - mean, 0.0)
            total = total + tk.sum(t, -1, keepdims=True)
        square = square + tk.sum(t * t, -1, keepdims=True)
    if centred:
        mean, square = mean + total * per_count, tk.maximum(square - total * total * per_count, 0.0)
    return mean, square


@tk.kernel
def norm_parts(
    means: tk.Out, squares: tk.Out, x: tk.In, chunks: int, share: int, n: int, shape: tk.Const, centred: tk.Const,
    index: tk.Const,
):  # fmt: skip
    """Block (i, s) has the s-th part of row i: `share` tiles of it."""
    s, dtype = tk.bid(len(shape) - 1), squares.dtype
    last = min(chunks, (s + 1) * share)
    count = min(n, last * shape[-1]) - s * share * shape[-1]
    per_count = 1.0 / tk.full((1, 1), count, dtype)
    mean, square = moments(x, block_row(shape), s * share, last, shape, n, count, per_count, centred, dtype, index)
    means.store(mean.reshape(means.tile_shape))
    squares.store(square.reshape(squares.tile_shape))


@tk.function
def _joined(means, squares, size, n, per_n, index):
    """The mean of a row of `n` elements whose parts have `size` of them, but for the last; of each part what is to be added up to
    the sum of the squares beyond it; and how far the part's own mean is.

    From Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
    """
    counts = tk.maximum(tk.minimum(n - tk.arange(means.shape[-1], dtype=index)[None, :] * size, size), 0).astype(means.dtype)
    mean = _mean(tk.sum(means * counts, -1, keepdims=True), n, per_n)
    mean = mean + _mean(tk.sum((means - mean) * counts, -1, keepdims=True), n, per_n)  # large sums are rounded
    beyond = means - mean
    return mean, squares + beyond * beyond * counts, beyond


@tk.kernel
def _norm_joined(
    y: tk.Out, x: tk.In, w: tk.In, b: tk.In, means: tk.In, squares: tk.In, size: int, n: int, per_n: float, eps: float,
    parts: tk.Const, centred: tk.Const, index: tk.Const,
):  # fmt: skip
    """Of rows whose parts other blocks have gone over."""
    j, dtype = tk.bid(len(y.tile_shape) - 1), squares.dtype
    at, shape = (*block_row(y.tile_shape), 0), (*y.tile_shape[:-1], parts)
    t, columns = tk.load_tile_like(x, y).astype(dtype), y.tile_shape[-1]
    square = tk.load(squares, at, shape)
    if centred:
        mean, square, _ = _joined(tk.load(means, at, shape), square, size, n, per_n, index)
        t = t - mean
    t = t * tk.rsqrt(tk.sum(square, -1, keepdims=True) * per_n + eps) * tk.load(w, j, columns).astype(dtype)
    if centred:
        t = t + tk.load(b, j, columns).astype(dtype)
    y.store(t.astype(y.dtype))


@tk.kernel
def _norm_long(
    y: tk.Out, x: tk.In, w: tk.In, b: tk.In, chunks: int, n: int, per_n: float, eps: float,
    centred: tk.Const, dtype: tk.Const, index: tk.Const,
):  # fmt: skip
    at, columns = block_row(y.tile_shape), y.tile_shape[-1]
    mean, square = moments(x, at, 0, chunks, y.tile_shape, n, n, per_n, centred, dtype, index)
    r = tk.rsqrt(square * per_n + eps)
    for j in range(chunks):
        t = (tk.load(x, (*at, j), y.tile_shape).astype(dtype) - mean) * r * tk.load(w, j, columns).astype(dtype)
        if centred:
            t = t + tk.load(b, j, columns).astype(dtype)
        tk.store(y, (*at, j), t.astype(y.dtype))


@takes_batches
def layer_norm(x: Operand, weight: Operand, bias: Operand, eps: float = 1e-5, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """layer_norm along the last dimension, calculated in float32 (float64 in float64).

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        weight, bias: tensors of one dimension, as long as the last of `x`; of any of these dtypes that is no wider than what is
            calculated in.
        eps: what is added to the variance.
        out: where the result goes, a tensor of the shape and dtype of `x`; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("layer_norm", x=x, weight=weight, bias=bias)
    return _forward("layer_norm", x, weight, bias, eps, out)


@takes_batches
def rms_norm(x: Operand, weight: Operand, eps: float = 1e-6, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """rms_norm along the last dimension; arguments, result and errors as for `layer_norm`."""
    check("rms_norm", x=x, weight=weight)
    return _forward("rms_norm", x, weight, None, eps, out)


@takes_batches
def add_rms_norm(x: Operand, residual: Operand, weight: Operand, eps: float = 1e-6) -> DeviceOp[tuple[Tensor, ...]]:
    """`x + residual`, and its rms_norm, in one pass over the memory.

    Args:
        x, residual: tensors of one shape and dtype.
        weight, eps: as for `rms_norm`.

    Returns:
        An op whose result is the tuple `(rms_norm(h, weight), h)`, where `h` is `x + residual` rounded to their dtype.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("add_rms_norm", x=x, residual=residual, weight=weight)
    same_shape("add_rms_norm", x=x, residual=residual)
    (rows, others), n = rows_in("add_rms_norm", x, residual), x.shape[-1]
    _check_weight("add_rms_norm", n, "weight", weight)
    tile, dtype = row_tile(rows, held=2), compute_dtype(x.dtype)
    like = Spec(rows.shape, x.dtype)

    def steps(new):
        h = new(like)
        if tile.parts(rows)[0] > 1:
            columns = min(_ADDED, power(n))
            yield _add(h.partition((*(1,) * (len(rows.shape) - 2), _ADDED // columns, columns)), rows, others, dtype)
            y = yield rms_norm(h, weight, eps)
            return shaped(y, x.shape), shaped(h, x.shape)
        y = new(like)
        own = tile.cut(y), tile.cut(h), rows, others, weight
        if tile.chunks == 1:
            yield tile.launch(_add_rms_norm(*own, _per(n), eps, dtype))
        else:
            yield tile.launch(_add_rms_norm_long(*own, tile.chunks, _per(n), eps, dtype))
        return shaped(y, x.shape), shaped(h, x.shape)

    return Launches(x, steps)


@tk.kernel
def _add(y: tk.Out, a: tk.In, b: tk.In, dtype: tk.Const):
    y.store((tk.load_tile_like(a, y).astype(dtype) + tk.load_tile_like(b, y).astype(dtype)).astype(y.dtype))


def _check_weight(name, n, what, tensor):
    if tensor.shape != (n,):
        raise ValueError(f"{name}: {what} has shape {tensor.shape}; rows of {n} elements need ({n},)")


def _per(n):
    return 1.0 / max(n, 1)


def _forward(name, x, weight, bias, eps, out):
    (rows, destination), n = rows_in(name, x, out_or_new(name, out, x)), x.shape[-1]
    dtype = compute_dtype(x.dtype)
    measured = _RMS_NORM if bias is None else _LAYER_NORM
    # (Of the longest rows in one tile, two blocks that keep a little in local memory are better than one.)
    narrow = narrow_rows(rows, 16 if n <= _SHORT else 4)
    room = 3 if (narrow and x.itemsize < 4) or (bias is not None and x.itemsize >= 4) else 2
    tile = row_tile(rows, room=room, measured=None if narrow else measured)
    _check_weight(name, n, "weight", weight)
    if bias is not None:
        _check_weight(name, n, "bias", bias)
    centred, index, (parts, share) = bias is not None, index_dtype(n), tile.parts(rows)

    def steps(new):
        y = new(destination)
        target = tile.cut(y)
        if parts > 1:
            means, squares = (of_parts(new, rows.shape[:-1], parts, dtype) for _ in range(2))
            shape, ones = tile.shape(rows), (1,) * len(rows.shape)
            cuts = means.partition(ones), squares.partition(ones)
            yield tile.launch(norm_parts(*cuts, rows, tile.chunks, share, n, shape, centred, index))
            launch = _norm_joined(
                y.partition(shape), rows, weight, bias if centred else weight, means, squares, share * tile.columns, n, _per(n),
                eps, power(parts), centred, index,
            )  # fmt: skip
        elif tile.chunks > 1:
            launch = _norm_long(
                target, rows, weight, bias if centred else weight, tile.chunks, n, _per(n), eps,
                centred, dtype, index,
            )  # fmt: skip
        elif bias is None:
            launch = _rms_norm(target, rows, weight, _per(n), eps, dtype)
        else:
            launch = _layer_norm(target, rows, weight, bias, n, _per(n), eps, n != tile.columns, dtype)
        yield tile.launch(launch)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)
