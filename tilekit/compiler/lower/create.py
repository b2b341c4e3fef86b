"""Lowering of `tilekit.lang.create`: tiles made of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.diagnose import reject
from tilekit.compiler.lower import arithmetic
from tilekit.compiler.lower.convert import convert
from tilekit.compiler.lower.emit import pack, special_register, thread_coordinates
from tilekit.compiler.lower.memory import tile_shape
from tilekit.compiler.ops import lowers
from tilekit.compiler.types import TileType, constant, current_config, describe, dtype_of, integer, scalar_dtype, scalar_kind
from tilekit.dtypes import DType
from tilekit.lang import create as lang

__all__: list[str] = []


def _named_dtype(ty: types.Type, what: str) -> DType:
    dtype = dtype_of(ty)
    if dtype is None:
        reject(what, f"{describe(ty)} is not a dtype of tilekit; there are {', '.join(d.name for d in dtypes.ALL)}")
    return dtype


def _constant(what: str, value: int) -> Callable[..., Any]:
    def define(shape: types.Type, dtype: types.Type) -> Any:
        result = TileType.of_shape(_named_dtype(dtype, what), tile_shape(shape, what), current_config(), splat=True)
        element = constant(result.dtype, value)
        return result, lambda builder, *_: pack(builder, [element] * result.layout.num_registers)

    return define


lowers(lang.zeros)(_constant("zeros", 0))
lowers(lang.ones)(_constant("ones", 1))


@lowers(lang.full)
def full(shape: types.Type, value: types.Type, dtype: types.Type) -> Any:
    kind = scalar_kind(value)
    if kind is None:
        reject("full", f"the value is a scalar, not {describe(value)}")
    by_default = isinstance(dtype, types.NoneType) or (isinstance(dtype, types.Omitted) and dtype.value is None)
    chosen = dtypes.scalar_dtype(dtypes.bool_, kind) if by_default else _named_dtype(dtype, "full")
    result = TileType.of_shape(chosen, tile_shape(shape, "full"), current_config(), splat=True)

    def emit(builder: ir.IRBuilder, shape: ir.Value, value_: ir.Value, dtype: ir.Value) -> ir.Value:
        return pack(builder, [convert(builder, value_, scalar_dtype(value), chosen)] * result.layout.num_registers)

    return result, emit


@lowers(lang.arange)
def arange(size: types.Type, dtype: types.Type, start: types.Type, step: types.Type) -> Any:
    (extent,), chosen = tile_shape(types.Tuple([size]), "arange"), _named_dtype(dtype, "arange")
    if chosen == dtypes.bool_:
        reject("arange", "a range of bool does not exist; compare a range of integers instead")
    if problem := dtypes.no_arithmetic(chosen):
        reject("arange", problem)
    for name, bound in (("start", start), ("step", step)):
        if not isinstance(bound, types.Omitted) and scalar_kind(bound) is None:
            reject("arange", f"{name} is a scalar, not {describe(bound)}")
    result = TileType.of_shape(chosen, (extent,), current_config())
    plus, times = arithmetic.binary("+", chosen), arithmetic.binary("*", chosen)

    def in_dtype(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> ir.Value:
        if isinstance(ty, types.Omitted):
            return constant(chosen, ty.value)
        return convert(builder, value, scalar_dtype(ty), chosen)

    def emit(builder: ir.IRBuilder, size: ir.Value, dtype: ir.Value, first: ir.Value, by: ir.Value) -> ir.Value:
        (offset,) = thread_coordinates(builder, special_register(builder, "tid.x"), result.layout.thread)
        origin, stride = in_dtype(builder, start, first), in_dtype(builder, step, by)
        made = []
        for (register,) in result.layout.coordinates():
            place = convert(builder, builder.add(offset, integer(32, register)), dtypes.int32, chosen)
            made.append(plus(builder, origin, times(builder, place, stride)))
        return pack(builder, made)

    return result, emit
