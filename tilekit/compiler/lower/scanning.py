"""Lowering of `tilekit.lang.scanning`: prefix sums and other scans, by shuffles in warps and shared memory between them.

The bits of a coordinate along the axis lie in registers, lanes and warps (see `layouts.linear`), and are gone through lowest
first. At each step the axis is cut into blocks of the bits done so far. Of each block its threads know the total, and of each
part of a thread's registers (a leaf) what comes before it in its block, the carry:

* the lowest bits, where they are registers, are scanned one after the other: they make a leaf;
* a lane bit joins two blocks: the lanes exchange totals, and in the upper the lower's total goes before the carry;
* neighbouring warp bits are joined in one round: all totals go through shared memory, and each thread folds those before its own;
* register bits above are joined one after the other again.

At the end each element is folded with its leaf's carry, once. A scan of 1024 elements by 128 threads costs a thread 6 additions
and 10 shuffles in the warp, and 8 bytes of shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import exchange, thread_bit
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import pack, special_register, unpack, xor_of_bits
from tilekit.compiler.codegen.types import TileType, integer
from tilekit.compiler.layouts.linear import HardwareBit, Layout
from tilekit.compiler.lower.combining import Operands, calling, flag
from tilekit.compiler.lower.shape import constant, the_tile
from tilekit.dtypes import DType
from tilekit.lang import scanning as lang
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.shape import axis_of

__all__ = ["prefixes"]

Row = Sequence[ir.Value]
Combine = Callable[[ir.IRBuilder, Row, Row], Row]


class _Leaf:
    """Registers that are scanned one after the other, and what comes before them in their block.

    Attributes:
        registers: their numbers, in order.
        carry: a row, or None while there is none in any thread.
        held: whether this thread's carry is one; None if it is in all threads.
    """

    __slots__ = ("carry", "held", "registers")

    def __init__(self, registers: list[int]) -> None:
        self.registers = registers
        self.carry: Row | None = None
        self.held: ir.Value | None = None


class _Block:
    """The leaves that one thread holds of a block, and the total of the whole block."""

    __slots__ = ("leaves", "total")

    def __init__(self, leaves: list[_Leaf], total: Row) -> None:
        self.leaves, self.total = leaves, total


class _Scan:
    """One scan, while it is emitted."""

    def __init__(
        self, builder: ir.IRBuilder, kinds: Sequence[DType], layout: Layout, dim: int, combine: Combine, *, reverse: bool
    ) -> None:
        self.builder, self.kinds, self.layout, self.combine, self.reverse = builder, kinds, layout, combine, reverse
        self.places = layout.axis(dim)
        self.num_threads = 1 << len(layout.thread)
        self.done: set[int] = set()  # bits of the thread number that were gone through

    def run(self, columns: Sequence[Sequence[ir.Value]]) -> list[list[ir.Value]]:
        rows: list[Row] = list(zip(*columns, strict=True))
        runs = [(kind, [p.bit for p in run]) for kind, run in itertools.groupby(self.places, key=lambda p: p.kind)]
        lowest = runs.pop(0)[1] if runs and runs[0][0] == "reg" else []
        blocks: dict[int, _Block] = {}  # by the number of their first register
        for registers in self.layout.chunks(tuple(lowest)):
            first = registers[0]
            if self.reverse:
                registers.reverse()
            for before, at in itertools.pairwise(registers):
                rows[at] = self.combine(self.builder, rows[before], rows[at])
            blocks[first] = _Block([_Leaf(registers)], rows[registers[-1]])
        for kind, bits in runs:
            if kind == "lane":
                for bit in bits:
                    self._lane(list(blocks.values()), bit)
            elif kind == "warp":
                self._warps(list(blocks.values()), bits)
            else:
                blocks = self._registers(blocks, bits)
        for block in blocks.values():
            for leaf in block.leaves:
                for r in leaf.registers:
                    rows[r] = self._after(leaf, rows[r])
        return [list(column) for column in zip(*rows, strict=True)]

    def _after(self, leaf: _Leaf, row: Row) -> Row:
        """`row` with the leaf's carry before it."""
        if leaf.carry is None:
            return row
        return self._choose(leaf.held, self.combine(self.builder, leaf.carry, row), row)

    def _choose(self, condition: ir.Value | None, x: Row, y: Row) -> Row:
        if condition is None:
            return x
        return [self.builder.select(condition, a, b) for a, b in zip(x, y, strict=True)]

    def _precede(self, leaf: _Leaf, row: Row, where: ir.Value | None) -> None:
        """Put `row` before the leaf's carry, in the threads where `where` holds (None: in all)."""
        if leaf.carry is None:
            leaf.carry, leaf.held = row, where
            return
        carried = self._choose(leaf.held, self.combine(self.builder, row, leaf.carry), row)
        leaf.carry = self._choose(where, carried, leaf.carry)
        if leaf.held is not None:
            leaf.held = None if where is None else self.builder.or_(leaf.held, where)

    def _lane(self, blocks: list[_Block], bit: int) -> None:
        columns = [
            exchange(self.builder, [block.total[k] for block in blocks], dtype, HardwareBit("lane", bit), self.num_threads)
            for k, dtype in enumerate(self.kinds)
        ]
        upper = thread_bit(self.builder, bit)
        if self.reverse:
            upper = self.builder.not_(upper)
        for block, theirs in zip(blocks, zip(*columns, strict=True), strict=True):
            for leaf in block.leaves:
                self._precede(leaf, theirs, upper)
            first, second = self._choose(upper, theirs, block.total), self._choose(upper, block.total, theirs)
            block.total = self.combine(self.builder, first, second)
        self.done.add(bit)

    def _registers(self, blocks: dict[int, _Block], bits: list[int]) -> dict[int, _Block]:
        mask = sum(1 << bit for bit in bits)
        steps = [sum((n >> k & 1) << bit for k, bit in enumerate(bits)) for n in range(1 << len(bits))]
        scanned = {}
        for first in blocks:
            if first & mask:
                continue
            joined = [blocks[first | step] for step in (reversed(steps) if self.reverse else steps)]
            total = joined[0].total
            for block in joined[1:]:
                for leaf in block.leaves:
                    self._precede(leaf, total, None)
                total = self.combine(self.builder, total, block.total)
            scanned[first] = _Block([leaf for block in joined for leaf in block.leaves], total)
        return scanned

    def _warps(self, blocks: list[_Block], bits: list[int]) -> None:
        """All warps' totals into shared memory, `[block][thread without this axis][warp]`; each thread reads all of its own."""
        builder, layout, parts = self.builder, self.layout, 1 << len(bits)
        lanes = len(layout.lane)
        thread = special_register(builder, "tid.x")
        masks, slots = [0] * len(layout.thread), parts
        for bit, vector in enumerate(layout.thread):
            if bit >= lanes and bit - lanes in bits:
                masks[bit] = 1 << bits.index(bit - lanes)
            elif any(vector) and bit not in self.done:  # else all these threads have the same total
                masks[bit], slots = slots, slots * 2
        number = xor_of_bits(builder, thread, [m if m < parts else 0 for m in masks])
        start = xor_of_bits(builder, thread, [m if m >= parts else 0 for m in masks])
        at_once = shared.at_once(len(blocks), sum(-(-dtype.itemsize * slots // 16) * 16 for dtype in self.kinds))
        for first in range(0, len(blocks), at_once):
            self._through_shared(blocks[first : first + at_once], parts, slots, start, number)
        self.done |= {lanes + bit for bit in bits}

    def _through_shared(self, blocks: list[_Block], parts: int, slots: int, start: ir.Value, number: ir.Value) -> None:
        """The same for as many blocks as have room at once."""
        builder = self.builder
        sizes = [-(-dtype.itemsize * slots * len(blocks) // 16) * 16 for dtype in self.kinds]  # aligned for the widest access
        base, offset = shared.room(builder, sum(sizes), "what the warps have"), 0
        reads = []
        for k, dtype in enumerate(self.kinds):
            mine = shared.at(builder, base, builder.or_(start, number), dtype.itemsize)
            for n, block in enumerate(blocks):
                shared.put(builder, mine, offset + n * slots * dtype.itemsize, dtype, [block.total[k]])
            reads.append((shared.at(builder, base, start, dtype.itemsize), offset))
            offset += sizes[k]
        shared.barrier(builder)
        rank = builder.xor(number, integer(32, parts - 1)) if self.reverse else number
        behind = [builder.icmp_unsigned(">=", rank, integer(32, p)) for p in range(parts)]
        for n, block in enumerate(blocks):
            columns = []
            for (address, at), dtype in zip(reads, self.kinds, strict=True):
                step = min(parts, 16 // dtype.itemsize)
                first = at + n * slots * dtype.itemsize
                pieces = [shared.get(builder, address, first + p * dtype.itemsize, dtype, step) for p in range(0, parts, step)]
                columns.append([element for piece in pieces for element in piece])
            totals: list[Row] = list(zip(*columns, strict=True))
            if self.reverse:
                totals.reverse()
            before = total = totals[0]
            for p, row in enumerate(totals[1:], 1):
                before = self._choose(behind[p], total, before)
                total = self.combine(builder, total, row)
            for leaf in block.leaves:
                self._precede(leaf, before, behind[1])
            block.total = total


def prefixes(
    builder: ir.IRBuilder,
    columns: Sequence[Sequence[ir.Value]],
    kinds: Sequence[DType],
    layout: Layout,
    dim: int,
    combine: Combine,
    *,
    reverse: bool = False,
) -> list[list[ir.Value]]:
    """Prefix scan of tiles of one layout, element by element together, along `dim`. All threads of the block take part.

    Args:
        builder: at the place of the operation.
        columns: of each tile, its elements by register.
        kinds: their dtypes.
        layout: theirs.
        dim: the dimension.
        combine: of two rows, an element of each tile, what comes before and what follows; associative.
        reverse: from the end.

    Returns:
        For each tile the results, by register.
    """
    return _Scan(builder, kinds, layout, dim, combine, reverse=reverse).run(columns)


# ------------------------------------------------------------------------------------------------------------------ operations


def _accumulated(what: str, symbol: str) -> Callable[..., Any]:
    def define(x: types.Type, axis: types.Type, reverse: types.Type) -> Any:
        tile = the_tile(x, what)
        if problem := dtypes.no_arithmetic(tile.dtype):
            reject(what, problem)
        dim = in_words(what, axis_of, constant(axis, what, "the axis"), len(tile.shape))
        backwards, result = flag(reverse, what, "reverse"), sum_dtype(tile.dtype)
        through = dtypes.float32 if result in (dtypes.float16, dtypes.bfloat16) else result
        step = arithmetic.binary(symbol, through)

        def combine(b: ir.IRBuilder, x: Row, y: Row) -> Row:
            return [step(b, x[0], y[0])]

        def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            operands = [convert(builder, e, tile.dtype, through) for e in unpack(builder, value)]
            (results,) = prefixes(builder, [operands], [through], tile.layout, dim, combine, reverse=backwards)
            return pack(builder, [convert(builder, e, through, result) for e in results])

        return TileType(result, tile.layout, tile.config), emit

    return define


lowers(lang.cumsum)(_accumulated("cumsum", "+"))
lowers(lang.cumprod)(_accumulated("cumprod", "*"))


@lowers(lang.scan)
def scan(x: types.Type, axis: types.Type, func: types.Type, identity: types.Type, reverse: types.Type) -> Any:
    operands = Operands(x, "scan")
    layout = operands.layout
    dim = in_words("scan", axis_of, constant(axis, "scan", "the axis"), len(layout.shape))
    backwards = flag(reverse, "scan", "reverse")
    combine = calling(func, identity, operands, "scan")
    result, finish = operands.result(layout)
    kinds = [tile.dtype for tile in operands.tiles]

    def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
        rows = operands.elements(builder, value)
        return finish(builder, prefixes(builder, rows, kinds, layout, dim, combine, reverse=backwards))

    return result, emit
