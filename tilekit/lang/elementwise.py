"""Operations on each element alone. The operators + - * / and the comparisons are `Tile`'s own (`lang.tile`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Scalar, Tile, operands

__all__ = ["astype", "exp", "maximum", "minimum", "sqrt", "where"]


@tile_op("where", host="numpy.where")
def where(condition: Tile, x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Choose by element: `x` where `condition` holds, else `y`.

    Args:
        condition: a bool tile.
        x, y: tiles of its shape, or scalars; they meet in one dtype. Two scalars give float32, int32 or bool.

    Raises:
        CompileError: `condition` is no bool tile, or the shapes differ.

    Examples:
        >>> @tk.kernel
        ... def relu(y: tk.InOut):
        ...     t = y.load()
        ...     y.store(tk.where(t > 0, t, 0.0))
        >>> x = api.from_host(np.array([-1, 2, -3, 4], np.float32)).sync()
        >>> relu(x.partition(4)).first().unpartition().to_host().sync()
        array([0., 2., 0., 4.], dtype=float32)
    """
    if not isinstance(condition, Tile) or condition.dtype != dtypes.bool_:
        raise CompileError("where: the condition is a bool tile, such as the result of a comparison")
    (_, a, b), _ = operands("where", condition, x, y)
    return Tile(np.where(condition._array, a, b))


def _extremum(name: str, x: Any, y: Any) -> Tile:
    (a, b), dtype = operands(name, x, y)
    return Tile(getattr(np, name)(a, b).astype(dtype, copy=False))


@tile_op("minimum", host="numpy.minimum")
def minimum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The smaller of two elements; NaN if either is NaN, as NumPy's.

    Args:
        x, y: tiles of one shape, or a tile and a scalar.

    Raises:
        CompileError: the shapes differ, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def clip(y: tk.InOut):
        ...     y.store(tk.minimum(y.load(), 2.0))
        >>> clip(api.arange(4, dtype=tk.float32).partition(4)).first().unpartition().to_host().sync()
        array([0., 1., 2., 2.], dtype=float32)
    """
    return _extremum("minimum", x, y)


@tile_op("maximum", host="numpy.maximum")
def maximum(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The larger of two elements; NaN if either is NaN, as NumPy's.

    Args:
        x, y: tiles of one shape, or a tile and a scalar.

    Raises:
        CompileError: the shapes differ, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def clip(y: tk.InOut):
        ...     y.store(tk.maximum(y.load(), 2.0))
        >>> clip(api.arange(4, dtype=tk.float32).partition(4)).first().unpartition().to_host().sync()
        array([2., 2., 2., 3.], dtype=float32)
    """
    return _extremum("maximum", x, y)


def _floating(name: str, x: Any) -> Tile:
    if not isinstance(x, Tile):
        raise CompileError(f"{name}: needs a tile, not {type(x).__name__}; for a scalar use math.{name}")
    if not dtypes.is_float(x.dtype):
        raise CompileError(f"{name}: needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
    return Tile(getattr(np, name)(x._array).astype(x.dtype, copy=False))


@tile_op("exp", host="numpy.exp")
def exp(x: Tile) -> Tile:
    """e to the power of each element (float16 and bfloat16 are computed in float32; at most 2 units in the last place off).

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def grow(y: tk.InOut):
        ...     y.store(tk.exp(y.load()))
        >>> grow(api.zeros(2).partition(2)).first().unpartition().to_host().sync()
        array([1., 1.], dtype=float32)
    """
    return _floating("exp", x)


@tile_op("sqrt", host="numpy.sqrt")
def sqrt(x: Tile) -> Tile:
    """The square root of each element, correctly rounded; NaN for negative ones.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def root(y: tk.InOut):
        ...     y.store(tk.sqrt(y.load()))
        >>> root(api.full(2, 9.0).partition(2)).first().unpartition().to_host().sync()
        array([3., 3.], dtype=float32)
    """
    return _floating("sqrt", x)


@tile_op("astype", host="Tensor.astype")
def astype(x: Tile, dtype: Any) -> Tile:
    """Convert each element; `t.astype(dtype)` is the same.

    Floats lose their fraction on the way to integers, integers wrap, and a float outside the range of an integer type gives a
    value that depends on the device. Nonzero becomes True.

    Args:
        x: a tile.
        dtype: the new element type.

    Raises:
        CompileError: `x` is no tile, or `dtype` none of tilekit's.

    Examples:
        >>> @tk.kernel
        ... def cut(y: tk.Out, x: tk.In):
        ...     y.store(tk.astype(tk.load_tile_like(x, y), tk.int32))
        >>> cut(api.zeros(2, tk.int32).partition(2), api.full(2, 1.75)).first().unpartition().to_host().sync()
        array([1, 1], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"astype: needs a tile, not {type(x).__name__}")
    return x.astype(dtype)
