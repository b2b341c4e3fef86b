"""libdevice, CUDA's math library, which the lowerings of functions on floats share: each for float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.operands import common, map_elements
from tilekit.compiler.codegen.types import TileType, describe

__all__ = ["check", "floating", "library", "pair"]


def check(name: str, x: types.Type) -> TileType:
    """`x`, which must be a floating-point tile."""
    if not isinstance(x, TileType):
        reject(name, f"needs a tile, not {describe(x)}; for a scalar use math.{name}")
    if not dtypes.is_float(x.dtype):
        reject(name, f"needs a floating-point tile, not {x.dtype.name}; cast with .astype(tk.float32)")
    common(name, x)
    return x


def floating(name: str, x: types.Type, function: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Any:
    """An operation on floats that is written for float32 and float64."""
    tile = check(name, x)
    return map_elements((x,), tile, tile.dtype, arithmetic.via_float32(tile.dtype, function))


def pair(name: str, x: types.Type, y: types.Type, function: Callable[..., ir.Value]) -> Any:
    """As `floating`, of two operands."""
    meet = common(name, x, y)
    if not dtypes.is_float(meet.dtype):
        reject(name, f"needs a floating-point tile, not {meet.dtype.name}; cast with .astype(tk.float32)")
    return map_elements((x, y), meet, meet.dtype, arithmetic.via_float32(meet.dtype, function))


def library(stem: str) -> Callable[..., ir.Value]:
    """A function of CUDA's math library, by its name in C."""
    return lambda builder, *x: arithmetic.libdevice(f"__nv_{stem}" + "f" * (x[0].type == ir.FloatType()))(builder, *x)
