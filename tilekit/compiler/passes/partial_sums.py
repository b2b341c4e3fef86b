"""Sums round loops by parts: each thread adds up what it holds of a row of a product, and the parts are added behind the loops.

`total = total * s + tk.sum(x, 1)` would add up elements of several threads in each turn. The parts of a row are those of its
columns `8 * n + 2 * p` and `8 * n + 2 * p + 1`, for `p` from 0 to 3: what a thread holds of a result of tensor cores.

Legal by the text of `tk.sum` for float32: what is added up round a loop may be added up in another order. The sum begins with
a number, of which each part has its share; `s` has one number for each row, and `x` is made of a product, element by element.
From one such step to the next, in the same region, round a loop, in one loop behind the other, nothing else reads the sum; what
reads it first gets the parts added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.constants import number_in
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import of_products
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.lang import calculation, create, reduction

__all__ = ["add_up_by_parts"]

_PARTS, _NEIGHBOURS = 4, 2  # threads that share a row of a product's result, and how many columns beside each other one holds
_LOOPS = ("for", "stream")
_SAID = "each thread adds up its own part of a row; the parts are added behind the loop"


def add_up_by_parts(kernel: Region) -> None:
    """Let parts of sums be added up round loops over streams, in the place of sums."""
    with sampling():
        for number, steps in list(_Sums(kernel).all()):
            _divide(number, steps)
            for step in steps:
                if isinstance(step, _Addition):
                    remark(step.last.location, "partial sums", _SAID)


class _Addition(NamedTuple):
    """`result = before * factor + tk.sum(tile, 1)`.

    Attributes:
        before, result: the sum.
        tile: what is added up along the rows.
        factor: by what the sum so far is multiplied first, if by anything.
        old: the operations that do it, the last first.
        region: where they are.
    """

    before: Value
    result: Value
    tile: Value
    factor: Value | None
    old: list[Operation]
    region: Region

    @property
    def first(self) -> Operation:
        """The first of its operations."""
        return min(self.old, key=self.region.operations.index)

    @property
    def last(self) -> Operation:
        """The last of its operations."""
        return self.old[0]


class _Round(NamedTuple):
    """A loop that carries a sum round.

    Attributes:
        result: the sum behind it.
        loop: it.
        at: where the sum is among what it carries.
        region: where it is.
    """

    result: Value
    loop: Operation
    at: int
    region: Region

    @property
    def first(self) -> Operation:
        """Its first operation."""
        return self.loop

    @property
    def last(self) -> Operation:
        """Its last operation."""
        return self.loop


_Step = _Addition | _Round


class _Sums:
    def __init__(self, kernel: Region) -> None:
        self._kernel, self._defined, self._products = kernel, definitions(kernel), of_products(kernel)
        self._readers: dict[Value, list[Operation | Region]] = {}
        for region in kernel.regions():
            for operation in region.operations:
                for value in operation.reads():
                    self._readers.setdefault(value, []).append(operation)
            for value in (value for operand in region.operands for value in values_of(operand)):
                self._readers.setdefault(value, []).append(region)

    def all(self) -> Iterator[tuple[float, list[_Step]]]:
        """What each sum begins with that goes round a loop over streams, and its steps; those of a loop's turn ahead of it."""
        for region in self._kernel.regions():
            for operation in region.operations:
                begins = operation.initial if operation.kind in _LOOPS else operation.operands
                for at, first in enumerate(begins):
                    number = number_in(first, self._defined)
                    if isinstance(first, Value) and number is not None and math.isfinite(number):
                        steps = self._from(first, operation, region, at)
                        if any(isinstance(step, _Round) and step.loop.kind == "stream" for step in steps):
                            yield number, steps

    def _from(self, before: Value, reader: Operation | Region | None, region: Region, at: int | None = None) -> list[_Step]:
        """The steps that follow each other in a region, from who reads the sum on: as number `at` of what a loop carries."""
        steps: list[_Step] = []
        while isinstance(reader, Operation) and reader in region.operations:
            if reader.kind in _LOOPS:
                following = self._round(reader, reader.initial.index(before) if at is None else at, region)
            else:
                following = self._addition(before, reader, region)
            if not following:
                break
            steps += following
            before, at = steps[-1].result, None
            reader = self._only_reader(before)
        return steps

    def _only_reader(self, value: Value) -> Operation | Region | None:
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def _round(self, loop: Operation, at: int, region: Region) -> list[_Step]:
        """The steps of a turn, and the loop that carries the sum round; none if it does anything else with it."""
        (body,) = loop.regions
        steps = [] if loop.leaves_early() else self._from(loop.carried[at], self._only_reader(loop.carried[at]), body)
        if not steps or steps[-1].result is not body.operands[at] or self._only_reader(steps[-1].result) is not body:
            return []
        return [*steps, _Round(loop.results[at], loop, at, region)]

    def _addition(self, before: Value, reader: Operation, region: Region) -> list[_Step]:
        """The step that begins with an operation, if there is one."""
        factor: Value | None = None
        so_far, scaled = before, list[Operation]()
        if (reader.kind, reader.what) == ("binary", "*"):
            by, added = next((x for x in reader.operands if x is not before), None), self._only_reader(reader.results[0])
            if not isinstance(by, Value) or by.type != before.type or not isinstance(added, Operation):
                return []
            factor = by
            so_far, scaled, reader = reader.results[0], [reader], added
        if (reader.kind, reader.what) != ("binary", "+") or reader not in region.operations:
            return []
        other = next((x for x in reader.operands if x is not so_far), None)
        summed = self._defined.get(other) if isinstance(other, Value) and self._only_reader(other) is reader else None
        tile = None if summed is None or summed not in region.operations else self._summed(summed, before)
        if summed is None or tile is None:
            return []
        return [_Addition(before, reader.results[0], tile, factor, [reader, summed, *scaled], region)]

    def _summed(self, operation: Operation, total: Value) -> Value | None:
        """The matrix whose rows an operation adds up."""
        known = operation.keywords.keys() <= {"keepdims", "axis"}
        if operation.kind != "call" or operation.what.value is not reduction.sum_ or not known:
            return None
        axis = [*operation.operands[1:], *(operation.keywords[name] for name in ("axis",) if name in operation.keywords)]
        tile = operation.operands[0]
        if axis not in ([Constant(1)], [Constant(-1)]) or not isinstance(tile, Value) or not isinstance(tile.type, TileType):
            return None
        shape = tile.type.shape
        rows = operation.results[0].type == total.type and tile.type.dtype == dtypes.float32 and len(shape) == 2
        return tile if rows and shape[1] % (_PARTS * _NEIGHBOURS) == 0 and tile in self._products else None


def _divide(number: float, steps: list[_Step]) -> None:
    """Put parts in the place of a sum that begins with a number; what reads it behind the last step gets them added up."""
    final = steps[-1]
    begins = next(step for step in steps if step.region is final.region)
    tile = next(step.tile.type for step in steps if isinstance(step, _Addition))
    assert isinstance(tile, TileType) and isinstance(final.result.type, TileType), "tiles"
    kind = TileType(tile.dtype, (tile.shape[0], 1, _PARTS, 1))
    parts = {step.loop.carried[step.at]: Value(step.result.name, kind) for step in steps if isinstance(step, _Round)}

    start = Insertion(begins.first.location)
    first = begins.loop.initial[begins.at] if isinstance(begins, _Round) else begins.before
    assert isinstance(first, Value), "a tile"
    shape, dtype = Group(tuple(map(Constant, kind.shape))), Constant(kind.dtype, "float32")
    share = [Constant(number / _PARTS)] if number else []
    parts[first] = start.call(create.full if number else create.zeros, shape, *share, dtype)
    _insert(begins.region, begins.region.operations.index(begins.first), start)
    for step in steps:
        if isinstance(step, _Addition):
            parts[step.result] = _add(step, parts[step.before])
        else:
            _carry(step, parts)

    behind = Insertion(final.last.location)
    sums = behind.call(reduction.sum_, parts[final.result], Constant(2))
    behind.emit("method", [sums, Group(tuple(map(Constant, final.result.type.shape)))], "reshape")
    behind.operations[-1].results = [final.result]
    made = next(at for at, each in enumerate(final.region.operations) if parts[final.result] in each.results)
    _insert(final.region, made + 1, behind)


def _insert(region: Region, at: int, new: Insertion) -> None:
    region.operations[at:at] = new.operations


def _add(step: _Addition, before: Value) -> Value:
    """Add to parts what a step adds to the sum: the parts behind it."""
    assert isinstance(step.tile.type, TileType), "a tile"
    rows, columns = step.tile.type.shape
    new = Insertion(step.last.location)
    shape = Group(tuple(map(Constant, (rows, columns // (_PARTS * _NEIGHBOURS), _PARTS, _NEIGHBOURS))))
    cut = new.emit("method", [step.tile, shape], "reshape")
    own = new.call(reduction.sum_, cut, Group((Constant(1), Constant(3))), keepdims=Constant(True))
    if step.factor is None:
        after = new.emit("binary", [before, own], "+")
    else:
        each = new.emit("method", [step.factor, Group(tuple(map(Constant, (rows, 1, 1, 1))))], "reshape")
        after = new.call(calculation.fma, before, each, own)
    _insert(step.region, step.region.operations.index(step.last), new)
    step.region.operations = [operation for operation in step.region.operations if operation not in step.old]
    return after


def _carry(step: _Round, parts: dict[Value, Value]) -> None:
    """Let a loop carry parts round in the place of the sum."""
    loop, at = step.loop, step.at
    (body,), before = loop.regions, loop.carried[at]
    begins = len(loop.operands) - len(loop.results) + at
    zeros, after = loop.operands[begins], body.operands[at]
    assert isinstance(zeros, Value) and isinstance(after, Value), "tiles"
    loop.operands[begins], body.operands[at] = parts[zeros], parts[after]
    body.parameters[body.parameters.index(before)] = parts[before]
    loop.results[at] = parts[step.result] = Value(step.result.name, parts[before].type)
