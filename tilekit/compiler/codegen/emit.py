"""Small steps that every lowering takes: inline PTX, special registers, fragments in and out of LLVM arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import nvvmutils, types

from tilekit.compiler.codegen.types import i64, integer

__all__ = [
    "MAP_NAME", "all_of", "as_wide_as", "asm", "constant_tuple", "elected", "masked", "pack", "special_register",
    "thread_coordinates", "unpack", "xor_of_bits",
]  # fmt: skip


MAP_NAME = "tilekit_map_"
"""What a kernel's parameters for tensor maps are called, with a number each; they are its last."""


def asm(
    builder: ir.IRBuilder,
    text: str,
    constraints: str,
    result: ir.Type,
    args: Sequence[ir.Value],
    *,
    effect: bool = False,
    convergent: bool = False,
    once: bool = False,
) -> ir.Value:
    """One piece of PTX.

    Args:
        builder: at the place where it goes.
        text: the instructions, with `$0`, `$1`... for result and arguments.
        constraints: LLVM's, one letter for each.
        result: its type, `ir.VoidType()` for none.
        args: the arguments.
        effect: it is neither dropped nor moved past another that has an effect.
        convergent: threads of a warp, or all of the block, take part together; it has an effect, too.
        once: it stands in the program once; so a loop around it is not unrolled.
    """
    function = ir.FunctionType(result, [a.type for a in args])
    call = builder.call(ir.InlineAsm(function, text, constraints, side_effect=effect or convergent), args)
    if convergent:
        call.attributes.add("convergent")
    if once:
        set.add(call.attributes, "noduplicate")  # of calls, llvmlite does not know this one
    return call


def elected(builder: ir.IRBuilder) -> ir.Value:
    """Whether a thread is the one of its warp that elect.sync chooses, which all threads of the warp ask together.

    Of other single threads ptxas does not know that they are, and has the copies of each done in a loop over all of a warp.
    """
    text = "{ .reg .pred one; elect.sync _|one, -1; selp.u32 $0, 1, 0, one; }"
    return builder.trunc(asm(builder, text, "=r", ir.IntType(32), [], convergent=True), ir.IntType(1))


def masked(builder: ir.IRBuilder, bits: ir.Value, mask: ir.Value) -> ir.Value:
    """`bits & mask`, of integers.

    With 16 bits, it is computed with 32: of two 16-bit floats that are rounded from float32 together, ptxas 13.0 loses the
    constant mask of the first.
    """
    if bits.type.width != 16:
        return builder.and_(bits, mask)
    text = "mov.b16 none, 0; mov.b32 x, {$1, none}; mov.b32 y, {$2, none}; and.b32 x, x, y; mov.b32 {$0, none}, x;"
    return asm(builder, f"{{ .reg .b16 none; .reg .b32 x, y; {text} }}", "=h,h,h", bits.type, [bits, mask])


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


def xor_of_bits(builder: ir.IRBuilder, number: ir.Value, masks: Sequence[int]) -> ir.Value:
    """The XOR of `masks[b]` over the bits `b` that are set in `number`, an i32.

    Bits that move by one distance move together: a distance costs a mask and a shift.
    """
    moves: dict[int, int] = {}
    for bit, mask in enumerate(masks):
        for target in range(mask.bit_length()):
            if mask >> target & 1:
                moves[target - bit] = moves.get(target - bit, 0) | 1 << bit
    total: Any = None
    for distance, bits in moves.items():
        piece = builder.and_(number, integer(32, bits))
        if distance:
            piece = (builder.shl if distance > 0 else builder.lshr)(piece, integer(32, abs(distance)))
        total = piece if total is None else builder.xor(total, piece)
    return integer(32, 0) if total is None else total


def thread_coordinates(builder: ir.IRBuilder, thread: ir.Value, basis: Sequence[tuple[int, ...]]) -> list[ir.Value]:
    """The coordinate of the thread's register 0, each dimension an i32."""
    return [xor_of_bits(builder, thread, [vector[dim] for vector in basis]) for dim in range(len(basis[0]))]


def as_wide_as(builder: ir.IRBuilder, value: ir.Value, other: ir.Value) -> ir.Value:
    """A count, which is not negative, in the type of another one; it fits."""
    if value.type == other.type:
        return value
    return (builder.trunc if other.type.width < value.type.width else builder.zext)(value, other.type)
