"""Lowering of `tilekit.lang.elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower import arithmetic, tile
from tilekit.compiler.lower.emit import pack
from tilekit.compiler.lower.operands import common, elements, map_elements
from tilekit.compiler.ops import lowers
from tilekit.compiler.types import TileType, describe, dtype_of, register_type
from tilekit.lang import elementwise as lang

__all__: list[str] = []


@lowers(lang.where)
def where(condition: types.Type, x: types.Type, y: types.Type) -> Any:
    if not isinstance(condition, TileType) or condition.dtype != dtypes.bool_:
        reject("where", "the condition is a bool tile, such as the result of a comparison")
    result = common("where", condition, x, y)

    def emit(builder: ir.IRBuilder, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        chosen = elements(builder, condition, mask, result.like(dtypes.bool_))
        rows = zip(chosen, elements(builder, x, a, result), elements(builder, y, b, result), strict=True)
        return pack(builder, [builder.select(*row) for row in rows])

    return result, emit


def _extremum(name: str) -> Callable[..., Any]:
    def define(x: types.Type, y: types.Type) -> Any:
        meet = common(name, x, y)
        return map_elements((x, y), meet, meet.dtype, arithmetic.extremum(name, meet.dtype))

    return define


lowers(lang.minimum)(_extremum("minimum"))
lowers(lang.maximum)(_extremum("maximum"))


@lowers(lang.mul)
def mul(x: types.Type, y: types.Type) -> Any:
    meet = common("mul", x, y)
    if meet.dtype == dtypes.bool_:
        reject("mul", "bool tiles have no arithmetic; cast with .astype(tk.int32), or use & | ~")
    return map_elements((x, y), meet, meet.dtype, arithmetic.product(meet.dtype))


@lowers(lang.mulhi)
def mulhi(x: types.Type, y: types.Type) -> Any:
    meet = common("mulhi", x, y)
    if dtypes.is_float(meet.dtype) or meet.dtype == dtypes.bool_:
        reject("mulhi", f"needs integer tiles, not {meet.dtype.name}")
    return map_elements((x, y), meet, meet.dtype, arithmetic.high_product(meet.dtype))


def _floating(name: str, function: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Callable[..., Any]:
    """An operation on floats that is written for float32 and float64."""

    def define(x: types.Type) -> Any:
        if not isinstance(x, TileType):
            reject(name, f"needs a tile, not {describe(x)}; for a scalar use math.{name}")
        if not dtypes.is_float(x.dtype):
            reject(name, f"needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
        common(name, x)
        return map_elements((x,), x, x.dtype, arithmetic.via_float32(x.dtype, function))

    return define


def _libdevice(stem: str) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """A function of CUDA's math library, by its name in C."""
    return lambda builder, x: arithmetic.libdevice(f"__nv_{stem}" + "f" * (x.type == ir.FloatType()))(builder, x)


def _sqrt(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return arithmetic.libdevice("__nv_fsqrt_rn" if x.type == ir.FloatType() else "__nv_dsqrt_rn")(builder, x)


for _name in ("exp", "log", "cos", "sin"):
    lowers(getattr(lang, _name))(_floating(_name, _libdevice(_name)))
lowers(lang.sqrt)(_floating("sqrt", _sqrt))


@lowers(lang.astype)
def astype(x: types.Type, dtype: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("astype", f"needs a tile, not {describe(x)}")
    return tile.cast(x, dtype)


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
