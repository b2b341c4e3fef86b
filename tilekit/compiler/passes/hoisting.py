"""Loop-invariant code motion: numbers, indices and views that no turn of a loop changes are computed before it.

Legal for what has no effect and reads no memory; arithmetic on numbers cannot fail on a GPU. Tiles stay: they would take
registers all through the loop.
"""

from __future__ import annotations

from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.nodes import LOOPS, Operation, Region
from tilekit.compiler.ir.types import ObjectType, ScalarType

__all__ = ["hoist_invariants"]


def hoist_invariants(kernel: Region) -> None:
    """Move such operations of a kernel in front of the outermost loop that does not change them."""
    operations: list[Operation] = []
    for operation in kernel.operations:
        for region in operation.regions:
            hoist_invariants(region)
        if operation.kind in LOOPS:
            operations += _hoisted(operation)
        operations.append(operation)
    kernel.operations = operations


def _hoisted(loop: Operation) -> list[Operation]:
    """The operations that can stand before a loop, which leave it."""
    (body,) = loop.regions
    inside = set(body.parameters) | {value for operation in body.walk() for value in operation.results}
    moved, left = [], []
    for operation in body.operations:
        movable = not operation.regions and not effects(operation) and bool(operation.results)
        small = all(isinstance(value.type, (ScalarType, ObjectType)) for value in operation.results)
        if movable and small and not any(value in inside for value in operation.reads()):
            inside -= set(operation.results)
            moved.append(operation)
        else:
            left.append(operation)
    body.operations = left
    return moved
