"""Tiles with rows beyond their tensor: what is there of them comes, and what is not is zeroed before a loop.

For what lies outside of a tensor the tensor memory accelerator brings zeros, at a sixth of the speed at which it brings what is
there: 40 x 4096 x 4096 took 11.5 us with tiles of 64 rows, and 64 x 4096 x 4096 7.8. So the last tile has a map of its own,
whose boxes have as many rows as are there (`TensorMap.last`). Those that calculate zero the rest of the stages that a loop takes
before it takes them, while the first tiles are on their way.

That is for loops that have the same rows in all turns. With the last tile of those that go along them zeros come: they are few
of what such a loop loads, and warpgroups that take turns would have to meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir
from numba.cuda import cgutils

from tilekit._driver.tensormaps import Last
from tilekit.compiler.codegen.access import tensor_field
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.emit import asm, special_register
from tilekit.compiler.codegen.shared_memory import barrier
from tilekit.compiler.codegen.types import i32, integer
from tilekit.compiler.codegen.view_types import TileGridType, TileRowType
from tilekit.compiler.layouts.linear import ACCESS_BYTES
from tilekit.compiler.nvidia.staged import StagedType

__all__ = ["Begins", "Fewer", "Rows", "clear", "last_of"]

Begins = tuple[tuple[int, int], ...]
"""Where tiles begin along each dimension, see `passes.begins`: a period, and an offset."""

_VOID = ir.VoidType()


def last_of(grid: TileGridType, begins: Begins) -> Last | None:
    """The last tile of a tensor, along the dimension that is the slowest of its tiles in memory; None if that has as much as
    others, or if loops go along it."""
    facts, cut = grid.tensor.facts, grid.cut
    slowest = next((d for d, extent in enumerate(cut.extents) if d != facts.unit and extent > 1), None)
    if slowest is None:
        return None
    (period, offset), extent = begins[slowest], cut.extents[slowest]
    # With those that begin nearer to each other, several might have less.
    if 0 < period < extent or math.gcd(period, offset, facts.extents[slowest]) % extent == 0:
        return None
    return Last(slowest, period, offset)


class Fewer(NamedTuple):
    """Whether tiles of a loop are the last of a tensor, which may have fewer rows than others.

    Attributes:
        holds: whether they are, an i1.
        nbytes: how much comes then of each panel, an i32.
        missing: how much does not come of a tile, an i32.
        map: the number of the tensor map of the last ones.
    """

    holds: ir.Value
    nbytes: ir.Value
    missing: ir.Value
    map: int


class Rows(NamedTuple):
    """Those of a stream's tensor.

    Attributes:
        dim: their dimension.
        extent: how many a tile has.
        there: how many the tensor has, and `last`, its last tile: i32s.
        map: the number of the tensor map of that one.
    """

    dim: int
    extent: int
    there: ir.Value
    last: ir.Value
    map: int

    @classmethod
    def of(cls, builder: ir.IRBuilder, grid: TileGridType, tensor: ir.Value, number: int, last: Last) -> Rows:
        """Those of a whole tensor."""
        extent, there = grid.cut.extents[last.dim], tensor_field(builder, grid.tensor, tensor, f"extent{last.dim}")
        return cls(last.dim, extent, there, _elements(builder, last, there, extent), number)

    def fewer(self, builder: ir.IRBuilder, tile: StagedType, row: TileRowType, value: ir.Value) -> Fewer:
        """Whether the tiles of a row have fewer, which lie in a stage as `tile`. (Of a slice, they may begin anywhere; if that is
        not where the last one does, zeros come with them.)"""
        extent, line = integer(32, self.extent), tile.rows * tile.span // self.extent
        first = builder.extract_value(value, (1, self.dim))
        origin = tensor_field(builder, row.grid.tensor, builder.extract_value(value, 0), f"origin{self.dim}")
        left = builder.sub(self.there, builder.add(builder.mul(first, extent), origin))
        holds = builder.icmp_signed("==", left, self.last)
        missing = builder.mul(builder.sub(extent, self.last), integer(32, line * tile.panels))
        missing = builder.select(holds, missing, integer(32, 0))
        return Fewer(holds, builder.mul(self.last, integer(32, line)), missing, self.map)


def _elements(builder: ir.IRBuilder, last: Last, there: ir.Value, extent: int) -> ir.Value:
    """The same as `Last.elements`, in the kernel."""

    def lesser(first: ir.Value, second: ir.Value, symbol: str = "<") -> ir.Value:
        return builder.select(builder.icmp_signed(symbol, first, second), first, second)

    one = integer(32, 1)
    before = builder.sub(lesser(builder.sub(there, integer(32, last.offset)), one, ">"), one)
    if last.period:
        before = builder.urem(before, integer(32, last.period))
    return builder.add(lesser(before, integer(32, extent - 1)), one)


def clear(
    builder: ir.IRBuilder,
    stages: ir.Value,
    places: Callable[[ir.Value], Sequence[ir.Value]],
    tiles: Sequence[tuple[StagedType, Fewer | None]],
) -> None:
    """Zero what does not come of the tiles of a loop; all threads that calculate take part.

    Args:
        builder: before the loop.
        stages: how many the loop takes, an i32.
        places: gives the addresses of the tiles in the first of them, counted from 0, or in another.
        tiles: of a stage, and whether they have fewer rows; None of those of which all comes.
    """
    missing, threads = integer(32, 0), current().config.num_threads
    for _, fewer in tiles:
        missing = missing if fewer is None else builder.add(missing, fewer.missing)
    with builder.if_then(builder.icmp_signed(">", missing, integer(32, 0)), likely=False):
        barrier(builder)  # all have read what was there
        thread = builder.mul(special_register(builder, "tid.x"), integer(32, ACCESS_BYTES))
        with cgutils.for_range(builder, stages, intp=i32) as loop:
            for (tile, fewer), address in zip(tiles, places(loop.index), strict=True):
                if fewer is None:
                    continue
                panel = integer(32, tile.rows * tile.span)
                first = builder.add(builder.select(fewer.holds, fewer.nbytes, panel), thread)
                with cgutils.for_range_slice(builder, first, panel, integer(32, threads * ACCESS_BYTES), intp=i32) as (offset, _):
                    for at in range(tile.panels):
                        where = builder.add(address, builder.add(offset, integer(32, at * tile.rows * tile.span)))
                        text = "st.shared.v4.b32 [$0], {$1, $1, $1, $1};"
                        asm(builder, text, "r,r,~{memory}", _VOID, [where, integer(32, 0)], effect=True, once=True)
        asm(builder, "fence.proxy.async.shared::cta;", "~{memory}", _VOID, [], effect=True)
        barrier(builder)
