"""Division, modulo and powers of single elements, by Python's rules."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.convert import signed
from tilekit.compiler.codegen.emit import masked
from tilekit.compiler.codegen.floats import library
from tilekit.compiler.codegen.types import constant
from tilekit.dtypes import DType

__all__ = ["ceiling_quotient", "floor_quotient", "power", "power_by", "remainder"]

Binary = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def floor_quotient(dtype: DType, divisor: int | None = None) -> Binary:
    """`//`: 0 for an integer divided by zero.

    Args:
        dtype: of the operands.
        divisor: if it is known.
    """
    if dtypes.is_float(dtype):
        return arithmetic.via_float32(dtype, lambda b, x, y: _floats(b, x, y)[0])
    places = _places(divisor)
    if places is not None:
        return lambda b, x, y: (b.ashr if signed(dtype) else b.lshr)(x, constant(dtype, places))
    return lambda b, x, y: _floor(b, x, y, dtype)[0]


def remainder(dtype: DType, divisor: int | None = None) -> Binary:
    """`%`, with the sign of the divisor: 0 for an integer modulo zero."""
    if dtypes.is_float(dtype):
        return arithmetic.via_float32(dtype, lambda b, x, y: _floats(b, x, y)[1])
    if _places(divisor) is not None and divisor is not None:
        return lambda b, x, y: masked(b, x, constant(dtype, divisor - 1))
    return lambda b, x, y: _floor(b, x, y, dtype)[1]


def ceiling_quotient(dtype: DType) -> Binary:
    """The quotient of integers, rounded up; 0 where the divisor is zero."""

    def ceiling(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        quotient, rest = _cut(b, x, y, dtype)
        up = b.icmp_unsigned("!=", rest, constant(dtype, 0))
        if signed(dtype):
            up = b.and_(up, b.icmp_signed(">=", b.xor(rest, y), constant(dtype, 0)))
        return b.add(quotient, b.zext(up, x.type))

    return ceiling


def _places(divisor: int | None) -> int | None:
    """The exponent, if the divisor is a power of two."""
    return divisor.bit_length() - 1 if divisor is not None and divisor > 0 and not divisor & (divisor - 1) else None


def _cut(b: ir.IRBuilder, x: ir.Value, y: ir.Value, dtype: DType) -> tuple[ir.Value, ir.Value]:
    """C's quotient and remainder of integers; both 0 where the divisor is 0, and wrapped where it is -1.

    LLVM gives no meaning to either division; one by 1 stands in for it. Of a divisor that is known, nothing of this is left.
    """
    zero, one = constant(dtype, 0), constant(dtype, 1)
    nothing = b.icmp_unsigned("==", y, zero)
    if not signed(dtype):
        safe = b.select(nothing, one, y)
        quotient = b.udiv(x, safe)
        rest = b.sub(x, b.mul(quotient, safe))
        return b.select(nothing, zero, quotient), b.select(nothing, zero, rest)
    minus = b.icmp_unsigned("==", y, constant(dtype, -1))
    safe = b.select(b.or_(nothing, minus), one, y)
    quotient = b.sdiv(x, safe)
    rest = b.sub(x, b.mul(quotient, safe))
    return b.select(nothing, zero, b.select(minus, b.neg(x), quotient)), rest


def _floor(b: ir.IRBuilder, x: ir.Value, y: ir.Value, dtype: DType) -> tuple[ir.Value, ir.Value]:
    quotient, rest = _cut(b, x, y, dtype)
    if not signed(dtype):
        return quotient, rest
    inexact = b.icmp_unsigned("!=", rest, constant(dtype, 0))
    below = b.and_(inexact, b.icmp_signed("<", b.xor(rest, y), constant(dtype, 0)))
    return b.sub(quotient, b.zext(below, x.type)), b.select(below, b.add(rest, y), rest)


def _floats(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """NumPy's way: the remainder is exact, and the quotient the whole number that goes with it."""
    zero, half, one = (ir.Constant(x.type, v) for v in (0.0, 0.5, 1.0))
    whole = b.fcmp_unordered("!=", y, zero)
    rest = library("fmod")(b, x, y)
    quotient = b.fdiv(b.fsub(x, rest), y)
    left = b.fcmp_unordered("!=", rest, zero)
    other = b.and_(left, b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", rest, zero)))
    quotient = b.select(other, b.fsub(quotient, one), quotient)
    modulo = b.select(left, b.select(other, b.fadd(rest, y), rest), library("copysign")(b, zero, y))
    plain = b.fdiv(x, y)
    floor = library("floor")(b, quotient)
    floor = b.select(b.fcmp_ordered(">", b.fsub(quotient, floor), half), b.fadd(floor, one), floor)
    floor = b.select(b.fcmp_unordered("!=", quotient, zero), floor, library("copysign")(b, zero, plain))
    return b.select(whole, floor, plain), b.select(whole, modulo, rest)


def power_by(dtype: DType, exponent: float) -> Callable[[ir.IRBuilder, ir.Value], ir.Value] | None:
    """The power by 2, 3 or 4, as products; None for others."""
    if exponent not in (2, 3, 4):
        return None
    if exponent == 2:
        return lambda b, x: arithmetic.binary("*", dtype)(b, x, x)
    times = arithmetic.binary("*", dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype)

    def product(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        square = times(b, x, x)
        return times(b, square, x if exponent == 3 else square)

    return arithmetic.via_float32(dtype, product)


def power(dtype: DType) -> Binary:
    """`**`."""
    if dtypes.is_float(dtype):
        return arithmetic.via_float32(dtype, library("pow"))
    return lambda b, x, y: _integer_power(b, x, y, dtype)


def _integer_power(b: ir.IRBuilder, x: ir.Value, y: ir.Value, dtype: DType) -> ir.Value:
    """By squaring, in a loop of as many steps as the exponent has bits."""
    zero, one = constant(dtype, 0), constant(dtype, 1)
    before = b.block
    loop = b.append_basic_block("power")
    after = b.append_basic_block("power.end")
    b.branch(loop)
    b.position_at_end(loop)
    result, square, rest = (b.phi(x.type) for _ in range(3))
    product = b.select(b.icmp_unsigned("!=", b.and_(rest, one), zero), b.mul(result, square), result)
    squared, shifted = b.mul(square, square), b.lshr(rest, one)
    for phi, first, following in ((result, one, product), (square, x, squared), (rest, y, shifted)):
        phi.add_incoming(first, before)
        phi.add_incoming(following, loop)
    b.cbranch(b.icmp_unsigned("!=", shifted, zero), loop, after)
    b.position_at_end(after)
    if not signed(dtype):
        return product
    # To a negative power only 1 and -1 leave something.
    unit = b.or_(b.icmp_signed("==", x, one), b.icmp_signed("==", x, constant(dtype, -1)))
    odd = b.icmp_unsigned("!=", b.and_(y, one), zero)
    alone = b.select(unit, b.select(odd, x, one), zero)
    return b.select(b.icmp_signed("<", y, zero), alone, product)
