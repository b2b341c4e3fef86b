"""Lowering of `tilekit.lang.trigonometry`: sine, cosine..., tanh, by range reduction, PTX or libdevice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import angles, arithmetic
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.emit import asm
from tilekit.compiler.codegen.floats import check, floating, library, pair
from tilekit.compiler.codegen.operands import map_elements
from tilekit.compiler.codegen.rounding import modes
from tilekit.lang import rounding
from tilekit.lang import trigonometry as lang
from tilekit.lang.rounding import RoundingMode

__all__: list[str] = []


def _function(name: str) -> Callable[..., Any]:
    return lambda x: floating(name, x, library(name))


def _of_angle(name: str, function: Callable[..., ir.Value]) -> Callable[..., Any]:
    def define(x: types.Type) -> Any:
        tile = check(name, x)
        if tile.dtype == dtypes.float64:
            return floating(name, x, library(name))
        small = tile.dtype == dtypes.float16  # none is larger than 65504
        return floating(name, x, lambda b, v: function(b, v, small=small))

    return define


lowers(lang.sin)(_of_angle("sin", angles.sine))
lowers(lang.cos)(_of_angle("cos", angles.cosine))
lowers(lang.tan)(_of_angle("tan", angles.tangent))
for _name in ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"):
    lowers(getattr(lang, _name))(_function(_name))


@lowers(lang.tanh)
def tanh(x: types.Type, rounding_mode: types.Type) -> Any:
    tile = check("tanh", x)
    mode, _ = modes("tanh", rounding.EXPONENTIAL, rounding_mode, None, tile.dtype)
    function = _tanh_approx if mode == RoundingMode.APPROX else library("tanh")
    result, emit = map_elements((x,), tile, tile.dtype, arithmetic.via_float32(tile.dtype, function))
    return result, lambda builder, value, _: emit(builder, value)


def _tanh_approx(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return asm(b, "tanh.approx.f32 $0, $1;", "=f,f", x.type, [x])


@lowers(lang.atan2)
def atan2(x1: types.Type, x2: types.Type) -> Any:
    return pair("atan2", x1, x2, library("atan2"))
