"""Softmax round loops by parts: each thread goes by the largest element that it has met itself.

A sum of exponentials below a maximum that grows needs the maximum of all threads in each turn. Below the largest of a thread's
own elements it needs none but behind the loop:

    for j in range(n):                                         for j in range(n):
        higher = tk.maximum(top, tk.max(t, 1))                     higher = tk.maximum(top, <of its part of t>)
        p = tk.exp(t - higher)                                     p = tk.exp(<its part of t> - higher)
        total = total * tk.exp(top - higher) + tk.sum(p, 1)        total = total * tk.exp(top - higher) + <of its part of p>
        top = higher                                               top = higher
                                                               peak = tk.max(top, 1)
                                                               total = tk.sum(total * tk.exp(top - peak), 1)

Legal by the text of `tk.exp` in kernels without products, where nothing else in the turn reads the maximum, and each sum that
goes round is multiplied by how much the maximum has grown, and is added what is below it. Where the maximum begins with -inf,
what is below it is below a number: a thread may have met nothing but -inf where others have met more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.compiler.ir.constants import dtype_constant, number_in
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.placement import layouts_of
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TileType, sampling
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.passes.thread_parts import cut_of, folded, operand_of_axes, operand_of_shape
from tilekit.lang import create, elementwise, exponential, reduction, shape

__all__ = ["take_own_maxima"]

_LOOPS = ("for", "each", "stream")
_EXPONENTIALS = (exponential.exp, exponential.exp2)
_SAID = "each thread goes by the largest element of its own; maxima and sums meet behind the loop"


def take_own_maxima(kernel: Region) -> int:
    """Rewrite such loops of a kernel for whose blocks it is known where elements lie; how many there are."""
    if kernel.config is None or any(map(is_product, kernel.walk())):
        return 0
    defined, layouts, count = definitions(kernel), layouts_of(kernel, kernel.config), 0
    with sampling():
        for region in list(kernel.regions()):
            loops = [operation for operation in region.operations if operation.kind in _LOOPS and not operation.leaves_early()]
            for loop in loops:
                for at in range(len(loop.results)):
                    softmax = _Softmax(loop, at, defined, layouts)
                    if softmax.is_one():
                        softmax.divide(region)
                        remark(loop.location, "own maxima", _SAID)
                        count += 1
    return count


class _Role(NamedTuple):
    """What a value of a turn is that depends on the maximum.

    Attributes:
        name: `maximum`, so far or with this turn; `below` it, of an element; `grown`, how much; the `power` of one of these; a
            `sum` of powers of elements; what a sum so far is `scaled` to, and what it is `after` this turn.
        base: of powers, and what is made of them: the function, and by what the exponent was multiplied.
        at: of a sum, which of the values that the loop carries it is.
    """

    name: str
    base: tuple[Any, Operand | None] | None = None
    at: int | None = None


_MAXIMUM, _BELOW, _GROWN = "maximum", "below", "grown"


class _Softmax:
    """What a loop carries as its value number `at`, if that is the maximum that sums of exponentials go by."""

    def __init__(self, loop: Operation, at: int, defined: Mapping[Value, Operation], layouts: Mapping[Value, Layout]) -> None:
        self.loop, self.at, self.defined, self.layouts = loop, at, defined, layouts
        (self.body,) = loop.regions
        self.old, self.new, self.first = loop.carried[at], self.body.operands[at], loop.initial[at]
        self.roles: dict[Value, _Role] = {}
        self.sums: dict[int, float] = {}  # by their number, what each begins with

    def is_one(self) -> bool:
        """Whether it is, and all that reads it is known."""
        larger, number = self._call_of(self.new, elementwise.maximum), number_in(self.first, self.defined)
        fold = (
            None
            if larger is None
            else self._call_of(next((x for x in larger.operands if x is not self.old), None), reduction.max_)
        )
        if (
            not isinstance(self.new, Value)
            or larger is None
            or fold is None
            or larger.keywords
            or fold.keywords.keys() - {"axis", "keepdims"}
        ):
            return False
        of, kind = folded(fold), self.old.type
        if of is None or number is None or math.isnan(number) or number == math.inf or kind != fold.results[0].type:
            return False
        (self.tile, self.axes), self.number, self.maximum, self.fold = of, number, larger, fold
        cut = cut_of(self.layouts[self.tile], self.axes) if self.tile in self.layouts else None
        if cut is None or not isinstance(kind, TileType) or not dtypes.is_float(kind.dtype) or kind.dtype.itemsize < 4:
            return False
        self.cut, self.kept = cut, tuple(1 if d in self.axes else n for d, n in enumerate(self._extents(self.tile)))
        self.roles = {self.old: _Role(_MAXIMUM), self.new: _Role(_MAXIMUM)}
        for operation in self.body.operations:
            inner = [value for region in operation.regions for each in region.regions() for value in _read_in(each)]
            if operation is larger or not self.roles.keys() & {*operation.reads(), *inner}:
                continue
            role = None if operation.regions or len(operation.results) != 1 else self._role(operation)
            if role is None:
                return False
            self.roles[operation.results[0]] = role
        return self._ends_well()

    def _call_of(self, value: Operand | None, function: Any) -> Operation | None:
        """The call of a function in this turn that made a value."""
        call = self.defined.get(value) if isinstance(value, Value) else None
        called = call.what.value if call is not None and call.kind == "call" and isinstance(call.what, Constant) else None
        return call if called is function and call in self.body.operations else None

    def _role(self, operation: Operation) -> _Role | None:
        """What an operation makes that reads what depends on the maximum; None if that is not known."""
        roles = [self.roles.get(x) if isinstance(x, Value) else None for x in operation.operands]
        names, (first, *rest) = [role.name if role else "" for role in roles], operation.operands
        small = math.prod(self._extents(operation.results[0])) == math.prod(self.kept)
        if any(value in self.roles for operand in operation.keywords.values() for value in values_of(operand)):
            return None
        if names[0] == _MAXIMUM and (operation.kind == "item" or (operation.kind, operation.what) == ("method", "reshape")):
            return roles[0] if small and not any(names[1:]) else None
        if (operation.kind, operation.what) == ("binary", "-") and self._root(rest[0]) is self.new:
            if names[0] == _MAXIMUM and self._root(first) is self.old and small:
                return _Role(_GROWN)
            along = (1,) * (len(self.kept) - len(self._extents(rest[0]))) + self._extents(rest[0])
            return _Role(_BELOW) if first is self.tile and along == self.kept else None
        return None if _MAXIMUM in names or not any(names) else self._of_powers(operation, roles, names, small)

    def _of_powers(self, operation: Operation, roles: list[_Role | None], names: list[str], small: bool) -> _Role | None:
        """The same, behind the differences."""
        (read, role), *more = [(at, role) for at, role in enumerate(roles) if role is not None]
        called = operation.what.value if operation.kind == "call" and isinstance(operation.what, Constant) else None
        other = operation.operands[1 - read] if len(roles) == 2 else None
        whole = self._extents(operation.results[0]) == self._extents(self.tile)
        if any(called is each for each in _EXPONENTIALS) and role.name in (_BELOW, _GROWN):
            return _Role(f"power {role.name}", (called, role.base and role.base[1]))
        if (operation.kind, operation.what) == ("binary", "*") and not more:
            if role.name in (_BELOW, _GROWN) and role.base is None and self._is_number(other):
                return _Role(role.name, (None, other))
            if role.name == f"power {_GROWN}" and isinstance(other, Value) and other in self.loop.carried and small:
                return _Role("scaled", role.base, self.loop.carried.index(other))
            if role.name == f"power {_BELOW}" and whole:
                return role
        if called is elementwise.where and role.name == f"power {_BELOW}" and names[1:] == [role.name, ""] and whole:
            return role if operation.operands[2] in (Constant(0), Constant(0.0)) else None
        if called is reduction.sum_ and role.name == f"power {_BELOW}" and small:
            return _Role("sum", role.base) if folded(operation) == (operation.operands[0], self.axes) else None
        if (operation.kind, operation.what, sorted(names)) == ("binary", "+", ["scaled", "sum"]) and small:
            bases, at = {each.base for each in roles if each}, next(each.at for each in roles if each and each.name == "scaled")
            return _Role("after", role.base, at) if len(bases) == 1 else None
        return None

    def _is_number(self, operand: Operand | None) -> bool:
        """Whether it is a number that no turn changes."""
        if isinstance(operand, Value):
            here = operand in self.body.parameters or any(operand in each.results for each in self.body.operations)
            return isinstance(operand.type, ScalarType) and not here
        return isinstance(operand, Constant)

    def _root(self, value: Operand) -> Operand:
        """The maximum behind views of it."""
        while isinstance(value, Value) and value not in (self.old, self.new) and self.roles.get(value) == _Role(_MAXIMUM):
            value = self.defined[value].operands[0]
        return value

    def _extents(self, value: Operand) -> tuple[int, ...]:
        """The shape of a tile; of a number that of one element."""
        return value.type.shape if isinstance(value, Value) and isinstance(value.type, TileType) else ()

    def _ends_well(self) -> bool:
        """Whether what depends on the maximum goes round as sums below it, and nothing else does."""
        ends = {at: self.roles[end] for at, end in enumerate(self.body.operands) if isinstance(end, Value) and end in self.roles}
        if ends.pop(self.at, None) is None or not ends or any(role.name != "after" or role.at != at for at, role in ends.items()):
            return False
        readers = [value for operation in self.body.walk() for value in operation.reads()]
        for at in ends:
            number = number_in(self.loop.initial[at], self.defined)
            alone = readers.count(self.loop.carried[at]) == 1 and self.body.operands.count(self.body.operands[at]) == 1
            if number is None or not math.isfinite(number) or not alone or (number and self.number == -math.inf):
                return False
            self.sums[at] = number
        return len({role.base for role in ends.values()}) == 1

    # ------------------------------------------------------------------------------------------------------------ rewriting

    def divide(self, region: Region) -> None:
        """Let threads have maxima and sums of their own; `region` has the loop."""
        loop, body, cut = self.loop, self.body, self.cut
        assert isinstance(self.old.type, TileType), "a tile"
        dtype, ahead = self.old.type.dtype, Insertion(loop.location)
        parts, known = math.prod(cut.shape[axis] for axis in cut.across), dict[Operand, Value]()
        carried, results = (
            {at: loop.carried[at] for at in (self.at, *self.sums)},
            {at: loop.results[at] for at in (self.at, *self.sums)},
        )
        for at, value in carried.items():
            number = self.number if at == self.at else self.sums[at] / parts
            filled = ahead.call(create.full, operand_of_shape(cut.parts), Constant(number), dtype_constant(dtype))
            loop.operands[len(loop.operands) - len(loop.results) + at] = filled
            known[value] = Value(value.name, filled.type)
            body.parameters[body.parameters.index(value)] = known[value]
            loop.results[at] = Value(value.name, filled.type)
        self._turn(known)
        body.operands = [known.get(end, end) for end in body.operands]
        here = region.operations.index(loop)
        region.operations[here + 1 : here + 1] = self._behind(results)
        region.operations[here:here] = ahead.operations

    def _turn(self, known: dict[Operand, Value]) -> None:
        """Calculate what depends on the maximum by parts."""
        body, cut, clamped = self.body, self.cut, dict[Operand, Operand]()
        operations = list[Operation]()
        for operation in body.operations:
            result = operation.results[0] if operation.results else None
            if operation is self.fold or result not in self.roles:
                operations.append(operation)
                continue
            new = Insertion(operation.location)
            if operation is self.maximum:
                own = self._folded(new, reduction.max_, new.emit("method", [self.tile, operand_of_shape(cut.shape)], "reshape"))
                known[self.new] = new.call(elementwise.maximum, known[self.old], own)
                for value in (self.old, self.new) if self.number == -math.inf else ():
                    clamped[known[value]] = new.call(elementwise.maximum, known[value], Constant(_least(self.old)))
            elif self.roles[result].name == _MAXIMUM:
                known[result] = known[self._root(result)]
            elif self.roles[result].name == "sum":
                known[result] = self._folded(new, reduction.sum_, known[operation.operands[0]])
            else:
                read = [self._part(new, operand, known) for operand in operation.operands]
                read = [clamped.get(each, each) for each in read]
                known[result] = new.emit(operation.kind, read, operation.what, **operation.keywords)
            known[result].name = result.name
            operations += new.operations
        body.operations = operations

    def _folded(self, new: Insertion, function: Any, tile: Value) -> Value:
        """What a thread folds by itself."""
        return new.call(function, tile, operand_of_axes(self.cut.own), keepdims=Constant(True))

    def _part(self, new: Insertion, operand: Operand, known: Mapping[Operand, Value]) -> Operand:
        """An operand, cut as the tile is."""
        if operand in known or not isinstance(operand, Value) or not isinstance(operand.type, TileType):
            return known.get(operand, operand)
        if self._extents(operand) != self._extents(self.tile):
            operand = new.call(shape.broadcast_to, operand, operand_of_shape(self._extents(self.tile)))
        return new.emit("method", [operand, operand_of_shape(self.cut.shape)], "reshape")

    def _behind(self, results: Mapping[int, Value]) -> list[Operation]:
        """The maximum and the sums of all threads."""
        loop, cut, new = self.loop, self.cut, Insertion(self.loop.location)
        own = loop.results[self.at]
        peak = new.call(reduction.max_, own, operand_of_axes(cut.across), keepdims=Constant(True))
        if self.number == -math.inf:
            own = new.call(elementwise.maximum, own, Constant(_least(self.old)))
        self._named(new, peak, results[self.at])
        grown = new.emit("binary", [own, peak], "-")
        ((function, factor),) = {role.base for role in self.roles.values() if role.name == "after" and role.base}
        if factor is not None:
            grown = new.emit("binary", [grown, factor], "*")
        scale = new.call(function, grown)
        for at in self.sums:
            total = new.emit("binary", [loop.results[at], scale], "*")
            self._named(new, new.call(reduction.sum_, total, operand_of_axes(cut.across)), results[at])
        return new.operations

    def _named(self, new: Insertion, value: Value, result: Value) -> None:
        """Give a value the shape of a result of the loop, and let it be that."""
        assert isinstance(result.type, TileType), "a tile"
        new.emit("method", [value, operand_of_shape(result.type.shape)], "reshape")
        new.operations[-1].results = [result]


def _least(value: Value) -> float:
    assert isinstance(value.type, TileType), "a tile"
    return float(np.finfo(value.type.dtype).min)


def _read_in(region: Region) -> list[Value]:
    """What a region reads, without those in it."""
    ends = (value for operand in region.operands for value in values_of(operand))
    return [*(value for operation in region.operations for value in operation.reads()), *ends]
