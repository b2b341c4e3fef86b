"""Operations that compute each element of their result alone."""

from __future__ import annotations

from tilekit.compiler.ir.nodes import Operation
from tilekit.lang import bits, calculation, comparison, elementwise, exponential, trigonometry
from tilekit.lang.registry import OPS

__all__ = ["is_elementwise"]

_FAMILIES = {
    module.__name__.rpartition(".")[2] for module in (bits, calculation, comparison, elementwise, exponential, trigonometry)
}
_FUNCTIONS = [row.function for row in OPS.values() if row.family in _FAMILIES]


def is_elementwise(operation: Operation) -> bool:
    """Whether an operation makes one tile, each element of it of those at the same place."""
    if len(operation.results) != 1 or operation.regions:
        return False
    if operation.kind == "call":
        return any(operation.what.value is function for function in _FUNCTIONS)
    if operation.kind == "method":
        return bool(operation.what == "astype")
    return operation.kind in ("unary", "compare") or (operation.kind == "binary" and operation.what != "@")
