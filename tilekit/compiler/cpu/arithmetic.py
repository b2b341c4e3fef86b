"""Arithmetic on elements, vectors of them or scalars, by the rules of the language: integers wrap, and give 0 by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code
from tilekit.compiler.cpu.convert import narrow, wide, wide_dtype
from tilekit.compiler.cpu.values import Unsupported
from tilekit.dtypes import DType

__all__ = ["COSTS", "binary", "comparison", "extremum", "in_wide", "negative", "power"]

Function = Callable[..., ir.Value]
COSTS = {"/": 4, "//": 8, "%": 8, "**": 20}


def in_wide(k: Code, dtype: DType, function: Function) -> Function:
    """A function of numbers of `wide_dtype(dtype)` as one of `dtype`: its result is rounded once."""
    if wide_dtype(dtype) == dtype:
        return function
    return lambda *values: narrow(k, function(*(wide(k, value, dtype) for value in values)), dtype)


def binary(k: Code, symbol: str, dtype: DType) -> Function:
    """`+`, `//`, `&`... of two elements of `dtype`."""
    b = k.b
    if dtypes.is_float(dtype):
        table: dict[str, Any] = {
            "+": lambda x, y: b.fadd(x, y), "-": lambda x, y: b.fsub(x, y), "*": lambda x, y: b.fmul(x, y),
            "/": lambda x, y: b.fdiv(x, y), "//": lambda x, y: _float_quotient(k, x, y)[0],
            "%": lambda x, y: _float_quotient(k, x, y)[1],
        }  # fmt: skip
        if symbol not in table:
            raise Unsupported(f"{symbol} of {dtype.name}")
        return in_wide(k, dtype, table[symbol])
    signed = dtype.kind == "i"
    table = {
        "+": lambda x, y: b.add(x, y), "-": lambda x, y: b.sub(x, y), "*": lambda x, y: b.mul(x, y),
        "&": lambda x, y: b.and_(x, y), "|": lambda x, y: b.or_(x, y), "^": lambda x, y: b.xor(x, y),
        "//": lambda x, y: _quotient(k, x, y, signed)[0], "%": lambda x, y: _quotient(k, x, y, signed)[1],
        "<<": lambda x, y: _shift(k, x, y, left=True, signed=signed),
        ">>": lambda x, y: _shift(k, x, y, left=False, signed=signed),
    }  # fmt: skip
    if symbol not in table:
        raise Unsupported(f"{symbol} of {dtype.name}")
    function: Function = table[symbol]
    return function


def _quotient(k: Code, x: ir.Value, y: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value]:
    """Rounded down, and the remainder with the sign of the divisor; 0 and 0 by zero. What traps is not divided."""
    b = k.b
    zero = b.icmp_unsigned("==", y, k.like(0, y))
    if not signed:
        divisor = b.select(zero, k.like(1, y), y)
        quotient, rest = b.udiv(x, divisor), b.urem(x, divisor)
        return tuple(b.select(zero, k.like(0, y), value) for value in (quotient, rest))
    minus = b.icmp_unsigned("==", y, k.like(-1, y))
    divisor = b.select(b.or_(zero, minus), k.like(1, y), y)
    cut, rest = b.sdiv(x, divisor), b.srem(x, divisor)
    low = b.and_(b.icmp_unsigned("!=", rest, k.like(0, y)), b.icmp_signed("<", b.xor(rest, divisor), k.like(0, y)))
    quotient = b.select(minus, b.neg(x), b.select(low, b.sub(cut, k.like(1, y)), cut))
    rest = b.select(low, b.add(rest, divisor), rest)
    return tuple(b.select(zero, k.like(0, y), value) for value in (quotient, rest))


def _float_quotient(k: Code, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """As Python and NumPy have them: they belong together."""
    b = k.b
    single = "f" if "float" in str(x.type) else ""
    rest = k.by_lane(lambda p, q: k.call(f"fmod{single}", p.type, [p, q]), x, y)
    zero = k.like(0.0, x)
    inexact = b.fcmp_unordered("!=", rest, zero)
    turned = b.xor(b.fcmp_ordered("<", y, zero), b.fcmp_ordered("<", rest, zero))
    quotient = b.fdiv(b.fsub(x, rest), y)
    over = b.and_(inexact, turned)
    modulus = b.select(inexact, b.select(over, b.fadd(rest, y), rest), k.intrinsic("copysign", zero, y))
    quotient = b.select(over, b.fsub(quotient, k.like(1.0, x)), quotient)
    low = k.intrinsic("floor", quotient)
    low = b.select(b.fcmp_ordered(">", b.fsub(quotient, low), k.like(0.5, x)), b.fadd(low, k.like(1.0, x)), low)
    whole = b.select(b.fcmp_unordered("!=", quotient, zero), low, k.intrinsic("copysign", zero, b.fdiv(x, y)))
    by_zero = b.fcmp_ordered("==", y, zero)
    return b.select(by_zero, b.fdiv(x, y), whole), b.select(by_zero, rest, modulus)


def _shift(k: Code, x: ir.Value, y: ir.Value, *, left: bool, signed: bool) -> ir.Value:
    """By the width or more, all bits are gone; of a negative number shifted to the right, all are ones."""
    b = k.b
    bits = (x.type.element if isinstance(x.type, ir.VectorType) else x.type).width
    over = b.icmp_unsigned(">=", y, k.like(bits, y))
    by = b.select(over, k.like(bits - 1, y), y)
    if not left and signed:
        return b.ashr(x, by)
    return b.select(over, k.like(0, x), (b.shl if left else b.lshr)(x, by))


def power(k: Code, dtype: DType) -> Function:
    """The power of integers, by squares: it wraps; to a negative power it is 1 / x**-y with the fraction cut off, 0 for x = 0."""
    b = k.b

    def function(x: ir.Value, y: ir.Value) -> ir.Value:
        one, zero = k.like(1, x), k.like(0, x)
        negative = b.icmp_signed("<", y, zero) if dtype.kind == "i" else k.like(0, b.icmp_unsigned("==", y, zero))
        result, square, rest = (k.slot(x.type) for _ in range(3))
        for slot, start in ((result, one), (square, x), (rest, b.select(negative, zero, y))):
            b.store(start, slot)
        head, turn, end = (k.function.append_basic_block(name) for name in ("power", "square", "powered"))
        b.branch(head)
        b.position_at_end(head)
        bits = b.load(rest, typ=x.type)
        b.cbranch(k.any_lane(b.icmp_unsigned("!=", bits, zero)), turn, end)
        b.position_at_end(turn)
        base, before = b.load(square, typ=x.type), b.load(result, typ=x.type)
        odd = b.icmp_unsigned("!=", b.and_(bits, one), zero)
        b.store(b.select(odd, b.mul(before, base), before), result)
        b.store(b.mul(base, base), square)
        b.store(b.lshr(bits, one), rest)
        b.branch(head)
        b.position_at_end(end)
        if dtype.kind == "u":
            return b.load(result, typ=x.type)
        even = b.icmp_unsigned("==", b.and_(y, one), zero)
        sign = b.select(even, one, k.like(-1, x))
        inverse = b.select(b.icmp_unsigned("==", x, one), one, b.select(b.icmp_unsigned("==", x, k.like(-1, x)), sign, zero))
        return b.select(negative, inverse, b.load(result, typ=x.type))

    return function


def comparison(k: Code, symbol: str, dtype: DType) -> Function:
    """`<`, `==`... of two elements of `dtype`, an i1."""
    b = k.b
    if dtypes.is_float(dtype):
        compare = b.fcmp_unordered if symbol == "!=" else b.fcmp_ordered
        return lambda x, y: compare(symbol, wide(k, x, dtype), wide(k, y, dtype))
    compare = b.icmp_signed if dtype.kind == "i" else b.icmp_unsigned
    return lambda x, y: compare(symbol, x, y)


def extremum(k: Code, largest: bool, dtype: DType, propagate_nan: bool = True) -> Function:
    """The larger, or the smaller, of two elements; of a number and NaN, NaN if that is propagated, else the number."""
    b, symbol = k.b, ">" if largest else "<"
    if not dtypes.is_float(dtype):
        compare = comparison(k, symbol, dtype)
        return lambda x, y: b.select(compare(x, y), x, y)

    def choose(x: ir.Value, y: ir.Value) -> ir.Value:
        chosen = x if propagate_nan else y  # where it is NaN, the first is taken
        better = b.or_(b.fcmp_ordered(f"{symbol}=", x, y), b.fcmp_unordered("uno", chosen, chosen))
        return b.select(better, x, y)

    return in_wide(k, dtype, choose)


def negative(k: Code, dtype: DType) -> Function:
    """An element with the other sign."""
    if dtype == dtypes.bfloat16:
        return lambda x: k.b.xor(x, k.like(0x8000, x))
    return (lambda x: k.b.fneg(x)) if dtypes.is_float(dtype) else (lambda x: k.b.sub(k.like(0, x), x))
