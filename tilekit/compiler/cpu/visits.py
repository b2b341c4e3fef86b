"""In which order tiles are visited: those of a row, and those of a mapped partition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from tilekit.compiler.cpu.code import Code, Number, i64

__all__ = ["grouped", "unravelled"]


def unravelled(k: Code, number: ir.Value, bounds: Sequence[tuple[Number, Number]]) -> list[Number]:
    """The index of the tile with a number, of those within bounds, the last one fastest."""
    index: list[Number] = []
    for first, last in reversed(bounds):
        count = k.add(last, k.mul(first, -1))
        if (isinstance(first, int) and isinstance(last, int) and last - first == 1) or _is_one(first, last):
            index.append(first)
            continue
        wide = k.number(count)
        safe = k.b.select(k.b.icmp_signed(">", wide, i64(0)), wide, i64(1))
        index.append(k.add(k.b.urem(number, safe), first))
        number = k.b.udiv(number, safe)
    return index[::-1]


def _is_one(first: Number, last: Number) -> bool:
    """Whether `last` is `first + 1`, as `bounds_of` writes it."""
    return (
        isinstance(last, ir.Instruction)
        and last.opname == "add"
        and last.operands[0] is first
        and str(last.operands[1]) == "i64 1"
    )


def grouped(
    k: Code, at: ir.Value, tiles: Sequence[ir.Value], group: Sequence[int], cluster: Sequence[int] | None = None
) -> tuple[ir.Value, ...]:
    """The index of a tile that blocks visit group by group; see `tilekit._tensor.partition.grouped_index`."""
    if cluster is not None:
        size = i64(math.prod(cluster))
        groups = [-(-n // m) for n, m in zip(group, cluster, strict=True)]
        clusters = [k.b.sdiv(count, i64(n)) for count, n in zip(tiles, cluster, strict=True)]
        outer = grouped(k, k.b.sdiv(at, size), clusters, groups)
        within = grouped(k, k.b.srem(at, size), [i64(n) for n in cluster], [1] * len(cluster))
        return tuple(k.b.add(k.b.mul(o, i64(n)), i) for o, n, i in zip(outer, cluster, within, strict=True))
    b, firsts = k.b, []
    extents: list[ir.Value] = []
    for d, (count, size) in enumerate(zip(tiles, group, strict=True)):
        row: Number = 1
        for extent in (*extents, *tiles[d + 1 :]):
            row = k.mul(row, extent)
        step = k.number(k.mul(row, size))
        which, at = b.sdiv(at, step), b.srem(at, step)
        first = b.mul(which, i64(size))
        firsts.append(first)
        extents.append(k.least(i64(size), b.sub(count, first)))
    index = []
    for first, extent in zip(reversed(firsts), reversed(extents), strict=True):
        index.append(b.add(first, b.srem(at, extent)))
        at = b.sdiv(at, extent)
    return tuple(reversed(index))
