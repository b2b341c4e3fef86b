"""Layout conversion: elements change places by shuffles or through shared memory; and butterfly exchanges between threads.

Numba asks for conversions where a variable is now a tile of one layout, now of another; operations ask where their operands meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry

from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.emit import asm, pack, special_register, unpack, xor_of_bits
from tilekit.compiler.codegen.types import TileType, i16, i32, i64, integer
from tilekit.compiler.codegen.words import elements_of, packed, words_of
from tilekit.compiler.layouts.conversion import Matrices, Swizzle, parts, within_threads, within_warps
from tilekit.compiler.layouts.linear import WARP, HardwareBit, Layout, Vector
from tilekit.dtypes import DType

__all__ = [
    "Beyond", "InShared", "Passage", "Take", "accesses", "exchange", "from_lane", "in_layout", "relayout", "shifted",
    "thread_bit",
]  # fmt: skip

Take = Callable[[int], ir.Value]  # the element of a register


def in_layout(builder: ir.IRBuilder, tile: TileType, elements: list[ir.Value], layout: Layout) -> list[ir.Value]:
    """The elements of a tile, by register of another layout of its shape."""
    if tile.splat:
        return elements[:1] * layout.num_registers
    return relayout(builder, elements, tile.dtype, tile.layout, layout)


def relayout(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, source: Layout, target: Layout, *, wide: str = ""
) -> list[ir.Value]:
    """Convert elements in `source` to `target`, a layout of the same shape. All threads of the block take part.

    Args:
        builder: at the place of the conversion.
        elements: by register of `source`.
        dtype: theirs.
        source, target: the layouts.
        wide: "read" or "write": through shared memory, accesses of that side cover what threads hold there, though those of the
            other side cover less; without, they cover what both sides hold.
    """
    if source == target:
        return elements
    choices, swaps = within_threads(source, target), within_warps(source, target)
    current().note("conversion", dtype, source, target, choices is None and swaps is None)
    if choices is None and swaps is not None:
        return _by_shuffles(builder, elements, dtype, source, swaps)
    if choices is None:
        return _through_shared(builder, elements, dtype, source, target, wide)
    converted = []
    for register, flips in choices:
        converted.append(_chosen(builder, elements, register, flips))
    return converted


def _chosen(builder: ir.IRBuilder, elements: list[ir.Value], register: int, flips: list[tuple[int, int]]) -> ir.Value:
    """The element of a register whose number depends on bits of the thread number."""
    if not flips:
        return elements[register]
    (bit, flip), *rest = flips
    there = _chosen(builder, elements, register ^ flip, rest)
    return builder.select(thread_bit(builder, bit), there, _chosen(builder, elements, register, rest))


def _by_shuffles(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, source: Layout, swaps: list[tuple[int, int]]
) -> list[ir.Value]:
    """Elements of which bits of the register number and of the lane change places, by whole words of those that stay together."""
    still = [bit for bit in range(len(source.reg)) if bit not in {reg for reg, _ in swaps}]
    together = tuple(still[: max(0, (4 // dtype.itemsize).bit_length() - 1)])
    chunks = source.chunks(together)
    words = [_word(builder, [elements[r] for r in chunk], dtype) for chunk in chunks]
    word_of = {chunk[0]: at for at, chunk in enumerate(chunks)}
    for reg, lane in swaps:
        upper = thread_bit(builder, lane)
        for first, at in word_of.items():
            if first >> reg & 1:
                continue
            other = word_of[first | 1 << reg]
            low, high = words[at], words[other]
            moved = _shuffled(builder, builder.select(upper, low, high), 1 << lane)
            words[at], words[other] = builder.select(upper, moved, low), builder.select(upper, high, moved)
    shuffled: list[Any] = [None] * len(elements)
    for chunk, word in zip(chunks, words, strict=True):
        for register, element in zip(chunk, _elements(builder, word, dtype, len(chunk)), strict=True):
            shuffled[register] = element
    return shuffled


def _word(builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType) -> ir.Value:
    if len(elements) == 1:
        return elements[0]
    (word,) = packed(builder, elements, dtype, words_of(dtype, len(elements)))
    return word


def _elements(builder: ir.IRBuilder, word: ir.Value, dtype: DType, count: int) -> list[ir.Value]:
    return [word] if count == 1 else elements_of(builder, [word], dtype, count)


def thread_bit(builder: ir.IRBuilder, bit: int) -> ir.Value:
    """Whether a bit of the thread number is set."""
    return builder.trunc(builder.lshr(special_register(builder, "tid.x"), integer(32, bit)), ir.IntType(1))


def _through_shared(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, source: Layout, target: Layout, wide: str
) -> list[ir.Value]:
    passage = Passage(dtype, source, target, read_wide=wide == "read", write_wide=wide == "write")
    if passage.nbytes > shared.block_bytes():
        bits = parts(source, target, dtype.itemsize, shared.part_bytes())
        return _in_parts(builder, elements, dtype, source, target, bits)
    base = shared.room(builder, passage.nbytes, "the elements")
    passage.put(builder, base, elements)
    shared.barrier(builder)
    take = passage.taker(builder, base)
    return [take(r) for r in range(target.num_registers)]


def _in_parts(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, source: Layout, target: Layout, bits: Sequence[Vector]
) -> list[ir.Value]:
    """Through shared memory part by part; `bits` of the coordinate number the parts. Threads that have none of a part wait."""
    passage = Passage(dtype, source.cut(bits), target.cut(bits))
    held, wanted = passage.source.coordinates(), passage.read.coordinates()
    converted: list[Any] = [None] * target.num_registers
    for number in range(1 << len(bits)):
        part = tuple(sum(v[d] for k, v in enumerate(bits) if number >> k & 1) for d in range(len(source.shape)))
        base = shared.room(builder, passage.nbytes, "the elements")
        mine = [elements[source.register_of(_plus(at, part))] for at in held]
        shared.where(builder, _has(builder, source, bits, number), lambda mine=mine, base=base: passage.put(builder, base, mine))
        shared.barrier(builder)
        registers = [target.register_of(_plus(at, part)) for at in wanted]

        def read(base: ir.Value = base) -> list[ir.Value]:
            take = passage.taker(builder, base)
            return [take(r) for r in range(len(wanted))]

        values = shared.where(builder, _has(builder, target, bits, number), read, [converted[r] for r in registers])
        for register, element in zip(registers, values, strict=True):
            converted[register] = element
    return converted


def _plus(x: Vector, y: Vector) -> Vector:
    return tuple(a | b for a, b in zip(x, y, strict=True))


def _has(builder: ir.IRBuilder, layout: Layout, bits: Sequence[Vector], number: int) -> ir.Value | None:
    """Whether a thread has elements of a part; None if each has."""
    wanted = [(layout.thread.index(v), number >> k & 1) for k, v in enumerate(bits) if v in layout.thread]
    if not wanted:
        return None
    mask, value = sum(1 << at for at, _ in wanted), sum(bit << at for at, bit in wanted)
    mine = builder.and_(special_register(builder, "tid.x"), integer(32, mask))
    return builder.icmp_unsigned("==", mine, integer(32, value))


class Beyond(NamedTuple):
    """A number that is computed when the kernel runs, and for some of its bits how far each moves a coordinate of a tile."""

    number: ir.Value
    vectors: Sequence[tuple[int, Vector]]


class InShared:
    """A tile in shared memory, to be read in some layout.

    Attributes:
        dtype: of its elements.
        swizzle: where each of them lies.
        read: the layout in which threads read.
        matrices: how `ldmatrix` reads it, if it does.
        nearby: whether an access covers all that the swizzle lets it.
    """

    def __init__(self, dtype: DType, swizzle: Swizzle, target: Layout, matrices: Matrices | None = None) -> None:
        """`target` is the layout in which it is wanted."""
        self.dtype, self.matrices = dtype, matrices
        self.read = matrices.pointing if matrices else target
        self.swizzle = swizzle.within(self.read)
        self.nearby = len(self.swizzle.shared) == len(swizzle.shared)

    def taker(self, builder: ir.IRBuilder, base: ir.Value, beyond: Beyond | None = None) -> Take:
        """What gives the element of a register of the wanted layout: it reads when it is first asked for it, or for a neighbour.

        Args:
            builder: at the place of the accesses, which stay in one block of code.
            base: where the tile is.
            beyond: how far from there the elements are in the tile; the vectors are among those that are read apart.
        """
        pieces = accesses(builder, base, self.dtype.itemsize, self.swizzle, self.read, beyond=beyond)
        access_of = {register: access for access in pieces for register in access[0]}
        taken: dict[int, ir.Value] = {}

        def take(register: int) -> ir.Value:
            if register not in taken:
                registers, address, offset = access_of[register]
                if self.matrices is not None:  # a lane points to as many elements as it gets: they have the same registers
                    values = shared.get_matrices(builder, address, offset, self.dtype, transposed=self.matrices.transposed)
                else:
                    values = shared.get(builder, address, offset, self.dtype, len(registers))
                taken.update(zip(registers, values, strict=True))
            return taken[register]

        return take


class Passage(InShared):
    """A tile's way through shared memory, from one layout to another. All threads of the block take part.

    Attributes:
        nbytes: how much memory it takes.
    """

    def __init__(
        self,
        dtype: DType,
        source: Layout,
        target: Layout,
        apart: Sequence[Vector] = (),
        *,
        matrices: bool = False,
        read_wide: bool = False,
        write_wide: bool = False,
    ) -> None:
        """The arguments are those of `Swizzle.between`; whether to read by `ldmatrix` where that is possible; and whether an
        access writes as many as it can, though they may have to be read one by one."""
        self.source = source
        way = Matrices.between(source.reg, target, dtype.itemsize) if matrices else None
        sides = (source, way.pointing if way else target)
        if write_wide:  # what is free of bank conflicts one way is so the other way
            self._whole = Swizzle.between(*reversed(sides), dtype.itemsize, apart, read_wide=True)
        else:
            self._whole = Swizzle.between(*sides, dtype.itemsize, apart, read_wide=read_wide)
        super().__init__(dtype, self._whole, target, way)
        self.nbytes = dtype.itemsize << len(self.swizzle.offsets)

    def put(self, builder: ir.IRBuilder, base: ir.Value, elements: list[ir.Value]) -> None:
        """Write the tile, given by register of `source`, to address `base`. A barrier must follow."""
        swizzle = self._whole.within(self.source)
        for registers, address, offset in accesses(builder, base, self.dtype.itemsize, swizzle, self.source):
            shared.put(builder, address, offset, self.dtype, [elements[r] for r in registers])


def accesses(
    builder: ir.IRBuilder,
    base: ir.Value,
    itemsize: int,
    swizzle: Swizzle,
    layout: Layout,
    *,
    thread: ir.Value | None = None,
    beyond: Beyond | None = None,
) -> list[tuple[list[int], ir.Value, int]]:
    """How a thread accesses a tile in shared memory: for each access its registers, an address and an offset in bytes.

    Args:
        builder: at the place of the accesses.
        base: where the tile is.
        itemsize: of its elements.
        swizzle, layout: where they lie, and who has which.
        thread: the number of the thread, if it is not that in the block.
        beyond: see `InShared.taker`.
    """
    masks, coordinates = swizzle.of_thread(layout), layout.coordinates()
    start = xor_of_bits(builder, special_register(builder, "tid.x") if thread is None else thread, masks)
    if beyond is not None:
        steps = {bit: swizzle.offset(vector) for bit, vector in beyond.vectors}
        moves = [steps.get(bit, 0) for bit in range(1 + max(steps))]
        start = builder.xor(start, xor_of_bits(builder, beyond.number, moves))
        masks = [*masks, *moves]
    walked = 0  # bits of the offset that are decided when the kernel runs; others are immediates
    for mask in masks:
        walked |= mask
    addresses: dict[int, ir.Value] = {}
    pieces = []
    for registers in swizzle.registers(layout):
        offset = swizzle.offset(coordinates[registers[0]])
        flip = offset & walked
        if flip not in addresses:
            moved = builder.xor(start, integer(32, flip)) if flip else start
            addresses[flip] = shared.at(builder, base, moved, itemsize)
        pieces.append((registers, addresses[flip], (offset ^ flip) * itemsize))
    return pieces


def exchange(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, hardware: HardwareBit, num_threads: int
) -> list[ir.Value]:
    """Butterfly exchange: for each element, that whose register or thread differs in the bit `hardware`. All threads take part.

    Args:
        builder: at the place of the exchange.
        elements: by register.
        dtype: theirs.
        hardware: a bit of the register number, of the lane, or of the warp.
        num_threads: of the block.
    """
    current().note("exchange", dtype, hardware, len(elements))
    if hardware.kind == "reg":
        return [elements[r ^ 1 << hardware.bit] for r in range(len(elements))]
    if hardware.kind == "lane":
        return [_shuffled(builder, e, 1 << hardware.bit) for e in elements]
    itemsize = dtype.itemsize
    base = shared.room(builder, num_threads * len(elements) * itemsize, "the elements")
    thread = special_register(builder, "tid.x")
    mine = shared.at(builder, base, thread, itemsize)
    theirs = shared.at(builder, base, builder.xor(thread, integer(32, WARP << hardware.bit)), itemsize)
    for r, element in enumerate(elements):
        shared.put(builder, mine, r * num_threads * itemsize, dtype, [element])
    shared.barrier(builder)
    return [shared.get(builder, theirs, r * num_threads * itemsize, dtype, 1)[0] for r in range(len(elements))]


def shifted(
    builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, bits: Sequence[int], step: int, *, down: bool
) -> list[ir.Value]:
    """For each element, that of the lane so many before its own; in lanes that have none, anything.

    Args:
        builder: at the place of the exchange.
        elements: of each lane.
        dtype: theirs.
        bits: those of the lane that count, neighbours; lanes that differ in others are apart.
        step: how far the lane is.
        down: it is so many behind instead.
    """
    current().note("exchange", dtype, HardwareBit("lane", bits[0] + step.bit_length() - 1), len(elements))
    way, clamp = ("down", 31) if down else ("up", 0)
    apart = WARP - (1 << bits[-1] + 1)  # the bits above
    return [_shuffle(builder, e, way, str(step << bits[0]), apart << 8 | clamp) for e in elements]


def from_lane(builder: ir.IRBuilder, elements: list[ir.Value], dtype: DType, lane: ir.Value) -> list[ir.Value]:
    """For each element, that of a lane which each lane has the number of, an i32. All lanes take part."""
    current().note("exchange", dtype, HardwareBit("lane", 0), len(elements))
    return [_shuffle(builder, e, "idx", lane, WARP - 1) for e in elements]


def _shuffled(builder: ir.IRBuilder, value: ir.Value, distance: int) -> ir.Value:
    """The value of the lane whose number differs by XOR."""
    return _shuffle(builder, value, "bfly", str(distance), WARP - 1)


def _shuffle(builder: ir.IRBuilder, value: ir.Value, way: str, operand: str | ir.Value, limits: int) -> ir.Value:
    """PTX's `shfl.sync` of a value of any width; the operand is a number, or an i32."""
    kind = value.type
    width = kind.width if isinstance(kind, ir.IntType) else {"half": 16, "float": 32, "double": 64}[str(kind)]
    if width == 64:
        bits = builder.bitcast(value, i64)
        low, high = builder.trunc(bits, i32), builder.trunc(builder.lshr(bits, integer(64, 32)), i32)
        low, high = (_shuffle(builder, half, way, operand, limits) for half in (low, high))
        wide = builder.or_(builder.zext(low, i64), builder.shl(builder.zext(high, i64), integer(64, 32)))
        return builder.bitcast(wide, kind)
    if width < 32:
        bits = builder.bitcast(value, i16) if kind == ir.HalfType() else value
        moved = _shuffle(builder, builder.zext(bits, i32), way, operand, limits)
        return builder.bitcast(builder.trunc(moved, bits.type), kind)
    arguments = [builder.bitcast(value, i32)]
    if isinstance(operand, str):
        text = f"shfl.sync.{way}.b32 $0, $1, {operand}, {limits}, -1;"
    else:
        text = f"shfl.sync.{way}.b32 $0, $1, $2, {limits}, -1;"
        arguments.append(operand)
    moved = asm(builder, text, ",".join(["=r"] + ["r"] * len(arguments)), i32, arguments, convergent=True)
    return builder.bitcast(moved, kind)


@registry.lower_cast(TileType, TileType)
def _cast(context: Any, builder: ir.IRBuilder, source: TileType, target: TileType, value: ir.Value) -> ir.Value:
    assert isinstance(source, types.Type), "of the same dtype and shape: TileType.can_convert_to"
    return pack(builder, in_layout(builder, source, unpack(builder, value), target.layout))
