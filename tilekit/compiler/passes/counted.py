"""Canonical loops: `while k < n: ...; k += 1` becomes `for k in range(k, n)`, and so do `while True: if k >= n: break; ...`, and
loops with `k <= n - 1`, `k * 64 < n`, `n - k > 0` or `k != n`: one that begins behind its end would not come to it. Where a turn
ends with the condition, `while True: ...; if k >= n: break`, the first one comes in any case. What a loop does where it ends,
`while True: if k >= n: acc = 2 * acc; break; ...`, stands behind it. Steps become 1: of
`for k in range(a, n, 64)` there is left `for t in range(tk.cdiv(n - a, 64))`, whose `k` is `a + 64 * t`. So does any other int to
which each turn adds the same.

Legal where `k` is an int that each turn hands on as `k + 1`, or with another constant towards the end (with which `!=` may miss
it), the condition compares sums of multiples of ints, of which only `k` changes in the loop, it is looked at where a turn begins
or ends, and nothing else leaves the loop early, unless `k` is not read behind it. There it is the first of its numbers for which
the condition does not hold. What stands where a loop ends may stand behind it if the loop ends nowhere else, and it reads
nothing that the turn has calculated.
"""

from __future__ import annotations

from tilekit.compiler.ir.affine import Affine, affine, condition_of, materialized
from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, copied, definitions, mapped, values_of
from tilekit.compiler.ir.types import ScalarType, sampling
from tilekit.lang import calculation, memory

__all__ = ["count_loops"]


def count_loops(kernel: Region) -> None:
    """Make such loops of a kernel loops over ranges."""
    with sampling():
        _count_loops(kernel)


def _count_loops(kernel: Region) -> None:
    for region in list(kernel.regions()):
        for loop in [operation for operation in region.operations if operation.kind == "while"]:
            at, ends = region.operations.index(loop) + 1, dict[Value, Operand]()
            region.operations[at:at] = _end_behind(loop, ends)
            kernel.replace(ends)
    defined = definitions(kernel)
    ends = {}
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
        operations = []
        for operation in region.operations:
            before = _in_single_steps(operation) if operation.kind == "for" else []
            behind = _by_one_counter(operation, defined, ends) if operation.kind == "for" else []
            operations += [*before, operation, *behind]
        region.operations = operations
    kernel.replace(ends)


def _end_behind(loop: Operation, ends: dict[Value, Operand]) -> list[Operation]:
    """What a loop does where it ends, to stand behind it; `ends` gets what its results are then."""
    (body,) = loop.regions
    leaving = [region for region in body.jumps() if region.exit == "break"]
    if len(leaving) != 1 or any(region.exit == "return" for region in body.regions()):
        return []
    (leave,) = leaving
    if not any(leave in operation.regions for operation in body.operations if operation.kind == "if"):
        return []
    read = {value for operation in leave.walk() for value in operation.reads()}
    read |= {value for operand in leave.operands for value in values_of(operand)}
    if not leave.operations or read & (definitions(body).keys() - definitions(leave).keys()):
        return []
    results = [Value(value.name, value.type) for value in loop.carried]
    known: dict[Value, Operand] = dict(zip(loop.carried, results, strict=True))
    behind = copied(leave.operations, known)
    ends |= {old: mapped(operand, known) for old, operand in zip(loop.results, leave.operands, strict=True)}
    loop.results, leave.operations, leave.operands = results, [], list(loop.carried)
    return behind


def _counted(
    loop: Operation, defined: dict[Value, Operation], ends: dict[Value, Operand], read: set[Value]
) -> list[Operation] | None:
    """The loop over a range, and what its counter is behind it; None if it does not count. `read` is what anybody reads."""
    (body,) = loop.regions
    behind_a_turn = bool(body.operations) and _leaves_behind(body)
    first = next((n for n, operation in enumerate(body.operations) if operation.kind == "if"), None)
    at = len(body.operations) - 1 if behind_a_turn else first
    if at is None or (not behind_a_turn and any(effects(operation) for operation in body.operations[:at])):
        return None
    test = body.operations[at]
    stay, leave = test.regions if test.regions[0].exit == "yield" else test.regions[::-1]
    carried = loop.carried
    if stay.operations or stay.exit != "yield" or leave.operations or leave.exit != "break" or test.results:
        return None
    others = [end for end in loop.ends() if end not in (leave, body)]
    if body.exit != "yield":
        return None
    handed_on = zip(leave.operands, carried, loop.results, strict=True)
    if not behind_a_turn and any(operand is not value and result in read for operand, value, result in handed_on):
        return None
    if behind_a_turn and any(end.exit != "break" for end in others):  # it goes on without that look at the condition
        return None
    if any(region.exit == "return" for region in body.regions()):
        return None
    condition = condition_of(test.operands[0], holds=stay is test.regions[0], definitions=defined)
    inside = set(body.parameters) | {value for operation in body.walk() for value in operation.results}
    changing = [] if condition is None else [value for value in condition.sum_.terms if value in inside]
    if condition is None or len(changing) != 1 or changing[0] not in carried:
        return None
    (counter,) = changing
    number = carried.index(counter)
    width = _added(body.operands[number], counter, defined)
    factor, rest = condition.sum_.terms[counter], condition.sum_.without(counter)
    if behind_a_turn:  # it is about the turn that follows
        rest = rest.plus(Affine({}, -factor * width))
    if condition.symbol == "!=" and factor * width < 0:
        factor, rest = -factor, rest.times(-1)
    if factor * width <= 0 or (condition.symbol == "!=" and factor * width != 1) or (others and loop.results[number] in read):
        return None
    if any(end.exit != "break" and _added(end.operands[number], counter, defined) != width for end in others):
        return None
    for end in others:
        end.operands = end.operands[:number] + end.operands[number + 1 :]
    start, result = loop.initial[number], loop.results[number]
    before = Insertion(loop.location, defined)
    stop = _stop(before, factor, rest, equal=condition.symbol == "<=")
    if behind_a_turn:
        stop = before.call(max if width > 0 else min, stop, before.plus(start, width))
    body.operations = [operation for n, operation in enumerate(body.operations) if n != at]
    body.operands = body.operands[:number] + body.operands[number + 1 :]
    body.parameters = [counter, *(value for value in carried if value is not counter)]
    initial = [operand for n, operand in enumerate(loop.initial) if n != number]
    results = [value for value in loop.results if value is not result]
    counted = Operation("for", [start, stop, Constant(width), *initial], loop.location, results=results, regions=[body])
    behind = Insertion(loop.location)
    if width == 1:
        ends[result] = behind.call(max, start, stop)
    else:
        ends[result] = _behind(behind, start, width, _turns(behind, start, stop, width))
    return [*before.operations, counted, *behind.operations]


def _leaves_behind(body: Region) -> bool:
    """Whether a turn ends with a look whether it was the last one."""
    test = body.operations[-1]
    if test.kind != "if" or test.results:
        return False
    return any(region.exit == "break" and region.operands == body.operands for region in test.regions)


def _added(following: Operand, counter: Value, defined: dict[Value, Operation]) -> int:
    """What a turn adds to a number; 0 if it is no constant."""
    sum_ = affine(following, defined)
    difference = None if sum_ is None else sum_.plus(Affine({counter: 1}, 0), -1)
    return 0 if difference is None or difference.terms else difference.constant


def _stop(new: Insertion, factor: int, rest: Affine, *, equal: bool) -> Operand:
    """The end of the range of `k` with `factor * k + rest < 0`, or with `equal` `<= 0`."""
    if factor > 0:
        operations, upper = materialized(rest.times(-1).plus(Affine({}, int(equal))), new.location)
        new.add(operations)
        return upper if factor == 1 else new.call(calculation.cdiv, upper, Constant(factor))
    operations, lower = materialized(rest.plus(Affine({}, -int(equal))), new.location)
    new.add(operations)
    return lower if factor == -1 else new.emit("binary", [lower, Constant(-factor)], "//")


def _behind(new: Insertion, start: Operand, width: int, turns: Value) -> Value:
    """What a number is after so many turns, or none if they are negative."""
    sum_ = new.emit("binary", [new.call(max, Constant(0), turns), Constant(width)], "*")
    return sum_ if start == Constant(0) else new.emit("binary", [start, sum_], "+")


def _turns(new: Insertion, start: Operand, stop: Operand, width: Operand | int) -> Value:
    """How many turns a range has; not positive if it is empty."""
    if isinstance(width, Value):
        sign = new.call(max, Constant(-1), new.call(min, Constant(1), width))
        beyond = new.emit("binary", [new.emit("binary", [stop, start], "-"), width], "+")
        return new.emit("binary", [new.emit("binary", [beyond, sign], "-"), width], "//")
    step = width.value if isinstance(width, Constant) else width
    assert isinstance(step, int), "a step"
    first, last = (start, stop) if step > 0 else (stop, start)
    way = last if first == Constant(0) else new.emit("binary", [last, first], "-")
    return new.call(calculation.cdiv, way, Constant(abs(step)))


def _in_single_steps(loop: Operation) -> list[Operation]:
    """Let a loop with other steps have steps of 1; what stands before it for that."""
    start, stop, width = loop.operands[:3]
    if isinstance(width, Constant) and (type(width.value) is not int or width.value in (0, 1)):
        return []
    if not isinstance(width, Constant) and not (isinstance(width, Value) and width.type == ScalarType(int)):
        return []
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


def _by_one_counter(loop: Operation, defined: dict[Value, Operation], ends: dict[Value, Operand]) -> list[Operation]:
    """Let other numbers to which a turn adds the same, and by which it loads tiles, follow from the counter; what is behind."""
    (body,) = loop.regions
    start, stop, step = loop.operands[:3]
    first = affine(start, defined)
    if step != Constant(1) or list(loop.ends()) != loop.regions or first is None:
        return []
    behind, placing = Insertion(loop.location), _placing_tiles(body, defined)
    for value in list(loop.carried):
        at = loop.carried.index(value)
        initial, result = affine(loop.initial[at], defined), loop.results[at]
        width = _added(body.operands[at], value, defined) if initial is not None else 0
        if initial is None or not width or value not in placing:
            continue
        sum_ = initial.plus(Affine({body.parameters[0]: 1}, 0).plus(first, -1), width)
        operations, ends[value] = materialized(sum_, loop.location)
        body.operations[:0] = operations
        ends[result] = _behind(behind, loop.initial[at], width, _turns(behind, start, stop, 1))
        body.parameters.remove(value)
        body.operands = body.operands[:at] + body.operands[at + 1 :]
        loop.operands = [operand for n, operand in enumerate(loop.operands) if n != 3 + at]
        loop.results = [one for one in loop.results if one is not result]
    return behind.operations


def _placing_tiles(body: Region, defined: dict[Value, Operation]) -> set[Value]:
    """What the indices of loads are made of."""
    placing: set[Value] = set()
    loads = [one for one in body.walk() if one.kind == "call" and one.what.value is memory.load]
    wanted = [value for load in loads for value in values_of(load.operands[1])]
    while wanted:
        value = wanted.pop()
        if value not in placing:
            placing.add(value)
            wanted += defined[value].reads() if value in defined and not defined[value].regions else []
    return placing
