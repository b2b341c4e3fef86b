"""Affine analysis: integers as sums of multiples of values, with a constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.nodes import Constant, Location, Operand, Operation, Value
from tilekit.compiler.ir.symbols import INVERSE
from tilekit.compiler.ir.types import ScalarType

__all__ = ["Affine", "Condition", "affine", "condition_of", "materialized"]


@dataclass(frozen=True)
class Affine:
    """`sum(factor * value) + constant`. No factor is 0."""

    terms: Mapping[Value, int]
    constant: int

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        """The sum with `factor` times another."""
        terms = dict(self.terms)
        for value, number in other.terms.items():
            terms[value] = terms.get(value, 0) + factor * number
        return Affine({value: n for value, n in terms.items() if n}, self.constant + factor * other.constant)

    def times(self, factor: int) -> Affine:
        """A multiple."""
        return Affine({}, 0).plus(self, factor)

    def without(self, value: Value) -> Affine:
        """The sum of all but one value's multiples."""
        return Affine({v: n for v, n in self.terms.items() if v is not value}, self.constant)


def affine(operand: Operand, definitions: Mapping[Value, Operation]) -> Affine | None:
    """An int as such a sum, of values that are none themselves; None if it is no int. One of a dtype is a value by itself: their
    sums may wrap."""
    if isinstance(operand, Constant):
        return Affine({}, operand.value) if type(operand.value) is int else None
    if not isinstance(operand, Value) or not isinstance(operand.type, ScalarType):
        return None
    if operand.type != ScalarType(int):
        return Affine({operand: 1}, 0) if getattr(operand.type.kind, "kind", "") == "i" else None
    operation = definitions.get(operand)
    if operation is not None and operation.kind == "call" and operation.what.value is intrinsics.multiple:
        return affine(operation.operands[0], definitions)
    if operation is not None and (operation.kind, operation.what) == ("unary", "-"):
        negated = affine(operation.operands[0], definitions)
        return None if negated is None else negated.times(-1)
    if operation is not None and operation.kind == "binary" and operation.what in ("+", "-", "*"):
        first, second = (affine(part, definitions) for part in operation.operands)
        if first is not None and second is not None:
            if operation.what != "*":
                return first.plus(second, 1 if operation.what == "+" else -1)
            if not first.terms:
                return second.times(first.constant)
            if not second.terms:
                return first.times(second.constant)
    if operation is not None and (operation.kind, operation.what) == ("binary", "//"):
        first, second = (affine(part, definitions) for part in operation.operands)
        if first is not None and second is not None and not second.terms and second.constant > 0:
            divisor = second.constant
            if all(number % divisor == 0 for number in (*first.terms.values(), first.constant)):
                return Affine({value: number // divisor for value, number in first.terms.items()}, first.constant // divisor)
    return Affine({operand: 1}, 0)


def materialized(sum_: Affine, location: Location) -> tuple[list[Operation], Operand]:
    """Operations that compute a sum, and the operand that it then is."""
    operations: list[Operation] = []

    def emit(symbol: str, first: Operand, second: Operand) -> Value:
        result = Value("t", ScalarType(int))
        operations.append(Operation("binary", [first, second], location, symbol, results=[result]))
        return result

    total: Operand | None = None
    for value, factor in sum_.terms.items():
        part: Operand = value if factor == 1 else emit("*", value, Constant(factor))
        total = part if total is None else emit("+", total, part)
    if total is None:
        return operations, Constant(sum_.constant)
    return operations, emit("+", total, Constant(sum_.constant)) if sum_.constant else total


class Condition(NamedTuple):
    """A comparison of ints: `sum_ < 0`, `sum_ <= 0` or `sum_ != 0`, as `symbol` says."""

    sum_: Affine
    symbol: str


def condition_of(operand: Operand, *, holds: bool, definitions: Mapping[Value, Operation]) -> Condition | None:
    """That of a branch that is taken where `operand` holds, or where it does not; None if it is another."""
    made = definitions.get(operand) if isinstance(operand, Value) else None
    if made is not None and (made.kind, made.what) == ("unary", "not"):
        return condition_of(made.operands[0], holds=not holds, definitions=definitions)
    if made is not None and made.kind == "compare" and made.what in INVERSE:
        symbol = made.what if holds else INVERSE[made.what]
        less, more = made.operands[::-1] if symbol in (">", ">=") else made.operands
    else:  # a number that is not 0
        symbol, less, more = "!=" if holds else "==", operand, Constant(0)
    sums = affine(less, definitions), affine(more, definitions)
    if symbol == "==" or sums[0] is None or sums[1] is None:
        return None
    return Condition(sums[0].plus(sums[1], -1), symbol.replace(">", "<"))
