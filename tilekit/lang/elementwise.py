"""Operations on each element alone. Python's operators are `Tile`'s own (`lang.tile`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Scalar, Tile, computable, operands

__all__ = ["astype", "bitcast", "cos", "exp", "log", "maximum", "minimum", "mul", "mulhi", "sin", "sqrt", "where"]


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


@tile_op("mul", host="numpy.multiply")
def mul(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The product of two elements, rounded by itself.

    A GPU may compute `a * b + c` with one rounding (a fused multiply-add), and then gives other last bits than the CPU device;
    `tk.mul(a, b) + c` is rounded twice on every device. For integers it is `*`.

    Args:
        x, y: tiles of one shape, or a tile and a scalar.

    Raises:
        CompileError: the shapes differ, neither is a tile, or both are bool.

    Examples:
        >>> @tk.kernel
        ... def line(y: tk.Out):
        ...     y.store(tk.mul(tk.arange(4, dtype=tk.float32), 0.1) + 1.0)
        >>> line(api.zeros(4).partition(4)).first().unpartition().to_host().sync()
        array([1. , 1.1, 1.2, 1.3], dtype=float32)
    """
    (a, b), dtype = operands("mul", x, y)
    if dtype == dtypes.bool_:
        raise CompileError("mul: bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~")
    return Tile(np.multiply(a, b).astype(dtype, copy=False))


@tile_op("mulhi", host="int arithmetic: (x * y) >> 32")
def mulhi(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The upper half of the product of two integers: of 64 bits for `int32` and `uint32`, and so on. `x * y` is the lower half.

    Args:
        x, y: integer tiles of one shape, or an integer tile and an int.

    Raises:
        CompileError: the shapes differ, neither is a tile, or they are no integers.

    Examples:
        >>> @tk.kernel
        ... def scale(y: tk.InOut):
        ...     y.store(tk.mulhi(y.load(), 10))
        >>> x = api.from_host(np.array([0, 2**31, 2**32 - 1], np.uint32)).sync()
        >>> scale(x.partition(4)).first().unpartition().to_host().sync()
        array([0, 5, 9], dtype=uint32)
    """
    (a, b), dtype = operands("mulhi", x, y)
    if dtypes.is_float(dtype) or dtype == dtypes.bool_:
        raise CompileError(f"mulhi: needs integer tiles, not {dtype.name}")
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return Tile((a.astype(wide) * b.astype(wide) >> 8 * dtype.itemsize).astype(dtype))
    # The schoolbook product of two 64-bit numbers, in halves; then what the signs take away.
    m, n = a.astype(dtypes.uint64), b.astype(dtypes.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low, cross = (m & mask) * (n & mask), (m >> half) * (n & mask)
    middle = (m & mask) * (n >> half) + (cross & mask) + (low >> half)
    upper = (m >> half) * (n >> half) + (cross >> half) + (middle >> half)
    if dtype == dtypes.int64:
        upper = upper - np.where(a < 0, n, np.uint64(0)) - np.where(b < 0, m, np.uint64(0))
    return Tile(upper.astype(dtype))


def _floating(name: str, x: Any) -> Tile:
    if not isinstance(x, Tile):
        raise CompileError(f"{name}: needs a tile, not {type(x).__name__}; for a scalar use math.{name}")
    if not dtypes.is_float(x.dtype):
        raise CompileError(f"{name}: needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
    computable(name, x.dtype)
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


@tile_op("log", host="numpy.log")
def log(x: Tile) -> Tile:
    """The natural logarithm of each element; -inf for 0, NaN for negative ones.

    As NumPy's to 4 units in the last place; float16 and bfloat16 are computed in float32.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def shrink(y: tk.InOut):
        ...     y.store(tk.log(y.load()))
        >>> shrink(api.ones(2).partition(2)).first().unpartition().to_host().sync()
        array([0., 0.], dtype=float32)
    """
    return _floating("log", x)


@tile_op("cos", host="numpy.cos")
def cos(x: Tile) -> Tile:
    """The cosine of each element, in radians; NaN for infinities.

    As NumPy's to 4 units in the last place; float16 and bfloat16 are computed in float32.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def turn(y: tk.InOut):
        ...     y.store(tk.cos(y.load()))
        >>> turn(api.zeros(2).partition(2)).first().unpartition().to_host().sync()
        array([1., 1.], dtype=float32)
    """
    return _floating("cos", x)


@tile_op("sin", host="numpy.sin")
def sin(x: Tile) -> Tile:
    """The sine of each element, in radians; NaN for infinities.

    As NumPy's to 4 units in the last place; float16 and bfloat16 are computed in float32.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def turn(y: tk.InOut):
        ...     y.store(tk.sin(y.load()))
        >>> turn(api.zeros(2).partition(2)).first().unpartition().to_host().sync()
        array([0., 0.], dtype=float32)
    """
    return _floating("sin", x)


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


def bitcast_problem(source: dtypes.DType, target: dtypes.DType) -> str | None:
    """Why the bits of an element of `source` are none of `target`; None if they are."""
    if dtypes.bool_ in (source, target):
        return "bool has no bits of its own in registers; cast with .astype(tk.uint8)"
    if source.itemsize != target.itemsize:
        return f"an element of {source.name} has {8 * source.itemsize} bits, one of {target.name} {8 * target.itemsize}"
    return None


@tile_op("bitcast", host="ndarray.view")
def bitcast(x: Tile, dtype: Any) -> Tile:
    """The bits of each element, taken for another element type of the same size; as `ndarray.view` of NumPy.

    Args:
        x: a tile, not of bool.
        dtype: the new element type.

    Raises:
        CompileError: `x` is no tile, or the two types differ in size.

    Examples:
        >>> @tk.kernel
        ... def exponent(y: tk.Out, x: tk.In):
        ...     y.store((tk.bitcast(tk.load_tile_like(x, y), tk.int32) >> 23) - 127)
        >>> exponent(api.zeros(2, tk.int32).partition(2), api.full(2, 8.5)).first().unpartition().to_host().sync()
        array([3, 3], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"bitcast: needs a tile, not {type(x).__name__}")
    try:
        chosen = dtypes.as_dtype(dtype)
    except TypeError as error:
        raise CompileError(f"bitcast: {error}") from None
    problem = bitcast_problem(x.dtype, chosen)
    if problem:
        raise CompileError(f"bitcast: {problem}")
    return Tile(x._array.view(chosen))
