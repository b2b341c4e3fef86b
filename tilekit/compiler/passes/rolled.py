"""Loops rolled up: turns that add several products, of tiles that follow each other, become as many turns with one.

    for k in range(0, n, 2):                         for k in range(2 * tk.cdiv(n, 2)):
        acc = tk.mma(a[k], b[k], acc)                    acc = tk.mma(a[k], b[k], acc)
        acc = tk.mma(a[k + 1], b[k + 1], acc)

A turn of such a loop is a stage of a ring: of half the size there are twice as many, and one product waits for its tiles alone.

Legal where a loop counts up by 1, nothing leaves it early, its turns have no effects, and hand on nothing but sums of products;
where the operations that make a sum of the one before are the same each time, of the same operands, but that ints grow by what
the counter would have them grow by in a part of its turn. Each operation runs as often as before, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.affine import Affine, materialized
from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, leaves, structure
from tilekit.compiler.ir.products import product_of
from tilekit.compiler.ir.types import ScalarType, sampling
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.prefetched import Known

__all__ = ["roll_up_turns"]


def roll_up_turns(kernel: Region) -> None:
    """Roll up loops of a kernel where it is legal."""
    rolled = False
    with sampling():
        known = Known(kernel)
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind == "for"]:
                sums = _sums(loop, known.definitions)
                for parts in range(len(sums[0]) - 1 if sums else 0, 1, -1):
                    turn = _Turn(loop, sums, parts, known)
                    if turn.repeats():
                        before = turn.rolled_up()
                        at = region.operations.index(loop)
                        region.operations[at:at] = before
                        rolled = True
                        break
    if rolled:
        eliminate_dead_code(kernel)


def _sums(loop: Operation, defined: Mapping[Value, Operation]) -> list[list[Value]]:
    """For each value that turns hand on, the sums that a turn makes of it, from the one that it is given to the one that it hands
    on; none if turns do anything else."""
    (body,) = loop.regions
    if loop.operands[2] != Constant(1) or list(loop.ends()) != loop.regions:
        return []
    if any(operation.regions or effects(operation) - {READS} for operation in body.operations):
        return []
    chains: list[list[Value]] = []
    for total, end in zip(loop.carried, body.operands, strict=True):
        chain = [end]
        while chain[-1] is not total:
            definition = defined.get(chain[-1]) if isinstance(chain[-1], Value) else None
            product = None if definition is None or definition not in body.operations else product_of(definition)
            if product is None or product.total is None:
                return []
            chain.append(product.total)
        chains.append([value for value in reversed(chain) if isinstance(value, Value)])
    return chains if len({len(chain) for chain in chains}) == 1 else []


class _Turn:
    """A turn in so many parts, each of which makes of sums the next ones.

    Attributes:
        states: the sums ahead of each part, and those that the turn hands on.
        numbers: ints of the first part that grow in turns, and by how much in a part.
    """

    def __init__(self, loop: Operation, sums: list[list[Value]], parts: int, known: Known) -> None:
        self.loop, self.parts, self.known = loop, parts, known
        (self.body,) = loop.regions
        count = len(sums[0]) - 1
        self.states = [[chain[at] for chain in sums] for at in range(0, count + 1, count // parts)] if count % parts == 0 else []
        self.inside = set(self.body.parameters) | {v for operation in self.body.operations for v in operation.results}
        self.numbers: dict[Value, tuple[Affine, int]] = {}
        self._seen: set[tuple[Value, Value, int]] = set()

    def repeats(self) -> bool:
        """Whether all parts do what the first one does."""
        if not self.states:
            return False
        first = self.states[1]
        return all(
            self._same(mine, its, part)
            for part in range(1, self.parts)
            for mine, its in zip(first, self.states[part + 1], strict=True)
        )

    def _same(self, one: Operand, other: Operand, part: int) -> bool:
        """Whether what the first part has is what another part has in its place."""
        if one in self.states[0]:
            return other is self.states[part][self.states[0].index(one)]  # type: ignore[arg-type]
        if isinstance(one, Constant) and one == other:
            return True
        sums = self.known.sum_of(one), self.known.sum_of(other)
        if sums[0] is not None and sums[1] is not None:
            counter, difference = self.body.parameters[0], sums[1].plus(sums[0], -1)
            growth = sums[0].terms.get(counter, 0)
            if difference.terms or difference.constant * self.parts != growth * part:
                return False
            if growth and isinstance(one, Value):
                self.numbers[one] = sums[0], growth // self.parts
            return not any(value in self.inside for value in sums[0].terms if value is not counter)
        if not isinstance(one, Value) or not isinstance(other, Value):
            return False
        if one is other and one not in self.inside:
            return True
        if (one, other, part) in self._seen:  # in another part, its ints have other differences
            return True
        mine, its = self.known.definitions.get(one), self.known.definitions.get(other)
        if mine not in self.body.operations or its not in self.body.operations or mine is None or its is None:
            return False
        if (mine.kind, mine.what, mine.keywords.keys()) != (its.kind, its.what, its.keywords.keys()) or one.type != other.type:
            return False
        if mine.results.index(one) != its.results.index(other) or len(mine.operands) != len(its.operands):
            return False
        operands = (*mine.operands, *mine.keywords.values()), (*its.operands, *(its.keywords[name] for name in mine.keywords))
        same = all(
            structure(first) == structure(second)
            and all(self._same(a, b, part) for a, b in zip(leaves(first), leaves(second), strict=True))
            for first, second in zip(*operands, strict=True)
        )
        if same:
            self._seen.add((one, other, part))
        return same

    def rolled_up(self) -> list[Operation]:
        """Let the loop have a turn for each part; what stands before it then."""
        before = Insertion(self.loop.location)
        start, stop = self.loop.operands[:2]
        ends = [
            Constant(bound.value * self.parts)
            if isinstance(bound, Constant)
            else before.emit("binary", [bound, Constant(self.parts)], "*")
            for bound in (start, stop)
        ]
        counter = self.body.parameters[0]
        turn, inside = Value(counter.name, ScalarType(int)), Insertion(self.loop.location)
        new: dict[Value, Operand] = {}
        for value, (sum_, growth) in self.numbers.items():
            operations, new[value] = materialized(sum_.without(counter).plus(Affine({turn: growth}, 0)), self.loop.location)
            inside.add(operations)
        self.body.replace(new)
        self.body.parameters[0] = turn
        wanted = set(self.states[1])
        kept: list[Operation] = []
        for operation in reversed(self.body.operations):
            if not wanted.isdisjoint(operation.results):
                kept.insert(0, operation)
                wanted.update(operation.reads())
        self.body.operations, self.body.operands = [*inside.operations, *kept], list(self.states[1])
        self.loop.operands[:2] = ends
        return before.operations
