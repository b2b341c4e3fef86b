"""Tiles made of nothing: constants, ranges, and tables that stand in the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Scalar, Tile, check_shape, computable, convert, scalar_kind, what_is

__all__ = ["arange", "astile", "full", "ones", "zeros"]


def _dtype(spec: Any, what: str) -> dtypes.DType:
    try:
        return dtypes.as_dtype(spec)
    except TypeError as error:
        raise CompileError(f"{what}: {error}") from None


@tile_op("full", host="tilekit.api.full")
def full(shape: int | tuple[int, ...], value: Scalar, dtype: Any = None) -> Tile:
    """A tile with every element equal to `value`.

    Args:
        shape: the tile's extents, powers of two known when the kernel is compiled.
        value: a scalar; it may be computed in the kernel.
        dtype: the element type; by default float32, int32 or bool, after the kind of `value`.

    Raises:
        CompileError: the shape is not a compile-time power of two, or `value` is no scalar.

    Examples:
        >>> @tk.kernel
        ... def constant(y: tk.Out, a):
        ...     y.store(tk.full(y.tile_shape, a, tk.float32))
        >>> constant(api.zeros(4).partition(4), 2.5).out().sync().numpy()
        array([2.5, 2.5, 2.5, 2.5], dtype=float32)
    """
    extents, kind = check_shape(shape, "full"), scalar_kind(value)
    if kind is None:
        raise CompileError(f"full: the value is a scalar, not {what_is(value)}")
    chosen = _dtype(dtype, "full") if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind)
    return Tile(np.full(extents, convert(value, chosen)))


@tile_op("zeros", host="tilekit.api.zeros")
def zeros(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> Tile:
    """A tile of zeros.

    Args:
        shape: the tile's extents, powers of two known when the kernel is compiled.
        dtype: the element type.

    Raises:
        CompileError: the shape is not a compile-time power of two.

    Examples:
        >>> @tk.kernel
        ... def clear(y: tk.Out):
        ...     y.store(tk.zeros(y.tile_shape))
        >>> clear(api.ones(4).partition(2)).out().sync().numpy()
        array([0., 0., 0., 0.], dtype=float32)
    """
    return Tile(np.zeros(check_shape(shape, "zeros"), _dtype(dtype, "zeros")))


@tile_op("ones", host="tilekit.api.ones")
def ones(shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> Tile:
    """A tile of ones.

    Args:
        shape: the tile's extents, powers of two known when the kernel is compiled.
        dtype: the element type.

    Raises:
        CompileError: the shape is not a compile-time power of two.

    Examples:
        >>> @tk.kernel
        ... def fill(y: tk.Out):
        ...     y.store(tk.ones(y.tile_shape))
        >>> fill(api.zeros(4).partition(2)).out().sync().numpy()
        array([1., 1., 1., 1.], dtype=float32)
    """
    return Tile(np.ones(check_shape(shape, "ones"), _dtype(dtype, "ones")))


@tile_op("arange", host="tilekit.api.arange")
def arange(size: int, *, dtype: Any = dtypes.int32, start: Scalar = 0, step: Scalar = 1) -> Tile:
    """The tile `start, start + step, ...` of rank 1.

    Args:
        size: the number of elements, a power of two known when the kernel is compiled.
        dtype: the element type, in which the elements are computed too.
        start: the first element; it may be computed in the kernel.
        step: the difference between neighbours; likewise.

    Raises:
        CompileError: `size` is not a compile-time power of two, or `dtype` is bool, or does not hold `start` or `step`, where
            that is known: on a GPU that is a constant, on the CPU device every scalar.

    Examples:
        >>> @tk.kernel
        ... def number(y: tk.Out):
        ...     y.store(tk.arange(4, start=4 * tk.bid(0)))
        >>> number(api.zeros(8, tk.int32).partition(4)).out().sync().numpy()
        array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    (extent,) = check_shape((size,), "arange")
    chosen = _dtype(dtype, "arange")
    if chosen == dtypes.bool_:
        raise CompileError("arange: a range of bool does not exist; compare a range of integers instead")
    computable("arange", chosen)
    for name, bound in (("start", start), ("step", step)):
        if problem := outside(name, bound, chosen):
            raise CompileError(f"arange: {problem}")
    index = np.arange(extent).astype(chosen)
    return Tile(convert(convert(start, chosen) + index * convert(step, chosen), chosen))


def outside(name: str, bound: Any, dtype: dtypes.DType) -> str | None:
    """Why `start` or `step` cannot be that of a range of `dtype`; None if it can, or is not known yet."""
    if scalar_kind(bound) is not int or dtypes.misfit(dtype, bound) is None:
        return None
    return f"{name} is {bound}, which does not fit {dtype.name}; give the range a dtype that holds it, such as dtype=tk.int64"


def uneven(shape: tuple[int, ...]) -> str:
    """Why a nested tuple of this shape, as far as it has one, makes no tile."""
    return f"the tuples of one level are of one length, a power of two; here they are not, below {shape}"


def _nested_shape(value: Any) -> tuple[int, ...]:
    """The lengths of nested tuples of scalars, level by level."""
    if not isinstance(value, tuple):
        if scalar_kind(value) is None:
            raise CompileError(f"astile: elements are scalars, not {what_is(value)}")
        return ()
    parts = {_nested_shape(part) for part in value}
    if len(parts) != 1 or len(value) & (len(value) - 1):
        raise CompileError(f"astile: {uneven((len(value),))}")
    return (len(value), *parts.pop())


def _kinds(value: Any) -> set[type | None]:
    return set().union(*map(_kinds, value)) if isinstance(value, tuple) else {scalar_kind(value)}


@tile_op("astile", host="numpy.array")
def astile(value: Scalar | tuple[Any, ...], *, dtype: Any = None) -> Tile:
    """A tile of the elements that are written down: a small table. A scalar makes a tile of shape `()`.

    Args:
        value: scalars in a tuple, or in tuples of tuples; they may be computed in the kernel. A GPU finds each element by
            choosing among all, so that this is for some tens of them: a larger table is an argument of the kernel.
        dtype: the element type; by default float32, int32 or bool, after the kinds of the scalars.

    Raises:
        CompileError: the tuples differ in length, a length is no power of two, or an element is no scalar.

    Examples:
        >>> @tk.kernel
        ... def table(y: tk.Out):
        ...     y.store(tk.astile(((1, 2), (3, 4))))
        >>> table(api.zeros((2, 2), tk.int32).partition((2, 2))).out().sync().numpy()
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    extents, kinds = _nested_shape(value), _kinds(value)
    kind = next(k for k in (float, int, bool) if k in kinds)
    chosen = _dtype(dtype, "astile") if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind)
    flat: list[Any] = [value]
    for _ in extents:
        flat = [element for part in flat for element in part]
    return Tile(np.array([convert(element, chosen) for element in flat]).reshape(extents))
