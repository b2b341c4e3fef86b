"""Canonical form: of several ways to write an operation, the one that other passes look for.

    x.tiles(shape)[i, j]                tk.load(x, (i, j), shape)
    tk.reshape(x, s), tk.astype(x, t)   x.reshape(s), x.astype(t); tk.transpose and tk.permute, too
    tk.where(a > b, -inf, x)            tk.where(a <= b, x, -inf), of comparisons of integers
    x + tk.where(m, 0.0, -inf)          tk.where(m, x, -inf)
    tk.load(x, (i,), (1,)).item()       tk.load(x, (i,), ()).item(), which one thread can do

Legal for all kernels: each pair is the same operation, or computes the same number; what `tk.where` says of sums says its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilekit.compiler.ir.constants import dtype_constant, number_of
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.types import ScalarType, TileType
from tilekit.lang import elementwise, memory, shape

__all__ = ["canonicalize"]

_METHODS = {
    shape.reshape: "reshape",
    shape.transpose: "transpose",
    shape.permute: "permute",
    elementwise.astype: "astype",
}
_INVERSE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_LOAD = Constant(memory.load, "load")


def canonicalize(kernel: Region) -> None:
    """Bring the operations of a kernel into this form."""
    defined = definitions(kernel)
    _load_elements(kernel)
    for region in kernel.regions():
        for operation in list(region.operations):
            if operation.kind == "item":
                _load_of_grid(operation, defined)
            elif operation.kind == "call" and isinstance(operation.what, Constant):
                if operation.what.value in _METHODS and not operation.keywords:
                    operation.kind, operation.what = "method", _METHODS[operation.what.value]
                elif operation.what.value is elementwise.where and not operation.keywords:
                    _turn(operation, region, defined)
            elif (operation.kind, operation.what) == ("binary", "+") and _choose(operation, region, defined):
                _turn(operation, region, defined)


def _load_of_grid(item: Operation, defined: Mapping[Value, Operation]) -> None:
    grid = defined.get(item.operands[0]) if isinstance(item.operands[0], Value) else None
    if grid is None or (grid.kind, grid.what) != ("method", "tiles") or len(grid.operands) != 2 or grid.keywords:
        return
    if len(item.results) == 1 and isinstance(item.results[0].type, TileType) and item.pattern is None:
        tensor, extents = grid.operands
        item.kind, item.what, item.operands = "call", _LOAD, [tensor, item.operands[1], extents]


def _load_elements(kernel: Region) -> None:
    """Let tiles of one element, of which nothing but the number is read, be loaded as elements."""
    numbers, others = set[Value](), {v for region in kernel.regions() for operand in region.operands for v in values_of(operand)}
    for operation in kernel.walk():
        (numbers if (operation.kind, operation.what) == ("method", "item") else others).update(operation.reads())
    for operation in kernel.walk():
        if operation.kind == "call" and operation.what.value is memory.load and not operation.keywords:
            (tile,) = operation.results
            alone = tile in numbers - others and len(operation.operands) == 3
            if alone and isinstance(tile.type, TileType) and set(tile.type.shape) == {1}:
                operation.operands[2], tile.type = Group(()), TileType(tile.type.dtype, ())


def _choose(sum_: Operation, region: Region, defined: dict[Value, Operation]) -> bool:
    """Let a mask that is added choose; whether there is one."""
    result = sum_.results[0].type
    for tile, other in (sum_.operands, sum_.operands[::-1]):
        where = defined.get(other) if isinstance(other, Value) else None
        if where is None or where.kind != "call" or where.what.value is not elementwise.where or where.keywords:
            continue
        mask, *numbers = where.operands
        at = next((n for n, number in enumerate(numbers) if number in (Constant(0), Constant(0.0))), None)
        if at is None or number_of(numbers[1 - at], defined) != -math.inf or not isinstance(result, TileType):
            continue
        if not isinstance(tile, Value) or not isinstance(tile.type, TileType) or tile.type.shape != result.shape:
            continue
        if tile.type != result:
            wide = Operation(
                "method", [tile, dtype_constant(result.dtype)], sum_.location, "astype", results=[Value("t", result)]
            )
            region.operations.insert(region.operations.index(sum_), wide)
            (tile,) = wide.results
        numbers[at] = tile
        sum_.kind, sum_.what, sum_.operands = "call", where.what, [mask, *numbers]
        return True
    return False


def _turn(where: Operation, region: Region, defined: dict[Value, Operation]) -> None:
    """Let the tile stand where the mask holds, and the number where it does not."""
    mask, first, second = where.operands
    test = defined.get(mask) if isinstance(mask, Value) else None
    if test is None or test.kind != "compare" or test.what not in _INVERSE or not all(map(_is_whole, test.operands)):
        return
    if _is_tile(first) or not _is_tile(second):
        return
    inverse = Operation("compare", test.operands, test.location, _INVERSE[test.what])
    assert isinstance(mask, Value), "it has a definition"
    inverse.results = [Value(mask.name, mask.type)]
    region.operations.insert(region.operations.index(where), inverse)
    defined[inverse.results[0]] = inverse
    where.operands = [inverse.results[0], second, first]


def _is_tile(operand: Operand) -> bool:
    return isinstance(operand, Value) and isinstance(operand.type, TileType) and bool(operand.type.shape)


def _is_whole(operand: Operand) -> bool:
    """Whether it is of integers, of which the one comparison holds where the other does not."""
    if isinstance(operand, Constant):
        return type(operand.value) is int
    ty = operand.type if isinstance(operand, Value) else None
    return ty == ScalarType(int) or (isinstance(ty, TileType) and ty.dtype.kind in "iu")
