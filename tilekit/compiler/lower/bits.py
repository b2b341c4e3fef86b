"""Lowering of `tilekit.lang.bits`: bitwise operators, shifts, popcount and leading zeros (clz)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.operands import map_elements
from tilekit.compiler.codegen.types import TileType, describe, i32
from tilekit.compiler.lower import tile
from tilekit.lang import bits as lang

__all__: list[str] = []


def _bitwise(name: str, symbol: str) -> Callable[..., Any]:
    return lambda x, y: tile.bitwise(name, symbol, x, y)


def _shift(name: str, symbol: str) -> Callable[..., Any]:
    return lambda x, y: tile.shift(name, symbol, x, y)


lowers(lang.bitwise_and)(_bitwise("bitwise_and", "&"))
lowers(lang.bitwise_or)(_bitwise("bitwise_or", "|"))
lowers(lang.bitwise_xor)(_bitwise("bitwise_xor", "^"))
lowers(lang.bitwise_lshift)(_shift("bitwise_lshift", "<<"))
lowers(lang.bitwise_rshift)(_shift("bitwise_rshift", ">>"))


@lowers(lang.bitwise_not)
def bitwise_not(x: types.Type) -> Any:
    if not isinstance(x, TileType):
        reject("bitwise_not", f"needs a tile, not {describe(x)}")
    return tile.inverted("bitwise_not", x)


def _counted(name: str, function: Callable[[ir.IRBuilder, ir.Value], ir.Value]) -> Callable[..., Any]:
    """A count of bits, of 32 or 64."""

    def define(x: types.Type) -> Any:
        if not isinstance(x, TileType):
            reject(name, f"needs a tile, not {describe(x)}")
        if dtypes.is_float(x.dtype) or x.dtype == dtypes.bool_:
            reject(name, f"needs an integer tile, not {x.dtype.name}")
        excess = max(0, 32 - 8 * x.dtype.itemsize) if name == "clz" else 0

        def count(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
            bits = function(b, b.zext(value, i32) if value.type.width < 32 else value)
            bits = b.trunc(bits, i32) if bits.type.width > 32 else bits
            return b.sub(bits, ir.Constant(i32, excess)) if excess else bits

        return map_elements((x,), x, dtypes.int32, count)

    return define


lowers(lang.popcount)(_counted("popcount", lambda b, x: b.ctpop(x)))
lowers(lang.clz)(_counted("clz", lambda b, x: b.ctlz(x, ir.Constant(ir.IntType(1), 0))))
