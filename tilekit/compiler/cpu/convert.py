"""Elements of one dtype as elements of another, and arithmetic in dtypes that the CPU calculates in another one."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, f32, i8, i16, i32, type_of
from tilekit.compiler.cpu.narrow import of_narrow, to_narrow
from tilekit.dtypes import DType

__all__ = ["constant", "converted", "in_memory", "narrow", "odd", "wide", "wide_dtype"]

_NARROW = (dtypes.float16, dtypes.bfloat16, *dtypes.EIGHT_BIT_FLOATS)


def constant(value: Any, dtype: DType) -> ir.Constant:
    """A scalar as an element, by the rules of the language: fractions are cut off, integers wrap."""
    with np.errstate(all="ignore"):
        element = np.asarray(value).astype(dtype)
    kind = type_of(dtype)
    if dtype in (dtypes.bfloat16, *dtypes.EIGHT_BIT_FLOATS):
        return ir.Constant(kind, int(element.view(f"u{dtype.itemsize}")))
    return ir.Constant(kind, element.item() if dtypes.is_float(dtype) else int(element))


def in_memory(value: Any, dtype: DType) -> ir.Constant:
    """The same as it lies in memory."""
    element = constant(value, dtype)
    return i8(int(element.constant)) if dtype == dtypes.bool_ else element


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which elements are calculated."""
    return dtypes.float32 if dtype in _NARROW else dtype


def wide(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
    """An element of `dtype` in `wide_dtype(dtype)`."""
    if dtype == dtypes.float16 and _knows_halves(k):
        return k.b.fpext(value, k.with_lanes(f32, value))
    if dtype == dtypes.bfloat16:
        bits = k.b.zext(value, k.with_lanes(i32, value))
        return k.b.bitcast(k.b.shl(bits, k.like(16, bits)), k.with_lanes(f32, value))
    return of_narrow(k, value, dtype) if dtype in _NARROW else value


def _knows_halves(k: Code) -> bool:
    """Whether the CPU converts float16: those do that have fused multiply-adds. For others LLVM would call functions that nobody
    has."""
    return k.machine.fused


def narrow(k: Code, value: ir.Value, dtype: DType) -> ir.Value:
    """The opposite of `wide`, rounded to the nearest, ties to even."""
    b = k.b
    if dtype == dtypes.float16 and _knows_halves(k):
        return b.fptrunc(value, k.with_lanes(type_of(dtype), value))
    if dtype == dtypes.bfloat16:
        bits = b.bitcast(value, k.with_lanes(i32, value))
        last = b.and_(b.lshr(bits, k.like(16, bits)), k.like(1, bits))
        rounded = b.add(b.add(bits, k.like(0x7FFF, bits)), last)
        quiet = b.or_(bits, k.like(0x400000, bits))
        chosen = b.select(b.fcmp_unordered("uno", value, value), quiet, rounded)
        return b.trunc(b.lshr(chosen, k.like(16, bits)), k.with_lanes(i16, value))
    return to_narrow(k, value, dtype) if dtype in _NARROW else value


def converted(k: Code, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """An element of `source` as one of `target`."""
    if source == target:
        return value
    b, kind = k.b, k.with_lanes(type_of(target), value)
    if target == dtypes.bool_:
        if dtypes.is_float(source):
            value = wide(k, value, source)
            return b.fcmp_unordered("!=", value, k.like(0.0, value))
        return b.icmp_unsigned("!=", value, k.like(0, value))
    if dtypes.is_float(source):
        return _of_float(k, wide(k, value, source), wide_dtype(source), target)
    if dtypes.is_float(target):
        wider = wide_dtype(target)
        signed = source.kind == "i"
        number = (b.sitofp if signed else b.uitofp)(value, k.with_lanes(type_of(wider), value))
        return narrow(k, number, target)
    if source.itemsize > target.itemsize:
        return b.trunc(value, kind)
    if source != dtypes.bool_ and source.itemsize == target.itemsize:
        return value
    return (b.sext if source.kind == "i" else b.zext)(value, kind)


def _of_float(k: Code, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """Of float32 or float64."""
    b, kind = k.b, k.with_lanes(type_of(target), value)
    if not dtypes.is_float(target):
        name = "fptosi.sat" if target.kind == "i" else "fptoui.sat"
        return k.intrinsic(name, value, result=kind)
    if target == dtypes.float64:
        return b.fpext(value, kind) if source == dtypes.float32 else value
    if source == dtypes.float64:
        single = b.fptrunc(value, k.with_lanes(f32, value))
        value = odd(k, value, single) if target == dtypes.float16 else single
    return narrow(k, value, target)


def odd(k: Code, exact: ir.Value, nearest: ir.Value) -> ir.Value:
    """A float64 as a float32 that is cut off, with its last bit set where something was cut: rounding it once more is exact."""
    b = k.b
    back = b.fpext(nearest, exact.type)
    bits = b.bitcast(nearest, k.with_lanes(i32, nearest))
    magnitude = k.intrinsic("fabs", back), k.intrinsic("fabs", exact)
    below = b.select(b.fcmp_ordered(">", *magnitude), b.sub(bits, k.like(1, bits)), bits)
    odd = b.or_(below, k.like(1, below))
    return b.bitcast(b.select(b.fcmp_ordered("!=", back, exact), odd, bits), nearest.type)
