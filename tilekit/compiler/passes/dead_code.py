"""Dead code elimination: operations whose results nobody reads, and values that loops carry round for themselves alone.

Legal for what has no effect but to read memory (`ir.effects`). A `while`, and a loop over anything but numbers and streams, stay:
whether they end is not known.
"""

from __future__ import annotations

from collections.abc import Callable

from tilekit.compiler.ir.effects import READS, effects
from tilekit.compiler.ir.nodes import LOOPS, Operand, Operation, Region, Value, values_of

__all__ = ["Liveness", "eliminate_dead_code"]


def eliminate_dead_code(kernel: Region) -> None:
    """Take out of a kernel what has no part in what it does."""
    Liveness(kernel, _does_something).narrow(kernel)


def _does_something(operation: Operation) -> bool:
    leaves = any(region.exit != "yield" for region in operation.regions)
    return leaves or operation.kind in ("while", "each") or not (operation.regions or effects(operation) <= {READS})


class Liveness:
    """What has a part in what is wanted of a kernel.

    Attributes:
        operations, values: these.
    """

    def __init__(self, kernel: Region, wanted: Callable[[Operation], bool]) -> None:
        self.operations: set[Operation] = set()
        self.values: set[Value] = set()
        self._owner: dict[Operation, Operation | None] = {}
        self._made_by: dict[Value, tuple[Operation, int]] = {}
        self._loop_of: dict[Value, tuple[Operation, int]] = {}
        self._index(kernel, None)
        self._waiting: list[Value] = []
        for operation in list(self._owner):
            if wanted(operation):
                self._keep(operation)
        while self._waiting:
            self._trace(self._waiting.pop())

    def narrow(self, kernel: Region) -> None:
        """Take the rest out of the kernel."""
        for region in kernel.regions():
            region.operations = [operation for operation in region.operations if operation in self.operations]
        for operation in kernel.walk():
            if operation.kind in LOOPS:
                _narrow_loop(operation, self.values)
            elif operation.kind == "if":
                _narrow_branch(operation, self.values)

    def _index(self, region: Region, owner: Operation | None) -> None:
        for operation in region.operations:
            self._owner[operation] = owner
            self._made_by |= {value: (operation, at) for at, value in enumerate(operation.results)}
            if operation.kind in LOOPS:
                first = len(operation.regions[0].parameters) - len(operation.results)
                for at, value in enumerate(operation.regions[0].parameters):
                    self._loop_of[value] = operation, at - first
            for inner in operation.regions:
                self._index(inner, operation)

    def _keep(self, operation: Operation | None) -> None:
        """This operation is needed, and so are those that it stands in."""
        while operation is not None and operation not in self.operations:
            self.operations.add(operation)
            over = len(operation.operands) - (len(operation.results) if operation.kind in LOOPS else 0)
            for operand in (*operation.operands[:over], *operation.keywords.values()):
                self._read(operand)
            for branch in operation.regions[0].ways_out() if operation.kind in LOOPS else ():
                self._keep(branch)
            operation = self._owner[operation]

    def _read(self, operand: Operand) -> None:
        for value in values_of(operand):
            if value not in self.values:
                self.values.add(value)
                self._waiting.append(value)

    def _trace(self, value: Value) -> None:
        """Keep what a value is made of."""
        if value in self._made_by:
            operation, at = self._made_by[value]
            self._keep(operation)
            if operation.kind in LOOPS:
                self._read(operation.carried[at])
            for region in operation.regions if operation.kind == "if" else ():
                if region.exit == "yield":
                    self._read(region.operands[at])
        elif value in self._loop_of:
            operation, at = self._loop_of[value]
            self._keep(operation)
            if at >= 0:
                self._read(operation.initial[at])
                for region in operation.ends():
                    self._read(region.operands[at])


def _narrow_loop(loop: Operation, live: set[Value]) -> None:
    """Carry what is live."""
    carried, initial = loop.carried, loop.initial
    kept = [at for at, value in enumerate(carried) if value in live]
    if len(kept) == len(carried):
        return
    for region in list(loop.ends()):
        region.operands = [region.operands[at] for at in kept]
    (region,) = loop.regions
    region.parameters[len(region.parameters) - len(carried) :] = [carried[at] for at in kept]
    loop.operands[len(loop.operands) - len(initial) :] = [initial[at] for at in kept]
    loop.results = [loop.results[at] for at in kept]


def _narrow_branch(branch: Operation, live: set[Value]) -> None:
    """Hand on what is live."""
    kept = [at for at, value in enumerate(branch.results) if value in live]
    for region in branch.regions:
        if region.exit == "yield":
            region.operands = [region.operands[at] for at in kept]
    branch.results = [branch.results[at] for at in kept]
