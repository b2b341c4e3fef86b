"""Cross-entropy of logits and class indices, and its gradient.

    loss = logsumexp(x) - x[target],   logsumexp(x) = max(x) + log(sum(exp(x - max(x))))
    dloss/dx = softmax(x) - onehot(target) = exp(x - logsumexp(x)) - onehot(target)

The probabilities are never stored. The forward pass reads the logits once and keeps one number a row; with it the gradient needs
no sums, and each element is calculated by itself.
"""

from __future__ import annotations

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    check,
    check_choice,
    compute_dtype,
    exponential,
    index_dtype,
    integers,
    of_parts,
    on_cpu,
    out_or_new,
    power,
    row_tile,
    rows_of,
    shaped,
    takes_rows,
)
from tilekit.kernels._softmax import softmax_parts, weighed
from tilekit.ops import DeviceOp, Spec

__all__ = ["cross_entropy", "cross_entropy_backward"]

_REDUCTIONS = ("mean", "sum", "none")
# Blocks of the loop over a long row that a multiprocessor has room for, as in `_softmax`.
_LOOPS = 5


@tk.function
def _picked(x, wanted, first, index):
    """The element of `x` of each row's class, from row `first` on; 0 where the class is none."""
    row = first + tk.arange(wanted.shape[0], dtype=index)
    if index == tk.int64:
        wanted = wanted.astype(index)
    inside = (wanted >= 0) & (wanted < x.shape[1]) & (row < x.shape[0])
    return tk.gather(x, (row, wanted), mask=inside)


@tk.kernel
def _cross_entropy(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, ignored: int, columns: tk.Const, dtype: tk.Const, mode: tk.Const,
    index: tk.Const,
):  # fmt: skip
    rows, wanted = loss.tile_shape[0], tk.load_tile_like(target, loss)
    t = tk.load(x, (tk.bid(0), 0), (rows, columns), padding_mode="-inf").astype(dtype)
    top = tk.max(t, 1)
    norm = top + tk.log(tk.sum(tk.exp(t - top[:, None], rounding_mode=mode), 1))
    lse.store(norm)
    loss.store(tk.where(wanted == ignored, 0.0, norm - _picked(x, wanted, tk.bid(0) * rows, index).astype(dtype)))


@tk.kernel
def _cross_entropy_long(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, ignored: int, chunks: int, columns: tk.Const, threads: tk.Const,
    lowest: tk.Const, dtype: tk.Const, mode: tk.Const, index: tk.Const,
):  # fmt: skip
    i, wanted = tk.bid(0), tk.load_tile_like(target, loss)
    peak, total = weighed(x, i, 0, chunks, (1, columns), threads, dtype, lowest, mode)
    norm = (peak + tk.log(total)).reshape(1)
    lse.store(norm)
    loss.store(tk.where(wanted == ignored, 0.0, norm - _picked(x, wanted, i, index).astype(dtype)))


@tk.kernel
def _cross_entropy_joined(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, peaks: tk.In, sums: tk.In, ignored: int, parts: tk.Const, index: tk.Const
):
    """Of rows whose parts other blocks have gone over."""
    i, wanted, dtype = tk.bid(0), tk.load_tile_like(target, loss), sums.dtype
    each = tk.load(peaks, (i, 0), (1, parts), padding_mode="-inf")
    peak = tk.max(each, 1)
    norm = peak + tk.log(tk.sum(tk.load(sums, (i, 0), (1, parts)) * tk.exp(each - peak[:, None]), 1))
    lse.store(norm)
    loss.store(tk.where(wanted == ignored, 0.0, norm - _picked(x, wanted, i, index).astype(dtype)))


@tk.kernel
def _total(y: tk.Out, losses: tk.In, target: tk.In, tiles: int, ignored: int, mean: tk.Const, tile: tk.Const, index: tk.Const):
    """One block adds up what many have made: the losses of all rows, always in the same order."""
    total, counted = tk.zeros(tile, losses.dtype), tk.zeros(tile, index)
    for i in range(tiles):
        total = total + tk.load(losses, i, tile)
        counted = counted + (tk.load(target, i, tile, padding_value=ignored) != ignored).astype(tk.int32)
    whole = tk.sum(total, keepdims=True)
    if mean:
        whole = whole / tk.sum(counted, keepdims=True).astype(losses.dtype)
    y.store(whole)


@tk.kernel
def _counted(y: tk.Out, target: tk.In, tiles: int, ignored: int, tile: tk.Const, index: tk.Const):
    counted = tk.zeros(tile, index)
    for i in range(tiles):
        counted = counted + (tk.load(target, i, tile, padding_value=ignored) != ignored).astype(tk.int32)
    y.store(1.0 / tk.sum(counted, keepdims=True).astype(y.dtype))


@tk.kernel
def _cross_entropy_backward(
    dx: tk.Out, grad: tk.In, x: tk.In, target: tk.In, lse: tk.In, share: tk.In, ignored: int, each: tk.Const, dtype: tk.Const,
    mode: tk.Const, index: tk.Const,
):  # fmt: skip
    i, j, rows, columns = tk.bid(0), tk.bid(1), dx.tile_shape[0], dx.tile_shape[1]
    wanted = tk.load(target, i, rows)
    g = tk.load(grad, i, rows) if each else tk.load(grad, 0, 1)
    g = tk.where(wanted == ignored, 0.0, g.astype(dtype) * tk.load(share, 0, 1))[:, None]
    t = tk.load_tile_like(x, dx).astype(dtype)
    p = tk.exp(t - tk.load(lse, i, rows)[:, None], rounding_mode=mode)
    here = (tk.arange(columns, dtype=index) + j * columns)[None, :] == wanted[:, None]
    dx.store(((p - tk.where(here, 1.0, 0.0)) * g).astype(dx.dtype))


@takes_rows
def cross_entropy(
    logits: Operand, target: Operand, *, reduction: str = "mean", ignore_index: int = -100
) -> DeviceOp[tuple[Tensor, ...]]:
    """The cross-entropy of each row of logits and its class, calculated in float32 (float64 in float64).

    Args:
        logits: a tensor of float16, bfloat16, float32 or float64, classes along the last dimension; or an op that produces one.
        target: a tensor of int32 or int64, of the shape of `logits` without the last dimension: the class of each row. What
            is none gives the loss that an element of 0 there would.
        reduction: `"mean"` over the rows that are not ignored, `"sum"`, or `"none"` for a loss for each row.
        ignore_index: rows of this class have a loss of 0.

    Returns:
        An op whose result is the tuple of the loss and the logarithm of each row's sum of exponentials, which the gradient needs;
        float32 (float64) both. The loss has no dimensions, or with `"none"` those of `target`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    rows, classes = _checked("cross_entropy", logits, target, reduction)
    count, dtype, mode = rows.shape[0], compute_dtype(logits.dtype), exponential(logits.dtype)
    index = index_dtype(*rows.shape)
    tile, lowest = row_tile(rows, blocks=_LOOPS if rows.itemsize <= 4 else None), float(np.finfo(dtype).min)
    parts, share = tile.parts(rows)

    def steps(new):
        losses, lse = new(Spec((count,), dtype)), new(Spec((count,), dtype))
        cuts = losses.partition(tile.rows), lse.partition(tile.rows)
        if tile.chunks == 1:
            launch = _cross_entropy(*cuts, rows, classes, ignore_index, tile.columns, dtype, mode, index)
        elif parts > 1:
            peaks, sums = (of_parts(new, count, parts, dtype) for _ in range(2))
            shape, ones = (1, tile.columns), (peaks.partition((1, 1)), sums.partition((1, 1)))
            yield tile.launch(softmax_parts(*ones, rows, tile.chunks, share, shape, tile.threads(rows), lowest, mode))
            launch = _cross_entropy_joined(*cuts, rows, classes, peaks, sums, ignore_index, power(parts), index)
        else:
            launch = _cross_entropy_long(
                *cuts, rows, classes, ignore_index, tile.chunks, tile.columns, tile.threads(rows), lowest, dtype, mode, index
            )
        yield tile.launch(launch)
        lse = shaped(lse, target.shape)
        if reduction == "none":
            return shaped(losses, target.shape), lse
        block, total = min(4096, power(count)), new(Spec((1,), dtype))
        mean, tiles = reduction == "mean", -(-count // block)
        yield _total(total.partition(1), losses, classes, tiles, ignore_index, mean, block, index_dtype(count)).num_warps(8)
        return shaped(total, ()), lse

    return Launches(rows, steps)


@takes_rows
def cross_entropy_backward(
    grad: Operand,
    logits: Operand,
    target: Operand,
    lse: Operand,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """The gradient of `cross_entropy` by the logits.

    Args:
        grad: the gradient by the loss: without dimensions, or with `"none"` of the shape of `target`; float32 (float64).
        logits, target, reduction, ignore_index: what `cross_entropy` was given.
        lse: the second of its results.
        out: where the gradient goes, `logits` itself for one; by default a new tensor.

    Returns:
        An op whose result is a tensor of the shape and dtype of `logits`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    name = "cross_entropy_backward"
    check(name, grad=grad, lse=lse)
    rows, classes = _checked(name, logits, target, reduction)
    each, dtype, count = reduction == "none", compute_dtype(logits.dtype), rows.shape[0]
    for what, tensor, shape in (("lse", lse, target.shape), ("grad", grad, target.shape if each else ())):
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(
                f"{name}: {what} is {tensor.dtype.name} of shape {tensor.shape}; with reduction {reduction!r} it takes "
                f"{dtype.name} of shape {tuple(shape)}"
            )
    destination, grads, sums = (
        shaped(out_or_new(name, out, logits), rows.shape),
        shaped(grad, (count if each else 1,)),
        shaped(lse, (count,)),
    )
    columns = min(power(rows.shape[1]), 4096 // rows.itemsize)
    high = min(power(count), max(1, (1 << 15 if on_cpu(rows) else 4096 // rows.itemsize) // columns))

    def steps(new):
        dx = new(destination)
        if reduction == "mean":
            share, block = new(Spec((1,), dtype)), min(4096, power(count))
            tiles = -(-count // block)
            yield _counted(share.partition(1), classes, tiles, ignore_index, block, index_dtype(count)).num_warps(8)
        else:
            share = yield api.full(1, 1.0, dtype)
        cut, rest = dx.partition((high, columns)), (each, dtype, exponential(logits.dtype), index_dtype(rows.shape[1]))
        yield _cross_entropy_backward(cut, grads, rows, classes, sums, share, ignore_index, *rest).num_warps(4)
        return shaped(dx, logits.shape) if out is None else out

    return Launches(rows, steps, logits)


def _checked(name, logits, target, reduction):
    check(name, logits=logits)
    integers(name, target=target)
    check_choice(name, "reduction", reduction, _REDUCTIONS)
    rows = rows_of(name, logits)
    if target.shape != logits.shape[:-1]:
        raise ValueError(f"{name}: logits of shape {logits.shape} need a target of shape {logits.shape[:-1]}, not {target.shape}")
    return rows, shaped(target, (rows.shape[0],))
