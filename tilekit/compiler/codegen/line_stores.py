"""Stores of rows that begin anywhere: the lanes of a warp hand each other words, so that an instruction fills a line of memory.

A warp has words of 4 bytes of a row, neighbouring lanes neighbouring ones. Where the row begins inside a line, each lane takes
the word that belongs to its own place in a line from the lane that has it; where it begins inside a word, from two lanes, and
what is left at either end of the row is stored by elements. A row of 16-bit elements, with lines of four words for short:

    what lanes have     |a b|c d|e f|g h|i j|k l|
    lines of memory     |. .|. a|b c|d e|   |f g|h i|j k|l .|       of which `a` and `l` are stored by themselves

In pieces that fill parts of lines, and of sectors at both of their ends, which memory has to read first, an H200 stored such
results of products at 1.0 to 1.6 TB/s; by whole lines it takes three fifths of the time.
"""

from __future__ import annotations

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.codegen.access import Slot, Window, aligned
from tilekit.compiler.codegen.access_layouts import WORD
from tilekit.compiler.codegen.convert_layout import from_lane
from tilekit.compiler.codegen.emit import all_of, asm, special_register, xor_of_bits
from tilekit.compiler.codegen.transfer import write_slots
from tilekit.compiler.codegen.types import i32, i64, integer
from tilekit.compiler.codegen.words import elements_of, packed, words_of
from tilekit.compiler.layouts.linear import WARP, Layout

__all__ = ["store_lines"]

_LINE = WARP * WORD


def store_lines(builder: ir.IRBuilder, window: Window, elements: list[ir.Value], *, eviction: str) -> None:
    """Store the elements of a tile, given by register of a layout that has `words_of_lines`; those that do not exist are dropped.

    All threads of a warp take part.

    Args:
        builder: at the place of the access.
        window: the part of the tensor, opened by these words.
        elements, eviction: as for `write`.
    """
    rows, unit = _Rows(builder, window, elements, eviction), window.tensor.facts.unit
    if unit not in window.left:
        rows.store(cut=False)
        return
    with builder.if_else(window.inside((unit,))) as (inside, edge):
        with inside:
            rows.store(cut=False)
        with edge:
            rows.store(cut=True)


class _Rows:
    """What a warp has of the rows of a tile, which it sees as its first thread does."""

    def __init__(self, builder: ir.IRBuilder, window: Window, elements: list[ir.Value], eviction: str) -> None:
        self._builder, self._window, self._elements, self._eviction = builder, window, elements, eviction
        tensor, layout = window.tensor, window.layout
        self._dtype, self._unit = tensor.dtype, tensor.facts.unit
        self._per_word = WORD // self._dtype.itemsize
        self._split = aligned(tensor, window.steps) < self._per_word  # whether rows begin between two words
        self._cut = self._split or (self._unit in window.left and bool(tensor.facts.extents[self._unit] % self._per_word))
        lines = _lines_of(layout, self._unit, self._per_word)
        first = layout.coordinates()
        self._rows = [(registers, first[registers[0]]) for registers in layout.chunks((*window.pattern.vector, *lines))]
        # Which word of a line a lane has, and which lane has a word: bits in another order.
        places = [vector[self._unit] // self._per_word for vector in layout.lane]
        self._lanes = [1 << places.index(1 << bit) for bit in range(len(places))]
        lane = builder.and_(special_register(builder, "tid.x"), integer(32, WARP - 1))
        self._place = xor_of_bits(builder, lane, places)
        self._owner = window.owner()

    def store(self, *, cut: bool) -> None:
        """Store those that there are; `cut` where the edge may cut them."""
        for registers, at in self._rows:
            self._store_row(registers, at, cut=cut)

    def _store_row(self, registers: list[int], at: tuple[int, ...], *, cut: bool) -> None:
        builder, window, count = self._builder, self._window, len(registers) // self._per_word
        start = builder.add(window.row_here(at), integer(64, at[self._unit] * self._dtype.itemsize))
        begin = builder.and_(builder.trunc(start, i32), integer(32, _LINE - 1))
        words = self._moved([registers[k * self._per_word : (k + 1) * self._per_word] for k in range(count)], begin)
        mine = builder.sub(builder.mul(self._place, integer(32, WORD)), begin)  # where a lane's word of the first line is
        address = builder.add(start, builder.sext(mine, i64))
        length, exists = integer(32, count * _LINE), None
        if not cut:
            exists = window.row_exists(at)
        else:
            length = builder.mul(window.present(at, count * _LINE // self._dtype.itemsize), integer(32, self._dtype.itemsize))
        for line, word in enumerate(words):
            where = builder.add(mine, integer(32, line * _LINE))
            first, last = line == 0, cut or line == count
            begun = builder.icmp_signed(">=", where, integer(32, 0)) if first else None
            ends = builder.icmp_signed("<=", builder.add(where, integer(32, WORD)), length) if last else None
            whole = all_of(builder, [begun, ends])
            offset = line * _LINE
            slots = [Slot([0], address, offset, all_of(builder, [self._owner, exists, whole]))]
            write_slots(builder, slots, dtypes.uint32, [word], eviction=self._eviction)
            if whole is not None and (self._cut if cut else self._split):
                rest = all_of(builder, [self._owner, exists, builder.not_(whole)])
                self._store_rest(word, where, length, address, offset, rest)

    def _store_rest(
        self, word: ir.Value, where: ir.Value, length: ir.Value, address: ir.Value, offset: int, rest: ir.Value | None
    ) -> None:
        """Store the elements of a word that are in the row, if not all are."""
        builder, itemsize = self._builder, self._dtype.itemsize
        slots = []
        for k in range(self._per_word):
            there = builder.icmp_unsigned("<", builder.add(where, integer(32, k * itemsize)), length)
            slots.append(Slot([k], address, offset + k * itemsize, all_of(builder, [rest, there])))
        elements = elements_of(builder, [word], self._dtype, self._per_word)
        write_slots(builder, slots, self._dtype, elements, eviction=self._eviction)

    def _moved(self, words: list[list[int]], begin: ir.Value) -> list[ir.Value]:
        """Given the registers of a lane's words of a row that begins so many bytes behind a line: its words of the lines."""
        builder = self._builder
        kind = words_of(self._dtype, self._per_word)
        held = [packed(builder, [self._elements[r] for r in word], self._dtype, kind)[0] for word in words]
        back = builder.lshr(begin, integer(32, WORD.bit_length() - 1))
        moved = self._further(held, back)
        if not self._split:
            return moved
        # Of each word, what belongs before it, as well: the row begins between two.
        before = self._further(held, builder.add(back, integer(32, 1)))
        bits = builder.mul(builder.and_(begin, integer(32, WORD - 1)), integer(32, 8))
        return [asm(builder, "shf.l.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", i32, [low, high, bits])
                for low, high in zip(before, moved, strict=True)]  # fmt: skip

    def _further(self, words: list[ir.Value], by: ir.Value) -> list[ir.Value]:
        """Words so many places, 32 at most, further on: one line more. What comes from outside of the row is anything."""
        builder = self._builder
        lane = xor_of_bits(builder, builder.sub(self._place, by), self._lanes)
        taken = from_lane(builder, words, dtypes.uint32, lane)
        same = builder.icmp_signed(">=", self._place, by)
        pairs = zip([*taken, taken[-1]], [taken[0], *taken], strict=True)
        return [builder.select(same, own, last) for own, last in pairs]


def _lines_of(layout: Layout, unit: int, per_word: int) -> tuple[int, ...]:
    """The register bits that count the lines of a row."""
    bits: list[int] = []
    while (line := tuple(per_word * WARP << len(bits) if d == unit else 0 for d in range(len(layout.shape)))) in layout.reg:
        bits.append(layout.reg.index(line))
    return tuple(bits)
