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
gone. It is done for one branch of a loop, since each doubles it, and where products multiply what the branch loads.
"""

from __future__ import annotations

from tilekit.compiler.ir.nodes import Operand, Operation, Region, Value, copied
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
    branches = [one for one in body.operations if one.kind == "if" and one.operands[0] not in inside and _loads(one, factors)]
    if not branches:
        return loop
    branch, *_ = branches
    at = body.operations.index(branch)
    (other,) = copied([loop], {})
    ways: list[Region] = []
    for each, way in ((loop, 0), (other, 1)):
        turn, results = each.regions[0], list(each.results)
        taken = turn.operations[at].regions[way]
        known: dict[Value, Operand] = dict(zip(turn.operations[at].results, taken.operands, strict=True))
        turn.operations[at : at + 1] = taken.operations
        turn.replace(known)
        ways.append(Region([], [each], "yield", list(results), loop.location))
    joined = [Value(value.name, value.type) for value in loop.results]
    results, loop.results = loop.results, joined
    ways[0].operands = list(joined)
    return Operation("if", [branch.operands[0]], branch.location, results=results, regions=ways)


def _loads(branch: Operation, factors: Factors) -> bool:
    """Whether a way of a branch loads an operand of products, and neither leaves the turn."""
    if any(region.exit != "yield" for region in branch.regions):
        return False
    return any(factors.loads_one(operation, computed=True) for region in branch.regions for operation in region.operations)
