"""Numbers that a kernel computes: Python's integers (of 64 bits here), floats and bools, and NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, Number, f64, i1, i64, type_of
from tilekit.compiler.cpu.convert import constant, converted
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.dtypes import DType

__all__ = [
    "as_kind", "as_number", "binary", "bit_length", "common_kind", "compare", "dtype_of", "element", "kind_in", "library",
    "type_of_kind", "unary",
]  # fmt: skip

_DTYPES = {int: dtypes.int64, float: dtypes.float64, bool: dtypes.bool_}


def dtype_of(kind: type | DType) -> DType:
    """What a number of a kind is an element of."""
    return _DTYPES[kind] if isinstance(kind, type) else kind


def type_of_kind(kind: type | DType) -> ir.Type:
    """What a number is in a register."""
    return type_of(dtype_of(kind))


def as_kind(k: Code, value: Any, kind: type | DType) -> ir.Value:
    """A number as one of another kind."""
    if isinstance(value, Scalar):
        return converted(k, value.value, value.dtype, dtype_of(kind))
    return constant(value, dtype_of(kind))


def as_number(k: Code, value: Any) -> Number:
    """An integer."""
    if isinstance(value, Scalar) and kind_of(value) in (int, bool):
        return as_kind(k, value, int)
    if kind_of(value) in (int, bool) and not isinstance(value, Scalar):
        return int(value)
    from tilekit.compiler.cpu.elementwise import as_tile
    from tilekit.compiler.cpu.tiles import Tile, one

    if isinstance(value, Tile) and value.size == 1:
        return one(k, as_tile(k, value, dtypes.int64))
    raise Unsupported("a bound that is no integer")


def kind_in(value: Any) -> type | DType:
    """What a number is: one of Python's types, or the dtype of one of NumPy's."""
    if isinstance(value, Scalar):
        return value.kind
    if isinstance(value, np.generic):
        return value.dtype
    kind = kind_of(value)
    if kind is None:
        raise Unsupported(f"an operand that is a {type(value).__name__}")
    return kind


def common_kind(*values: Any) -> type | DType:
    """What numbers are together: Python's by its own rules, and by NumPy's where one of them is NumPy's."""
    kinds = [kind_in(value) for value in values]
    if any(not isinstance(kind, type) for kind in kinds):
        return np.result_type(*(kind(0) if isinstance(kind, type) else kind for kind in kinds))
    return next(kind for kind in (float, int, bool) if kind in kinds)


def binary(k: Code, symbol: str, x: Any, y: Any, kind: type | DType | None = None) -> Any:
    """An operator between numbers, whose result is of a kind, as far as that is known."""
    common = common_kind(x, y)
    if symbol == "**":
        return _power(k, x, y, common if kind is None else kind)
    if isinstance(common, type):
        if symbol == "/":
            common = float
        elif common is bool and symbol not in ("&", "|", "^"):
            common = int
    elif isinstance(kind, np.dtype):
        common = kind
    elif symbol == "/" and not dtypes.is_float(common):
        common = dtypes.float64
    values = [as_kind(k, value, common) for value in (x, y)]
    if common is int and symbol in ("<<", ">>") and isinstance(y, Scalar):
        name = "lshift" if symbol == "<<" else "rshift"
        k.check(k.b.icmp_signed("<", values[1], i64(0)), k.site("call", "operator", name, (False, False)), lambda: values)
    return Scalar(arithmetic.binary(k, symbol, dtype_of(common))(*values), common)


def _power(k: Code, x: Any, y: Any, kind: type | DType) -> Any:
    dtype = dtype_of(int if kind is bool else kind)
    values = [as_kind(k, value, dtype) for value in (x, y)]
    if not dtypes.is_float(dtype):
        return Scalar(arithmetic.power(k, dtype)(*values), int if kind is bool else kind)
    if kind is float:
        return library(k, "operator", "pow", values)
    wide = [converted(k, value, dtype, dtypes.float64) for value in values]
    return Scalar(converted(k, k.call("pow", f64, wide), dtypes.float64, dtype), kind)


def library(k: Code, module: str, name: str, values: Sequence[ir.Value], symbol: str = "") -> Scalar:
    """A function of the C library that one of Python's is made of; where that raises an error, the block ends with it."""
    result = k.call(symbol or name, f64, values)
    magnitude = k.intrinsic("fabs", result)
    infinite = k.b.fcmp_ordered("==", magnitude, f64(float("inf")))
    nan = k.b.fcmp_unordered("uno", result, result)
    for value in values:
        finite = k.b.fcmp_ordered("<", k.intrinsic("fabs", value), f64(float("inf")))
        infinite = k.b.and_(infinite, finite)
        nan = k.b.and_(nan, k.b.fcmp_ordered("ord", value, value))
    bits = [k.b.bitcast(value, i64) for value in values]
    k.check(k.b.or_(infinite, nan), k.site("call", module, name, (True,) * len(values)), lambda: bits)
    return Scalar(result, float)


def compare(k: Code, symbol: str, x: Any, y: Any) -> Any:
    """A comparison of numbers; `in` looks for one in a tuple."""
    if symbol in ("in", "not in"):
        if not isinstance(y, tuple):
            raise Unsupported(f"{symbol} of something else than a tuple")
        any_of_them: ir.Value = i1(0)
        for other in y:
            any_of_them = k.b.or_(any_of_them, as_kind(k, compare(k, "==", x, other), bool))
        return Scalar(any_of_them if symbol == "in" else k.b.not_(any_of_them), bool)
    dtype = dtype_of(common_kind(x, y))
    if dtypes.is_float(dtype):
        values = [as_kind(k, value, dtype) for value in (x, y)]
        return Scalar(arithmetic.comparison(k, symbol, dtype)(*values), bool)
    wide = [_widest(k, value) for value in (x, y)]
    return Scalar(k.b.icmp_signed(symbol, *wide), bool)


def _widest(k: Code, value: Any) -> ir.Value:
    """An integer in more bits than any has: comparisons are exact whatever the signs."""
    kind = kind_in(value)
    number = as_kind(k, value, kind)
    signed = dtype_of(kind).kind == "i"
    return (k.b.sext if signed else k.b.zext)(number, ir.IntType(128))


def unary(k: Code, symbol: str, x: Any) -> Any:
    """`-x`, `+x` or `~x`."""
    kind = kind_in(x)
    if kind is bool:
        kind = int
    value = as_kind(k, x, kind)
    if symbol == "-":
        value = arithmetic.negative(k, dtype_of(kind))(value)
    elif symbol == "~":
        value = k.b.not_(value)
    return Scalar(value, kind)


def bit_length(k: Code, x: Any) -> Scalar:
    """`x.bit_length()`."""
    number = as_kind(k, x, int)
    magnitude = k.b.select(k.b.icmp_signed("<", number, i64(0)), k.b.neg(number), number)
    return Scalar(k.b.sub(i64(64), k.intrinsic("ctlz", magnitude, i1(0))), int)


def element(k: Code, values: tuple[Any, ...], index: Any) -> Scalar:
    """One of the numbers in a tuple; outside of it the block ends."""
    kind = common_kind(*values)
    if any(kind_in(value) != kind for value in values):
        raise Unsupported("an element of a tuple of different things")
    number = as_number(k, index)
    chosen = k.number(number)
    chosen = k.b.select(k.b.icmp_signed("<", chosen, i64(0)), k.b.add(chosen, i64(len(values))), chosen)
    outside = k.b.icmp_unsigned(">=", chosen, i64(len(values)))
    k.check(outside, k.site("element", len(values)), lambda: [number])
    result = as_kind(k, values[0], kind)
    for at, value in enumerate(values[1:], 1):
        result = k.b.select(k.b.icmp_signed("==", chosen, i64(at)), as_kind(k, value, kind), result)
    return Scalar(result, kind)
