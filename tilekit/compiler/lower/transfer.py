"""Global memory accesses in inline PTX: up to 16 bytes each, predicated where needed, the offset in the instruction."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from tilekit.compiler.lower.access import Access, Slot
from tilekit.compiler.lower.emit import asm
from tilekit.compiler.lower.words import braced, elements_of, packed, predicated, words_of
from tilekit.compiler.types import i32
from tilekit.dtypes import DType

__all__ = ["read", "write"]


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
        elements.update(zip(slot.registers, elements_of(builder, words, dtype, len(slot.registers)), strict=True))
    return [elements[r] for r in range(len(elements))]


def _load(builder: ir.IRBuilder, slot: Slot, dtype: DType, padding: float) -> list[ir.Value]:
    words = words_of(dtype, len(slot.registers))
    n = words.count
    target = braced([f"${k}" for k in range(n)])
    text = f"ld.global.{words.access} {target}, [${n}+{slot.offset}];"
    result = words.type if n == 1 else ir.LiteralStructType([words.type] * n)
    if slot.predicate is None:
        made = asm(builder, text, ",".join([f"={words.letter}"] * n + ["l"]), result, [slot.address], effect=True)
    else:
        bits = _padding_bits(dtype, padding, words.type.width)
        fill = " ".join(f"mov.{words.register} ${k}, {bits};" for k in range(n))
        constraints = ",".join([f"=&{words.letter}"] * n + ["l", "r"])
        args = [slot.address, builder.zext(slot.predicate, i32)]
        made = asm(builder, predicated(f"{fill} @p {text}", n + 1), constraints, result, args, effect=True)
    return [made] if n == 1 else [builder.extract_value(made, k) for k in range(n)]


def _write_all(builder: ir.IRBuilder, slots: list[Slot], dtype: DType, elements: list[ir.Value]) -> None:
    for slot in slots:
        words = words_of(dtype, len(slot.registers))
        values = packed(builder, [elements[r] for r in slot.registers], dtype, words)
        source = braced([f"${k + 1}" for k in range(words.count)])
        text = f"st.global.{words.access} [$0+{slot.offset}], {source};"
        letters = ["l"] + [words.letter] * words.count
        args = [slot.address, *values]
        if slot.predicate is not None:
            text = predicated(f"@p {text}", words.count + 1)
            letters.append("r")
            args.append(builder.zext(slot.predicate, i32))
        asm(builder, text, ",".join([*letters, "~{memory}"]), ir.VoidType(), args, effect=True)


def _padding_bits(dtype: DType, padding: float, width: int) -> str:
    """The bits of a register full of padding."""
    size = 8 * dtype.itemsize
    one = int(np.asarray(padding).astype(dtype).view(f"u{dtype.itemsize}"))
    return hex(sum(one << shift for shift in range(0, width, size)))
