"""Lowering of `tilekit.lang.sorting`: bitonic sort and top-k, a sorting network over the bits of the axis.

An element becomes a word, an unsigned integer whose order is that wanted (see `_Key`), with its place along the axis in the low
bits where ties are decided by it; then words are compared alone, and no two are equal. Words of 32 bits where they fit, of 64
else; only for 64-bit elements with places there are two words.

Where the elements are before does not matter. So the places that hold the bits of the axis are renamed: registers hold the
lowest, then lanes, then warps. The lower a bit, the more often the network crosses it, and crossing a register bit costs two
instructions, a lane bit a shuffle more, a warp bit a round through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert_layout import exchange, thread_bit
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import masked, pack, special_register, thread_coordinates, unpack
from tilekit.compiler.codegen.types import TileType, i32, i64, integer, register_type
from tilekit.compiler.layouts.linear import HardwareBit, Layout, Vector
from tilekit.compiler.lower.combining import flag
from tilekit.compiler.lower.shape import constant, the_tile
from tilekit.dtypes import DType
from tilekit.lang import sorting as lang
from tilekit.lang.shape import axis_of
from tilekit.lang.size import SORTED_A_THREAD, check_size

__all__: list[str] = []

Row = Sequence[ir.Value]

_AT_ONCE = 32 * 1024  # bytes of shared memory for an exchange between warps; more elements go in several rounds


class _Key:
    """Elements as unsigned integers in the same order: the smaller the integer, the earlier the element.

    Attributes:
        bits: how many an integer has.
    """

    def __init__(self, dtype: DType, *, descending: bool, ties: bool) -> None:
        """For elements of `dtype`; with `ties`, -0.0 is the same as 0.0."""
        self.dtype, self.descending, self.ties = dtype, descending, ties
        self.bits = 8 * dtype.itemsize
        self.type = ir.IntType(self.bits)
        self.sign = ir.Constant(self.type, 1 << (self.bits - 1))

    def of(self, builder: ir.IRBuilder, element: ir.Value) -> ir.Value:
        """The integer of an element."""
        bits = builder.zext(element, self.type) if self.dtype == dtypes.bool_ else builder.bitcast(element, self.type)
        if dtypes.is_float(self.dtype):
            magnitude = masked(builder, bits, builder.not_(self.sign))
            if self.ties:
                bits = builder.select(builder.icmp_unsigned("==", magnitude, ir.Constant(self.type, 0)), magnitude, bits)
            infinity = self._infinity()
            # Negative numbers are the larger the larger their bits: all of these turn, else the sign alone.
            turned = builder.or_(builder.ashr(bits, ir.Constant(self.type, self.bits - 1)), self.sign)
            nan = builder.icmp_unsigned(">", magnitude, infinity)
            bits = builder.select(nan, ir.Constant(self.type, -1), builder.xor(bits, turned))
        elif self.dtype.kind == "i":
            bits = builder.xor(bits, self.sign)
        return builder.not_(bits) if self.descending else bits

    def element(self, builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
        """The element of an integer."""
        if self.descending:
            bits = builder.not_(bits)
        if dtypes.is_float(self.dtype):
            positive = builder.icmp_signed("<", bits, ir.Constant(self.type, 0))  # the highest bit is set
            bits = builder.xor(bits, builder.select(positive, self.sign, ir.Constant(self.type, -1)))
        elif self.dtype.kind == "i":
            bits = builder.xor(bits, self.sign)
        if self.dtype == dtypes.bool_:
            return builder.trunc(bits, ir.IntType(1))
        return builder.bitcast(bits, register_type(self.dtype))

    def _infinity(self) -> ir.Constant:
        exponent = {dtypes.float16: 0x7C00, dtypes.bfloat16: 0x7F80, dtypes.float32: 0x7F800000}
        return ir.Constant(self.type, exponent.get(self.dtype, 0x7FF0000000000000))


class _Words:
    """Elements, and their indices if `placed`, as rows of one or two words."""

    def __init__(self, key: _Key, extent: int, *, placed: bool) -> None:
        self.key, self.placed = key, placed
        self.index_bits = (extent - 1).bit_length() if placed else 0
        together = key.bits + self.index_bits
        self.dtypes = [dtypes.uint32] if together <= 32 else [dtypes.uint64]
        if together > 64:
            self.dtypes.append(dtypes.uint32)
        self.type = i32 if together <= 32 else i64

    def of(self, builder: ir.IRBuilder, element: ir.Value, index: ir.Value | None) -> Row:
        """The row of an element, whose index is an i32."""
        key = _resized(builder, self.key.of(builder, element), self.type)
        if index is None:
            return [key]
        if len(self.dtypes) == 2:
            return [key, index]
        shifted = builder.shl(key, ir.Constant(self.type, self.index_bits))
        return [builder.or_(shifted, _resized(builder, index, self.type))]

    def element(self, builder: ir.IRBuilder, row: Row) -> ir.Value:
        """The element of a row."""
        bits = row[0]
        if len(self.dtypes) == 1 and self.index_bits:
            bits = builder.lshr(bits, ir.Constant(self.type, self.index_bits))
        return self.key.element(builder, _resized(builder, bits, self.key.type))

    def index(self, builder: ir.IRBuilder, row: Row) -> ir.Value:
        """The index of a row, an i32."""
        if len(self.dtypes) == 2:
            return row[1]
        mask = ir.Constant(self.type, (1 << self.index_bits) - 1)
        return _resized(builder, masked(builder, row[0], mask), i32)

    def before(self, builder: ir.IRBuilder, x: Row, y: Row) -> ir.Value:
        """Whether a row comes before another."""
        first = builder.icmp_unsigned("<", x[0], y[0])
        if len(x) == 1:
            return first
        ties = builder.icmp_unsigned("==", x[0], y[0])
        return builder.or_(first, builder.and_(ties, builder.icmp_unsigned("<", x[1], y[1])))


def _resized(builder: ir.IRBuilder, value: ir.Value, to: ir.IntType) -> ir.Value:
    if value.type.width == to.width:
        return value
    return (builder.zext if value.type.width < to.width else builder.trunc)(value, to)


def _renamed(layout: Layout, dim: int) -> tuple[Layout, list[HardwareBit]]:
    """A layout whose registers hold the lowest bits of `dim`, then lanes, then warps; and where it keeps them, lowest first."""
    hardware = layout.axis(dim)
    kinds = ("reg", "lane", "warp")
    ordered = sorted(hardware, key=lambda hardware: (kinds.index(hardware.kind), hardware.bit))
    bases = {kind: list(getattr(layout, kind)) for kind in kinds}
    for bit, hardware in enumerate(ordered):
        bases[hardware.kind][hardware.bit] = tuple(1 << bit if d == dim else 0 for d in range(len(layout.shape)))
    return Layout(layout.shape, *(tuple(bases[kind]) for kind in kinds)), ordered


class _Network:
    """A bitonic sorting network: rows of words on their way into order.

    Attributes:
        rows: by register; those that were dropped are gone.
    """

    def __init__(
        self, builder: ir.IRBuilder, words: _Words, rows: dict[int, Row], layout: Layout, hardware: list[HardwareBit], lanes: int
    ) -> None:
        self.builder, self.words, self.rows, self.hardware, self.lanes = builder, words, rows, hardware, lanes
        self.num_threads = 1 << len(layout.thread)

    def sort(self, count: int) -> None:
        """Sort runs of `2 ** count` neighbours, each second one backwards."""
        for stage in range(1, count + 1):
            self.merge(stage)

    def merge(self, count: int, turned: int | None = None) -> None:
        """Sort runs of `2 ** count` neighbours that rise and then fall, or fall and then rise.

        Args:
            count: as said.
            turned: the bit of the index which says that a run is sorted backwards; by default the next.
        """
        turned = count if turned is None else turned
        backwards = self.hardware[turned] if turned < len(self.hardware) else None
        for bit in reversed(range(count)):
            hardware = self.hardware[bit]
            if hardware.kind == "reg":
                self._in_registers(1 << hardware.bit, backwards)
            else:
                self._between_threads(hardware, backwards)

    def _in_registers(self, step: int, backwards: HardwareBit | None) -> None:
        for low in [r for r in self.rows if not r & step]:
            x, y = self.rows[low], self.rows[low | step]
            if backwards is not None and backwards.kind == "reg" and low >> backwards.bit & 1:
                x, y = y, x
            swap = self.words.before(self.builder, y, x)
            if backwards is not None and backwards.kind != "reg":
                swap = self.builder.xor(swap, self._bit(backwards))
            self.rows[low], self.rows[low | step] = self._chosen(swap, y, x), self._chosen(swap, x, y)
            if backwards is not None and backwards.kind == "reg" and low >> backwards.bit & 1:
                self.rows[low], self.rows[low | step] = self.rows[low | step], self.rows[low]

    def _between_threads(self, hardware: HardwareBit, backwards: HardwareBit | None) -> None:
        upper = self._bit(hardware)
        if backwards is not None and backwards.kind != "reg":
            upper = self.builder.xor(upper, self._bit(backwards))
        for r, theirs in self._exchanged(hardware).items():
            turned = backwards is not None and backwards.kind == "reg" and r >> backwards.bit & 1
            mine = self.rows[r]
            keep = self.builder.xor(self.words.before(self.builder, mine, theirs), upper)
            self.rows[r] = self._chosen(keep, theirs, mine) if turned else self._chosen(keep, mine, theirs)

    def halve(self, bit: int) -> None:
        """Of each pair whose indices differ in `bit` keep the first in order; threads that differ in it hold copies then."""
        hardware = self.hardware[bit]
        if hardware.kind == "reg":
            step = 1 << hardware.bit
            for high in [r for r in self.rows if r & step]:
                x, y = self.rows[high ^ step], self.rows.pop(high)
                self.rows[high ^ step] = self._chosen(self.words.before(self.builder, x, y), x, y)
            return
        for r, theirs in self._exchanged(hardware).items():
            mine = self.rows[r]
            self.rows[r] = self._chosen(self.words.before(self.builder, mine, theirs), mine, theirs)

    def _exchanged(self, hardware: HardwareBit) -> dict[int, Row]:
        """By register what the thread has whose number differs in the bit `hardware`."""
        numbers = list(self.rows)
        columns: list[list[ir.Value]] = []
        for k, dtype in enumerate(self.words.dtypes):
            elements = [self.rows[r][k] for r in numbers]
            at_once = max(1, _AT_ONCE // (self.num_threads * dtype.itemsize)) if hardware.kind == "warp" else len(elements)
            columns.append([])
            for start in range(0, len(elements), at_once):
                columns[k] += exchange(self.builder, elements[start : start + at_once], dtype, hardware, self.num_threads)
        return dict(zip(numbers, zip(*columns, strict=True), strict=True))

    def _bit(self, hardware: HardwareBit) -> ir.Value:
        return thread_bit(self.builder, hardware.bit + (self.lanes if hardware.kind == "warp" else 0))

    def _chosen(self, condition: ir.Value, x: Row, y: Row) -> Row:
        return [self.builder.select(condition, a, b) for a, b in zip(x, y, strict=True)]


def _network(
    builder: ir.IRBuilder, tile: TileType, value: ir.Value, words: _Words, dim: int, layout: Layout, hardware: list[HardwareBit]
) -> _Network:
    """The elements of a tile as words; `layout` and `hardware` are those that they are sorted in."""
    start: Any = None
    if words.placed:
        start = thread_coordinates(builder, special_register(builder, "tid.x"), tile.layout.thread)[dim]
    rows = {}
    for r, (element, at) in enumerate(zip(unpack(builder, value), tile.layout.coordinates(), strict=True)):
        index = builder.or_(start, integer(32, at[dim])) if words.placed else None
        rows[r] = words.of(builder, element, index)
    return _Network(builder, words, rows, layout, hardware, len(layout.lane))


# ------------------------------------------------------------------------------------------------------------------ operations


def _operand(x: types.Type, axis: types.Type, what: str) -> tuple[TileType, int]:
    tile = the_tile(x, what)
    if problem := dtypes.no_arithmetic(tile.dtype):
        reject(what, problem)
    return tile, in_words(what, axis_of, constant(axis, what, "the axis"), len(tile.shape))


def _sorting(what: str, result: DType | None) -> Callable[..., Any]:
    """`sort`, or `argsort` if there is a result dtype."""

    def define(x: types.Type, axis: types.Type, descending: types.Type) -> Any:
        tile, dim = _operand(x, axis, what)
        in_words(what, lambda what: check_size(tile.shape, what, SORTED_A_THREAD))
        current().spread(tile.shape, SORTED_A_THREAD)
        placed = result is not None
        key = _Key(tile.dtype, descending=flag(descending, what, "descending"), ties=placed)
        words = _Words(key, tile.shape[dim], placed=placed)
        layout, hardware = _renamed(tile.layout, dim)

        def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            network = _network(builder, tile, value, words, dim, layout, hardware)
            network.sort(len(hardware))
            read = words.index if placed else words.element
            return pack(builder, [read(builder, network.rows[r]) for r in range(layout.num_registers)])

        return TileType(result or tile.dtype, layout, tile.config), emit

    return define


lowers(lang.sort)(_sorting("sort", None))
lowers(lang.argsort)(_sorting("argsort", dtypes.int32))


def _first(layout: Layout, dim: int, count: int) -> Layout:
    """Of the indices along `dim` only `count`: registers with others are gone, threads with others hold copies."""
    shape = tuple(count if d == dim else n for d, n in enumerate(layout.shape))

    def cut(vector: Vector) -> Vector:
        return tuple(at & (count - 1) if d == dim else at for d, at in enumerate(vector))

    reg = tuple(cut(v) for v in layout.reg if any(cut(v)))
    return Layout(shape, reg, tuple(map(cut, layout.lane)), tuple(map(cut, layout.warp)))


@lowers(lang.topk)
def topk(x: types.Type, k: types.Type, axis: types.Type, largest: types.Type) -> Any:
    tile, dim = _operand(x, axis, "topk")
    count = constant(k, "topk", "k")
    problem = lang.topk_problem(count, tile.shape[dim])
    if problem:
        reject("topk", problem)
    words = _Words(_Key(tile.dtype, descending=flag(largest, "topk", "largest"), ties=True), tile.shape[dim], placed=True)
    layout, hardware = _renamed(tile.layout, dim)
    halved = _first(layout, dim, count)
    kinds = [TileType(tile.dtype, halved, tile.config), TileType(dtypes.int32, halved, tile.config)]
    bits = count.bit_length() - 1

    def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
        network = _network(builder, tile, value, words, dim, layout, hardware)
        network.sort(bits)  # runs of k, which rise and fall in turn: of two, the smaller of each pair are the k smallest
        for bit in range(bits, len(hardware)):
            network.halve(bit)
            network.merge(bits, bit + 1)
        rows = [network.rows[r] for r in sorted(network.rows)]
        parts = [pack(builder, [read(builder, row) for row in rows]) for read in (words.element, words.index)]
        alike = kinds[0] == kinds[1]
        struct: Any = ir.ArrayType(parts[0].type, 2) if alike else ir.LiteralStructType([part.type for part in parts])
        both: Any = ir.Constant(struct, ir.Undefined)
        for n, part in enumerate(parts):
            both = builder.insert_value(both, part, n)
        return both

    return types.BaseTuple.from_types(kinds), emit
