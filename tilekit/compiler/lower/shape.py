"""Lowering of `tilekit.lang.shape`: reshape, transpose, cat...: most of it renames the bits of a layout, and moves no element."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen.computed import ComputedType
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import ABSENT, known, lowers, lowers_method, lowers_operator, materialize, materialized
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.known_bits import is_whole
from tilekit.compiler.codegen.operands import broadcast
from tilekit.compiler.codegen.types import TileType, describe, dtype_of, i32, integer
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.layouts.linear import Config, Layout, Vector
from tilekit.compiler.lower.memory import check_indices, index_values, tile_shape
from tilekit.compiler.nvidia.products import beside_product
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.errors import CompileError
from tilekit.lang import shape as lang
from tilekit.lang import tile as tile_lang

__all__ = ["constant", "the_tile"]


def the_tile(ty: types.Type, what: str) -> TileType:
    """`ty`, which must be a tile's."""
    if not isinstance(ty, TileType):
        reject(what, f"needs a tile, not {describe(ty)}")
    return ty


def constant(ty: types.Type, what: str, name: str) -> Any:
    """The value of an argument, which must be known when the kernel is compiled."""
    value = known(ty)
    if value is ABSENT:
        reject(what, f"{name} must be known when the kernel is compiled; it is {describe(ty)}")
    return value


def _where_it_is(ty: types.Type, rename: Callable[[TileType], Layout], dims: Callable[[Vector], Vector | None]) -> Any:
    """A tile with its dimensions renamed.

    One that threads do not hold stays as it is, if `dims`, given its shape, tells which of its dimensions the new ones are, with
    -1 for those of extent 1 that are new.
    """
    if isinstance(ty, (StagedType, ComputedType)):
        renamed = dims(ty.shape)
        if renamed is not None:
            return ty.renamed(renamed), lambda builder, value, *_: value
    tile = materialized(ty)
    return tile.at(rename(tile)), lambda builder, value, *_: materialize(builder, ty, value)


def _reshaped(ty: types.Type, shape: types.Type, what: str) -> Any:
    def wanted(before: Vector) -> Vector:
        extents: Vector = in_words(what, lang.reshape_to, constant(shape, what, "the shape"), before)
        return extents

    def dims(before: Vector) -> Vector | None:
        to = wanted(before)
        kept = [d for d, n in enumerate(before) if n > 1]
        if [n for n in to if n > 1] != [before[d] for d in kept]:
            return None
        left = iter(kept)
        return tuple(next(left) if n > 1 else -1 for n in to)

    return _where_it_is(ty, lambda tile: tile.layout.reshape(wanted(tile.shape)), dims)


@lowers(lang.reshape, deferred=True)
def reshape(x: types.Type, shape: types.Type) -> Any:
    the_tile(materialized(x), "reshape")
    return _reshaped(x, shape, "reshape")


@lowers_method(TileType, tile_lang.Tile.reshape, deferred=True)
def reshape_method(self: types.Type, shape: types.Type) -> Any:
    return _reshaped(self, shape, "reshape")


def _permuted(ty: types.Type, order_of: Callable[[int], Vector]) -> Any:
    return _where_it_is(ty, lambda tile: tile.layout.permute(order_of(len(tile.shape))), lambda shape: order_of(len(shape)))


def _order(axes: types.Type) -> Callable[[int], Vector]:
    def order_of(rank: int) -> Vector:
        dims = constant(axes, "permute", "axes")
        order: Vector = in_words("permute", lang.axes_of, dims, rank)
        if len(order) != rank:
            reject("permute", f"axes {dims} of a tile with {rank} dimensions: each must be there once")
        return order

    return order_of


@lowers(lang.permute, deferred=True)
def permute(x: types.Type, axes: types.Type) -> Any:
    the_tile(materialized(x), "permute")
    return _permuted(x, _order(axes))


@lowers_method(TileType, tile_lang.Tile.permute, deferred=True)
def permute_method(self: types.Type, axes: types.Type) -> Any:
    return _permuted(self, _order(axes))


def _exchanged(axis0: types.Type, axis1: types.Type) -> Callable[[int], Vector]:
    def order_of(rank: int) -> Vector:
        order = list(range(rank))
        a, b = (in_words("transpose", lang.axis_of, constant(t, "transpose", "an axis"), rank) for t in (axis0, axis1))
        order[a], order[b] = order[b], order[a]
        return tuple(order)

    return order_of


@lowers(lang.transpose, deferred=True)
def transpose(x: types.Type, axis0: types.Type, axis1: types.Type) -> Any:
    the_tile(materialized(x), "transpose")
    return _permuted(x, _exchanged(axis0, axis1))


@lowers_method(TileType, tile_lang.Tile.transpose, deferred=True)
def transpose_method(self: types.Type, axis0: types.Type, axis1: types.Type) -> Any:
    return _permuted(self, _exchanged(axis0, axis1))


def _expanded(ty: types.Type, places: Sequence[int]) -> Any:
    """A tile with new dimensions of extent 1 at these places of the result, in rising order."""

    def layout(tile: TileType) -> Layout:
        result = tile.layout
        for at in places:
            result = result.expand_dims(at)
        return result

    def dims(shape: Vector) -> Vector:
        old = iter(range(len(shape)))
        return tuple(-1 if at in places else next(old) for at in range(len(shape) + len(places)))

    return _where_it_is(ty, layout, dims)


@lowers(lang.expand_dims, deferred=True)
def expand_dims(x: types.Type, axis: types.Type) -> Any:
    rank = len(the_tile(materialized(x), "expand_dims").shape)
    return _expanded(x, [in_words("expand_dims", lang.axis_of, constant(axis, "expand_dims", "the axis"), rank + 1)])


@lowers_operator(operator.getitem, "[]", deferred=True)
def getitem(tile: types.Type, index: types.Type) -> Any:
    parts = list(index.types) if isinstance(index, types.BaseTuple) else [index]
    if not isinstance(materialized(tile), TileType):
        return None
    whole = [isinstance(p, types.SliceType) or known(p) is None for p in parts]
    if not all(whole) or sum(known(p) is not None for p in parts) != len(materialized(tile).shape):
        reject("[]", tile_lang.NO_INDEX)
    result, emit = _expanded(tile, [at for at, part in enumerate(parts) if known(part) is None])

    def look_and_emit(builder: ir.IRBuilder, value: ir.Value, index_: ir.Value) -> ir.Value:
        alone = not isinstance(index, types.BaseTuple)
        for at, part in enumerate(parts):
            if isinstance(part, types.SliceType) and not is_whole(index_, None if alone else at):
                reject("[]", tile_lang.NO_INDEX)
        return emit(builder, value)

    return result, look_and_emit


def _broadcast(tile: TileType, shape: types.Type) -> Any:
    extents = tile_shape(shape, "broadcast_to")
    try:
        fits = tile_lang.common_shape("broadcast_to", [tile.shape, extents]) == extents
    except CompileError:
        fits = False
    if not fits:
        reject("broadcast_to", f"a tile of shape {tile.shape} does not broadcast to {extents}")
    result = tile if tile.shape == extents else TileType.of_shape(tile.dtype, extents, tile.config, splat=tile.splat)
    return result, lambda builder, value, *_: pack(builder, broadcast(builder, tile, value, result.layout))


@lowers(lang.broadcast_to)
def broadcast_to(x: types.Type, shape: types.Type) -> Any:
    return _broadcast(the_tile(x, "broadcast_to"), shape)


@lowers_method(TileType, tile_lang.Tile.broadcast_to)
def broadcast_to_method(self: TileType, shape: types.Type) -> Any:
    return _broadcast(self, shape)


@lowers(intrinsics.spread, deferred=True)
def spread(dtype: types.Type, extents: types.Type, tile: types.Type) -> Any:
    held, beside = materialized(tile), dtype_of(dtype)
    if isinstance(tile, ComputedType) or held.splat or beside is None:
        return tile, lambda builder, _, __, value: value
    layout = beside_product(tile_shape(extents, "broadcast_to"), held.config, beside)
    wide = TileType(held.dtype, layout, held.config)
    return wide, lambda builder, _, __, value: pack(builder, broadcast(builder, held, materialize(builder, tile, value), layout))


@lowers(lang.cat)
def cat(tiles: types.Type, axis: types.Type) -> Any:
    if not isinstance(tiles, types.BaseTuple):
        reject("cat", f"needs a tuple of two tiles, not {describe(tiles)}")
    kinds = [the_tile(t, "cat") for t in tiles.types]
    dim = constant(axis, "cat", "the axis")
    problem = lang.cat_problem([t.shape for t in kinds], [t.dtype.name for t in kinds], dim)
    if problem:
        reject("cat", problem)
    first, second = kinds
    layout = second.layout if first.splat else first.layout
    along = lang.axis_of(dim, len(layout.shape), "cat")
    shape = tuple(n << (d == along) for d, n in enumerate(layout.shape))
    top = tuple(n if d == along else 0 for d, n in enumerate(layout.shape))
    result = TileType(first.dtype, Layout(shape, (*layout.reg, top), layout.lane, layout.warp), first.config)

    def emit(builder: ir.IRBuilder, values: ir.Value, axis: ir.Value) -> ir.Value:
        parts = [unpack(builder, builder.extract_value(values, k)) for k in range(2)]
        held = [in_layout(builder, tile, part, layout) for tile, part in zip(kinds, parts, strict=True)]
        return pack(builder, held[0] + held[1])

    return result, emit


# ------------------------------------------------------------------------------------------------------------- parts of a tile


def _in_parts(layout: Layout, part: tuple[int, ...], config: Config) -> tuple[Layout, Layout]:
    """A layout in which each thread holds the same elements of all parts, and that of a part.

    The register bits that choose the part come last, the last dimension's lowest. It is `layout` with its registers reordered if
    only registers choose the part there.
    """
    rank = len(part)
    chosen = [
        tuple(1 << bit if d == dim else 0 for d in range(rank))
        for dim in reversed(range(rank))
        for bit in range(part[dim].bit_length() - 1, layout.shape[dim].bit_length() - 1)
    ]
    if set(chosen) <= set(layout.reg):
        small = Layout(part, tuple(v for v in layout.reg if v not in chosen), layout.lane, layout.warp)
    else:
        small = Layout.blocked(part, config)
    return Layout(layout.shape, (*small.reg, *chosen), small.lane, small.warp), small


def _chosen_part(index: types.Type, grid: tuple[int, ...], what: str) -> Callable[[ir.IRBuilder, ir.Value], ir.Value]:
    """How to get the number of the part, row-major in `grid`, an i32; a constant where the index is known."""
    parts = check_indices(index, len(grid), what, "the index is an int for each dimension")
    values = [known(part) for part in parts]
    for value, count in zip(values, grid, strict=True):
        if value is not ABSENT and not 0 <= value < count:
            reject(what, f"index {tuple('?' if v is ABSENT else v for v in values)} of parts of which there are {grid}")

    def emit(builder: ir.IRBuilder, at: ir.Value) -> ir.Value:
        total: Any = 0
        computed: Any = None
        for position, value, count in zip(index_values(builder, index, at), values, grid, strict=True):
            total *= count
            if computed is not None:
                computed = builder.mul(computed, integer(32, count))
            if value is not ABSENT:
                total += value
                continue
            position = builder.trunc(position, i32) if position.type != i32 else position
            position = builder.and_(position, integer(32, count - 1))
            computed = position if computed is None else builder.add(computed, position)
        return integer(32, total) if computed is None else builder.add(computed, integer(32, total))

    return emit


@lowers(lang.extract)
def extract(x: types.Type, index: types.Type, shape: types.Type) -> Any:
    tile = the_tile(x, "extract")
    part, grid = in_words("extract", lang.grid_of, tile_shape(shape, "extract"), tile.shape)
    whole, small = _in_parts(tile.layout, part, tile.config)
    choose = _chosen_part(index, grid, "extract")

    def emit(builder: ir.IRBuilder, value: ir.Value, at: ir.Value, shape: ir.Value) -> ir.Value:
        held = in_layout(builder, tile, unpack(builder, value), whole)
        number, size = choose(builder, at), small.num_registers
        if isinstance(number, ir.Constant):
            return pack(builder, held[number.constant * size :][:size])
        part = held[:size]
        for k in range(1, len(held) // size):
            here = builder.icmp_unsigned("==", number, integer(32, k))
            part = [builder.select(here, held[k * size + r], e) for r, e in enumerate(part)]
        return pack(builder, part)

    return TileType(tile.dtype, small, tile.config, splat=tile.splat), emit


@lowers(lang.insert)
def insert(x: types.Type, index: types.Type, value: types.Type) -> Any:
    tile, part = the_tile(x, "insert"), the_tile(value, "insert")
    if part.dtype != tile.dtype:
        reject("insert", f"a {part.dtype.name} tile into a {tile.dtype.name} tile; cast it with .astype(...)")
    _, grid = in_words("insert", lang.grid_of, part.shape, tile.shape)
    whole, small = _in_parts(tile.layout, part.shape, tile.config)
    choose = _chosen_part(index, grid, "insert")

    def emit(builder: ir.IRBuilder, old: ir.Value, at: ir.Value, new: ir.Value) -> ir.Value:
        held = in_layout(builder, tile, unpack(builder, old), whole)
        fresh = in_layout(builder, part, unpack(builder, new), small)
        number, size = choose(builder, at), small.num_registers
        if isinstance(number, ir.Constant):
            start = number.constant * size
            return pack(builder, [*held[:start], *fresh, *held[start + size :]])
        result = []
        for r, element in enumerate(held):
            here = builder.icmp_unsigned("==", number, integer(32, r // size))
            result.append(builder.select(here, fresh[r % size], element))
        return pack(builder, result)

    return TileType(tile.dtype, whole, tile.config), emit
