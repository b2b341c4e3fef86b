"""Tiles with rows beyond their tensor: what is there of them comes, and what is not is zeroed as often as it has to be.

For what lies outside of a tensor the tensor memory accelerator brings zeros, at a sixth of the speed at which it brings what is
there: 40 x 4096 x 4096 took 11.5 us with tiles of 64 rows, and 64 x 4096 x 4096 7.8. So the last tile has a map of its own,
whose boxes have as many rows as are there (`TensorMap.last`), and of tiles behind it nothing comes. The warp that asks for the
tiles zeroes the rest of a stage. In all turns of a loop it is the same rows that are not there, unless the loop goes along them;
so they are zeros still when all stages have been filled once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from llvmlite import ir
from numba.cuda import cgutils

from tilekit.compiler.codegen.access import tensor_field
from tilekit.compiler.codegen.emit import asm, special_register
from tilekit.compiler.codegen.types import i32, integer
from tilekit.compiler.codegen.view_types import TileGridType, TileRowType
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP
from tilekit.compiler.nvidia.staged import StagedType

__all__ = ["Coming", "Rows", "clear", "missing", "rows_of"]

_VOID = ir.VoidType()


def rows_of(grid: TileGridType) -> int | None:
    """The dimension of a tensor that is the slowest of its tiles in memory, if the last ones may have less of it."""
    facts, cut = grid.tensor.facts, grid.cut
    slowest = next((d for d, extent in enumerate(cut.extents) if d != facts.unit and extent > 1), None)
    if slowest is None or cut.steps[slowest] != cut.extents[slowest] or facts.extents[slowest] % cut.extents[slowest] == 0:
        return None
    return slowest


class Coming(NamedTuple):
    """What comes of a tile.

    Attributes:
        tile: as it lies in a stage.
        nbytes: of each of its panels, an i32.
        some: whether that is any, and `last`, whether it is what the last tile has of its tensor; each an i1.
        anew: whether the rest has to be zeroed, an i1.
    """

    tile: StagedType
    nbytes: ir.Value
    some: ir.Value
    last: ir.Value
    anew: ir.Value


class Rows(NamedTuple):
    """Those of a stream's tensor.

    Attributes:
        dim: their dimension.
        extent: how many a tile has.
        there: how many the tensor has, an i32.
        map: the number of the last tile's tensor map.
    """

    dim: int
    extent: int
    there: ir.Value
    map: int

    @classmethod
    def of(cls, builder: ir.IRBuilder, grid: TileGridType, tensor: ir.Value, dim: int, number: int) -> Rows:
        """Those of a whole tensor."""
        return cls(dim, grid.cut.extents[dim], tensor_field(builder, grid.tensor, tensor, f"extent{dim}"), number)

    def coming(
        self, builder: ir.IRBuilder, row: TileRowType, tile: StagedType, begins: Sequence[ir.Value], first: ir.Value
    ) -> Coming:
        """What comes of a tile of a stream.

        Args:
            builder: where it is asked for.
            row: the stream.
            tile: how its tiles lie in a stage.
            begins: where it begins in the tensor, along each dimension.
            first: whether the stage is filled for the first time in a loop, an i1.
        """
        extent, one = integer(32, self.extent), integer(32, 1)
        of_last = builder.add(builder.and_(builder.sub(self.there, one), integer(32, self.extent - 1)), one)
        left = builder.sub(self.there, begins[self.dim])
        # A tile of a slice may begin anywhere. If it has other rows than the last one of the tensor, zeros come with them.
        last, some = builder.icmp_signed("==", left, of_last), builder.icmp_signed(">", left, integer(32, 0))
        come = builder.select(last, of_last, builder.select(some, extent, integer(32, 0)))
        anew = builder.icmp_signed("<", come, extent)
        if self.dim not in row.free:
            anew = builder.and_(anew, first)
        return Coming(tile, builder.mul(come, integer(32, tile.rows * tile.span // self.extent)), some, last, anew)


def missing(builder: ir.IRBuilder, tiles: Iterable[Coming]) -> ir.Value:
    """How many bytes do not come of the tiles of a stage, an i32."""
    total = integer(32, 0)
    for coming in tiles:
        tile = coming.tile
        of_panel = builder.sub(integer(32, tile.rows * tile.span), coming.nbytes)
        total = builder.add(total, builder.mul(of_panel, integer(32, tile.panels)))
    return total


def clear(builder: ir.IRBuilder, tiles: Iterable[tuple[Coming, ir.Value]]) -> None:
    """Zero what does not come of the tiles of an empty stage, at these addresses; the threads of a warp do so together."""
    lane = builder.and_(special_register(builder, "tid.x"), integer(32, WARP - 1))
    for (tile, nbytes, _, _, anew), place in tiles:
        with builder.if_then(anew, likely=False):
            panel, step = integer(32, tile.rows * tile.span), integer(32, WARP * ACCESS_BYTES)
            first = builder.add(nbytes, builder.mul(lane, integer(32, ACCESS_BYTES)))
            with cgutils.for_range_slice(builder, first, panel, step, intp=i32) as (offset, _):
                for at in range(tile.panels):
                    where = builder.add(place, builder.add(offset, integer(32, at * tile.rows * tile.span)))
                    text = "st.shared.v4.b32 [$0], {$1, $1, $1, $1};"
                    asm(builder, text, "r,r,~{memory}", _VOID, [where, integer(32, 0)], effect=True, once=True)
            text = "fence.proxy.async.shared::cta; bar.warp.sync -1;"
            asm(builder, text, "~{memory}", _VOID, [], convergent=True)
