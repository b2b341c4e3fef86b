"""How often values occur in a tile."""

from __future__ import annotations

from typing import Any

from tilekit import dtypes
from tilekit.compiler.cpu.code import i32, i64
from tilekit.compiler.cpu.elementwise import as_tile
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, element_at, new_buffer, of_buffer, traverse, write_into
from tilekit.lang.counting import bins_of

__all__: list[str] = []


@lowers("histogram")
def histogram(p: Any, x: Tile, bins: Any, mask: Any) -> Tile:
    """Elements go to their bins one by one; others, and those that the mask leaves out, to none."""
    k, count = p.k, bins_of(bins, "histogram")
    counts = new_buffer(k, (count,), dtypes.int32)
    write_into(k, counts, Tile((count,), dtypes.int32, lambda index: k.splat(i32(0), index.lanes)))
    numbers = as_tile(k, x, dtypes.int64)
    chosen = None if mask is None else as_tile(k, mask, dtypes.bool_)

    def body(index: Index) -> None:
        number = element_at(k, numbers, index, x.shape)
        inside = k.b.icmp_unsigned("<", number, i64(count))  # uint64 from 2**63 on is negative here, and outside either way
        if chosen is not None:
            inside = k.b.and_(inside, element_at(k, chosen, index, x.shape))
        with k.b.if_then(inside):
            address = k.offset(counts.address, k.mul(number, 4))
            k.b.store(k.b.add(k.b.load(address, typ=i32), i32(1)), address)

    traverse(k, x.shape, [numbers, *([] if chosen is None else [chosen])], body, lanes=1)
    return of_buffer(k, counts)
