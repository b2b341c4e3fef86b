"""Small steps that every lowering takes: inline PTX, special registers, fragments in and out of LLVM arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import nvvmutils, types

from tilekit.compiler.types import i64, integer

__all__ = ["all_of", "asm", "constant_tuple", "pack", "special_register", "thread_coordinates", "unpack"]


def asm(
    builder: ir.IRBuilder, text: str, constraints: str, result: ir.Type, args: Sequence[ir.Value], *, effect: bool = False
) -> ir.Value:
    """One piece of PTX. With `effect` it is neither dropped nor moved past another that has one."""
    function = ir.FunctionType(result, [a.type for a in args])
    return builder.call(ir.InlineAsm(function, text, constraints, side_effect=effect), args)


def special_register(builder: ir.IRBuilder, name: str) -> ir.Value:
    """A 32-bit special register, such as `tid.x`."""
    return nvvmutils.call_sreg(builder, name)


def unpack(builder: ir.IRBuilder, fragment: ir.Value) -> list[ir.Value]:
    """The elements of a fragment, by register."""
    return [builder.extract_value(fragment, r) for r in range(fragment.type.count)]


def pack(builder: ir.IRBuilder, elements: Sequence[ir.Value]) -> ir.Value:
    """A fragment of the given elements."""
    fragment: Any = ir.Constant(ir.ArrayType(elements[0].type, len(elements)), ir.Undefined)
    for r, element in enumerate(elements):
        fragment = builder.insert_value(fragment, element, r)
    return fragment


def constant_tuple(values: tuple[int, ...]) -> tuple[types.Type, Callable[..., ir.Value]]:
    """A tuple of compile-time ints, as an operation's result: the type knows the values, so that it can serve as a tile shape."""
    ty = types.BaseTuple.from_types([types.literal(v) for v in values])
    alike = isinstance(ty, types.UniTuple)
    llvm = ir.ArrayType(i64, len(values)) if alike else ir.LiteralStructType([i64] * len(values))
    return ty, lambda builder, *_: ir.Constant(llvm, [integer(64, v) for v in values])


def all_of(builder: ir.IRBuilder, conditions: Sequence[ir.Value | None]) -> ir.Value | None:
    """The conjunction of conditions (i1), where None is one that always holds."""
    result = None
    for condition in conditions:
        if condition is not None:
            result = condition if result is None else builder.and_(result, condition)
    return result


def thread_coordinates(builder: ir.IRBuilder, thread: ir.Value, basis: Sequence[tuple[int, ...]]) -> list[ir.Value]:
    """The coordinate of the thread's register 0, each dimension an i32.

    Bits that step by 1, 2, 4... times one stride move together, so that a dimension costs a mask and a shift, as a rule.
    """
    coordinate = []
    for dim in range(len(basis[0])):
        value: Any = None
        bit = 0
        while bit < len(basis):
            step, end = basis[bit][dim], bit + 1
            while end < len(basis) and step and basis[end][dim] == basis[end - 1][dim] * 2:
                end += 1
            if step:
                piece = builder.and_(thread, integer(32, (1 << end) - (1 << bit)))
                shift = step.bit_length() - 1 - bit
                if shift:
                    piece = builder.shl(piece, integer(32, shift)) if shift > 0 else builder.lshr(piece, integer(32, -shift))
                value = piece if value is None else builder.or_(value, piece)
            bit = end
        coordinate.append(integer(32, 0) if value is None else value)
    return coordinate
