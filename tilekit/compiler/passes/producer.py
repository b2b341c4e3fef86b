"""The producer of rings: the slice of a kernel that decides which tiles come, for the thread that issues copies.

Legal where one thread can find that out alone, and in time: it calculates with numbers and single elements, and reads those of
tensors that the kernel only reads, since what others write it might see at another time than they.

Where the block waits for a word of somebody else's, `while tk.atomic_add(flags, i, 0, memory_order="acquire") < n: pass`, this
thread waits, too: the tiles of the loops behind it may come into being only then. A loop that waits in another way is nothing for
one thread; but what it waits for is written while the kernel runs, is no parameter that the kernel only reads, and has no ring.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.nodes import Constant, Group, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import ScalarType, TensorType
from tilekit.compiler.passes.dead_code import Liveness
from tilekit.lang import atomic, calculation, elementwise, memory

__all__ = ["Unfit", "produce"]

_HARMLESS = (
    memory.bid, memory.num_blocks, memory.num_tiles, calculation.cdiv, min, max, abs, int, range, divmod, len,
    intrinsics.everybody, intrinsics.multiple, intrinsics.peek, intrinsics.place, intrinsics.steps,
    elementwise.minimum, elementwise.maximum,
)  # fmt: skip
_ACQUIRING = (Constant("acquire"), Constant("acq_rel"))
_VIEWS = ("tiles", "tiled_view", "num_tiles", "slice", "item")


class Unfit(Exception):
    """A kernel whose loops over streams have no rings, and why."""


def produce(kernel: Region) -> None:
    """Leave of a kernel what fills its rings.

    Raises:
        Unfit: one thread cannot do that.
    """
    looks = {look for operation in kernel.walk() if (look := _look(operation)) is not None}
    live = Liveness(kernel, lambda operation: operation.kind == "stream" or operation in looks or _returns(operation))
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
    for look in looks:
        tensor, indices, _ = look.operands
        look.what = Constant(intrinsics.peek, "tilekit__peek")
        look.operands, look.keywords = [tensor, indices, look.keywords.get("memory_scope", Constant("device"))], {}
    defined = definitions(kernel)
    reasons = [reason for operation in kernel.walk() if (reason := _reason(operation, defined))]
    if reasons:
        raise Unfit(f"which tiles come depends on {reasons[-1]}")


def _look(operation: Operation) -> Operation | None:
    """The one atomic operation of a loop that does nothing but wait for a word; None if it is another loop."""
    if operation.kind != "while" or operation.results:
        return None
    (body,) = operation.regions
    acting = [inner for inner in body.walk() if not inner.regions and effects(inner)]
    if len(acting) != 1 or acting[0] not in body.operations:
        return None
    (look,) = acting
    if look.kind != "call" or look.what.value is not atomic.atomic_add or look.operands[2:] != [Constant(0)]:
        return None
    indices = look.operands[1].parts if isinstance(look.operands[1], Group) else (look.operands[1],)
    single = all(isinstance(i, Constant) or (isinstance(i, Value) and isinstance(i.type, ScalarType)) for i in indices)
    others = set(look.keywords) - {"memory_order", "memory_scope"}
    return look if single and not others and look.keywords.get("memory_order") in _ACQUIRING else None


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
