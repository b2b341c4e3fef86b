"""Packing of narrow elements into 32-bit registers, and the width of a memory access."""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen.types import i8, i16, i32, i64, register_type
from tilekit.dtypes import DType

__all__ = ["Words", "braced", "elements_of", "packed", "predicated", "words_of"]


class Words(NamedTuple):
    """The registers of one access: PTX type of the access, of a register, constraint letter, LLVM type, how many."""

    access: str
    register: str
    letter: str
    type: ir.IntType
    count: int


_WORDS = {
    1: Words("b8", "b16", "h", i16, 1),  # the smallest register has 16 bits
    2: Words("b16", "b16", "h", i16, 1),
    4: Words("b32", "b32", "r", i32, 1),
    8: Words("v2.b32", "b32", "r", i32, 2),
    16: Words("v4.b32", "b32", "r", i32, 4),
}
_WORDS_OF_64 = {8: Words("b64", "b64", "l", i64, 1), 16: Words("v2.b64", "b64", "l", i64, 2)}


def words_of(dtype: DType, elements: int) -> Words:
    """The registers of an access of so many elements."""
    return (_WORDS_OF_64 if dtype.itemsize == 8 else _WORDS)[dtype.itemsize * elements]


def _memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory: a bool fills a byte there."""
    return i8 if dtype == dtypes.bool_ else register_type(dtype)


def predicated(text: str, operand: int) -> str:
    """`text` with its predicate `p` set from an operand: NVVM has no constraint for a predicate, and ptxas folds the detour."""
    return f"{{ .reg .pred p; setp.ne.b32 p, ${operand}, 0; {text} }}"


def braced(names: list[str]) -> str:
    """The operand of an access: one register, or several in braces."""
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def elements_of(builder: ir.IRBuilder, words: list[ir.Value], dtype: DType, count: int) -> list[ir.Value]:
    """The elements that the registers of an access hold."""
    kind, per_word = _memory_type(dtype), max(1, count // len(words))
    values: list[ir.Value] = []
    for word in words:
        if kind == i8 and per_word > 1:
            # Not as a vector's: of what is computed with its first element, NVVM forgets the extension.
            shifted = [builder.lshr(word, ir.Constant(word.type, 8 * k)) for k in range(per_word)]
            values += [builder.trunc(bits, i8) for bits in shifted]
        elif per_word > 1:
            vector = builder.bitcast(word, ir.VectorType(kind, per_word))
            values += [builder.extract_element(vector, ir.Constant(i32, k)) for k in range(per_word)]
        else:
            values.append(builder.trunc(word, kind) if kind == i8 else builder.bitcast(word, kind))
    return [builder.icmp_unsigned("!=", e, ir.Constant(i8, 0)) for e in values] if dtype == dtypes.bool_ else values


def packed(builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, words: Words) -> list[ir.Value]:
    """The registers for an access that stores `elements`."""
    kind, per_word = _memory_type(dtype), max(1, len(elements) // words.count)
    if dtype == dtypes.bool_:
        elements = [builder.zext(e, i8) for e in elements]
    if per_word == 1:
        return [builder.zext(e, words.type) if kind == i8 else builder.bitcast(e, words.type) for e in elements]
    packed = []
    for first in range(0, len(elements), per_word):
        vector: Any = ir.Constant(ir.VectorType(kind, per_word), ir.Undefined)
        for k in range(per_word):
            vector = builder.insert_element(vector, elements[first + k], ir.Constant(i32, k))
        packed.append(builder.bitcast(vector, words.type))
    return packed
