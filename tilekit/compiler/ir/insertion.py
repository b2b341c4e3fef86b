"""New operations, one after the other, for a pass to insert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilekit.compiler.ir.inference import infer
from tilekit.compiler.ir.nodes import Constant, Location, Operand, Operation, Value

__all__ = ["Insertion"]


class Insertion:
    """Operations for a place in the user's text, each with its type.

    Attributes:
        operations: so far.
    """

    def __init__(self, location: Location, defined: dict[Value, Operation] | None = None) -> None:
        self.location, self.operations = location, list[Operation]()
        self._defined = defined

    def emit(self, kind: str, operands: Sequence[Operand], what: object = None, **keywords: Operand) -> Value:
        """An operation with one result: that."""
        operation = Operation(kind, list(operands), self.location, what, keywords)
        result = infer(operation)
        assert isinstance(result, Value), "a tile, a view or a number"
        operation.results = [Value("t", result.type)]
        self.add([operation])
        return operation.results[0]

    def add(self, operations: Sequence[Operation]) -> None:
        """Operations that are there already."""
        self.operations += operations
        if self._defined is not None:
            self._defined.update((value, operation) for operation in operations for value in operation.results)

    def call(self, function: Callable[..., Any], *operands: Operand, **keywords: Operand) -> Value:
        """A call of a function of the language, or of `min` and `max`."""
        return self.emit("call", operands, Constant(function, function.__name__), **keywords)

    def plus(self, operand: Operand, number: int) -> Operand:
        """An int and a constant."""
        if isinstance(operand, Constant):
            return Constant(operand.value + number)
        return self.emit("binary", [operand, Constant(abs(number))], "+" if number > 0 else "-") if number else operand
