"""Lowering of `tilekit.lang.counting`: histograms in shared memory, to which threads add their elements by atomic additions.

ptxas makes `ATOMS.POPC.INC` of an addition of the constant 1 whose result nobody uses. That takes no predicate, and a branch
around each would cost three instructions more: what counts for nothing is counted elsewhere.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import all_of, asm, pack, special_register, thread_coordinates, unpack
from tilekit.compiler.codegen.types import TileType, i32, integer
from tilekit.compiler.codegen.windows import check_mask, mask_elements
from tilekit.compiler.lower.shape import constant, the_tile
from tilekit.dtypes import DType
from tilekit.lang import counting as lang

__all__: list[str] = []

_ITEMSIZE = dtypes.int32.itemsize


@lowers(lang.histogram)
def histogram(x: types.Type, bins: types.Type, mask: types.Type) -> Any:
    tile = the_tile(x, "histogram")
    if problem := lang.countable(tile.dtype):
        reject("histogram", problem)
    count = in_words("histogram", lang.bins_of, constant(bins, "histogram", "bins"))
    masked = check_mask("histogram", mask, tile.shape)
    result = TileType.of_shape(dtypes.int32, (count,), tile.config)
    # Each thread zeroes and reads what it holds of the result, 16 bytes at a time.
    pieces = result.layout.chunks(result.layout.run(0)[:2])
    places = [at[0] for at in result.layout.coordinates()]

    def emit(builder: ir.IRBuilder, value: ir.Value, _: ir.Value, chosen: ir.Value) -> ir.Value:
        wanted = mask_elements(builder, mask, chosen, tile) if masked else [None] * tile.layout.num_registers
        counts: dict[int, ir.Value] = {}
        # Where there is no room for all bins, some are counted after the others: the highest bits of a number are registers'.
        at_once = count
        while at_once * _ITEMSIZE > shared.block_bytes():
            at_once //= 2
        for first in range(0, count, at_once):
            base = shared.room(builder, at_once * _ITEMSIZE, "the counts")
            thread = special_register(builder, "tid.x")
            mine = shared.at(builder, base, thread_coordinates(builder, thread, result.layout.thread)[0], _ITEMSIZE)
            counted_here = [registers for registers in pieces if first <= places[registers[0]] < first + at_once]
            for registers in counted_here:
                at = (places[registers[0]] - first) * _ITEMSIZE
                shared.put(builder, mine, at, dtypes.int32, [integer(32, 0)] * len(registers))
            shared.barrier(builder)
            owner = None
            if tile.layout.copies:
                copy = builder.and_(thread, integer(32, tile.layout.copies))
                owner = builder.icmp_unsigned("==", copy, integer(32, 0))
            drain = shared.drain(builder)
            for element, holds in zip(unpack(builder, value), wanted, strict=True):
                inside, bin_ = _bin(builder, element, tile.dtype, first, at_once)
                counted = all_of(builder, [inside, owner, holds])
                address = builder.select(counted, shared.at(builder, base, bin_, _ITEMSIZE), drain)
                asm(builder, "red.shared.add.u32 [$0], 1;", "r,~{memory}", ir.VoidType(), [address], effect=True)
            shared.barrier(builder)
            for registers in counted_here:
                at = (places[registers[0]] - first) * _ITEMSIZE
                counts.update(zip(registers, shared.get(builder, mine, at, dtypes.int32, len(registers)), strict=True))
        return pack(builder, [counts[r] for r in range(len(counts))])

    return result, emit


def _bin(builder: ir.IRBuilder, element: ir.Value, dtype: DType, first: int, count: int) -> tuple[ir.Value, ir.Value]:
    """Whether an element numbers one of the `count` bins from the first on, and which of these, an i32."""
    if dtype.itemsize < 4:
        element = (builder.sext if dtype.kind == "i" else builder.zext)(element, i32)
    if first:
        element = builder.sub(element, ir.Constant(element.type, first))
    inside = builder.icmp_unsigned("<", element, ir.Constant(element.type, count))  # a negative number is a huge one
    return inside, builder.trunc(element, i32) if dtype.itemsize == 8 else element
