"""Tensors that a condition chooses, while the IR is built: what reads one stands in a branch, once for each tensor.

    w = b if flag else d              if flag:
    t = tk.load(w, i, n)   becomes        t = tk.load(b, i, n)
                                      else:
                                          t = tk.load(d, i, n)

So every access is one of a parameter that is known, for passes and for both devices. A loop that reads such a tensor stands in
the branch as a whole, and is compiled as with the one tensor, or with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilekit.compiler.ir.constants import may_be_one
from tilekit.compiler.ir.frames import Environment
from tilekit.compiler.ir.nodes import Choice, Constant, Group, Operand, Undefined, Value, View, parts_of, rebuilt_of
from tilekit.compiler.ir.types import ObjectType, TensorType

__all__ = ["are_alternatives", "choices_in", "is_view", "picked", "picked_environment"]


def choices_in(operands: Iterable[Operand]) -> Iterator[Choice]:
    """The choices that operands are put together of, those of views, too."""
    for operand in operands:
        if isinstance(operand, Choice):
            yield operand
        elif not isinstance(operand, (Value, Constant, Undefined)):
            yield from choices_in(parts_of(operand))


def picked(operand: Operand, condition: Operand, way: int) -> Operand:
    """An operand where a condition holds (`way` is 0), or where it does not."""
    if isinstance(operand, (Value, Constant, Undefined)):
        return operand
    if isinstance(operand, Choice) and operand.condition is condition:
        return picked((operand.first, operand.second)[way], condition, way)
    return rebuilt_of(operand, lambda part: picked(part, condition, way))


def picked_environment(environment: Environment, condition: Operand, way: int) -> Environment:
    """The variables there."""
    return {name: picked(operand, condition, way) for name, operand in environment.items()}


def is_view(operand: Operand) -> bool:
    """Whether an operand is a tensor, or a view of one: a slice, a row of tiles, several such."""
    if isinstance(operand, (Choice, View)):
        return True
    ty = operand.type if isinstance(operand, Value) else None
    return isinstance(ty, TensorType) or (isinstance(ty, ObjectType) and (hasattr(ty.object, "__iter__") or ty.is_view))


def are_alternatives(first: Operand, second: Operand) -> bool:
    """Whether a condition chooses between two operands that have tensors in them, others on each side."""
    if may_be_one(first, second):
        return False
    if isinstance(first, Group) and isinstance(second, Group):
        pairs = zip(first.parts, second.parts, strict=False)
        return len(first.parts) == len(second.parts) and all(may_be_one(*pair) or are_alternatives(*pair) for pair in pairs)
    return is_view(first) and is_view(second)
