"""Floats of 8 bits: their bits as float32, and float32 rounded to them, to the nearest, ties to even."""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, f16, f32, i8, i16, i32
from tilekit.dtypes import DType

__all__ = ["of_eight_bits", "to_eight_bits"]


class _Format(NamedTuple):
    """How a float is laid out: the bits of its fraction, the bias of its exponent, what overflows become, and NaN."""

    fraction: int
    bias: int
    most: int
    nan: int


# float8_e4m3fn has no infinities: what overflows is NaN.
_FORMATS = {dtypes.float8_e4m3fn: _Format(3, 7, 0x7F, 0x7F), dtypes.float8_e5m2: _Format(2, 15, 0x7C, 0x7E)}


def of_eight_bits(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
    """An element as float32. Each is a float16, but for a power of two that the exponents' biases differ by."""
    b, form = k.b, _FORMATS[dtype]
    magnitude = b.zext(b.and_(value, k.like(0x7F, value)), k.with_lanes(i16, value))
    half = b.bitcast(b.shl(magnitude, k.like(10 - form.fraction, magnitude)), k.with_lanes(f16, value))
    single = b.fpext(half, k.with_lanes(f32, value))
    if dtype == dtypes.float8_e4m3fn:
        scaled = b.fmul(single, k.like(2.0 ** (15 - form.bias), single))
        single = b.select(b.icmp_unsigned("==", magnitude, k.like(form.nan, magnitude)), k.like(float("nan"), single), scaled)
    byte = b.zext(b.and_(value, k.like(0x80, value)), k.with_lanes(i32, value))
    bits = b.bitcast(single, byte.type)
    return b.bitcast(b.or_(bits, b.shl(byte, k.like(24, byte))), single.type)


def to_eight_bits(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
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
    rounded = b.select(b.icmp_unsigned("<", rounded, k.like(form.most, bits)), rounded, k.like(form.most, bits))
    rounded = b.select(b.icmp_unsigned(">", magnitude, k.like(0x7F800000, bits)), k.like(form.nan, bits), rounded)
    sign = b.and_(b.lshr(bits, k.like(24, bits)), k.like(0x80, bits))
    return b.trunc(b.or_(rounded, sign), k.with_lanes(i8, value))
