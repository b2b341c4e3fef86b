"""Known bits, an analysis of values before LLVM sees them: of an integer, that it is a sum of terms and a constant, whose terms
are multiples of 2**k; of what depends on constants alone, the number.

Elements that a thread holds side by side, such as those of `tk.arange`, differ in the constant alone. An operation that asks for
the integer divided by a power of two (Philox: four neighbours share a counter) can see by it which of them are the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from llvmlite import ir

__all__ = ["Sum", "folded", "is_whole", "sum_of"]

_ALL_ZEROS = 64  # of the number 0


class Sum(NamedTuple):
    """An integer.

    Attributes:
        terms: what is added to the constant; two integers with equal terms differ by their constants.
        constant: not negative, modulo two to the width.
        zeros: how many of the terms' sum's lowest bits are sure to be zero.
        most: no less than the terms' sum, which is not negative; None if nothing is known.
    """

    terms: Hashable
    constant: int
    zeros: int
    maximum: int | None


def sum_of(value: ir.Value, depth: int = 24) -> Sum:
    """Known bits of `value`, an integer; it looks `depth` instructions back."""
    width = value.type.width
    if isinstance(value, ir.Constant):
        number = value.constant if isinstance(value.constant, int) else 0
        return Sum((), number % (1 << width), _ALL_ZEROS, 0)
    unknown = Sum(("value", id(value)), 0, 0, None)
    if depth == 0 or not isinstance(value, ir.instructions.Instruction):
        return unknown
    operands = value.operands
    match value:
        case ir.instructions.ExtractValue():
            held = _inserted(operands[0], value.indices)
            return unknown if held is None else sum_of(held, depth - 1)
        case ir.instructions.SelectInstr():
            chosen = _decided(operands[0])
            return unknown if chosen is None else sum_of(operands[1 if chosen else 2], depth - 1)
        case ir.instructions.CastInstr(opname="zext" | "sext" | "trunc" | "bitcast" as cast) if _integers(operands):
            return _cast(cast, width, operands[0].type.width, sum_of(operands[0], depth - 1))
        case ir.instructions.Instruction(opname=name) if len(operands) == 2 and _integers(operands):
            return _binary(name, width, sum_of(operands[0], depth - 1), sum_of(operands[1], depth - 1))
    return unknown


def _cast(name: str, width: int, narrow: int, inner: Sum) -> Sum:
    if name == "trunc":
        return Sum((name, width, inner.terms), inner.constant % (1 << width), inner.zeros, None)
    if not inner.terms:
        return inner if inner.constant < 1 << narrow - 1 else Sum((name, width, inner), 0, 0, None)
    below = inner.maximum is not None and inner.maximum + inner.constant < 1 << narrow - 1
    if name == "bitcast" or below or inner.constant < 1 << inner.zeros:  # the constant carries into no sign
        return Sum((name, width, inner.terms), inner.constant, inner.zeros, inner.maximum)
    return Sum((name, width, inner), 0, 0, None)


def _binary(name: str, width: int, a: Sum, b: Sum) -> Sum:
    modulus = 1 << width

    def bound(maximum: int | None) -> int | None:
        """What may be said of the result: nothing if it may wrap."""
        return maximum if maximum is not None and maximum < modulus >> 1 else None

    if name == "add":
        maximum = None if a.maximum is None or b.maximum is None else bound(a.maximum + b.maximum)
        return Sum((name, a.terms, b.terms), (a.constant + b.constant) % modulus, min(a.zeros, b.zeros), maximum)
    if not b.terms and name in ("mul", "shl"):
        factor = b.constant if name == "mul" else 1 << b.constant
        maximum = None if a.maximum is None else bound(a.maximum * factor)
        return Sum(("mul", a.terms, factor), a.constant * factor % modulus, a.zeros + _zeros(factor), maximum)
    if name == "lshr" and not b.terms and a.zeros >= b.constant:
        low = a.constant & (1 << a.zeros) - 1  # what carries into nothing; the rest counts as one of the terms
        maximum = None if a.maximum is None else bound(a.maximum + a.constant - low)
        terms = (name, a.terms, a.constant - low, b.constant)
        return Sum(terms, low >> b.constant, a.zeros - b.constant, None if maximum is None else maximum >> b.constant)
    if name == "and" and not b.terms:
        return Sum((name, a, b.constant), 0, _zeros(b.constant), bound(b.constant))
    zeros = min(min(s.zeros, _zeros(s.constant)) for s in (a, b)) if name in ("and", "or", "xor", "sub") else 0
    return Sum((name, a, b), 0, zeros, None)


def _zeros(number: int) -> int:
    return (number & -number).bit_length() - 1 if number else _ALL_ZEROS


def _integers(operands: list[ir.Value]) -> bool:
    return all(isinstance(operand.type, ir.IntType) for operand in operands)


def _inserted(aggregate: ir.Value, indices: tuple[int, ...]) -> ir.Value | None:
    """What was put into an aggregate at a place."""
    while isinstance(aggregate, ir.instructions.InsertValue):
        if tuple(aggregate.indices) == tuple(indices):
            return aggregate.operands[1]
        aggregate = aggregate.operands[0]
    return None


def _decided(condition: ir.Value) -> bool | None:
    """A comparison of constants, as shifts by constants have it."""
    if not isinstance(condition, ir.instructions.ICMPInstr) or condition.op != "ult":
        return None
    a, b = condition.operands
    return a.constant < b.constant if isinstance(a, ir.Constant) and isinstance(b, ir.Constant) else None


_ORDERS = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">=", "ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}


def folded(value: ir.Value) -> Any:
    """Constant folding: the number that instructions on constants compute, or None if they depend on anything else."""
    if isinstance(value, ir.Constant):
        return value.constant
    operands = [folded(operand) for operand in getattr(value, "operands", ())]
    if not operands or any(operand is None for operand in operands):
        return None
    match value:
        case ir.instructions.ICMPInstr():
            a, b = operands
            order = _ORDERS.get(value.op, {"eq": "==", "ne": "!="}.get(value.op))
            table = {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}
            return table.get(order)
        case ir.instructions.SelectInstr():
            return operands[1] if operands[0] else operands[2]
        case ir.instructions.CastInstr(opname="sext" | "zext" | "trunc"):
            return operands[0]
        case ir.instructions.ExtractValue():
            element: Any = operands[0]
            for at in value.indices:
                element = element[at]
            return element.constant if isinstance(element, ir.Constant) else element
        case ir.instructions.Instruction(opname="and" | "or" | "xor" as name):
            a, b = operands
            return {"and": a & b, "or": a | b, "xor": a ^ b}[name]
    return None


def is_whole(value: ir.Value, position: int | None = None) -> bool:
    """Whether a slice (or that at `position` of a tuple) is `:`, with nothing before or after the colon. What cannot be seen is
    taken for one.

    numba's type of a slice does not say; its value is a structure of start, stop and step, put together in memory.
    """
    if position is not None:
        inserted = _inserted(value, (position,))
        return inserted is None or is_whole(inserted)
    room = value.operands[0] if isinstance(value, ir.instructions.LoadInstr) else None
    if room is None:
        return True
    fields: dict[int, Any] = {}
    for block in value.parent.function.blocks:
        for instruction in block.instructions:
            match instruction:
                case ir.instructions.StoreInstr(operands=[stored, ir.instructions.GEPInstr(pointer=pointer, indices=[_, at])]):
                    if pointer is room:
                        fields[at.constant] = folded(stored)
    return not fields or (fields.get(0), fields.get(1), fields.get(2)) == (0, (1 << 63) - 1, 1)
