"""Lowering of `tilekit.lang.mapped`: the loop of a persistent kernel over the tiles of a mapped partition."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudaimpl import registry

from tilekit.compiler.codegen.access import tensor_field
from tilekit.compiler.codegen.definition import attribute
from tilekit.compiler.codegen.emit import pack, special_register, unpack
from tilekit.compiler.codegen.mapped_types import TileIndexType, TilesIterator, TilesType, index_width
from tilekit.compiler.codegen.types import TensorType, i32, i64

__all__ = ["tile_counts"]


def tile_counts(builder: ir.IRBuilder, tensor: TensorType, value: ir.Value) -> list[ir.Value]:
    """The number of tiles along each dimension."""
    counts, width = [], index_width(tensor)
    for dim, extent in enumerate(tensor.facts.tile):
        elements = tensor_field(builder, tensor, value, f"extent{dim}")
        rounded = builder.add(elements, ir.Constant(elements.type, extent - 1))
        count = builder.lshr(rounded, ir.Constant(elements.type, extent.bit_length() - 1))
        counts.append(count if count.type == width else builder.zext(count, width))
    return counts


@registry.lower("getiter", TilesType)
def getiter(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
    (counts,), (tiles,) = args, signature.args
    total, blocks = _product(builder, unpack(builder, counts)), tiles.tensor.facts.blocks_per_tile
    first, rank = _divmod(builder, special_register(builder, "ctaid.x"), ir.Constant(i32, blocks))
    begin = _as(builder, first, total.type)
    if blocks > 1 and not tiles.everybody:  # the others have none
        begin = builder.select(builder.icmp_unsigned("==", rank, ir.Constant(i32, 0)), begin, total)
    position = cgutils.alloca_once_value(builder, begin)
    iterator: Any = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
    for at, part in enumerate((position, counts, total)):
        iterator = builder.insert_value(iterator, part, at)
    return iterator


@registry.lower("iternext", TilesIterator)
@iternext_impl(RefType.UNTRACKED)
def iternext(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value], result: Any) -> None:
    position, counts, total = (builder.extract_value(args[0], at) for at in range(3))
    at = builder.load(position)
    visits = builder.icmp_unsigned("<", at, total)
    result.set_valid(visits)
    with builder.if_then(visits):
        facts = signature.args[0].tensor.facts
        result.yield_(pack(builder, _visited(builder, at, unpack(builder, counts), facts.group, facts.cluster)))
        # There are fewer than 2^31 blocks, and than 2^31 tiles where these are counted in 32 bits, so that this does not wrap.
        step, _ = _divmod(builder, special_register(builder, "nctaid.x"), ir.Constant(i32, facts.blocks_per_tile))
        builder.store(builder.add(at, _as(builder, step, at.type)), position)


def _as(builder: ir.IRBuilder, value: ir.Value, width: ir.Type) -> ir.Value:
    return value if value.type == width else builder.zext(value, width)


def _product(builder: ir.IRBuilder, factors: list[ir.Value]) -> ir.Value:
    product = ir.Constant(factors[0].type, 1)
    for factor in factors:
        product = factor if _is(product, 1) else product if _is(factor, 1) else builder.mul(product, factor)
    return product


def _is(value: ir.Value, number: int) -> bool:
    return isinstance(value, ir.Constant) and value.constant == number


def _divmod(builder: ir.IRBuilder, value: ir.Value, divisor: ir.Value) -> tuple[ir.Value, ir.Value]:
    if _is(divisor, 1):
        return value, ir.Constant(value.type, 0)
    quotient = builder.udiv(value, divisor)
    return quotient, builder.sub(value, builder.mul(quotient, divisor))


def _visited(
    builder: ir.IRBuilder, at: ir.Value, tiles: list[ir.Value], group: tuple[int, ...], cluster: tuple[int, ...] | None
) -> list[ir.Value]:
    """The same with clusters."""
    if cluster is None:
        return _grouped(builder, at, tiles, group)
    sizes = [ir.Constant(at.type, n) for n in cluster]
    which, rank = _divmod(builder, at, ir.Constant(at.type, math.prod(cluster)))
    counts = [_divmod(builder, count, size)[0] for count, size in zip(tiles, sizes, strict=True)]
    groups = tuple(-(-size // n) for size, n in zip(group, cluster, strict=True))
    outer, inner = _grouped(builder, which, counts, groups), _grouped(builder, rank, sizes, (1,) * len(cluster))
    return [builder.add(builder.mul(o, n), i) for o, n, i in zip(outer, sizes, inner, strict=True)]


def _grouped(builder: ir.IRBuilder, at: ir.Value, tiles: list[ir.Value], group: tuple[int, ...]) -> list[ir.Value]:
    """`tilekit._tensor.partition.grouped_index`, step by step; a group of one tile along a dimension has one at the edge too."""
    first: list[ir.Value] = []
    extents: list[ir.Value] = []
    for dim, (count, size) in enumerate(zip(tiles, group, strict=True)):
        extent = ir.Constant(at.type, size)
        row = _product(builder, [*extents, extent, *tiles[dim + 1 :]])
        which, at = _divmod(builder, at, row)
        if size == 1:
            start = which
        else:
            start = builder.mul(which, extent)
            left = builder.sub(count, start)
            extent = builder.select(builder.icmp_unsigned("<", left, extent), left, extent)
        first.append(start)
        extents.append(extent)
    index = []
    for dim in reversed(range(len(tiles))):
        inner = at
        if dim:  # what is left for the first dimension is inside
            at, inner = _divmod(builder, at, extents[dim])
        index.append(first[dim] if _is(extents[dim], 1) else builder.add(first[dim], inner))
    return index[::-1]


@attribute(TileIndexType, "index")
def tile_index(tile: TileIndexType) -> Any:
    part = types.int64 if index_width(tile.tensor) == i64 else types.int32
    return types.UniTuple(part, tile.tensor.facts.rank), lambda builder, value: value
