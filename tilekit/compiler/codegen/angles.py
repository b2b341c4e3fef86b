"""Sine, cosine and tangent of float32 by range reduction and a polynomial, without the local memory of CUDA's library.

An angle is reduced to r between -pi/4 and pi/4 and the quarter of the turn that it lies in; then a polynomial is the sine or the
cosine of r. Their coefficients are minimax on that range, and give sines and cosines at most 1.5 units in the last place off.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.types import i32, i64, integer

__all__ = ["cosine", "sine", "tangent"]

_f32, _f64 = ir.FloatType(), ir.DoubleType()

# pi/2 in three parts of float32: with a fused multiply-add each, enough for angles up to this.
_PARTS = (float.fromhex("0x1.921fb0p+0"), float.fromhex("0x1.5110b4p-22"), float.fromhex("0x1.846988p-48"))
_LARGE = 105615.0
# 2 ** 30 * 2 / pi in words of 32 bits, behind one that is 0.
_TWO_OVER_PI = (0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA)
_WHOLE = 12582912.0  # 1.5 * 2**23: adding it leaves a whole number in the lowest bits

_SINE = (2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
_COSINE = (2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -5.0e-1, 1.0)


def sine(b: ir.IRBuilder, x: ir.Value, *, small: bool = False) -> ir.Value:
    """sin(x); `small` says that x is at most 105615."""
    r, quarter = _reduced(b, x, small)
    return _of_quarter(b, r, quarter)


def cosine(b: ir.IRBuilder, x: ir.Value, *, small: bool = False) -> ir.Value:
    """cos(x), as `sine`."""
    r, quarter = _reduced(b, x, small)
    return _of_quarter(b, r, b.add(quarter, integer(32, 1)))


def tangent(b: ir.IRBuilder, x: ir.Value, *, small: bool = False) -> ir.Value:
    """tan(x), as `sine`."""
    r, quarter = _reduced(b, x, small)
    s, c = _both(b, r)
    odd = b.trunc(quarter, ir.IntType(1))
    above = b.select(odd, arithmetic.negate(dtypes.float32)(b, c), s)
    below = b.select(odd, s, c)
    reciprocal = arithmetic.reciprocal(b, below)
    quotient = b.fmul(above, reciprocal)
    better = arithmetic.fma(
        b, arithmetic.fma(b, arithmetic.negate(dtypes.float32)(b, quotient), below, above), reciprocal, quotient
    )
    return b.select(b.fcmp_ordered("==", r, _single(0.0)), quotient, better)  # keeps -0


def _single(value: float) -> ir.Constant:
    return ir.Constant(_f32, value)


def _polynomial(b: ir.IRBuilder, coefficients: Sequence[float], square: ir.Value) -> ir.Value:
    value: ir.Value = _single(coefficients[0])
    for coefficient in coefficients[1:]:
        value = arithmetic.fma(b, value, square, _single(coefficient))
    return value


def _both(b: ir.IRBuilder, r: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Sine and cosine, for abs(r) <= pi/4."""
    square = b.fmul(r, r)
    cube = arithmetic.fma(b, r, square, _single(0.0))  # 0 of -0 too, which then stays -0
    return arithmetic.fma(b, _polynomial(b, _SINE, square), cube, r), _polynomial(b, _COSINE, square)


def _of_quarter(b: ir.IRBuilder, r: ir.Value, quarter: ir.Value) -> ir.Value:
    s, c = _both(b, r)
    magnitude = b.select(b.trunc(quarter, ir.IntType(1)), c, s)
    negative = b.icmp_unsigned("!=", b.and_(quarter, integer(32, 2)), integer(32, 0))
    return b.select(negative, arithmetic.negate(dtypes.float32)(b, magnitude), magnitude)


def _reduced(b: ir.IRBuilder, x: ir.Value, small: bool) -> tuple[ir.Value, ir.Value]:
    """What is left of x without quarter turns, and their number (its lowest two bits are right); NaN of infinities and NaN."""
    shifted = arithmetic.fma(b, x, _single(2.0 / 3.141592653589793), _single(_WHOLE))
    quarter = b.bitcast(shifted, i32)
    turns = b.fsub(shifted, _single(_WHOLE))
    r = x
    for part in _PARTS:
        r = arithmetic.fma(b, turns, _single(-part), r)
    if small:
        return r, quarter
    size = arithmetic.absolute(dtypes.float32)(b, x)
    large = b.and_(b.fcmp_ordered(">", size, _single(_LARGE)), b.fcmp_ordered("<", size, _single(float("inf"))))
    before = b.block
    slow, after = b.append_basic_block("angle.large"), b.append_basic_block("angle")
    b.cbranch(large, slow, after)
    b.position_at_end(slow)
    reduced = _reduced_exactly(b, x)
    slow_end = b.block
    b.branch(after)
    b.position_at_end(after)
    chosen = []
    for usual, exact in zip((r, quarter), reduced, strict=True):
        phi = b.phi(usual.type)
        phi.add_incoming(usual, before)
        phi.add_incoming(exact, slow_end)
        chosen.append(phi)
    return chosen[0], chosen[1]


def _reduced_exactly(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """As `_reduced`, of large numbers (Payne and Hanek): of x * 2 / pi only the bits about the point are computed."""
    bits = b.bitcast(x, i32)
    exponent = b.sub(b.and_(b.lshr(bits, integer(32, 23)), integer(32, 0xFF)), integer(32, 126))
    mantissa = b.zext(b.or_(b.shl(bits, integer(32, 8)), integer(32, 0x80000000)), i64)
    first, shift = b.lshr(exponent, integer(32, 5)), b.zext(b.and_(exponent, integer(32, 31)), i64)
    digits = [b.trunc(b.lshr(first, integer(32, n)), ir.IntType(1)) for n in range(3)]

    def word(k: int) -> ir.Value:
        """Word `first + k`, of `first` from 0 to 4."""
        w = [integer(64, value) for value in _TWO_OVER_PI[k : k + 5]]
        low = b.select(digits[1], b.select(digits[0], w[3], w[2]), b.select(digits[0], w[1], w[0]))
        return b.select(digits[2], w[4], low)

    words = [word(k) for k in range(4)]
    mask, half = integer(64, 0xFFFFFFFF), integer(64, 32)
    high, middle, low = (b.lshr(b.shl(b.or_(b.shl(one, half), two), shift), half) for one, two in pairwise(words))
    # Two bits before the point, 62 behind it.
    product = b.add(b.mul(mantissa, b.and_(middle, mask)), b.lshr(b.mul(mantissa, b.and_(low, mask)), half))
    product = b.add(b.shl(b.mul(mantissa, b.and_(high, mask)), half), product)
    up = b.and_(b.lshr(product, integer(64, 61)), integer(64, 1))
    quarter = b.trunc(b.add(b.lshr(product, integer(64, 62)), up), i32)
    # The two bits before the point leave; what is left is a signed fraction, of which pi/2 * 2**-64 is the unit.
    fraction = b.sitofp(b.shl(product, integer(64, 2)), _f64)
    r = b.fptrunc(b.fmul(fraction, ir.Constant(_f64, float.fromhex("0x1.921fb54442d18p-64"))), _f32)
    negative = b.icmp_signed("<", bits, integer(32, 0))
    r = b.select(negative, arithmetic.negate(dtypes.float32)(b, r), r)
    return r, b.select(negative, b.neg(quarter), quarter)
