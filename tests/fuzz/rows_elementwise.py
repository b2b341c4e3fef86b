"""Rows of operations on each element: arithmetic, comparisons, bits, functions, conversions, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import semantics
from grammar import Grammar, Unfit, meeting, other, row
from programs import Var, dtype_text
from semantics import cast
from values import BOOL, DTYPES, EIGHTS, F32, F64, FLOATS, INT32, INTEGERS, DType, Value, certain, is_float

NUMBERS = [F32, *INTEGERS, *FLOATS[1:]]


def pair(
    g: Grammar, options: Sequence[DType], *, sure: bool = True, divides: bool = False
) -> tuple[list[Var], str, str, DType, tuple[int, ...], Any]:
    """Two operands that meet, one of which may be a scalar; of a quotient, by `//`, `%` or `divmod`, if one `divides`.

    Returns:
        The tiles, the texts of both, their common dtype and shape, and what makes two arrays of the values of the tiles.
    """
    x = g.some(options, sure=sure)
    if g.draw.chance(30):
        text, value, dtype = g.scalar_for(x.dtype, divides)
        first = g.draw.chance(30)

        def with_scalar(v: Value) -> tuple[Value, Value]:
            one = Value(np.array(value).astype(dtype))
            return (one, cast(v, dtype)) if first else (cast(v, dtype), one)

        return [x], *((text, "{0}") if first else ("{0}", text)), dtype, x.shape, with_scalar
    y = g.partner(x, options, sure=sure)
    dtype = semantics.common(x.dtype, y.dtype)
    shape = meeting(x.shape, y.shape)
    if dtype is None or shape is None:
        raise Unfit
    common: DType = dtype
    return [x, y], "{0}", "{1}", dtype, shape, lambda v, w: (cast(v, common), cast(w, common))


def _spread(value: Value, shape: Any) -> Value:
    return value.moved(lambda a: np.broadcast_to(a, shape))


def _arithmetic(name: str, symbol: str, function: Callable[..., Value]) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        tiles, a, b, dtype, shape, meet = pair(g, NUMBERS, sure=False)
        if dtype == BOOL:
            raise Unfit
        if not is_float(dtype) or g.draw.chance(50):
            fused = g.draw.chance(60) or not is_float(dtype)
            text = f"{a} {symbol} {b}" if fused else f"tk.{name}({a}, {b})"
            g.let(text, tiles, dtype, shape, lambda *v: _spread(function(*meet(*v), fused), shape))
            return
        if not all(t.sure for t in tiles):
            raise Unfit
        mode = g.draw.pick(["nearest_even", "zero", "negative_inf", "positive_inf"])
        flush = dtype == F32 and g.draw.chance(30)

        def compute(*v: Value) -> Value:
            x, y = meet(*v)
            if not flush:
                return _spread(semantics.exactly(name, dtype, mode, x, y), shape)
            return _spread(
                semantics.flushed(semantics.exactly(name, dtype, mode, semantics.flushed(x), semantics.flushed(y))), shape
            )

        more = ", flush_to_zero=True" if flush else ""
        g.let(f"tk.{name}({a}, {b}, rounding_mode={mode!r}{more})", tiles, dtype, shape, compute)


_arithmetic("add", "+", semantics.add)
_arithmetic("sub", "-", semantics.sub)
_arithmetic("mul", "*", semantics.mul)


@row("truediv")
def truediv(g: Grammar) -> None:
    """Quotients; of integers as float32."""
    tiles, a, b, dtype, shape, meet = pair(g, [*NUMBERS, BOOL])
    result = dtype if is_float(dtype) else F32
    mode = g.draw.pick([None, None, "nearest_even", "zero", "negative_inf", "positive_inf", "full", "approx"])
    if mode in ("full", "approx"):
        if result != F32 or g.mode == "wild":
            raise Unfit

        def fast(*v: Value) -> Value:
            x, y = (cast(one, F32) for one in meet(*v))
            exact = semantics.quotient(x, y)
            return _spread(semantics.near(exact.array, F32, 2.0, exact), shape)

        g.let(f"tk.truediv({a}, {b}, rounding_mode={mode!r})", tiles, F32, shape, fast, sure=False)
        return

    def compute(*v: Value) -> Value:
        x, y = (cast(one, result) for one in meet(*v))
        return _spread(semantics.exactly("truediv", result, mode, x, y), shape)

    text = (
        f"tk.truediv({a}, {b}, rounding_mode={mode!r})"
        if mode
        else f"{a} / {b}"
        if g.draw.chance(50)
        else f"tk.truediv({a}, {b})"
    )
    g.let(text, tiles, result, shape, compute)


@row("fma")
def fma(g: Grammar) -> None:
    """One rounding for a product and a sum."""
    x = g.some(NUMBERS)
    y, z = g.exactly_like(x), g.exactly_like(x)
    if not is_float(x.dtype):
        g.let("tk.fma({0}, {1}, {2})", [x, y, z], x.dtype, x.shape, lambda a, b, c: certain(lambda p, q, r: p * q + r, a, b, c))
        return
    mode = g.draw.pick([None, "nearest_even", "zero", "negative_inf", "positive_inf"])
    more = f", rounding_mode={mode!r}" if mode else ""
    g.let(
        f"tk.fma({{0}}, {{1}}, {{2}}{more})", [x, y, z], x.dtype, x.shape, lambda *v: semantics.exactly("fma", x.dtype, mode, *v)
    )


def _divided(name: str, symbol: str, index: int) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        tiles, a, b, dtype, shape, meet = pair(g, NUMBERS, divides=True)
        text = f"{a} {symbol} {b}" if g.draw.chance(50) else f"tk.{name}({a}, {b})"
        g.let(text, tiles, dtype, shape, lambda *v: _spread(semantics.floor_division(*meet(*v))[index], shape))


_divided("floordiv", "//", 0)
_divided("mod", "%", 1)


@row("divmod")
def divmod_(g: Grammar) -> None:
    """Both at once."""
    tiles, a, b, dtype, shape, meet = pair(g, NUMBERS, divides=True)
    text = f"divmod({a}, {b})" if g.draw.chance(50) else f"tk.divmod({a}, {b})"
    g.lets(text, tiles, [(dtype, shape)] * 2, lambda *v: [_spread(w, shape) for w in semantics.floor_division(*meet(*v))])


@row("cdiv")
def cdiv(g: Grammar) -> None:
    """Quotients of integers, rounded up."""
    tiles, a, b, dtype, shape, meet = pair(g, INTEGERS)

    def up(x: Any, y: Any) -> Any:
        whole, rest = np.floor_divide(x, y), np.remainder(x, y)
        return (whole + ((rest != 0) & (y != 0)).astype(x.dtype)).astype(x.dtype)

    g.let(f"tk.cdiv({a}, {b})", tiles, dtype, shape, lambda *v: _spread(certain(up, *meet(*v)), shape))


@row("pow")
def power(g: Grammar) -> None:
    """Powers: of integers, of floats to a constant or to a tile."""
    x = g.some(NUMBERS)
    if not is_float(x.dtype):
        y = g.exactly_like(x)
        text = "{0} ** {1}" if g.draw.chance(50) else "tk.pow({0}, {1})"
        g.let(text, [x, y], x.dtype, x.shape, lambda a, b: certain(semantics.power_of_integers, a, b))
        return
    exponent = g.draw.pick([2, 3, 0.5, -1, 1.5])
    bound = 1.0 if x.dtype.itemsize == 2 else 2.0 if x.dtype == F64 else 4.0

    def compute(a: Value) -> Value:
        with np.errstate(all="ignore"):
            long = a.array.astype(np.longdouble if x.dtype == F64 else np.float64)
            return semantics.near(np.power(long, np.full(long.shape, exponent, long.dtype)), x.dtype, bound, a)

    if exponent == 2:
        g.let("{0} ** 2", [x], x.dtype, x.shape, lambda a: semantics.mul(a, a))
    else:
        g.let(f"{{0}} ** {exponent}" if exponent != 3 else "tk.pow({0}, 3)", [x], x.dtype, x.shape, compute, sure=False)


@row("negative")
def negative(g: Grammar) -> None:
    """With the other sign."""
    x = g.some(NUMBERS, sure=False)
    g.let("-{0}" if g.draw.chance(50) else "tk.negative({0})", [x], x.dtype, x.shape, semantics.negative)


@row("abs")
def absolute(g: Grammar) -> None:
    """Without a sign."""
    x = g.some(NUMBERS, sure=False)
    text = "abs({0})" if g.draw.chance(50) else "tk.abs({0})"
    g.let(text, [x], x.dtype, x.shape, lambda a: Value(np.abs(a.array), a.error))


@row("mulhi")
def mulhi(g: Grammar) -> None:
    """The upper half of a product."""
    x = g.some(INTEGERS)
    y = g.exactly_like(x)
    bits = 8 * x.dtype.itemsize

    def high(p: Any, q: Any) -> Any:
        flat = [int(a) * int(b) >> bits for a, b in zip(p.reshape(-1), q.reshape(-1), strict=True)]
        return np.array(flat, object).reshape(p.shape).astype(x.dtype)

    g.let("tk.mulhi({0}, {1})", [x, y], x.dtype, x.shape, lambda a, b: certain(high, a, b))


# ------------------------------------------------------------------------------------------------------------- bits, comparisons


def _bitwise(name: str, symbol: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        tiles, a, b, dtype, shape, meet = pair(g, [INT32, BOOL, *INTEGERS[1:]])
        text = f"{a} {symbol} {b}" if g.draw.chance(50) else f"tk.{name}({a}, {b})"
        g.let(text, tiles, dtype, shape, lambda *v: _spread(certain(function, *meet(*v)), shape))


_bitwise("bitwise_and", "&", np.bitwise_and)
_bitwise("bitwise_or", "|", np.bitwise_or)
_bitwise("bitwise_xor", "^", np.bitwise_xor)


def _shift(name: str, symbol: str, left: bool) -> None:
    def shifted(p: Any, q: Any) -> Any:
        bits = 8 * p.dtype.itemsize
        flat = []
        for a, n in zip(p.reshape(-1).tolist(), np.broadcast_to(q, p.shape).reshape(-1).tolist(), strict=True):
            value = (a << min(n, bits)) & ((1 << bits) - 1) if left else a >> min(n, bits)
            flat.append(value - (1 << bits) if p.dtype.kind == "i" and value >= 1 << (bits - 1) else value)
        return np.array(flat, p.dtype).reshape(p.shape)

    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some(INTEGERS)
        distance = g.draw.below(8 * x.dtype.itemsize + 2)
        if g.draw.chance(60):
            text = f"{{0}} {symbol} {distance}" if g.draw.chance(50) else f"tk.{name}({{0}}, {distance})"
            g.let(text, [x], x.dtype, x.shape, lambda a: certain(lambda p: shifted(p, np.array(distance)), a))
            return
        y = g.exactly_like(x)
        z = g.let("{0} & 31", [y], x.dtype, x.shape, lambda a: certain(lambda p: p & p.dtype.type(31), a))
        g.let(f"{{0}} {symbol} {{1}}", [x, z], x.dtype, x.shape, lambda a, b: certain(shifted, a, b))


_shift("bitwise_lshift", "<<", True)
_shift("bitwise_rshift", ">>", False)


@row("bitwise_not")
def bitwise_not(g: Grammar) -> None:
    """All bits the other way round."""
    x = g.some([INT32, BOOL, *INTEGERS[1:]])
    text = "~{0}" if g.draw.chance(50) else "tk.bitwise_not({0})"
    g.let(text, [x], x.dtype, x.shape, lambda a: certain(np.invert, a))


def _counted(name: str, function: Callable[[int, int], int]) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some(INTEGERS)
        bits = 8 * x.dtype.itemsize

        def count(p: Any) -> Any:
            return np.array([function(int(v) % (1 << bits), bits) for v in p.reshape(-1)], np.int32).reshape(p.shape)

        g.let(f"tk.{name}({{0}})", [x], INT32, x.shape, lambda a: certain(count, a))


_counted("popcount", lambda v, _: v.bit_count())
_counted("clz", lambda v, bits: bits - v.bit_length())


def _comparison(name: str, symbol: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        tiles, a, b, _, shape, meet = pair(g, [*NUMBERS, BOOL])
        text = f"{a} {symbol} {b}" if g.draw.chance(50) else f"tk.{name}({a}, {b})"
        g.let(text, tiles, BOOL, shape, lambda *v: _spread(certain(function, *map(_comparable, meet(*v))), shape))


def _comparable(value: Value) -> Value:
    return Value(value.array.astype(np.float64), value.error) if is_float(value.dtype) else value


for _name, _symbol, _function in [
    ("equal", "==", np.equal), ("not_equal", "!=", np.not_equal), ("less", "<", np.less), ("less_equal", "<=", np.less_equal),
    ("greater", ">", np.greater), ("greater_equal", ">=", np.greater_equal),
]:  # fmt: skip
    _comparison(_name, _symbol, _function)


def _truth(a: Value) -> Value:
    return cast(a, BOOL)


def _logical(name: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some([BOOL, *NUMBERS])
        y = g.partner(x, [x.dtype])
        shape = meeting(x.shape, y.shape)
        g.let(f"tk.{name}({{0}}, {{1}})", [x, y], BOOL, shape or (), lambda a, b: certain(function, _truth(a), _truth(b)))


_logical("logical_and", np.logical_and)
_logical("logical_or", np.logical_or)
_logical("logical_xor", np.logical_xor)


@row("logical_not")
def logical_not(g: Grammar) -> None:
    """What is zero."""
    x = g.some([BOOL, *NUMBERS])
    g.let("tk.logical_not({0})", [x], BOOL, x.shape, lambda a: certain(np.logical_not, _truth(a)))


def _kind(name: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some(FLOATS)
        g.let(f"tk.{name}({{0}})", [x], BOOL, x.shape, lambda a: certain(lambda p: function(p.astype(np.float64)), a))


for _name, _function in [("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)]:
    _kind(_name, _function)


# ------------------------------------------------------------------------------------------------------- choices and conversions


@row("where")
def where(g: Grammar) -> None:
    """A choice by element."""
    tiles, a, b, dtype, shape, meet = pair(g, [*NUMBERS, BOOL], sure=False)
    condition = [v for v in g.scope if v.dtype == BOOL and v.shape == shape and v.sure]
    if condition and g.draw.chance(70):
        chosen = g.draw.pick(condition[::-1])
    else:
        x = g.fresh(INT32, shape) if shape else g.some([INT32], rank=0)
        chosen = g.let("{0} > 0", [x], BOOL, shape, lambda v: certain(lambda p: p > 0, v))
    moved = [t.replace("{1}", "{2}").replace("{0}", "{1}") for t in (a, b)]
    g.let(
        f"tk.where({{0}}, {moved[0]}, {moved[1]})",
        [chosen, *tiles],
        dtype,
        shape,
        lambda c, *v: semantics.where(c, *(_spread(w, shape) for w in meet(*v))),
    )


def _extreme(name: str, larger: bool) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        tiles, a, b, dtype, shape, meet = pair(g, NUMBERS, sure=False)
        keep = g.draw.chance(30) and all(t.sure for t in tiles)
        more = ", propagate_nan=False" if keep else ""
        text = f"tk.{name}({a}, {b}{more})"
        g.let(text, tiles, dtype, shape, lambda *v: _spread(semantics.extreme(*meet(*v), larger, not keep), shape))


_extreme("minimum", False)
_extreme("maximum", True)


@row("clip")
def clip(g: Grammar) -> None:
    """Between two bounds."""
    x = g.some(NUMBERS, sure=False)
    low, high = g.draw.pick([(0, 3), (1, 2), (3, 1)] if x.dtype.kind == "u" else [(-2, 3), (0, 2), (2, -1)])

    def compute(a: Value) -> Value:
        bounds = [Value(np.array(b).astype(x.dtype)) for b in (low, high)]
        return semantics.extreme(semantics.extreme(a, bounds[0], True), bounds[1], False)

    g.let(f"tk.clip({{0}}, {low}, {high})", [x], x.dtype, x.shape, compute)


@row("sign")
def sign(g: Grammar) -> None:
    """1, 0 or -1."""
    x = g.some(NUMBERS)

    def compute(a: Value) -> Value:
        number = a.array.astype(np.float64) if is_float(x.dtype) else a.array
        made = np.where(number > 0, 1, np.where(number < 0, -1, 0)).astype(np.float64)
        if is_float(x.dtype):
            made = np.where(np.isnan(number), np.nan, made)
            zero = number == 0
            return Value(made.astype(x.dtype), np.maximum(np.where(a.off > 0, np.inf, 0), np.where(zero, semantics.TINY, 0)))
        return Value(made.astype(x.dtype), np.where(a.off > 0, np.inf, 0))

    g.let("tk.sign({0})", [x], x.dtype, x.shape, compute)


@row("copysign")
def copysign(g: Grammar) -> None:
    """The sign of another; that of a NaN is nobody's promise."""
    x = g.some(FLOATS)
    y = g.exactly_like(x)

    def compute(a: Value, b: Value) -> Value:
        made = np.copysign(a.array.astype(np.float64), b.array.astype(np.float64)).astype(x.dtype)
        unknown = (a.off > 0) | (b.off > 0) | np.isnan(b.array.astype(np.float64))
        return Value(made, np.where(unknown & ~np.isnan(made.astype(np.float64)), np.inf, 0.0))

    g.let("tk.copysign({0}, {1})", [x, y], x.dtype, x.shape, compute)


def _whole(name: str, function: Any) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some(FLOATS)
        text = f"tk.{name}({{0}})"
        g.let(text, [x], x.dtype, x.shape, lambda a: certain(lambda p: function(p.astype(np.float64)).astype(p.dtype), a))


for _name, _function in [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("round", np.rint)]:
    _whole(_name, _function)


@row("astype")
def astype(g: Grammar) -> None:
    """Any dtype to any other."""
    x = g.some(None, sure=False)
    dtype = g.dtype(list(DTYPES.values()))
    if not x.sure and not (is_float(dtype) and is_float(x.dtype) and dtype not in EIGHTS):
        raise Unfit
    if is_float(x.dtype) and is_float(dtype) and x.sure and not {x.dtype, dtype} & set(EIGHTS) and g.draw.chance(30):
        mode = g.draw.pick(["nearest_even", "zero", "negative_inf", "positive_inf"])
        text = f"{{0}}.astype({dtype_text(dtype)}, rounding_mode={mode!r})"
        g.let(text, [x], dtype, x.shape, lambda a: cast(a, dtype, mode))
        return
    g.converted(x, dtype)


@row("bitcast")
def bitcast(g: Grammar) -> None:
    """The same bits as another dtype."""
    x = g.some([F32, *INTEGERS, *FLOATS[1:], *EIGHTS])
    dtype = g.dtype([d for d in DTYPES.values() if d.itemsize == x.dtype.itemsize and d != BOOL])

    def compute(a: Value) -> Value:
        unknown = a.off > 0
        if is_float(x.dtype):
            unknown = unknown | np.isnan(a.array.astype(np.float64))
        made = np.ascontiguousarray(a.array).view(dtype).reshape(a.array.shape)
        return Value(made, np.where(unknown, np.inf, 0.0))

    sure = g.mode == "exact" or not is_float(dtype)
    g.let(f"tk.bitcast({{0}}, {dtype_text(dtype)})", [x], dtype, x.shape, compute, sure=sure)


def _mathematics(name: str) -> None:
    @row(name)
    def grow(g: Grammar) -> None:
        x = g.some(FLOATS)
        if name == "exp" and x.dtype == F32 and g.draw.chance(15):
            text = "tk.exp({0}, rounding_mode='full')"
        else:
            text = f"tk.{name}({{0}})"
        g.let(text, [x], x.dtype, x.shape, lambda a: semantics.mathematics(name, a), sure=False)


for _name in semantics.MATHS:
    _mathematics(_name)


@row("sqrt")
def sqrt(g: Grammar) -> None:
    """Rounded correctly, in any direction."""
    x = g.some(FLOATS)
    mode = g.draw.pick([None, "nearest_even", "zero", "negative_inf", "positive_inf"])
    more = f", rounding_mode={mode!r}" if mode else ""
    g.let(f"tk.sqrt({{0}}{more})", [x], x.dtype, x.shape, lambda a: semantics.exactly("sqrt", x.dtype, mode, a))


@row("atan2")
def atan2(g: Grammar) -> None:
    """An angle."""
    x = g.some(FLOATS)
    y = g.exactly_like(x)

    def compute(a: Value, b: Value) -> Value:
        p, q = (v.array.astype(np.longdouble if x.dtype == F64 else np.float64) for v in (a, b))
        return semantics.near(np.arctan2(p, q), x.dtype, semantics.stated("atan2", x.dtype), a, b)

    g.let("tk.atan2({0}, {1})", [x, y], x.dtype, x.shape, compute, sure=False)


# ---------------------------------------------------------------------------------------------------------------- random numbers


def _offsets(g: Grammar) -> Var:
    x = g.some([INT32, DTYPES["uint32"], DTYPES["int64"], DTYPES["uint64"]])
    if g.draw.chance(50):
        return x
    n = g.draw.pick([8, 16, 32])
    return g.let(f"tk.arange({n})", (), INT32, (n,), lambda: Value(np.arange(n, dtype=np.int32)))


@row("philox")
def philox(g: Grammar) -> None:
    """Four words."""
    seed, x = g.number(0, 1000), _offsets(g)
    seed_value, more = seed.low, g.draw.below(3)
    if seed.low != seed.high:
        seed_value, text = 17, "17"
    else:
        text = seed.text
    word = DTYPES["uint32"]

    def compute(a: Value) -> list[Value]:
        words = semantics.philox(seed_value, [a.array.astype(np.uint32), np.uint32(more), np.uint32(0), np.uint32(0)])
        return [Value(w.astype(np.uint32), np.where(a.off > 0, np.inf, 0.0)) for w in words]

    g.lets(f"tk.philox({text}, {{0}}, {more})", [x], [(word, x.shape)] * 4, compute)


@row("rand")
def rand(g: Grammar) -> None:
    """Uniform numbers."""
    seed, x, dtype = g.draw.below(2**33), _offsets(g), g.dtype(FLOATS)
    text = f"tk.rand({seed}, {{0}}, {dtype_text(dtype)})"
    g.let(text, [x], dtype, x.shape, lambda a: certain(lambda p: semantics.uniform(seed, p, dtype), a))


@row("randn")
def randn(g: Grammar) -> None:
    """Normal numbers."""
    seed, x, dtype = g.draw.below(2**33), _offsets(g), g.dtype(FLOATS)

    def compute(a: Value) -> Value:
        made = semantics.normal(seed, a.array, dtype)
        return Value(made.array, np.where(a.off > 0, np.inf, made.off))

    g.let(f"tk.randn({seed}, {{0}}, {dtype_text(dtype)})", [x], dtype, x.shape, compute, sure=False)


@row("randint")
def randint(g: Grammar) -> None:
    """Integers between bounds."""
    seed, x, dtype = g.draw.below(2**33), _offsets(g), g.dtype(INTEGERS)
    low, high = g.draw.pick([(0, 6), (1, 100), (0, 1)])
    text = f"tk.randint({seed}, {{0}}, {low}, {high}, {dtype_text(dtype)})"
    g.let(text, [x], dtype, x.shape, lambda a: certain(lambda p: semantics.integers(seed, p, low, high, dtype), a))


@other
def reflected(g: Grammar) -> None:
    """An operator with a bool and a number, or `+t`."""
    x = g.some(NUMBERS, sure=False)
    g.let("+{0}", [x], x.dtype, x.shape, lambda a: a)
