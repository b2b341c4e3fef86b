"""Bounds of loops: a condition on the counter that decides whether a turn does anything becomes a part of the range.

    for j in range(n):                    for j in range(min(n, tk.cdiv(i * 64 + 64, 32))):
        if j * 32 >= i * 64 + 64:             ...
            break
        ...

and so does `if j * 32 < i * 64 + 64:` around the whole turn. One that holds from some turn on, around the whole turn, makes the
range begin later, and so does `if ...: continue`; a condition of two (`a and b`) is taken as two.

Legal where the condition compares sums of multiples of ints, of which only the counter changes in the loop, nothing stands ahead
of it that has effects, turns in which it does not hold hand on what they were given, and so does whatever else ends turns early.
A range does not begin later where a turn that is left out might have ended the loop.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions, values_of
from tilekit.compiler.ir.symbols import INVERSE, ORDERS
from tilekit.compiler.ir.types import ScalarType, sampling
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.lang import calculation

__all__ = ["bound_loops", "separate_conditions"]


def bound_loops(kernel: Region) -> None:
    """Move such conditions of a kernel into the ranges of its loops."""
    with sampling():
        while _bound(kernel):
            hoist_invariants(kernel)  # of what stood in the branch, the next condition may be made


def _bound(kernel: Region) -> bool:
    """Move one of each loop; whether there was any."""
    defined, moved = definitions(kernel), False
    for region in list(kernel.regions()):
        operations: list[Operation] = []
        for operation in region.operations:
            bounds = _bounded(operation, defined) if operation.kind == "for" else []
            operations += [*bounds, operation]
            moved |= bool(bounds)
        region.operations = operations
    return moved


def separate_conditions(kernel: Region) -> None:
    """Make `if a and b: ...` two branches, and so `if a or b: break`."""
    reads = Counter(value for operation in kernel.walk() for value in operation.reads())
    reads.update(v for region in kernel.regions() for operand in region.operands for v in values_of(operand))
    for region in list(kernel.regions()):
        for branch in [operation for operation in region.operations if operation.kind == "if"]:
            while (joined := _joined(branch, region)) is not None and reads[joined.results[0]] == 1:
                _separate(branch, joined, region)


def _joined(branch: Operation, region: Region) -> Operation | None:
    """What makes the condition of a branch of two, if the other way of the branch does nothing; the first of the two decides."""
    joined = next((operation for operation in region.operations if branch.operands[0] in operation.results), None)
    if joined is None or joined.kind != "if" or len(joined.results) != 1:
        return None
    first, second = joined.regions
    both = not second.operations and second.operands == joined.operands  # `a and b`; else `a or b`
    either = not first.operations and first.operands == joined.operands
    other = branch.regions[1] if both else branch.regions[0]
    alone = not other.operations and all(inner.exit == "yield" for inner in (first, second))
    pure = not any(effects(operation) for operation in (first if both else second).operations)
    return joined if both != either and alone and pure else None


def _separate(branch: Operation, joined: Operation, region: Region) -> None:
    both = joined.regions[1].operands == joined.operands and not joined.regions[1].operations
    inner, other = (joined.regions[0], branch.regions[1]) if both else (joined.regions[1], branch.regions[0])
    way = Region([], [], other.exit, list(other.operands), other.location)
    (condition,) = inner.operands
    at = region.operations.index(branch)
    kept = [operation for operation in region.operations[:at] if operation is not joined]
    if other.exit != "yield":  # one leaves, and the other goes on behind it
        on = Region([], [], "yield", [])
        before = Operation("if", list(joined.operands), branch.location, regions=[on, way] if both else [way, on])
        branch.operands = [condition]
        region.operations = [*kept, before, *inner.operations, *region.operations[at:]]
        return
    results = [Value(value.name, value.type) for value in branch.results]
    nested = Operation("if", [condition], branch.location, results=results, regions=list(branch.regions))
    outer = Region([], [*inner.operations, nested], "yield", list(results), branch.location)
    branch.operands, branch.regions = list(joined.operands), [outer, way] if both else [way, outer]
    region.operations = [*kept, *region.operations[at:]]


class _Test(NamedTuple):
    """Whether a turn does anything: where `sum_` is below 0, or with `equal` 0, too.

    Attributes:
        alone: whether a turn in which it does not hold ends there; else the rest of a turn stands in a branch.
    """

    sum_: Affine
    equal: bool
    alone: bool


def _bounded(loop: Operation, defined: dict[Value, Operation]) -> list[Operation]:
    """What computes the bounds, if a loop has such a condition, which it has no more then."""
    (body,) = loop.regions
    if loop.operands[2] != Constant(1) or body.exit != "yield":
        return []
    for branch in [operation for operation in body.operations if operation.kind == "if"]:
        new = Insertion(loop.location, defined)
        test = _test(loop, branch, new, defined)
        if test is not None:
            break
    else:
        return []
    at = body.operations.index(branch)
    counter = body.parameters[0]
    step, rest = test.sum_.terms[counter], test.sum_.without(counter)
    if step > 0:  # step * j < -rest
        operations, upper = materialized(rest.times(-1).plus(Affine({}, int(test.equal))), loop.location)
        new.add(operations)
        loop.operands[1] = new.call(min, loop.operands[1], new.call(calculation.cdiv, upper, Constant(step)))
    else:  # -step * j > rest
        operations, lower = materialized(rest.plus(Affine({}, int(not test.equal))), loop.location)
        new.add(operations)
        loop.operands[0] = new.call(max, loop.operands[0], new.call(calculation.cdiv, lower, Constant(-step)))
    if test.alone:
        body.operations = body.operations[:at] + body.operations[at + 1 :]
    else:
        inner = branch.regions[0] if branch.regions[0].operations else branch.regions[1]
        body.operations = body.operations[:at] + inner.operations
        body.operands = inner.operands
    return new.operations


def _as_int(operand: Operand, new: Insertion) -> Operand:
    """An integer of another type, as an int."""
    kind = operand.type.kind if isinstance(operand, Value) and isinstance(operand.type, ScalarType) else int
    fits = isinstance(kind, np.dtype) and (kind.kind == "i" or (kind.kind == "u" and kind.itemsize < 8))
    return new.call(int, operand) if fits else operand


def _test(loop: Operation, branch: Operation, new: Insertion, defined: dict[Value, Operation]) -> _Test | None:
    """The condition of a branch; None if it does not decide about all of a turn. What it is made of may stand in `new`."""
    (body,) = loop.regions
    first, second = branch.regions
    before = body.operations[: body.operations.index(branch)]
    if any(effects(operation) for operation in before) or any(region.exit == "return" for region in body.regions()):
        return None
    if any(end is not body and (end.operations or end.operands != loop.carried) for end in loop.ends()):
        return None  # what ends turns early hands on what it was given
    turned = second.exit != "yield" or (first.exit == "yield" and bool(first.operations))
    leave, stay = (second, first) if turned else (first, second)
    alone = leave.exit in ("break", "continue")
    if alone:
        whole = not branch.results and not leave.operations and not stay.operations and stay.exit == "yield"
    else:
        whole = branch is body.operations[-1] and body.operands == branch.results and leave.operands == loop.carried
        whole = whole and not leave.operations and (leave.exit, stay.exit) == ("yield", "yield")
    if not whole:
        return None
    condition = branch.operands[0]
    compare = defined.get(condition) if isinstance(condition, Value) else None
    if compare is None or compare.kind != "compare" or compare.what not in ORDERS:
        return None
    symbol = compare.what if stay is first else INVERSE[compare.what]
    less, more = compare.operands if symbol in ("<", "<=") else compare.operands[::-1]
    inside: set[Operand] = {*body.parameters, *(value for operation in body.walk() for value in operation.results)}
    sums = [affine(operand if operand in inside else _as_int(operand, new), defined) for operand in (less, more)]
    if sums[0] is None or sums[1] is None:
        return None
    sum_, counter = sums[0].plus(sums[1], -1), body.parameters[0]
    if counter not in sum_.terms or any(value in inside for value in sum_.terms if value is not counter):
        return None
    # A range that begins later goes without what ends the loop in the turns before.
    ends = leave.exit == "break" or any(region.exit == "break" for one in before for region in one.regions)
    if sum_.terms[counter] < 0 and ends:
        return None
    return _Test(sum_, symbol in ("<=", ">="), alone)
