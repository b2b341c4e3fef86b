"""Global memory accesses in inline PTX: up to 16 bytes each, predicated where needed, the offset in the instruction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.lower.access import Access, Slot
from tilekit.compiler.lower.emit import asm
from tilekit.compiler.types import i8, i16, i32, i64, register_type
from tilekit.dtypes import DType

__all__ = ["read", "write"]


class _Words(NamedTuple):
    """The registers of one access: PTX type of the access, of a register, constraint letter, LLVM type, how many."""

    access: str
    register: str
    letter: str
    type: ir.IntType
    count: int


_WORDS = {
    1: _Words("b8", "b16", "h", i16, 1),  # the smallest register has 16 bits
    2: _Words("b16", "b16", "h", i16, 1),
    4: _Words("b32", "b32", "r", i32, 1),
    8: _Words("v2.b32", "b32", "r", i32, 2),
    16: _Words("v4.b32", "b32", "r", i32, 4),
}
_WORDS_OF_64 = {8: _Words("b64", "b64", "l", i64, 1), 16: _Words("v2.b64", "b64", "l", i64, 2)}


def _words(dtype: DType, elements: int) -> _Words:
    return (_WORDS_OF_64 if dtype.itemsize == 8 else _WORDS)[dtype.itemsize * elements]


def _memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory: a bool fills a byte there."""
    return i8 if dtype == dtypes.bool_ else register_type(dtype)


def read(builder: ir.IRBuilder, access: Access, dtype: DType, padding: float) -> list[ir.Value]:
    """The elements of a tile, by register; `padding` for those that do not exist."""
    if access.inside is None:
        return _read_all(builder, access.full, dtype, padding)
    with builder.if_else(access.inside) as (inside, edge):
        with inside:
            full, from_inside = _read_all(builder, access.full, dtype, padding), builder.block
        with edge:
            cut, from_edge = _read_all(builder, access.edge, dtype, padding), builder.block
    merged = []
    for a, b in zip(full, cut, strict=True):
        phi = builder.phi(a.type)
        phi.add_incoming(a, from_inside)
        phi.add_incoming(b, from_edge)
        merged.append(phi)
    return merged


def write(builder: ir.IRBuilder, access: Access, dtype: DType, elements: list[ir.Value]) -> None:
    """Store the elements of a tile, given by register; those that do not exist are dropped."""
    if access.inside is None:
        _write_all(builder, access.full, dtype, elements)
        return
    with builder.if_else(access.inside) as (inside, edge):
        with inside:
            _write_all(builder, access.full, dtype, elements)
        with edge:
            _write_all(builder, access.edge, dtype, elements)


def _read_all(builder: ir.IRBuilder, slots: list[Slot], dtype: DType, padding: float) -> list[ir.Value]:
    # All loads first, then what unpacks them: they are in flight together.
    loaded = [_load(builder, slot, dtype, padding) for slot in slots]
    elements: dict[int, ir.Value] = {}
    for slot, words in zip(slots, loaded, strict=True):
        elements.update(zip(slot.registers, _elements(builder, words, dtype, len(slot.registers)), strict=True))
    return [elements[r] for r in range(len(elements))]


def _load(builder: ir.IRBuilder, slot: Slot, dtype: DType, padding: float) -> list[ir.Value]:
    words = _words(dtype, len(slot.registers))
    n = words.count
    target = _braced([f"${k}" for k in range(n)])
    text = f"ld.global.{words.access} {target}, [${n}+{slot.offset}];"
    result = words.type if n == 1 else ir.LiteralStructType([words.type] * n)
    if slot.predicate is None:
        made = asm(builder, text, ",".join([f"={words.letter}"] * n + ["l"]), result, [slot.address], effect=True)
    else:
        bits = _padding_bits(dtype, padding, words.type.width)
        fill = " ".join(f"mov.{words.register} ${k}, {bits};" for k in range(n))
        constraints = ",".join([f"=&{words.letter}"] * n + ["l", "r"])
        args = [slot.address, builder.zext(slot.predicate, i32)]
        made = asm(builder, _predicated(f"{fill} @p {text}", n + 1), constraints, result, args, effect=True)
    return [made] if n == 1 else [builder.extract_value(made, k) for k in range(n)]


def _write_all(builder: ir.IRBuilder, slots: list[Slot], dtype: DType, elements: list[ir.Value]) -> None:
    for slot in slots:
        words = _words(dtype, len(slot.registers))
        values = _packed(builder, [elements[r] for r in slot.registers], dtype, words)
        source = _braced([f"${k + 1}" for k in range(words.count)])
        text = f"st.global.{words.access} [$0+{slot.offset}], {source};"
        letters = ["l"] + [words.letter] * words.count
        args = [slot.address, *values]
        if slot.predicate is not None:
            text = _predicated(f"@p {text}", words.count + 1)
            letters.append("r")
            args.append(builder.zext(slot.predicate, i32))
        asm(builder, text, ",".join([*letters, "~{memory}"]), ir.VoidType(), args, effect=True)


def _predicated(text: str, operand: int) -> str:
    """`text` with its predicate `p` set from an operand: NVVM has no constraint for a predicate, and ptxas folds the detour."""
    return f"{{ .reg .pred p; setp.ne.b32 p, ${operand}, 0; {text} }}"


def _braced(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _padding_bits(dtype: DType, padding: float, width: int) -> str:
    """The bits of a register full of padding."""
    size = 8 * dtype.itemsize
    one = int(np.asarray(padding).astype(dtype).view(f"u{dtype.itemsize}"))
    return hex(sum(one << shift for shift in range(0, width, size)))


def _elements(builder: ir.IRBuilder, words: list[ir.Value], dtype: DType, count: int) -> list[ir.Value]:
    """The elements that the registers of an access hold."""
    kind, per_word = _memory_type(dtype), max(1, count // len(words))
    made: list[ir.Value] = []
    for word in words:
        if per_word > 1:
            vector = builder.bitcast(word, ir.VectorType(kind, per_word))
            made += [builder.extract_element(vector, ir.Constant(i32, k)) for k in range(per_word)]
        else:
            made.append(builder.trunc(word, kind) if kind == i8 else builder.bitcast(word, kind))
    return [builder.icmp_unsigned("!=", e, ir.Constant(i8, 0)) for e in made] if dtype == dtypes.bool_ else made


def _packed(builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, words: _Words) -> list[ir.Value]:
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
