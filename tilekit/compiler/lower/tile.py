"""Lowering of `tilekit.lang.tile`: operators (broadcast and promoted), attributes and methods of tiles, casts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic, division
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import ABSENT, attribute, known, lowers_method, lowers_operator
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import constant_tuple
from tilekit.compiler.codegen.operands import common, map_elements
from tilekit.compiler.codegen.rounding import conversion_mode, converted
from tilekit.compiler.codegen.types import DTypeType, TileType, constant, describe, dtype_of, integer, scalar_kind, scalar_type
from tilekit.dtypes import DType
from tilekit.lang import tile as lang

__all__ = [
    "absolute", "arithmetic_of", "bitwise", "cast", "comparison", "divided", "divided_twice", "inverted", "negative", "power",
    "quotient", "shift",
]  # fmt: skip


_CHEAP = ("+", "-", "*")  # see `map_elements`


def arithmetic_of(what: str, function: Callable[[DType], Callable[..., ir.Value]], x: types.Type, y: types.Type) -> Any:
    """An operation on numbers in their common dtype; `what` names it in errors, here and below."""
    meet = common(what, x, y)
    if meet.dtype == dtypes.bool_:
        reject(what, lang.NO_ARITHMETIC)
    return map_elements((x, y), meet, meet.dtype, function(meet.dtype), what if what in _CHEAP else None)


def quotient(what: str, x: types.Type, y: types.Type) -> Any:
    """The quotient of floats; of integers as float32."""
    meet = common(what, x, y)
    meet = meet.like(dtypes.quotient_dtype(meet.dtype))
    result, plain = map_elements((x, y), meet, meet.dtype, arithmetic.divide(meet.dtype))
    if scalar_kind(y) is None:
        return result, plain

    def emit(builder: ir.IRBuilder, dividend: ir.Value, divisor: ir.Value) -> ir.Value:
        value = divisor.constant if isinstance(divisor, ir.Constant) else None
        # By a power of two that stands in the kernel: a product with its inverse, which every float type holds.
        if not isinstance(value, (int, float)) or abs(math.frexp(value)[0]) != 0.5 or not 2.0**-14 <= abs(value) <= 2.0**14:
            return plain(builder, dividend, divisor)
        inverse, times = constant(meet.dtype, 1 / value), arithmetic.binary("*", meet.dtype)
        return map_elements((x,), meet, meet.dtype, lambda b, v: times(b, v, inverse))[1](builder, dividend)

    return result, emit


def divided(what: str, function: Callable[[DType, int | None], Callable[..., ir.Value]], x: types.Type, y: types.Type) -> Any:
    """`//` or `%`; a divisor that is known may make it cheaper."""
    divisor = known(y) if scalar_kind(y) is int else ABSENT
    return arithmetic_of(what, lambda dtype: function(dtype, None if divisor is ABSENT else divisor), x, y)


def divided_twice(what: str, x: types.Type, y: types.Type) -> Any:
    """`//` and `%`; LLVM finds what they have in common."""
    (result, first), (_, second) = (divided(what, f, x, y) for f in (division.floor_quotient, division.remainder))

    def emit(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        parts = [first(builder, a, b), second(builder, a, b)]
        pair: Any = ir.Constant(ir.ArrayType(parts[0].type, 2), ir.Undefined)
        for index, value in enumerate(parts):
            pair = builder.insert_value(pair, value, index)
        return pair

    return types.UniTuple(result, 2), emit


def power(what: str, x: types.Type, y: types.Type) -> Any:
    """`**`; by a small whole number that stands in the kernel, as products."""
    if scalar_kind(y) is None:
        return arithmetic_of(what, division.power, x, y)
    result, plain = arithmetic_of(what, division.power, x, y)

    def emit(builder: ir.IRBuilder, base: ir.Value, exponent: ir.Value) -> ir.Value:
        value = exponent.constant if isinstance(exponent, ir.Constant) else None
        product = division.power_by(result.dtype, value) if isinstance(value, (int, float)) else None
        if product is None:
            return plain(builder, base, exponent)
        return map_elements((x,), result, result.dtype, product)[1](builder, base)

    return result, emit


def comparison(what: str, symbol: str, x: types.Type, y: types.Type) -> Any:
    """A bool for each pair of elements."""
    meet = common(what, x, y)
    return map_elements((x, y), meet, dtypes.bool_, arithmetic.compare(symbol, meet.dtype), symbol)


def bitwise(what: str, symbol: str, x: types.Type, y: types.Type) -> Any:
    """`&`, `|` or `^`."""
    meet = common(what, x, y)
    if dtypes.is_float(meet.dtype):
        reject(what, f"needs bool or integer tiles, not {meet.dtype.name}")
    return map_elements((x, y), meet, meet.dtype, arithmetic.BITWISE[symbol], symbol)


def shift(what: str, symbol: str, x: types.Type, y: types.Type) -> Any:
    """`<<` or `>>`."""
    meet = common(what, x, y)
    if dtypes.is_float(meet.dtype) or meet.dtype == dtypes.bool_:
        reject(what, f"needs integer tiles, not {meet.dtype.name}")
    return map_elements((x, y), meet, meet.dtype, arithmetic.shift(symbol, meet.dtype))


def negative(what: str, x: TileType) -> Any:
    """The negative."""
    if x.dtype == dtypes.bool_:
        reject(what, "a bool tile has no negative; use ~tile")
    common(what, x)
    return map_elements((x,), x, x.dtype, arithmetic.negate(x.dtype))


def absolute(what: str, x: TileType) -> Any:
    """The absolute value."""
    return map_elements((x,), common(what, x), x.dtype, arithmetic.absolute(x.dtype), what)


def inverted(what: str, x: TileType) -> Any:
    """All bits the other way round."""
    if dtypes.is_float(x.dtype):
        reject(what, f"needs a bool or integer tile, not {x.dtype.name}")
    return map_elements((x,), x, x.dtype, lambda builder, value: builder.not_(value))


def _missing(symbol: str, instead: str) -> Callable[..., Any]:
    def define(*operands: types.Type) -> Any:
        reject(symbol, instead)

    return define


def _operators() -> Iterator[tuple[str, tuple[str, ...], Callable[..., Any]]]:
    """Of each binary operator the symbol, the names that the module `operator` has for it, and what it becomes."""
    for symbol, name in {"+": "add", "-": "sub", "*": "mul"}.items():
        yield symbol, (name, f"i{name}"), lambda x, y, s=symbol: arithmetic_of(s, lambda d: arithmetic.binary(s, d), x, y)
    yield "/", ("truediv", "itruediv"), lambda x, y: quotient("/", x, y)
    yield "//", ("floordiv", "ifloordiv"), lambda x, y: divided("//", division.floor_quotient, x, y)
    yield "%", ("mod", "imod"), lambda x, y: divided("%", division.remainder, x, y)
    yield "**", ("pow", "ipow"), lambda x, y: power("**", x, y)
    for symbol, name in zip(arithmetic.COMPARISONS, ("lt", "le", "gt", "ge", "eq", "ne"), strict=True):
        yield symbol, (name,), lambda x, y, s=symbol: comparison(s, s, x, y)
    for symbol, names in {"&": ("and_", "iand"), "|": ("or_", "ior"), "^": ("xor", "ixor")}.items():
        yield symbol, names, lambda x, y, s=symbol: bitwise(s, s, x, y)
    for symbol, name in {"<<": "lshift", ">>": "rshift"}.items():
        yield symbol, (name, f"i{name}"), lambda x, y, s=symbol: shift(s, s, x, y)


for _symbol, _names, _define in _operators():
    for _name in _names:
        lowers_operator(getattr(operator, _name), _symbol, anywhere=_symbol in (*_CHEAP, *arithmetic.COMPARISONS, *"&|^"))(
            _define
        )
lowers_operator(divmod, "divmod")(lambda x, y: divided_twice("divmod", x, y))
lowers_operator(pow, "pow")(lambda x, y: power("pow", x, y))
lowers_operator(operator.neg, "-")(lambda x: negative("-", x))
lowers_operator(operator.invert, "~")(lambda x: inverted("~", x))
lowers_operator(abs, "abs", anywhere=True)(lambda x: absolute("abs", x))


@lowers_operator(operator.pos, "+")
def positive(x: TileType) -> Any:
    if x.dtype == dtypes.bool_:
        reject("+", lang.NO_ARITHMETIC)
    common("+", x)
    return x, lambda builder, value: value


def _truth(symbol: str, wanted: bool) -> Callable[..., Any]:
    """Whether the one element of a tile of shape () is nonzero, or (`not`) zero, as a scalar."""

    def define(tile: TileType) -> Any:
        if tile.shape:
            reject(symbol, lang.NO_TRUTH if wanted else "a tile has no single truth value: use ~tile on a bool tile")

        def emit(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
            truth = convert(builder, builder.extract_value(value, 0), tile.dtype, dtypes.bool_)
            return truth if wanted else builder.not_(truth)

        return types.boolean, emit

    return define


lowers_operator(bool, "if")(_truth("if", True))
lowers_operator(operator.not_, "not")(_truth("not", False))
_AT_ONCE = "tile operations work on all its elements at once"
lowers_operator("getiter", "for")(_missing("for", f"a tile cannot be iterated over: {_AT_ONCE}"))
lowers_operator(len, "len")(_missing("len", "a tile has no len; its extents are tile.shape"))
lowers_operator(operator.setitem, "[]")(_missing("[]", f"elements cannot be assigned to: {_AT_ONCE}; use tk.where or tk.insert"))


def cast(tile: TileType, dtype: types.Type, rounding_mode: types.Type) -> Any:
    """`tile.astype(dtype, rounding_mode=rounding_mode)`."""
    target = dtype_of(dtype)
    if target is None:
        reject("astype", f"{describe(dtype)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    mode = conversion_mode(rounding_mode, tile.dtype, target)

    def element(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
        return convert(builder, x, tile.dtype, target) if mode is None else converted(builder, x, tile.dtype, target, mode)

    held = tile if isinstance(tile, TileType) else TileType.of_shape(tile.dtype, tile.shape, tile.config)
    result, emit = map_elements((tile,), held, target, element, None if mode else f"astype {target.name}")
    return result, lambda builder, value, *_: emit(builder, value)


@lowers_method(TileType, lang.Tile.astype, anywhere=True)
def astype(self: TileType, dtype: types.Type, rounding_mode: types.Type) -> Any:
    return cast(self, dtype, rounding_mode)


@lowers_method(TileType, lang.Tile.item)
def item(self: TileType) -> Any:
    if math.prod(self.shape) != 1:
        reject("item", lang.one_element(self.shape))
    if problem := dtypes.no_arithmetic(self.dtype):
        reject("item", problem)
    scalar = dtypes.float32 if self.dtype in (dtypes.float16, dtypes.bfloat16) else self.dtype

    def emit(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return convert(builder, builder.extract_value(value, 0), self.dtype, scalar)

    return scalar_type(scalar), emit


@attribute(TileType, "shape")
def tile_shape(tile: TileType) -> Any:
    return constant_tuple(tile.shape)


@attribute(TileType, "ndim")
def tile_ndim(tile: TileType) -> Any:
    return types.literal(len(tile.shape)), lambda builder, value: integer(64, len(tile.shape))


@attribute(TileType, "dtype")
def tile_dtype(tile: TileType) -> Any:
    return DTypeType(tile.dtype), lambda builder, value: None
