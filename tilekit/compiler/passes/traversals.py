"""Traversals: loops over rows of tiles count their turns, and load.

    for a, b in zip(x.tiles((64, 64))[i, :], y.tiles((64, 64))[:, j]):        for k in range(n):
        ...                                                                       a, b = tk.load(x, (i, k), ...), ...
                                                                                  ...

So do those over `enumerate` of such, and over one row. What loads ahead knows these.

Legal where the items of a turn are taken apart, and each row is one of tiles along one dimension, which are loaded as they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import (
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Value,
    definitions,
    leaves,
    values_of,
)
from tilekit.compiler.ir.types import ObjectType, ScalarType, sampling
from tilekit.compiler.passes.rows import Row, rows_of
from tilekit.lang import memory
from tilekit.lang.views import TileRow

__all__ = ["count_traversals"]


def count_traversals(kernel: Region) -> None:
    """Make such loops of a kernel loops over ranges."""
    defined = definitions(kernel)
    with sampling():
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind == "each"]:
                items = _items(loop.operands[0], defined)
                if items is not None:
                    _count(loop, items, region, defined)


class _Number(NamedTuple):
    """The number of a turn, counted from `start`."""

    start: Operand


Items = Value | _Number | list["Items"]
"""What a turn gets: the tiles of a row (which it is the value of), a number, or several such."""


def _items(operand: Operand, defined: dict[Value, Operation]) -> Items | None:
    if not isinstance(operand, Value):
        return None
    if isinstance(operand.type, ObjectType) and isinstance(operand.type.object, TileRow):
        return operand
    call = defined.get(operand)
    if call is None or call.kind != "call" or call.keywords:
        return None
    if call.what.value is zip and call.operands:
        items = [_items(part, defined) for part in call.operands]
        return None if None in items else [item for item in items if item is not None]
    if call.what.value is enumerate:
        inner, start = _items(call.operands[0], defined), [*call.operands[1:], Constant(0)][0]
        return None if inner is None else [_Number(start), inner]
    return None


def _rows(items: Items) -> Iterator[Value]:
    if isinstance(items, Value):
        yield items
    for item in items if isinstance(items, list) else ():
        yield from _rows(item)


def _count(loop: Operation, items: Items, region: Region, defined: dict[Value, Operation]) -> None:
    (body,) = loop.regions
    item, before = body.parameters[0], Insertion(loop.location, defined)
    operands = list(_rows(items))
    rows = [row for row in rows_of(list(operands), defined, before) or () if isinstance(row, Row)]
    taken = [operation for operation in body.operations if operation.kind == "item" and operation.operands[0] is item]
    if not rows or (isinstance(items, list) and _is_read_whole(item, body, taken)):
        return
    turns: Operand | None = None
    for row in rows:
        count = row.stop if row.start == Constant(0) else before.emit("binary", [row.stop, row.start], "-")
        turns = count if turns is None else before.call(min, turns, count)
    assert turns is not None, "it has rows"
    counter, inside = Value("t", ScalarType(int)), Insertion(loop.location, defined)
    loaded = {value: _loaded(row, counter, inside) for value, row in zip(operands, rows, strict=True)}
    came = _came(items, counter, loaded, inside)
    new: dict[Value, Operand] = {}
    if isinstance(items, list):
        for operation in taken:
            assert isinstance(came, Group), "of several"
            part = came.parts[operation.operands[1].value]  # type: ignore[union-attr]
            results = values_of(operation.pattern) if operation.pattern is not None else operation.results
            new |= zip(results, leaves(part), strict=True)
    else:
        new[item] = came
    for result, leaf in new.items():
        if isinstance(leaf, Value) and leaf.name == "t":
            leaf.name = result.name
    body.operations = [*inside.operations, *(operation for operation in body.operations if operation not in taken)]
    body.parameters[0] = counter
    body.replace(new)
    loop.kind, loop.operands[:1] = "for", [Constant(0), turns, Constant(1)]
    at = region.operations.index(loop)
    region.operations[at:at] = before.operations


def _is_read_whole(item: Value, body: Region, taken: list[Operation]) -> bool:
    """Whether what a turn gets is more than taken apart."""
    if any(not isinstance(operation.operands[1], Constant) for operation in taken):
        return True
    ends = (value for region in body.regions() for operand in region.operands for value in values_of(operand))
    return item in ends or any(item in operation.reads() for operation in body.walk() if operation not in taken)


def _loaded(row: Row, turn: Value, new: Insertion) -> Value:
    """The tile of a row that a turn gets."""
    at = turn if row.start == Constant(0) else new.emit("binary", [row.start, turn], "+")
    parts = (*row.parts[: row.dim], at, *row.parts[row.dim + 1 :])
    return new.call(memory.load, row.tensor, Group(parts) if len(parts) > 1 else at, row.extents)


def _came(items: Items, turn: Value, loaded: dict[Value, Value], new: Insertion) -> Operand:
    match items:
        case Value():
            return loaded[items]
        case _Number(start=Constant(value=0)):
            return turn
        case _Number(start=start):
            return new.emit("binary", [turn, start], "+")
    return Group(tuple(_came(item, turn, loaded, new) for item in items))
