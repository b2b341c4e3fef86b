"""Vectorized accesses to global memory in inline PTX: up to 16 bytes each, predicated where needed, with immediate offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from llvmlite import ir

from tilekit.compiler.codegen.access import Access, Slot
from tilekit.compiler.codegen.emit import all_of, asm
from tilekit.compiler.codegen.types import constant, i32
from tilekit.compiler.codegen.words import braced, elements_of, packed, predicated, words_of
from tilekit.dtypes import DType

__all__ = ["Padding", "read", "write", "write_slots"]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What elements are that are not read.

    Attributes:
        number: a constant.
        value: what is computed in its place, of the tensor's dtype; None for the constant.
    """

    number: float = 0.0
    value: ir.Value | None = None


Mask = list[ir.Value] | None
_WORD = 4  # bytes of a register


def read(
    builder: ir.IRBuilder, access: Access, dtype: DType, padding: Padding, mask: Mask = None, *, eviction: str = "evict_normal"
) -> list[ir.Value]:
    """The elements of a tile, by register; padding for those that do not exist, and where `mask` (by register) is False.

    `eviction` is one of `lang.windows.EVICTION`.
    """
    if access.inside is None:
        return _read_all(builder, access.full, dtype, padding, mask, eviction)
    by_words = mask is None and dtype.itemsize < _WORD and not any(slot.absent for slot in access.full)
    with builder.if_else(access.inside) as (inside, edge):
        with inside:
            if by_words:
                loaded = [_load(builder, slot, dtype, padding.number, eviction) for slot in access.full]
                full = [word for words in loaded for word in words]
            else:
                full = _read_all(builder, access.full, dtype, padding, mask, eviction)
            from_inside = builder.block
        with edge:
            cut = _read_all(builder, access.edge, dtype, padding, mask, eviction)
            if by_words:
                cut = [word for slot in access.full for word in _joined(builder, [cut[r] for r in slot.registers], dtype)]
            from_edge = builder.block
    merged = []
    for a, b in zip(full, cut, strict=True):
        phi = builder.phi(a.type)
        phi.add_incoming(a, from_inside)
        phi.add_incoming(b, from_edge)
        merged.append(phi)
    return _taken_apart(builder, access.full, merged, dtype) if by_words else merged


def _joined(builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType) -> list[ir.Value]:
    """The registers in which an access of so many elements has them.

    Where tiles inside and at the edge meet, they meet in these. By elements, each would have a register of its own there, and the
    branch of the tiles inside would wait for what it has loaded to fill them: for one tensor after the other.
    (silu_backward of 83275 x 515 float16: 78 us on an H200 that way.) What joins them is opaque, so that LLVM does not turn it
    back.
    """
    words = words_of(dtype, len(elements))
    return [asm(builder, f"mov.{words.register} $0, $1;", f"={words.letter},{words.letter}", words.type, [word])
            for word in packed(builder, elements, dtype, words)]  # fmt: skip


def _taken_apart(builder: ir.IRBuilder, slots: list[Slot], words: list[ir.Value], dtype: DType) -> list[ir.Value]:
    """The elements by register, given the registers of all accesses, one after the other."""
    elements: dict[int, ir.Value] = {}
    for slot in slots:
        count = words_of(dtype, len(slot.registers)).count
        values = elements_of(builder, words[:count], dtype, len(slot.registers))
        elements.update(zip(slot.registers, values, strict=True))
        words = words[count:]
    return [elements[r] for r in range(len(elements))]


def write(
    builder: ir.IRBuilder,
    access: Access,
    dtype: DType,
    elements: list[ir.Value],
    mask: Mask = None,
    *,
    eviction: str = "evict_normal",
) -> None:
    """Store the elements of a tile, given by register; those that do not exist are dropped, and where `mask` is False.

    `eviction` is one of `lang.windows.EVICTION`.
    """
    if access.inside is None:
        write_slots(builder, access.full, dtype, elements, mask, eviction=eviction)
        return
    with builder.if_else(access.inside) as (inside, edge):
        with inside:
            write_slots(builder, access.full, dtype, elements, mask, eviction=eviction)
        with edge:
            write_slots(builder, access.edge, dtype, elements, mask, eviction=eviction)


def _hint(eviction: str) -> str:
    """The qualifier of `ld.global` and `st.global`."""
    return "" if eviction == "evict_normal" else f".L1::{eviction}"


def _read_all(
    builder: ir.IRBuilder, slots: list[Slot], dtype: DType, padding: Padding, mask: Mask, eviction: str
) -> list[ir.Value]:
    if mask is not None:  # an access goes ahead where the mask leaves any of its elements
        slots = [
            replace(slot, predicate=all_of(builder, [slot.predicate, _any_of(builder, [mask[r] for r in slot.registers])]))
            for slot in slots
        ]
    fill = constant(dtype, padding.number) if padding.value is None else padding.value
    elements: dict[int, ir.Value] = {register: fill for slot in slots if slot.absent for register in slot.registers}
    slots = [slot for slot in slots if not slot.absent]
    # All loads first, then what unpacks them: they are in flight together.
    loaded = [_load(builder, slot, dtype, padding.number, eviction) for slot in slots]
    for slot, words in zip(slots, loaded, strict=True):
        values = elements_of(builder, words, dtype, len(slot.registers))
        for register, element in zip(slot.registers, values, strict=True):
            if slot.predicate is not None and padding.value is not None:
                element = builder.select(slot.predicate, element, fill)
            if mask is not None and len(slot.registers) > 1:  # else the access itself is masked
                element = builder.select(mask[register], element, fill)
            elements[register] = element
    return [elements[r] for r in range(len(elements))]


def _any_of(builder: ir.IRBuilder, conditions: list[ir.Value]) -> ir.Value:
    result = conditions[0]
    for condition in conditions[1:]:
        result = builder.or_(result, condition)
    return result


def _load(builder: ir.IRBuilder, slot: Slot, dtype: DType, padding: float, eviction: str) -> list[ir.Value]:
    words = words_of(dtype, len(slot.registers))
    n = words.count
    target = braced([f"${k}" for k in range(n)])
    text = f"ld.global{_hint(eviction)}.{words.access} {target}, [${n}+{slot.offset}];"
    result = words.type if n == 1 else ir.LiteralStructType([words.type] * n)
    if slot.predicate is None:
        loaded = asm(builder, text, ",".join([f"={words.letter}"] * n + ["l"]), result, [slot.address], effect=True)
    else:
        bits = _padding_bits(dtype, padding, words.type.width)
        fill = " ".join(f"mov.{words.register} ${k}, {bits};" for k in range(n))
        constraints = ",".join([f"=&{words.letter}"] * n + ["l", "r"])
        args = [slot.address, builder.zext(slot.predicate, i32)]
        loaded = asm(builder, predicated(f"{fill} @p {text}", n + 1), constraints, result, args, effect=True)
    return [loaded] if n == 1 else [builder.extract_value(loaded, k) for k in range(n)]


def write_slots(
    builder: ir.IRBuilder,
    slots: list[Slot],
    dtype: DType,
    elements: list[ir.Value],
    mask: Mask = None,
    *,
    eviction: str = "evict_normal",
) -> None:
    """Store the elements that so many accesses cover, as `write` does."""
    for slot in slots if mask is None else _masked(builder, slots, dtype, mask):
        words = words_of(dtype, len(slot.registers))
        values = packed(builder, [elements[r] for r in slot.registers], dtype, words)
        source = braced([f"${k + 1}" for k in range(words.count)])
        text = f"st.global{_hint(eviction)}.{words.access} [$0+{slot.offset}], {source};"
        letters = ["l"] + [words.letter] * words.count
        args = [slot.address, *values]
        if slot.predicate is not None:
            text = predicated(f"@p {text}", words.count + 1)
            letters.append("r")
            args.append(builder.zext(slot.predicate, i32))
        asm(builder, text, ",".join([*letters, "~{memory}"]), ir.VoidType(), args, effect=True)


def _masked(builder: ir.IRBuilder, slots: list[Slot], dtype: DType, mask: list[ir.Value]) -> list[Slot]:
    """Whole vectors where the mask leaves all of their elements, and else one element after the other."""
    accesses = []
    for slot in slots:
        chosen = [mask[r] for r in slot.registers]
        whole = all_of(builder, chosen)
        accesses.append(replace(slot, predicate=all_of(builder, [slot.predicate, whole])))
        if len(chosen) > 1:
            partly = all_of(builder, [slot.predicate, builder.not_(whole)])
            for index, (register, condition) in enumerate(zip(slot.registers, chosen, strict=True)):
                alone = all_of(builder, [partly, condition])
                accesses.append(Slot([register], slot.address, slot.offset + index * dtype.itemsize, alone))
    return accesses


def _padding_bits(dtype: DType, padding: float, width: int) -> str:
    """The bits of a register full of padding."""
    size = 8 * dtype.itemsize
    one = int(np.asarray(padding).astype(dtype).view(f"u{dtype.itemsize}"))
    return hex(sum(one << shift for shift in range(0, width, size)))
