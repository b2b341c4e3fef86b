"""A kernel's IR as code for the CPU: operation by operation, with tiles that are written down where they are needed.

A tile that is needed once is computed there. It is kept in a buffer, at once, where it is expensive and needed several times,
where a loop needs it, where it goes from turn to turn, and ahead of what may write the tensors that it is read from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import elementwise, scalars
from tilekit.compiler.cpu.code import Code, Number, f64, i64
from tilekit.compiler.cpu.convert import converted
from tilekit.compiler.cpu.evaluation import Evaluation
from tilekit.compiler.cpu.machine import Machine
from tilekit.compiler.cpu.memory import bounds_of, tile_of_views
from tilekit.compiler.cpu.slots import PartsSlot, Slot, copied, slot_of
from tilekit.compiler.cpu.tiles import Buffer, Tile, kept
from tilekit.compiler.cpu.values import Grid, Row, Scalar, Tensor, Unsupported, Visited
from tilekit.compiler.cpu.visits import grouped, unravelled
from tilekit.compiler.facts import ArgumentFacts, TensorFacts
from tilekit.compiler.ir.effects import ATOMIC, WRITES, effects
from tilekit.compiler.ir.nodes import (
    LOOPS,
    Group,
    Operand,
    Operation,
    Region,
    Undefined,
    Value,
    values_of,
)
from tilekit.compiler.ir.types import TileType

__all__ = ["Program"]

_CHEAP = 3  # what it costs at most to compute an element anew rather than to keep it


class Program(Evaluation):
    """The code of a kernel.

    Attributes:
        k: what is written so far.
        aliased: whether tensors that are written may share memory with others.
    """

    def __init__(self, kernel: Region, facts: Sequence[ArgumentFacts], machine: Machine, *, aliased: bool = False) -> None:
        self.k, self.aliased = Code(machine), aliased
        self._uses = Counter(value for region in kernel.regions() for value in _read_by(region))
        self._values: dict[Value, Any] = {}
        self._loops: list[tuple[Sequence[Slot | PartsSlot], ir.Block, ir.Block]] = []
        self._targets: dict[Value, Buffer] = {}
        at = 0
        for number, (value, known) in enumerate(zip(kernel.parameters, facts, strict=True)):
            self._values[value], at = self._parameter(value.name, number, known, at)
        self._region(kernel)
        if not self.k.b.block.is_terminated:
            self.k.b.branch(self.k.exit)

    def _parameter(self, name: str, number: int, facts: ArgumentFacts, at: int) -> tuple[Any, int]:
        """A parameter, of the slots from `at` on; and which is the first slot behind it."""
        k = self.k

        def slot(n: int, kind: ir.Type = i64) -> ir.Value:
            return k.b.load(k.offset(k.arguments, 8 * n), typ=kind, align=8)

        if not isinstance(facts, TensorFacts):
            dtype = dtypes.as_dtype(facts.dtype)
            python = {"int64": int, "float64": float, "bool": bool}.get(facts.dtype)
            if dtype == dtypes.bool_:
                return Scalar(k.b.icmp_unsigned("!=", slot(at), i64(0)), bool), at + 1
            if dtypes.is_float(dtype):
                wide = slot(at, f64)
                return Scalar(converted(k, wide, dtypes.float64, dtype), python or dtype), at + 1
            return Scalar(converted(k, slot(at), dtypes.int64, dtype), python or dtype), at + 1
        address = k.b.inttoptr(slot(at), ir.PointerType())
        extents = tuple(slot(at + 1 + d) for d in range(facts.rank))
        behind = at + 1 + facts.rank
        strides: list[Number] = []
        for d in range(facts.rank):
            strides.append(1 if d == facts.unit else slot(behind))
            behind += d != facts.unit
        dtype = dtypes.as_dtype(facts.dtype)
        tensor = Tensor(
            name, number, dtype, address, extents, facts.extents, tuple(strides), facts.tile, facts.role, facts.group,
            facts.cluster,
        )  # fmt: skip
        return tensor, behind

    # --------------------------------------------------------------------------------------------------------------- regions

    def _region(self, region: Region) -> None:
        for operation in region.operations:
            self.k.location, self.k.what = (
                operation.location,
                operation.what if isinstance(operation.what, str) else operation.kind,
            )
            if operation.kind in LOOPS or operation.kind == "if":
                self._settle(operation)
                getattr(self, f"_{operation.kind}")(operation)
            else:
                self._define(operation, self.lowered(operation))
            for value in operation.reads():
                self._uses[value] -= 1
            if self.k.b.block.is_terminated:
                return

    def _define(self, operation: Operation, result: Any) -> None:
        if operation.pattern is None:
            if operation.results:
                self._enter(operation.results[0], result)
            return
        for leaf, part in _pairs(operation.pattern, result):
            if isinstance(leaf, Value):
                self._enter(leaf, part)

    def _enter(self, value: Value, result: Any) -> None:
        if isinstance(result, Tile):
            if isinstance(value.type, TileType) and (value.type.shape, value.type.dtype) != (result.shape, result.dtype):
                raise AssertionError(f"{value.name} is {value.type}, not {result.dtype.name}{result.shape}")
            if (self._uses[value] > 1 and result.cost > _CHEAP) or (result.size == 1 and result.buffer is None):
                result = kept(self.k, result, "it is needed more than once")
        self._values[value] = result

    def _settle(self, operation: Operation) -> None:
        """Ahead of control flow: keep what a loop needs in each turn, and what is read before the loop writes."""
        inner = {value for region in operation.regions for value in _all_read_by(region)}
        writes = bool(effects(operation) & {WRITES, ATOMIC})
        for value in [*self._values]:
            tile = self._values[value]
            if not isinstance(tile, Tile) or self._uses[value] < 1:
                continue
            repeated = operation.kind in LOOPS and value in inner and tile.cost > 0
            if repeated or (writes and tile.windows):
                why = "each turn needs it" if repeated else "what follows may write what it is read from"
                self._values[value] = kept(self.k, tile, why)

    def target(self) -> Buffer | None:
        """Where the result of the operation that is lowered may be made: in the buffer that it goes to."""
        buffer = None if self._result is None else self._targets.get(self._result)
        waiting = (value for value, tile in self._values.items() if isinstance(tile, Tile) and buffer in tile.reads)
        if any(self._uses[value] > self._current[value] for value in waiting):
            return None  # what was there is still to be read
        return buffer

    def before_write(self, tensor: Tensor) -> None:
        """Keep what is still to be needed, and read from what is written now, or may be the same memory."""
        operation_reads = self._current
        for value, tile in [*self._values.items()]:
            if isinstance(tile, Tile) and tile.windows and self._uses[value] > operation_reads[value]:
                self._values[value] = kept(self.k, tile, "it is read before the store")

    def inlined(self, region: Region, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a function of the user's, as if it stood in the operation that is lowered."""
        outer = self._result, self._current, self.k.location, self.k.what
        self._uses.update(_all_read_by(region))
        self._values.update(zip(region.parameters, arguments, strict=True))
        self._region(region)
        results = tuple(self.value(operand) for operand in region.operands)
        self._uses.subtract(value for operand in region.operands for value in values_of(operand))
        self._result, self._current, self.k.location, self.k.what = outer
        return results

    # ---------------------------------------------------------------------------------------------------------- control flow

    def _if(self, operation: Operation) -> None:
        k = self.k
        slots = [slot_of(k, result) for result in operation.results]
        condition = self.truth(self.value(operation.operands[0]))
        ways = [k.function.append_basic_block(name) for name in ("then", "else")]
        after = k.function.append_basic_block("after")
        k.b.cbranch(condition, *ways)
        reached = False
        for region, block in zip(operation.regions, ways, strict=True):
            k.b.position_at_end(block)
            before = dict(self._values)
            with k.released():
                self._region(region)
                if not k.b.block.is_terminated:
                    self._end(region, slots, after)
                    reached = reached or region.exit == "yield"
            self._values = before
        k.b.position_at_end(after)
        if not reached:
            k.b.unreachable()
            return
        for result, slot in zip(operation.results, slots, strict=True):
            self._values[result] = slot.value(k)

    def _end(self, region: Region, slots: Sequence[Slot | PartsSlot], after: ir.Block) -> None:
        """The end of a region: hand on its values, and go where it goes."""
        k = self.k
        self.k.location, self.k.what = region.location or self.k.location, region.exit
        if region.exit == "return":
            k.b.branch(k.exit)
            return
        if region.exit in ("break", "continue"):
            slots, again, end = self._loops[-1]
            after = again if region.exit == "continue" else end
        self._hand_on(region.operands, slots)
        k.b.branch(after)

    def _hand_on(self, operands: Sequence[Operand], slots: Sequence[Slot | PartsSlot]) -> None:
        """Put values into slots, as if at once: what reads a slot that another value goes to is computed before."""
        k = self.k
        values = [
            (self.value(operand), slot)
            for operand, slot in zip(operands, slots, strict=True)
            if not isinstance(operand, Undefined)
        ]
        buffers = {slot.buffer for _, slot in values if slot.buffer is not None}
        ready = []
        for value, slot in values:
            if slot.buffer is None:
                ready.append((slot.scalar_of(k, value), slot))
                continue
            tile = value if isinstance(value, Tile) else elementwise.as_tile(k, value, slot.buffer.dtype)
            if tile.buffer is not None and tile.buffer is slot.buffer and tile.shape == slot.buffer.shape:
                continue
            others = tile.reads & (buffers - {slot.buffer})
            if others or (slot.buffer in tile.reads and not tile.aligned):
                tile = (
                    kept(k, tile, "a turn hands it on while another value takes its buffer")
                    if tile.buffer is None
                    else copied(k, tile)
                )
            ready.append((tile, slot))
        for value, slot in ready:
            slot.put(k, value)

    @contextmanager
    def _turns(self, operation: Operation) -> Iterator[tuple[Region, list[Slot | PartsSlot], ir.Block, ir.Block]]:
        """The slots of a loop's carried values, with what they begin with, the block where a turn begins and that behind it."""
        k = self.k
        (region,) = operation.regions
        slots = [slot_of(k, result) for result in operation.results]
        self._hand_on(operation.initial, slots)
        turn, end = (k.function.append_basic_block(name) for name in ("turn", "end"))
        again = k.function.append_basic_block("again")
        outer, values, location = self._targets, dict(self._values), self.k.location
        self._targets = _in_place(region, operation.carried, slots, self._uses)
        self._loops.append((slots, again, end))
        with k.released():
            yield region, slots, turn, end
        self._loops.pop()
        self._targets, self._values, self.k.location = outer, values, location
        k.b.position_at_end(end)
        for result, slot in zip(operation.results, slots, strict=True):
            self._values[result] = slot.value(k)

    def _body(self, operation: Operation, region: Region, slots: Sequence[Slot | PartsSlot], items: Sequence[Any]) -> None:
        """A turn of a loop, up to where the next one is prepared."""
        for value, item in zip(region.parameters, items, strict=False):
            self._values[value] = item
        for value, slot in zip(operation.carried, slots, strict=True):
            self._values[value] = slot.value(self.k)
        self._region(region)
        again = self._loops[-1][1]
        if not self.k.b.block.is_terminated:
            self._end(region, slots, again)
        self.k.b.position_at_end(again)

    def _counting(self, operation: Operation, start: Number, stop: Number, step: Number, item: Any) -> None:
        """A loop over numbers; `item` makes of one what a turn gets."""
        k = self.k
        at = k.slot(i64)
        k.b.store(k.number(start), at)
        with self._turns(operation) as (region, slots, turn, end):
            head = k.function.append_basic_block("head")
            k.b.branch(head)
            k.b.position_at_end(head)
            number = k.b.load(at, typ=i64)
            below = k.b.icmp_signed("<", number, k.number(stop))
            if isinstance(step, int):
                goes_on = below if step > 0 else k.b.icmp_signed(">", number, k.number(stop))
            else:
                up = k.b.icmp_signed(">", step, i64(0))
                goes_on = k.b.select(up, below, k.b.icmp_signed(">", number, k.number(stop)))
            k.b.cbranch(goes_on, turn, end)
            k.b.position_at_end(turn)
            self._body(operation, region, slots, item(number))
            k.b.store(k.b.add(number, k.number(step)), at)
            k.b.branch(head)

    def _for(self, operation: Operation) -> None:
        start, stop, step = (scalars.as_number(self.k, self.value(operand)) for operand in operation.operands[:3])
        if not isinstance(step, int) or step == 0:
            is_zero = self.k.b.icmp_signed("==", self.k.number(step), i64(0))
            self.check(is_zero, ("call", "builtins", "range", (False,) * 3), [start, stop, step])
        self._counting(operation, start, stop, step, lambda number: [Scalar(number, int)])

    def _while(self, operation: Operation) -> None:
        with self._turns(operation) as (region, slots, turn, _):
            self.k.b.branch(turn)
            self.k.b.position_at_end(turn)
            self._body(operation, region, slots, [])
            self.k.b.branch(turn)

    def _each(self, operation: Operation) -> None:
        over = self.value(operation.operands[0])
        if isinstance(over, (Row, Grid)):
            self._rows(operation, [over])
        elif isinstance(over, tuple) and over and all(isinstance(one_, Tensor) for one_ in over):
            self._visits(operation, over)
        else:
            raise Unsupported(f"a loop over a {type(over).__name__}")

    def _stream(self, operation: Operation) -> None:
        streams = operation.operands[: len(operation.operands) - len(operation.results)]
        self._rows(operation, [self.value(stream) for stream in streams])

    def _rows(self, operation: Operation, rows: Sequence[Any]) -> None:
        k = self.k
        rows = [Row(row.views, (slice(None),) * row.views.tensor.rank) if isinstance(row, Grid) else row for row in rows]
        bounds = [bounds_of(self, row) for row in rows]
        counts = []
        for each in bounds:
            count: Number = 1
            for first, last in each:
                count = k.mul(count, k.add(last, k.mul(first, -1)))
            counts.append(count)
        for other in counts[1:]:
            self.check(k.b.icmp_signed("!=", k.number(other), k.number(counts[0])), ("unequal", len(counts)), counts)

        def item(number: ir.Value) -> list[Any]:
            return [
                tile_of_views(self, row.views, unravelled(k, number, each), checked=False)
                for row, each in zip(rows, bounds, strict=True)
            ]

        self._counting(operation, 0, counts[0], 1, item)

    def _visits(self, operation: Operation, tensors: tuple[Tensor, ...]) -> None:
        k, first = self.k, tensors[0]
        if first.group is None or first.tile is None:
            raise Unsupported("a loop over tiles of no mapped partition")
        tiles = [k.number(k.ceiling(extent, n)) for extent, n in zip(first.extents, first.tile, strict=True)]
        total: Number = 1
        for count in tiles:
            total = k.mul(total, count)
        group, cluster = first.group, first.cluster

        def visited(at: ir.Value) -> list[Any]:
            return [Visited(grouped(k, at, tiles, group, cluster), tensors)]

        self._counting(operation, k.index[0], total, k.grid[0], visited)


def _in_place(
    region: Region, carried: Sequence[Value], slots: Sequence[Slot | PartsSlot], uses: Mapping[Value, int]
) -> dict[Value, Buffer]:
    """Of what a turn makes and hands on, the buffers where it may be made: nobody else needs what was there."""
    if region.exit != "yield" or any(True for _ in region.ways_out()):
        return {}
    results_of_turn = {value for operation in region.operations for value in operation.results}
    targets = {}
    for value, new, slot in zip(carried, region.operands, slots, strict=True):
        if slot.buffer is not None and isinstance(new, Value) and new in results_of_turn and uses[value] == 1 and uses[new] == 1:
            targets[new] = slot.buffer
    return targets


def _read_by(region: Region) -> Iterator[Value]:
    """The values that a region's own operations read, and that it ends with."""
    for operation in region.operations:
        yield from operation.reads()
    for operand in region.operands:
        yield from values_of(operand)


def _all_read_by(region: Region) -> Iterator[Value]:
    for inner in region.regions():
        yield from _read_by(inner)


def _pairs(pattern: Operand, result: Any) -> Iterator[tuple[Operand, Any]]:
    if isinstance(pattern, Group):
        for part, one_ in zip(pattern.parts, result, strict=True):
            yield from _pairs(part, one_)
    else:
        yield pattern, result
