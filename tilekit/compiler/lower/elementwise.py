"""Lowering of `tilekit.lang.elementwise`: select (where), minimum and maximum, rounding to integers, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.computed import ComputedType, combined
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import pack
from tilekit.compiler.codegen.floats import floating, library, pair
from tilekit.compiler.codegen.operands import common, elements, map_elements
from tilekit.compiler.codegen.rounding import flushed_extremum, modes
from tilekit.compiler.codegen.types import TileType, constant, describe, dtype_of, register_type
from tilekit.compiler.lower import tile
from tilekit.lang import elementwise as lang
from tilekit.lang.tile import NO_ARITHMETIC

__all__: list[str] = []


@lowers(lang.where, anywhere=True)
def where(condition: types.Type, x: types.Type, y: types.Type) -> Any:
    if not isinstance(condition, (TileType, ComputedType)) or condition.dtype != dtypes.bool_:
        reject("where", "the condition is a bool tile, such as the result of a comparison")
    result = common("where", condition, x, y)
    computed = combined("where", (condition, x, y), result, result.dtype, _chosen)
    if computed is not None:
        return computed

    def emit(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        chosen = elements(builder, condition, mask, result.like(dtypes.bool_))
        rows = zip(chosen, elements(builder, x, a, result), elements(builder, y, b, result), strict=True)
        return pack(builder, [builder.select(*row) for row in rows])

    return result, emit


def _chosen(builder: ir.IRBuilder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """One of two, by a condition that was converted to their dtype: which LLVM takes back."""
    zero = ir.Constant(condition.type, 0)
    if isinstance(condition.type, ir.IntType):
        return builder.select(builder.icmp_unsigned("!=", condition, zero), x, y)
    return builder.select(builder.fcmp_unordered("!=", condition, zero), x, y)


def _extremum(name: str) -> Callable[..., Any]:
    def define(x: types.Type, y: types.Type, propagate_nan: types.Type, flush_to_zero: types.Type) -> Any:
        meet = common(name, x, y)
        propagate = known(propagate_nan)
        if not isinstance(propagate, bool):
            refuse(name, lang.NO_POLICY)
        _, flush = modes(name, (), types.none, flush_to_zero, meet.dtype)
        function = (arithmetic.extremum if propagate else arithmetic.extremum_of_numbers)(name, meet.dtype)
        if flush:
            function = flushed_extremum(name, propagate)
        result, emit = map_elements((x, y), meet, meet.dtype, function, name)
        return result, lambda builder, a, b, *_: emit(builder, a, b)

    return define


lowers(lang.minimum, anywhere=True)(_extremum("minimum"))
lowers(lang.maximum, anywhere=True)(_extremum("maximum"))


@lowers(lang.clip)
def clip(x: types.Type, lo: types.Type, hi: types.Type) -> Any:
    meet = common("clip", x, lo, hi)
    above, below = arithmetic.extremum("maximum", meet.dtype), arithmetic.extremum("minimum", meet.dtype)
    return map_elements((x, lo, hi), meet, meet.dtype, lambda b, v, low, high: below(b, above(b, v, low), high))


@lowers(lang.sign)
def sign(x: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("sign", f"needs a tile, not {describe(x)}")
    if x.dtype == dtypes.bool_:
        reject("sign", NO_ARITHMETIC)
    common("sign", x)
    single = dtypes.float32 if x.dtype in (dtypes.float16, dtypes.bfloat16) else x.dtype

    def of(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        zero = constant(single, 0)
        above, below, same = (arithmetic.compare(symbol, single)(b, value, zero) for symbol in (">", "<", "=="))
        negative = constant(single, 0 if single.kind == "u" else -1)
        return b.select(above, constant(single, 1), b.select(below, negative, b.select(same, zero, value)))

    return map_elements((x,), x, x.dtype, arithmetic.via_float32(x.dtype, of))


@lowers(lang.copysign)
def copysign(x: types.Type, y: types.Type) -> Any:
    return pair("copysign", x, y, library("copysign"))


def _whole(name: str, stem: str) -> Callable[..., Any]:
    return lambda x: floating(name, x, library(stem))


for _name, _stem in {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_": "rint"}.items():
    lowers(getattr(lang, _name))(_whole(_name.removesuffix("_"), _stem))


@lowers(lang.astype, anywhere=True)
def astype(x: types.Type, dtype: types.Type, rounding_mode: types.Type) -> Any:
    if not isinstance(x, (TileType, ComputedType)):
        reject("astype", f"needs a tile, not {describe(x)}")
    return tile.cast(x, dtype, rounding_mode)


@lowers(lang.bitcast)
def bitcast(x: types.Type, dtype: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("bitcast", f"needs a tile, not {describe(x)}")
    target = dtype_of(dtype)
    if target is None:
        reject("bitcast", f"{describe(dtype)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    problem = lang.bitcast_problem(x.dtype, target)
    if problem:
        reject("bitcast", problem)
    result, emit = map_elements((x,), x, target, lambda builder, bits: builder.bitcast(bits, register_type(target)))
    return result, lambda builder, value, *_: emit(builder, value)
