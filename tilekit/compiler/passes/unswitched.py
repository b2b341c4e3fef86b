"""Loops unswitched: a branch in a loop that loads operands, and that no turn decides, is decided before the loop.

    for k in range(n):                               if flag:
        if flag:                                         for k in range(n):
            tb = tk.load(b, (k, j), shape)                   tb = tk.load(b, (k, j), shape)
        else:                                                ...
            tb = tk.load(d, (k, j), shape)           else:
        ...                                              for k in range(n):
                                                             tb = tk.load(d, (k, j), shape)
                                                             ...

A stream is of one tensor: each of the loops has its own, and they share a ring of stages.

Legal always, for a condition that is computed before the loop: one of the two loops runs, with the way that each turn would have
gone. It is done for the branches by one condition, since each doubles a loop, and where products multiply what they load.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.nodes import Operand, Operation, Region, Value, copied
from tilekit.compiler.ir.types import ScalarType
from tilekit.compiler.passes.factors import Factors

__all__ = ["unswitch_loops"]


def unswitch_loops(kernel: Region) -> None:
    """Unswitch loops of a kernel."""
    factors = Factors(kernel)
    for region in list(kernel.regions()):
        region.operations = [_unswitched(operation, factors) for operation in region.operations]


def _unswitched(loop: Operation, factors: Factors) -> Operation:
    """The branch between two loops, in the place of a loop with such a branch; any other operation as it is."""
    if loop.kind != "for":
        return loop
    (body,) = loop.regions
    inside = set(body.parameters) | {value for operation in body.walk() for value in operation.results}
    branches = [one for one in body.operations if _is_branch(one) and one.operands[0] not in inside and _loads(one, factors)]
    if not branches:
        return loop
    branch, *_ = branches
    condition = branch.operands[0]
    decided = [
        at
        for at, one in enumerate(body.operations)
        if _is_branch(one) and _says_the_same(one.operands[0], condition, factors.definitions)
    ]
    (other,) = copied([loop], {})
    ways: list[Region] = []
    for each, way in ((loop, 0), (other, 1)):
        turn, results = each.regions[0], list(each.results)
        known: dict[Value, Operand] = {}
        for at in reversed(decided):
            taken = turn.operations[at].regions[way]
            known |= zip(turn.operations[at].results, taken.operands, strict=True)
            turn.operations[at : at + 1] = taken.operations
        turn.replace(known)
        ways.append(Region([], [each], "yield", list(results), loop.location))
    joined = [Value(value.name, value.type) for value in loop.results]
    results, loop.results = loop.results, joined
    ways[0].operands = list(joined)
    return Operation("if", [condition], branch.location, results=results, regions=ways)


def _is_branch(operation: Operation) -> bool:
    """Whether it is a branch both ways of which go on behind it."""
    return operation.kind == "if" and all(region.exit == "yield" for region in operation.regions)


def _says_the_same(one: Operand, other: Operand, defined: Mapping[Value, Operation]) -> bool:
    """Whether two conditions are one, that is perhaps computed twice."""
    first, second = (defined.get(each) if isinstance(each, Value) else None for each in (one, other))
    if one == other or first is None or second is None:
        return one == other
    return (
        first.kind in ("compare", "binary", "unary")
        and isinstance(first.results[0].type, ScalarType)
        and (first.kind, first.what) == (second.kind, second.what)
        and all(_says_the_same(*pair, defined) for pair in zip(first.operands, second.operands, strict=True))
    )


def _loads(branch: Operation, factors: Factors) -> bool:
    """Whether a way of a branch loads an operand of products."""
    return any(factors.loads_one(operation, computed=True) for region in branch.regions for operation in region.operations)
