"""Operations on each element alone. Python's operators are `Tile`'s own (`lang.tile`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import rounding
from tilekit.lang.floats import floating, floating_pair
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import NO_ARITHMETIC, Scalar, Tile, computable, operands, what_is

__all__ = [
    "astype", "bitcast", "ceil", "clip", "copysign", "floor", "maximum", "minimum", "round_", "sign", "trunc", "where",
]  # fmt: skip

NO_POLICY = "propagate_nan is True or False, known when the kernel is compiled"


@tile_op("where", host="numpy.where")
def where(condition: Tile, x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """Choose by element: `x` where `condition` holds, else `y`.

    Args:
        condition: a bool tile.
        x, y: tiles of its shape, or scalars; they meet in one dtype. Two scalars give float32, int32 or bool.

    A mask that is added, `t + tk.where(condition, 0.0, float("-inf"))`, may choose instead, in kernels that multiply: that is
    another number only where `t` is infinite or NaN and the condition does not hold, which is then -inf. Of a finite number that
    is added, only the sign of zeros can differ, where the condition holds.

    Raises:
        CompileError: `condition` is no bool tile, or the shapes differ.

    Examples:
        >>> @tk.kernel
        ... def relu(y: tk.InOut):
        ...     t = y.load()
        ...     y.store(tk.where(t > 0, t, 0.0))
        >>> x = api.from_host(np.array([-1, 2, -3, 4], np.float32)).sync()
        >>> relu(x.partition(4)).out().sync().numpy()
        array([0., 2., 0., 4.], dtype=float32)
    """
    if not isinstance(condition, Tile) or condition.dtype != dtypes.bool_:
        raise CompileError("where: the condition is a bool tile, such as the result of a comparison")
    (_, a, b), _ = operands("where", condition, x, y)
    return Tile(np.where(condition._array, a, b))


def _extremum(name: str, x: Any, y: Any, propagate_nan: Any, flush_to_zero: Any) -> Tile:
    (a, b), dtype = operands(name, x, y)
    problem = NO_POLICY if not isinstance(propagate_nan, bool) else rounding.problem((), None, flush_to_zero, dtype)
    if problem:
        raise CompileError(f"{name}: {problem}")
    a, b = (rounding.flush(array, flush_to_zero) for array in (a, b))
    function = name if propagate_nan else {"minimum": "fmin", "maximum": "fmax"}[name]
    return Tile(np.asarray(getattr(np, function)(a, b)).astype(dtype, copy=False))


@tile_op("minimum", host="numpy.minimum")
def minimum(x: Tile | Scalar, y: Tile | Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
    """The smaller of two elements; NaN if either is NaN, as NumPy's.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        propagate_nan: False takes the other element where one is NaN (cuTile Python's default).
        flush_to_zero: for float32: subnormal operands count as zero.

    Raises:
        CompileError: the shapes do not broadcast, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def clip(y: tk.InOut):
        ...     y.store(tk.minimum(y.load(), 2.0))
        >>> clip(api.arange(4, dtype=tk.float32).partition(4)).out().sync().numpy()
        array([0., 1., 2., 2.], dtype=float32)
    """
    return _extremum("minimum", x, y, propagate_nan, flush_to_zero)


@tile_op("maximum", host="numpy.maximum")
def maximum(x: Tile | Scalar, y: Tile | Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
    """The larger of two elements; NaN if either is NaN, as NumPy's.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        propagate_nan: False takes the other element where one is NaN (cuTile Python's default).
        flush_to_zero: for float32: subnormal operands count as zero.

    Raises:
        CompileError: the shapes do not broadcast, or neither is a tile.

    Examples:
        >>> @tk.kernel
        ... def clip(y: tk.InOut):
        ...     y.store(tk.maximum(y.load(), 2.0))
        >>> clip(api.arange(4, dtype=tk.float32).partition(4)).out().sync().numpy()
        array([2., 2., 2., 3.], dtype=float32)
    """
    return _extremum("maximum", x, y, propagate_nan, flush_to_zero)


@tile_op("clip", host="numpy.clip")
def clip(x: Tile | Scalar, lo: Tile | Scalar, hi: Tile | Scalar) -> Tile:
    """Elements below `lo` replaced by it, and then those above `hi`; NaN if one of the three is.

    Args:
        x, lo, hi: tiles whose shapes broadcast, and scalars; one at least is a tile.

    Raises:
        CompileError: the shapes do not broadcast, or none is a tile.

    Examples:
        >>> @tk.kernel
        ... def limit(y: tk.Out):
        ...     y.store(tk.clip(tk.arange(8), 2, 5))
        >>> limit(api.zeros(8, tk.int32).partition(8)).out().sync().numpy()
        array([2, 2, 2, 3, 4, 5, 5, 5], dtype=int32)
    """
    (a, low, high), dtype = operands("clip", x, lo, hi)
    return Tile(np.asarray(np.minimum(np.maximum(a, low), high)).astype(dtype, copy=False))


@tile_op("sign", host="numpy.sign")
def sign(x: Tile) -> Tile:
    """1, 0 or -1, as each element is above, at or below zero; NaN for NaN.

    Args:
        x: a tile, not of bool.

    Raises:
        CompileError: `x` is no tile, or of bool.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.Out):
        ...     y.store(tk.sign(tk.arange(4, start=-2)))
        >>> compute(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([-1, -1,  0,  1], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"sign: needs a tile, not {what_is(x)}")
    if x.dtype == dtypes.bool_:
        raise CompileError(f"sign: {NO_ARITHMETIC}")
    computable("sign", x.dtype)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    a = x._array
    negative = -one if dtypes.is_float(x.dtype) or x.dtype.kind == "i" else zero
    return Tile(np.where(a > zero, one, np.where(a < zero, negative, np.where(a == zero, zero, a))).astype(x.dtype, copy=False))


@tile_op("copysign", host="numpy.copysign")
def copysign(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The magnitude of `x` with the sign of `y`, that of a zero too.

    Args:
        x, y: floating-point tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are integers.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.copysign(2.0, y.load()))
        >>> y = api.from_host(np.array([-0.0, 0.0], np.float32)).sync()
        >>> compute(y.partition(2)).out().sync().numpy()
        array([-2.,  2.], dtype=float32)
    """
    return floating_pair("copysign", x, y, np.copysign)


@tile_op("floor", host="numpy.floor")
def floor(x: Tile) -> Tile:
    """The largest whole number that is not above each element, as a float.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.floor(y.load()))
        >>> compute(api.full(2, -1.5).partition(2)).out().sync().numpy()
        array([-2., -2.], dtype=float32)
    """
    return floating("floor", x, np.floor)


@tile_op("ceil", host="numpy.ceil")
def ceil(x: Tile) -> Tile:
    """The smallest whole number that is not below each element, as a float.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.ceil(y.load()))
        >>> compute(api.full(2, 1.5).partition(2)).out().sync().numpy()
        array([2., 2.], dtype=float32)
    """
    return floating("ceil", x, np.ceil)


@tile_op("trunc", host="numpy.trunc")
def trunc(x: Tile) -> Tile:
    """Each element without its fraction, as a float.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.trunc(y.load()))
        >>> compute(api.full(2, -1.5).partition(2)).out().sync().numpy()
        array([-1., -1.], dtype=float32)
    """
    return floating("trunc", x, np.trunc)


@tile_op("round", host="numpy.rint")
def round_(x: Tile) -> Tile:
    """The whole number nearest to each element, as a float; the even one of two that are as near, as NumPy's and Python's.

    Args:
        x: a floating-point tile.

    Raises:
        CompileError: `x` is no floating-point tile.

    Examples:
        >>> @tk.kernel
        ... def compute(y: tk.InOut):
        ...     y.store(tk.round(y.load()))
        >>> compute(api.full(2, 2.5).partition(2)).out().sync().numpy()
        array([2., 2.], dtype=float32)
    """
    return floating("round", x, np.rint)


@tile_op("astype", host="Tensor.astype")
def astype(x: Tile, dtype: Any, *, rounding_mode: rounding.RoundingMode | str | None = None) -> Tile:
    """Convert each element; `t.astype(dtype)` is the same.

    Floats lose their fraction on the way to integers, integers wrap, and a float outside the range of an integer type gives a
    value that depends on the device. Nonzero becomes True.

    Args:
        x: a tile.
        dtype: the new element type.
        rounding_mode: from float to float `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`; not for 8-bit floats.

    Raises:
        CompileError: `x` is no tile, `dtype` none of tilekit's, or the two do not go with the rounding mode.

    Examples:
        >>> @tk.kernel
        ... def cut(y: tk.Out, x: tk.In):
        ...     y.store(tk.astype(tk.load_tile_like(x, y), tk.int32))
        >>> op = cut(api.zeros(2, tk.int32).partition(2), api.full(2, 1.75)).first()
        >>> op.unpartition().to_host().sync()
        array([1, 1], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"astype: needs a tile, not {what_is(x)}")
    return x.astype(dtype, rounding_mode=rounding_mode)


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
        >>> op = exponent(api.zeros(2, tk.int32).partition(2), api.full(2, 8.5)).first()
        >>> op.unpartition().to_host().sync()
        array([3, 3], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"bitcast: needs a tile, not {what_is(x)}")
    try:
        chosen = dtypes.as_dtype(dtype)
    except TypeError as error:
        raise CompileError(f"bitcast: {error}") from None
    problem = bitcast_problem(x.dtype, chosen)
    if problem:
        raise CompileError(f"bitcast: {problem}")
    return Tile(x._array.view(chosen))
