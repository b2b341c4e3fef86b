"""Sums over the blocks of a cluster, through distributed shared memory: each block sends its tile to the first (st.async).

The first block has room for a tile of each other block, and for each sum a barrier (mbarrier) that counts the bytes which come.
The same thread of each block has the same elements of the tile, so that nothing changes places. A kernel takes each sum once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.arithmetic import binary
from tilekit.compiler.codegen.compilation import BARRIER_ROOM, RING_ALIGNMENT, current
from tilekit.compiler.codegen.definition import known, lowers
from tilekit.compiler.codegen.emit import asm, pack, special_register, unpack
from tilekit.compiler.codegen.mapped_types import TilesType
from tilekit.compiler.codegen.types import TileType, i32, integer
from tilekit.compiler.codegen.words import braced, packed, words_of
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.nvidia.multibuffer import behind_rooms, the_pipelines, wait
from tilekit.compiler.passes.rings import Unfit

_AT_ONCE, _BARRIER = 16, 8  # bytes
_VOID = ir.VoidType()


def _room(sizes: tuple[int, ...], blocks: int) -> int:
    """The bytes for all sums."""
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
def sum_of_blocks(number: types.Type, blocks: types.Type, tile: types.Type) -> Any:
    assert isinstance(tile, TileType), "passes.shared_turns passes tiles"
    which, count, layout, dtype = known(number), known(blocks), tile.layout, tile.dtype
    threads, add = current().config.num_threads, binary("+", dtype)
    together = min(layout.num_registers, _AT_ONCE // dtype.itemsize)
    nbytes = together * dtype.itemsize

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        state, elements = the_pipelines(), unpack(builder, values[-1])
        begin, size = state.sums[which]
        if layout.num_registers * threads * dtype.itemsize != size:
            raise Unfit("several threads have the same elements of what blocks add up together")
        room, barrier = behind_rooms(builder, begin), _barrier(builder, which)
        thread = shared.at(builder, room, special_register(builder, "tid.x"), nbytes)
        rank = builder.urem(special_register(builder, "ctaid.x"), integer(32, count))
        is_first = builder.icmp_unsigned("==", rank, integer(32, 0))
        pieces = [(n, elements[n : n + together]) for n in range(0, layout.num_registers, together)]
        with builder.if_then(builder.not_(is_first)):
            target = builder.add(thread, builder.mul(builder.sub(rank, integer(32, 1)), integer(32, size)))
            remote, there = (_in_first(builder, address) for address in (target, barrier))
            for n, piece in pieces:
                _send(builder, remote, n * threads * dtype.itemsize, there, dtype, piece)

        def taken() -> list[ir.Value]:
            wait(builder, barrier, integer(32, 0))
            totals = list(elements)
            for other in range(count - 1):
                for n, piece in pieces:
                    offset = other * size + n * threads * dtype.itemsize
                    come = shared.get(builder, thread, offset, dtype, len(piece))
                    totals[n : n + len(piece)] = [
                        add(builder, mine, theirs) for mine, theirs in zip(totals[n : n + len(piece)], come, strict=True)
                    ]
            return totals

        return pack(builder, shared.where(builder, is_first, taken, elements))

    return tile, emit


def _in_first(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The address of the same place in the shared memory of the first block of the cluster."""
    return asm(builder, "mapa.shared::cluster.u32 $0, $1, 0;", "=r,r", i32, [address])


def _send(builder: ir.IRBuilder, base: ir.Value, offset: int, barrier: ir.Value, dtype: Any, elements: list[ir.Value]) -> None:
    """Write neighbouring elements to another block's memory, whose barrier counts them."""
    words = words_of(dtype, len(elements))
    values = braced([f"${n + 2}" for n in range(words.count)])
    text = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{words.access} [$0+{offset}], {values}, [$1];"
    constraints = ",".join(["r", "r", *[words.letter] * words.count, "~{memory}"])
    asm(builder, text, constraints, _VOID, [base, barrier, *packed(builder, elements, dtype, words)], effect=True)
