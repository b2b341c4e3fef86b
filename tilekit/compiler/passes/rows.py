"""Rows of tiles that loops over streams go along, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.least import least
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value
from tilekit.lang import memory

__all__ = ["Gathered", "Row", "rows_of"]

_NONE = Constant(None)


@dataclass(frozen=True)
class Row:
    """A stream of tiles along one dimension.

    Attributes:
        tensor, extents: of which tensor, and of tiles of which shape.
        parts: its index, of which `dim` is the slice.
        start, stop: the first tile, and the one behind the last.
    """

    tensor: Operand
    extents: Operand
    parts: tuple[Operand, ...]
    dim: int
    start: Operand
    stop: Operand

    def part(self, start: Operand, stop: Operand, new: Insertion) -> Value:
        """A part of it: tiles `start` to `stop` of the tensor."""
        return self._cut(Section(_NONE if start == Constant(0) else start, stop, _NONE), new)

    def one(self, at: Operand, new: Insertion) -> Value:
        """One tile of it."""
        return self._cut(Section(at, new.plus(at, 1), _NONE), new)

    def _cut(self, section: Section, new: Insertion) -> Value:
        parts = (*self.parts[: self.dim], section, *self.parts[self.dim + 1 :])
        grid = new.emit("method", [self.tensor, self.extents], "tiles")
        return new.emit("item", [grid, Group(parts) if len(parts) > 1 else section])


@dataclass(frozen=True)
class Gathered:
    """A stream of tiles in an order of their own.

    Attributes:
        tensor, extents: of which tensor, and of tiles of which shape.
        index: what gives the index of a tile, as `ir.nodes` says of `gathered`.
        captured: what this reads.
        start, stop: the first number that it is given, and the one behind the last.
    """

    tensor: Operand
    extents: Operand
    index: Region
    captured: tuple[Operand, ...]
    start: Operand
    stop: Operand

    def part(self, start: Operand, stop: Operand, new: Insertion) -> Value:
        """A part of it: the tiles of these numbers."""
        tiles = infer(Operation("method", [self.tensor, self.extents], new.location, "tiles"))
        assert isinstance(tiles, Value), "a grid of tiles"
        result = Value("t", tiles.type)
        operands = [self.tensor, self.extents, start, stop, *self.captured]
        new.add([Operation("gathered", operands, new.location, self.index, results=[result])])
        return result

    def one(self, at: Operand, new: Insertion) -> Value:
        """The tile of one number."""
        return self.part(at, new.plus(at, 1), new)


def rows_of(operands: list[Operand], defined: dict[Value, Operation], new: Insertion) -> Sequence[Row | Gathered] | None:
    """What the streams of a loop are, with bounds that are within the tensor; None if one is no such row."""
    makers = [defined[operand] for operand in operands if isinstance(operand, Value) and operand in defined]
    if makers and all(maker.kind == "gathered" for maker in makers):
        return [_gathered(*maker.operands, index=maker.what) for maker in makers]
    parsed = [_parsed(operand, defined) for operand in operands]
    if any(each is None for each in parsed):
        return None
    rows = []
    for tensor, extents, parts, dim in (each for each in parsed if each is not None):
        section = parts[dim]
        assert isinstance(section, Section)
        count = new.call(memory.num_tiles, tensor, Constant(dim), extents)
        start = Constant(0) if section.start == _NONE else _from_the_beginning(section.start, count, defined, new)
        stop = count if section.stop == _NONE else new.call(min, _from_the_beginning(section.stop, count, defined, new), count)
        rows.append(Row(tensor, extents, parts, dim, start, stop))
    return rows


def _from_the_beginning(bound: Operand, count: Value, defined: dict[Value, Operation], new: Insertion) -> Operand:
    """The same bound, counted from the first tile, where it may be negative and count from the end."""
    known = least(bound, defined)
    if known is not None and known >= 0:
        return bound
    if isinstance(bound, Constant):
        return new.call(max, Constant(0), new.plus(count, bound.value))
    below = new.call(max, Constant(-1), new.call(min, Constant(0), bound))  # -1 of what is negative
    return new.call(max, Constant(0), new.emit("binary", [bound, new.emit("binary", [count, below], "*")], "-"))


def _gathered(tensor: Operand, extents: Operand, start: Operand, stop: Operand, *captured: Operand, index: Region) -> Gathered:
    return Gathered(tensor, extents, index, captured, start, stop)


def _parsed(operand: Operand, defined: dict[Value, Operation]) -> tuple[Operand, Operand, tuple[Operand, ...], int] | None:
    item = defined.get(operand) if isinstance(operand, Value) else None
    if item is None or item.kind != "item":
        return None
    grid = defined.get(item.operands[0]) if isinstance(item.operands[0], Value) else None
    if grid is None or grid.kind != "method" or grid.what != "tiles" or len(grid.operands) != 2 or grid.keywords:
        return None
    index = item.operands[1]
    parts = index.parts if isinstance(index, Group) else (index,)
    sections = [(dim, part) for dim, part in enumerate(parts) if isinstance(part, Section)]
    if len(sections) != 1:
        return None
    ((dim, section),) = sections
    if section.step != _NONE:
        return None
    return grid.operands[0], grid.operands[1], parts, dim
