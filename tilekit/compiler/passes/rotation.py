"""Rotation of loops over streams: a product that needs nothing of the turns before is asked for a turn ahead.

Of a turn with two products, the second made of the first, as in attention, the tensor cores would idle while the first one's
result becomes the operand of the second. (The first may be several, as of scores that are a sum of two.) The loop becomes three:

    the first half of turn 0
    for all turns but the last: the first product of turn t + 1, the second half of turn t, the rest of the first half of t + 1
    the second half of the last turn

in a branch for a loop that has turns, unless it is known to have one.

Legal where, of a loop whose turns have no effects and that nothing leaves early:

- the first product reads nothing that turns hand on to each other;
- no stream is read by both halves, and each half reads one; of what the first product is made of, nothing but its result is
  read by the rest; the second half does not read the number of the turn.

Each operation of the loop runs as often as before, on the same values, but that zeros which a product begins with are not
multiplied before there is anything in them (`tk.mma` says so). `tk.pipelined(..., rotate=False)` keeps a loop as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilekit.compiler.ir.constants import is_zeros
from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.least import is_above
from tilekit.compiler.ir.nodes import (
    Constant,
    Group,
    Operand,
    Operation,
    Region,
    Value,
    copied,
    definitions,
    mapped,
    values_of,
)
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.compiler.passes.rows import Gathered, Row, rows_of
from tilekit.compiler.passes.staging import FOUND_OUT

__all__ = ["rotate_products"]


def rotate_products(kernel: Region) -> int:
    """Rotate the loops of a kernel where it is legal; how many."""
    defined, count = definitions(kernel), 0
    with sampling():
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind == "stream"]:
                halves = _Halves(loop)
                if not halves.reason and not _Rotation(loop, halves, defined).into(region):
                    halves.reason = "a stream is no row of tiles along one dimension, without a step"
                if sum(map(accumulates, loop.regions[0].operations)) > 1:
                    said = halves.reason or "the first product of a turn is asked for before the second one of the turn before"
                    remark(loop.location, "rotation", said, done=not halves.reason)
                count += not halves.reason
    return count


class _Halves:
    """The two halves of a turn.

    Attributes:
        reason: why there are no such halves; empty if there are.
        ahead: the operations up to the first product that it needs, and it itself.
        first, second: the operations of the halves, in order; the first with those that are `ahead`.
        crossing: what the second half reads of the first, and of what turns hand on.
        streams: for each stream whether the second half reads it.
    """

    def __init__(self, loop: Operation) -> None:
        (body,) = loop.regions
        self.tiles = body.parameters[: len(body.parameters) - len(loop.carried)]
        self.reason = self._divide(loop, body)

    def _divide(self, loop: Operation, body: Region) -> str:
        operations = body.operations
        rotate = loop.keywords.get("rotate")
        if rotate is FOUND_OUT:
            return "each turn finds out which tiles come"
        if rotate == Constant(False):
            return "rotate=False"
        if loop.keywords.get("warp_specialize") == Constant(False):
            return "warp_specialize=False"
        if loop.leaves_early():
            return "a turn may leave the loop, or go on with the next one"
        if any(region.exit != "yield" for region in body.regions()):
            return "a loop in a turn has a break or continue, or goes on while a condition holds"
        if any(effects(operation) - {READS} for operation in operations):
            return "a turn writes to memory, prints or asserts, or calls what may"
        products = [operation for operation in operations if accumulates(operation)]
        count = sum(map(accumulates, body.walk()))
        if len(products) < 2 or len(products) < count:
            return f"a turn has {len(products)} of its {count} products in it, the others in branches or loops"
        *_, product, other = products
        self.ahead = [*_makers(operations, _reads(product)), product]
        if any(each not in self.ahead for each in products[:-1]):
            return f"a turn has {count} products, and not all but the last of them make what it multiplies"
        if any(each.results[0].type != product.results[0].type for each in products[:-1]):
            return "the products of a turn that make what the last one multiplies differ in shape or dtype"
        if _all_read(self.ahead) & set(loop.carried):
            return "the first product reads what the turn before hands on"
        if product not in _makers(operations, _reads(other)):
            return "the second product is not made of the first"
        self.second = _followers(operations, other)
        self.second = [*self._own_views(body, other), *self.second]
        self.first = [operation for operation in operations if operation not in self.second]
        self.product = other
        reads = _all_read(self.first), _all_read(self.second)
        self.streams = [tile in reads[1] for tile in self.tiles]
        produced = {value for operation in self.first for value in operation.results} | set(loop.carried)
        self.crossing = [value for value in _in_order(self.second) if value in produced]
        if any(tile in values_of(operand) for operand in body.operands for tile in self.tiles):
            return "a turn hands a tile of a stream on"
        if any(tile in reads[0] and tile in reads[1] for tile in self.tiles):
            return "both halves of a turn, with a product each, read the same stream"
        if len(set(self.streams)) < 2:
            return "one of the halves of a turn, with a product each, reads no stream"
        rest = _all_read([operation for operation in self.first if operation not in self.ahead]) | set(self.crossing)
        tiles = {tile for tile, late in zip(self.tiles, self.streams, strict=True) if not late}
        if rest & (tiles | {value for operation in self.ahead[:-1] for value in operation.results}):
            return "operands of the first product are read by more than it"
        if not all(isinstance(value.type, TileType) for value in self.crossing):
            return "what the second product makes depends on a number of its turn"
        return ""

    def _own_views(self, body: Region, product: Operation) -> list[Operation]:
        """Views of tiles that the second product alone reads."""
        views_: list[Operation] = []
        for operation in reversed(body.operations[: body.operations.index(product)]):
            if operation.kind == "method" and operation.results and not any(value in self.tiles for value in operation.results):
                readers = [other for other in body.operations if set(operation.results) & set(_reads(other))]
                ends = {value for operand in body.operands for value in values_of(operand)}
                own = bool(readers) and all(reader in (*self.second, *views_) for reader in readers)
                if own and not ends & set(operation.results) and self._of_tiles(operation, body):
                    views_.insert(0, operation)
        return views_

    def _of_tiles(self, operation: Operation, body: Region) -> bool:
        """Whether it is made of a stream's tile, by other views perhaps."""
        makers = _makers(body.operations, _reads(operation))
        return any(value in self.tiles for maker in [*makers, operation] for value in _reads(maker)) and all(
            maker.kind == "method" for maker in makers
        )


class _Rotation:
    """The three loops that take a loop's place."""

    def __init__(self, loop: Operation, halves: _Halves, defined: dict[Value, Operation]) -> None:
        self.loop, self.halves, self.defined = loop, halves, defined
        (self.body,) = loop.regions
        self.new = Insertion(loop.location, defined)
        after = {value for operation in halves.second for value in operation.results}
        ends = [operand in after if isinstance(operand, Value) else False for operand in self.body.operands]
        self.late = [at for at, late in enumerate(ends) if late]  # what the second half hands on
        self.early = [at for at, late in enumerate(ends) if not late]

    def into(self, region: Region) -> bool:
        """Put them where the loop stands; False if its streams cannot be cut."""
        before = Insertion(self.loop.location, self.defined)
        rows = rows_of(self.loop.operands[: len(self.halves.tiles)], self.defined, before)
        if rows is None:
            return False
        first = next(row for row, late in zip(rows, self.halves.streams, strict=True) if not late)
        surely = is_above(first.stop, first.start, self.defined)
        some = None if surely else before.emit("compare", [first.start, first.stop], "<")
        self.name_anew(self.halves.ahead[-1].operands[0], before)
        begun = self.prologue(rows)
        turns = self.turns(rows, begun)
        end = self.epilogue(rows, turns)
        results: list[Operand] = list(self.loop.results)
        for position, at in enumerate(self.early):
            results[at] = turns.results[position]
        for position, at in enumerate(self.late):
            results[at] = end.results[position]
        at = region.operations.index(self.loop)
        if some is None:
            region.operations[at : at + 1] = [*before.operations, *self.new.operations]
            region.replace(dict(zip(self.loop.results, results, strict=True)))
            return True
        regions = [Region([], self.new.operations, "yield", results), Region([], [], "yield", list(self.loop.initial))]
        chosen = Operation("if", [some], self.loop.location, results=self.loop.results, regions=regions)
        region.operations[at : at + 1] = [*before.operations, chosen]
        return True

    def name_anew(self, operand: Operand, before: Insertion) -> None:
        """Let the loops read an operand from before them by a name of its own: what they make of it is not what it is behind."""
        inside = {value for operation in self.body.operations for value in operation.results} | set(self.body.parameters)
        if isinstance(operand, Value) and isinstance(operand.type, TileType) and operand not in inside:
            shape = Group(tuple(map(Constant, operand.type.shape)))
            self.body.replace({operand: before.emit("method", [operand, shape], "reshape")})

    # --------------------------------------------------------------------------------------------------------------- the loops

    def prologue(self, rows: Sequence[Row | Gathered]) -> list[Operand]:
        """The first half of turn 0; what it hands on, and what crosses to the second half."""
        halves = self.halves
        known: dict[Value, Operand] = dict(zip(self.loop.carried, self.loop.initial, strict=True))
        *others, product = halves.ahead
        first = next(operation for operation in halves.ahead if accumulates(operation))
        begins = first.operands[2]
        makers = _makers(others, values_of(begins))
        self.new.add(copied(makers, known))
        streams: list[Operand] = []
        tiles = []
        for row, tile, late in zip(rows, halves.tiles, halves.streams, strict=True):
            if not late:
                streams.append(row.one(row.start, self.new))
                tiles.append(self.renamed(tile, known))
        sum_, initial = Value(first.results[0].name, first.results[0].type), mapped(begins, known)
        begun = replace(first, operands=[*first.operands[:2], sum_])
        ahead = [begun if operation is first else operation for operation in halves.ahead if operation not in makers]
        operations = copied(ahead, known)
        inner = Region([*tiles, sum_], operations, "yield", [known[product.results[0]]], self.body.location)
        stream = self.stream(streams, [initial], inner, alone=True)
        known[product.results[0]] = stream.results[0]
        for operation in [operation for operation in halves.first if operation not in halves.ahead]:
            zeros = self.zeros(operation, known)
            if zeros is None:
                self.new.add(copied([operation], known))
            else:
                known[operation.results[0]] = zeros
        return [mapped(self.body.operands[at], known) for at in self.early] + [mapped(v, known) for v in halves.crossing]

    def zeros(self, operation: Operation, known: dict[Value, Operand]) -> Value | None:
        """What an operation multiplies, if that is zeros: they stay what they are."""
        if (operation.kind, operation.what) != ("binary", "*"):
            return None
        operands = [mapped(operand, known) for operand in operation.operands]
        zeros = (x for x in operands if isinstance(x, Value) and is_zeros(x, self.defined))
        return next((x for x in zeros if x.type == operation.results[0].type), None)

    def turns(self, rows: Sequence[Row | Gathered], begun: list[Operand]) -> Operation:
        """The first half of turn t + 1, and within it the second half of turn t."""
        halves, carried = self.halves, self.loop.carried
        known: dict[Value, Operand] = {}
        streams: list[Operand] = []
        tiles = []
        for row, tile, late in zip(rows, halves.tiles, halves.streams, strict=True):
            start = row.start if late else self.new.plus(row.start, 1)
            streams.append(row.part(start, self.new.plus(row.stop, -1) if late else row.stop, self.new))
            tiles.append(self.renamed(tile, known))
        entering = [self.renamed(carried[at], known) for at in self.early]
        before = {value: Value(value.name, value.type) for value in halves.crossing}
        handed = [Value(carried[at].name, carried[at].type) for at in self.late]
        earlier: dict[Value, Operand] = {**known, **{carried[at]: value for at, value in zip(self.late, handed, strict=True)}}
        earlier |= before
        operations = copied(halves.ahead, known)
        operations += copied(halves.second, earlier)
        late_ends = [mapped(self.body.operands[at], earlier) for at in self.late]
        known |= {carried[at]: end for at, end in zip(self.late, late_ends, strict=True)}
        operations += copied([operation for operation in halves.first if operation not in halves.ahead], known)
        ends = [mapped(self.body.operands[at], known) for at in self.early]
        crossed = [mapped(value, known) for value in halves.crossing]
        _behind(operations, crossed)
        parameters = [*tiles, *entering, *before.values(), *handed]
        inner = Region(parameters, operations, "yield", [*ends, *crossed, *late_ends], self.body.location)
        initial = [*begun, *(self.loop.initial[at] for at in self.late)]
        return self.stream(streams, initial, inner)

    def epilogue(self, rows: Sequence[Row | Gathered], turns: Operation) -> Operation:
        """The second half of the last turn."""
        halves, carried = self.halves, self.loop.carried
        known: dict[Value, Operand] = {}
        streams: list[Operand] = []
        tiles = []
        for row, tile, late in zip(rows, halves.tiles, halves.streams, strict=True):
            if late:
                streams.append(row.one(self.new.plus(row.stop, -1), self.new))
                tiles.append(self.renamed(tile, known))
        entering = [self.renamed(carried[at], known) for at in self.late]
        crossing = turns.results[len(self.early) : len(self.early) + len(halves.crossing)]
        known |= zip(halves.crossing, crossing, strict=True)
        operations = copied(halves.second, known)
        ends = [mapped(self.body.operands[at], known) for at in self.late]
        inner = Region([*tiles, *entering], operations, "yield", ends, self.body.location)
        handed = turns.results[len(self.early) + len(halves.crossing) :]
        # There is a turn: so what a product begins with can stand for its result before, and is one tile less to keep.
        begins = halves.product.operands[2]
        initial: list[Operand] = list(handed)
        for position, at in enumerate(self.late):
            if self.body.operands[at] is halves.product.results[0] and begins in halves.crossing:
                initial[position] = crossing[halves.crossing.index(begins)]  # type: ignore[arg-type]
        return self.stream(streams, initial, inner, alone=True)

    def stream(self, streams: list[Operand], initial: list[Operand], inner: Region, alone: bool = False) -> Operation:
        count = len(inner.operands)
        results = [Value(value.name, value.type) for value in inner.parameters[len(inner.parameters) - count :]]
        keywords = {**self.loop.keywords, "stages": Constant(1)} if alone else dict(self.loop.keywords)
        operands = [*streams, *initial]
        stream = Operation("stream", operands, self.loop.location, None, keywords, results=results, regions=[inner])
        self.new.add([stream])
        return stream

    def renamed(self, value: Value, known: dict[Value, Operand]) -> Value:
        known[value] = copy = Value(value.name, value.type)
        return copy


def _reads(operation: Operation) -> dict[Value, None]:
    """What an operation and its regions read, in order."""
    read = dict.fromkeys(operation.reads())
    for region in operation.regions:
        for inner in region.walk():
            read |= dict.fromkeys(inner.reads())
        for each in region.regions():
            read |= dict.fromkeys(value for operand in each.operands for value in values_of(operand))
    return read


def _all_read(operations: Iterable[Operation]) -> set[Value]:
    return {value for operation in operations for value in _reads(operation)}


def _in_order(operations: Iterable[Operation]) -> list[Value]:
    """What they read, each value once."""
    return list(dict.fromkeys(value for operation in operations for value in _reads(operation)))


def _makers(operations: list[Operation], wanted: Iterable[Value]) -> list[Operation]:
    """The operations that values are made by, in order."""
    makers = []
    wanted = set(wanted)
    for operation in reversed(operations):
        if wanted & set(operation.results):
            makers.append(operation)
            wanted |= set(_reads(operation))
    return makers[::-1]


def _followers(operations: list[Operation], first: Operation) -> list[Operation]:
    """An operation, and those behind it that need what it makes."""
    followers, produced = [first], set(first.results)
    for operation in operations[operations.index(first) + 1 :]:
        if produced & set(_reads(operation)):
            followers.append(operation)
            produced |= set(operation.results)
    return followers


def _behind(operations: list[Operation], crossed: list[Operand]) -> None:
    """Put what makes operands for the next turn last: behind the wait for the product that reads the present ones."""
    for operand in crossed:
        maker = next((one for one in operations if operand in one.results), None)
        if maker is None or maker.kind != "method":
            continue
        if not any(set(maker.results) & set(_reads(other)) for other in operations):
            operations.remove(maker)
            operations.append(maker)
