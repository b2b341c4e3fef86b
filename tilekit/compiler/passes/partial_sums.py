"""Sums round a loop by parts: each thread adds up what it holds of a row of a product, and the parts are added behind the loop.

`total = total * s + tk.sum(x, 1)` would add up elements of several threads in each turn. The parts of a row are those of its
columns `8 * n + 2 * p` and `8 * n + 2 * p + 1`, for `p` from 0 to 3: what a thread holds of a result of tensor cores.

Legal by the text of `tk.sum` for float32: what is added up round a loop may be added up in another order. The sum begins with
zeros, nothing reads it in the loop but itself, `s` has one number for each row, and `x` is made of a product, element by element.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tilekit import dtypes
from tilekit.compiler.ir.constants import is_zeros
from tilekit.compiler.ir.elementwise import is_elementwise
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import TileType, sampling
from tilekit.lang import calculation, create, reduction

__all__ = ["add_up_by_parts"]

_PARTS, _NEIGHBOURS = 4, 2  # threads that share a row of a product's result, and how many columns beside each other one holds


def add_up_by_parts(kernel: Region) -> None:
    """Carry parts of sums round loops over streams, in the place of sums."""
    with sampling():
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind == "stream"]:
                for at in range(len(loop.results)):
                    total = _Sums(kernel).total(loop, at)
                    if total is not None:
                        _divide(loop, at, total, region)
                        said = "each thread adds up its own part of a row; the parts are added behind the loop"
                        remark(total.old[0].location, "partial sums", said)


class _Total(NamedTuple):
    """A sum round a loop.

    Attributes:
        tile: what is added up along the rows.
        factor: by what the sum so far is multiplied first, if by anything.
        old: the operations that make the next sum.
    """

    tile: Value
    factor: Value | None
    old: list[Operation]


class _Sums:
    def __init__(self, kernel: Region) -> None:
        self.defined = definitions(kernel)
        self.reads = Counter(value for operation in kernel.walk() for value in operation.reads())
        self.reads.update(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))

    def total(self, loop: Operation, at: int) -> _Total | None:
        """What a loop hands on, if that is such a sum."""
        (body,) = loop.regions
        before, after, initial = loop.carried[at], body.operands[at], loop.initial[at]
        if not isinstance(after, Value) or not is_zeros(initial, self.defined) or {self.reads[before], self.reads[after]} != {1}:
            return None
        added = self.defined.get(after)
        if added is None or added not in body.operations or (added.kind, added.what) != ("binary", "+"):
            return None
        for first, second in (added.operands, added.operands[::-1]):
            if not isinstance(second, Value) or self.reads[second] != 1:
                continue
            summed = self.defined.get(second)
            tile = None if summed is None or summed not in body.operations else self.summed(summed, before)
            if summed is None or tile is None:
                continue
            if first is before:
                return _Total(tile, None, [added, summed])
            scaled = self.defined.get(first) if isinstance(first, Value) and self.reads[first] == 1 else None
            if scaled is None or (scaled.kind, scaled.what) != ("binary", "*") or before not in scaled.operands:
                continue
            factor = next((x for x in scaled.operands if x is not before), None)
            if isinstance(factor, Value) and factor.type == before.type:
                return _Total(tile, factor, [added, summed, scaled])
        return None

    def summed(self, operation: Operation, total: Value) -> Value | None:
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
        return tile if rows and shape[1] % (_PARTS * _NEIGHBOURS) == 0 and self.is_of_product(tile, 30) else None

    def is_of_product(self, tile: Operand, depth: int) -> bool:
        """Whether its elements lie as those of a product's result do."""
        operation = self.defined.get(tile) if isinstance(tile, Value) else None
        if operation is None or not isinstance(tile, Value) or not depth:
            return False
        if accumulates(operation):
            return True
        like = [x for x in operation.reads() if isinstance(x.type, TileType) and x.type == tile.type]
        return is_elementwise(operation) and any(self.is_of_product(x, depth - 1) for x in like)


def _divide(loop: Operation, at: int, total: _Total, region: Region) -> None:
    (body,) = loop.regions
    before, old = loop.carried[at], loop.results[at]
    assert isinstance(total.tile.type, TileType), "a tile"
    rows, columns = total.tile.type.shape
    parts = TileType(total.tile.type.dtype, (rows, 1, _PARTS, 1))

    new = Insertion(total.old[0].location)
    shape = Group(tuple(map(Constant, (rows, columns // (_PARTS * _NEIGHBOURS), _PARTS, _NEIGHBOURS))))
    cut = new.emit("method", [total.tile, shape], "reshape")
    own = new.call(reduction.sum_, cut, Group((Constant(1), Constant(3))), keepdims=Constant(True))
    carried = Value(before.name, parts)
    if total.factor is None:
        following = new.emit("binary", [carried, own], "+")
    else:
        each = new.emit("method", [total.factor, Group(tuple(map(Constant, (rows, 1, 1, 1))))], "reshape")
        following = new.call(calculation.fma, carried, each, own)
    position = body.operations.index(total.old[0])
    body.operations[position : position + 1] = new.operations
    body.operations = [operation for operation in body.operations if operation not in total.old]
    body.parameters[body.parameters.index(before)], body.operands[at] = carried, following

    zeros = Insertion(loop.location)
    start = zeros.call(create.zeros, Group(tuple(map(Constant, parts.shape))), Constant(parts.dtype, "float32"))
    loop.operands[len(loop.operands) - len(loop.results) + at] = start
    loop.results[at] = result = Value(old.name, parts)
    behind = Insertion(loop.location)
    sums = behind.call(reduction.sum_, result, Constant(2))
    assert isinstance(old.type, TileType), "a tile"
    behind.emit("method", [sums, Group(tuple(map(Constant, old.type.shape)))], "reshape")
    behind.operations[-1].results = [old]
    here = region.operations.index(loop)
    region.operations[here : here + 1] = [*zeros.operations, loop, *behind.operations]
