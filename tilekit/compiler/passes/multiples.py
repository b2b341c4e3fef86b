"""Multiples: where slices begin and end. Tiles of `x.slice(1, 160 * j)` may be accessed 16 bytes at a time, as those of `x`.

    x.slice(1, begin)            x.slice(1, tilekit__multiple(begin, 32))

Legal always: the number is the same. That it is a multiple follows from how it is computed, whatever the values are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.affine import Affine, affine
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import TensorType

__all__ = ["ANYWHERE", "Congruence", "congruence_of", "divisor_of", "divisor_of_sum", "find_multiples", "slice_of"]

_NAMES = ("axis", "start", "stop")  # of what `slice` is given


def find_multiples(kernel: Region) -> int:
    """Say of each slice of a kernel of which numbers its start and its stop are multiples; of how many of them."""
    defined, count = definitions(kernel), 0
    for region in kernel.regions():
        operations = []
        for operation in region.operations:
            for at, bound in enumerate(slice_of(operation) or ()):
                number = divisor_of(bound, defined)
                if isinstance(bound, Value) and number > 1:
                    multiple = Value(bound.name, bound.type)
                    function = Constant(intrinsics.multiple, "tilekit__multiple")
                    call = Operation("call", [bound, Constant(number)], operation.location, function, results=[multiple])
                    operations.append(call)
                    _replace(operation, at, multiple)
                    count += 1
            operations.append(operation)
        region.operations = operations
    return count


def slice_of(operation: Operation) -> tuple[Operand, Operand, Operand] | None:
    """The axis of a slice, where it begins, and where it ends: `None` at the tensor's end. None if it is none."""
    if (operation.kind, operation.what) != ("method", "slice"):
        return None
    axis, start, stop = (
        operation.keywords.get(name, operation.operands[at] if len(operation.operands) > at else Constant(None))
        for at, name in enumerate(_NAMES, 1)
    )
    return axis, start, stop


def _replace(operation: Operation, at: int, bound: Value) -> None:
    if _NAMES[at] in operation.keywords:
        operation.keywords[_NAMES[at]] = bound
    else:
        operation.operands[1 + at] = bound


class Congruence(NamedTuple):
    """Numbers that are an offset and multiples of a period; the offset alone if that is 0. (Granger, "Static analysis of
    arithmetical congruences", 1989.)"""

    period: int
    offset: int

    def plus(self, other: Congruence, factor: int = 1) -> Congruence:
        """The sums with `factor` times others."""
        return self._of(math.gcd(self.period, factor * other.period), self.offset + factor * other.offset)

    def join(self, other: Congruence) -> Congruence:
        """These numbers and others."""
        return self._of(math.gcd(self.period, other.period, self.offset - other.offset), self.offset)

    @staticmethod
    def _of(period: int, offset: int) -> Congruence:
        return Congruence(period, offset % period if period else offset)


ANYWHERE = Congruence(1, 0)


def congruence_of(operand: Operand, defined: Mapping[Value, Operation]) -> Congruence:
    """What an int is known to be."""
    operation = defined.get(operand) if isinstance(operand, Value) else None
    if operation is not None and operation.kind == "call" and operation.what.value in (min, max) and not operation.keywords:
        return functools.reduce(Congruence.join, (congruence_of(each, defined) for each in operation.operands))
    if operation is not None and operation.kind == "if":
        at = operation.results.index(operand)  # type: ignore[arg-type]
        if all(region.exit == "yield" for region in operation.regions):
            return functools.reduce(Congruence.join, (congruence_of(each.operands[at], defined) for each in operation.regions))
    if operation is not None and (operation.kind, operation.what) == ("attribute", "shape"):
        (tensor,) = operation.operands
        known = isinstance(tensor, Value) and isinstance(tensor.type, TensorType)
        return Congruence(tensor.type.facts.extents[operation.results.index(operand)], 0) if known else ANYWHERE  # type: ignore[union-attr, arg-type]
    if operation is not None and (operation.kind, operation.what) == ("binary", "//"):
        whole, by = operation.operands
        multiple = divisor_of(whole, defined)
        if isinstance(by, Constant) and type(by.value) is int and by.value > 0 and multiple % by.value == 0:
            return Congruence(multiple // by.value, 0)
    total = affine(operand, defined)
    return ANYWHERE if total is None or operand in total.terms else _of_sum(total, defined)


def _of_sum(total: Affine, defined: Mapping[Value, Operation]) -> Congruence:
    sum_ = Congruence(0, total.constant)
    for value, factor in total.terms.items():
        sum_ = sum_.plus(congruence_of(value, defined), factor)
    return sum_


def divisor_of(operand: Operand, defined: Mapping[Value, Operation]) -> int:
    """The largest number that an int is known to be a multiple of; 0 of 0."""
    return math.gcd(*congruence_of(operand, defined))


def divisor_of_sum(total: Affine, defined: Mapping[Value, Operation]) -> int:
    """The same of a sum."""
    return math.gcd(*_of_sum(total, defined))
