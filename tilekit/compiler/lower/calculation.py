"""Lowering of `tilekit.lang.calculation`: arithmetic as functions, with rounding modes, fused multiply-add, mulhi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic, division
from tilekit.compiler.codegen.computed import ComputedType
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import ABSENT, known, lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.operands import common, map_elements
from tilekit.compiler.codegen.rounding import directed, modes
from tilekit.compiler.codegen.types import TileType, describe, integer, scalar_dtype, scalar_kind
from tilekit.compiler.lower import tile
from tilekit.lang import calculation as lang
from tilekit.lang import rounding
from tilekit.lang.rounding import RoundingMode
from tilekit.lang.tile import NO_ARITHMETIC

__all__: list[str] = []


def _basic(
    name: str, accepted: tuple[RoundingMode, ...], operands: tuple[types.Type, ...], mode: types.Type, flush_to_zero: types.Type
) -> Any:
    """One of the operations that take a rounding mode; of integers, as they wrap."""
    meet = common(name, *operands)
    if meet.dtype == dtypes.bool_ and name != "truediv":
        reject(name, NO_ARITHMETIC)
    if name == "truediv":
        meet = meet.like(dtypes.quotient_dtype(meet.dtype))
    chosen, flush = modes(name, accepted, mode, flush_to_zero, meet.dtype)
    if name == "truediv" and chosen in (None, RoundingMode.RN) and not flush:
        result, emit = tile.quotient(name, *operands)
    else:
        function = directed(name, chosen, flush, meet.dtype) if dtypes.is_float(meet.dtype) else _wrapping(name, meet.dtype)
        result, emit = map_elements(operands, meet, meet.dtype, function)
    return result, lambda builder, *values: emit(builder, *values[: len(operands)])


def _wrapping(name: str, dtype: dtypes.DType) -> Callable[..., ir.Value]:
    if name != "fma":
        return arithmetic.binary({"add": "+", "sub": "-", "mul": "*"}[name], dtype)
    times, plus = arithmetic.binary("*", dtype), arithmetic.binary("+", dtype)
    return lambda b, x, y, z: plus(b, times(b, x, y), z)


@lowers(lang.add)
def add(x: types.Type, y: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    return _basic("add", rounding.BASIC, (x, y), rounding_mode, flush_to_zero)


@lowers(lang.sub)
def sub(x: types.Type, y: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    return _basic("sub", rounding.BASIC, (x, y), rounding_mode, flush_to_zero)


@lowers(lang.mul)
def mul(x: types.Type, y: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    return _basic("mul", rounding.BASIC, (x, y), rounding_mode, flush_to_zero)


@lowers(lang.truediv)
def truediv(x: types.Type, y: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    return _basic("truediv", rounding.DIVISION, (x, y), rounding_mode, flush_to_zero)


@lowers(lang.fma)
def fma(x: types.Type, y: types.Type, z: types.Type, rounding_mode: types.Type, flush_to_zero: types.Type) -> Any:
    return _basic("fma", rounding.BASIC, (x, y, z), rounding_mode, flush_to_zero)


@lowers(lang.floordiv)
def floordiv(x: types.Type, y: types.Type) -> Any:
    return tile.divided("floordiv", division.floor_quotient, x, y)


@lowers(lang.mod)
def mod(x: types.Type, y: types.Type) -> Any:
    return tile.divided("mod", division.remainder, x, y)


@lowers(lang.divmod_)
def divmod_(x: types.Type, y: types.Type) -> Any:
    return tile.divided_twice("divmod", x, y)


@lowers(lang.cdiv)
def cdiv(x: types.Type, y: types.Type) -> Any:
    if scalar_kind(x) is int and scalar_kind(y) is int:
        return _cdiv_of_scalars(x, y)
    meet = common("cdiv", x, y)
    if dtypes.is_float(meet.dtype) or meet.dtype == dtypes.bool_:
        reject("cdiv", f"needs integer tiles, not {meet.dtype.name}")
    return map_elements((x, y), meet, meet.dtype, division.ceiling_quotient(meet.dtype))


def _cdiv_of_scalars(x: types.Type, y: types.Type) -> Any:
    a, b = known(x), known(y)
    if a is not ABSENT and b is not ABSENT:
        quotient = -(-a // b) if b else 0
        return types.literal(quotient), lambda builder, *_: integer(64, quotient)

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        wide = [convert(builder, v, scalar_dtype(ty), dtypes.int64) for ty, v in zip((x, y), values, strict=True)]
        return division.ceiling_quotient(dtypes.int64)(builder, *wide)

    return types.int64, emit


@lowers(lang.pow_)
def pow_(x: types.Type, y: types.Type) -> Any:
    return tile.power("pow", x, y)


@lowers(lang.negative)
def negative(x: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("negative", f"needs a tile, not {describe(x)}")
    return tile.negative("negative", x)


@lowers(lang.abs_, anywhere=True)
def abs_(x: types.Type) -> Any:
    if not isinstance(x, (TileType, ComputedType)):
        reject("abs", f"needs a tile, not {describe(x)}")
    return tile.absolute("abs", x)


@lowers(lang.mulhi)
def mulhi(x: types.Type, y: types.Type) -> Any:
    meet = common("mulhi", x, y)
    if dtypes.is_float(meet.dtype) or meet.dtype == dtypes.bool_:
        reject("mulhi", f"needs integer tiles, not {meet.dtype.name}")
    return map_elements((x, y), meet, meet.dtype, arithmetic.high_product(meet.dtype))
