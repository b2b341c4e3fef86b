"""Lowering of `tilekit.lang.tile`: the operators, attributes and methods of tiles."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower import arithmetic
from tilekit.compiler.lower.convert import convert
from tilekit.compiler.lower.emit import constant_tuple
from tilekit.compiler.lower.operands import common, map_elements
from tilekit.compiler.ops import attribute, lowers_method, lowers_operator
from tilekit.compiler.types import DTypeType, TileType, describe, dtype_of, integer, scalar_type
from tilekit.lang import tile as lang

__all__ = ["cast"]


def _arithmetic(symbol: str) -> Callable[..., Any]:
    def define(a: types.Type, b: types.Type) -> Any:
        meet = common(symbol, a, b)
        if meet.dtype == dtypes.bool_:
            reject(symbol, "bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~")
        return map_elements((a, b), meet, meet.dtype, arithmetic.binary(symbol, meet.dtype))

    return define


def _divide(a: types.Type, b: types.Type) -> Any:
    meet = common("/", a, b)
    meet = meet.like(dtypes.quotient_dtype(meet.dtype))
    return map_elements((a, b), meet, meet.dtype, arithmetic.divide(meet.dtype))


def _compare(symbol: str) -> Callable[..., Any]:
    def define(a: types.Type, b: types.Type) -> Any:
        meet = common(symbol, a, b)
        return map_elements((a, b), meet, dtypes.bool_, arithmetic.compare(symbol, meet.dtype))

    return define


def _bitwise(symbol: str) -> Callable[..., Any]:
    def define(a: types.Type, b: types.Type) -> Any:
        meet = common(symbol, a, b)
        if dtypes.is_float(meet.dtype):
            reject(symbol, f"needs bool or integer tiles, not {meet.dtype.name}")
        return map_elements((a, b), meet, meet.dtype, arithmetic.BITWISE[symbol])

    return define


def _shift(symbol: str) -> Callable[..., Any]:
    def define(a: types.Type, b: types.Type) -> Any:
        meet = common(symbol, a, b)
        if dtypes.is_float(meet.dtype) or meet.dtype == dtypes.bool_:
            reject(symbol, f"needs integer tiles, not {meet.dtype.name}")
        return map_elements((a, b), meet, meet.dtype, arithmetic.shift(symbol, meet.dtype))

    return define


def _missing(symbol: str, instead: str) -> Callable[..., Any]:
    def define(*operands: types.Type) -> Any:
        reject(symbol, instead)

    return define


for _symbol, _names in {"+": ("add", "iadd"), "-": ("sub", "isub"), "*": ("mul", "imul")}.items():
    for _name in _names:
        lowers_operator(getattr(operator, _name), _symbol)(_arithmetic(_symbol))
for _name in ("truediv", "itruediv"):
    lowers_operator(getattr(operator, _name), "/")(_divide)
for _symbol, _name in zip(arithmetic.COMPARISONS, ("lt", "le", "gt", "ge", "eq", "ne"), strict=True):
    lowers_operator(getattr(operator, _name), _symbol)(_compare(_symbol))
for _symbol, _names in {"&": ("and_", "iand"), "|": ("or_", "ior"), "^": ("xor", "ixor")}.items():
    for _name in _names:
        lowers_operator(getattr(operator, _name), _symbol)(_bitwise(_symbol))
for _symbol, _names in {"<<": ("lshift", "ilshift"), ">>": ("rshift", "irshift")}.items():
    for _name in _names:
        lowers_operator(getattr(operator, _name), _symbol)(_shift(_symbol))

for _symbol, _names in {
    "//": ("floordiv", "ifloordiv"), "%": ("mod", "imod"), "**": ("pow", "ipow"), "@": ("matmul", "imatmul"),
}.items():  # fmt: skip
    for _name in _names:
        _words = f"tiles do not have the operator {_symbol}; there are + - * / & | ^ ~ << >> and the comparisons"
        lowers_operator(getattr(operator, _name), _symbol)(_missing(_symbol, _words))


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


@lowers_operator(operator.neg, "-")
def negative(tile: TileType) -> Any:
    if tile.dtype == dtypes.bool_:
        reject("-", "a bool tile has no negative; use ~tile")
    common("-", tile)
    return map_elements((tile,), tile, tile.dtype, arithmetic.negate(tile.dtype))


@lowers_operator(operator.invert, "~")
def invert(tile: TileType) -> Any:
    if dtypes.is_float(tile.dtype):
        reject("~", f"needs a bool or integer tile, not {tile.dtype.name}")
    return map_elements((tile,), tile, tile.dtype, lambda builder, x: builder.not_(x))


@lowers_operator(abs, "abs")
def absolute(tile: TileType) -> Any:
    common("abs", tile)
    return map_elements((tile,), tile, tile.dtype, arithmetic.absolute(tile.dtype))


def cast(tile: TileType, dtype: types.Type) -> Any:
    """`tile.astype(dtype)`."""
    target = dtype_of(dtype)
    if target is None:
        reject("astype", f"{describe(dtype)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    result, emit = map_elements((tile,), tile, target, lambda builder, x: convert(builder, x, tile.dtype, target))
    return result, lambda builder, value, *_: emit(builder, value)


@lowers_method(TileType, lang.Tile.astype)
def astype(self: TileType, dtype: types.Type) -> Any:
    return cast(self, dtype)


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
