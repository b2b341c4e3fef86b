"""Numbers that a kernel computes: Python's integers (of 64 bits here), floats and bools, and NumPy's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, Number, type_of
from tilekit.compiler.cpu.convert import constant, converted
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.dtypes import DType

__all__ = ["as_kind", "as_number", "binary", "builtin", "compare", "type_of_kind", "unary"]

_DTYPES = {int: dtypes.int64, float: dtypes.float64, bool: dtypes.bool_}


def _dtype(kind: type | DType) -> DType:
    return _DTYPES[kind] if isinstance(kind, type) else kind


def type_of_kind(kind: type | DType) -> ir.Type:
    """What a number is in a register."""
    return type_of(_dtype(kind))


def as_kind(k: Code, value: Any, kind: type | DType) -> ir.Value:
    """A number as one of another kind."""
    if isinstance(value, Scalar):
        return converted(k, value.value, value.dtype, _dtype(kind))
    return constant(value, _dtype(kind))


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


def _kinds(*values: Any) -> list[type]:
    kinds = []
    for value in values:
        kind = kind_of(value)
        if kind is None:
            raise Unsupported(f"an operand that is a {type(value).__name__}")
        if isinstance(value, Scalar) and not isinstance(value.kind, type):
            raise Unsupported("arithmetic of NumPy's scalars")
        kinds.append(kind)
    return kinds


def binary(k: Code, symbol: str, x: Any, y: Any, kind: type | DType | None) -> Any:
    """An operator between numbers, whose result is of a kind."""
    if kind is not None and not isinstance(kind, type):
        if symbol in ("**", "@", "/") or kind == dtypes.bool_:
            raise Unsupported(f"{symbol} of NumPy's scalars")
        return Scalar(arithmetic.binary(k, symbol, kind)(*(as_kind(k, value, kind) for value in (x, y))), kind)
    kinds = _kinds(x, y)
    if symbol == "**" or symbol == "@":
        raise Unsupported(f"{symbol} of numbers")
    if float in kinds or symbol == "/":
        values = [as_kind(k, value, float) for value in (x, y)]
        return Scalar(arithmetic.binary(k, symbol, dtypes.float64)(*values), float)
    if kinds == [bool, bool] and symbol in ("&", "|", "^"):
        return Scalar(arithmetic.binary(k, symbol, dtypes.bool_)(*(as_kind(k, value, bool) for value in (x, y))), bool)
    values = [as_kind(k, value, int) for value in (x, y)]
    return Scalar(arithmetic.binary(k, symbol, dtypes.int64)(*values), int)


def compare(k: Code, symbol: str, x: Any, y: Any) -> Any:
    """A comparison of numbers."""
    kind: type = float if float in _kinds(x, y) else int
    return Scalar(arithmetic.comparison(k, symbol, _dtype(kind))(*(as_kind(k, value, kind) for value in (x, y))), bool)


def unary(k: Code, symbol: str, x: Any) -> Any:
    """`-x`, `+x` or `~x`."""
    (kind,) = _kinds(x)
    if kind is bool:
        x, kind = Scalar(as_kind(k, x, int), int), int
    if symbol == "+":
        return x
    value = as_kind(k, x, kind)
    if symbol == "-":
        return Scalar(arithmetic.negative(k, _dtype(kind))(value), kind)
    return Scalar(k.b.not_(value), kind)


def _extreme(largest: bool) -> Callable[..., Any]:
    def choose(k: Code, *values: Any) -> Any:
        kinds = _kinds(*values)
        if len(set(kinds)) > 1:
            raise Unsupported("min or max of an int and a float, whose result is either")
        better = arithmetic.comparison(k, ">" if largest else "<", _dtype(kinds[0]))
        first, *others = (as_kind(k, value, kinds[0]) for value in values)
        for other in others:
            first = k.b.select(better(other, first), other, first)
        return Scalar(first, kinds[0])

    return choose


def _int(k: Code, value: Any) -> Any:
    return Scalar(as_kind(k, value, int), int)


def _float(k: Code, value: Any) -> Any:
    return Scalar(as_kind(k, value, float), float)


def _abs(k: Code, value: Any) -> Any:
    (kind,) = _kinds(value)
    number = as_kind(k, value, float if kind is float else int)
    if kind is float:
        return Scalar(k.intrinsic("fabs", number), float)
    return Scalar(k.b.select(k.b.icmp_signed("<", number, number.type(0)), k.b.neg(number), number), int)


def _sqrt(k: Code, value: Any) -> Any:
    raise Unsupported("math.sqrt")  # which raises an error for negative numbers


_BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _extreme(False), max: _extreme(True), int: _int, float: _float, abs: _abs, math.sqrt: _sqrt, operator.index: _int,
    bool: lambda k, value: Scalar(as_kind(k, value, bool), bool),
}  # fmt: skip


def builtin(k: Code, function: Any, operands: list[Any], keywords: dict[str, Any]) -> Any:
    """A call of one of Python's functions."""
    try:
        known = _BUILTINS.get(function)
    except TypeError:
        known = None
    if known is None or keywords:
        raise Unsupported(f"a call of {getattr(function, '__name__', function)}")
    return known(k, *operands)
