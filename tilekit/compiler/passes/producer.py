"""The producer of rings: the slice of a kernel that decides which tiles come, for the thread that issues copies.

Legal where one thread can find that out alone, and in time: it calculates with numbers, and reads single elements of tensors that
the kernel only reads, since what others write it might see at another time than they.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.nodes import Group, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import TensorType
from tilekit.compiler.passes.dead_code import Liveness
from tilekit.lang import calculation, memory

__all__ = ["Unfit", "produce"]

_HARMLESS = (
    memory.bid, memory.num_blocks, memory.num_tiles, calculation.cdiv, min, max, abs, int, range, divmod, len,
)  # fmt: skip
_VIEWS = ("tiles", "num_tiles", "slice", "item")


class Unfit(Exception):
    """A kernel whose loops over streams have no rings, and why."""


def produce(kernel: Region) -> None:
    """Leave of a kernel what fills its rings.

    Raises:
        Unfit: one thread cannot do that.
    """
    live = Liveness(kernel, lambda operation: operation.kind == "stream" or _returns(operation))
    tiles: set[Value] = set()
    for operation in kernel.walk():
        if operation.kind == "stream":
            (body,) = operation.regions
            items = len(body.parameters) - len(operation.results)
            tiles.update(body.parameters[:items])
            body.parameters = body.parameters[items:]
    loaded = sorted(value.name for value in live.values & tiles)
    if loaded:
        raise Unfit(f"which tiles come depends on {loaded[0]}, which a pipeline loads")
    live.narrow(kernel)
    defined = definitions(kernel)
    reasons = [reason for operation in kernel.walk() if (reason := _reason(operation, defined))]
    if reasons:
        raise Unfit(f"which tiles come depends on {reasons[-1]}")


def _returns(operation: Operation) -> bool:
    return any(region.exit == "return" for region in operation.regions)


def _reason(operation: Operation, defined: Mapping[Value, Operation]) -> str:
    """What one thread cannot find out alone, or only too late; empty if it can."""
    if operation.kind not in ("call", "method"):
        return ""
    text, tensor = operation.location.text, operation.operands[0] if operation.operands else None
    function = operation.what.value if operation.kind == "call" else None
    if function is memory.load and operation.operands[2:] == [Group(())]:
        whole = tensor
        while isinstance(whole, Value) and whole in defined:  # a slice
            whole = defined[whole].operands[0]
        read = isinstance(whole, Value) and isinstance(whole.type, TensorType) and whole.type.facts.role == "in"
        assert isinstance(tensor, Value), "a tensor"
        return "" if read else f"{text}, and {tensor.name} is written"
    known = operation.what in _VIEWS if function is None else function in _HARMLESS
    return "" if known else text
