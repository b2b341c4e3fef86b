"""Multiples: where slices begin. A tile of `x.slice(1, 160 * j)` may be accessed 16 bytes at a time, as one of `x` may be.

    x.slice(1, begin)            x.slice(1, tilekit__multiple(begin, 32))

Legal always: the number is the same. That it is a multiple follows from how it is computed, whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.ir.affine import affine
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Region, Value, definitions

__all__ = ["divisor_of", "find_multiples"]

_START = 2  # the operand of `slice`, behind the tensor and the axis


def find_multiples(kernel: Region) -> None:
    """Say of each slice of a kernel of which number its start is a multiple, if it is known to be of one."""
    defined = definitions(kernel)
    for region in kernel.regions():
        operations = []
        for operation in region.operations:
            start = _start(operation)
            number = 1 if start is None else divisor_of(start, defined)
            if start is not None and number > 1:
                multiple = Value(start.name, start.type)
                function = Constant(intrinsics.multiple, "tilekit__multiple")
                call = Operation("call", [start, Constant(number)], operation.location, function, results=[multiple])
                operations.append(call)
                _replace_start(operation, multiple)
            operations.append(operation)
        region.operations = operations


def _start(operation: Operation) -> Value | None:
    """Where a slice begins, if that is no constant."""
    if (operation.kind, operation.what) != ("method", "slice"):
        return None
    start = operation.keywords.get("start", operation.operands[_START] if len(operation.operands) > _START else None)
    return start if isinstance(start, Value) else None


def _replace_start(operation: Operation, start: Value) -> None:
    if "start" in operation.keywords:
        operation.keywords["start"] = start
    else:
        operation.operands[_START] = start


def divisor_of(operand: Operand, defined: Mapping[Value, Operation]) -> int:
    """The largest number that an int is known to be a multiple of; 0 of 0."""
    operation = defined.get(operand) if isinstance(operand, Value) else None
    if operation is not None and operation.kind == "call" and operation.what.value in (min, max) and not operation.keywords:
        return math.gcd(*(divisor_of(each, defined) for each in operation.operands))
    if operation is not None and operation.kind == "if":
        at = operation.results.index(operand)  # type: ignore[arg-type]
        if all(region.exit == "yield" for region in operation.regions):
            return math.gcd(*(divisor_of(region.operands[at], defined) for region in operation.regions))
    total = affine(operand, defined)
    if total is None or operand in total.terms:
        return 1
    terms = (factor * max(1, divisor_of(value, defined)) for value, factor in total.terms.items())
    return math.gcd(total.constant, *terms)
