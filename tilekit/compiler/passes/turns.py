"""Turns with one end: what follows `if ...: continue` in a loop becomes the other way of that branch.

    for k in range(n):                    for k in range(n):
        if skipped:                           if skipped:
            continue                              pass
        ...                                   else:
                                                  ...

Legal always. A loop whose turns all end in one place may have streams.
"""

from __future__ import annotations

from tilekit.compiler.ir.nodes import Operand, Operation, Region, Value

__all__ = ["end_turns_together"]

_LOOPS = ("for", "stream")


def end_turns_together(kernel: Region) -> None:
    """Give the turns of a kernel's loops one end each, but for those that leave the loop."""
    for operation in list(kernel.walk()):
        if operation.kind in _LOOPS:
            (body,) = operation.regions
            if body.exit == "yield":
                _join(body, operation.carried)


def _join(region: Region, carried: list[Value]) -> None:
    """Give a turn one end, or a branch that is the last of it."""
    for at, branch in enumerate(region.operations):
        if branch.kind != "if" or sorted(way.exit for way in branch.regions) != ["continue", "yield"]:
            continue
        ended, other = sorted(branch.regions, key=lambda way: way.exit)
        known: dict[Value, Operand] = dict(zip(branch.results, other.operands, strict=True))
        rest = Region([], region.operations[at + 1 :], "yield", list(region.operands))
        rest.replace(known)
        other.operations, other.operands, ended.exit = [*other.operations, *rest.operations], rest.operands, "yield"
        results = [Value(value.name, value.type) for value in carried]
        joined = Operation("if", branch.operands, branch.location, results=results, regions=branch.regions)
        region.operations, region.operands = [*region.operations[:at], joined], list(results)
        _join(other, carried)
        return
