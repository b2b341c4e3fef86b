"""Sums over the blocks of a cluster, through distributed shared memory: each block gets a piece of the sum (st.async).

The columns of a tile are cut into pieces, a power of two of them, and so many of the first blocks get one each, to which all
others send theirs (a reduce-scatter; with one piece, a reduction to the first block). A block has room for a piece of each other
block, and for each sum a barrier (mbarrier) that counts the bytes which come. All send to different ones at the same time: block
`r` sends piece `r ^ 1` to block `r ^ 1`, then `r ^ 2` to block `r ^ 2`, and so on. The same thread of each block has the same
elements of the tile, so that nothing changes places. A kernel takes each sum once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.arithmetic import binary
from tilekit.compiler.codegen.compilation import BARRIER_ROOM, RING_ALIGNMENT, current
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.emit import asm, pack, special_register, unpack
from tilekit.compiler.codegen.mapped_types import TilesType
from tilekit.compiler.codegen.types import TileType, i32, integer
from tilekit.compiler.codegen.words import braced, packed, words_of
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.nvidia.multibuffer import behind_rooms, the_pipelines, wait
from tilekit.compiler.passes.rings import Unfit

_AT_ONCE, _BARRIER = 16, 8  # bytes
_VOID = ir.VoidType()


def _room(sizes: tuple[int, ...], blocks: int) -> int:
    """The bytes for pieces of all sums."""
    return -(-sum(sizes) * (blocks - 1) // RING_ALIGNMENT) * RING_ALIGNMENT


@lowers(intrinsics.everybody)
def everybody(tiles: types.Type) -> Any:
    assert isinstance(tiles, TilesType), "passes.shared_turns passes tiles"
    return TilesType(tiles.tensor, tiles.others, everybody=True), lambda builder, value: value


@lowers(intrinsics.place)
def place(blocks: types.Type) -> Any:
    count = integer(32, known(blocks))
    return types.int32, lambda builder, _: builder.urem(special_register(builder, "ctaid.x"), count)


@lowers(intrinsics.meet)
def meet(blocks: types.Type, sizes: types.Type) -> Any:
    state, count, each = the_pipelines(), known(blocks), known(sizes)
    state.cluster, state.received = count, _room(each, count)

    def emit(builder: ir.IRBuilder, *_: ir.Value) -> None:
        state.sums = [(state.ring_bytes + (count - 1) * sum(each[:n]), size) for n, size in enumerate(each)]
        state.ring_bytes += state.received
        first = builder.icmp_unsigned("==", special_register(builder, "tid.x"), integer(32, 0))
        with builder.if_then(first):
            for number, size in enumerate(each):
                barrier = _barrier(builder, number)
                text = "mbarrier.init.shared::cta.b64 [$0], 1; "
                text += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {(count - 1) * size};"
                asm(builder, text, "r,~{memory}", _VOID, [barrier], effect=True)
        state.barrier_bytes += _BARRIER * len(each)

    return types.none, emit


def _barrier(builder: ir.IRBuilder, number: int) -> ir.Value:
    """That of a sum: before those of the rings."""
    return behind_rooms(builder, _BARRIER * number - BARRIER_ROOM)


@lowers(intrinsics.sum_of_blocks)
def sum_of_blocks(number: types.Type, blocks: types.Type, pieces: types.Type, tile: types.Type) -> Any:
    assert isinstance(tile, TileType), "passes.shared_turns passes tiles"
    which, count, parts, dtype = known(number), known(blocks), known(pieces), tile.dtype
    threads, add = current().config.num_threads, binary("+", dtype)
    cut, layout = _cut(tile.layout, parts)
    together = min(layout.num_registers, _AT_ONCE // dtype.itemsize)
    nbytes = together * dtype.itemsize

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        state, elements = the_pipelines(), in_layout(builder, tile, unpack(builder, values[-1]), cut)
        begin, size = state.sums[which]
        if layout.num_registers * threads * dtype.itemsize != size:
            raise Unfit("several threads have the same elements of what blocks add up together")
        room, barrier = behind_rooms(builder, begin), _barrier(builder, which)
        thread = shared.at(builder, room, special_register(builder, "tid.x"), nbytes)
        rank = builder.urem(special_register(builder, "ctaid.x"), integer(32, count))
        nearest = builder.and_(rank, integer(32, parts - 1))
        mine, *others = _in_order(builder, _pieces(cut, parts, elements), nearest)
        starts = range(0, layout.num_registers, together)

        def send(piece: list[ir.Value], to: ir.Value) -> None:
            behind = builder.icmp_unsigned(">", rank, to)
            slot = builder.sub(rank, builder.zext(behind, i32))
            target = builder.add(thread, builder.mul(slot, integer(32, size)))
            remote, there = (_in_block(builder, address, to) for address in (target, barrier))
            for n in starts:
                _send(builder, remote, n * threads * dtype.itemsize, there, dtype, piece[n : n + together])

        for step, piece in enumerate(others, start=1):
            send(piece, builder.xor(nearest, integer(32, step)))
        has_one = builder.icmp_unsigned("<", rank, integer(32, parts))
        if parts < count:
            with builder.if_then(builder.not_(has_one)):
                send(mine, nearest)

        def taken() -> list[ir.Value]:
            wait(builder, barrier, integer(32, 0))
            totals = list(mine)
            for other in range(count - 1):
                for n in starts:
                    come = shared.get(builder, thread, other * size + n * threads * dtype.itemsize, dtype, together)
                    added = zip(totals[n : n + together], come, strict=True)
                    totals[n : n + together] = [add(builder, had, more) for had, more in added]
            return totals

        return pack(builder, shared.where(builder, has_one if parts < count else None, taken, mine))

    return TileType(dtype, layout, tile.config), emit


def _cut(layout: Layout, pieces: int) -> tuple[Layout, Layout]:
    """The layout of a tile of whose columns each thread has some of all pieces in registers, and that of one piece."""
    rank, columns = len(layout.shape), layout.shape[-1] // pieces
    registers, lane, warp = (list(basis) for basis in (layout.reg, layout.lane, layout.warp))
    across = [(*(0,) * (rank - 1), columns << bit) for bit in range(pieces.bit_length() - 1)]
    for vector in across:
        if vector not in registers:  # it changes places with one that is
            basis = lane if vector in lane else warp
            at = max((n for n, other in enumerate(registers) if other not in across), default=None)
            if at is None:
                raise Unfit("several threads have the same elements of what blocks add up together")
            basis[basis.index(vector)], registers[at] = registers[at], vector
    cut = Layout(layout.shape, tuple(registers), tuple(lane), tuple(warp))
    rest = tuple(vector for vector in registers if vector not in across)
    return cut, Layout((*layout.shape[:-1], columns), rest, tuple(lane), tuple(warp))


def _pieces(layout: Layout, pieces: int, elements: list[ir.Value]) -> list[list[ir.Value]]:
    """The elements of each piece."""
    columns = layout.shape[-1] // pieces
    of_one = tuple(bit for bit, vector in enumerate(layout.reg) if vector[-1] < columns)
    coordinates = layout.coordinates()
    groups = sorted(layout.chunks(of_one), key=lambda registers: coordinates[registers[0]][-1])
    return [[elements[register] for register in registers] for registers in groups]


def _in_order(builder: ir.IRBuilder, pieces: list[list[ir.Value]], first: ir.Value) -> list[list[ir.Value]]:
    """Pieces `first`, `first ^ 1`, `first ^ 2`, ..."""
    for bit in range(len(pieces).bit_length() - 1):
        other = builder.trunc(builder.lshr(first, integer(32, bit)), ir.IntType(1))
        pieces = [
            [builder.select(other, theirs, mine) for mine, theirs in zip(piece, pieces[at ^ 1 << bit], strict=True)]
            for at, piece in enumerate(pieces)
        ]
    return pieces


def _in_block(builder: ir.IRBuilder, address: ir.Value, block: ir.Value) -> ir.Value:
    """The address of the same place in the shared memory of another block of the cluster."""
    return asm(builder, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", i32, [address, block])


def _send(builder: ir.IRBuilder, base: ir.Value, offset: int, barrier: ir.Value, dtype: Any, elements: list[ir.Value]) -> None:
    """Write neighbouring elements to another block's memory, whose barrier counts them."""
    words = words_of(dtype, len(elements))
    values = braced([f"${n + 2}" for n in range(words.count)])
    text = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{words.access} [$0+{offset}], {values}, [$1];"
    constraints = ",".join(["r", "r", *[words.letter] * words.count, "~{memory}"])
    asm(builder, text, constraints, _VOID, [base, barrier, *packed(builder, elements, dtype, words)], effect=True)
