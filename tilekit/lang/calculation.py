"""Arithmetic as functions: Python's operators with a choice of rounding, and what has no operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import integral, rounding
from tilekit.lang.registry import tile_op
from tilekit.lang.rounding import RoundingMode
from tilekit.lang.tile import NO_ARITHMETIC, Scalar, Tile, absolute, arithmetic, convert, operands, scalar_kind, what_is
from tilekit.lang.tile import negative as negative_tile

__all__ = ["abs_", "add", "cdiv", "divmod_", "floordiv", "fma", "mod", "mul", "mulhi", "negative", "pow_", "sub", "truediv"]

Mode = RoundingMode | str | None

_USUAL: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": integral.product,
    "truediv": np.true_divide,
}


def _rounded(name: str, accepted: tuple[RoundingMode, ...], mode: Mode, flush_to_zero: bool, *values: Any) -> Tile:
    """One of the basic operations on tiles and scalars; of integers, without a mode, as they wrap."""
    arrays, dtype = operands(name, *values)
    if dtype == dtypes.bool_ and name != "truediv":
        raise CompileError(f"{name}: {NO_ARITHMETIC}")
    if name == "truediv":
        dtype = dtypes.quotient_dtype(dtype)
        arrays = [convert(array, dtype) for array in arrays]
    chosen = rounding.known_mode(name, mode)
    problem = rounding.problem(accepted, chosen, flush_to_zero, dtype)
    if problem:
        raise CompileError(f"{name}: {problem}")
    arrays = [rounding.flush(array, flush_to_zero) for array in arrays]
    by_default = chosen in (None, RoundingMode.FULL, RoundingMode.APPROX) or (name, chosen) == ("truediv", RoundingMode.RN)
    if name == "fma" and not dtypes.is_float(dtype):
        result = arrays[0] * arrays[1] + arrays[2]
    elif by_default and name != "fma":
        result = _USUAL[name](*arrays)
    else:
        result = rounding.rounded(name, chosen, dtype, *arrays)
    return Tile(rounding.flush(np.asarray(result).astype(dtype, copy=False), flush_to_zero))


@tile_op("add", host="numpy.add")
def add(x: Tile | Scalar, y: Tile | Scalar, *, rounding_mode: Mode = None, flush_to_zero: bool = False) -> Tile:
    """The sum of two elements, rounded by itself: never part of a fused multiply-add, as `+` may be on a GPU.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        rounding_mode: for floats `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or the dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def up(y: tk.InOut):
        ...     y.store(tk.add(y.load(), 2.0**-30, rounding_mode=tk.RoundingMode.RP))
        >>> up(api.ones(2).partition(2)).out().sync().numpy()
        array([1.0000001, 1.0000001], dtype=float32)
    """
    return _rounded("add", rounding.BASIC, rounding_mode, flush_to_zero, x, y)


@tile_op("sub", host="numpy.subtract")
def sub(x: Tile | Scalar, y: Tile | Scalar, *, rounding_mode: Mode = None, flush_to_zero: bool = False) -> Tile:
    """The difference of two elements, rounded by itself: never part of a fused multiply-add, as `-` may be on a GPU.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        rounding_mode: for floats `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or the dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def down(y: tk.InOut):
        ...     y.store(tk.sub(y.load(), 2.0**-30, rounding_mode=tk.RoundingMode.RZ))
        >>> down(api.ones(2).partition(2)).out().sync().numpy()
        array([0.99999994, 0.99999994], dtype=float32)
    """
    return _rounded("sub", rounding.BASIC, rounding_mode, flush_to_zero, x, y)


@tile_op("mul", host="numpy.multiply")
def mul(x: Tile | Scalar, y: Tile | Scalar, *, rounding_mode: Mode = None, flush_to_zero: bool = False) -> Tile:
    """The product of two elements, rounded by itself.

    A GPU may compute `a * b + c` with one rounding (a fused multiply-add), and then gives other last bits than the CPU device;
    `tk.mul(a, b) + c` is rounded twice on every device. For integers it is `*`.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        rounding_mode: for floats `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: the shapes differ, neither is a tile, both are bool, or the dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def line(y: tk.Out):
        ...     y.store(tk.mul(tk.arange(4, dtype=tk.float32), 0.1) + 1.0)
        >>> line(api.zeros(4).partition(4)).out().sync().numpy()
        array([1. , 1.1, 1.2, 1.3], dtype=float32)
    """
    return _rounded("mul", rounding.BASIC, rounding_mode, flush_to_zero, x, y)


@tile_op("truediv", host="numpy.true_divide")
def truediv(x: Tile | Scalar, y: Tile | Scalar, *, rounding_mode: Mode = None, flush_to_zero: bool = False) -> Tile:
    """The quotient of two elements, correctly rounded as `/` is; of integers as float32.

    A GPU spends about ten instructions on a correctly rounded quotient of float32. `tk.RoundingMode.FULL` takes five and is at
    most 2 units in the last place off; `APPROX` takes two or three, is as near where 2**-126 <= abs(y) <= 2**126, and gives 0
    for larger `y`.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.
        rounding_mode: `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`; for float32 also `FULL` or `APPROX`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or the dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def halve(y: tk.InOut):
        ...     y.store(tk.truediv(y.load(), 2.0, rounding_mode=tk.RoundingMode.APPROX))
        >>> halve(api.ones(2).partition(2)).out().sync().numpy()
        array([0.5, 0.5], dtype=float32)
    """
    return _rounded("truediv", rounding.DIVISION, rounding_mode, flush_to_zero, x, y)


@tile_op("fma", host="math.fma")
def fma(x: Tile | Scalar, y: Tile | Scalar, z: Tile | Scalar, *, rounding_mode: Mode = None, flush_to_zero: bool = False) -> Tile:
    """`x * y + z` of floats, rounded once; of integers, as they wrap.

    Args:
        x, y, z: tiles whose shapes broadcast, and scalars; one at least is a tile.
        rounding_mode: for floats `tk.RoundingMode.RN` (the default), `RZ`, `RM` or `RP`.
        flush_to_zero: for float32: subnormal operands and results count as zero.

    Raises:
        CompileError: the shapes do not broadcast, none is a tile, or the dtype does not go with the other arguments.

    Examples:
        >>> @tk.kernel
        ... def error(y: tk.Out, x: tk.In):
        ...     t = tk.load_tile_like(x, y)
        ...     y.store(tk.fma(t, t, -tk.mul(t, t)))
        >>> op = error(api.zeros(2).partition(2), api.full(2, 1.0 + 2.0**-23)).first()
        >>> op.unpartition().to_host().sync()
        array([1.4210855e-14, 1.4210855e-14], dtype=float32)
    """
    return _rounded("fma", rounding.BASIC, rounding_mode, flush_to_zero, x, y, z)


@tile_op("floordiv", host="numpy.floor_divide")
def floordiv(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x // y`, rounded down as Python and NumPy do, for negative numbers too.

    Integers divided by zero give 0, and the smallest integer divided by -1 is itself. Floats divided by zero give an infinity, or
    NaN for 0 / 0; `tk.mod` is exact for them, and the quotient goes with it.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or both are bool.

    Examples:
        >>> @tk.kernel
        ... def thirds(y: tk.Out):
        ...     y.store(tk.floordiv(tk.arange(4, start=-4), 3))
        >>> thirds(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([-2, -1, -1, -1], dtype=int32)
    """
    return arithmetic("floordiv", integral.floor_quotient, x, y)


@tile_op("mod", host="numpy.remainder")
def mod(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x % y`, with the sign of `y` as Python's and NumPy's; exact for floats.

    An integer modulo zero is 0, a float modulo zero NaN.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or both are bool.

    Examples:
        >>> @tk.kernel
        ... def wrap(y: tk.Out):
        ...     y.store(tk.mod(tk.arange(4, start=-4), 3))
        >>> wrap(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([2, 0, 1, 2], dtype=int32)
    """
    return arithmetic("mod", integral.remainder, x, y)


@tile_op("divmod", host="numpy.divmod")
def divmod_(x: Tile | Scalar, y: Tile | Scalar) -> tuple[Tile, Tile]:
    """`x // y` and `x % y`, as `tk.floordiv` and `tk.mod` give them; Python's own `divmod` does as well.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or both are bool.

    Examples:
        >>> @tk.kernel
        ... def split(y: tk.Out, z: tk.Out):
        ...     quotient, remainder = tk.divmod(tk.arange(4), 3)
        ...     y.store(quotient)
        ...     z.store(remainder)
        >>> y, z = (api.zeros(4, tk.int32).partition(4) for _ in range(2))
        >>> y, z = split(y, z).sync()
        >>> y.unpartition().to_host().sync(), z.unpartition().to_host().sync()
        (array([0, 0, 0, 1], dtype=int32), array([0, 1, 2, 0], dtype=int32))
    """
    return arithmetic("divmod", integral.floor_quotient, x, y), arithmetic("divmod", integral.remainder, x, y)


@tile_op("cdiv", host="-(-x // y)")
def cdiv(x: Tile | int, y: Tile | int) -> Any:
    """The quotient of integers, rounded up; 0 where the divisor is 0.

    Args:
        x, y: integer tiles whose shapes broadcast, or integers. Two integers give an integer, which is known when the kernel is
            compiled if both are.

    Raises:
        CompileError: the shapes do not broadcast, or they are no integers.

    Examples:
        >>> @tk.kernel
        ... def blocks(y: tk.Out):
        ...     y.store(tk.cdiv(tk.arange(4), 2))
        >>> blocks(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([0, 1, 1, 2], dtype=int32)
    """
    if scalar_kind(x) is int and scalar_kind(y) is int:
        return -(-int(x) // int(y)) if y else 0
    (a, b), dtype = operands("cdiv", x, y)
    if dtypes.is_float(dtype) or dtype == dtypes.bool_:
        raise CompileError(f"cdiv: needs integer tiles, not {dtype.name}")
    return Tile(integral.ceiling_quotient(a, b))


@tile_op("pow", host="numpy.power")
def pow_(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """`x ** y`.

    Floats as C's pow, at most 4 units in the last place off for float32 and 2 for float64; 16-bit floats are computed in float32.
    A power of 2, 3 or 4 that is known when the kernel is compiled is products. Integers wrap; to a negative power they give
    1 / x**-y with the fraction cut off, and 0 for x = 0.

    Args:
        x, y: tiles whose shapes broadcast, or a tile and a scalar.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or both are bool.

    Examples:
        >>> @tk.kernel
        ... def cubes(y: tk.Out):
        ...     y.store(tk.pow(tk.arange(4), 3))
        >>> cubes(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([ 0,  1,  8, 27], dtype=int32)
    """
    return arithmetic("pow", integral.power, x, y)


@tile_op("negative", host="numpy.negative")
def negative(x: Tile) -> Tile:
    """`-x`; integers wrap.

    Args:
        x: a tile, not of bool.

    Raises:
        CompileError: `x` is no tile, or of bool.

    Examples:
        >>> @tk.kernel
        ... def flip(y: tk.Out):
        ...     y.store(tk.negative(tk.arange(3 + 1)))
        >>> flip(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([ 0, -1, -2, -3], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"negative: needs a tile, not {what_is(x)}")
    return negative_tile("negative", x)


@tile_op("abs", host="numpy.abs")
def abs_(x: Tile) -> Tile:
    """The absolute value of each element; that of the smallest integer is itself. Python's own `abs` does as well.

    Args:
        x: a tile.

    Raises:
        CompileError: `x` is no tile.

    Examples:
        >>> @tk.kernel
        ... def size(y: tk.Out):
        ...     y.store(tk.abs(tk.arange(4, start=-2)))
        >>> size(api.zeros(4, tk.int32).partition(4)).out().sync().numpy()
        array([2, 1, 0, 1], dtype=int32)
    """
    if not isinstance(x, Tile):
        raise CompileError(f"abs: needs a tile, not {what_is(x)}")
    return absolute("abs", x)


@tile_op("mulhi", host="int arithmetic: (x * y) >> 32")
def mulhi(x: Tile | Scalar, y: Tile | Scalar) -> Tile:
    """The upper half of the product of two integers: of 64 bits for `int32` and `uint32`, and so on. `x * y` is the lower half.

    Args:
        x, y: integer tiles whose shapes broadcast, or an integer tile and an int.

    Raises:
        CompileError: the shapes do not broadcast, neither is a tile, or they are no integers.

    Examples:
        >>> @tk.kernel
        ... def scale(y: tk.InOut):
        ...     y.store(tk.mulhi(y.load(), 10))
        >>> x = api.from_host(np.array([0, 2**31, 2**32 - 1], np.uint32)).sync()
        >>> scale(x.partition(4)).out().sync().numpy()
        array([0, 5, 9], dtype=uint32)
    """
    (a, b), dtype = operands("mulhi", x, y)
    if dtypes.is_float(dtype) or dtype == dtypes.bool_:
        raise CompileError(f"mulhi: needs integer tiles, not {dtype.name}")
    return Tile(integral.high_product(a, b, dtype))
