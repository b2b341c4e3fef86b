"""First turns like all others: a branch that gives a sum its first product, and adds to it in other turns, adds in each.

    acc = tk.zeros(...)                              acc = tk.zeros(...)
    for k in range(n):                               for k in range(n):
        p = a @ b                                        p = a @ b
        acc = p if k == 0 else acc + p                   acc = acc + p

Legal where the condition tells the first turn from all others (the counter, or a flag that a turn puts down), the sum is zeros
when the loop begins, and the two ways of the branch do the same but for these zeros: `0 + p` is `p`, for products that are not
rounded, which are no zeros with a sign; `acc = tk.zeros(...)` in the first turn is nothing. What a way does but read memory has
no effects.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.affine import affine, condition_of
from tilekit.compiler.ir.constants import is_zeros
from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.nodes import LOOPS, Constant, Operand, Operation, Region, Value, definitions, leaves, structure
from tilekit.compiler.ir.products import product_of
from tilekit.compiler.passes.accumulation import sum_type
from tilekit.compiler.passes.hoisting import hoist_invariants

__all__ = ["join_first_turns"]

_MANY = 1 << 40  # more turns than a loop has


def join_first_turns(kernel: Region) -> None:
    """Let first turns of a kernel's loops do what others do."""
    defined, joined = definitions(kernel), False
    for loop in [operation for operation in kernel.walk() if operation.kind in LOOPS]:
        first_turn = _FirstTurn(loop, defined)
        (body,) = loop.regions
        for branch in [operation for operation in body.operations if operation.kind == "if" and operation.results]:
            way = first_turn.way(branch)
            if way is None or not first_turn.is_like_others(way, branch):
                continue
            first, other = branch.regions[way], branch.regions[1 - way]
            at = body.operations.index(branch)
            body.operations[at : at + 1], joined = other.operations, True
            kernel.replace(
                {
                    result: one if isinstance(one, Constant) else another
                    for result, one, another in zip(branch.results, first.operands, other.operands, strict=True)
                }
            )
    if joined:
        hoist_invariants(kernel)


class _FirstTurn:
    """What is known in the first turn of a loop, and what in all others."""

    def __init__(self, loop: Operation, defined: Mapping[Value, Operation]) -> None:
        self.loop, self.defined = loop, defined
        begins = list(zip(loop.carried, loop.initial, strict=True))
        self.zeros = {value for value, initial in begins if isinstance(initial, Value) and is_zeros(initial, defined)}
        self.flags = {value for value, initial in begins if initial == Constant(True)}

    def way(self, branch: Operation) -> int | None:
        """Which region of a branch is taken in the first turn, and in no other; None if none is."""
        test, holds = branch.operands[0], 0
        while isinstance(test, Value) and test in self.defined and self.defined[test].what == "not":
            test, holds = self.defined[test].operands[0], 1 - holds
        if any(region.exit != "yield" for region in branch.regions):
            return None
        if isinstance(test, Value) and test in self.flags:
            return holds if all(self._is_put_down(end, test, branch, holds) for end in self.loop.ends()) else None
        for way in (0, 1):
            if self._is_of_first(test, holds=way == holds):
                return way
        return None

    def _is_put_down(self, end: Region, flag: Value, branch: Operation, way: int) -> bool:
        """Whether the next turn has False for a flag."""
        handed_on = end.operands[self.loop.carried.index(flag)]
        if isinstance(handed_on, Value) and handed_on in branch.results:
            at = branch.results.index(handed_on)
            return branch.regions[way].operands[at] == Constant(False) and branch.regions[1 - way].operands[at] in (
                flag,
                Constant(False),
            )
        return handed_on == Constant(False)

    def _is_of_first(self, test: Operand, *, holds: bool) -> bool:
        """Whether a condition holds in the first turn alone; or, if not `holds`, does not hold in it alone."""
        condition, turned = condition_of(test, holds=holds, definitions=self.defined), False
        if condition is None:  # `==`
            condition, turned = condition_of(test, holds=not holds, definitions=self.defined), True
        if condition is None:
            return False
        for counter, start, step in self._counters():
            begins, factor = affine(start, self.defined), condition.sum_.terms.get(counter, 0)
            if begins is None or not factor:
                continue
            sum_ = condition.sum_.without(counter).plus(begins, factor)
            numbers = [sum_.constant + factor * step * turn for turn in (0, 1, 2, _MANY)]
            tests = {"<": lambda number: number < 0, "<=": lambda number: number <= 0, "!=": lambda number: number != 0}
            if not sum_.terms and [tests[condition.symbol](n) != turned for n in numbers] == [True, False, False, False]:
                return True
        return False

    def _counters(self) -> list[tuple[Value, Operand, int]]:
        """What counts the turns of the loop: from where, and in which steps."""
        (body,), counters = self.loop.regions, list[tuple[Value, Operand, int]]()
        if self.loop.kind == "for" and isinstance(self.loop.operands[2], Constant):
            counters.append((body.parameters[0], self.loop.operands[0], self.loop.operands[2].value))
        for at, (value, initial) in enumerate(zip(self.loop.carried, self.loop.initial, strict=True)):
            sums = [affine(end.operands[at], self.defined) for end in self.loop.ends()]
            if all(one is not None and dict(one.terms) == {value: 1} and one.constant for one in sums):
                steps = {one.constant for one in sums if one is not None}
                counters += [(value, initial, step) for step in steps if len(steps) == 1]
        return counters

    def is_like_others(self, way: int, branch: Operation) -> bool:
        """Whether it does what others do, with zeros for sums so far."""
        if not all(effects(operation) <= {READS} for region in branch.regions for operation in region.operations):
            return False
        return all(map(self._same, branch.regions[way].operands, branch.regions[1 - way].operands))

    def _same(self, one: Operand, other: Operand) -> bool:
        """Whether what the first turn has is what others have."""
        if one is other or (isinstance(one, Constant) and one == other):
            return True
        if not isinstance(other, Value) or not isinstance(one, Value):
            return other in self.flags and one == Constant(False)
        if other in self.zeros and is_zeros(one, self.defined):
            return True
        definition, first = self.defined.get(other), self.defined.get(one)
        if definition is None or first is None or one.type != other.type:
            return False
        product = product_of(definition)
        if product is not None and product.total in self.zeros:
            begun = product_of(first)
            fresh = begun is not None and (begun.total is None or is_zeros(begun.total, self.defined))
            alike = begun is not None and dict(begun.options) == dict(product.options)
            return fresh and alike and begun is not None and self._same(begun.a, product.a) and self._same(begun.b, product.b)
        added_up = product_of(first)
        if (definition.kind, definition.what) == ("binary", "+") and added_up is not None and sum_type(added_up) == one.type:
            added = [operand for operand in definition.operands if operand not in self.zeros]
            return len(added) == 1 and self._same(one, added[0])
        return self._does_the_same(first, definition) and first.results.index(one) == definition.results.index(other)

    def _does_the_same(self, first: Operation, other: Operation) -> bool:
        """Whether two operations do the same, of the same operands."""
        if (first.kind, first.what) != (other.kind, other.what) or first.regions or other.regions:
            return False
        if len(first.operands) != len(other.operands) or first.keywords.keys() != other.keywords.keys():
            return False
        operands = (*first.operands, *first.keywords.values()), (*other.operands, *(other.keywords[n] for n in first.keywords))
        return all(
            structure(mine) == structure(its) and all(map(self._same, leaves(mine), leaves(its)))
            for mine, its in zip(*operands, strict=True)
        )
