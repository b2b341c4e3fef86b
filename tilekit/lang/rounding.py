"""Rounding modes: what the operations that take one accept, and arithmetic rounded in any direction, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError

__all__ = [
    "BASIC", "DIVISION", "EXPONENTIAL", "ROOT", "RoundingMode", "conversion_problem", "converted", "flush", "known_mode",
    "problem", "rounded",
]  # fmt: skip


class RoundingMode(StrEnum):
    """How a result is rounded to a float. The plain string does as well: `"zero"`.

    RN, RZ, RM and RP round to the nearest (ties to even), towards zero, down and up, exactly. FULL and APPROX are float32 only:
    a GPU then takes fewer instructions, and every operation says how far off its result may be; the CPU device rounds as ever.
    """

    RN = "nearest_even"
    RZ = "zero"
    RM = "negative_inf"
    RP = "positive_inf"
    FULL = "full"
    APPROX = "approx"


_DIRECTED = (RoundingMode.RN, RoundingMode.RZ, RoundingMode.RM, RoundingMode.RP)
BASIC: tuple[RoundingMode, ...] = _DIRECTED
DIVISION: tuple[RoundingMode, ...] = (*_DIRECTED, RoundingMode.FULL, RoundingMode.APPROX)
ROOT: tuple[RoundingMode, ...] = (*_DIRECTED, RoundingMode.APPROX)
EXPONENTIAL: tuple[RoundingMode, ...] = (RoundingMode.FULL, RoundingMode.APPROX)


def known_mode(what: str, mode: Any) -> RoundingMode | None:
    """`mode`, as given to an operation, as a rounding mode.

    Raises:
        CompileError: it is none.
    """
    if mode is None:
        return None
    try:
        return RoundingMode(mode)
    except ValueError:
        raise CompileError(
            f"{what}: rounding_mode is one of {', '.join(f'{m.value!r}' for m in RoundingMode)}, not {mode!r}"
        ) from None


def problem(accepted: tuple[RoundingMode, ...], mode: RoundingMode | None, flush_to_zero: Any, dtype: dtypes.DType) -> str | None:
    """Why an operation on `dtype` does not take a rounding mode or flushing; None if it does.

    Args:
        accepted: the modes that the operation has.
        mode, flush_to_zero: as the kernel gives them.
        dtype: in which it computes.
    """
    if not isinstance(flush_to_zero, (bool, np.bool_)):
        return "flush_to_zero is True or False, known when the kernel is compiled"
    if mode is not None:
        if mode not in accepted:
            return f"it has no rounding mode {mode.value!r}; there are {', '.join(repr(m.value) for m in accepted)}"
        if not dtypes.is_float(dtype):
            return f"{dtype.name} is not rounded: rounding_mode is for floating-point tiles"
        if mode in (RoundingMode.FULL, RoundingMode.APPROX) and dtype != dtypes.float32:
            return f"rounding mode {mode.value!r} is for float32 only, not {dtype.name}"
    if flush_to_zero and dtype != dtypes.float32:
        return f"flush_to_zero is for float32 only, not {dtype.name}"
    return None


def flush(array: Any, flush_to_zero: bool) -> Any:
    """`array` with zeros of the same sign for subnormal numbers, if `flush_to_zero`."""
    if not flush_to_zero:
        return array
    return np.where(np.abs(array) < np.finfo(array.dtype).smallest_normal, np.copysign(array.dtype.type(0), array), array)


def rounded(what: str, mode: RoundingMode | None, dtype: dtypes.DType, *operands: Any) -> Any:
    """`add`, `sub`, `mul`, `truediv`, `sqrt` or `fma` of arrays of float type `dtype`, rounded once, as `mode` says."""
    arrays = [np.asarray(a) for a in np.broadcast_arrays(*operands)]
    if what == "sub":
        what, arrays = "add", [arrays[0], -arrays[1]]
    nearest, error = (_in_double if dtype == dtypes.float64 else _in_single)(what, dtype, arrays)
    result = _directed(nearest, error, dtype, mode)
    return _signed_zeros(what, result, arrays, (nearest == 0) & (error == 0)) if mode == RoundingMode.RM else result


def converted(array: Any, target: dtypes.DType, mode: RoundingMode) -> Any:
    """Floats as floats of type `target`, rounded as `mode` says."""
    wide = array.astype(np.float64)
    nearest = _narrow(wide, target)
    result = nearest.astype(np.float64)
    error = np.where(np.isfinite(wide), np.sign(wide - result), 0.0)
    return _directed(nearest, error, target, mode)


def conversion_problem(source: dtypes.DType, target: dtypes.DType, mode: RoundingMode) -> str | None:
    """Why elements of `source` are not converted to `target` with that rounding mode; None if they are."""
    if mode not in BASIC:
        return f"it has no rounding mode {mode.value!r}; there are {', '.join(repr(m.value) for m in BASIC)}"
    for dtype in (source, target):
        if not dtypes.is_float(dtype) or dtype in dtypes.EIGHT_BIT_FLOATS:
            return f"rounding_mode is for floats of 16 bits and more, not from {source.name} to {target.name}"
    return None


def _directed(nearest: Any, error: Any, dtype: dtypes.DType, mode: RoundingMode | None) -> Any:
    """The nearest numbers, or those beside them on the other side of the exact ones; `error` says where these lie."""
    if mode in (None, RoundingMode.RN, RoundingMode.FULL, RoundingMode.APPROX):
        return nearest
    down = np.where(error < 0, _neighbour(nearest, dtype, -1), nearest)
    up = np.where(error > 0, _neighbour(nearest, dtype, +1), nearest)
    if mode != RoundingMode.RZ:
        return down if mode == RoundingMode.RM else up
    return np.where((nearest > 0) | (nearest == 0) & (error > 0), down, up)


def _signed_zeros(what: str, result: Any, arrays: list[Any], exact: Any) -> Any:
    """Rounded down, x - x is -0; what is above zero and too small to be told from it, which is not `exact`, is 0."""
    if what == "fma":
        terms = arrays[0].astype(np.float64) * arrays[1], arrays[2]
    elif what == "add":
        terms = arrays[0], arrays[1]
    else:
        return result
    return np.where(exact & (np.signbit(terms[0]) != np.signbit(terms[1])), -np.abs(result), result)


def _neighbour(array: Any, dtype: dtypes.DType, step: int) -> Any:
    """The next number of `dtype` up or down; infinities step back to the largest number, never away."""
    towards = np.inf * step
    if dtype != dtypes.bfloat16:
        return np.nextafter(array, dtype.type(towards))
    bits = array.view(np.int16).astype(np.int32)
    grown = np.where((array > 0) == (step > 0), bits + 1, bits - 1)
    grown = np.where(array == 0, 1 if step > 0 else 0x8001, grown)
    stuck = np.isnan(array) | (array == dtype.type(towards))
    return np.where(stuck, array, grown.astype(np.uint16).view(dtype))


def _in_single(what: str, dtype: dtypes.DType, arrays: list[Any]) -> tuple[Any, Any]:
    """The nearest results in a type that float32 holds, and on which side of them (-1, 0, 1) the exact ones lie."""
    x, *others = (a.astype(np.float64) for a in arrays)
    # The exact result is high + low: a product of two is exact in float64, a sum has an error that is.
    low = np.zeros_like(x)
    if what == "add":
        high, low = _two_sum(x, others[0])
    elif what == "mul":
        high = x * others[0]
    elif what == "fma":
        high, low = _two_sum(x * others[0], others[1])
    elif what == "truediv":
        high = x / others[0]
    else:
        high = np.sqrt(x)
    finite = np.isfinite(high)
    low = np.where(finite, low, 0.0)
    if what in ("add", "mul", "fma"):
        nearest = _narrow(_to_odd(high, low), dtype)
        residue = np.where(finite, (high - nearest.astype(np.float64)) + low, 0.0)
        # Where the nearest is infinite, the exact one lies within.
        return nearest, np.sign(np.where(np.isnan(residue), 0.0, residue))
    nearest = _narrow(high, dtype)  # 53 bits of a quotient or a root decide how 24 of them are rounded
    c = nearest.astype(np.float64)
    if what == "truediv":
        residue = np.where(np.isinf(c), -c, (x - c * others[0]) * np.sign(others[0]))
        usual = finite & np.isfinite(others[0]) & (others[0] != 0)
        vanished = finite & np.isfinite(x) & np.isinf(others[0])
        return nearest, np.sign(np.where(usual & ~vanished, residue, 0.0))
    residue = np.where(finite & (x > 0), x - c * c, 0.0)
    return nearest, np.sign(residue)


def _two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """The sum in float64, and what it lacks."""
    s = x + y
    part = s - x
    return s, (x - (s - part)) + (y - part)


def _to_odd(high: Any, low: Any) -> Any:
    """`high + low` as the float64 that, rounded again to half the bits or fewer, is rounded correctly: an odd one if inexact."""
    even = (np.asarray(high).view(np.int64) & 1) == 0
    away = np.nextafter(high, np.where(low > 0, np.inf, -np.inf))
    return np.where((low != 0) & even & np.isfinite(high), away, high)


def _narrow(array: Any, dtype: dtypes.DType) -> Any:
    """float64 rounded to `dtype`; to bfloat16 ml_dtypes would go through float32 and round twice."""
    if dtype != dtypes.bfloat16:
        return array.astype(dtype)
    single = array.astype(np.float32)
    low = np.where(np.isfinite(array), array - single.astype(np.float64), 0.0)
    even = (single.view(np.int32) & 1) == 0
    away = np.nextafter(single, np.where(low > 0, np.float32(np.inf), np.float32(-np.inf)))
    return np.where((low != 0) & even & np.isfinite(single), away, single).astype(dtype)


def _exact(what: str, *x: float) -> tuple[Fraction, bool]:
    """The exact result of finite numbers; of `sqrt` the square root of the fraction is meant."""
    values = [Fraction(v) for v in x]
    if what == "add":
        return values[0] + values[1], False
    if what == "mul":
        return values[0] * values[1], False
    if what == "fma":
        return values[0] * values[1] + values[2], False
    if what == "truediv":
        return values[0] / values[1], False
    return values[0], True


def _in_double(what: str, dtype: dtypes.DType, arrays: list[Any]) -> tuple[Any, Any]:
    """As `_in_single`, for float64: in fractions, one element after the other."""
    usual: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "mul": np.multiply,
        "truediv": np.true_divide,
        "sqrt": np.sqrt,
        # A product of finite numbers is finite, however large, until it is added.
        "fma": lambda x, y, z: np.where(np.isinf(z) & np.isfinite(x) & np.isfinite(y), z, x * y + z),
    }
    nearest = np.array(usual[what](*arrays), np.float64)
    error = np.zeros(nearest.shape)
    regular = np.logical_and.reduce([np.isfinite(a) for a in arrays])
    if what == "truediv":
        regular &= arrays[1] != 0
    if what == "sqrt":
        regular &= arrays[0] > 0
    for index in map(tuple, np.argwhere(regular)):
        exact, root = _exact(what, *(float(a[index]) for a in arrays))
        if what == "fma" and exact:  # a quotient of Python's ints is correctly rounded
            try:
                nearest[index] = float(exact)
            except OverflowError:
                nearest[index] = math.inf if exact > 0 else -math.inf
        result = float(nearest[index])
        if math.isinf(result):
            error[index] = -math.copysign(1, result)
        else:
            difference = exact - Fraction(result) ** (2 if root else 1)
            error[index] = (difference > 0) - (difference < 0)
    return nearest, error
