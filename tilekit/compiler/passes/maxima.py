"""Maxima in powers of two: what a loop carries as the largest score so far is carried times log2(e), as exponentials want it.

Behind `fuse_exponentials` a turn multiplies its maximum twice: by the scale of the scores, and by log2(e) for `tk.exp2`; and by
how much the maximum has grown once more. In a loop with `new = tk.maximum(old, x * c)`, which hands `new` on to the next turn as
`old`, there is `new2 = tk.maximum(old2, x * (c * log2(e)))` beside it: `new * log2(e)` becomes `new2`, and
`(old - new) * log2(e)` becomes `old2 - new2`. What nobody reads any more is dead code.

Legal by the text of `tk.exp` for float32: all that a row's maximum is subtracted from is as far off. The first maximum is a
constant that has room for the factor: rows without a score stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilekit import dtypes
from tilekit.compiler.ir.constants import number_in
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Group, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.remarks import remark
from tilekit.compiler.ir.types import ScalarType, TileType, sampling
from tilekit.lang import create, elementwise

__all__ = ["carry_scaled_maxima"]

_FACTOR = math.log2(math.e)
_MOST = 2.0**126  # which has room for the factor


def carry_scaled_maxima(kernel: Region) -> None:
    """Rewrite such loops of a kernel."""
    defined = definitions(kernel)
    scaled: dict[Value, Value] = {}
    with sampling():
        for region in list(kernel.regions()):
            for loop in [operation for operation in region.operations if operation.kind in ("stream", "for")]:
                for at in range(len(loop.results)):
                    _Maximum(loop, at, defined, scaled).carry(region)


class _Maximum:
    """What a loop carries as its value number `at`, if that is the largest of the scores so far.

    Attributes:
        scaled: of the results of other loops that are so, the same in powers of two.
    """

    def __init__(self, loop: Operation, at: int, defined: dict[Value, Operation], scaled: dict[Value, Value]) -> None:
        self.loop, self.defined, self.scaled = loop, defined, scaled
        (self.body,) = loop.regions
        self.old, self.new, self.first, self.result = loop.carried[at], self.body.operands[at], loop.initial[at], loop.results[at]

    def carry(self, region: Region) -> None:
        """Carry it in powers of two, too, if that is of use; `region` has the loop."""
        before, larger = Insertion(self.loop.location), self.maker(self.new, "call", elementwise.maximum)
        first = self.start(before)
        leaves_early = list(self.loop.ends()) != [self.body]
        if first is None or larger is None or larger.keywords or larger not in self.body.operations or leaves_early:
            return
        score = next((operand for operand in larger.operands if operand is not self.old), None)
        scaled = [(operation, view) for operation in self.body.operations for view in self.views(operation)]
        if self.old not in larger.operands or not isinstance(score, Value) or score.type != self.old.type or not scaled:
            return
        inside = Insertion(larger.location, self.defined)
        own = Value(self.old.name, self.old.type)
        largest = inside.call(elementwise.maximum, own, self.times(score, inside))
        _insert(self.body, larger, inside)
        for operation, view in scaled:
            here = Insertion(operation.location, self.defined)
            self.replace(operation, here.emit(view.kind, [largest, *view.operands[1:]], view.what) if view else largest, here)
        for operation in [operation for operation in self.body.operations if self.is_growth(operation)]:
            here = Insertion(operation.location, self.defined)
            self.replace(operation, here.emit("binary", [own, largest], "-"), here)
        self.loop.operands.append(first)
        self.scaled[self.result] = result = Value(self.result.name, self.old.type)
        self.loop.results.append(result)
        self.body.parameters.append(own)
        self.body.operands.append(largest)
        position = region.operations.index(self.loop)
        region.operations[position:position] = before.operations
        remark(larger.location, "exponential", "the largest score so far is carried in powers of two")

    def start(self, before: Insertion) -> Value | None:
        """What it begins with, in powers of two; None if that is not known, or has no room for the factor."""
        if isinstance(self.first, Value) and self.first in self.scaled:
            return self.scaled[self.first]
        value = number_in(self.first, self.defined)
        if value is None or not isinstance(self.old.type, TileType) or self.old.type.dtype != dtypes.float32:
            return None
        if value != -math.inf and not abs(value) <= _MOST:
            return None
        return before.call(
            create.full,
            Group(tuple(map(Constant, self.old.type.shape))),
            Constant(value * _FACTOR),
            Constant(dtypes.float32, "float32"),
        )

    def views(self, operation: Operation) -> Iterator[Operation | None]:
        """If an operation is the new maximum, times log2(e): what views the maximum first, or None for nothing."""
        if not _is_scaled(operation):
            return
        tile = operation.operands[0]
        view = self.maker(tile, "item") or self.maker(tile, "method", "reshape")
        if tile is self.new:
            yield None
        elif view is not None and view.operands[0] is self.new and not view.keywords:
            yield view

    def is_growth(self, operation: Operation) -> bool:
        """Whether an operation is by how much it grows, negative, times log2(e)."""
        difference = self.maker(operation.operands[0], "binary", "-") if _is_scaled(operation) else None
        return difference is not None and difference.operands == [self.old, self.new]

    def times(self, score: Value, new: Insertion) -> Value:
        """The largest score of a turn, times log2(e): with one product, if it is one with a number already."""
        product = self.maker(score, "binary", "*")
        tile, factor = product.operands if product is not None else (score, None)
        both: Operand = Constant(_FACTOR)
        if isinstance(factor, Constant):
            both = Constant(factor.value * _FACTOR)
        elif isinstance(factor, Value) and isinstance(factor.type, ScalarType):
            both = new.emit("binary", [factor, both], "*")
        else:
            tile = score
        return new.emit("binary", [tile, both], "*")

    def replace(self, operation: Operation, by: Value, new: Insertion) -> None:
        _insert(self.body, operation, new)
        self.body.replace({operation.results[0]: by})

    def maker(self, operand: Operand, kind: str, what: object = None) -> Operation | None:
        operation = self.defined.get(operand) if isinstance(operand, Value) else None
        if operation is None or operation.kind != kind:
            return None
        actual = operation.what.value if isinstance(operation.what, Constant) else operation.what
        return operation if what is None or actual is what or actual == what else None


def _insert(region: Region, following: Operation, new: Insertion) -> None:
    """Put operations ahead of one."""
    position = region.operations.index(following)
    region.operations[position:position] = new.operations


def _is_scaled(operation: Operation) -> bool:
    """Whether it is something times log2(e)."""
    return (operation.kind, operation.what, operation.operands[1:]) == ("binary", "*", [Constant(_FACTOR)])
