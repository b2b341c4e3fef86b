"""The verifier: whether a kernel in the IR is well formed. It runs behind each pass in tests."""

from __future__ import annotations

from collections.abc import Iterable

from tilekit.compiler.ir.nodes import LOOPS, Operation, Region, Value, values_of
from tilekit.compiler.ir.types import ScalarType, Type, Unknown

__all__ = ["MalformedIR", "verify"]

_REGIONS = {"if": 2, "for": 1, "each": 1, "while": 1, "stream": 1}


class MalformedIR(AssertionError):
    """A pass, or the builder, has made a kernel that means nothing: a mistake of tilekit's."""


def verify(kernel: Region) -> None:
    """Check a kernel: each value is defined once, and before it is read, and all control flow ends with what is awaited there.

    Raises:
        MalformedIR: it says what, and where.
    """
    _Verifier().region(kernel, set(), None, [])


class _Verifier:
    def __init__(self) -> None:
        self.defined: set[Value] = set()

    def region(self, region: Region, seen: set[Value], owner: Operation | None, loops: list[Operation]) -> None:
        """Check a region, in which the values in `seen` may be read."""
        seen = set(seen)
        self.define(region.parameters, seen, owner)
        for operation in region.operations:
            self.operation(operation, seen, loops)
            self.define(operation.results, seen, operation)
        for operand in region.operands:
            self.read(values_of(operand), seen, owner)
        self.exit(region, owner, loops)

    def operation(self, operation: Operation, seen: set[Value], loops: list[Operation]) -> None:
        self.read(operation.reads(), seen, operation)
        if len(operation.regions) != _REGIONS.get(operation.kind, 0):
            self.fail(operation, f"{operation.kind} has {len(operation.regions)} regions")
        inner = [*loops, operation] if operation.kind in LOOPS else loops
        for region in operation.regions:
            self.region(region, seen, operation, inner)
        if operation.kind in LOOPS:
            carried = operation.carried
            if len(carried) != len(operation.results) or len(operation.operands) < len(carried):
                self.fail(operation, "the carried values are not as many as the results")

    def exit(self, region: Region, owner: Operation | None, loops: list[Operation]) -> None:
        """Check what a region ends with."""
        if region.exit == "return":
            awaited: list[Value] = []
        elif region.exit == "yield":
            if owner is None:
                self.fail(owner, "the kernel ends with a yield")
            assert owner is not None
            awaited = owner.carried if owner.kind in LOOPS else owner.results
        elif region.exit in ("break", "continue"):
            if not loops:
                self.fail(owner, f"{region.exit} outside of a loop")
            awaited = loops[-1].carried
        else:
            self.fail(owner, f"a region ends with {region.exit}")
        if len(awaited) != len(region.operands):
            self.fail(owner, f"{region.exit} with {len(region.operands)} values, where {len(awaited)} are awaited")
        for value, operand in zip(awaited, region.operands, strict=True):
            if isinstance(operand, Value) and not _fits(operand.type, value.type):
                self.fail(owner, f"{region.exit} with a {operand.type} for {value.name}, a {value.type}")

    def define(self, values: Iterable[Value], seen: set[Value], owner: Operation | None) -> None:
        for value in values:
            if value in self.defined:
                self.fail(owner, f"{value.name} is defined twice")
            self.defined.add(value)
            seen.add(value)

    def read(self, values: Iterable[Value], seen: set[Value], owner: Operation | None) -> None:
        for value in values:
            if value not in seen:
                self.fail(owner, f"{value.name} is read where it is not defined")

    def fail(self, owner: Operation | None, reason: str) -> None:
        raise MalformedIR(reason if owner is None else f"{owner.location}: {reason}")


def _fits(actual: Type, awaited: Type) -> bool:
    if isinstance(actual, Unknown) or isinstance(awaited, (Unknown, ScalarType)):
        return True
    return actual == awaited
