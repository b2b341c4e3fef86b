"""Narrow floats that CPUs do not know: their bits as float32, and float32 rounded to them, to the nearest, ties to even."""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, f32, i32, type_of
from tilekit.dtypes import DType

__all__ = ["of_narrow", "to_narrow"]


class _Format(NamedTuple):
    """How a float is laid out: its bits, those of its fraction, the bias of its exponent, what overflows become, and NaN."""

    bits: int
    fraction: int
    bias: int
    largest: int
    nan: int


# float8_e4m3fn has no infinities: what overflows is NaN.
_FORMATS = {
    dtypes.float8_e4m3fn: _Format(8, 3, 7, 0x7F, 0x7F),
    dtypes.float8_e5m2: _Format(8, 2, 15, 0x7C, 0x7E),
    dtypes.float16: _Format(16, 10, 15, 0x7C00, 0x7E00),
}


def of_narrow(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
    """An element as float32: its bits in their places there, times the power of two that the exponents' biases differ by."""
    b, form = k.b, _FORMATS[dtype]
    whole = b.bitcast(value, k.with_lanes(ir.IntType(form.bits), value))
    bits = b.zext(whole, k.with_lanes(i32, value))
    sign = 1 << form.bits - 1
    magnitude = b.and_(bits, k.like(sign - 1, bits))
    moved = b.bitcast(b.shl(magnitude, k.like(23 - form.fraction, bits)), k.with_lanes(f32, value))
    number = b.bitcast(b.fmul(moved, k.like(2.0 ** (127 - form.bias), moved)), bits.type)
    if form.largest != form.nan:
        number = b.select(b.icmp_unsigned("==", magnitude, k.like(form.largest, bits)), k.like(0x7F800000, bits), number)
        is_nan = b.icmp_unsigned(">", magnitude, k.like(form.largest, bits))
    else:
        is_nan = b.icmp_unsigned("==", magnitude, k.like(form.nan, bits))
    number = b.select(is_nan, k.like(0x7FC00000, bits), number)
    minus = b.shl(b.and_(bits, k.like(sign, bits)), k.like(32 - form.bits, bits))
    return b.bitcast(b.or_(number, minus), moved.type)


def to_narrow(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
    """float32 as an element."""
    b, form = k.b, _FORMATS[dtype]
    bits = b.bitcast(value, k.with_lanes(i32, value))
    magnitude = b.and_(bits, k.like(0x7FFFFFFF, bits))
    drop, least = 23 - form.fraction, 127 - form.bias + 1
    rebased = b.sub(magnitude, k.like((127 - form.bias) << 23, bits))
    odd = b.and_(b.lshr(rebased, k.like(drop, bits)), k.like(1, bits))
    normal = b.lshr(b.add(b.add(rebased, k.like((1 << drop - 1) - 1, bits)), odd), k.like(drop, bits))
    # Beside this number a unit in the last place of float32 is the smallest subnormal number: a sum is rounded to those.
    anchor = 2.0 ** (1 - form.bias - form.fraction + 23)
    anchored = b.fadd(b.bitcast(magnitude, value.type), k.like(anchor, value))
    zero = b.bitcast(k.like(anchor, value), bits.type)
    small = b.sub(b.bitcast(anchored, bits.type), zero)
    rounded = b.select(b.icmp_unsigned("<", magnitude, k.like(least << 23, bits)), small, normal)
    rounded = b.select(b.icmp_unsigned("<", rounded, k.like(form.largest, bits)), rounded, k.like(form.largest, bits))
    rounded = b.select(b.icmp_unsigned(">", magnitude, k.like(0x7F800000, bits)), k.like(form.nan, bits), rounded)
    minus = b.and_(b.lshr(bits, k.like(32 - form.bits, bits)), k.like(1 << form.bits - 1, bits))
    whole = b.trunc(b.or_(rounded, minus), k.with_lanes(ir.IntType(form.bits), value))
    return b.bitcast(whole, k.with_lanes(type_of(dtype), value))
