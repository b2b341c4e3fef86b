"""Casts: conversions between element types, by C's rules, on values in registers."""

from __future__ import annotations

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.types import constant, i1, i8, i16, i32, i64, register_type
from tilekit.dtypes import DType

__all__ = ["convert", "narrow", "narrow_eight", "signed", "widen", "widen_eight"]

f32 = ir.FloatType()

# The bits of the mantissa, and the bias of the exponent.
_EIGHT_BIT = {dtypes.float8_e4m3fn: (3, 7), dtypes.float8_e5m2: (2, 15)}


def signed(dtype: DType) -> bool:
    """Whether `dtype` is a signed integer type."""
    return dtype.kind == "i"


def convert(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """`value`, an element of `source`, as an element of `target`: fractions are cut off, integers wrap, nonzero is True."""
    if source == target:
        return value
    if source in dtypes.EIGHT_BIT_FLOATS:
        return convert(builder, widen_eight(builder, value, source), dtypes.float32, target)
    if target in dtypes.EIGHT_BIT_FLOATS:
        return narrow_eight(builder, convert(builder, value, source, dtypes.float32), target)  # ml_dtypes rounds twice too
    if target == dtypes.bool_:
        return _nonzero(builder, value, source)
    if dtypes.is_float(source):
        step = _between_floats if dtypes.is_float(target) else _truncate
        return step(builder, value, source, target)
    if not dtypes.is_float(target):
        return _between_integers(builder, value, source, target)
    if target == dtypes.bfloat16:
        return narrow(builder, convert(builder, value, source, dtypes.float32))
    to_float = builder.sitofp if signed(source) else builder.uitofp
    return to_float(value, register_type(target))


def widen(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A bfloat16 as a float32: its bits are the upper half."""
    return builder.bitcast(builder.shl(builder.zext(value, i32), ir.Constant(i32, 16)), f32)


def narrow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A float32 rounded to bfloat16, ties to even."""
    return asm(builder, "cvt.rn.bf16.f32 $0, $1;", "=h,f", i16, [value])


def widen_eight(builder: ir.IRBuilder, value: ir.Value, source: DType) -> ir.Value:
    """An 8-bit float as a float32, which holds it exactly. In integers, for GPUs below sm_89 have no instruction for it."""
    mantissa, bias = _EIGHT_BIT[source]
    bits = builder.zext(value, i32)
    magnitude = builder.and_(bits, ir.Constant(i32, 0x7F))
    # As the exponent and mantissa of a float32 its value is too small by a power of two, also where it is subnormal.
    shifted = builder.bitcast(builder.shl(magnitude, ir.Constant(i32, 23 - mantissa)), f32)
    number = builder.bitcast(builder.fmul(shifted, ir.Constant(f32, 2.0 ** (127 - bias))), i32)
    if source == dtypes.float8_e5m2:  # as IEEE's: infinities and NaNs have the largest exponent
        special = builder.icmp_unsigned(">=", magnitude, ir.Constant(i32, 0x7C))
        other = builder.or_(number, ir.Constant(i32, 0x7F800000))
    else:  # no infinities, one NaN
        special = builder.icmp_unsigned("==", magnitude, ir.Constant(i32, 0x7F))
        other = ir.Constant(i32, 0x7FC00000)
    sign = builder.shl(builder.and_(bits, ir.Constant(i32, 0x80)), ir.Constant(i32, 24))
    return builder.bitcast(builder.or_(builder.select(special, other, number), sign), f32)


def narrow_eight(builder: ir.IRBuilder, value: ir.Value, target: DType) -> ir.Value:
    """A float32 rounded to an 8-bit float, ties to even; beyond its range an infinity, or NaN where there is none.

    The instruction that sm_89 has for it saturates instead, which is neither ml_dtypes' rule nor torch's.
    """
    mantissa, bias = _EIGHT_BIT[target]

    def count(n: int) -> ir.Constant:
        return ir.Constant(i32, n)

    def exponent(e: int) -> int:
        """The bits of 2.0 ** e."""
        return (e + 127) << 23

    bits = builder.bitcast(value, i32)
    magnitude = builder.and_(bits, count(0x7FFFFFFF))
    # Normal results: the mantissa rounded where it is cut off, the exponent counted from the other bias.
    shift = 23 - mantissa
    odd = builder.and_(builder.lshr(magnitude, count(shift)), count(1))
    half = count((1 << (shift - 1)) - 1 - ((127 - bias) << 23))
    normal = builder.lshr(builder.add(builder.add(magnitude, half), odd), count(shift))
    # Subnormal results: the addition of a number whose last bit is worth as much as theirs rounds.
    magic = count(exponent(24 - bias - mantissa))
    small = builder.sub(builder.bitcast(builder.fadd(builder.bitcast(magnitude, f32), builder.bitcast(magic, f32)), i32), magic)
    result = builder.select(builder.icmp_unsigned("<", magnitude, count(exponent(1 - bias))), small, normal)
    beyond, limit = count(0x7F), 0x43F00000  # 480: the bits of the NaN, were it a number
    if target == dtypes.float8_e5m2:
        nan = builder.icmp_unsigned(">", magnitude, count(0x7F800000))
        beyond, limit = builder.select(nan, count(0x7F), count(0x7C)), exponent(16)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, count(limit)), beyond, result)
    sign = builder.lshr(builder.and_(bits, count(0x80000000)), count(24))
    return builder.trunc(builder.or_(result, sign), i8)


def _nonzero(builder: ir.IRBuilder, value: ir.Value, source: DType) -> ir.Value:
    if source == dtypes.bfloat16:
        value, source = widen(builder, value), dtypes.float32
    zero = constant(source, 0)
    return builder.fcmp_unordered("!=", value, zero) if dtypes.is_float(source) else builder.icmp_unsigned("!=", value, zero)


def _between_floats(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    if source == dtypes.bfloat16:
        return convert(builder, widen(builder, value), dtypes.float32, target)
    if target == dtypes.bfloat16:
        return narrow(builder, convert(builder, value, source, dtypes.float32))
    wider = target.itemsize > source.itemsize
    return (builder.fpext if wider else builder.fptrunc)(value, register_type(target))


def _between_integers(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    to = register_type(target)
    if value.type.width >= to.width:
        return builder.trunc(value, to) if value.type.width > to.width else value
    return builder.sext(value, to) if signed(source) else builder.zext(value, to)


def _truncate(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """Float to integer, through a signed integer that holds the range, so that negative values wrap in unsigned types as in C."""
    if source in (dtypes.float16, dtypes.bfloat16):
        value = convert(builder, value, source, dtypes.float32)
    if target == dtypes.uint64:
        return builder.fptoui(value, i64)
    through = i64 if target in (dtypes.uint32, dtypes.int64) else i32
    whole, to = builder.fptosi(value, through), register_type(target)
    return builder.trunc(whole, to) if to.width < through.width else whole


assert register_type(dtypes.bool_) == i1, "a bool is one bit in registers; zext and uitofp give 0 and 1"
