"""Lowering of `tilekit.lang.exponential`: exponentials, logarithms, roots, sigmoid; PTX approximations or libdevice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.floats import check, floating, library
from tilekit.compiler.codegen.operands import map_elements
from tilekit.compiler.codegen.rounding import directed, modes
from tilekit.lang import exponential as lang
from tilekit.lang import rounding
from tilekit.lang.rounding import RoundingMode

__all__: list[str] = []

_f32 = ir.FloatType()
_LOG2_E = 1.4426950408889634


def _one(b: ir.IRBuilder, text: str, x: ir.Value) -> ir.Value:
    """A PTX instruction on one float32."""
    return asm(b, f"{text} $0, $1;", "=f,f", _f32, [x])


def _exp2_approx(b: ir.IRBuilder, x: ir.Value, ftz: str = "") -> ir.Value:
    return _one(b, f"ex2.approx{ftz}.f32", x)


def _exp_approx(b: ir.IRBuilder, x: ir.Value, ftz: str = "") -> ir.Value:
    return _exp2_approx(b, b.fmul(x, ir.Constant(_f32, _LOG2_E)), ftz)


@lowers(lang.exp)
def exp(x: types.Type, rounding_mode: types.Type) -> Any:
    tile = check("exp", x)
    mode, _ = modes("exp", rounding.EXPONENTIAL, rounding_mode, None, tile.dtype)
    function = library("exp")
    if mode == RoundingMode.APPROX:
        function = _exp_approx
    elif tile.dtype == dtypes.float16:  # 2**-20 off, where half a unit of a float16 is 2**-12; its subnormals are large
        function = lambda b, v: _exp_approx(b, v, ".ftz")  # noqa: E731
    elif tile.dtype == dtypes.bfloat16:  # 2**-17 off at the ends of the range, where half a unit is 2**-9
        function = _exp_approx
    result, emit = map_elements((x,), tile, tile.dtype, arithmetic.via_float32(tile.dtype, function))
    return result, lambda builder, value, _: emit(builder, value)


@lowers(lang.exp2)
def exp2(x: types.Type, flush_to_zero: types.Type) -> Any:
    tile = check("exp2", x)
    _, flush = modes("exp2", (), types.none, flush_to_zero, tile.dtype)
    function = library("exp2")
    if flush or tile.dtype == dtypes.float16:
        function = lambda b, v: _exp2_approx(b, v, ".ftz")  # noqa: E731
    elif tile.dtype != dtypes.float64:
        function = _exp2_approx
    result, emit = map_elements((x,), tile, tile.dtype, arithmetic.via_float32(tile.dtype, function))
    return result, lambda builder, value, _: emit(builder, value)


@lowers(lang.sqrt)
def sqrt(x: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    tile = check("sqrt", x)
    mode, flush = modes("sqrt", rounding.ROOT, rounding_mode, flush_to_zero, tile.dtype)
    if mode in (None, RoundingMode.RN) and not flush:
        function = arithmetic.square_root(tile.dtype)
    else:
        function = directed("sqrt", mode, flush, tile.dtype)
    result, emit = map_elements((x,), tile, tile.dtype, function)
    return result, lambda builder, value, *_: emit(builder, value)


@lowers(lang.rsqrt)
def rsqrt(x: types.Type, flush_to_zero: types.Type) -> Any:
    tile = check("rsqrt", x)
    _, flush = modes("rsqrt", (), types.none, flush_to_zero, tile.dtype)
    function = library("rsqrt")
    if flush or tile.dtype == dtypes.float16:
        function = lambda b, v: _one(b, "rsqrt.approx.ftz.f32", v)  # noqa: E731
    result, emit = map_elements((x,), tile, tile.dtype, arithmetic.via_float32(tile.dtype, function))
    return result, lambda builder, value, _: emit(builder, value)


def _decay(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp(-abs(x)), which is at most 1."""
    dtype = dtypes.float32 if x.type == _f32 else dtypes.float64
    return library("exp")(b, arithmetic.negate(dtype)(b, arithmetic.absolute(dtype)(b, x)))


def _sigmoid(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e / (1 + e) or 1 / (1 + e), where e = exp(-abs(x)): nothing overflows, and the divisor lies between 1 and 2."""
    one, e = ir.Constant(x.type, 1.0), _decay(b, x)
    above, divisor = b.select(b.fcmp_ordered("<", x, ir.Constant(x.type, 0.0)), e, one), b.fadd(one, e)
    if x.type == _f32:
        return b.fmul(above, _one(b, "rcp.approx.ftz.f32", divisor))
    return b.fdiv(above, divisor)


def _softplus(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """max(x, 0) + log1p(exp(-abs(x))): nothing overflows, and below 0 nothing is added. NaN comes from the second term.

    In float32 `exp` is 2 ulp off, `log1p` 1: just above a power of two, 2 ulp are 4 of the numbers below it, which makes 5.
    """
    zero = ir.Constant(x.type, 0.0)
    return b.fadd(b.select(b.fcmp_ordered(">", x, zero), x, zero), library("log1p")(b, _decay(b, x)))


def _function(name: str, function: Callable[..., ir.Value]) -> Callable[..., Any]:
    return lambda x: floating(name, x, function)


for _name in ("expm1", "log", "log2", "log10", "log1p", "cbrt", "erf", "erfc"):
    lowers(getattr(lang, _name))(_function(_name, library(_name)))
lowers(lang.sigmoid)(_function("sigmoid", _sigmoid))
lowers(lang.softplus)(_function("softplus", _softplus))
