"""Asynchronous copies (TMA, cp.async) into the stages of a ring: what producers do in each turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba.cuda import cgutils

from tilekit.compiler.codegen.access import AccessPattern, Window, access_pattern, tensor_field
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert_layout import accesses
from tilekit.compiler.codegen.emit import asm, elected, special_register
from tilekit.compiler.codegen.types import i32, i64, integer
from tilekit.compiler.codegen.view_types import TileRowType
from tilekit.compiler.layouts.conversion import Swizzle
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, Layout
from tilekit.compiler.nvidia.fewer_rows import Fewer
from tilekit.compiler.nvidia.multibuffer import RingType, Together, Way, by_panels, memory_order, tensor_map_of, the_pipelines
from tilekit.compiler.nvidia.staged import StagedType

__all__ = ["dealt", "fill", "one_producer"]

_UNROLLED = 16  # copies of a tile that are written out for a thread; of more there is a loop
_SECTOR_BITS, _PIECE_BITS = 3, 2  # words of a sector of the L2 cache; of 16 bytes of shared memory
_VOID = ir.VoidType()


def fill(
    builder: ir.IRBuilder,
    ring: RingType,
    base: ir.Value,
    stage: ir.Value,
    streams: list[tuple[TileRowType, ir.Value, list[ir.Value], Fewer | None]],
) -> None:
    """Have the tiles of a turn brought to a stage, which is empty.

    Args:
        builder: where the threads do so that load.
        ring, base: the ring.
        stage: the number of the stage.
        streams: of each its type, its value, the index of the tile, and whether it has fewer rows than others (None: never).
    """
    full = ring.full(builder, base, stage)
    targets = ring.places(builder, base, stage)
    if ring.accelerated:
        with _one_of_them(builder):
            nbytes, letter = integer(32, ring.brought), "n"
            for *_, fewer in streams:
                if fewer is not None:
                    nbytes, letter = builder.sub(nbytes, fewer.missing), "r"
            text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
            # Who only waits and asks for tiles has few registers, and nothing to gain from a loop that is unrolled.
            asm(builder, text, f"r,{letter},~{{memory}}", _VOID, [full, nbytes], effect=True, once=True)
            for (row, value, index, fewer), tile, way, target in zip(streams, ring.tiles, ring.ways, targets, strict=True):
                if way.map is not None:
                    _load(builder, row, value, tile, way.map, target, full, index, way.together, fewer)
    for (row, value, index, _), tile, way, target in zip(streams, ring.tiles, ring.ways, targets, strict=True):
        if way.map is None:
            _copy(builder, row, value, tile, way, target, index)
    if ring.copied:
        text = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];"
        asm(builder, text, "r,~{memory}", _VOID, [full], effect=True)


@contextmanager
def _one_of_them(builder: ir.IRBuilder) -> Iterator[None]:
    """What one thread does, if there are several that load."""
    if not the_pipelines().copied:
        yield
        return
    with builder.if_then(one_producer(builder)):
        yield


def one_producer(builder: ir.IRBuilder) -> ir.Value:
    """Whether a thread is that one of those that load which has tiles brought; all of its warp ask together."""
    warp = builder.lshr(special_register(builder, "tid.x"), integer(32, WARP.bit_length() - 1))
    first = builder.icmp_unsigned("==", warp, integer(32, current().config.num_warps))
    return builder.and_(first, elected(builder))


def dealt(
    tile: StagedType, nbytes: int, producers: int, unit: int | None = None, *, unrolled: int = _UNROLLED
) -> tuple[Layout, Swizzle, int]:
    """How threads share the work of copying a tile, `nbytes` at a time: neighbours copy neighbours in a row, then row after row.

    Of a tile that is transposed on its way, `unit` is the dimension without gaps in the tensor: a warp reads 32 bytes along it,
    which the L2 cache gives at once, of 4 rows, and writes each word to another bank. So many copies are `unrolled`.

    Returns:
        Which elements each copies, where they go, and in how many turns of a loop: in each further one, a thread has the number
        of one that does not exist.
    """
    turns = max(1, math.prod(tile.memory) * tile.dtype.itemsize // nbytes // producers // unrolled)
    swizzle, rank = tile.swizzle(), len(tile.shape)
    dims = sorted((d for d in range(rank) if tile.axes[d] >= 0), key=lambda d: -tile.axes[d])
    along = {d: [tuple(n if other == d else 0 for other in range(rank)) for n in _powers(tile.shape[d])] for d in dims}
    if unit is not None:
        read, written = along[unit], along[dims[0]]
        sector, piece = _SECTOR_BITS, _PIECE_BITS
        across = piece + (producers // WARP).bit_length() - 1  # the warps have other rows; a thread has several words of each
        along[unit], along[dims[0]] = [], [*read[:sector], *written[:across], *read[sector:], *written[across:]]
    bits = [v for d in dims for v in along[d]]
    together = (nbytes // tile.dtype.itemsize).bit_length() - 1
    lanes, warps = together + WARP.bit_length() - 1, together + (producers * turns).bit_length() - 1
    bits += [(0,) * rank] * (warps - len(bits))  # more threads than copies: some do the same
    lies = Layout(tile.shape, (*bits[:together], *bits[warps:]), tuple(bits[together:lanes]), tuple(bits[lanes:warps]))
    return lies, Swizzle(swizzle.offsets, swizzle.shared[:together]), turns


def _powers(extent: int) -> list[int]:
    return [1 << bit for bit in range(extent.bit_length() - 1)]


def _copy(
    builder: ir.IRBuilder,
    row: TileRowType,
    value: ir.Value,
    tile: StagedType,
    way: Way,
    target: ir.Value,
    index: list[ir.Value],
) -> None:
    """Copy a tile, so many bytes at a time as its `way` says. What does not exist of it becomes zeros."""
    tensor, cut, producers, nbytes = row.grid.tensor, row.grid.cut, the_pipelines().producers, way.nbytes
    itemsize, order = tensor.dtype.itemsize, memory_order(row.grid, way.turned)
    unit, count = memory_order(row.grid)[-1], nbytes // itemsize
    axes = tuple(map(order.index, range(len(order))))
    whole = StagedType(tile.dtype, tile.memory, axes, tile.config, tile.ring, panel=tile.panel)
    unrolled = _UNROLLED // 2 if the_pipelines().summed else _UNROLLED  # of those that keep fewer registers
    lies, swizzle, turns = dealt(whole, nbytes, producers, None if way.turned is None else unit, unrolled=unrolled)
    together = lies.run(unit)[: len(swizzle.shared)]
    pattern = access_pattern(tensor, lies, row.free, cut.steps)
    pattern = AccessPattern(vector=together, edge=together, ragged=pattern.ragged, checked=pattern.checked)
    coordinates = lies.coordinates()
    if way.turned is not None:  # each copies so many words that their addresses, if kept from turn to turn, would spill
        index = [_anew(builder, each) for each in index]
    kind = ("cg", ".L2::128B") if nbytes == ACCESS_BYTES else ("ca", "")
    text = f"cp.async.{kind[0]}.shared.global{kind[1]} [$0+{{}}], [$1+{{}}], {nbytes}"

    def copy(number: ir.Value) -> None:
        """A thread's part, or one of its parts."""
        tensor_value = builder.extract_value(value, 0)
        window = Window(builder, tensor, tensor_value, index, lies, pattern, cut.steps, number)
        pieces = accesses(builder, target, itemsize, swizzle, lies, thread=number)
        sources = [window.row(coordinates[registers[0]]) for registers, _, _ in pieces]

        def pass_on(*, masked: bool) -> None:
            for (registers, address, offset), source in zip(pieces, sources, strict=True):
                at = coordinates[registers[0]]
                operands = [address, source]
                piece = text.format(offset, at[unit] * itemsize)
                if masked:
                    operands.append(builder.mul(window.present(at, count), integer(32, itemsize)))
                    piece += ", $2"
                asm(builder, piece + ";", ",".join(["r", "l", "r"][: len(operands)]) + ",~{memory}", _VOID, operands, effect=True)

        if not pattern.masked:
            pass_on(masked=False)
            return
        with builder.if_else(window.inside()) as (inside, edge):
            with inside:
                pass_on(masked=False)
            with edge:
                pass_on(masked=True)

    thread = builder.sub(special_register(builder, "tid.x"), integer(32, current().config.num_threads))
    if turns == 1:
        copy(thread)
        return
    with cgutils.for_range(builder, integer(32, turns), intp=i32) as loop:
        copy(builder.add(thread, builder.mul(loop.index, integer(32, producers))))


def _anew(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """`value`, of which what follows is computed again in each turn of a loop."""
    letter = "l" if value.type == i64 else "r"
    return asm(builder, f"mov.b{value.type.width} $0, $1;", f"={letter},{letter}", value.type, [value], effect=True)


def _load(
    builder: ir.IRBuilder,
    row: TileRowType,
    value: ir.Value,
    tile: StagedType,
    number: int,
    target: ir.Value,
    full: ir.Value,
    index: list[ir.Value],
    together: Together,
    fewer: Fewer | None,
) -> None:
    """Have a tile brought: a copy for each panel. If it comes to blocks `together`, each has a part brought to all of them."""
    tensor, steps = row.grid.tensor, row.grid.cut.steps
    assert tensor.origins is not None, "the ring is that of a whole tensor, of which such slices are the rest"
    order = the_pipelines().maps[number].order
    sliced = builder.extract_value(value, 0)
    begins = [
        builder.add(builder.mul(at, integer(32, n)), tensor_field(builder, tensor, sliced, f"origin{d}"))
        for d, (at, n) in enumerate(zip(index, steps, strict=True))
    ]
    step, rank = tile.span // tile.dtype.itemsize, len(order)
    tensor_map = tensor_map_of(builder, number)
    if fewer is not None:
        tensor_map = builder.select(fewer.holds, tensor_map_of(builder, fewer.map), tensor_map)
    tensor_map = builder.ptrtoint(tensor_map, i64)
    coordinates = ", ".join(f"${3 + d}" for d in range(rank))
    # For an address in a cluster's memory, code for sm_120 makes sure that it is the block's own, with a stack for the message.
    space = "cluster" if current().target.multicast else "cta"
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::{space}.global.mbarrier::complete_tx::bytes [$0], [$1, {{{coordinates}}}], [$2];"
    )
    where = [begins[d] for d in order]
    panels, parts = tile.panels, together.parts
    everybody: list[ir.Value] = []
    if parts > 1:
        part, blocks = together.places(builder)
        head, _, tail = text.partition(" [$0]")
        copy = f"{head}.multicast::cluster [$0]{tail.removesuffix(';')}, all;"
        text = f"{{ .reg .b16 all; cvt.u16.u32 all, ${3 + rank}; {copy} }}"
        everybody = [blocks]
        if by_panels(tile, parts):
            panels //= parts
            where[0] = builder.add(where[0], builder.mul(part, integer(32, panels * step)))
            ahead = panels * tile.rows * tile.span
        else:
            box = the_pipelines().maps[number].box
            slowest = next(n for n in reversed(range(1, len(order))) if row.grid.cut.extents[order[n]] > box[order[n]])
            where[slowest] = builder.add(where[slowest], builder.mul(part, integer(32, box[order[slowest]])))
            ahead = tile.rows // parts * tile.span
        target = builder.add(target, builder.mul(part, integer(32, ahead)))
    for panel in range(panels):
        moved = [builder.add(where[0], integer(32, panel * step)), *where[1:]]
        address = builder.add(target, integer(32, panel * tile.rows * tile.span))
        asm(
            builder,
            text,
            ",".join(["r", "l", "r", *["r"] * rank, *["r" for _ in everybody], "~{memory}"]),
            _VOID,
            [address, tensor_map, full, *moved, *everybody],
            effect=True,
        )
