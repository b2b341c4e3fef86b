"""Bounds of loops: a condition on the counter that decides whether a turn does anything becomes a part of the range.

    for j in range(n):                    for j in range(min(n, tk.cdiv(i * 64 + 64, 32))):
        if j * 32 >= i * 64 + 64:             ...
            break
        ...

and so does `if j * 32 < i * 64 + 64:` around the whole turn. One that holds from some turn on, around the whole turn, makes the
range begin later.

Legal where the condition compares sums of multiples of ints, of which only the counter changes in the loop, nothing stands ahead
of it that has effects, and turns in which it does not hold hand on what they were given.
"""

from __future__ import annotations

from typing import NamedTuple

from tilekit.compiler.ir.affine import Affine, affine, materialized
from tilekit.compiler.ir.effects import effects
from tilekit.compiler.ir.insertion import Insertion
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import sampling
from tilekit.lang import calculation

__all__ = ["bound_loops"]

_INVERSE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def bound_loops(kernel: Region) -> None:
    """Move such conditions of a kernel into the ranges of its loops."""
    defined = definitions(kernel)
    with sampling():
        for region in list(kernel.regions()):
            operations: list[Operation] = []
            for operation in region.operations:
                while operation.kind == "for" and (bounds := _bounded(operation, defined)):
                    operations += bounds
                operations.append(operation)
            region.operations = operations


class _Test(NamedTuple):
    """Whether a turn does anything: where `sum_` is below 0, or with `equal` 0, too.

    Attributes:
        leaves: whether the loop ends with the first turn in which it does not hold.
    """

    sum_: Affine
    equal: bool
    leaves: bool


def _bounded(loop: Operation, defined: dict[Value, Operation]) -> list[Operation]:
    """What computes the bounds, if a loop has such a condition, which it has no more then."""
    (body,) = loop.regions
    branch = next((operation for operation in body.operations if operation.kind == "if"), None)
    if branch is None or loop.operands[2] != Constant(1) or body.exit != "yield":
        return []
    at = body.operations.index(branch)
    test = _test(loop, branch, at, defined)
    if test is None:
        return []
    counter = body.parameters[0]
    step, rest = test.sum_.terms[counter], test.sum_.without(counter)
    if step < 0 and test.leaves:
        return []
    new = Insertion(loop.location, defined)
    if step > 0:  # step * j < -rest
        operations, most = materialized(rest.times(-1).plus(Affine({}, int(test.equal))), loop.location)
        new.add(operations)
        loop.operands[1] = new.call(min, loop.operands[1], new.call(calculation.cdiv, most, Constant(step)))
    else:  # -step * j > rest
        operations, least = materialized(rest.plus(Affine({}, int(not test.equal))), loop.location)
        new.add(operations)
        loop.operands[0] = new.call(max, loop.operands[0], new.call(calculation.cdiv, least, Constant(-step)))
    if test.leaves:
        body.operations = body.operations[:at] + body.operations[at + 1 :]
    else:
        inner = branch.regions[0] if branch.regions[0].operations else branch.regions[1]
        body.operations = body.operations[:at] + inner.operations
        body.operands = inner.operands
    return new.operations


def _test(loop: Operation, branch: Operation, at: int, defined: dict[Value, Operation]) -> _Test | None:
    """The condition of a branch; None if it does not decide about all of a turn."""
    (body,) = loop.regions
    first, second = branch.regions
    if any(effects(operation) for operation in body.operations[:at]):
        return None
    if not branch.results and "break" in (first.exit, second.exit):
        leave, stay = (first, second) if first.exit == "break" else (second, first)
        whole = not leave.operations and leave.operands == loop.carried and not stay.operations and stay.exit == "yield"
        alone = all(end in (leave, body) for end in loop.ends())
    else:
        leave, stay = (first, second) if not first.operations else (second, first)
        whole = branch is body.operations[-1] and body.operands == branch.results and leave.operands == loop.carried
        whole = whole and not leave.operations and (leave.exit, stay.exit) == ("yield", "yield")
        alone = list(loop.ends()) == [body]
    if not whole or not alone or any(region.exit == "return" for region in body.regions()):
        return None
    condition = branch.operands[0]
    compare = defined.get(condition) if isinstance(condition, Value) else None
    if compare is None or compare.kind != "compare" or compare.what not in _INVERSE:
        return None
    symbol = compare.what if stay is first else _INVERSE[compare.what]
    less, more = compare.operands if symbol in ("<", "<=") else compare.operands[::-1]
    sums = [affine(operand, defined) for operand in (less, more)]
    if sums[0] is None or sums[1] is None:
        return None
    sum_, counter = sums[0].plus(sums[1], -1), body.parameters[0]
    inside: set[Operand] = {*body.parameters, *(value for operation in body.walk() for value in operation.results)}
    if counter not in sum_.terms or any(value in inside for value in sum_.terms if value is not counter):
        return None
    return _Test(sum_, symbol in ("<=", ">="), leave.exit == "break")
