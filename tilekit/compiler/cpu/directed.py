"""Arithmetic of floats that is rounded in a chosen direction, once; and subnormal numbers that count as zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, f64, i32, i64, type_of
from tilekit.compiler.cpu.convert import converted, narrow, odd, wide, wide_dtype
from tilekit.dtypes import DType
from tilekit.lang.rounding import RoundingMode, known_mode

__all__ = ["calculation", "flushed", "is_directed", "narrowed"]

Function = Callable[..., ir.Value]
# What llvm.set.rounding calls them.
_DIRECTIONS = {RoundingMode.RZ: 0, RoundingMode.RP: 2, RoundingMode.RM: 3}
_NEAREST = 1
_INSTRUCTIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "truediv": "fdiv", "fma": "fma", "sqrt": "sqrt"}


def is_directed(mode: Any) -> bool:
    """Whether results are rounded otherwise than to the nearest."""
    return known_mode("", mode) in _DIRECTIONS


def calculation(k: Code, name: str, dtype: DType, mode: Any = None, flush_to_zero: bool = False) -> Function:
    """`add`, `sub`, `mul`, `truediv` or `fma` of floats of a dtype; `sqrt`, in a direction."""

    def function(*values: ir.Value) -> ir.Value:
        values = tuple(flushed(k, value) for value in values) if flush_to_zero else values
        result = _result(k, name, dtype, known_mode(name, mode), values)
        return flushed(k, result) if flush_to_zero else result

    return function


def _result(k: Code, name: str, dtype: DType, mode: RoundingMode | None, values: tuple[ir.Value, ...]) -> ir.Value:
    wider = wide_dtype(dtype)
    operands = [wide(k, value, dtype) for value in values]
    if mode in _DIRECTIONS:
        # Rounded twice in one direction is rounded once.
        return narrowed(k, _in_direction(k, name, mode, operands), wider, dtype, mode)
    if name == "fma" and wider != dtype:
        return _fma_of_narrow(k, operands, dtype)
    operation = getattr(k.b, _INSTRUCTIONS[name]) if name != "fma" else lambda *terms: k.intrinsic("fma", *terms)
    return narrow(k, operation(*operands), dtype)


def flushed(k: Code, value: ir.Value) -> ir.Value:
    """A float32, or a zero of its sign if it is subnormal."""
    small = k.b.fcmp_ordered("<", k.intrinsic("fabs", value), k.like(float(np.finfo(np.float32).smallest_normal), value))
    return k.b.select(small, k.intrinsic("copysign", k.like(0.0, value), value), value)


def narrowed(k: Code, value: ir.Value, source: DType, target: DType, mode: Any) -> ir.Value:
    """float32 or float64 as a narrower float, rounded as `mode` says: the nearest one, or that beside it."""
    chosen = known_mode("", mode)
    if source == target or chosen not in _DIRECTIONS:
        return converted(k, value, source, target)
    b = k.b
    nearest = converted(k, value, source, target)
    back = converted(k, nearest, target, source)
    bits = b.bitcast(nearest, k.with_lanes(ir.IntType(8 * target.itemsize), nearest))
    zero, infinity = k.like(0.0, value), k.like(float("inf"), value)
    finite = b.fcmp_ordered("<", k.intrinsic("fabs", value), infinity)
    positive = b.fcmp_ordered(">", back, zero)
    down = b.and_(finite, b.fcmp_ordered(">", back, value))
    up = b.and_(finite, b.fcmp_ordered("<", back, value))
    if chosen == RoundingMode.RZ:
        down, up = b.and_(down, b.fcmp_ordered(">", value, zero)), b.and_(up, b.fcmp_ordered("<", value, zero))
    elif chosen == RoundingMode.RM:
        up = k.like(0, up)
    else:
        down = k.like(0, down)
    one = k.like(1, bits)
    is_zero = b.fcmp_ordered("==", back, zero)
    below_zero = k.like((1 << 8 * target.itemsize - 1) + 1, bits)
    lower = b.select(is_zero, below_zero, b.select(positive, b.sub(bits, one), b.add(bits, one)))
    upper = b.select(is_zero, one, b.select(positive, b.add(bits, one), b.sub(bits, one)))
    return b.bitcast(b.select(down, lower, b.select(up, upper, bits)), nearest.type)


def _fma_of_narrow(k: Code, values: list[ir.Value], dtype: DType) -> ir.Value:
    """Of 16-bit floats, which are float32 here: in float64 the product is exact, and of the sum it is known what it lacks."""
    b = k.b
    x, y, z = (b.fpext(value, k.with_lanes(f64, value)) for value in values)
    product = b.fmul(x, y)
    total = b.fadd(product, z)
    part = b.fsub(total, product)
    lacks = b.fadd(b.fsub(product, b.fsub(total, part)), b.fsub(z, part))
    bits = b.bitcast(total, k.with_lanes(i64, total))
    zero = k.like(0.0, total)
    away = b.icmp_unsigned("==", b.fcmp_ordered(">", lacks, zero), b.fcmp_ordered(">", total, zero))
    beside = b.select(away, b.add(bits, k.like(1, bits)), b.sub(bits, k.like(1, bits)))
    even = b.icmp_unsigned("==", b.and_(bits, k.like(1, bits)), k.like(0, bits))
    finite = b.fcmp_ordered("<", k.intrinsic("fabs", total), k.like(float("inf"), total))
    inexact = b.and_(b.fcmp_ordered("!=", lacks, zero), finite)
    exact = b.bitcast(b.select(b.and_(inexact, even), beside, bits), total.type)  # odd where something is lacking
    single = b.fptrunc(exact, k.with_lanes(type_of(dtypes.float32), exact))
    return narrow(k, odd(k, exact, single), dtype)


def _in_direction(k: Code, name: str, mode: RoundingMode, values: list[ir.Value]) -> ir.Value:
    """The operation of float32 or float64 by a function of its own, around which the CPU's rounding mode is another one."""
    kind = values[0].type
    mangled = k.mangled(kind)
    called = f"{name}.{mode.name.lower()}.{mangled}"
    if called not in k.functions:
        function = ir.Function(k.module, ir.FunctionType(kind, [kind] * len(values)), called)
        function.linkage = "internal"
        function.attributes.add("noinline")
        k.functions[called] = function
        b = ir.IRBuilder(function.append_basic_block("entry"))
        words = [ir.MetaDataString(k.module, text) for text in ("round.dynamic", "fpexcept.ignore")]
        operands = [*[kind] * len(values), *[word.type for word in words]]
        intrinsic = k.declared(f"llvm.experimental.constrained.{_INSTRUCTIONS[name]}.{mangled}", kind, operands)
        choose = k.declared("llvm.set.rounding", ir.VoidType(), [i32])
        b.call(choose, [i32(_DIRECTIONS[mode])])
        result = b.call(intrinsic, [*function.args, *words])
        b.call(choose, [i32(_NEAREST)])
        b.ret(result)
    return k.b.call(k.functions[called], values)
