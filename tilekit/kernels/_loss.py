"""Cross-entropy of logits and class indices, and its gradient.

    loss = logsumexp(x) - x[target],   logsumexp(x) = max(x) + log(sum(exp(x - max(x))))
    dloss/dx = softmax(x) - onehot(target) = exp(x - logsumexp(x)) - onehot(target)

The probabilities are never stored. The forward pass reads the logits once and keeps one number a row; with it the gradient needs
no sums, and each element is calculated by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import tilekit as tk
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
    multiprocessors,
    on_cpu,
    out_or_new,
    power,
    rows_of,
    shaped,
    takes_rows,
)
from tilekit.kernels._softmax import softmax_parts, weighed
from tilekit.kernels._tiles import RowTile, of_parts, row_tile, vector_width
from tilekit.ops import DeviceOp, Spec

__all__ = ["cross_entropy", "cross_entropy_backward"]

_REDUCTIONS = ("mean", "sum", "none")
# Blocks of the loop over a long row that a multiprocessor has room for, as in `_softmax`.
_LOOPS = 5
# Of the columns of one tile, that two may have together.
_FILLED = 0.75
# Blocks of one warp that a multiprocessor has room for: where there are more rows, each has two.
_BLOCKS = 32
# Numbers that a block adds up at a time, 8 a thread; how many tiles of these one block takes alone; and how many blocks do else.
_ADDED, _TILES, _PARTS = 2048, 4, 512
# Bytes of a tile of the gradient. What belongs to a row, its class for one, a thread calculates for 8 rows, however short these
# are: where a tile has so many rows, it has twice as many. (Of rows of 24 float16 it is 17 instructions an element, not 24.)
_TILE_BYTES, _SHORT, _MORE = 4096, 8, 2
_LOG2_E = 1.4426950408889634


@tk.function
def _picked(x, wanted, first, index):
    """The element of `x` of each row's class, from row `first` on; 0 where the class is none."""
    row = first + tk.arange(wanted.shape[0], dtype=index)
    if index == tk.int64:
        wanted = wanted.astype(index)
    inside = (wanted >= 0) & (wanted < x.shape[1]) & (row < x.shape[0])
    return tk.gather(x, (row, wanted), mask=inside)


@tk.function
def _exp(t, mode):
    """exp(t) of what is 0 at most, for a sum in which one is 1: where `mode` is not None, what is subnormal is 0."""
    return tk.exp(t) if mode is None else tk.exp2(t * _LOG2_E, flush_to_zero=True)


@tk.kernel
def _cross_entropy(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, ignored: int, columns: tk.Const, dtype: tk.Const, mode: tk.Const,
    index: tk.Const,
):  # fmt: skip
    rows, wanted = loss.tile_shape[0], tk.load_tile_like(target, loss)
    picked = _picked(x, wanted, tk.bid(0) * rows, index).astype(dtype)
    t = tk.load(x, (tk.bid(0), 0), (rows, columns), padding_mode="-inf").astype(dtype)
    top = tk.max(t, 1)
    norm = top + tk.log(tk.sum(_exp(t - top[:, None], mode), 1))
    lse.store(norm)
    loss.store(tk.where(wanted == ignored, 0.0, norm - picked))


@tk.kernel
def _cross_entropy_of_two(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, ignored: int, first: tk.Const, second: tk.Const, dtype: tk.Const,
    mode: tk.Const, index: tk.Const,
):  # fmt: skip
    """Of rows in two tiles, where one of a power of two of columns would be empty for the most part beyond the first."""
    rows, wanted, i = loss.tile_shape[0], tk.load_tile_like(target, loss), tk.bid(0)
    picked = _picked(x, wanted, i * rows, index).astype(dtype)
    t = tk.load(x, (i, 0), (rows, first), padding_mode="-inf").astype(dtype)
    u = tk.load(x, (i, first // second), (rows, second), padding_mode="-inf").astype(dtype)
    top = tk.maximum(tk.max(t, 1, keepdims=True), tk.max(u, 1, keepdims=True))
    total = tk.sum(_exp(t - top, mode), 1, keepdims=True) + tk.sum(_exp(u - top, mode), 1, keepdims=True)
    norm = (top + tk.log(total)).reshape(rows)
    lse.store(norm)
    loss.store(tk.where(wanted == ignored, 0.0, norm - picked))


@tk.kernel
def _cross_entropy_long(
    loss: tk.Out, lse: tk.Out, x: tk.In, target: tk.In, ignored: int, chunks: int, columns: tk.Const,
    lowest: tk.Const, dtype: tk.Const, mode: tk.Const, index: tk.Const,
):  # fmt: skip
    i, wanted = tk.bid(0), tk.load_tile_like(target, loss)
    peak, total = weighed(x, (i,), 0, chunks, (1, columns), dtype, lowest, mode)
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


@tk.function
def _added(losses, target, first, last, ignored, tile, index):
    """The losses in these tiles of what many blocks have made, and how many count."""
    total, counted = tk.zeros(tile, losses.dtype), tk.zeros(tile, index)
    for i in range(first, last):
        total = total + tk.load(losses, i, tile)
        counted = counted + (tk.load(target, i, tile, padding_value=ignored) != ignored).astype(tk.int32)
    return tk.sum(total, keepdims=True), tk.sum(counted, keepdims=True)


@tk.function
def _counted(target, first, last, ignored, tile, index):
    counted = tk.zeros(tile, index)
    for i in range(first, last):
        counted = counted + (tk.load(target, i, tile, padding_value=ignored) != ignored).astype(tk.int32)
    return tk.sum(counted, keepdims=True)


@tk.kernel
def _total(y: tk.Out, losses: tk.In, target: tk.In, tiles: int, ignored: int, mean: tk.Const, tile: tk.Const, index: tk.Const):
    """One block adds up the losses of few rows."""
    whole, counted = _added(losses, target, 0, tiles, ignored, tile, index)
    y.store(whole / counted.astype(losses.dtype) if mean else whole)


@tk.kernel
def _partial_totals(
    sums: tk.Out, counts: tk.Out, losses: tk.In, target: tk.In, tiles: int, share: int, ignored: int, tile: tk.Const,
    index: tk.Const,
):  # fmt: skip
    """Each block adds up a part of many, `share` tiles."""
    first = tk.bid(0) * share
    total, counted = _added(losses, target, first, min(tiles, first + share), ignored, tile, index)
    sums.store(total)
    counts.store(counted)


@tk.kernel
def _total_of_parts(y: tk.Out, sums: tk.In, counts: tk.In, mean: tk.Const, parts: tk.Const):
    """The losses of all rows, always added up in the same order."""
    whole = tk.sum(tk.load(sums, 0, parts), keepdims=True)
    if mean:
        whole = whole / tk.sum(tk.load(counts, 0, parts), keepdims=True).astype(sums.dtype)
    y.store(whole)


@tk.kernel
def _share(y: tk.Out, target: tk.In, tiles: int, ignored: int, tile: tk.Const, index: tk.Const):
    """That of each row in the mean of few."""
    y.store(1.0 / _counted(target, 0, tiles, ignored, tile, index).astype(y.dtype))


@tk.kernel
def _partial_counts(counts: tk.Out, target: tk.In, tiles: int, share: int, ignored: int, tile: tk.Const, index: tk.Const):
    first = tk.bid(0) * share
    counts.store(_counted(target, first, min(tiles, first + share), ignored, tile, index))


@tk.kernel
def _share_of_parts(y: tk.Out, counts: tk.In, parts: tk.Const):
    y.store(1.0 / tk.sum(tk.load(counts, 0, parts), keepdims=True).astype(y.dtype))


@tk.kernel
def _cross_entropy_backward(
    dx: tk.Out, grad: tk.In, x: tk.In, target: tk.In, lse: tk.In, share: tk.In, ignored: int, each: tk.Const, dtype: tk.Const,
    mode: tk.Const, index: tk.Const,
):  # fmt: skip
    i, j, rows, columns = tk.bid(0), tk.bid(1), dx.tile_shape[0], dx.tile_shape[1]
    wanted = tk.load(target, i, rows)
    g = tk.load(grad, i, rows) if each else tk.load(grad, 0, 1)
    g = g.astype(dtype)
    if share is not None:
        g = g * tk.load(share, 0, 1)
    g = tk.where(wanted == ignored, 0.0, g)[:, None]
    p = _exp(tk.load_tile_like(x, dx).astype(dtype) - tk.load(lse, i, rows)[:, None], mode)
    # Of each row once, where classes are of 64 bits: its column in the tile, a negative one for none.
    column = tk.where((wanted >= 0) & (wanted < x.shape[1]), wanted, -1).astype(index) - j * columns
    here = tk.arange(columns, dtype=index)[None, :] == column[:, None]
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
    pair = _of_two(tile, rows)
    if pair is not None and tile.num_warps == 1 and count > _BLOCKS * multiprocessors(rows):
        tile = tile._replace(rows=2)

    def steps(new):
        losses, lse = new(Spec((count,), dtype)), new(Spec((count,), dtype))
        cuts = losses.partition(tile.rows), lse.partition(tile.rows)
        if pair is not None:
            launch = _cross_entropy_of_two(*cuts, rows, classes, ignore_index, *pair, dtype, mode, index)
        elif tile.chunks == 1:
            launch = _cross_entropy(*cuts, rows, classes, ignore_index, tile.columns, dtype, mode, index)
        elif parts > 1:
            peaks, sums = (of_parts(new, count, parts, dtype) for _ in range(2))
            shape, ones = (1, tile.columns), (peaks.partition((1, 1)), sums.partition((1, 1)))
            yield tile.launch(softmax_parts(*ones, rows, tile.chunks, share, shape, lowest, mode))
            launch = _cross_entropy_joined(*cuts, rows, classes, peaks, sums, ignore_index, power(parts), index)
        else:
            launch = _cross_entropy_long(
                *cuts, rows, classes, ignore_index, tile.chunks, tile.columns, lowest, dtype, mode, index
            )
        yield tile.launch(launch)
        lse = shaped(lse, target.shape)
        if reduction == "none":
            return shaped(losses, target.shape), lse
        shares, total, kind = _shares(count), new(Spec((1,), dtype)), index_dtype(count)
        y, of, rest = total.partition(1), (losses, classes, shares.tiles), (ignore_index, shares.tile, kind)
        if shares.parts == 1:
            yield _total(y, *of, ignore_index, reduction == "mean", shares.tile, kind).num_warps(8)
        else:
            sums, counts = new(Spec((shares.parts,), dtype)), new(Spec((shares.parts,), kind))
            yield _partial_totals(sums.partition(1), counts.partition(1), *of, shares.share, *rest).num_warps(8)
            yield _total_of_parts(y, sums, counts, reduction == "mean", power(shares.parts)).num_warps(shares.num_warps)
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
    columns = min(power(rows.shape[1]), _TILE_BYTES // rows.itemsize)
    elements = _TILE_BYTES // rows.itemsize
    if elements >= _SHORT * columns:
        elements *= _MORE
    high = min(power(count), max(1, (1 << 15 if on_cpu(rows) else elements) // columns))

    def steps(new):
        dx, share = new(destination), None
        if reduction == "mean":
            share, shares, kind = new(Spec((1,), dtype)), _shares(count), index_dtype(count)
            y, rest = share.partition(1), (ignore_index, shares.tile, kind)
            if shares.parts == 1:
                yield _share(y, classes, shares.tiles, *rest).num_warps(8)
            else:
                counts = new(Spec((shares.parts,), kind))
                yield _partial_counts(counts.partition(1), classes, shares.tiles, shares.share, *rest).num_warps(8)
                yield _share_of_parts(y, counts, power(shares.parts)).num_warps(shares.num_warps)
        cut, rest = dx.partition((high, columns)), (each, dtype, exponential(logits.dtype), index_dtype(rows.shape[1]))
        yield _cross_entropy_backward(cut, grads, rows, classes, sums, share, ignore_index, *rest).num_warps(4)
        return shaped(dx, logits.shape) if out is None else out

    return Launches(rows, steps, logits)


class _Shares(NamedTuple):
    """How a number of each row is dealt out to blocks that add them up.

    Attributes:
        tile, tiles: its extent, and how many there are.
        share: tiles of a block.
        parts: blocks.
        num_warps: for the one block that adds up what these have.
    """

    tile: int
    tiles: int
    share: int
    parts: int
    num_warps: int


def _shares(count: int) -> _Shares:
    """One block waits for each of its tiles in turn, a microsecond each: a few cost less than another launch, hundreds more
    than all else."""
    tile = min(_ADDED, power(count))
    tiles = -(-count // tile)
    share = tiles if tiles <= _TILES else -(-tiles // _PARTS)
    parts = -(-tiles // share)
    return _Shares(tile, tiles, share, parts, max(1, min(8, power(parts) // 64)))


def _of_two(tile: RowTile, rows: Tensor) -> tuple[int, int] | None:
    """Rows in two tiles, the first of half the columns, the other of what is left: their columns; None where that is not much
    less than one tile."""
    if tile.chunks > 1 or tile.rows > 1 or on_cpu(rows):
        return None
    half, least = tile.columns // 2, 32 * tile.num_warps * vector_width(rows)  # which all threads have a part of
    rest = max(power(rows.shape[1] - half), least)
    return (half, rest) if half >= least and half + rest <= _FILLED * tile.columns else None


def _checked(name, logits, target, reduction):
    check(name, logits=logits)
    integers(name, target=target)
    check_choice(name, "reduction", reduction, _REDUCTIONS)
    rows = rows_of(name, logits)
    if target.shape != logits.shape[:-1]:
        raise ValueError(f"{name}: logits of shape {logits.shape} need a target of shape {logits.shape[:-1]}, not {target.shape}")
    return rows, shaped(target, (rows.shape[0],))
