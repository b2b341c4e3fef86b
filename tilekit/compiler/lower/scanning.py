"""Lowering of `tilekit.lang.scanning`: prefix sums and other scans, by shuffles in warps and shared memory between them.

The bits of a coordinate along the axis lie in registers, lanes and warps (see `layouts.linear`), and are gone through lowest
first. At each step the axis is cut into blocks of the bits done so far. Of each block its threads know the total, and of each
part of a thread's registers (a leaf) what comes before it in its block, the carry:

* the lowest bits, where they are registers, are scanned one after the other: they make a leaf;
* neighbouring lane bits are a ladder: each lane folds its total with that of the lane 1, 2, 4... before it, and gets the carry
  from the one before. The last lane has the total then, and tells the others if they need it;
* neighbouring warp bits are joined in one round: all totals go through shared memory, and each thread folds those before its own;
* register bits above are joined one after the other again. If they are the last and many, they are joined with the warps: each
  lane folds what the warps have of one block, and a ladder of the lanes joins the blocks.

At the end each element is folded with its leaf's carry, once. A scan of 1024 elements by 128 threads costs a thread 20 additions
and 6 shuffles in the warp, and 16 bytes of shared memory.

Each block costs a ladder. Where elements lie so that a thread has many blocks, as lanes have one element each of rows that begin
anywhere, they change places first (and last), through shared memory: a thread then has one block (`_way`).
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
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import from_lane, relayout, shifted
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import pack, special_register, unpack, xor_of_bits
from tilekit.compiler.codegen.types import TileType, integer, register_type
from tilekit.compiler.layouts.conversion import with_registers_first
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, HardwareBit, Layout
from tilekit.compiler.lower.combining import Operands, calling, flag
from tilekit.compiler.lower.shape import constant, the_tile
from tilekit.dtypes import DType
from tilekit.lang import scanning as lang
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.shape import axis_of

__all__ = ["prefixes"]

Row = Sequence[ir.Value]
Combine = Callable[[ir.IRBuilder, Row, Row], Row]


# From so many blocks on, lanes share the folds of what the warps have, see `_jointly`; and the memory that they may take for it.
_FEW_BLOCKS, _JOINT_BYTES = 4, 8192


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
    """The leaves that one thread holds of a block, and the total of the whole block.

    Attributes:
        leaves, total: see above.
        ladder: the lane bits of which only the last lane has the total; empty if all have it.
    """

    __slots__ = ("ladder", "leaves", "total")

    def __init__(self, leaves: list[_Leaf], total: Row) -> None:
        self.leaves, self.total = leaves, total
        self.ladder: list[int] = []


class _Scan:
    """One scan, while it is emitted."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        kinds: Sequence[DType],
        layout: Layout,
        dim: int,
        combine: Combine,
        *,
        reverse: bool,
        neutral: Row | None,
    ) -> None:
        self.builder, self.kinds, self.layout, self.combine, self.reverse = builder, kinds, layout, combine, reverse
        self.neutral = neutral
        self.places = layout.axis(dim)
        self.done: set[int] = set()  # bits of the thread number that were gone through
        self.rows: list[Row] = []

    def run(self, columns: Sequence[Sequence[ir.Value]]) -> list[list[ir.Value]]:
        rows = self.rows = list(zip(*columns, strict=True))
        runs = _runs(self.places)
        lowest = runs.pop(0)[1] if runs and runs[0][0] == "reg" else []
        blocks: dict[int, _Block] = {}  # by the number of their first register
        for registers in self.layout.chunks(tuple(lowest)):
            first = registers[0]
            if self.reverse:
                registers.reverse()
            for before, at in itertools.pairwise(registers):
                rows[at] = self.combine(self.builder, rows[before], rows[at])
            blocks[first] = _Block([_Leaf(registers)], rows[registers[-1]])
        while runs:
            kind, bits = runs.pop(0)
            if kind == "warp":
                above = [] if not runs else runs[0][1] if len(runs) == 1 and runs[0][0] == "reg" else None
                if above is not None and self._jointly(blocks, bits, above):
                    break
                self._warps(list(blocks.values()), bits)
                continue
            for block in blocks.values():
                self._tell(block)
            if kind == "lane":
                for block in blocks.values():
                    self._ladder(block, bits)
                self.done |= set(bits)
            else:
                blocks = self._registers(blocks, bits)
        for block in blocks.values():
            for leaf in block.leaves:
                self._after(leaf)
        return [list(column) for column in zip(*rows, strict=True)]

    def _after(self, leaf: _Leaf) -> None:
        """Put the leaf's carry before its elements."""
        if leaf.carry is None:
            return
        for r in leaf.registers:
            self.rows[r] = self.choose(leaf.held, self.combine(self.builder, leaf.carry, self.rows[r]), self.rows[r])

    def choose(self, condition: ir.Value | None, x: Row, y: Row) -> Row:
        """`x` where a condition holds (None: everywhere), else `y`."""
        if condition is None:
            return x
        return [self.builder.select(condition, a, b) for a, b in zip(x, y, strict=True)]

    def _precede(self, leaf: _Leaf, row: Row, where: ir.Value | None) -> None:
        """Put `row` before the leaf's carry, in the threads where `where` holds (None: in all)."""
        if where is not None and self.neutral is not None:
            row, where = self.choose(where, row, self.neutral), None
        if leaf.carry is None:
            leaf.carry, leaf.held = row, where
            return
        carried = self.choose(leaf.held, self.combine(self.builder, row, leaf.carry), row)
        leaf.carry = self.choose(where, carried, leaf.carry)
        if leaf.held is not None:
            leaf.held = None if where is None else self.builder.or_(leaf.held, where)

    def last(self, block: _Block) -> ir.Value | None:
        """Which lanes have the total of a block; None if all have."""
        if not block.ladder:
            return None
        return self.builder.icmp_unsigned("==", self._rank(block.ladder), integer(32, (1 << len(block.ladder)) - 1))

    def _rank(self, bits: list[int]) -> ir.Value:
        """Which lane a lane is of those that differ in these neighbouring bits, in the order of the scan."""
        every = integer(32, (1 << len(bits)) - 1)
        rank = self.builder.and_(self.builder.lshr(special_register(self.builder, "tid.x"), integer(32, bits[0])), every)
        return self.builder.xor(rank, every) if self.reverse else rank

    def _before(self, row: Row, bits: list[int], step: int) -> Row:
        """The row of the lane so many before; in lanes that have none, anything."""
        columns = zip(row, self.kinds, strict=True)
        return [shifted(self.builder, [x], dtype, bits, step, down=self.reverse)[0] for x, dtype in columns]

    def _ladder(self, block: _Block, bits: list[int]) -> None:
        """Inclusive scan of the lanes' totals (Kogge and Stone's), of lanes that differ in these neighbouring bits."""
        builder, rank, total = self.builder, self._rank(bits), block.total
        for step in (1 << k for k in range(len(bits))):
            some = builder.icmp_unsigned(">=", rank, integer(32, step))
            total = self.choose(some, self.combine(builder, self._before(total, bits, step), total), total)
        registers = block.leaves[0].registers
        if len(registers) == 1 and block.total is self.rows[registers[0]]:
            self.rows[registers[0]] = total  # the element itself was the lane's total
        else:
            before, some = self._before(total, bits, 1), builder.icmp_unsigned(">=", rank, integer(32, 1))
            for leaf in block.leaves:
                self._precede(leaf, before, some)
        block.total, block.ladder = total, bits

    def _tell(self, block: _Block) -> None:
        """Give all lanes the block's total."""
        if not block.ladder:
            return
        builder, mask = self.builder, sum(1 << bit for bit in block.ladder)
        lane = builder.and_(special_register(builder, "tid.x"), integer(32, WARP - 1 & ~mask if self.reverse else WARP - 1))
        if not self.reverse:
            lane = builder.or_(lane, integer(32, mask))
        columns = zip(block.total, self.kinds, strict=True)
        block.total, block.ladder = [from_lane(builder, [x], dtype, lane)[0] for x, dtype in columns], []

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
        """Each thread folds the totals of the warps before its own."""
        totals = _Totals(self, bits, len(blocks))
        at_once = shared.at_once(len(blocks), totals.nbytes(1))
        for first in range(0, len(blocks), at_once):
            some = blocks[first : first + at_once]
            totals.put(some)
            for n, block in enumerate(some):
                before, total = totals.folded(n)
                for leaf in block.leaves:
                    self._precede(leaf, before, totals.behind[1])
                block.total, block.ladder = total, []
        self.done |= {len(self.layout.lane) + bit for bit in bits}

    def _jointly(self, blocks: dict[int, _Block], bits: list[int], above: list[int]) -> bool:
        """The last bits of an axis, its warps' and the registers' `above`, together: a lane has the totals of one block, folds
        those of the warps before its own, and a ladder of the lanes does the rest. Of which each lane gets its blocks' carries.

        It is for so many blocks that this costs less, and for lanes that are all of one axis. Otherwise nothing is done.
        """
        builder, count, lanes = self.builder, len(blocks), len(self.layout.lane)
        alike = all(bit in self.done or not any(vector) for bit, vector in enumerate(self.layout.lane))
        totals = _Totals(self, bits, count)
        if not (_FEW_BLOCKS <= count <= 1 << lanes and alike and totals.nbytes(count) <= _JOINT_BYTES):
            return False
        numbers = {}  # the lanes for blocks, by first register; neighbouring bits for those of `above`
        beside = [bit for bit in range(len(self.layout.reg)) if any(first >> bit & 1 for first in blocks) and bit not in above]
        for first in blocks:
            numbers[first] = sum((first >> bit & 1) << k for k, bit in enumerate([*above, *beside]))
        ordered = [blocks[first] for first in sorted(blocks, key=numbers.__getitem__)]
        totals.put(ordered)
        lane = builder.and_(special_register(builder, "tid.x"), integer(32, count - 1))
        before, total = totals.folded(lane)
        mine = _Block([_Leaf([])], total)
        mine.leaves[0].carry, mine.leaves[0].held = before, totals.behind[1]
        if self.neutral is not None:
            mine.leaves[0].carry, mine.leaves[0].held = self.choose(totals.behind[1], before, self.neutral), None
        if above:
            self._ladder(mine, list(range(len(above))))
        carry, first_of_all = mine.leaves[0].carry, (1 << len(above)) - 1 if self.reverse else 0
        assert carry is not None, "it was set"
        for number, block in enumerate(ordered):
            columns = zip(carry, self.kinds, strict=True)
            row = [from_lane(builder, [x], dtype, integer(32, number))[0] for x, dtype in columns]
            alone = number & (1 << len(above)) - 1 == first_of_all
            where = totals.behind[1] if alone and self.neutral is None else None
            for leaf in block.leaves:
                self._precede(leaf, row, where)
        return True


class _Totals:
    """Totals of all warps, in shared memory: `[block][thread without this axis][warp]`.

    Attributes:
        behind: for each of the warps that share the axis, whether this thread's is so far behind the first, or further.
    """

    def __init__(self, scan: _Scan, bits: list[int], count: int) -> None:
        """`bits` are those of the warp; of each block a thread has all that they differ in."""
        self._scan, builder, layout = scan, scan.builder, scan.layout
        self._parts, lanes = 1 << len(bits), len(layout.lane)
        thread = special_register(builder, "tid.x")
        masks, self._slots = [0] * len(layout.thread), self._parts
        for bit, vector in enumerate(layout.thread):
            if bit >= lanes and bit - lanes in bits:
                masks[bit] = 1 << bits.index(bit - lanes)
            elif any(vector) and bit not in scan.done:  # else all these threads have the same total
                masks[bit], self._slots = self._slots, self._slots * 2
        self._number = xor_of_bits(builder, thread, [m if m < self._parts else 0 for m in masks])
        self._start = xor_of_bits(builder, thread, [m if m >= self._parts else 0 for m in masks])
        rank = builder.xor(self._number, integer(32, self._parts - 1)) if scan.reverse else self._number
        self.behind = [builder.icmp_unsigned(">=", rank, integer(32, p)) for p in range(self._parts)]
        self._columns: list[tuple[ir.Value, int]] = []

    def nbytes(self, count: int) -> int:
        """Of so many blocks."""
        return sum(self._sizes(count))

    def _sizes(self, count: int) -> list[int]:
        return [-(-dtype.itemsize * self._slots * count // 16) * 16 for dtype in self._scan.kinds]  # for the widest access

    def put(self, blocks: Sequence[_Block]) -> None:
        """Write the totals of blocks, and wait for those of other warps."""
        builder, scan = self._scan.builder, self._scan
        sizes = self._sizes(len(blocks))
        base, offset = shared.room(builder, sum(sizes), "what the warps have"), 0
        writes = []
        self._columns = []
        for k, dtype in enumerate(scan.kinds):
            mine = shared.at(builder, base, builder.or_(self._start, self._number), dtype.itemsize)
            for n, block in enumerate(blocks):
                writes.append((mine, offset + n * self._slots * dtype.itemsize, dtype, [block.total[k]]))
            self._columns.append((shared.at(builder, base, self._start, dtype.itemsize), offset))
            offset += sizes[k]

        def write() -> None:
            for address, to, dtype, total in writes:
                shared.put(builder, address, to, dtype, total)

        shared.where(builder, scan.last(blocks[0]), write)
        shared.barrier(builder)

    def folded(self, block: int | ir.Value) -> tuple[Row, Row]:
        """Of the block of this number, which may differ from lane to lane: what the warps before this thread's have (anything in
        the first), and what all have."""
        builder, columns = self._scan.builder, []
        for (address, at), dtype in zip(self._columns, self._scan.kinds, strict=True):
            step, start = min(self._parts, 16 // dtype.itemsize), at
            if isinstance(block, int):
                start += block * self._slots * dtype.itemsize
            else:
                address = shared.at(builder, address, builder.mul(block, integer(32, self._slots)), dtype.itemsize)
            offsets = range(start, start + self._parts * dtype.itemsize, step * dtype.itemsize)
            pieces = [shared.get(builder, address, offset, dtype, step) for offset in offsets]
            columns.append([element for piece in pieces for element in piece])
        totals: list[Row] = list(zip(*columns, strict=True))
        if self._scan.reverse:
            totals.reverse()
        before = total = totals[0]
        for p, row in enumerate(totals[1:], 1):
            before = self._scan.choose(self.behind[p], total, before)
            total = self._scan.combine(builder, total, row)
        return before, total


def _runs(places: Sequence[HardwareBit]) -> list[tuple[str, list[int]]]:
    """The bits of an axis, those together that are gone through together: of one kind, and neighbours if they are the lane's."""
    runs: list[tuple[str, list[int]]] = []
    for kind, bit in places:
        if runs and runs[-1][0] == kind and (kind != "lane" or bit == runs[-1][1][-1] + 1):
            runs[-1][1].append(bit)
        else:
            runs.append((kind, [bit]))
    return runs


# What an instruction for shared memory or a shuffle costs beside one for arithmetic, for which there are four times the units,
# and what two more barriers cost a thread: by instructions counted in machine code for sm_90a.
_ARITHMETIC, _BARRIERS, _WORD = 0.25, 16, 4


def _way(layout: Layout, dim: int, kinds: Sequence[tuple[DType, DType]]) -> Layout:
    """The layout to scan in: this one, or that in which a thread's elements are in a row, if that costs less.

    Args:
        layout: of the elements, before and after.
        dim: the dimension.
        kinds: of each column, the dtype in which elements change places and that in which they are folded.
    """
    target = with_registers_first(layout, dim)
    if target == layout or current().pipelines is not None:  # rings of stages want shared memory for themselves
        return layout
    runs = _runs(layout.axis(dim))
    lowest = 1 << (len(runs[0][1]) if runs[0][0] == "reg" else 0)
    lanes, warps = (sum(len(bits) for kind, bits in runs if kind == which) for which in ("lane", "warp"))
    registers = layout.num_registers
    blocks = registers // lowest - (registers >> sum(len(bits) for kind, bits in runs if kind == "reg"))  # that are no more
    spared = passage = 0.0
    for dtype, wide in kinds:
        ladder = (lanes + 1) * (1 + 2 * _ARITHMETIC) if lanes else 0.0
        round_ = 1 + 2 * _ARITHMETIC if warps else 0.0
        spared += blocks * (ladder + round_) * max(1, wide.itemsize // _WORD)
        narrow = min(lowest, ACCESS_BYTES // dtype.itemsize)
        passage += 2 * registers // narrow * max(1, narrow * dtype.itemsize // _WORD) + 2 * registers * dtype.itemsize // _WORD
    return target if passage + _BARRIERS < spared else layout


def prefixes(
    builder: ir.IRBuilder,
    columns: Sequence[Sequence[ir.Value]],
    kinds: Sequence[DType],
    layout: Layout,
    dim: int,
    combine: Combine,
    *,
    reverse: bool = False,
    neutral: Row | None = None,
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
        neutral: a row that leaves others as they are, bit by bit, where it comes before them; None if there is none.

    Returns:
        For each tile the results, by register.
    """
    return _Scan(builder, kinds, layout, dim, combine, reverse=reverse, neutral=neutral).run(columns)


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
        one = 1 if symbol == "*" else 0
        neutral = ir.Constant(register_type(through), (float(one) or -0.0) if dtypes.is_float(through) else one)

        def combine(b: ir.IRBuilder, x: Row, y: Row) -> Row:
            return [step(b, x[0], y[0])]

        def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            way = _way(tile.layout, dim, [(max(tile.dtype, result, key=lambda dtype: dtype.itemsize), through)])
            elements = relayout(builder, unpack(builder, value), tile.dtype, tile.layout, way, wide="read")
            operands = [convert(builder, e, tile.dtype, through) for e in elements]
            (results,) = prefixes(builder, [operands], [through], way, dim, combine, reverse=backwards, neutral=[neutral])
            elements = [convert(builder, e, through, result) for e in results]
            return pack(builder, relayout(builder, elements, result, way, tile.layout, wide="write"))

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
        way = _way(layout, dim, [(dtype, dtype) for dtype in kinds])

        def moved(columns: list[list[ir.Value]], source: Layout, target: Layout, wide: str) -> list[list[ir.Value]]:
            pairs = zip(columns, kinds, strict=True)
            return [relayout(builder, column, dtype, source, target, wide=wide) for column, dtype in pairs]

        rows = moved(operands.elements(builder, value), layout, way, "read")
        rows = prefixes(builder, rows, kinds, way, dim, combine, reverse=backwards)
        return finish(builder, moved(rows, way, layout, "write"))

    return result, emit
