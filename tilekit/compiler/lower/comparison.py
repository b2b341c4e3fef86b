"""Lowering of `tilekit.lang.comparison`: comparisons, logical operators, tests for NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import pack
from tilekit.compiler.codegen.floats import check
from tilekit.compiler.codegen.operands import broadcast, map_elements, meet
from tilekit.compiler.codegen.types import TileType, describe, scalar_dtype
from tilekit.compiler.lower import tile
from tilekit.lang import comparison as lang

__all__: list[str] = []


def _compare(name: str, symbol: str) -> Callable[..., Any]:
    return lambda x, y: tile.comparison(name, symbol, x, y)


for _name, _symbol in zip(
    ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"), arithmetic.COMPARISONS, strict=True
):
    lowers(getattr(lang, _name))(_compare(_name, _symbol))


def _logical(name: str, symbol: str) -> Callable[..., Any]:
    """Of what is not zero, in operands of any dtypes."""

    def define(x: types.Type, y: types.Type) -> Any:
        bools = [t.like(dtypes.bool_) if isinstance(t, TileType) else t for t in (x, y)]
        result = meet(name, *bools).like(dtypes.bool_)

        def truth(b: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
            if isinstance(ty, TileType):
                return [convert(b, e, ty.dtype, dtypes.bool_) for e in broadcast(b, ty, value, result.layout)]
            return [convert(b, value, scalar_dtype(ty), dtypes.bool_)] * result.layout.num_registers

        def emit(b: ir.IRBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
            rows = zip(truth(b, x, left), truth(b, y, right), strict=True)
            return pack(b, [arithmetic.BITWISE[symbol](b, *row) for row in rows])

        return result, emit

    return define


lowers(lang.logical_and)(_logical("logical_and", "&"))
lowers(lang.logical_or)(_logical("logical_or", "|"))
lowers(lang.logical_xor)(_logical("logical_xor", "^"))


@lowers(lang.logical_not)
def logical_not(x: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("logical_not", f"needs a tile, not {describe(x)}")
    return map_elements((x,), x, dtypes.bool_, lambda b, v: b.not_(convert(b, v, x.dtype, dtypes.bool_)))


def _kind(name: str, symbol: str) -> Callable[..., Any]:
    """How the magnitude compares with infinity."""

    def define(x: types.Type) -> Any:
        tile = check(name, x)

        def test(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
            if name == "isnan":
                return b.fcmp_unordered("uno", value, value)
            size = arithmetic.absolute(dtypes.float32 if value.type == ir.FloatType() else dtypes.float64)(b, value)
            return b.fcmp_ordered(symbol, size, ir.Constant(value.type, float("inf")))

        return map_elements((x,), tile, dtypes.bool_, arithmetic.from_float32(tile.dtype, test))

    return define


lowers(lang.isnan)(_kind("isnan", ""))
lowers(lang.isinf)(_kind("isinf", "=="))
lowers(lang.isfinite)(_kind("isfinite", "<"))
