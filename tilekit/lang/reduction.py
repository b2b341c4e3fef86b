"""Operations that fold a tile along some of its dimensions.

Sums and products of 16-bit floats are computed in float32 and rounded once at the end. The order in which elements meet is not
NumPy's, so that sums of floats differ from its in the last bits; it is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.combining import check_function, columns_of, combined, first_of, known_identity
from tilekit.lang.registry import tile_op
from tilekit.lang.shape import axes_of
from tilekit.lang.tile import Tile, computable, convert, what_is

__all__ = ["all_", "any_", "argmax", "argmin", "max_", "min_", "prod", "reduce", "reducible", "sum_", "sum_dtype"]


def sum_dtype(dtype: dtypes.DType) -> dtypes.DType:
    """The dtype of a sum or a product: bools and integers of fewer than 32 bits give int32 or uint32, all else its own."""
    if dtypes.is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return dtypes.uint32 if dtype.kind == "u" else dtypes.int32


def reducible(dtype: dtypes.DType, what: str) -> str | None:
    """Why a tile of `dtype` has no smallest and largest element; None if it has."""
    if dtype == dtypes.bool_:
        instead = {"max": "tk.any", "min": "tk.all"}.get(what, ".astype(tk.int32)")
        return f"bool tiles have no order; use {instead}"
    return dtypes.no_arithmetic(dtype)


def _check_tile(x: Any, what: str) -> Tile:
    if not isinstance(x, Tile):
        raise CompileError(f"{what}: needs a tile, not {what_is(x)}")
    return x


def _fold(name: str, x: Any, axis: Any, keepdims: bool) -> Tile:
    tile = _check_tile(x, name)
    computable(name, tile.dtype)
    axes, dtype = axes_of(axis, tile.ndim, name), sum_dtype(tile.dtype)
    wide = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    folded = getattr(np, name)(convert(tile._array, wide), axis=axes, keepdims=keepdims, dtype=wide)
    return Tile(convert(np.asarray(folded), dtype))


@tile_op("sum", host="numpy.sum")
def sum_(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tile:
    """The sum of the elements along `axis`.

    In which order elements are added is not said. The operator `+` may add sums of float32 and float64 to what a loop adds up in
    another order, too: `total = total * s + tk.sum(p, 1)` may add up parts of each row, and these behind the loop. `tk.add` never
    does.

    Args:
        x: a tile; of bools it counts those that are true. Integers of fewer than 32 bits give int32 or uint32.
        axis: the dimension or dimensions to fold, known when the kernel is compiled; all of them by default, which gives a tile
            of shape `()`.
        keepdims: whether these dimensions stay, with an extent of 1.

    Raises:
        CompileError: there is no such dimension, or nothing is calculated in the tile's dtype.

    Examples:
        >>> @tk.kernel
        ... def row_sums(y: tk.Out, x: tk.In):
        ...     y.store(tk.sum(tk.load(x, (tk.bid(0), 0), (2, 4)), axis=1))
        >>> x = api.arange(16, dtype=tk.float32).reshape(4, 4).sync()
        >>> row_sums(api.zeros(4).partition(2), x).out().sync().numpy()
        array([ 6., 22., 38., 54.], dtype=float32)
    """
    return _fold("sum", x, axis, keepdims)


@tile_op("prod", host="numpy.prod")
def prod(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tile:
    """The product of the elements along `axis`.

    Args:
        x, axis, keepdims: as for `tk.sum`.

    Raises:
        CompileError: there is no such dimension, or nothing is calculated in the tile's dtype.

    Examples:
        >>> @tk.kernel
        ... def factorial(y: tk.Out):
        ...     y.store(tk.prod(tk.arange(4) + 1, keepdims=True))
        >>> factorial(api.zeros(1, tk.int32).partition(1)).out().sync().numpy()
        array([24], dtype=int32)
    """
    return _fold("prod", x, axis, keepdims)


def _extreme(name: str, x: Any, axis: Any, keepdims: bool, propagate_nan: bool) -> Tile:
    tile = _check_tile(x, name)
    problem = reducible(tile.dtype, name)
    if problem:
        raise CompileError(f"{name}: {problem}")
    by_choice: Any = {"max": (np.fmax, np.maximum), "min": (np.fmin, np.minimum)}[name][propagate_nan]
    wide = convert(tile._array, dtypes.float32) if tile.dtype == dtypes.bfloat16 else tile._array
    if not propagate_nan and dtypes.is_float(tile.dtype):
        wide = np.where(np.isnan(wide), wide.dtype.type(np.nan), wide)  # NumPy takes a signalling NaN for the end of the numbers
    extremes = by_choice.reduce(wide, axis=axes_of(axis, tile.ndim, name), keepdims=keepdims)
    return Tile(convert(np.asarray(extremes), tile.dtype))


@tile_op("max", host="numpy.max")
def max_(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """The largest element along `axis`.

    Args:
        x, axis, keepdims: as for `tk.sum`.
        propagate_nan: whether one NaN makes the result NaN, as in `numpy.max`; else NaNs count for nothing, as in `numpy.fmax`
            and in cuTile Python.

    Raises:
        CompileError: there is no such dimension, or the tile's dtype has no order.

    Examples:
        >>> @tk.kernel
        ... def largest(y: tk.Out, x: tk.In):
        ...     y.store(tk.max(tk.load(x, tk.bid(0), 4), keepdims=True))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> largest(api.zeros(2, tk.int32).partition(1), x).out().sync().numpy()
        array([4, 9], dtype=int32)
    """
    return _extreme("max", x, axis, keepdims, propagate_nan)


@tile_op("min", host="numpy.min")
def min_(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """The smallest element along `axis`.

    Args:
        x, axis, keepdims, propagate_nan: as for `tk.max`.

    Raises:
        CompileError: there is no such dimension, or the tile's dtype has no order.

    Examples:
        >>> @tk.kernel
        ... def smallest(y: tk.Out, x: tk.In):
        ...     y.store(tk.min(tk.load(x, tk.bid(0), 4), keepdims=True))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> smallest(api.zeros(2, tk.int32).partition(1), x).out().sync().numpy()
        array([1, 2], dtype=int32)
    """
    return _extreme("min", x, axis, keepdims, propagate_nan)


def _position(name: str, x: Any, axis: Any, keepdims: bool, propagate_nan: bool) -> Tile:
    tile = _check_tile(x, name)
    problem = reducible(tile.dtype, name)
    if problem:
        raise CompileError(f"{name}: {problem}")
    if isinstance(axis, tuple):
        raise CompileError(f"{name}: the axis is an int, or None for the position among all elements, not {axis!r}")
    along = None if axis is None else axes_of(axis, tile.ndim, name)[0]
    array = convert(tile._array, dtypes.float32) if tile.dtype == dtypes.bfloat16 else tile._array
    if not propagate_nan and dtypes.is_float(tile.dtype):
        # NaNs are worse than the worst number; where there is nothing else, the first of them.
        worst = np.where(np.isnan(array), -np.inf if name == "argmax" else np.inf, array)
        numbers = np.where(np.isnan(array), 2, np.where(worst == getattr(np, name[3:])(worst, axis=along, keepdims=True), 0, 1))
        return Tile(np.asarray(np.argmin(numbers, axis=along, keepdims=keepdims)).astype(np.int32))
    return Tile(np.asarray(getattr(np, name)(array, axis=along, keepdims=keepdims)).astype(np.int32))


@tile_op("argmax", host="numpy.argmax")
def argmax(x: Tile, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """The index of the largest element along `axis`, an int32; of the first if there are several.

    Args:
        x: a tile.
        axis: the dimension; None for the index among all elements in row-major order.
        keepdims: as for `tk.sum`.
        propagate_nan: whether the first NaN wins, as in `numpy.argmax`; else NaNs lose against every number.

    Raises:
        CompileError: there is no such dimension, or the tile's dtype has no order.

    Examples:
        >>> @tk.kernel
        ... def winner(y: tk.Out, x: tk.In):
        ...     y.store(tk.argmax(tk.load(x, tk.bid(0), 4), keepdims=True))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> winner(api.zeros(2, tk.int32).partition(1), x).out().sync().numpy()
        array([2, 1], dtype=int32)
    """
    return _position("argmax", x, axis, keepdims, propagate_nan)


@tile_op("argmin", host="numpy.argmin")
def argmin(x: Tile, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
    """The index of the smallest element along `axis`, an int32; of the first if there are several.

    Args:
        x, axis, keepdims, propagate_nan: as for `tk.argmax`.

    Raises:
        CompileError: there is no such dimension, or the tile's dtype has no order.

    Examples:
        >>> @tk.kernel
        ... def loser(y: tk.Out, x: tk.In):
        ...     y.store(tk.argmin(tk.load(x, tk.bid(0), 4), keepdims=True))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> loser(api.zeros(2, tk.int32).partition(1), x).out().sync().numpy()
        array([1, 2], dtype=int32)
    """
    return _position("argmin", x, axis, keepdims, propagate_nan)


def _truth(name: str, function: Callable[..., Any], x: Any, axis: Any, keepdims: bool) -> Tile:
    tile = _check_tile(x, name)
    return Tile(np.asarray(function(tile._array != 0, axis=axes_of(axis, tile.ndim, name), keepdims=keepdims)))


@tile_op("any", host="numpy.any")
def any_(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tile:
    """Whether an element along `axis` is true, or not zero.

    Args:
        x, axis, keepdims: as for `tk.sum`.

    Raises:
        CompileError: there is no such dimension.

    Examples:
        >>> @tk.kernel
        ... def has_zero(y: tk.Out, x: tk.In):
        ...     y.store(tk.any(tk.load(x, tk.bid(0), 4) == 0, keepdims=True))
        >>> op = has_zero(api.zeros(2, tk.bool_).partition(1), api.arange(8)).first()
        >>> op.unpartition().to_host().sync()
        array([ True, False])
    """
    return _truth("any", np.any, x, axis, keepdims)


@tile_op("all", host="numpy.all")
def all_(x: Tile, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Tile:
    """Whether all elements along `axis` are true, or not zero.

    Args:
        x, axis, keepdims: as for `tk.sum`.

    Raises:
        CompileError: there is no such dimension.

    Examples:
        >>> @tk.kernel
        ... def no_zero(y: tk.Out, x: tk.In):
        ...     y.store(tk.all(tk.load(x, tk.bid(0), 4), keepdims=True))
        >>> op = no_zero(api.zeros(2, tk.bool_).partition(1), api.arange(8)).first()
        >>> op.unpartition().to_host().sync()
        array([False,  True])
    """
    return _truth("all", np.all, x, axis, keepdims)


@tile_op("reduce", host="functools.reduce")
def reduce(
    x: Tile | tuple[Tile, ...],
    axis: int | tuple[int, ...] | None,
    func: Callable[..., Any],
    identity: Any = None,
    *,
    keepdims: bool = False,
) -> Any:
    """Fold the elements along `axis` by a function of one's own.

    Args:
        x: a tile, or a tuple of tiles whose shapes broadcast and whose dtypes may differ; their elements are folded together.
        axis: as for `tk.sum`.
        func: a `@tk.function`, a plain function, a lambda, or one of Python's `operator` functions: of two tiles of shape `()` to
            another. For a tuple of N tiles it takes the N of one place, then the N of another, and returns a tuple of N. It must
            be associative and commutative: in which order elements meet is not said.
        identity: for cuTile Python's sake: a constant (or a tuple of them) that `func` leaves other values as they are with.
            Nothing here needs one, and none is used.
        keepdims: as for `tk.sum`.

    Returns:
        A tile of the dtype of `x`, or a tuple of them.

    Raises:
        CompileError: there is no such dimension, or `func` gives other dtypes than it gets.

    Examples:
        >>> @tk.function
        ... def longer(x0, y0, x1, y1):
        ...     first = x0 * x0 + y0 * y0 >= x1 * x1 + y1 * y1
        ...     return tk.where(first, x0, x1), tk.where(first, y0, y1)
        >>> @tk.kernel
        ... def longest(y: tk.Out, a: tk.In, b: tk.In):
        ...     u, v = tk.reduce((tk.load(a, 0, 4), tk.load(b, 0, 4)), 0, longer)
        ...     y.store(tk.cat((u[None], v[None]), 0))
        >>> a, b = api.arange(4).sync(), api.full(4, 2, tk.int64).sync()
        >>> longest(api.zeros(2, tk.int64).partition(2), a, b).out().sync().numpy()
        array([3, 2])
    """
    columns, alone = columns_of(x, "reduce")
    rank = columns[0].ndim
    axes = axes_of(axis, rank, "reduce")
    known_identity(identity, "reduce")
    check_function(func, len(columns), "reduce")
    kept = [d for d in range(rank) if d not in axes]
    rows = [column.transpose(*axes, *kept).reshape(-1, *(column.shape[d] for d in kept)) for column in columns]
    while rows[0].shape[0] > 1:
        rows = list(combined(func, [row[half::2] for half in (0, 1) for row in rows], "reduce"))
    shape = tuple(1 if d in axes else n for d, n in enumerate(columns[0].shape))
    folded = [np.ascontiguousarray(row[0]).reshape(shape if keepdims else row[0].shape) for row in rows]
    return first_of([Tile(array) for array in folded], alone)
