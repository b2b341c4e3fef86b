"""Functions of floats: exponentials by polynomials in vectors, the others by the C library, lane by lane, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, f32, f64, i32, i64
from tilekit.compiler.cpu.elementwise import mapped, meet
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Tile
from tilekit.compiler.cpu.values import Unsupported

__all__: list[str] = []

# e^r for |r| <= log(2) / 2, and 2^r for |r| <= 1/2: Taylor's series, cut where it is below half a unit in the last place.
_TERMS = {4: 7, 8: 13}
_LOG2E = 1 / math.log(2)
# log(2) in two parts, of which the first times a small whole number is exact (W. J. Cody, W. Waite: Software Manual for the
# Elementary Functions, 1980).
_PARTS = {4: (0.693359375, -2.12194440e-4), 8: (0.6931471803691238, 1.9082149292705877e-10)}
_BIASES = {4: (127, 23), 8: (1023, 52)}


def _itemsize(x: ir.Value) -> int:
    kind = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    return 4 if kind == f32 else 8


def _polynomial(k: Code, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """By Horner's rule, the highest power first."""
    result: ir.Value = k.like(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = _fused(k, result, x, k.like(coefficient, x))
    return result


def _fused(k: Code, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return k.intrinsic("fma", x, y, z) if k.machine.fused else k.b.fadd(k.b.fmul(x, y), z)


def _scaled(k: Code, x: ir.Value, power: ir.Value) -> ir.Value:
    """x * 2^power for whole numbers as floats; in two steps, so that subnormal results are rounded once."""
    size = _itemsize(x)
    bias, bits = _BIASES[size]
    whole = k.b.fptosi(power, k.with_lanes(i32 if size == 4 else i64, power))
    half = k.b.ashr(whole, k.like(1, whole))
    for part in (half, k.b.sub(whole, half)):
        shifted = k.b.shl(k.b.add(part, k.like(bias, part)), k.like(bits, part))
        x = k.b.fmul(x, k.b.bitcast(shifted, x.type))
    return x


def exp(k: Code, x: ir.Value) -> ir.Value:
    """e^x of float32 or float64."""
    size = _itemsize(x)
    low, high = (-104.0, 89.0) if size == 4 else (-746.0, 710.0)
    inside = k.intrinsic("minnum", k.intrinsic("maxnum", x, k.like(low, x)), k.like(high, x))
    whole = k.intrinsic("rint", k.b.fmul(inside, k.like(_LOG2E, x)))
    upper, lower = _PARTS[size]
    rest = _fused(k, whole, k.like(-upper, x), inside)
    rest = _fused(k, whole, k.like(-lower, x), rest)
    terms = [1 / math.factorial(n) for n in range(_TERMS[size], 1, -1)]
    series = _polynomial(k, rest, terms)
    value = k.b.fadd(_fused(k, k.b.fmul(rest, rest), series, rest), k.like(1.0, x))
    return k.b.select(k.b.fcmp_unordered("uno", x, x), x, _scaled(k, value, whole))


def exp2(k: Code, x: ir.Value) -> ir.Value:
    """2^x of float32 or float64."""
    size = _itemsize(x)
    low, high = (-151.0, 129.0) if size == 4 else (-1076.0, 1025.0)
    inside = k.intrinsic("minnum", k.intrinsic("maxnum", x, k.like(low, x)), k.like(high, x))
    whole = k.intrinsic("rint", inside)
    rest = k.b.fsub(inside, whole)
    terms = [math.log(2) ** n / math.factorial(n) for n in range(_TERMS[size], 0, -1)]
    value = _fused(k, _polynomial(k, rest, terms), rest, k.like(1.0, x))
    return k.b.select(k.b.fcmp_unordered("uno", x, x), x, _scaled(k, value, whole))


def _library(name: str) -> Callable[..., ir.Value]:
    """A function of the C library's, in float64."""

    def of(k: Code, *values: ir.Value) -> ir.Value:
        def lane(*scalars: ir.Value) -> ir.Value:
            wide = [value if value.type == f64 else k.b.fpext(value, f64) for value in scalars]
            result = k.call(name, f64, wide)
            return result if scalars[0].type == f64 else k.b.fptrunc(result, f32)

        return k.by_lane(lane, *values)

    return of


def _sqrt(k: Code, x: ir.Value) -> ir.Value:
    return k.intrinsic("sqrt", x)


def _rsqrt(k: Code, x: ir.Value) -> ir.Value:
    return k.b.fdiv(k.like(1.0, x), k.intrinsic("sqrt", x))


def _sigmoid(k: Code, x: ir.Value) -> ir.Value:
    """1 / (1 + e^-x), without overflow on either side."""
    e = exp(k, k.b.fneg(k.intrinsic("fabs", x)))
    one = k.like(1.0, x)
    return k.b.fdiv(k.b.select(k.b.fcmp_unordered("uge", x, k.like(0.0, x)) if False else k.b.fcmp_ordered(">=", x, k.like(0.0, x)), one, e), k.b.fadd(one, e))


_FUNCTIONS: dict[str, tuple[Callable[..., ir.Value], int]] = {
    "exp": (exp, 12), "exp2": (exp2, 11), "sqrt": (_sqrt, 5), "rsqrt": (_rsqrt, 8), "sigmoid": (_sigmoid, 18),
    **{
        name: (_library(name), 40)
        for name in (
            "expm1", "log", "log2", "log10", "log1p", "cbrt", "erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
            "cosh", "tanh", "asinh", "acosh", "atanh",
        )
    },
}  # fmt: skip


def _enter(name: str, function: Callable[..., ir.Value], cost: int) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, *, rounding_mode: Any = None, flush_to_zero: bool = False) -> Tile:
        if flush_to_zero or str(rounding_mode).lower() not in ("none", "rn", "full", "approx"):
            raise Unsupported(f"{name} with a rounding mode")
        return mapped(p.k, [x], x.dtype, arithmetic.in_wide(p.k, x.dtype, lambda v: function(p.k, v)), cost)


for _name, (_function, _cost) in _FUNCTIONS.items():
    _enter(_name, _function, _cost)


@lowers("atan2")
def atan2(p: Any, x1: Any, x2: Any) -> Tile:
    """The angle of a point."""
    tiles, dtype = meet(p.k, x1, x2)
    if not dtypes.is_float(dtype):
        raise Unsupported("atan2 of integers")
    return mapped(p.k, tiles, dtype, arithmetic.in_wide(p.k, dtype, lambda u, v: _library("atan2")(p.k, u, v)), 60)
