"""What the operations on floating-point tiles share: their checks, and references better than a GPU's own results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang import rounding
from tilekit.lang.rounding import RoundingMode
from tilekit.lang.tile import Tile, computable, operands, what_is

__all__ = [
    "floating",
    "floating_pair",
    "floats",
    "precisely",
    "real_erf",
    "real_erfc",
    "real_rsqrt",
    "real_sigmoid",
    "real_softplus",
]


def floats(name: str, x: Any) -> Any:
    """The array of a floating-point tile in which there is arithmetic.

    Raises:
        CompileError: `x` is none.
    """
    if not isinstance(x, Tile):
        raise CompileError(f"{name}: needs a tile, not {what_is(x)}; for a scalar use math.{name}")
    if not dtypes.is_float(x.dtype):
        raise CompileError(f"{name}: needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
    computable(name, x.dtype)
    return x._array


def precisely(function: Callable[..., Any], dtype: dtypes.DType, *arrays: Any) -> Any:
    """`function` of arrays of `dtype`, computed in a wider type and rounded to it.

    C libraries are up to 4 ulp off for float64 (glibc 2.36's `cbrt`: 3.7), hence long doubles, where they are longer. A square
    root is right as it is, and would be rounded twice.
    """
    wide = np.longdouble if dtype == dtypes.float64 and function is not np.sqrt else np.float64
    return np.asarray(function(*(array.astype(wide) for array in arrays))).astype(dtype)


def floating(
    name: str,
    x: Any,
    function: Callable[[Any], Any],
    *,
    accepted: tuple[RoundingMode, ...] = (),
    rounding_mode: RoundingMode | str | None = None,
    flush_to_zero: bool = False,
) -> Tile:
    """An operation on floats.

    Args:
        name: the operation's.
        x: what it was given.
        function: of an array of float64 or wider.
        accepted: the rounding modes that the operation has.
        rounding_mode, flush_to_zero: as it was given.
    """
    elements = floats(name, x)
    mode = rounding.known_mode(name, rounding_mode)
    problem = rounding.problem(accepted, mode, flush_to_zero, x.dtype)
    if problem:
        raise CompileError(f"{name}: {problem}")
    array = rounding.flush(elements, flush_to_zero)
    if name == "sqrt" and mode in (RoundingMode.RZ, RoundingMode.RM, RoundingMode.RP):
        result = rounding.rounded(name, mode, x.dtype, array)
    else:
        result = precisely(function, x.dtype, array)
    return Tile(rounding.flush(result, flush_to_zero))


def floating_pair(name: str, x: Any, y: Any, function: Callable[[Any, Any], Any]) -> Tile:
    """An operation on two floats."""
    (a, b), dtype = operands(name, x, y)
    if not dtypes.is_float(dtype):
        raise CompileError(f"{name}: needs a floating-point tile, not {dtype.name}; cast with .astype(tk.float32)")
    return Tile(precisely(function, dtype, a, b))


def _by_element(function: Callable[[float], float]) -> Callable[[Any], Any]:
    mapped = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(mapped(x)).astype(np.float64)


real_erf = _by_element(math.erf)
real_erfc = _by_element(math.erfc)


def real_rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return 1.0 / np.sqrt(x)


def real_sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def real_softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(0.0, x)
