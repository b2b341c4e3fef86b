"""Operations on integers that are no operators: powers, quotients rounded up, high products, and the bits of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic, scalars
from tilekit.compiler.cpu.code import Code, i1, type_of
from tilekit.compiler.cpu.elementwise import mapped, meet, operate
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Tile
from tilekit.compiler.cpu.values import Scalar, kind_of

__all__: list[str] = []


@lowers("cdiv")
def cdiv(p: Any, x: Any, y: Any) -> Any:
    """The quotient, rounded up."""
    if not isinstance(x, Tile) and not isinstance(y, Tile):
        numbers = [scalars.as_kind(p.k, value, int) for value in (x, y)]
        return Scalar(_ceiling(p.k, dtypes.int64)(*numbers), int)
    tiles, dtype = meet(p.k, x, y)
    return mapped(p.k, tiles, dtype, _ceiling(p.k, dtype), 10)


def _ceiling(k: Code, dtype: dtypes.DType) -> Callable[..., ir.Value]:
    b = k.b
    down, rest = (arithmetic.binary(k, symbol, dtype) for symbol in ("//", "%"))

    def function(x: ir.Value, y: ir.Value) -> ir.Value:
        quotient, inexact = down(x, y), b.icmp_unsigned("!=", rest(x, y), k.like(0, x))
        return b.add(quotient, b.zext(inexact, quotient.type))

    return function


@lowers("divmod")
def quotient_and_rest(p: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Both."""
    if kind_of(x) is not None and kind_of(y) is not None:
        return scalars.binary(p.k, "//", x, y), scalars.binary(p.k, "%", x, y)
    return operate(p.k, "//", x, y), operate(p.k, "%", x, y)


@lowers("mulhi")
def mulhi(p: Any, x: Any, y: Any) -> Tile:
    """The upper half of a product."""
    k, b = p.k, p.k.b
    tiles, dtype = meet(k, x, y)
    bits = 8 * dtype.itemsize
    grown = b.sext if dtype.kind == "i" else b.zext

    def high(u: ir.Value, v: ir.Value) -> ir.Value:
        product = b.mul(*(grown(value, k.with_lanes(ir.IntType(2 * bits), value)) for value in (u, v)))
        return b.trunc(b.lshr(product, k.like(bits, product)), u.type)

    return mapped(k, tiles, dtype, high, 4)


def _enter_count(name: str, function: Callable[[Code, ir.Value], ir.Value]) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile) -> Tile:
        b, kind = p.k.b, type_of(dtypes.int32)

        def count(value: ir.Value) -> ir.Value:
            number, target = function(p.k, value), p.k.with_lanes(kind, value)
            return number if x.dtype.itemsize == 4 else (b.trunc if x.dtype.itemsize > 4 else b.zext)(number, target)

        return mapped(p.k, [x], dtypes.int32, count, 2)


_enter_count("popcount", lambda k, value: k.intrinsic("ctpop", value))
_enter_count("clz", lambda k, value: k.intrinsic("ctlz", value, i1(0)))
