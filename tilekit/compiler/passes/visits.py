"""The order of visits: which blocks of a grid run next to each other, so that they load the same tiles while the cache has them.

A GPU starts blocks by their numbers, axis 0 fastest, and an operand that is shared along an axis comes from the L2 cache only for
blocks that run at the same time. What each loop over streams loads says along which axes tiles are shared: all of those that its
index does not depend on. So axes along which more is shared go faster. Of a product, whose operands are shared along two axes,
blocks are visited in groups of several along the one by all along the other, as Triton's matmul tutorial has them ("L2 cache
optimizations").

Where a loop goes on the longer the further a block stands along an axis, as with a causal mask, the last along it come first, and
many places along another axis with them: what runs at the same time is about as long, and what is left at the end, when
multiprocessors run out of blocks, is short.

Legal for each kernel whose blocks tell each other nothing: the language says that blocks run in any order. With atomics they may,
and what asks numba for its own block indices must find those that tilekit has. The pass rewrites nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilekit.compiler.grids import Visits
from tilekit.compiler.ir.effects import ATOMIC, effects
from tilekit.compiler.ir.nodes import (
    LOOPS,
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Section,
    Value,
    definitions,
    leaves,
    values_of,
)
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType
from tilekit.lang import calculation, memory

__all__ = ["ORDER", "order_visits"]

ORDER = "order of visits"
"""The name of its remarks."""

_AXES = 3
_AT_A_TIME = 128  # blocks that run side by side: the multiprocessors of a large GPU, with one block each
_EVENED_OUT = 32  # places along another axis whose blocks come longest first: causal attention wants so many, measured on an H200


def order_visits(kernel: Region) -> Visits | None:
    """In which order the blocks of a kernel are to be visited; None for that of their numbers."""
    if any(ATOMIC in effects(operation) for operation in kernel.operations) or _asks_numba(kernel):
        return None
    places = _Places(kernel)
    streams = [(places.bytes_of(tile), places.axes_of_tiles(row)) for row, tile in _streams(kernel)]
    bids = [operation for operation in kernel.walk() if _axis_of(operation) is not None]
    used = 1 + max((axis for operation in bids if (axis := _axis_of(operation)) is not None), default=-1)
    if used < 2 or not any(axes for _, axes in streams):
        return None
    # What is loaded alike along each axis, by a block in a turn.
    shared = [sum(size for size, axes in streams if axes and axis not in axes) for axis in range(used)]
    fast = sorted((axis for axis in range(used) if shared[axis]), key=lambda axis: -shared[axis])[:2]
    group = 0
    if len(fast) == 2:
        fast.sort()
        first, second = fast
        # So many along the first axis that a square, or what comes nearest to it, has least to load.
        group = 1 << max(0, round(math.log2(_AT_A_TIME * shared[first] / shared[second]) / 2))
    longer = [axis for axis in range(used) if places.is_longer_later(kernel, axis)]
    if longer:
        other = next((axis for axis in (*fast, *range(used)) if axis not in longer), None)
        fast, group = ([], 0) if other is None else ([other, longer[0]], max(group, _EVENED_OUT))
    axes = (*fast, *(axis for axis in range(used) if axis not in fast))
    backwards = frozenset(longer)
    if axes == tuple(range(used)) and not group and not backwards:
        return None
    visits = Visits(axes, group, backwards)
    remark(bids[0].location, ORDER, str(visits))
    return visits


def _streams(kernel: Region) -> Iterator[tuple[Operand, Value]]:
    """The streams of all loops, each with the tile of it."""
    for operation in kernel.walk():
        if operation.kind == "stream":
            (body,) = operation.regions
            count = len(body.parameters) - len(operation.results)
            yield from zip(operation.operands[:count], body.parameters[:count], strict=True)


def _axis_of(operation: Operation) -> int | None:
    """Which axis's block index an operation is; None if it is none, or of an axis that is not known."""
    if operation.kind != "call" or not isinstance(operation.what, Constant) or operation.what.value is not memory.bid:
        return None
    match operation.operands:
        case [Constant(value=int(axis))] if 0 <= axis < _AXES:
            return axis
    return None


def _asks_numba(kernel: Region) -> bool:
    """Whether a kernel has anything of numba's."""
    operands = (part for operation in kernel.walk() for operand in (*operation.operands, operation.what) for part in _of(operand))
    modules = (str(getattr(part.root or part.value, "__name__", "")) for part in operands)
    return any(name.partition(".")[0] == "numba" for name in modules)


def _of(operand: object) -> Iterator[Constant]:
    if isinstance(operand, (Value, Constant, Group, Section)):
        yield from (leaf for leaf in leaves(operand) if isinstance(leaf, Constant))


class _Places:
    """What follows from the place of a block in the grid."""

    def __init__(self, kernel: Region) -> None:
        self.definitions = definitions(kernel)
        # Of parameters of loops: what they begin with, and the bounds.
        self.loops = {
            value: operation
            for operation in kernel.walk()
            if operation.kind in LOOPS
            for value in operation.regions[0].parameters
        }
        self.known: dict[Value, frozenset[int]] = {}

    def axes_of(self, operand: Operand) -> frozenset[int]:
        """The axes that a value depends on."""
        return frozenset().union(*map(self._axes, values_of(operand)))

    def _axes(self, value: Value) -> frozenset[int]:
        if value in self.known:
            return self.known[value]
        self.known[value] = frozenset()  # of what turns hand on, that which it began with counts
        operation = self.definitions.get(value) or self.loops.get(value)
        if operation is not None:
            axis = _axis_of(operation)
            own = frozenset() if axis is None else frozenset({axis})
            self.known[value] = own.union(*map(self._axes, operation.reads()))
        return self.known[value]

    def axes_of_tiles(self, row: Operand) -> frozenset[int]:
        """The axes that decide about the tiles of a stream, if not about how many there are."""
        index = self._index(row)
        if index is None:
            return self.axes_of(row)
        return frozenset().union(*(self.axes_of(part.start if isinstance(part, Section) else part) for part in index))

    def _index(self, row: Operand) -> tuple[Operand, ...] | None:
        """The index of a stream `view.tiles(...)[...]`."""
        definition = self.definitions.get(row) if isinstance(row, Value) else None
        if definition is not None and definition.kind == "gathered":
            _, _, start, stop, *captured = definition.operands
            return (Section(start, stop, Constant(None)), *captured)
        if definition is None or definition.kind != "item":
            return None
        index = definition.operands[1]
        return index.parts if isinstance(index, Group) else (index,)

    @staticmethod
    def bytes_of(tile: Value) -> int:
        """What a turn loads of a stream."""
        assert isinstance(tile.type, TileType), "a tile"
        return math.prod(tile.type.shape) * tile.type.dtype.itemsize

    def is_longer_later(self, kernel: Region, axis: int) -> bool:
        """Whether a loop over streams goes on the longer the further a block stands along an axis, and none the shorter."""
        ways = {self._length(row, axis) for row, _ in _streams(kernel)}
        return 1 in ways and ways <= {0, 1}

    def _length(self, row: Operand, axis: int) -> int | None:
        """How the tiles of a stream become more along an axis: 1, 0 (not at all), -1 (fewer); None if that is not known."""
        index = self._index(row)
        sections = [part for part in index or () if isinstance(part, Section)]
        if index is None or len(sections) > 1:
            return None
        ways = [(self._growth(part.stop, axis), _opposite(self._growth(part.start, axis))) for part in sections]
        return _same([way for pair in ways for way in pair])

    def _growth(self, operand: Operand, axis: int) -> int | None:
        """How a number grows along an axis, as for `_length`."""
        if axis not in self.axes_of(operand):
            return 0
        operation = self.definitions.get(operand) if isinstance(operand, Value) else None
        if operation is None or operation.regions:
            return None
        if _axis_of(operation) is not None:
            return 1
        ways = [self._growth(part, axis) for part in operation.operands]
        what = operation.what.value if isinstance(operation.what, Constant) else operation.what
        if what in ("+", min, max):
            return _same(ways)
        if what == "-" and operation.kind == "binary":
            return _same([ways[0], _opposite(ways[1])])
        if what in ("*", "//", calculation.cdiv):
            first, *rest = operation.operands
            if all(_is_positive(part) for part in rest):
                return ways[0]
            return ways[1] if what == "*" and _is_positive(first) else None
        return None


def _same(ways: list[int | None]) -> int | None:
    """The way in which all grow that grow at all."""
    grown = set(ways) - {0}
    return None if len(grown) > 1 else grown.pop() if grown else 0


def _opposite(way: int | None) -> int | None:
    return None if way is None else -way


def _is_positive(operand: Operand) -> bool:
    return isinstance(operand, Constant) and type(operand.value) is int and operand.value > 0
