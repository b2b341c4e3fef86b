"""Sums and maxima round loops by parts: each thread adds up what it holds, and the parts are added behind the loops.

`total = total * s + tk.sum(x, 1)` would add up elements of several threads in each turn, by way of shuffles, and of shared memory
where they are in several warps. A thread's own part needs neither:

    total = tk.zeros((1, 1), tk.float32)              parts = tk.zeros((1, 1, 128, 1), tk.float32)
    for j in range(n):                                for j in range(n):
        total = total + tk.sum(x, 1, keepdims=True)       own = x.reshape((1, 2, 128, 4))
                                                          parts = parts + tk.sum(own, (1, 3), keepdims=True)
                                                      total = tk.sum(parts, 2).reshape((1, 1))

How a tile is cut follows from where its elements lie. Of a product's result, the parts of a row are those of its columns
`8 * n + 2 * p` and `8 * n + 2 * p + 1`, for `p` from 0 to 3: what a thread holds of a result of tensor cores. In kernels without
products, of tiles that are loaded, and of what is made of them element by element, `ir.placement` knows it.

Legal for maxima, minima and sums of integers, and by the text of `tk.sum` for sums of float32 and float64: what is added up round
a loop may be added up in another order. `s` has one number for each result; where there is one, the sum begins with a number, of
which each part has its share. From one such step to the next, in the same region, round a loop, in one loop behind the other,
nothing else reads the sum; what reads it first gets the parts added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.compiler.ir.constants import dtype_constant, number_in
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.placement import layouts_of
from tilekit.compiler.ir.products import is_product, of_products
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.passes.thread_parts import Cut, cut_of, folded, operand_of_axes, operand_of_shape
from tilekit.lang import calculation, create, elementwise, reduction

__all__ = ["PARTS", "add_up_by_parts"]

PARTS = "partial sums"

_PARTS, _NEIGHBOURS = 4, 2  # threads that share a row of a product's result, and how many columns beside each other one holds
_LOOPS = ("for", "each", "stream")
_EXACT = 1 << 53  # less than this a float has each integer
_SAID = "each thread adds up its own part; parts are added where the sum is read"
_CHOSEN = {elementwise.maximum: reduction.max_, elementwise.minimum: reduction.min_}


def add_up_by_parts(kernel: Region) -> int:
    """Let parts of sums be added up round loops, in the place of sums; how many there are."""
    with sampling():
        sums = list(_Sums(kernel).all())
        for start, steps in sums:
            _divide(start, steps)
            for step in steps:
                if isinstance(step, _Addition):
                    remark(step.last.location, PARTS, _SAID)
    return len(sums)


class _Way(NamedTuple):
    """How elements become one: by `+` and `tk.sum`, or by `tk.maximum` and `tk.max`.

    Attributes:
        fold: of a tile.
        both: of two tiles; None for `+`.
        options: of both of these.
    """

    fold: Callable[..., Any]
    both: Callable[..., Any] | None
    options: tuple[tuple[str, Operand], ...]

    def start(self, dtype: dtypes.DType) -> float:
        """What changes nothing."""
        if self.both is None:
            return 0
        if dtypes.is_float(dtype):
            return -math.inf if self.fold is reduction.max_ else math.inf
        limits = np.iinfo(dtype)
        return int(limits.min if self.fold is reduction.max_ else limits.max)

    def joined(self, new: Insertion, first: Value, second: Value) -> Value:
        """An operation that joins two tiles."""
        if self.both is None:
            return new.emit("binary", [first, second], "+")
        return new.call(self.both, first, second, **dict(self.options))


class _Addition(NamedTuple):
    """`result = before * factor + tk.sum(tile, axes)`, or `tk.maximum(before, tk.max(tile, axes))`.

    Attributes:
        before, result: the sum.
        tile: what is added up.
        cut, way: how.
        factor: by what the sum so far is multiplied first, if by anything.
        old: the operations that do it, the last first.
        region: where they are.
    """

    before: Value
    result: Value
    tile: Value
    cut: Cut
    way: _Way
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


class _Start(NamedTuple):
    """What parts begin with.

    Attributes:
        number: each of them.
        rest: what is added to their sum, if anything.
        tile, cut: or what threads have of a tile.
    """

    number: float
    rest: Value | None = None
    tile: Value | None = None
    cut: Cut | None = None


class _Sums:
    def __init__(self, kernel: Region) -> None:
        self._kernel, self._defined, self._products = kernel, definitions(kernel), of_products(kernel)
        multiplies = any(map(is_product, kernel.walk()))
        self._layouts: Mapping[Value, Layout] = {} if multiplies or kernel.config is None else layouts_of(kernel, kernel.config)
        self._readers: dict[Value, list[Operation | Region]] = {}
        for region in kernel.regions():
            for operation in region.operations:
                for value in operation.reads():
                    self._readers.setdefault(value, []).append(operation)
            for value in (value for operand in region.operands for value in values_of(operand)):
                self._readers.setdefault(value, []).append(region)

    def all(self) -> Iterator[tuple[_Start, list[_Step]]]:
        """What each sum begins with that goes round a loop, and its steps; those of a loop's turn ahead of it."""
        met: set[Value] = set()
        for region in self._kernel.regions():
            for operation in region.operations:
                begins = operation.initial if operation.kind in _LOOPS else operation.operands
                for at, first in enumerate(begins):
                    if not isinstance(first, Value) or not isinstance(first.type, TileType):
                        continue
                    steps = self._from(first, operation, region, at)
                    start = None if met.intersection(step.result for step in steps) else self._start(first, steps)
                    if start is not None:
                        met.update(step.result for step in steps)
                        yield start, steps

    def _start(self, first: Value, steps: list[_Step]) -> _Start | None:
        """What the parts of a sum begin with; None if it has none."""
        additions = [step for step in steps if isinstance(step, _Addition)]
        rounds = [step.loop.kind for step in steps if isinstance(step, _Round)]
        if not additions or (self._products and "stream" not in rounds):
            return None
        if len({step.cut.parts for step in additions}) != 1 or len({step.way for step in additions}) != 1:
            return None
        folded_first = self._folded_first(first, _begins(steps), additions[0])
        if folded_first is not None or not rounds:
            return folded_first
        assert isinstance(first.type, TileType), "a tile"
        number, way, dtype = number_in(first, self._defined), additions[0].way, first.type.dtype
        if number is not None and not (number and way.both is None) and (dtypes.is_float(dtype) or abs(number) < _EXACT):
            return _Start(number if dtypes.is_float(dtype) else int(number))
        if number is not None and math.isfinite(number) and dtypes.is_float(dtype):
            return _Start(number / math.prod(additions[0].cut.shape[axis] for axis in additions[0].cut.across))
        return None if any(step.factor for step in additions) else _Start(way.start(dtype), first)

    def _folded_first(self, first: Value, step: _Step, addition: _Addition) -> _Start | None:
        """Parts of a tile, if that is what a sum begins with the sum of."""
        fold = self._defined.get(first)
        reader = step.loop if isinstance(step, _Round) else step.old[-1 if step.factor is not None else 0]
        if self._products or fold is None or _way_of(fold) != addition.way or self._only_reader(first) is not reader:
            return None
        tile, cut = self._folded(fold, first)
        return None if tile is None or cut is None or cut.parts != addition.cut.parts else _Start(0, None, tile, cut)

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
        other = next((x for x in reader.operands if x is not so_far), None)
        fold = self._defined.get(other) if isinstance(other, Value) and self._only_reader(other) is reader else None
        if fold is None or fold not in region.operations or reader not in region.operations:
            return []
        way = _way(reader, fold)
        if way is None or (factor is not None and way.both is not None):
            return []
        tile, cut = self._folded(fold, before)
        if tile is None or cut is None:
            return []
        return [_Addition(before, reader.results[0], tile, cut, way, factor, [reader, fold, *scaled], region)]

    def _folded(self, operation: Operation, total: Value) -> tuple[Value | None, Cut | None]:
        """The tile that an operation folds, and how it is cut."""
        of = folded(operation)
        if of is None or operation.results[0].type != total.type:
            return None, None
        tile, axes = of
        assert isinstance(tile.type, TileType), "a fold is of a tile"
        shape = tile.type.shape
        if tile in self._products:
            divisible = len(shape) == 2 and axes == (1,) and shape[1] % (_PARTS * _NEIGHBOURS) == 0
            cut = Cut((shape[0], shape[1] // (_PARTS * _NEIGHBOURS), _PARTS, _NEIGHBOURS), (1, 3), (2,))
            return tile, cut if divisible and tile.type.dtype == dtypes.float32 else None
        return tile, cut_of(self._layouts[tile], axes) if tile in self._layouts else None


def _begins(steps: list[_Step]) -> _Step:
    """The first of the steps that follow each other where the last one is."""
    return next(step for step in steps if step.region is steps[-1].region)


def _way(both: Operation, fold: Operation) -> _Way | None:
    """How an operation adds to a sum what another has folded, if it does."""
    way = _way_of(fold)
    if way is None or way.both is None:
        return way if (both.kind, both.what) == ("binary", "+") else None
    merging = both.what.value if both.kind == "call" and isinstance(both.what, Constant) else None
    return way if merging is way.both and both.keywords == dict(way.options) else None


def _way_of(fold: Operation) -> _Way | None:
    """How parts of what an operation folds become one; None if it is none of these folds."""
    function = fold.what.value if fold.kind == "call" and isinstance(fold.what, Constant) else None
    result = fold.results[0].type if fold.results else None
    if function is reduction.sum_ and isinstance(result, TileType):
        reordered = not dtypes.is_float(result.dtype) or result.dtype.itemsize >= 4
        return _Way(reduction.sum_, None, ()) if reordered else None
    both = next((both for both, chosen in _CHOSEN.items() if chosen is function), None)
    options = tuple((name, option) for name, option in fold.keywords.items() if name not in ("axis", "keepdims"))
    return None if both is None or function is None else _Way(function, both, options)


def _divide(start: _Start, steps: list[_Step]) -> None:
    """Put parts in the place of a sum; what reads it behind the last step gets them added up."""
    final = steps[-1]
    begins = _begins(steps)
    addition = next(step for step in steps if isinstance(step, _Addition))
    cut, way, result = addition.cut, addition.way, final.result
    assert isinstance(result.type, TileType), "a tile"
    kind = TileType(result.type.dtype, cut.parts)
    parts = {step.loop.carried[step.at]: Value(step.result.name, kind) for step in steps if isinstance(step, _Round)}

    before = Insertion(begins.first.location)
    first = begins.loop.initial[begins.at] if isinstance(begins, _Round) else begins.before
    assert isinstance(first, Value), "a tile"
    share = [Constant(start.number)] if start.number else []
    if start.tile is not None and start.cut is not None:
        parts[first] = _own(before, start.tile, start.cut, way)
    else:
        filled = create.full if share else create.zeros
        parts[first] = before.call(filled, operand_of_shape(cut.parts), *share, dtype_constant(kind.dtype))
    _insert(begins.region, begins.region.operations.index(begins.first), before)
    for step in steps:
        if isinstance(step, _Addition):
            parts[step.result] = _add(step, parts[step.before])
        else:
            _carry(step, parts)

    behind = Insertion(final.last.location)
    whole = behind.call(way.fold, parts[result], operand_of_axes(cut.across), **dict(way.options))
    whole = behind.emit("method", [whole, operand_of_shape(result.type.shape)], "reshape")
    if start.rest is not None:
        whole = way.joined(behind, start.rest, whole)
    behind.operations[-1].results = [result]
    made = next(at for at, each in enumerate(final.region.operations) if parts[result] in each.results)
    _insert(final.region, made + 1, behind)


def _insert(region: Region, at: int, new: Insertion) -> None:
    region.operations[at:at] = new.operations


def _own(new: Insertion, tile: Value, cut: Cut, way: _Way) -> Value:
    """What each thread folds of a tile by itself."""
    own = new.emit("method", [tile, operand_of_shape(cut.shape)], "reshape")
    return new.call(way.fold, own, operand_of_axes(cut.own), keepdims=Constant(True), **dict(way.options))


def _add(step: _Addition, before: Value) -> Value:
    """Add to parts what a step adds to the sum: the parts behind it."""
    new, cut, way = Insertion(step.last.location), step.cut, step.way
    own = _own(new, step.tile, cut, way)
    if step.factor is None:
        after = way.joined(new, before, own)
    else:
        each = new.emit("method", [step.factor, operand_of_shape(cut.results)], "reshape")
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
