"""Tiles that the text itself loads a turn ahead are loaded in their turn: to load ahead is left to the rings.

    ta = tk.load(a, (i, 0), shape)                         for k in range(n):
    for k in range(n):                                         ta = tk.load(a, (i, k), shape)
        following = ta                                         ...
        if k + 1 < n:
            following = tk.load(a, (i, k + 1), shape)
        ...
        ta = following

Legal where the tensor is only read, nothing ends a turn early, and the loads are one: the index of a turn's is that of the first
load, and then of the one in the turn before. A condition is that there is a next turn, and then nothing behind the loop reads the
tile; else the last one is loaded there. It is for tiles that products multiply: of others a turn's would come late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilekit.compiler.ir.affine import Affine, affine, condition_of, materialized
from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, leaves, rebuilt, values_of
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.types import TensorType, TileType, sampling
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.factors import is_view
from tilekit.lang import calculation, memory

__all__ = ["Known", "load_in_turns"]


def load_in_turns(kernel: Region) -> None:
    """Let loops of a kernel load such tiles where they read them."""
    with sampling():
        known = Known(kernel)
        new: dict[Value, Operand] = {}
        for region in list(kernel.regions()):
            operations: list[Operation] = []
            for operation in region.operations:
                behind = _in_turns(operation, known, new) if operation.kind == "for" else []
                operations += [operation, *behind]
            region.operations = operations
        kernel.replace(new)
    if new:  # or what is left of their loads would read the tiles, too
        eliminate_dead_code(kernel)


class Known:
    """What makes each value of a kernel, and which numbers are the same."""

    def __init__(self, kernel: Region) -> None:
        self.definitions, self._same = definitions(kernel), dict[Value, Value]()
        self._handed_on = {v for region in kernel.regions() for operand in region.operands for v in values_of(operand)}
        self._readers: dict[Value, list[Operation]] = {}
        for operation in kernel.walk():
            for value in operation.reads():
                self._readers.setdefault(value, []).append(operation)
        firsts: dict[Any, Value] = {}
        for operation in kernel.walk():
            if operation.kind in ("call", "attribute") and not effects(operation) and not operation.regions:
                operands = tuple(self._same.get(x, x) if isinstance(x, Value) else x for x in operation.operands)
                for at, result in enumerate(operation.results):
                    key = operation.kind, operation.what, operands, tuple(operation.keywords.items()), at
                    self._same[result] = firsts.setdefault(key, result)

    def sum_of(self, operand: Operand) -> Affine | None:
        """An int as a sum of multiples of others, of those that are the same the first."""
        sum_ = affine(operand, self.definitions)
        return None if sum_ is None else self.same(sum_)

    def same(self, sum_: Affine) -> Affine:
        """A sum of the first of those that are the same."""
        total = Affine({}, sum_.constant)
        for value, factor in sum_.terms.items():
            total = total.plus(Affine({self._same.get(value, value): factor}, 0))
        return total

    def is_read(self, value: Value) -> bool:
        """Whether anybody reads it."""
        return value in self._readers or value in self._handed_on

    def is_multiplied(self, value: Value) -> bool:
        """Whether products have a tile, or what is made of its elements, for an operand."""
        return any(
            is_product(reader) or ((is_view(reader) or is_elementwise(reader)) and self.is_multiplied(reader.results[0]))
            for reader in self._readers.get(value, ())
        )

    def load(self, operand: Operand) -> Operation | None:
        """The load of a tile, without options, of a tensor that is only read; None if it is none."""
        load = self.definitions.get(operand) if isinstance(operand, Value) else None
        if load is None or load.kind != "call" or load.what.value is not memory.load or load.keywords or len(load.operands) != 3:
            return None
        tensor = load.operands[0]
        read = isinstance(tensor, Value) and isinstance(tensor.type, TensorType) and tensor.type.facts.role == "in"
        return load if read and isinstance(load.results[0].type, TileType) else None


def _in_turns(loop: Operation, known: Known, new: dict[Value, Operand]) -> list[Operation]:
    """Load the tiles of a loop in their turns; what is to be loaded behind it."""
    (body,) = loop.regions
    start, stop, step = loop.operands[:3]
    first, last, counter = known.sum_of(start), known.sum_of(stop), body.parameters[0]
    origin = affine(start, known.definitions)
    if step != Constant(1) or list(loop.ends()) != loop.regions or first is None or last is None or origin is None:
        return []
    inside, behind = Insertion(loop.location), Insertion(loop.location)
    for value in list(loop.carried):
        at = loop.carried.index(value)
        begins = known.load(loop.initial[at])
        ahead = _load_ahead(body.operands[at], body, _next_turn(counter, stop, last, known), known)
        factors = None if begins is None or ahead is None else _motion(begins, ahead, counter, first, known)
        if begins is None or ahead is None or factors is None or not known.is_multiplied(value):
            continue
        if ahead not in body.operations and known.is_read(loop.results[at]):
            continue
        ends = behind.call(max, start, stop)
        for place, turn, read in ((inside, counter, value), (behind, ends, loop.results[at])):
            parts: list[Operand] = []
            for part, factor in zip(leaves(begins.operands[1]), factors, strict=True):
                sum_ = affine(part, known.definitions)
                assert sum_ is not None, "ints"
                moved = sum_.plus(Affine({turn: 1}, 0).plus(origin, -1), factor)
                operations, operand = materialized(moved, loop.location)
                place.add(operations)
                parts.append(operand)
            tile = Value(read.name, read.type)
            operands = [begins.operands[0], rebuilt(begins.operands[1], parts), begins.operands[2]]
            place.add([replace(begins, operands=operands, results=[tile])])
            new[read] = tile
        body.parameters.remove(value)
        body.operands = body.operands[:at] + body.operands[at + 1 :]
        loop.operands = [operand for n, operand in enumerate(loop.operands) if n != 3 + at]
        loop.results = loop.results[:at] + loop.results[at + 1 :]
    body.operations[:0] = inside.operations
    return behind.operations


def _next_turn(counter: Value, stop: Operand, last: Affine, known: Known) -> list[Affine]:
    """Sums that are below 0 where there is a next turn: of the counter, or of a multiple if it goes to `tk.cdiv(n, step)`."""
    sums = [Affine({counter: 1}, 1).plus(last, -1)]
    made = known.definitions.get(stop) if isinstance(stop, Value) else None
    if (
        made is not None
        and made.kind == "call"
        and made.what.value is calculation.cdiv
        and isinstance(made.operands[1], Constant)
    ):
        step, extent = made.operands[1].value, known.sum_of(made.operands[0])
        if type(step) is int and step > 0 and extent is not None:
            sums.append(Affine({counter: step}, step).plus(extent, -1))
    return sums


def _load_ahead(operand: Operand, body: Region, more: list[Affine], known: Known) -> Operation | None:
    """The load of a tile that a turn hands on: in each turn, or where there is a next one, one of `more` being below 0."""
    made = known.definitions.get(operand) if isinstance(operand, Value) else None
    if made is None or made not in body.operations or not isinstance(operand, Value):
        return None
    if made.kind != "if":
        return known.load(operand)
    for region, holds in zip(made.regions, (True, False), strict=True):
        load = known.load(region.operands[made.results.index(operand)])
        condition = condition_of(made.operands[0], holds=holds, definitions=known.definitions)
        if load is None or load not in region.operations or condition is None:
            continue
        sum_ = known.same(condition.sum_).plus(Affine({}, -(condition.symbol == "<=")))
        if sum_ in more[: 1 if condition.symbol == "!=" else None] or (condition.symbol == "!=" and sum_.times(-1) == more[0]):
            return load
    return None


def _motion(begins: Operation, ahead: Operation, counter: Value, first: Affine, known: Known) -> list[int] | None:
    """How far a load moves in each turn, along each dimension; None if `begins` is not that of the turn before the first one."""
    if begins.operands[0] is not ahead.operands[0] or begins.operands[2] != ahead.operands[2]:
        return None
    factors = []
    for before, following in zip(leaves(begins.operands[1]), leaves(ahead.operands[1]), strict=True):
        was, is_ = known.sum_of(before), known.sum_of(following)
        if was is None or is_ is None:
            return None
        factor = is_.terms.get(counter, 0)
        if was != is_.without(counter).plus(first, factor).plus(Affine({}, -factor)):
            return None
        factors.append(factor)
    return factors if any(factors) else None
