"""Tiles of tensors that have fewer rows than these: what is there of them comes, and what is not is zeroed once.

For what lies outside of a tensor the tensor memory accelerator brings zeros, at a sixth of the speed at which it brings what is
there: 40 x 4096 x 4096 took 11.5 us with tiles of 64 rows, and 64 x 4096 x 4096 7.8. So where a tensor may have fewer rows than
its tiles, a box of its map has no more than it (`TensorMap.shrinks`), and all threads zero the rest of each stage before the
first tile comes. It stays zeros where all loops of a ring have the same tiles. A tile begins at a multiple of its rows, or behind
one, as those of slices do; so no row of the tensor lies in it behind as many as the tensor has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba.cuda import cgutils

from tilekit.compiler.codegen.access import tensor_field
from tilekit.compiler.codegen.emit import asm, special_register
from tilekit.compiler.codegen.types import i32, integer
from tilekit.compiler.codegen.view_types import TileGridType
from tilekit.compiler.layouts.linear import ACCESS_BYTES
from tilekit.compiler.nvidia.staged import StagedType

__all__ = ["clear", "lines_of", "missing", "rows_of"]

_VOID = ir.VoidType()
Places = Callable[[ir.Value], Sequence[ir.Value]]


def rows_of(grid: TileGridType) -> int | None:
    """The dimension of a tensor that is the slowest of its tiles in memory, if there may be less of it than of them."""
    facts, cut = grid.tensor.facts, grid.cut
    slowest = next((d for d, extent in enumerate(cut.extents) if d != facts.unit and extent > 1), None)
    if slowest is None or cut.steps[slowest] != cut.extents[slowest] or facts.extents[slowest] % cut.extents[slowest] == 0:
        return None
    return slowest


def lines_of(builder: ir.IRBuilder, grid: TileGridType, value: ir.Value, tile: StagedType, dim: int) -> ir.Value:
    """How many bytes come of a panel of such a tile, an i32."""
    extent = grid.cut.extents[dim]
    there = tensor_field(builder, grid.tensor, value, f"extent{dim}")
    fewer = builder.select(builder.icmp_unsigned("<", there, integer(32, extent)), there, integer(32, extent))
    return builder.mul(fewer, integer(32, tile.rows * tile.span // extent))


def missing(builder: ir.IRBuilder, tiles: Sequence[tuple[StagedType, ir.Value | None]]) -> ir.Value:
    """How many bytes never come of the tiles of a stage, an i32: for each what comes of a panel, if not all of it."""
    total = integer(32, 0)
    for tile, lines in tiles:
        if lines is not None:
            of_panel = builder.sub(integer(32, tile.rows * tile.span), lines)
            total = builder.add(total, builder.mul(of_panel, integer(32, tile.panels)))
    return total


def clear(builder: ir.IRBuilder, stages: int, places: Places, tiles: Sequence[tuple[StagedType, ir.Value | None]]) -> None:
    """Zero what never comes of the tiles of all stages; all threads of the block take part, and meet afterwards.

    Args:
        builder: before the first tile comes.
        stages: how many.
        places: gives the addresses of a stage's tiles.
        tiles: as for `missing`.
    """
    thread, threads = (special_register(builder, f"{name}.x") for name in ("tid", "ntid"))
    for number, (tile, lines) in enumerate(tiles):
        if lines is None:
            continue
        panel = integer(32, tile.rows * tile.span)
        with builder.if_then(builder.icmp_unsigned("<", lines, panel), likely=False):
            first = builder.add(lines, builder.mul(thread, integer(32, ACCESS_BYTES)))
            step = builder.mul(threads, integer(32, ACCESS_BYTES))
            with cgutils.for_range(builder, integer(32, stages), intp=i32) as stage:
                place = places(stage.index)[number]
                for at in range(tile.panels):
                    begin = builder.add(place, integer(32, at * tile.rows * tile.span))
                    with cgutils.for_range_slice(builder, first, panel, step, intp=i32) as (offset, _):
                        text = "st.shared.v4.b32 [$0], {$1, $1, $1, $1};"
                        operands = [builder.add(begin, offset), integer(32, 0)]
                        asm(builder, text, "r,r,~{memory}", _VOID, operands, effect=True, once=True)
            asm(builder, "fence.proxy.async.shared::cta;", "~{memory}", _VOID, [], effect=True)
