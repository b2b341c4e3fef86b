"""What operations give, by our own reckoning: functions of `Value`s, with the bounds that the documentation states."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
from values import (
    BF16,
    BOOL,
    EIGHTS,
    F16,
    F32,
    F64,
    FORMATS,
    INT32,
    UNSIGNED,
    Array,
    DType,
    Value,
    certain,
    is_float,
    rounded,
    rounded_fraction,
    step,
    whole_sums,
    wide,
)

from tilekit.lang.registry import OPS

# What is wider than float32 becomes one first: it is rounded twice (docs/concepts/dtypes-and-promotion.md).
THROUGH_FLOAT32 = (BF16, *EIGHTS)
TINY = 5e-324  # an error that allows a zero of the other sign, and nothing else


def common(a: DType, b: DType) -> DType | None:
    """The dtype in which two tiles meet; None where they do not."""
    if a == b:
        return a
    ranks = [0 if d == BOOL else 2 if is_float(d) else 1 for d in (a, b)]
    if ranks[0] != ranks[1]:
        return a if ranks[0] > ranks[1] else b
    if a.itemsize == b.itemsize or (ranks[0] == 1 and a.kind != b.kind):
        return None
    return a if a.itemsize > b.itemsize else b


def sum_dtype(dtype: DType) -> DType:
    """Of a sum or a product."""
    if is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return UNSIGNED[0] if dtype.kind == "u" else INT32


def bounded(array: Any, error: Any, dtype: DType) -> Value:
    """A float result that is `array` but for an error: where there is one, rounding adds to it; unknown near the largest."""
    with np.errstate(all="ignore"):
        error = np.where(np.isnan(error), np.inf, error)
        e = np.where(error > 0, error + step(array, dtype), 0.0)
        size = np.abs(wide(array))
        e = np.where((e > 0) & ~(size + e < FORMATS[dtype].largest), np.inf, e)
    return Value(rounded(array, dtype), e)


def cast(x: Value, dtype: DType, mode: str | None = None) -> Value:
    """The elements in another dtype."""
    a = x.array
    if a.dtype == dtype:
        return x
    if dtype == BOOL:
        return certain(lambda v: wide(v) != 0 if is_float(v.dtype) else v != 0, x)
    if is_float(dtype):
        if dtype in THROUGH_FLOAT32 and mode in (None, "nearest_even") and a.dtype.itemsize >= 4 and a.dtype != F32:
            return cast(cast(x, F32), dtype)
        if not is_float(a.dtype):
            return certain(lambda v: from_integers(v, dtype), x)
        made = rounded(a, dtype, mode)
        if x.error is None:
            return Value(made)
        return bounded(wide(made), x.off, dtype)
    if not is_float(a.dtype):
        return certain(lambda v: v.astype(dtype), x)
    limits, cut = np.iinfo(dtype), np.trunc(wide(a))
    inside = (cut >= float(limits.min)) & (cut < 2.0 ** (limits.bits - (dtype.kind == "i")))
    made = np.where(inside, cut, 0.0).astype(dtype)
    return Value(made, np.where(inside & (x.off == 0), 0.0, np.inf))


def from_integers(array: Array, dtype: DType) -> Array:
    """Integers or bools as floats, rounded once."""
    if array.dtype.itemsize < 8 or dtype == F64:
        return rounded(array.astype(np.float64), dtype)
    near = array.astype(np.float64)
    flat = [int(v) for v in array.reshape(-1)]
    rest = np.array([float(v - int(n)) for v, n in zip(flat, near.reshape(-1), strict=True)]).reshape(array.shape)
    even = near.view(np.int64) & 1 == 0
    sticky = np.where((rest != 0) & even, np.nextafter(near, np.where(rest > 0, np.inf, -np.inf)), near)
    return rounded(sticky, dtype)


def flushed(x: Value) -> Value:
    """Zeros of the same sign for subnormal float32."""
    small = np.abs(x.array) < np.float32(2.0**-126)
    return Value(np.where(small, np.copysign(np.float32(0), x.array), x.array), x.error)


# ------------------------------------------------------------------------------------------------------------------ arithmetic


def add(x: Value, y: Value, fused: bool = True) -> Value:
    """The sum of floats of one dtype, or of integers; a product in it may not have been rounded, if `fused`."""
    if not is_float(x.dtype):
        return certain(np.add, x, y)
    a, b = wide(x.array), wide(y.array)
    with np.errstate(all="ignore"):
        made = rounded(a + b, x.dtype)
        error = x.off + y.off + ((x.loose + y.loose) if fused else 0.0)
    return bounded(wide(made), error, x.dtype)


def negative(x: Value) -> Value:
    """With the other sign; a product stays one."""
    return Value(-x.array, x.error, x.slack)


def sub(x: Value, y: Value, fused: bool = True) -> Value:
    """The difference."""
    return add(x, negative(y), fused) if is_float(x.dtype) else certain(np.subtract, x, y)


def mul(x: Value, y: Value, fused: bool = True) -> Value:
    """The product, which a sum may take unrounded if `fused`."""
    if not is_float(x.dtype):
        return certain(np.multiply, x, y)
    a, b = wide(x.array), wide(y.array)
    with np.errstate(all="ignore"):
        exact = a * b
        made = rounded(exact, x.dtype)
        error = np.where((x.off > 0) | (y.off > 0), np.maximum(np.abs(a) * y.off + np.abs(b) * x.off + x.off * y.off, TINY), 0.0)
        slack = None
        if fused:
            slack = np.abs(exact - wide(made)) if x.dtype != F64 else np.where(exact == 0, 0.0, step(exact, F64))
            if x.dtype == F64:
                slack = np.where((a == np.rint(a)) & (b == np.rint(b)) & (np.abs(exact) < 2.0**53), 0.0, slack)
            slack = np.where(np.isfinite(exact), np.where(np.isfinite(slack), slack, np.inf), 0.0)
    value = bounded(wide(made), error, x.dtype)
    return Value(value.array, value.error, slack)


def exactly(what: str, dtype: DType, mode: str | None, *values: Value) -> Value:
    """`add`, `sub`, `mul`, `truediv`, `sqrt` or `fma` of floats, rounded once as `mode` says."""
    arrays = [np.asarray(a) for a in np.broadcast_arrays(*(wide(v.array) for v in values))]
    with np.errstate(all="ignore"):
        made = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "sqrt": np.sqrt,
            "fma": lambda a, b, c: np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c),
        }[what](*arrays)  # fmt: skip
        made = np.array(rounded(made, dtype).astype(np.float64))
    if what != "fma" and mode in (None, "nearest_even"):
        return _known(made.astype(dtype), values)
    regular = np.logical_and.reduce([np.isfinite(a) for a in arrays])
    if what == "truediv":
        regular &= arrays[1] != 0
    if what == "sqrt":
        regular &= arrays[0] > 0
    for place in map(tuple, np.argwhere(regular)):
        numbers = [float(a[place]) for a in arrays]
        one = _one(what, dtype, mode, *map(Fraction, numbers))
        made[place] = _zero(what, mode, *numbers) if one is None else one
    return _known(made.astype(dtype), values)


def _known(array: Array, values: tuple[Value, ...]) -> Value:
    return certain(lambda *_: array, *values)


def _one(what: str, dtype: DType, mode: str | None, *x: Fraction) -> float | None:
    """The result of finite numbers, None where it is exactly zero."""
    if what == "sqrt":
        scale = 1 << 700
        root = Fraction(math.isqrt(int(x[0] * scale * scale)), scale)
        if root * root != x[0]:
            root += Fraction(1, 2 * scale)  # between two that are nearer than any two floats
        return rounded_fraction(root, dtype, mode)
    exact = {
        "add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1], "truediv": lambda: x[0] / x[1],
        "fma": lambda: x[0] * x[1] + x[2],
    }[what]()  # fmt: skip
    return rounded_fraction(exact, dtype, mode) if exact else None


def _zero(what: str, mode: str | None, *x: float) -> float:
    """The zero of an exact sum or product that is zero."""
    if what in ("mul", "truediv"):
        return math.copysign(0.0, math.copysign(1, x[0]) * math.copysign(1, x[1]))
    if what == "sqrt":
        return 0.0
    first = x[0]
    if what == "fma":
        first = math.copysign(0.0, math.copysign(1, x[0]) * math.copysign(1, x[1])) if 0.0 in x[:2] else 1.0
    last = -x[1] if what == "sub" else x[-1]
    if first == 0 and last == 0 and math.copysign(1, first) == math.copysign(1, last):
        return first
    return -0.0 if mode == "negative_inf" else 0.0


def quotient(x: Value, y: Value) -> Value:
    """`x / y` of floats."""
    return exactly("truediv", x.dtype, None, x, y)


def floor_division(x: Value, y: Value) -> tuple[Value, Value]:
    """`x // y` and `x % y`."""
    with np.errstate(all="ignore"):
        if not is_float(x.dtype):
            return certain(np.floor_divide, x, y), certain(np.remainder, x, y)
        if x.dtype == F64:
            return _large(certain(np.floor_divide, x, y)), certain(np.remainder, x, y)

        def part(index: int) -> Any:
            def compute(a: Array, b: Array) -> Array:
                p, q = (np.asarray(v) for v in np.broadcast_arrays(wide(a), wide(b)))
                made = _pythons(p, q)[index]
                return rounded(made, a.dtype)

            return compute

        return _large(certain(part(0), x, y)), certain(part(1), x, y)


def _large(quotient: Value) -> Value:
    """Whole numbers that do not fit are as near as two roundings leave them."""
    size = np.abs(wide(quotient.array))
    large = np.isfinite(size) & (size >= 2.0 ** (FORMATS[quotient.dtype].mantissa - 2))
    error = np.where(large, 2 * step(quotient.array, quotient.dtype), 0.0)
    error = np.where(large & (size + 2 * error >= FORMATS[quotient.dtype].largest), np.inf, error)
    return Value(quotient.array, np.maximum(quotient.off, error))


def _pythons(p: Array, q: Array) -> tuple[Array, Array]:
    """Python's quotient rounded down and the remainder, of float64 that hold narrower floats."""
    m = np.fmod(p, q)
    m = np.where((m != 0) & ((m < 0) != (q < 0)) & np.isfinite(q), m + q, m)
    m = np.where(np.isinf(q) & np.isfinite(p) & (p != 0) & ((p < 0) != (q < 0)), q, m)
    m = np.where(m == 0, np.copysign(0.0, q), m)
    d = np.rint((p - m) / q)
    small = np.isinf(q) & np.isfinite(p)
    d = np.where(small, np.where((p != 0) & ((p < 0) != (q < 0)), -1.0, np.copysign(0.0, p / q)), d)
    return np.where(q == 0, p / q, np.where(d == 0, np.copysign(0.0, p / q), d)), m


def power_of_integers(x: Array, y: Array) -> Array:
    """`x ** y`, which wraps; 1 / x ** -y cut off for negative powers."""
    x, y = (np.asarray(v) for v in np.broadcast_arrays(x, y))
    bits = 8 * x.dtype.itemsize
    flat = []
    for a, n in zip(x.reshape(-1).tolist(), y.reshape(-1).tolist(), strict=True):
        value = pow(a, n, 1 << bits) if n >= 0 else (0 if a == 0 else 1 if a == 1 else (-1) ** (n & 1) if a == -1 else 0)
        flat.append(value - (1 << bits) if x.dtype.kind == "i" and value >= 1 << (bits - 1) else value)
    return np.array(flat, x.dtype).reshape(x.shape)


def extreme(x: Value, y: Value, larger: bool, propagate: bool = True) -> Value:
    """The larger or smaller of two; of zeros of both signs either."""
    function: Any = (np.maximum if larger else np.minimum) if propagate else (np.fmax if larger else np.fmin)
    if not is_float(x.dtype):
        return certain(function, x, y)
    a, b = wide(x.array), wide(y.array)
    made = function(a, b)
    ties = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    error = np.maximum(np.maximum(x.off, y.off), np.where(ties, TINY, 0.0))
    return Value(made.astype(x.dtype), error)


def where(condition: Value, x: Value, y: Value) -> Value:
    """`x` where the condition holds, else `y`."""
    c = condition.array
    error = np.where(condition.off > 0, np.inf, np.where(c, x.off, y.off))
    return Value(np.where(c, x.array, y.array), error, np.where(c, x.loose, y.loose))


# -------------------------------------------------------------------------------------------------------------- functions of one

_LONG = np.longdouble


def _by_element(function: Any) -> Any:
    return lambda x: np.array([function(float(v)) for v in x.reshape(-1)]).reshape(x.shape)


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


MATHS: dict[str, Any] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(0, x), "erf": _by_element(math.erf), "erfc": _by_element(math.erfc),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh,
}  # fmt: skip
_STATED = re.compile(
    r"[Aa]t most ([\d.]+) (?:ulp|units in the last place) off for float32,? (?:and )?([\d.]+) for float64", re.DOTALL
)


def stated(op: str, dtype: DType) -> float:
    """How many units in the last place the documentation of an operation allows; of 16-bit floats the rounding of float32's."""
    bounds = _STATED.search(" ".join((OPS[op].function.__doc__ or "").split()))
    assert bounds, f"tk.{op} states no bound"
    if dtype.itemsize == 2:
        return 1.0
    return float(bounds[2 if dtype == F64 else 1])


def near(exact: Any, dtype: DType, ulps: float, *values: Value) -> Value:
    """A result that is `exact`, in a wider type, but for so many units in the last place of it."""
    with np.errstate(all="ignore"):
        made = np.asarray(exact, np.float64).astype(dtype) if dtype == F64 else rounded(exact, dtype)
        size = np.abs(wide(made))
        error = ulps * step(made, dtype)
        error = np.where(np.isnan(size), 0.0, error)
        edge = np.isfinite(np.asarray(exact, np.float64)) | (np.asarray(exact) == 0)
        error = np.where(edge & ~(size + error < FORMATS[dtype].largest), np.inf, np.where(np.isinf(size), 0.0, error))
    for value in values:
        error = np.where(value.off > 0, np.inf, error)
    return Value(made, error)


def mathematics(op: str, x: Value, ulps: float | None = None) -> Value:
    """An operation of `MATHS`."""
    with np.errstate(all="ignore"):
        exact = MATHS[op](x.array.astype(_LONG) if x.dtype == F64 and not op.startswith("erf") else wide(x.array))
    extra = 1.0 if op.startswith("erf") and x.dtype == F64 else 0.0
    return near(exact, x.dtype, (stated(op, x.dtype) if ulps is None else ulps) + extra, x)


def roots(x: Value) -> Value:
    """The square root, rounded correctly."""
    return certain(lambda a: rounded(np.sqrt(wide(a)), a.dtype), x)


# ------------------------------------------------------------------------------------------------------------------------ folds


def total(x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """The sum along axes: of 16-bit floats in float32, rounded once."""
    dtype = sum_dtype(x.dtype)
    if not is_float(dtype):
        error = np.max(x.off, axis=axes, keepdims=keep, initial=0.0)
        return Value(np.sum(x.array.astype(dtype), axis=axes, keepdims=keep, dtype=dtype), np.where(error > 0, np.inf, 0.0))
    accumulated = F32 if dtype in (F16, BF16) else dtype
    long = x.array.astype(_LONG) if dtype == F64 else wide(x.array)
    return _summed(long, x.off + x.loose, axes, accumulated, dtype, lambda a: np.sum(a, axis=axes, keepdims=keep))


def _summed(long: Any, off: Array, axes: Any, accumulated: DType, dtype: DType, fold: Any) -> Value:
    with np.errstate(all="ignore"):
        exact = whole_sums(long, axes, accumulated)
        sums = fold(long)
        exact = exact.reshape(np.shape(sums)) & (fold(off) == 0)
        finite = np.where(np.isfinite(long), np.abs(long), 0)
        size = np.asarray(fold(finite), np.float64)
        count = max(1, long.size // max(1, np.size(sums)))
        error = np.where(exact, 0.0, (count + 1) * (size * 2.0 ** -FORMATS[accumulated].mantissa) + fold(off))
        error = np.where(size < FORMATS[accumulated].largest / 2, error, np.inf)
        narrow = np.asarray(sums, np.float64)
        tiny = np.where((narrow == 0) & (error == 0), TINY, error)
        error = np.where(np.isfinite(narrow), tiny, np.where(error == np.inf, error, 0.0))
        error = np.where(np.isnan(fold(off)), np.inf, error)
        tied = (narrow == 0) & (error == TINY)
    made = bounded(rounded(narrow, dtype), np.where(tied, 0.0, error), dtype)
    return Value(made.array, np.where(tied, TINY, made.off))


def multiplied(x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """The product along axes."""
    dtype = sum_dtype(x.dtype)

    def fold(a: Any, function: Any = np.prod) -> Any:
        return function(a, axis=axes, keepdims=keep)

    unknown = fold(x.off, np.max) > 0
    if not is_float(dtype):
        return Value(np.prod(x.array.astype(dtype), axis=axes, keepdims=keep, dtype=dtype), np.where(unknown, np.inf, 0.0))
    accumulated = F32 if dtype in (F16, BF16) else dtype
    form = FORMATS[accumulated]
    with np.errstate(all="ignore"):
        long = x.array.astype(_LONG)
        made = np.asarray(fold(long), np.float64)
        finite = np.where(np.isfinite(long), np.abs(long), 1)
        high, low = fold(np.maximum(finite, 1)), fold(np.where(finite == 0, 1, np.minimum(finite, 1)))
        whole = fold(long == np.rint(long), np.all) & (high <= 2.0**form.mantissa)
        count = long.size // max(1, np.size(made))
        error = np.where(whole, 0.0, np.abs(made) * (count * 2.0**-form.mantissa) + 2.0 ** (form.lowest - form.mantissa))
        error = np.where(np.isfinite(made), error, 0.0)
        extreme_ = (high >= form.largest / 2) | (low < 2.0**form.lowest) | unknown
        result = bounded(rounded(made, dtype), np.where(extreme_, np.inf, error), dtype)
    return Value(result.array, np.where((wide(result.array) == 0) & (result.off == 0), TINY, result.off))


def prefixes(x: Value, axis: int, reverse: bool, fold: Any) -> Value:
    """`fold` of each element and those before it."""
    turned = x.moved(lambda a: np.flip(a, axis) if reverse else a)
    parts = [fold(turned.moved(lambda a, n=n: np.take(a, range(n + 1), axis)), (axis,), True) for n in range(x.array.shape[axis])]
    made = Value(*(np.concatenate([getattr(p, name) for p in parts], axis) for name in ("array", "off")))
    return made.moved(lambda a: np.flip(a, axis) if reverse else a)


def most(x: Value, axes: tuple[int, ...], keep: bool, larger: bool, propagate: bool = True) -> Value:
    """The largest or smallest along axes."""
    function: Any = (np.maximum if larger else np.minimum) if propagate else (np.fmax if larger else np.fmin)
    error = np.max(x.off, axis=axes, keepdims=keep)
    if not is_float(x.dtype):
        return Value(function.reduce(x.array, axis=axes, keepdims=keep), error)
    made = function.reduce(wide(x.array), axis=axes, keepdims=keep)
    return Value(made.astype(x.dtype), np.where(made == 0, np.maximum(error, TINY), error))


def ranks(array: Any, nan_high: bool = True) -> Array:
    """Numbers in the order of the elements: NaNs above all, or below."""
    values = wide(array) if is_float(array.dtype) else array
    if not is_float(array.dtype):
        return np.unique(values, return_inverse=True)[1].reshape(values.shape)
    numbers = np.where(np.isnan(values), 0.0, values)
    made = np.unique(numbers, return_inverse=True)[1].reshape(values.shape)
    return np.where(np.isnan(values), values.size if nan_high else -1, made)


def position(x: Value, axis: int | None, keep: bool, larger: bool, propagate: bool) -> Value:
    """Where the largest or smallest is, the first of them."""
    order = ranks(x.array, nan_high=larger == propagate)
    if not larger:
        order = -order
    places = np.argmax(order, axis=axis, keepdims=keep)
    unknown = np.max(x.off, axis=axis, keepdims=keep)
    return Value(np.asarray(places).astype(np.int32), np.where(unknown > 0, np.inf, 0.0))


def ordering(x: Value, axis: int, descending: bool) -> Array:
    """The places of the elements in order: of equal ones the first comes first."""
    order = ranks(x.array)
    return np.argsort(-order if descending else order, axis=axis, kind="stable")


def in_order(x: Value, axis: int, descending: bool, count: int | None = None) -> tuple[Value, Value]:
    """The elements in order, and their places; nothing is known of a row with an element that is not certain."""
    places = ordering(x, axis, descending)
    if count is not None:
        places = np.take(places, range(count), axis)
    values = np.take_along_axis(x.array, places, axis)
    off = np.max(x.off, axis=axis, keepdims=True)
    unknown = np.broadcast_to(np.where(off > 0, np.inf, 0.0), values.shape)
    error = unknown
    if is_float(x.dtype) and count is None:
        error = np.where(wide(values) == 0, np.maximum(error, TINY), error)
    elif is_float(x.dtype):  # of `tk.topk`
        values = np.where(wide(values) == 0, np.zeros((), x.dtype), values)
    return Value(values, error), Value(places.astype(np.int32), unknown)


# --------------------------------------------------------------------------------------------------------------------- products


def product(a: Value, b: Value, acc: Value | None, result: DType, precision: str) -> Value:
    """`a @ b + acc`, added up in float32, float64 or int32, by the bounds of docs (`tilekit.lang.matmul`)."""
    if not is_float(a.dtype):
        made = np.matmul(wide(a.array), wide(b.array)).astype(np.int64).astype(np.int32)
        return certain(lambda *_: made if acc is None else made + acc.array, a, b, *([] if acc is None else [acc]))
    accumulated = F64 if a.dtype == F64 else F32
    long = np.longdouble if a.dtype == F64 else np.float64
    p, q = (wide(v.array).astype(long) for v in (a, b))
    with np.errstate(all="ignore"):
        terms = p[..., :, :, None] * q[..., None, :, :]
        start = np.zeros((*p.shape[:-1], q.shape[-1])) if acc is None else wide(acc.array)
        everything = np.concatenate([terms, start[..., :, None, :].astype(long)], axis=-2)
        sums, size = np.sum(everything, axis=-2), np.sum(np.where(np.isfinite(everything), np.abs(everything), 0), axis=-2)
        exact = whole_sums(everything, -2, accumulated)
        # Tensor cores line up what is subnormal as if it had the exponent of the smallest normal number.
        normal = [2.0 ** FORMATS[v.dtype].lowest if v.dtype in (F16, *EIGHTS) else 0.0 for v in (a, b)]
        low = [(v != 0) & (np.abs(v) < least) for v, least in zip((p, q), normal, strict=True)]
        exact &= ~(np.any(low[0], axis=-1)[..., :, None] | np.any(low[1], axis=-2)[..., None, :])
        if np.any(low[0]) or np.any(low[1]):
            finite = [np.where(np.isfinite(v), np.abs(v), 0) for v in (p, q)]
            counted = [np.where(at, least, v) for at, least, v in zip(low, normal, finite, strict=True)]
            size = np.maximum(size, counted[0] @ counted[1])
        relative = p.shape[-1] * 2.0 ** (-52 if a.dtype == F64 else -22)
        if a.dtype == F64:  # a product of others may not be one of float64
            short = [(v == np.rint(v)) & (np.abs(v) < 2.0**26) for v in (p, q)]
            exact &= np.all(short[0], axis=-1)[..., :, None] & np.all(short[1], axis=-2)[..., None, :]
        if a.dtype in EIGHTS:
            relative = p.shape[-1] * 2.0**-12 if precision == "fast" else 2.0**-5
            exact &= np.asarray(size, np.float64) < 2.0**13
        if a.dtype == F32 and precision == "tf32":
            relative += 2.0**-9
            short = [(v.array.view(np.uint32) & np.uint32(0x1FFF)) == 0 for v in (a, b)]
            exact &= np.all(short[0], axis=-1)[..., :, None] & np.all(short[1], axis=-2)[..., None, :]
        off = np.abs(p) @ b.off + a.off @ np.abs(q) + a.off @ b.off if a.error is not None or b.error is not None else 0.0
        off = off + (0.0 if acc is None else acc.off + acc.loose)
        exact &= off == 0
        narrow = np.asarray(sums, np.float64)
        error = np.where(exact, 0.0, np.asarray(size, np.float64) * relative + off + p.shape[-1] * 2.0**-126)
        error = np.where(np.isfinite(narrow) | np.isinf(off), error, 0.0)
        error = np.where(np.isnan(off) | (np.asarray(size, np.float64) >= FORMATS[accumulated].largest / 2), np.inf, error)
        if a.dtype == F32 and precision == "tf32":  # the largest numbers may be rounded to infinities, the smallest to zeros
            largest = [np.isfinite(v) & (np.abs(v) > float.fromhex("0x1.ffcp127")) for v in (p, q)]
            largest = [v | ((size > 0) & (size < 2.0**-126)) for v, size in zip(largest, (np.abs(p), np.abs(q)), strict=True)]
            error = np.where(np.any(largest[0], -1)[..., :, None] | np.any(largest[1], -2)[..., None, :], np.inf, error)
        tied = exact & (narrow == 0) & (error == 0)
    made = bounded(rounded(rounded(narrow, accumulated), result), error, result)
    return Value(made.array, np.where(tied, TINY, made.off))


# ------------------------------------------------------------------------------------------------------------------- randomness


def philox(seed: int, counter: list[Array]) -> list[Array]:
    """Philox4x32-10, as its paper has it."""
    c = [np.asarray(word, np.uint64) & np.uint64(0xFFFFFFFF) for word in np.broadcast_arrays(*counter)]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        m, n = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(n >> half) ^ c[1] ^ np.uint64(key[0]), n & low, (m >> half) ^ c[3] ^ np.uint64(key[1]), m & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def drawn(seed: int, offsets: Array, kind: int, pair: bool) -> tuple[list[Array], Array]:
    """The four words of each offset's counter, and which of them are the element's first."""
    at = offsets.astype(np.uint32).astype(np.uint64) if offsets.dtype.itemsize <= 4 else offsets.astype(np.uint64)
    j = at >> np.uint64(1 if pair else 2)
    zero = np.zeros(at.shape, np.uint64)
    return philox(seed, [j & np.uint64(0xFFFFFFFF), j >> np.uint64(32), zero + np.uint64(kind), zero]), at


def uniform(seed: int, offsets: Array, dtype: DType) -> Array:
    """`tk.rand`: the upper bits of a word, or of two."""
    words, at = drawn(seed, offsets, 0, dtype == F64)
    if dtype == F64:
        return (np.choose((at & np.uint64(1)).astype(int), _pairs(words)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    bits = FORMATS[dtype].mantissa + 1
    word = np.choose((at & np.uint64(3)).astype(int), words)
    return ((word >> np.uint64(32 - bits)).astype(np.float64) * 2.0**-bits).astype(dtype)


def _pairs(words: list[Array]) -> list[Array]:
    return [words[0] << np.uint64(32) | words[1], words[2] << np.uint64(32) | words[3]]


def normal(seed: int, offsets: Array, dtype: DType) -> Value:
    """`tk.randn` by the method of Box and Muller, in float64."""
    words, at = drawn(seed, offsets, 1, dtype == F64)
    odd = (at & np.uint64(1)).astype(bool)
    if dtype == F64:
        one, two = _pairs(words)
        radius = np.sqrt(-2 * np.log(((one >> np.uint64(11)) | np.uint64(1)).astype(np.float64) * 2.0**-53))
        angle = (two >> np.uint64(11)).astype(np.float64) * 2.0**-53 * 2 * np.pi
    else:
        high = (at & np.uint64(2)).astype(bool)
        radius = np.sqrt(-2 * np.log((np.where(high, words[2], words[0]) | np.uint64(1)).astype(np.float64) * 2.0**-32))
        angle = np.where(high, words[3], words[1]).astype(np.float64) * 2.0**-32 * 2 * np.pi
    made = radius * np.where(odd, np.sin(angle), np.cos(angle))
    return bounded(rounded(made, dtype), (np.abs(made) + 1) * (1e-14 if dtype == F64 else 2e-6), dtype)


def integers(seed: int, offsets: Array, low: int, high: int, dtype: DType) -> Array:
    """`tk.randint`."""
    words, at = drawn(seed, offsets, 2, True)
    wide_words = np.choose((at & np.uint64(1)).astype(int), _pairs(words))
    flat = [low + (int(v) * (high - low) >> 64) for v in wide_words.reshape(-1)]
    return np.array(flat, object).reshape(at.shape).astype(dtype)
