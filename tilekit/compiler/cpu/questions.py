"""Questions about each element: truth, and what kind of number it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code
from tilekit.compiler.cpu.convert import wide
from tilekit.compiler.cpu.elementwise import as_tile, cast, inverted, mapped
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Tile

__all__: list[str] = []


def _enter_logical(name: str, symbol: str) -> None:
    @lowers(name)
    def lower(p: Any, x: Any, y: Any) -> Tile:
        truths = [as_tile(p.k, value, dtypes.bool_) for value in (x, y)]
        return mapped(p.k, truths, dtypes.bool_, arithmetic.binary(p.k, symbol, dtypes.bool_))


for _name, _symbol in {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}.items():
    _enter_logical(_name, _symbol)


@lowers("logical_not")
def logical_not(p: Any, x: Tile) -> Tile:
    """Whether an element is zero."""
    return inverted(p.k, cast(p.k, x, dtypes.bool_))


def _magnitude(k: Code, symbol: str) -> Callable[[ir.Value], ir.Value]:
    return lambda value: k.b.fcmp_ordered(symbol, k.intrinsic("fabs", value), k.like(float("inf"), value))


_KINDS: dict[str, Callable[[Code], Callable[[ir.Value], ir.Value]]] = {
    "isnan": lambda k: lambda value: k.b.fcmp_unordered("uno", value, value),
    "isinf": lambda k: _magnitude(k, "=="),
    "isfinite": lambda k: _magnitude(k, "<"),
}


def _enter_kind(name: str, function: Callable[[Code], Callable[[ir.Value], ir.Value]]) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile) -> Tile:
        holds = function(p.k)
        return mapped(p.k, [x], dtypes.bool_, lambda value: holds(wide(p.k, value, x.dtype)), 2)


for _name, _function in _KINDS.items():
    _enter_kind(_name, _function)
