"""Lower bounds of ints: what they are at least, whatever the values are."""

from __future__ import annotations

from collections.abc import Mapping

from tilekit.compiler.ir.affine import Affine, affine
from tilekit.compiler.ir.nodes import Constant, Operand, Operation, Value
from tilekit.compiler.ir.types import TensorType
from tilekit.lang import calculation, memory

__all__ = ["is_above", "least"]


def least(operand: Operand, definitions: Mapping[Value, Operation]) -> int | None:
    """A number that an int is not below; None if none is known."""
    operation = definitions.get(operand) if isinstance(operand, Value) else None
    if operation is not None and (operation.kind, operation.what) == ("attribute", "shape"):
        return _extent(operation.operands[0], operation.results.index(operand))  # type: ignore[arg-type]
    if operation is not None and operation.kind == "call" and not operation.keywords:
        function, bounds = operation.what.value, [least(each, definitions) for each in operation.operands]
        known = [bound for bound in bounds if bound is not None]
        if function is max:
            return max(known) if known else None
        if function is min:
            return min(known) if len(known) == len(bounds) else None
        if function is calculation.cdiv and bounds[0] is not None and (by := _divisor(operation.operands[1])):
            return -(-bounds[0] // by)
        if function is memory.bid:
            return 0
        if function is memory.num_tiles and isinstance(operation.operands[1], Constant):
            extent = _extent(operation.operands[0], operation.operands[1].value)
            return None if extent is None else min(1, extent)
    if operation is not None and (operation.kind, operation.what) == ("binary", "//") and (by := _divisor(operation.operands[1])):
        bound = least(operation.operands[0], definitions)
        return None if bound is None else bound // by
    sum_ = affine(operand, definitions)
    return None if sum_ is None or operand in sum_.terms else _least_of_sum(sum_, definitions)


def is_above(operand: Operand, other: Operand, definitions: Mapping[Value, Operation]) -> bool:
    """Whether an int is known to be larger than another."""
    operation = definitions.get(operand) if isinstance(operand, Value) else None
    if operation is not None and operation.kind == "call" and operation.what.value in (min, max) and not operation.keywords:
        above = (is_above(each, other, definitions) for each in operation.operands)
        return any(above) if operation.what.value is max else all(above)
    first, second = affine(operand, definitions), affine(other, definitions)
    if first is None or second is None:
        return False
    difference = first.plus(second, -1)
    bound = least(operand, definitions) if second == Affine({}, 0) else _least_of_sum(difference, definitions)
    return bound is not None and bound > 0


def _least_of_sum(sum_: Affine, definitions: Mapping[Value, Operation]) -> int | None:
    bounds = {value: least(value, definitions) for value in sum_.terms}
    if any(factor < 0 or bounds[value] is None for value, factor in sum_.terms.items()):
        return None
    return sum_.constant + sum(factor * (bounds[value] or 0) for value, factor in sum_.terms.items())


def _divisor(operand: Operand) -> int:
    """A positive constant; 0 if it is none."""
    number = operand.value if isinstance(operand, Constant) else 0
    return number if type(number) is int and number > 0 else 0


def _extent(tensor: Operand, dim: int) -> int | None:
    """What an extent is at least: of those that are not 0 it is known that they are multiples of something."""
    if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType):
        return None
    multiple = tensor.type.facts.extents[dim]
    return multiple if multiple > 1 else 0
