"""Loads in loops to streams: `for k in range(n)` whose body loads operands of products becomes a loop over `tk.pipelined`.

Legal where, of a loop that counts up by 1 and that nothing leaves early:

- the tensor is a parameter that is only read (`tk.In`), so that no turn writes what a later one reads; or a slice of one;
- the load stands in the body itself, so that each turn does it, and has no option: elements beyond the edge are zeros;
- its index is the counter and what does not change, along one dimension, and does not change along the others;
- the kernel reads no result of an atomic operation: what is loaded ahead does not wait for what others tell by them.

What does not change at all is loaded before the loop. Where an index is something else that follows from the counter, be it by
elements of such tensors (every other tile, from the last to the first, in turns, by a table of pages), the streams are gathered:
the thread that loads ahead calculates it in its turn.

Where a turn finds an index out from what turns hand on, or whether it loads at all, the turn becomes a loop of its own, or its
branch does, over streams of one tile each: they are loaded ahead as well.

An index outside of the tensor is an error of the kernel's, so the tiles of a turn are those of the stream at its place. What
becomes a stream is an operand of a product, which reads it in shared memory, or what one is made of, whatever else reads it, too;
loads for anything else gain nothing that is sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.effects import effects, learns
from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import (
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Section,
    Value,
    copied,
    mapped,
    values_of,
)
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TensorType, sampling
from tilekit.compiler.passes.factors import LARGE, Factors, is_view
from tilekit.compiler.passes.rows import Gathered
from tilekit.compiler.passes.staging import FOUND_OUT, has_streams, stage
from tilekit.lang import calculation, memory

__all__ = ["streams_from_loads"]

_NONE = Constant(None)
_AHEAD = "loads ahead"


def streams_from_loads(kernel: Region) -> int:
    """Turn loops into loops over streams where it is legal; how many."""
    if learns(kernel):
        return 0
    with sampling():
        return _Streams(kernel).block(kernel)


class _Streams:
    def __init__(self, kernel: Region) -> None:
        self.factors = Factors(kernel)
        self.definitions = self.factors.definitions

    def block(self, region: Region) -> int:
        count = 0
        operations: list[Operation] = []
        for operation in region.operations:
            count += sum(map(self.block, operation.regions))
            replaced = self.stream(operation) if operation.kind == "for" else None
            operations += [operation] if replaced is None else replaced
            count += replaced is not None or (operation.kind == "for" and self.turns(operation))
        region.operations = operations
        return count

    def stream(self, loop: Operation) -> list[Operation] | None:
        """A loop over streams in the place of a loop, and what stands before it; None if there is none."""
        (body,) = loop.regions
        start, stop, step = loop.operands[:3]
        if any(region.exit != "yield" for region in body.regions()):
            if any(self.factors.loads_one(operation) for operation in body.operations):
                remark(loop.location, _AHEAD, "a turn may be the last one, or be left in the middle", done=False)
            return None
        if step != Constant(1) or _is_short(start, stop):
            return None
        if any(affine(bound, self.definitions) is None for bound in (start, stop)):
            return None
        counter = body.parameters[0]
        inside = set(body.parameters) | {v for operation in body.walk() for v in operation.results}
        before: list[Operation] = []
        factors = [operation for operation in body.operations if self.factors.loads_one(operation, large=False, computed=True)]
        fixed = self.fixed([load for load in factors if self.factors.loads_one(load)], body, inside)
        factors = _in_order_of_use([load for load in factors if load not in fixed], body)
        pairs = [(load, self.motion(load, counter, inside)) for load in factors]
        motions = {load: motion for load, motion in pairs if motion is not None}
        large = [load for load in factors if self.factors.loads_one(load)]
        gained = [load for load in factors if load in large or self.factors.loads_one(load, computed=True)]
        others = [load for load in large if load not in motions]
        gathered = self.gathered([load for load in factors if load in motions or load in gained], loop)
        if all(load in motions for load in gained) or not all(load in gathered for load in (*motions, *others)):
            gathered = {}
        for load in others:
            refusal = self.factors.refusal(load)
            if refusal is not None:  # or the turn tells which tile it is
                remark(load.location, _AHEAD, refusal, done=False)
        if factors and not gained:
            remark(loop.location, _AHEAD, f"results of products have fewer than {LARGE} elements", done=False)
        gained = [load for load in gained if load in motions or load in gathered]
        if not gained or (others and not gathered):  # products wait for the others in each turn anyway
            return None
        rows: Sequence[Operand]
        if gathered:
            loads, rows = list(gathered), [self.order(load, *index, loop, before) for load, index in gathered.items()]
        else:
            loads, whole = list(motions), [self.is_whole(load, motion, start, stop) for load, motion in motions.items()]
            rows = [self.row(load, *motion, start, None if any(whole) else stop, before) for load, motion in motions.items()]
        tiles = [operation.results[0] for operation in loads]
        body.operations = [operation for operation in body.operations if operation not in (*loads, *fixed)]
        body.parameters[:1] = tiles
        stream = Operation("stream", [*rows, *loop.operands[3:]], loop.location, results=loop.results, regions=[body])
        if self.is_read(counter, body):
            _count(stream, counter, start)
        return [*before, *fixed, stream]

    def fixed(self, loads: list[Operation], body: Region, inside: set[Value]) -> list[Operation]:
        """Those of loads that no turn changes, and views of their tiles."""
        fixed: list[Operation] = []
        for operation in body.operations:
            tiles = {tile for one in fixed for tile in one.results}
            if (operation in loads or (is_view(operation) and not tiles.isdisjoint(operation.reads()))) and not any(
                value in inside - tiles for value in operation.reads()
            ):
                fixed.append(operation)
        return fixed

    def turns(self, loop: Operation) -> bool:
        """Make each turn of a loop, or a branch in it, one over streams of one tile, where that is legal; whether it is."""
        (body,) = loop.regions
        if any(region.exit != "yield" for region in body.regions()) or _is_short(*loop.operands[:2]):
            return False
        if any(map(has_streams, body.operations)):  # for those `stage_operands` has the loads that are left
            return False
        if self.turn(body):
            return True
        branches = [one for one in body.operations if one.kind == "if" and self.is_known_ahead(set(one.reads()), body)]
        return sum(self.turn(region, body) for branch in branches for region in branch.regions) > 0

    def turn(self, region: Region, around: Region | None = None) -> bool:
        """Make what a region does a loop over streams of one tile; whether that is legal. It may be a branch in `around`."""
        loads = [operation for operation in region.operations if self.factors.loads_one(operation)]
        if not loads or not all(map(self.factors.is_copied, loads)):
            return False
        needed = {value for load in loads for value in load.reads()}
        ahead = self.ahead(needed, [one for one in region.operations if one not in loads])
        if ahead is None or not needed.isdisjoint(value for load in loads for value in load.results):
            return False
        if around is not None and not self.is_known_ahead(needed, around):
            return False
        behind = [operation for operation in region.operations if operation not in ahead and operation not in loads]
        # Products end in their turn: none may be under way around the branch that it is in machine code.
        ended = Insertion(loads[0].location)
        products = {operation.results[0] for operation in behind if accumulates(operation)}
        for at, operand in enumerate(region.operands):
            if operand in products:
                region.operands[at] = ended.emit("binary", [operand, Constant(1)], "*")
        region.operations = [*ahead, *loads, *behind, *ended.operations]
        stage(loads, region, rotate=FOUND_OUT)
        return True

    def ahead(self, needed: set[Value], operations: list[Operation]) -> list[Operation] | None:
        """Those of operations that make what is needed, and what they need in turn, which is entered there; None if one of them
        is no such that one thread can do ahead of the others."""
        made: list[Operation] = []
        for operation in reversed(operations):
            if not needed.isdisjoint(operation.results):
                if not _is_known_ahead(operation):
                    return None
                made.insert(0, operation)
                needed.update(_read_from_outside(operation))
        return made

    def is_known_ahead(self, values: set[Value], body: Region) -> bool:
        """Whether one thread can find values out, ahead of the others, in a turn of a loop."""
        return self.ahead(set(values), body.operations) is not None

    def gathered(self, loads: list[Operation], loop: Operation) -> dict[Operation, tuple[Region, list[Value]]]:
        """What gives the index of each load of a loop that has such a thing, and the values that this captures."""
        (body,) = loop.regions
        counter, carried = body.parameters[0], set(loop.carried)
        changing = carried.union(value for operation in body.walk() for value in operation.results)
        others = [operation for operation in body.operations if operation not in loads]
        indices: dict[Operation, tuple[Region, list[Value]]] = {}
        for load in loads:
            tensor, index, _ = load.operands
            needed = set(values_of(index))
            makers = self.ahead(needed, others)
            known = {value for operation in makers or () for value in operation.results}
            captured = sorted(needed - known - {counter}, key=lambda value: value.name)
            if makers is None or not self.factors.is_copied(load) or not changing.isdisjoint([tensor, *captured]):
                continue
            parameters = [Value(value.name, value.type) for value in (counter, *captured)]
            names: dict[Value, Operand] = dict(zip((counter, *captured), parameters, strict=True))
            operations = copied(makers, names)
            indices[load] = Region(parameters, operations, "yield", [mapped(index, names)], load.location), captured
        return indices

    def order(self, load: Operation, index: Region, captured: list[Value], loop: Operation, before: list[Operation]) -> Value:
        """The stream of what a load brings, in the order of its index."""
        new = Insertion(load.location)
        tensor, _, extents = load.operands
        start, stop, *_ = loop.operands
        row = Gathered(tensor, extents, index, tuple(captured), start, stop).part(start, stop, new)
        before += new.operations
        return row

    def is_read(self, value: Value, body: Region) -> bool:
        operands = (v for region in body.regions() for operand in region.operands for v in values_of(operand))
        return any(value is v for operation in body.walk() for v in operation.reads()) or any(value is v for v in operands)

    def motion(self, load: Operation, counter: Value, inside: set[Value]) -> tuple[int, Affine, list[Operand]] | None:
        """The dimension along which a load moves on by one tile a turn, where it is but for the counter, and the index."""
        tensor, index, *_ = load.operands
        if tensor in inside or not self.factors.is_copied(load):
            return None
        parts: list[Operand] = list(index.parts) if isinstance(index, Group) else [index]
        sums = [affine(part, self.definitions) for part in parts]
        moving = [d for d, one in enumerate(sums) if one is not None and counter in one.terms]
        if len(moving) != 1:
            return None
        (dim,) = moving
        for d, (part, one) in enumerate(zip(parts, sums, strict=True)):
            rest = values_of(part) if one is None else one.terms
            if any(value in inside and not (d == dim and value is counter) for value in rest):
                return None
        along = sums[dim]
        assert along is not None
        return (dim, along.without(counter), parts) if along.terms[counter] == 1 else None

    def row(
        self,
        load: Operation,
        dim: int,
        offset: Affine,
        parts: list[Operand],
        start: Operand,
        stop: Operand | None,
        before: list[Operation],
    ) -> Operand:
        """The stream of tiles that a load brings: operations that make it go `before` the loop.

        Without `stop` it goes to the end of the tensor: another stream says how many turns there are.
        """
        tensor, _, extents = load.operands

        def emit(kind: str, operands: Iterable[Operand], what: object = None) -> Value:
            operation = Operation(kind, list(operands), load.location, what)
            result = infer(operation)
            assert isinstance(result, Value), "a view or a number"
            operation.results = [Value("t", result.type)]
            before.append(operation)
            return operation.results[0]

        def shifted(bound: Operand) -> Operand:
            one = affine(bound, self.definitions)
            assert one is not None, "an int"
            operations, operand = materialized(offset.plus(one), load.location)
            before.extend(operations)
            return operand

        invariant = [self.invariant(part, before, load) if d != dim else part for d, part in enumerate(parts)]
        low = shifted(start)
        # Of a range that is empty the end may be negative, which in a slice would count from the end.
        high = _NONE if stop is None else emit("call", [low, shifted(stop)], Constant(max, "max"))
        section = Section(_NONE if low == Constant(0) else low, high, _NONE)
        invariant[dim] = section
        grid = emit("method", [tensor, extents], "tiles")
        return emit("item", [grid, Group(tuple(invariant)) if len(invariant) > 1 else section])

    def invariant(self, part: Operand, before: list[Operation], load: Operation) -> Operand:
        """An index that does not change, computed before the loop."""
        one = affine(part, self.definitions)
        if one is None:
            return part
        operations, operand = materialized(one, load.location)
        before.extend(operations)
        return operand

    def is_whole(self, load: Operation, motion: tuple[int, Affine, list[Operand]], start: Operand, stop: Operand) -> bool:
        """Whether a load brings all tiles of its tensor along a dimension, one in each turn."""
        dim, offset, _ = motion
        if start != Constant(0) or offset.terms or offset.constant:
            return False
        tensor, _, extents = load.operands
        if not isinstance(stop, Value) or (definition := self.definitions.get(stop)) is None or definition.kind != "call":
            return False
        parts = extents.parts if isinstance(extents, Group) else (extents,)
        if definition.what.value is memory.num_tiles:
            return not definition.keywords and definition.operands == [tensor, Constant(dim), extents]
        if definition.what.value is not calculation.cdiv or definition.operands[1:] != [parts[dim]]:
            return False
        extent = definition.operands[0]
        shape_ = self.definitions.get(extent) if isinstance(extent, Value) else None
        if shape_ is None or shape_.kind != "attribute" or shape_.what != "shape" or shape_.operands != [tensor]:
            return False
        return shape_.results[dim] is extent


def _read_from_outside(operation: Operation) -> set[Value]:
    """What an operation reads, and its regions, of what is there before it."""
    read = set(operation.reads())
    for region in (inner for each in operation.regions for inner in each.regions()):
        read.update(value for operand in region.operands for value in values_of(operand))
        read.update(value for inner in region.operations for value in inner.reads())
    return read - {value for each in operation.regions for inner in each.walk() for value in inner.results}


def _is_known_ahead(operation: Operation) -> bool:
    """Whether one thread can find it out, ahead of the others: it calculates, or loads an element that nobody writes; or chooses
    between what does."""
    if operation.kind == "if":
        ends = all(inner.exit == "yield" for region in operation.regions for inner in region.regions())
        return ends and all(_is_known_ahead(inner) for region in operation.regions for inner in region.operations)
    if operation.regions:
        return False
    if operation.kind == "call" and operation.what.value is memory.load:
        tensor = operation.operands[0]
        read = isinstance(tensor, Value) and isinstance(tensor.type, TensorType) and tensor.type.facts.role == "in"
        return read and operation.operands[2:] == [Group(())]
    numbers = all(isinstance(value.type, ScalarType) for value in operation.results)
    return numbers and not effects(operation)


def _is_short(start: Operand, stop: Operand) -> bool:
    """Whether a loop is known to have one turn at most: nothing is gained by loading ahead."""
    bounds = [bound.value for bound in (start, stop) if isinstance(bound, Constant)]
    return len(bounds) == 2 and bounds[1] - bounds[0] <= 1


def _in_order_of_use(loads: list[Operation], body: Region) -> list[Operation]:
    """Loads with those first whose tiles a turn computes with first, however early they stand in the text."""
    tile_of = {load.results[0]: load for load in loads}
    first: dict[Operation, int] = {}
    for at, operation in enumerate(body.walk()):
        for load in {tile_of[value] for value in operation.reads() if value in tile_of}:
            if is_view(operation):
                tile_of[operation.results[0]] = load
            else:
                first.setdefault(load, at)
    return sorted(loads, key=lambda load: first.get(load, math.inf))


def _count(stream: Operation, counter: Value, start: Operand) -> None:
    """Let a loop carry its counter, which it had from its range."""
    (body,) = stream.regions
    following = Value(counter.name, ScalarType(int))
    body.operations.append(Operation("binary", [counter, Constant(1)], stream.location, "+", results=[following]))
    body.parameters.append(counter)
    body.operands.append(following)
    stream.operands.append(start)
    stream.results = [*stream.results, Value(counter.name, ScalarType(int))]
