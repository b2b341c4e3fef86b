"""Splitting of loops over streams by a mask: turns in which it holds for the whole tile go without it.

`tk.where(mask, x, y)` of an `x` that is large, where the mask is a comparison of what is affine in the number of the turn, in
numbers that do not change, and in coordinates (`tk.arange`), or several such with `&`: that the worst of the tile's elements
is inside is a condition on numbers, which holds up to some turn, or from some turn on. The loop becomes two or three: without the
mask between these turns, and with it before and behind them.

Legal for any such loop that nothing leaves early: each turn does what it did. A mask whose bound depends on what turns hand on
stays. `tk.pipelined(..., split=False)` keeps a loop as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, copied, definitions
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import sampling
from tilekit.compiler.passes.conditions import Conditions, is_masked
from tilekit.compiler.passes.consumer import may_be_under_way
from tilekit.compiler.passes.rows import Gathered, Row, rows_of

__all__ = ["split_by_masks"]

_MOST_OPERATIONS = 150  # of a loop that is written two or three times


def split_by_masks(kernel: Region) -> None:
    """Split loops of a kernel where it is legal."""
    defined = definitions(kernel)
    with sampling():
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind == "stream"]:
                if loop.keywords.get("stages") != Constant(1):
                    _Split(loop, defined).into(region)


class _Bound(NamedTuple):
    """A condition that holds where `factor * counter + rest <= 0`: up to some turn, or with a negative factor from one on."""

    counter: Value
    factor: int
    rest: Affine


class _Split:
    def __init__(self, loop: Operation, defined: dict[Value, Operation]) -> None:
        self.loop, self.defined, self.conditions = loop, defined, Conditions(defined)
        (self.body,) = loop.regions
        self.inside = set(self.body.parameters) | {v for operation in self.body.walk() for v in operation.results}
        pairs = zip(loop.carried, self.body.operands, loop.initial, strict=True)
        self.counters = {value: initial for value, operand, initial in pairs if self.counts(value, operand)}

    def counts(self, value: Value, operand: Operand) -> bool:
        """Whether a value that is handed on grows by 1 a turn."""
        sum_ = affine(operand, self.defined)
        return sum_ is not None and dict(sum_.terms) == {value: 1} and sum_.constant == 1

    def into(self, region: Region) -> None:
        if any(each.exit != "yield" for each in self.body.regions()) or sum(1 for _ in self.body.walk()) > _MOST_OPERATIONS:
            return
        masked = [(operation, self.bounds(operation)) for operation in self.body.operations if is_masked(operation)]
        masked = [(operation, bounds) for operation, bounds in masked if bounds]
        if not masked:
            return
        if self.loop.keywords.get("split") == Constant(False):
            remark(self.loop.location, "splitting", "split=False", done=False)
            return
        new = Insertion(self.loop.location, self.defined)
        count = len(self.body.parameters) - len(self.loop.carried)
        rows = rows_of(self.loop.operands[:count], self.defined, new)
        if rows is None:
            return
        every = [bound for _, bounds in masked for bound in bounds]
        below, above = (any(bound.factor * sign > 0 for bound in every) for sign in (-1, 1))
        high: Operand = new.emit("binary", [rows[0].stop, rows[0].start], "-")
        low: Operand = Constant(0)
        for bound in every:
            if bound.factor > 0:
                high = new.call(min, high, self.whole(bound, new))
            else:
                low = new.call(max, low, self.cut(bound, new))
        high = new.call(max, high, Constant(0))
        low = new.call(min, low, high) if below else low

        edges = [[row.start for row in rows], *(_at(turn, rows, new) for turn in [low] * below + [high] * above)]
        ranges = list(pairwise([*edges, [row.stop for row in rows]]))
        loops = [*(copied([self.loop], {})[0] for _ in ranges[1:]), self.loop]
        handed, originals = self.loop.initial, [operation for operation, _ in masked]
        for loop, (starts, stops), keeps in zip(loops, ranges, [True] * below + [False] + [True] * above, strict=True):
            streams = [row.part(start, stop, new) for row, start, stop in zip(rows, starts, stops, strict=True)]
            loop.operands = [*streams, *handed]
            handed = list(loop.results)
            if not keeps:
                pairs = list(zip(loop.regions[0].operations, self.body.operations, strict=True))
                loop.regions[0].replace({copy.results[0]: copy.operands[1] for copy, one in pairs if one in originals})
        at = region.operations.index(self.loop)
        region.operations[at : at + 1] = [*new.operations, *loops]
        for operation in [one for one in region.operations[:at] if is_masked(one) and not _has_products_around(one, region)]:
            self.branch(operation, region)
        remark(self.loop.location, "splitting", "turns in which a mask holds for the whole tile go without it")

    def branch(self, masked: Operation, region: Region) -> None:
        """Mask a tile ahead of the loop, its first turn's, only where the mask does not hold for the whole tile."""
        new = Insertion(masked.location, self.defined)
        worst: list[Operand] = []
        for condition in self.conditions.of(masked.operands[0]) or ():
            operations, operand = materialized(condition.worst, masked.location)
            new.add(operations)
            worst.append(operand)
        (result,) = masked.results
        if not worst or result.type.dtype == dtypes.bool_:  # type: ignore[union-attr]
            return
        cut = new.emit("compare", [functools.reduce(lambda a, b: new.call(max, a, b), worst), Constant(0)], ">")
        # Its product ends before: none may be under way around a branch in machine code.
        tile = new.emit("binary", [masked.operands[1], Constant(1)], "*")
        inner = Value(result.name, result.type)
        masked.operands[1], masked.results = tile, [inner]
        regions = [Region([], [masked], "yield", [inner]), Region([], [], "yield", [tile])]
        chosen = Operation("if", [cut], masked.location, results=[result], regions=regions)
        at = region.operations.index(masked)
        region.operations[at : at + 1] = [*new.operations, chosen]

    def whole(self, bound: _Bound, new: Insertion) -> Operand:
        """How many turns a condition holds for, or less than none."""
        sum_ = bound.rest.times(-1)
        initial = affine(self.counters[bound.counter], self.defined)
        assert initial is not None, "an int"
        operations, operand = materialized(sum_.plus(initial, -bound.factor), self.loop.location)
        new.add(operations)
        return new.plus(new.emit("binary", [operand, Constant(bound.factor)], "//") if bound.factor > 1 else operand, 1)

    def cut(self, bound: _Bound, new: Insertion) -> Operand:
        """How many turns pass until a condition holds, or less than none."""
        initial, factor = affine(self.counters[bound.counter], self.defined), -bound.factor
        assert initial is not None, "an int"
        rest = bound.rest.plus(initial, -factor)
        operations, operand = materialized(Affine(rest.terms, rest.constant + factor - 1), self.loop.location)
        new.add(operations)
        return new.emit("binary", [operand, Constant(factor)], "//") if factor > 1 else operand

    def bounds(self, operation: Operation) -> list[_Bound]:
        """When all elements of a mask hold; empty if that is no such condition."""
        bounds = []
        for condition in self.conditions.of(operation.operands[0]) or ():
            worst = condition.worst
            changing = [value for value in worst.terms if value in self.inside]
            if len(changing) != 1 or changing[0] not in self.counters:
                return []
            (counter,) = changing
            if affine(self.counters[counter], self.defined) is None:
                return []
            bounds.append(_Bound(counter, worst.terms[counter], worst.without(counter)))
        return bounds


def _at(turn: Operand, rows: Sequence[Row | Gathered], new: Insertion) -> list[Operand]:
    """Which tile of each row comes in a turn."""
    return [turn if row.start == Constant(0) else new.emit("binary", [row.start, turn], "+") for row in rows]


def _has_products_around(masked: Operation, region: Region) -> bool:
    """Whether others than the product that is masked may be under way there: nothing has read them yet."""
    before = region.operations[: region.operations.index(masked)]
    read = {value for operation in (*before, masked) for value in operation.reads()}
    return any(
        may_be_under_way(operation, n) and value not in read for operation in before for n, value in enumerate(operation.results)
    )
