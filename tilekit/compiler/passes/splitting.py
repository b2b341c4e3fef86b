"""Splitting of loops over streams by a mask: turns in which it holds for the whole tile go without it.

`tk.where(mask, x, y)` of an `x` that is large, where the mask is a comparison of what is affine in the number of the turn, in
numbers that do not change, and in coordinates (`tk.arange`), or several such with `&`: that the worst of the tile's elements
is inside is a condition on numbers, which holds up to some turn, or from some turn on. The loop becomes two or three: without the
mask between these turns, and with it before and behind them.

Legal for any such loop that nothing leaves early: each turn does what it did. A mask whose bound depends on what turns hand on
stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Section, Value, copied, definitions
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.compiler.passes.rows import Row, rows_of
from tilekit.lang import create, elementwise

__all__ = ["split_by_masks"]

_LARGE = 64 * 64  # elements of a tile: of fewer a mask costs less than more code
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
        self.loop, self.defined = loop, defined
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
        masked = [(operation, self.bounds(operation)) for operation in self.body.operations if _is_masked(operation)]
        masked = [(operation, bounds) for operation, bounds in masked if bounds]
        if not masked:
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
        remark(self.loop.location, "splitting", "turns in which a mask holds for the whole tile go without it")

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
        differences = self.conditions(operation.operands[0])
        bounds = []
        for sum_, coordinates in differences or ():
            worst = sum(factor * (extent - 1) for (_, extent), factor in coordinates.items() if factor > 0)
            changing = [value for value in sum_.terms if value in self.inside]
            if len(changing) != 1 or changing[0] not in self.counters:
                return []
            (counter,) = changing
            factor = sum_.terms[counter]
            if affine(self.counters[counter], self.defined) is None:
                return []
            rest = sum_.without(counter)
            bounds.append(_Bound(counter, factor, Affine(rest.terms, rest.constant + worst)))
        return bounds

    def conditions(self, mask: Operand) -> list[tuple[Affine, Mapping[tuple[int, int], int]]] | None:
        """A mask as sums that are at most 0 where it holds, all of them."""
        operation = self.defined.get(mask) if isinstance(mask, Value) else None
        if operation is None:
            return None
        if (operation.kind, operation.what) == ("binary", "&"):
            first, second = map(self.conditions, operation.operands)
            return None if first is None or second is None else first + second
        if operation.kind != "compare" or operation.what not in ("<", "<=", ">", ">="):
            return None
        low, high = operation.operands if operation.what in ("<", "<=") else operation.operands[::-1]
        below, above = self.sum(low), self.sum(high)
        if below is None or above is None:
            return None
        (left, near), (right, far) = below, above
        coordinates = dict(near)
        for dimension, factor in far.items():
            coordinates[dimension] = coordinates.get(dimension, 0) - factor
        difference = left.plus(right, -1)
        strict = int(operation.what in ("<", ">"))
        return [(Affine(difference.terms, difference.constant + strict), coordinates)]

    def sum(self, operand: Operand) -> tuple[Affine, dict[tuple[int, int], int]] | None:
        """An int, or a tile of ints, as numbers and coordinates: by the dimension, counted from the last, and its extent."""
        number = affine(operand, self.defined)
        if number is not None:
            return number, {}
        operation = self.defined.get(operand) if isinstance(operand, Value) else None
        if operation is None or not isinstance(operand, Value) or not isinstance(operand.type, TileType):
            return None
        if operation.kind == "call" and operation.what.value is create.arange and len(operation.operands) == 1:
            return Affine({}, 0), {(-1, operand.type.shape[0]): 1}
        if operation.kind == "item":
            return self.expanded(operation)
        if operation.kind == "binary" and operation.what in ("+", "-"):
            first, second = (self.sum(part) for part in operation.operands)
            if first is None or second is None:
                return None
            sign = 1 if operation.what == "+" else -1
            coordinates = dict(first[1])
            for dimension, factor in second[1].items():
                coordinates[dimension] = coordinates.get(dimension, 0) + sign * factor
            return first[0].plus(second[0], sign), coordinates
        return None

    def expanded(self, operation: Operation) -> tuple[Affine, dict[tuple[int, int], int]] | None:
        """What an index with `None` makes of a vector of such ints."""
        inner = self.sum(operation.operands[0])
        index = operation.operands[1].parts if isinstance(operation.operands[1], Group) else (operation.operands[1],)
        whole = Section(Constant(None), Constant(None), Constant(None))
        one = sum(part == whole for part in index) == 1 and all(part in (whole, Constant(None)) for part in index)
        if inner is None or not one:
            return None
        dim = index.index(whole) - len(index)
        return inner[0], {(dim, extent): factor for (_, extent), factor in inner[1].items()}


def _at(turn: Operand, rows: list[Row], new: Insertion) -> list[Operand]:
    """Which tile of each row comes in a turn."""
    return [turn if row.start == Constant(0) else new.emit("binary", [row.start, turn], "+") for row in rows]


def _is_masked(operation: Operation) -> bool:
    if operation.kind != "call" or operation.what.value is not elementwise.where or operation.keywords:
        return False
    result = operation.results[0].type
    like = isinstance(operation.operands[1], Value) and operation.operands[1].type == result
    return like and isinstance(result, TileType) and math.prod(result.shape) >= _LARGE
