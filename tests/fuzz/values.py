"""What a tile holds by the fuzzers' own reckoning: NumPy arrays, and how far a device may be off.

Nothing here is taken from `tilekit.lang`: these are semantics of our own, so that a defect of the references is seen.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

DTYPES: dict[str, DType] = {
    name: np.dtype(getattr(ml_dtypes if name.startswith(("bfloat", "float8")) else np, name))
    for name in (
        "int32", "float32", "bool_", "int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float64",
        "bfloat16", "float8_e4m3fn", "float8_e5m2",
    )
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BOOL, INT32, F32, F64 = DTYPES["bool_"], DTYPES["int32"], DTYPES["float32"], DTYPES["float64"]
F16, BF16 = DTYPES["float16"], DTYPES["bfloat16"]
EIGHTS = [DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]]
FLOATS = [F32, F16, BF16, F64]
SIGNED = [DTYPES[f"int{n}"] for n in (32, 8, 16, 64)]
UNSIGNED = [DTYPES[f"uint{n}"] for n in (32, 8, 16, 64)]
INTEGERS = SIGNED + UNSIGNED


class Format(NamedTuple):
    """A float's format: bits behind the leading one, the exponents of the smallest normal and of the largest number, which is
    its value; what a number beyond that becomes."""

    mantissa: int
    lowest: int
    largest: float
    beyond: float


FORMATS = {
    F16: Format(10, -14, 65504.0, np.inf),
    BF16: Format(7, -126, float.fromhex("0x1.fep127"), np.inf),
    F32: Format(23, -126, float.fromhex("0x1.fffffep127"), np.inf),
    F64: Format(52, -1022, float.fromhex("0x1.fffffffffffffp1023"), np.inf),
    EIGHTS[0]: Format(3, -6, 448.0, np.nan),
    EIGHTS[1]: Format(2, -14, 57344.0, np.inf),
}


def is_float(dtype: DType) -> bool:
    """Whether it is a float, NumPy's or another."""
    return dtype in FORMATS


def wide(array: Any) -> Array:
    """An array of any float type as float64."""
    with np.errstate(all="ignore"):  # a signalling NaN is no news
        return np.asarray(array).astype(np.float64)


def step(array: Any, dtype: DType) -> Array:
    """The distance of neighbouring numbers of `dtype` at each of the numbers: a unit in the last place."""
    made = FORMATS[dtype]
    x = np.abs(wide(array))
    exponent = np.frexp(np.where(np.isfinite(x) & (x > 0), x, 2.0**-1022))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, made.lowest) - made.mantissa)


_ROUND = {None: np.rint, "nearest_even": np.rint, "zero": np.trunc, "negative_inf": np.floor, "positive_inf": np.ceil}


def rounded(array: Any, dtype: DType, mode: str | None = None) -> Array:
    """float64 numbers, taken for exact, as numbers of `dtype`."""
    x = wide(array)
    if dtype == F64:
        return x
    form = FORMATS[dtype]
    unit = step(x, dtype)
    with np.errstate(all="ignore"):
        made = _ROUND[mode](x / unit) * unit  # a power of two: the quotient and the product are exact
        inwards = (mode == "zero") | ((mode == "negative_inf") & (x > 0)) | ((mode == "positive_inf") & (x < 0))
        beyond = np.where(inwards, form.largest, form.beyond)
        made = np.where(np.abs(made) > form.largest, np.copysign(beyond, x), made)
    special = np.where(np.isinf(x), np.copysign(form.beyond, x), x)
    return np.where(np.isfinite(x), np.copysign(made, x), special).astype(dtype)


def rounded_fraction(value: Fraction, dtype: DType, mode: str | None = None) -> float:
    """One exact number that is not 0, rounded to `dtype`; as a Python float, which holds it."""
    form = FORMATS[dtype]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, form.lowest) - form.mantissa)
    whole, rest = divmod(size, unit)
    upwards = {"zero": False, "negative_inf": value < 0, "positive_inf": value > 0}.get(
        mode or "", rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1)
    )
    made = (whole + (1 if upwards and rest else 0)) * unit
    if made > Fraction(form.largest):
        return float(
            np.copysign(
                form.largest if mode not in (None, "nearest_even") and not upwards else form.beyond, 1.0 if value > 0 else -1.0
            )
        )
    return float(made) if value > 0 else -float(made)


class Value:
    """A tile.

    Attributes:
        array: its elements.
        error: how far a device's may be off, each; infinite where nothing is known of it. None for 0 everywhere.
        slack: by how much a product lacks its rounding where a GPU puts it into a fused multiply-add. None for 0 everywhere.
    """

    __slots__ = ("array", "error", "slack")

    def __init__(self, array: Any, error: Any = None, slack: Any = None) -> None:
        self.array: Array = np.asarray(array)
        self.error = None if error is None or not np.any(error) else np.broadcast_to(error, self.array.shape)
        self.slack = None if slack is None or not np.any(slack) else np.broadcast_to(slack, self.array.shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.array.dtype

    @property
    def off(self) -> Array:
        """`error` as an array."""
        return np.zeros(self.array.shape) if self.error is None else np.asarray(self.error)

    @property
    def loose(self) -> Array:
        """`slack` as an array."""
        return np.zeros(self.array.shape) if self.slack is None else np.asarray(self.slack)

    def moved(self, function: Any) -> Value:
        """The elements in other places."""
        parts = (self.array, self.error, self.slack)
        return Value(*(None if part is None else function(part) for part in parts))


def certain(function: Any, *values: Value) -> Value:
    """`function` of the elements of each place; nothing is known where an operand is not certain."""
    made = np.asarray(function(*(v.array for v in values)))
    unknown = False
    for value in values:
        if value.error is not None:
            unknown = unknown | (value.off > 0)
    return Value(made, None if unknown is False else np.where(np.broadcast_to(unknown, made.shape), np.inf, 0.0))


def whole_sums(array: Any, axis: Any, dtype: DType) -> Array:
    """Whether sums along `axis` are exact in `dtype` in whatever order: all are multiples of a power of two, and few of it."""
    x = np.abs(wide(array))
    with np.errstate(all="ignore"):
        finite = np.isfinite(x)
        x = np.where(finite, x, 1.0)
        fraction, exponent = np.frexp(np.where(x == 0, 1.0, x))
        bits = (fraction * 2.0**53).astype(np.int64)
        trailing = np.log2((bits & -bits).astype(np.float64))
        lowest = np.where(x == 0, 2000.0, exponent - 53 + trailing)
        unit = np.min(lowest, axis=axis)
        total = np.log2(np.maximum(np.sum(np.where(finite, x, 0.0), axis=axis), 1e-300))
    form = FORMATS[dtype]
    fits = total - np.minimum(unit, 1000) <= form.mantissa
    return fits & np.all(finite, axis=axis) & (unit >= form.lowest - form.mantissa) & (total < np.log2(form.largest))
