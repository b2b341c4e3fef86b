"""The place of the largest element of rows, and the k largest.

NaN counts as larger than every number, as in NumPy and PyTorch; of equal elements the first is taken.
"""

from __future__ import annotations

import numpy as np

import tilekit as tk
from tilekit import dtypes
from tilekit._tensor.tensor import Tensor
from tilekit.errors import check_flag
from tilekit.kernels._host import Launches, Operand, a_tensor, index_dtype, on_cpu, out_or_new, power, rows_of, shaped, takes_rows
from tilekit.kernels._tiles import Measured, row_tile
from tilekit.ops import DeviceOp, Spec

__all__ = ["argmax", "topk"]

_DTYPES = (tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.int32, tk.int64)
# As measured (`row_tile`): few warps, which have little to tell each other.
_ARGMAX = Measured({(4, 4096): (2, None)})
# What a block sorts at a time.
_SORTED = 4096


@tk.kernel
def _argmax(y: tk.Out, x: tk.In, columns: tk.Const, lowest: tk.Const):
    t = tk.load(x, (tk.bid(0), 0), (y.tile_shape[0], columns), padding_value=lowest)
    y.store(tk.argmax(t, 1).astype(y.dtype))


@tk.kernel
def _argmax_long(y: tk.Out, x: tk.In, chunks: int, columns: tk.Const, lowest: tk.Const, index: tk.Const):
    i, shape = tk.bid(0), (1, columns)
    t = tk.load(x, (i, 0), shape, padding_value=lowest)
    best, position = tk.max(t, 1), tk.argmax(t, 1).astype(index)
    for j in range(1, chunks):
        t = tk.load(x, (i, j), shape, padding_value=lowest)
        value = tk.max(t, 1)
        better = (value > best) | ((value != value) & (best == best))  # a NaN is not equal to itself
        position = tk.where(better, tk.argmax(t, 1).astype(index) + j * columns, position)
        best = tk.where(better, value, best)
    y.store(position.astype(y.dtype))


@tk.kernel
def _topk(values: tk.Out, places: tk.Out, x: tk.In, columns: tk.Const, worst: tk.Const, largest: tk.Const, index: tk.Const):
    j = tk.bid(1)
    t = tk.load(x, (tk.bid(0), j), (values.tile_shape[0], columns), padding_value=worst)
    best, at = tk.topk(t, values.tile_shape[1], 1, largest=largest)
    values.store(best)
    places.store((at.astype(index) + j * columns).astype(places.dtype))


@tk.kernel
def _topk_of_best(
    values: tk.Out, places: tk.Out, x: tk.In, origin: tk.In, columns: tk.Const, worst: tk.Const, largest: tk.Const,
    index: tk.Const,
):  # fmt: skip
    """As `_topk`, of what other blocks have found in `origin`."""
    i, j, rows = tk.bid(0), tk.bid(1), values.tile_shape[0]
    t = tk.load(x, (i, j), (rows, columns), padding_value=worst)
    best, at = tk.topk(t, values.tile_shape[1], 1, largest=largest)
    values.store(best)
    row, column = (tk.arange(rows, dtype=index) + i * rows)[:, None], at.astype(index) + j * columns
    places.store(tk.gather(origin, (row, column), mask=(column < x.shape[1]) & (row < x.shape[0])))


@takes_rows
def argmax(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The index of the largest element along the last dimension, int64; of the first if there are several.

    Args:
        x: a tensor of float16, bfloat16, float32, float64, int32 or int64, with one element at least in a row; or an op that
            produces one.
        out: where the result goes, an int64 tensor of the shape of `x` without the last dimension; by default a new one.

    Returns:
        An op whose result is such a tensor. The first NaN wins, as with NumPy's.

    Raises:
        TypeError, ValueError: other arguments.
    """
    rows = _checked("argmax", x)
    tile, shape = row_tile(rows, measured=_ARGMAX), x.shape[:-1]
    destination = shaped(out_or_new("argmax", out, x, shape, tk.int64), rows.shape[:1])

    def steps(new):
        y = new(destination)
        if tile.chunks == 1:
            launch = _argmax(y.partition(tile.rows), rows, tile.columns, _lowest(x.dtype))
        else:
            cut, index = y.partition(tile.rows), index_dtype(rows.shape[1])
            launch = _argmax_long(cut, rows, tile.chunks, tile.columns, _lowest(x.dtype), index)
        yield tile.launch(launch)
        return shaped(y, shape) if out is None else out

    return Launches(x, steps, Spec(shape, tk.int64))


@takes_rows
def topk(x: Operand, k: int, *, largest: bool = True) -> DeviceOp[tuple[Tensor, ...]]:
    """The `k` largest elements along the last dimension, in descending order, and their places; of equal ones the first.

    Args:
        x: a tensor as for `argmax`.
        k: how many, 1 <= k <= 2048, and no more than there are.
        largest: if False, the `k` smallest, in ascending order.

    Returns:
        An op whose result is the tuple of the values, in the dtype of `x`, and of their indices, int64; both have the shape of
        `x` with `k` in the place of the last extent.

    Raises:
        TypeError, ValueError: other arguments.
    """
    rows = _checked("topk", x)
    if type(k) is not int:
        raise TypeError(f"topk: k is an int, not {k!r}")
    if not 1 <= k <= min(x.shape[-1], _SORTED // 2):
        raise ValueError(f"topk: k is from 1 to {min(x.shape[-1], _SORTED // 2)} for rows of {x.shape[-1]} elements, not {k}")
    largest = check_flag("topk: largest", largest)
    worst = _lowest(x.dtype) if largest else _highest(x.dtype)
    shape = (*x.shape[:-1], k)

    def steps(new):
        best, origin = rows, None
        while origin is None or best.shape[1] > k:  # the best of each part, as long as a row is too long for one block
            best, origin = yield from _best(new, best, origin, k, power(k), worst, largest)
        return shaped(best, shape), shaped(origin, shape)

    return Launches(x, steps)


def _best(new, x, origin, k, width, worst, largest):
    """Find the best of each row, or of each of its parts, if there are several: steps that give them and their places."""
    count, length = x.shape
    columns = max(width, min(power(length), _SORTED))
    parts = -(-length // columns)
    kept = k if parts == 1 else parts * width
    rows = 1 if columns >= 1024 and not on_cpu(x) else min(power(count), max(1, (1 << 15 if on_cpu(x) else 1024) // columns))
    values, places = new(Spec((count, kept), x.dtype)), new(Spec((count, kept), tk.int64))
    cuts = values.partition((rows, width)), places.partition((rows, width))
    warps = max(1, min(8, rows * columns // 512))
    if origin is None:
        yield _topk(*cuts, x, columns, worst, largest, index_dtype(length)).num_warps(warps)
    else:
        yield _topk_of_best(*cuts, x, origin, columns, worst, largest, index_dtype(count, length)).num_warps(warps)
    return values, places


def _checked(name, x):
    a_tensor(name, x=x)
    if x.dtype not in _DTYPES:
        raise TypeError(f"{name}: x holds {x.dtype.name}; it takes {', '.join(d.name for d in _DTYPES)}")
    rows = rows_of(name, x)
    if not rows.shape[1]:
        raise ValueError(f"{name}: x has shape {x.shape}, and rows without elements have no largest one")
    return rows


def _lowest(dtype):
    return float("-inf") if dtypes.is_float(dtype) else int(np.iinfo(dtype).min)


def _highest(dtype):
    # NaN counts as larger than infinity, so that beyond the edge there must be one to be the last of all.
    return float("nan") if dtypes.is_float(dtype) else int(np.iinfo(dtype).max)
