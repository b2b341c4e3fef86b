"""Loads and gathers whose padding is a tile: what is inside is read, and the padding's own elements are taken elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilekit import dtypes
from tilekit.compiler.ir.constants import constant_of, dtype_constant, type_of_operand
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Value
from tilekit.compiler.ir.types import TileType
from tilekit.lang import create, elementwise, memory, shape
from tilekit.lang.indexed import gather
from tilekit.lang.registry import OPS
from tilekit.lang.windows import check_order, check_window

if TYPE_CHECKING:
    from tilekit.compiler.ir.expressions import Expressions

__all__ = ["is_padded", "padded"]


def is_padded(function: Any, keywords: dict[str, Operand]) -> bool:
    """Whether a call is of a load or gather with such a padding."""
    padding = keywords.get("padding_value")
    return function in (memory.load, gather) and isinstance(padding, Value) and isinstance(padding.type, TileType)


def padded(
    to: Expressions, node: ast.Call, function: Callable[..., Any], arguments: list[Operand], keywords: dict[str, Operand]
) -> Operand:
    """What such a call comes to. The language takes it: this is no place to look at its operands."""
    return _Padded(to, node, function, arguments, keywords).result()


class _Padded:
    def __init__(
        self,
        to: Expressions,
        node: ast.Call,
        function: Callable[..., Any],
        arguments: list[Operand],
        keywords: dict[str, Operand],
    ) -> None:
        self.to, self.node, self.function = to, node, function
        self.arguments = dict(OPS[function.__name__].signature.bind(*arguments, **keywords).arguments)
        self.array = self.arguments["array"]
        self.extents = to.attribute(self.array, "shape", node)

    def call(self, function: Callable[..., Any], *operands: Operand, **keywords: Operand) -> Operand:
        return self.to.emit("call", operands, self.node, "t", Constant(function, function.__name__), **keywords)

    def operator(self, op: type, *operands: Operand) -> Operand:
        kind = "compare" if issubclass(op, ast.cmpop) else "binary"
        return self.to.operator(kind, op, operands, self.node, "t")

    def result(self) -> Operand:
        padding = self.arguments.pop("padding_value")
        inside = self.loaded() if self.function is memory.load else self.gathered()
        mask = self.arguments.get("mask", Constant(None))
        if mask != Constant(None):
            inside = self.operator(ast.BitAnd, inside, mask)
        values = self.call(
            self.function, *(self.arguments.pop(name) for name in tuple(self.arguments)[: self.positional]), **self.arguments
        )
        ty = type_of_operand(values)
        assert isinstance(ty, TileType), "the language takes it"
        filled = self.call(elementwise.astype, padding, dtype_constant(ty.dtype))
        return self.call(elementwise.where, inside, values, filled)

    @property
    def positional(self) -> int:
        return 3 if self.function is memory.load else 2

    def loaded(self) -> Operand:
        """Which elements of a tile are in the tensor."""
        wanted = constant_of(self.arguments["shape"])
        order = constant_of(self.arguments.get("order", Constant("C")))
        assert wanted is not None and order is not None and isinstance(self.extents, Group), "the language takes it"
        rank, index = len(self.extents.parts), self.arguments["index"]
        whole, tile_shape = check_window(wanted.value, rank, "", "load")
        along = check_order(order.value, rank, "load")
        parts = index.parts if isinstance(index, Group) else (index,)
        inside: Operand | None = None
        for d, (part, extent) in enumerate(zip(parts, whole, strict=True)):
            start = self.operator(ast.Mult, part, Constant(extent))
            numbers = self.call(create.arange, Constant(extent), dtype=dtype_constant(dtypes.int64))
            column = self.operator(ast.Lt, self.operator(ast.Add, numbers, start), self.extents.parts[along[d]])
            lies = Group(tuple(Constant(extent if d == other else 1) for other in range(rank)))
            column = self.call(shape.reshape, column, lies)
            inside = column if inside is None else self.operator(ast.BitAnd, inside, column)
        assert inside is not None, "a tensor has dimensions"
        return inside if tile_shape else self.call(shape.reshape, inside, Group(()))

    def gathered(self) -> Operand:
        """Which indices are in the tensor."""
        indices = self.arguments["indices"]
        assert isinstance(self.extents, Group), "the shape of a tensor"
        inside: Operand | None = None
        for part, extent in zip(indices.parts if isinstance(indices, Group) else (indices,), self.extents.parts, strict=True):
            position = part if isinstance(type_of_operand(part), TileType) else self.call(create.astile, part)
            low, high = self.operator(ast.GtE, position, Constant(0)), self.operator(ast.Lt, position, extent)
            both = self.operator(ast.BitAnd, low, high)
            inside = both if inside is None else self.operator(ast.BitAnd, inside, both)
        assert inside is not None, "a tensor has dimensions"
        return inside
