"""Operations that put the elements of a tile in order along a dimension.

NaNs count as larger than all numbers: they come last in ascending order, as NumPy's, and first in descending order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.shape import axis_of
from tilekit.lang.size import SORTED_A_THREAD, check_size
from tilekit.lang.tile import Tile, computable, convert, what_is

__all__ = ["argsort", "sort", "topk", "topk_problem"]


def _operand(x: Any, axis: Any, what: str) -> tuple[Any, int]:
    """The elements in a dtype that NumPy can order, and the dimension."""
    if not isinstance(x, Tile):
        raise CompileError(f"{what}: needs a tile, not {what_is(x)}")
    computable(what, x.dtype)
    along = axis_of(axis, x.ndim, what)
    if what != "topk":
        check_size(x.shape, what, SORTED_A_THREAD)
    return convert(x._array, dtypes.float32) if x.dtype == dtypes.bfloat16 else x._array, along


def _order(array: Any, axis: int, descending: bool) -> Any:
    """The places of the elements in order; of equal ones the first comes first."""
    if not descending:
        return np.argsort(array, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(array, axis), axis=axis, kind="stable")
    return np.flip(array.shape[axis] - 1 - backwards, axis)


@tile_op("sort", host="numpy.sort")
def sort(x: Tile, axis: int = -1, *, descending: bool = False) -> Tile:
    """The elements in order along `axis`.

    Args:
        x: a tile.
        axis: the dimension, known when the kernel is compiled; the last by default.
        descending: whether the largest comes first.

    Raises:
        CompileError: there is no such dimension, or elements of the tile's dtype are not compared.

    Examples:
        >>> @tk.kernel
        ... def ordered(y: tk.InOut):
        ...     y.store(tk.sort(y.load()))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> ordered(x.partition(8)).out().sync().numpy()
        array([1, 1, 2, 3, 4, 5, 6, 9], dtype=int32)
    """
    array, along = _operand(x, axis, "sort")
    ordered = np.sort(array, axis=along)
    return Tile(convert(np.flip(ordered, along) if descending else ordered, x.dtype))


@tile_op("argsort", host="numpy.argsort")
def argsort(x: Tile, axis: int = -1, *, descending: bool = False) -> Tile:
    """The places along `axis` of the elements in order; of equal ones the first comes first, also in descending order.

    Args:
        x, axis, descending: as for `tk.sort`.

    Returns:
        An int32 tile of the shape of `x`.

    Raises:
        CompileError: there is no such dimension, or elements of the tile's dtype are not compared.

    Examples:
        >>> @tk.kernel
        ... def places(y: tk.Out, x: tk.In):
        ...     y.store(tk.argsort(tk.load_tile_like(x, y)))
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> places(api.zeros(8, tk.int32).partition(8), x).out().sync().numpy()
        array([1, 3, 6, 0, 2, 4, 7, 5], dtype=int32)
    """
    array, along = _operand(x, axis, "argsort")
    return Tile(_order(array, along, descending).astype(dtypes.int32))


def topk_problem(k: Any, extent: int) -> str | None:
    """Why so many elements cannot be chosen of `extent`; None if they can."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        return f"k is an int that is known when the kernel is compiled, not {k!r}"
    if k < 1 or k & (k - 1):
        return f"k is a power of two, as every extent of a tile; {k} is not: take the next one, and of the result what you need"
    return f"k is {k}, of {extent} elements along the axis" if k > extent else None


@tile_op("topk", host="numpy.argpartition")
def topk(x: Tile, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Tile, Tile]:
    """The `k` largest elements along `axis`, in descending order, and their places; of equal ones the first comes first.

    Args:
        x: a tile.
        k: how many, a power of two known when the kernel is compiled, since it is an extent of the results.
        axis: the dimension, known when the kernel is compiled; the last by default.
        largest: if False, the `k` smallest, in ascending order.

    Returns:
        The values, a tile of the dtype of `x` (-0.0 becomes 0.0), and the places, an int32 tile. `k` is their extent there.

    Raises:
        CompileError: there is no such dimension, `k` is no power of two or too large, or elements of the tile's dtype are not
            compared.

    Examples:
        >>> @tk.kernel
        ... def best(y: tk.Out, at: tk.Out, x: tk.In):
        ...     values, places = tk.topk(tk.load(x, 0, 8), 2)
        ...     y.store(values)
        ...     at.store(places)
        >>> x = api.from_host(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)).sync()
        >>> y, at = (api.zeros(2, tk.int32).partition(2) for _ in range(2))
        >>> y, at, _ = best(y, at, x).sync()
        >>> y.unpartition().to_host().sync(), at.unpartition().to_host().sync()
        (array([9, 6], dtype=int32), array([5, 7], dtype=int32))
    """
    array, along = _operand(x, axis, "topk")
    problem = topk_problem(k, array.shape[along])
    if problem:
        raise CompileError(f"topk: {problem}")
    order = np.take(_order(array, along, largest), np.arange(k), axis=along)
    values = np.take_along_axis(array, order, axis=along)
    if dtypes.is_float(x.dtype):
        values = values + values.dtype.type(0)
    return Tile(convert(values, x.dtype)), Tile(order.astype(dtypes.int32))
