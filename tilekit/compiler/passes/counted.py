"""Canonical loops: `while k < n: ...; k += 1` becomes `for k in range(k, n)`, and so do `while True: if k >= n: break; ...`, and
loops with `k <= n - 1` or `k != n`: one that begins behind its end would not come to it. Steps are constants, and become 1: of
`for k in range(a, n, 64)` there is left `for t in range(tk.cdiv(n - a, 64))`, whose `k` is `a + 64 * t`.

Legal where `k` is an int that each turn hands on as `k + 1`, or with another positive step (with which `!=` may miss its end),
`n` does not change in the loop, the condition is looked at where a turn begins, and nothing else leaves the loop early, unless
`k` is not read behind it. There it is the first of its numbers that is not below `n`.
"""

from __future__ import annotations

from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.types import ScalarType, sampling
from tilekit.lang import calculation

__all__ = ["count_loops"]

# Of a comparison that keeps a loop going where it holds, or where it does not: the place of the counter, and by how much the
# other operand is less than the end. None: it may be either.
_BOUNDS: dict[bool, dict[str, tuple[int | None, int]]] = {
    True: {"<": (0, 0), ">": (1, 0), "<=": (0, 1), ">=": (1, 1), "!=": (None, 0)},
    False: {">=": (0, 0), "<=": (1, 0), ">": (0, 1), "<": (1, 1), "==": (None, 0)},
}


def count_loops(kernel: Region) -> None:
    """Make such loops of a kernel loops over ranges."""
    with sampling():
        _count_loops(kernel)


def _count_loops(kernel: Region) -> None:
    defined = definitions(kernel)
    ends: dict[Value, Operand] = {}
    read = {value for operation in kernel.walk() for value in operation.reads()}
    read |= {value for region in kernel.regions() for operand in region.operands for value in values_of(operand)}
    for region in list(kernel.regions()):
        operations: list[Operation] = []
        for operation in region.operations:
            counted = _counted(operation, defined, ends, read) if operation.kind == "while" else None
            operations += [operation] if counted is None else counted
        region.operations = operations
    kernel.replace(ends)
    for region in list(kernel.regions()):
        region.operations = [one for operation in region.operations for one in (*_in_single_steps(operation), operation)]


def _counted(
    loop: Operation, defined: dict[Value, Operation], ends: dict[Value, Operand], read: set[Value]
) -> list[Operation] | None:
    """The loop over a range, and what its counter is behind it; None if it does not count. `read` is what anybody reads."""
    (body,) = loop.regions
    at = next((n for n, operation in enumerate(body.operations) if operation.kind == "if"), None)
    if at is None or any(effects(operation) for operation in body.operations[:at]):
        return None
    test = body.operations[at]
    stay, leave = test.regions if test.regions[0].exit == "yield" else test.regions[::-1]
    carried = loop.carried
    if stay.operations or stay.exit != "yield" or leave.operations or leave.exit != "break" or test.results:
        return None
    others = [end for end in loop.ends() if end not in (leave, body)]
    if leave.operands != carried or body.exit != "yield" or any(not _is_plain_break(end, carried) for end in others):
        return None
    if any(region.exit == "return" for region in body.regions()) or not isinstance(test.operands[0], Value):
        return None
    compare = defined.get(test.operands[0])
    if compare is None or compare.kind != "compare" or compare not in body.operations[:at]:
        return None
    bounds = _BOUNDS[stay is test.regions[0]].get(compare.what)
    if bounds is None:
        return None
    place, beyond = bounds
    if place is None:
        place = 0 if compare.operands[0] in carried else 1
    counter, stop = compare.operands[place], compare.operands[1 - place]
    inside = set(body.parameters) | {value for operation in body.walk() for value in operation.results}
    if counter not in carried or stop in inside or not isinstance(counter, Value) or counter.type != ScalarType(int):
        return None
    whole = type(stop.value) is int if isinstance(stop, Constant) else isinstance(stop, Value) and stop.type == ScalarType(int)
    if not whole:
        return None
    number = carried.index(counter)
    following = body.operands[number]
    step = defined.get(following) if isinstance(following, Value) else None
    if step is None or (step.kind, step.what, step.operands[0]) != ("binary", "+", counter) or not _is_step(step.operands[1]):
        return None
    width = step.operands[1]
    if (bounds[0] is None and width != Constant(1)) or (others and loop.results[number] in read):
        return None
    for end in others:
        end.operands = end.operands[:number] + end.operands[number + 1 :]
    start, result = loop.initial[number], loop.results[number]
    before: list[Operation] = []
    if beyond:
        stop, before = _following(stop, loop)
    body.operations = [operation for n, operation in enumerate(body.operations) if n != at]
    body.operands = body.operands[:number] + body.operands[number + 1 :]
    body.parameters = [counter, *(value for value in carried if value is not counter)]
    initial = [operand for n, operand in enumerate(loop.initial) if n != number]
    results = [value for value in loop.results if value is not result]
    counted = Operation("for", [start, stop, width, *initial], loop.location, results=results, regions=[body])
    behind = Insertion(loop.location)
    if width == Constant(1):
        ends[result] = behind.call(max, start, stop)
    else:
        turns = behind.call(max, Constant(0), _turns(behind, start, stop, width))
        ends[result] = behind.emit("binary", [start, behind.emit("binary", [turns, width], "*")], "+")
    return [*before, counted, *behind.operations]


def _is_plain_break(end: Region, carried: list[Value]) -> bool:
    """Whether it leaves a loop with what the turn was given."""
    return end.exit == "break" and not end.operations and end.operands == carried


def _is_step(operand: Operand) -> bool:
    return isinstance(operand, Constant) and type(operand.value) is int and operand.value > 0


def _turns(new: Insertion, start: Operand, stop: Operand, width: Operand) -> Value:
    """How many turns a range has; not positive if it is empty."""
    way = stop if start == Constant(0) else new.emit("binary", [stop, start], "-")
    return new.call(calculation.cdiv, way, width)


def _in_single_steps(loop: Operation) -> list[Operation]:
    """Let a loop with wider steps have steps of 1; what stands before it for that."""
    if loop.kind != "for" or loop.operands[2] == Constant(1) or not _is_step(loop.operands[2]):
        return []
    start, stop, width = loop.operands[:3]
    before, (body,) = Insertion(loop.location), loop.regions
    counter, turn = body.parameters[0], Value("t", ScalarType(int))
    inside = Insertion(loop.location)
    number = inside.emit("binary", [turn, width], "*")
    if start != Constant(0):
        inside.emit("binary", [number, start], "+")
    inside.operations[-1].results = [counter]
    body.parameters[0], body.operations[:0] = turn, inside.operations
    loop.operands[:3] = [Constant(0), _turns(before, start, stop, width), Constant(1)]
    return before.operations


def _following(number: Operand, loop: Operation) -> tuple[Operand, list[Operation]]:
    """The next number, and what computes it before a loop."""
    if isinstance(number, Constant):
        return Constant(number.value + 1), []
    result = Value("t", ScalarType(int))
    return result, [Operation("binary", [number, Constant(1)], loop.location, "+", results=[result])]
