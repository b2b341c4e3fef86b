"""Slices that move: a tile of a slice that begins anew in each turn of a loop, at a multiple of the tile, is one of the tensor.

    for k in range(0, n, 64):                                    for k in range(0, n, 64):
        tk.load(x.slice(1, k), (i, 0), (128, 64))                    tk.load(x, (i, 0 + k // 64), (128, 64))

Legal where the slice goes to the end of the tensor, or the tile is its first and no longer than it. What it begins at is known to
be a multiple by how it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import LOOPS, Constant, Group, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import sampling
from tilekit.compiler.passes.multiples import divisor_of, slice_of
from tilekit.lang import memory

__all__ = ["load_from_whole_tensors"]

_PADDING = {"padding_mode", "padding_value"}


def load_from_whole_tensors(kernel: Region) -> int:
    """Let loads of such slices, in the loops of a kernel, be loads of what they are slices of; how often."""
    defined, count = definitions(kernel), 0
    with sampling():
        for loop in [operation for operation in kernel.walk() if operation.kind in LOOPS]:
            inside = set(loop.regions[0].walk())
            for region in loop.regions[0].regions():
                for load in [one for one in region.operations if one.kind == "call" and one.what.value is memory.load]:
                    while _rewrite(load, inside, region, defined):
                        count += 1
    return count


def _rewrite(load: Operation, inside: set[Operation], region: Region, defined: dict[Value, Operation]) -> bool:
    """Load from what a slice is of, if it moves, and the tile is the same; whether it does."""
    tensor, index, extents = load.operands[:3]
    view = defined.get(tensor) if isinstance(tensor, Value) else None
    bounds = slice_of(view) if view is not None and view in inside else None
    if view is None or bounds is None or not load.keywords.keys() <= _PADDING:
        return False
    axis, start, stop = bounds
    parts: list[Operand] = list(index.parts) if isinstance(index, Group) else [index]
    tile = extents.parts if isinstance(extents, Group) else (extents,)
    if len(tile) != len(parts) or not isinstance(axis, Constant):
        return False
    along = axis.value % len(parts)
    extent = tile[along]
    if not isinstance(extent, Constant) or type(extent.value) is not int or divisor_of(start, defined) % extent.value:
        return False
    if stop != Constant(None):
        first, last = affine(start, defined), affine(stop, defined)
        length = None if first is None or last is None else last.plus(first, -1)
        # Behind the slice there is padding.
        if length is None or length.terms or length.constant < extent.value or parts[along] != Constant(0):
            return False
    new = Insertion(load.location, defined)
    begins = _quotient(start, extent, new, defined)
    parts[along] = begins if parts[along] == Constant(0) else new.emit("binary", [parts[along], begins], "+")
    load.operands[:2] = [view.operands[0], Group(tuple(parts)) if isinstance(index, Group) else parts[0]]
    at = region.operations.index(load)
    region.operations[at:at] = new.operations
    return True


def _quotient(start: Operand, extent: Constant, new: Insertion, defined: Mapping[Value, Operation]) -> Operand:
    """How many extents a multiple of them is."""
    total = affine(start, defined)
    if total is None or any(number % extent.value for number in (*total.terms.values(), total.constant)):
        return new.emit("binary", [start, extent], "//")
    numbers = {value: number // extent.value for value, number in total.terms.items()}
    operations, quotient = materialized(Affine(numbers, total.constant // extent.value), new.location)
    new.add(operations)
    return quotient
