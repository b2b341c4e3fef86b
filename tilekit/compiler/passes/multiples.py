"""Multiples: where slices begin and end. Tiles of `x.slice(1, 160 * j)` may be accessed 16 bytes at a time, as those of `x`.

    x.slice(1, begin)            x.slice(1, tilekit__multiple(begin, 32))

Legal always: the number is the same. That it is a multiple follows from how it is computed, whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.affine import Affine, affine
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions
from tilekit.compiler.ir.types import TensorType

__all__ = ["divisor_of", "divisor_of_sum", "find_multiples", "slice_of"]

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


def divisor_of(operand: Operand, defined: Mapping[Value, Operation]) -> int:
    """The largest number that an int is known to be a multiple of; 0 of 0."""
    operation = defined.get(operand) if isinstance(operand, Value) else None
    if operation is not None and operation.kind == "call" and operation.what.value in (min, max) and not operation.keywords:
        return math.gcd(*(divisor_of(each, defined) for each in operation.operands))
    if operation is not None and operation.kind == "if":
        at = operation.results.index(operand)  # type: ignore[arg-type]
        if all(region.exit == "yield" for region in operation.regions):
            return math.gcd(*(divisor_of(region.operands[at], defined) for region in operation.regions))
    if operation is not None and (operation.kind, operation.what) == ("attribute", "shape"):
        (tensor,) = operation.operands
        known = isinstance(tensor, Value) and isinstance(tensor.type, TensorType)
        return tensor.type.facts.extents[operation.results.index(operand)] if known else 1  # type: ignore[union-attr, arg-type]
    if operation is not None and (operation.kind, operation.what) == ("binary", "//"):
        whole, by = operation.operands
        multiple = divisor_of(whole, defined)
        if isinstance(by, Constant) and type(by.value) is int and by.value > 0 and multiple % by.value == 0:
            return multiple // by.value
    total = affine(operand, defined)
    return 1 if total is None or operand in total.terms else divisor_of_sum(total, defined)


def divisor_of_sum(total: Affine, defined: Mapping[Value, Operation]) -> int:
    """The same of a sum."""
    terms = (factor * max(1, divisor_of(value, defined)) for value, factor in total.terms.items())
    return math.gcd(total.constant, *terms)
