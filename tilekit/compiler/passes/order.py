"""Order: what is calculated of rows comes before what is calculated of whole tiles, where it does not need it.

    p = tk.exp2(scores - highest)                alpha = tk.exp2(before - highest)
    alpha = tk.exp2(before - highest)            p = tk.exp2(scores - highest)

In machine code the order stays much as it is. With `alpha` there early, what it multiplies need not wait until all exponentials
are taken, but is multiplied between them.

Legal always: what moves has no effects, and stays behind what it reads. Nothing moves ahead of loops, branches, or a product,
which is to be asked for as soon as the text does.
"""

from __future__ import annotations

import math

from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.nodes import Operation, Region, Value
from tilekit.compiler.ir.products import accumulates
from tilekit.compiler.ir.types import TileType

__all__ = ["calculate_rows_first"]

_NARROW, _WIDE = 1024, 64 * 64  # elements of a tile, at most and at least


def calculate_rows_first(kernel: Region) -> None:
    """Reorder the operations of a kernel."""
    for region in kernel.regions():
        operations: list[Operation] = []
        for operation in region.operations:
            at = len(operations)
            if operation.kind in ("binary", "unary", "call") and _size(operation, _WIDE) <= _NARROW and not effects(operation):
                read = set(operation.reads())
                behind = next((n for n in reversed(range(at)) if _stays_before(operations[n], read)), -1) + 1
                at = next((n for n in range(behind, at) if _is_wide(operations[n])), at)
            operations.insert(at, operation)
        region.operations = operations


def _stays_before(operation: Operation, read: set[Value]) -> bool:
    return bool(operation.regions) or accumulates(operation) or not read.isdisjoint(operation.results)


def _is_wide(operation: Operation) -> bool:
    return operation.kind in ("binary", "unary", "call") and _size(operation, 0) >= _WIDE


def _size(operation: Operation, other: int) -> int:
    """How many elements a tile has that an operation makes; `other` if it makes none."""
    (result, *_) = operation.results or (None,)
    return math.prod(result.type.shape) if result is not None and isinstance(result.type, TileType) else other
