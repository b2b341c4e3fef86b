"""Lowering of `tilekit.lang.elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from tilekit import dtypes
from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower import arithmetic, tile
from tilekit.compiler.lower.emit import asm, pack, unpack
from tilekit.compiler.lower.operands import common, elements, map_elements
from tilekit.compiler.ops import lowers
from tilekit.compiler.types import TileType, describe
from tilekit.lang import elementwise as lang

__all__: list[str] = []


@lowers(lang.where)
def where(condition: types.Type, x: types.Type, y: types.Type) -> Any:
    if not isinstance(condition, TileType) or condition.dtype != dtypes.bool_:
        reject("where", "the condition is a bool tile, such as the result of a comparison")
    result = common("where", condition, x, y)

    def emit(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        rows = zip(unpack(builder, mask), elements(builder, x, a, result), elements(builder, y, b, result), strict=True)
        return pack(builder, [builder.select(*row) for row in rows])

    return result, emit


def _extremum(name: str) -> Callable[..., Any]:
    def define(x: types.Type, y: types.Type) -> Any:
        meet = common(name, x, y)
        return map_elements((x, y), meet, meet.dtype, arithmetic.extremum(name, meet.dtype))

    return define


lowers(lang.minimum)(_extremum("minimum"))
lowers(lang.maximum)(_extremum("maximum"))


def _floating(name: str, function: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Callable[..., Any]:
    """An operation on floats that is written for float32 and float64."""

    def define(x: types.Type) -> Any:
        if not isinstance(x, TileType):
            reject(name, f"needs a tile, not {describe(x)}; for a scalar use math.{name}")
        if not dtypes.is_float(x.dtype):
            reject(name, f"needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
        return map_elements((x,), x, x.dtype, arithmetic.via_float32(x.dtype, function))

    return define


def _libdevice(stem: str) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """A function of CUDA's math library, by its name in C."""

    def call(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
        name = f"__nv_{stem}f" if x.type == ir.FloatType() else f"__nv_{stem}"
        return builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(x.type, [x.type]), name), [x])

    return call


def _sqrt(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    kind, letter = ("f32", "f") if x.type == ir.FloatType() else ("f64", "d")
    return asm(builder, f"sqrt.rn.{kind} $0, $1;", f"={letter},{letter}", x.type, [x])


lowers(lang.exp)(_floating("exp", _libdevice("exp")))
lowers(lang.sqrt)(_floating("sqrt", _sqrt))


@lowers(lang.astype)
def astype(x: types.Type, dtype: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("astype", f"needs a tile, not {describe(x)}")
    return tile.cast(x, dtype)
