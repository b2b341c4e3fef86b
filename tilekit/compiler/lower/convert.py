"""Conversions between element types, by C's rules, on values in registers."""

from __future__ import annotations

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.lower.emit import asm
from tilekit.compiler.types import constant, i1, i16, i32, i64, register_type
from tilekit.dtypes import DType

__all__ = ["convert", "narrow", "signed", "widen"]

f32 = ir.FloatType()


def signed(dtype: DType) -> bool:
    """Whether `dtype` is a signed integer type."""
    return dtype.kind == "i"


def convert(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """`value`, an element of `source`, as an element of `target`: fractions are cut off, integers wrap, nonzero is True."""
    if source == target:
        return value
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
