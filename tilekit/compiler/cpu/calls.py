"""Calls of Python's own functions, builtins and those of the modules math and operator, of numbers that the kernel computes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import f64, i64
from tilekit.compiler.cpu.elementwise import as_tile, operate
from tilekit.compiler.cpu.memory import bounds_of
from tilekit.compiler.cpu.scalars import as_kind, binary, common_kind, dtype_of, kind_in, library
from tilekit.compiler.cpu.tiles import Tile, one
from tilekit.compiler.cpu.values import Grid, Row, Scalar, Unsupported
from tilekit.dtypes import DType

__all__ = ["called"]

Kind = type | DType | None


def called(p: Any, function: Any, operands: list[Any], keywords: dict[str, Any], kind: Kind) -> Any:
    """What a function of Python's gives, whose result is of a kind, as far as that is known."""
    try:
        known = _FUNCTIONS.get(function)
    except TypeError:  # it has no hash
        known = None
    if known is None or keywords:
        raise Unsupported(f"a call of {getattr(function, '__name__', function)}")
    return known(p, kind, *operands)


def _extreme(largest: bool) -> Callable[..., Any]:
    """The first of those that no other is larger, or smaller, than."""

    def choose(p: Any, kind: Kind, *values: Any) -> Any:
        k, symbol = p.k, ">" if largest else "<"
        values = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
        kinds = {kind_in(value) for value in values}
        common = common_kind(*values)
        if len(kinds) > 1 and int in kinds and not dtypes.is_float(dtype_of(common)):
            common = int  # beside one of NumPy's, which holds all that is no int
        if len(kinds) > 1 and common != kind and float in (common, kind):
            raise Unsupported("min or max of numbers of two kinds, whose result is either")
        better = arithmetic.comparison(k, symbol, dtype_of(common))
        first, *others = (as_kind(k, value, common) for value in values)
        for other in others:
            first = k.b.select(better(other, first), other, first)
        return Scalar(first, common)

    return choose


def _cast(kind: type) -> Callable[..., Any]:
    def cast(p: Any, _: Kind, value: Any) -> Any:
        if isinstance(value, Tile):
            if value.size != 1 or kind is not int:
                raise Unsupported(f"{kind.__name__} of a tile")
            return Scalar(one(p.k, as_tile(p.k, value, dtypes.int64)), int)
        if kind is int and common_kind(value, 0.0) == kind_in(value):
            number = as_kind(p.k, value, float)
            finite = p.k.b.fcmp_ordered("<", p.k.intrinsic("fabs", number), f64(float("inf")))
            bits = p.k.b.bitcast(number, i64)
            p.k.check(p.k.b.not_(finite), p.k.site("call", "builtins", "int", (True,)), lambda: [bits])
        return Scalar(as_kind(p.k, value, kind), kind)

    return cast


def _absolute(p: Any, _: Kind, value: Any) -> Any:
    k, kind = p.k, kind_in(value)
    kind = int if kind is bool else kind
    number = as_kind(k, value, kind)
    if kind is float or (not isinstance(kind, type) and dtypes.is_float(kind)):
        return Scalar(k.intrinsic("fabs", number), kind)
    if not isinstance(kind, type) and kind.kind != "i":
        return Scalar(number, kind)
    return Scalar(k.b.select(k.b.icmp_signed("<", number, number.type(0)), k.b.neg(number), number), kind)


def _operator(symbol: str) -> Callable[..., Any]:
    def apply(p: Any, kind: Kind, x: Any, y: Any) -> Any:
        if isinstance(x, Tile) or isinstance(y, Tile):
            return operate(p.k, symbol, x, y)
        return binary(p.k, symbol, x, y, kind)

    return apply


def _folded(symbol: str, start: int) -> Callable[..., Any]:
    """Of the elements of a tuple."""

    def fold(p: Any, kind: Kind, values: Any) -> Any:
        if not isinstance(values, tuple):
            raise Unsupported("a sum or product of something else than a tuple")
        step = _operator(symbol)
        return functools.reduce(lambda x, y: step(p, None, x, y), values, start)

    return fold


def _whole(name: str, intrinsic: str, module: str = "math") -> Callable[..., Any]:
    """A float as an int: infinities and NaN are none."""

    def whole(p: Any, _: Kind, value: Any) -> Any:
        k, kind = p.k, kind_in(value)
        if kind in (int, bool) or (not isinstance(kind, type) and not dtypes.is_float(kind)):
            return Scalar(as_kind(k, value, int), int)
        number = as_kind(k, value, float)
        finite = k.b.fcmp_ordered("<", k.intrinsic("fabs", number), f64(float("inf")))
        bits = k.b.bitcast(number, i64)
        k.check(k.b.not_(finite), k.site("call", module, name, (True,)), lambda: [bits])
        return Scalar(k.intrinsic("fptosi.sat", k.intrinsic(intrinsic, number), result=i64), int)

    return whole


def _real(name: str, symbol: str = "") -> Callable[..., Any]:
    """A function of the module math that is one of the C library's."""

    def real(p: Any, _: Kind, *values: Any) -> Any:
        return library(p.k, "math", name, [as_kind(p.k, value, float) for value in values], symbol)

    return real


def _exact(function: Callable[..., ir.Value], kind: type = float) -> Callable[..., Any]:
    """One that raises no errors: code of floats."""

    def exact(p: Any, _: Kind, *values: Any) -> Any:
        return Scalar(function(p.k, *(as_kind(p.k, value, float) for value in values)), kind)

    return exact


def _log(p: Any, _: Kind, value: Any, base: Any = None) -> Any:
    logarithm = _real("log")
    if base is None:
        return logarithm(p, None, value)
    return binary(p.k, "/", logarithm(p, None, value), logarithm(p, None, base))


def _gcd(p: Any, _: Kind, *values: Any) -> Any:
    """By Euclid's algorithm, of two at a time."""
    k, b = p.k, p.k.b
    result: ir.Value = i64(0)
    for value in values:
        x, y = k.slot(i64), k.slot(i64)
        b.store(result, x)
        b.store(as_kind(k, value, int), y)
        head, turn, end = (k.function.append_basic_block(name) for name in ("gcd", "rest", "divided"))
        b.branch(head)
        b.position_at_end(head)
        divisor = b.load(y, typ=i64)
        b.cbranch(b.icmp_signed("!=", divisor, i64(0)), turn, end)
        b.position_at_end(turn)
        rest = arithmetic.binary(k, "%", dtypes.int64)(b.load(x, typ=i64), divisor)
        b.store(divisor, x)
        b.store(rest, y)
        b.branch(head)
        b.position_at_end(end)
        result = b.load(x, typ=i64)
        result = b.select(b.icmp_signed("<", result, i64(0)), b.neg(result), result)
    return Scalar(result, int)


def _length(p: Any, _: Kind, value: Any) -> Any:
    """Of a tuple, or of a row of tiles."""
    if isinstance(value, tuple):
        return len(value)
    if not isinstance(value, (Row, Grid)):
        raise Unsupported(f"len of a {type(value).__name__}")
    row = value if isinstance(value, Row) else Row(value.views, (slice(None),) * value.views.tensor.rank)
    counts = [p.k.add(last, p.k.mul(first, -1)) for first, last in bounds_of(p, row)]
    return Scalar(p.k.number(functools.reduce(p.k.mul, counts)), int)


def _magnitude(symbol: str) -> Callable[..., Any]:
    return _exact(lambda k, x: k.b.fcmp_ordered(symbol, k.intrinsic("fabs", x), f64(float("inf"))), bool)


_LIBRARY = (
    "sqrt", "exp", "exp2", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "erfc", "cbrt", "atan2", "fmod", "pow", "remainder", "fma",
)  # fmt: skip
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "and_": "&", "or_": "|",
    "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    min: _extreme(False), max: _extreme(True), int: _cast(int), float: _cast(float), bool: _cast(bool), abs: _absolute,
    round: _whole("round", "rint", "builtins"), len: _length, sum: _folded("+", 0),
    operator.index: _cast(int), operator.abs: _absolute, math.prod: _folded("*", 1), math.gcd: _gcd, math.log: _log,
    math.floor: _whole("floor", "floor"), math.ceil: _whole("ceil", "ceil"), math.trunc: _whole("trunc", "trunc"),
    math.gamma: _real("gamma", "tgamma"), math.lgamma: _real("lgamma"),
    math.hypot: _exact(lambda k, x, y: k.call("hypot", f64, [x, y])),
    math.fabs: _exact(lambda k, x: k.intrinsic("fabs", x)),
    math.copysign: _exact(lambda k, x, y: k.intrinsic("copysign", x, y)),
    math.degrees: _exact(lambda k, x: k.b.fmul(x, f64(180 / math.pi))),
    math.radians: _exact(lambda k, x: k.b.fmul(x, f64(math.pi / 180))),
    math.isnan: _exact(lambda k, x: k.b.fcmp_unordered("uno", x, x), bool),
    math.isinf: _magnitude("=="), math.isfinite: _magnitude("<"),
    **{getattr(math, name): _real(name) for name in _LIBRARY if hasattr(math, name)},
    **{getattr(operator, name): _operator(symbol) for name, symbol in _SYMBOLS.items()},
}  # fmt: skip
