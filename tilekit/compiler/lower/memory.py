"""Lowering of `tilekit.lang.memory`: block index, and loads and stores of tiles, masked where they hang over the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen.access import count_tiles, tensor_field
from tilekit.compiler.codegen.blocks import block_counts, block_index
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.definition import ABSENT, attribute, known, lowers, lowers_method
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import as_wide_as, constant_tuple, pack, unpack
from tilekit.compiler.codegen.mapped_types import TileIndexType, TilesType
from tilekit.compiler.codegen.types import DTypeType, TensorType, TileType, describe, dtype_of, extent_type, integer
from tilekit.compiler.codegen.windows import (
    Cut,
    check_index,
    check_indices,
    check_padding,
    constant_of,
    cut_of,
    in_rule,
    index_values,
    load_window,
    proven,
    store_window,
    the_tensor,
    tile_shape,
    with_tiles,
)
from tilekit.compiler.frontend import intrinsics
from tilekit.compiler.layouts.linear import Layout
from tilekit.compiler.lower.mapped import tile_counts
from tilekit.compiler.lower.views import grid_of_tiles
from tilekit.compiler.nvidia.products import beside_product
from tilekit.compiler.nvidia.vectors import vector_load
from tilekit.lang import mapped, windows
from tilekit.lang import memory as lang
from tilekit.lang.shape import axis_of
from tilekit.lang.size import check_size

__all__ = ["check_indices", "index_values", "tile_shape"]


# ---------------------------------------------------------------------------------------------------------------- the block


def _of_the_grid(what: str, places: Callable[[ir.IRBuilder], list[ir.Value]]) -> Callable[[types.Type], Any]:
    def define(axis: types.Type) -> Any:
        value = known(axis)
        if value is ABSENT or value not in (0, 1, 2) or isinstance(value, bool):
            shown = "a value that is computed in the kernel" if value is ABSENT else repr(value)
            reject(what, f"the axis is 0, 1 or 2, known when the kernel is compiled, not {shown}")
        fold = current().fold
        wide = fold is not None and fold.wide
        return types.int64 if wide else types.int32, lambda builder, _: places(builder)[value]

    return define


lowers(lang.bid)(_of_the_grid("bid", block_index))
lowers(lang.num_blocks)(_of_the_grid("num_blocks", block_counts))


# --------------------------------------------------------------------------------------------------------- loads and stores


IndexOf = Callable[[ir.IRBuilder, ir.Value, ir.Value], list[ir.Value]]


def _index_of(tensor: TensorType, tile: types.Type, what: str) -> IndexOf:
    """How to get an index from a partition and a tile: that of `tile` of a mapped partition; of the block's own if it is None."""
    name = tensor.parameter
    if isinstance(tile, (types.NoneType, types.Omitted)):
        if tensor.facts.group is not None:
            reject(what, mapped.ownerless(name))
        return lambda builder, value, _: _own_index(builder, tensor, value)
    if not isinstance(tile, TileIndexType):
        reject(what, mapped.no_tile(name, describe(tile)))
    if name not in (tile.tensor.parameter, *tile.others):
        reject(what, mapped.foreign_tile(name, tile.tensor.parameter))
    return lambda builder, _, index: unpack(builder, index)


def _own_index(builder: ir.IRBuilder, tensor: TensorType, value: ir.Value) -> list[ir.Value]:
    """The index of the tile that the block owns. The first two dimensions of a partition of rank 4 share grid axis 0."""
    axes = block_index(builder)
    rank, tile = tensor.facts.rank, tensor.facts.tile
    if rank < 4:
        return axes[:rank]
    extent = tensor_field(builder, tensor, value, "extent1")
    count = builder.lshr(
        builder.add(extent, ir.Constant(extent.type, tile[1] - 1)), ir.Constant(extent.type, tile[1].bit_length() - 1)
    )
    tiles = as_wide_as(builder, count, axes[0])
    return [builder.udiv(axes[0], tiles), builder.urem(axes[0], tiles), axes[1], axes[2]]


def _cut(tensor: TensorType, shape: types.Type, order: types.Type, what: str) -> Cut:
    rank = tensor.facts.rank
    requested = tile_shape(shape, what, empty=True)
    extents, tile = in_rule(what, windows.check_window, requested, rank, tensor.parameter)
    return cut_of(extents, tile, _along(order, rank, what))


def _along(order: types.Type, rank: int, what: str) -> tuple[int, ...]:
    return in_rule(what, windows.check_order, constant_of(order, what, "order"), rank)  # type: ignore[no-any-return]


def _by_tensor(cut: Cut, index: list[ir.Value]) -> list[ir.Value]:
    """An index of the tile's dimensions, by those of the tensor."""
    return [index[d] for d in cut.back]


def _own(tensor: TensorType) -> Cut:
    return cut_of(tensor.facts.tile, tensor.facts.tile)


@lowers(lang.num_tiles)
def num_tiles(array: types.Type, axis: types.Type, shape: types.Type, order: types.Type) -> Any:
    tensor = the_tensor(array, "num_tiles")
    cut = _cut(tensor, shape, order, "num_tiles")
    dim = cut.along[in_rule("num_tiles", axis_of, constant_of(axis, "num_tiles", "the axis"), tensor.facts.rank)]

    def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
        return count_tiles(builder, tensor_field(builder, tensor, value, f"extent{dim}"), cut.steps[dim])

    return extent_type(tensor), emit


def _held(dtype: types.Type, shape: tuple[int, ...], tensor: TensorType) -> Layout | None:
    """The layout in which a tile is wanted: that of a product of operands of `dtype`, or None if it is none."""
    beside = dtype_of(dtype)
    return None if beside is None else beside_product(shape, tensor.config, beside)


@lowers(lang.load)
def load(
    array: types.Type,
    index: types.Type,
    shape: types.Type,
    order: types.Type,
    padding_mode: types.Type,
    mask: types.Type,
    padding_value: types.Type,
    eviction_policy: types.Type,
) -> Any:
    tile, emit = load_beside(types.none, array, index, shape, order, padding_mode, mask, padding_value, eviction_policy)
    return tile, lambda builder, *values: emit(builder, None, *values)


@lowers(intrinsics.load_beside)
def load_beside(
    dtype: types.Type,
    array: types.Type,
    index: types.Type,
    shape: types.Type,
    order: types.Type,
    padding_mode: types.Type,
    mask: types.Type,
    padding_value: types.Type,
    eviction_policy: types.Type,
) -> Any:
    tensor = the_tensor(array, "load")
    check_index(index, tensor, "load")
    cut = _cut(tensor, shape, order, "load")
    padding = check_padding("load", tensor, padding_mode, padding_value)
    inside = proven(index, tensor, cut)
    if known(mask) is None and known(eviction_policy) == "evict_normal":
        vector_form = vector_load(tensor, cut, padding)
        if vector_form is not None:
            vector, note = vector_form
            return vector, lambda builder, _, array, at, *__: note(
                builder, array, _by_tensor(cut, index_values(builder, index, at))
            )
    held = _held(dtype, cut.shape, tensor)
    tile, emit = load_window(
        "load", tensor, cut, padding, proven=inside, value_type=padding_value, mask_type=mask, policy=eviction_policy, held=held
    )

    def emit_load(builder: ir.IRBuilder, *given: Any) -> ir.Value:
        _, array, at, _, _, _, mask, fill, _ = given
        return emit(builder, array, _by_tensor(cut, index_values(builder, index, at)), mask, fill)

    return tile, emit_load


@lowers(lang.load_tile_like)
def load_tile_like(array: types.Type, like: types.Type, padding_mode: types.Type, eviction_policy: types.Type) -> Any:
    tile, emit = load_tile_like_beside(types.none, array, like, padding_mode, eviction_policy)
    return tile, lambda builder, *values: emit(builder, None, *values)


@lowers(intrinsics.load_tile_like_beside)
def load_tile_like_beside(
    dtype: types.Type, array: types.Type, like: types.Type, padding_mode: types.Type, eviction_policy: types.Type
) -> Any:
    at = like if isinstance(like, TileIndexType) else types.none
    partition = with_tiles(like.tensor if isinstance(like, TileIndexType) else like, "load_tile_like")
    tensor, shape = the_tensor(array, "load_tile_like"), in_rule("load_tile_like", check_size, partition.facts.tile)
    if tensor.facts.rank != len(shape):
        reject(
            "load_tile_like",
            f"{tensor.parameter} has {tensor.facts.rank} dimensions, {partition.parameter} has {len(shape)}; "
            "use tk.load with an index of its own",
        )
    index_of = _index_of(partition, at, "load_tile_like")
    padding = check_padding("load_tile_like", tensor, padding_mode, types.none)
    covered, cut = tensor.facts.covered, cut_of(shape, shape)
    held = _held(dtype, shape, tensor)
    tile, emit = load_window(
        "load_tile_like", tensor, cut, padding, proven=covered, roams=False, policy=eviction_policy, held=held
    )
    return tile, lambda builder, _, array, like, *__: emit(builder, array, index_of(builder, like, like))


@lowers(lang.store)
def store(
    array: types.Type, index: types.Type, tile: types.Type, order: types.Type, mask: types.Type, eviction_policy: types.Type
) -> Any:
    tensor = the_tensor(array, "store")
    facts, rank = tensor.facts, tensor.facts.rank
    if facts.role == "in":
        reject("store", windows.tileless(tensor.parameter, writable=False))
    if facts.group is not None:
        reject("store", mapped.ownerless(tensor.parameter))
    check_index(index, tensor, "store")
    along = _along(order, rank, "store")
    if facts.tile is not None:
        shape = extents = tuple(facts.tile[d] for d in along)
    else:
        requested = tile.shape if isinstance(tile, TileType) else ()
        extents, shape = in_rule("store", windows.check_window, requested, rank, tensor.parameter)
    cut = cut_of(extents, shape, along)
    inside = proven(index, tensor, cut)
    emit = store_window("store", tensor, cut, tile, proven=inside, mask_type=mask, policy=eviction_policy)

    def emit_store(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, tile: ir.Value, order: Any, mask: Any, _: Any) -> None:
        emit(builder, array, _by_tensor(cut, index_values(builder, index, at)), tile, mask)

    return types.none, emit_store


@lowers_method(TensorType, lang.TensorView.load)
def load_own(self: TensorType, tile: types.Type, eviction_policy: types.Type) -> Any:
    partition = with_tiles(self, "load")
    in_rule("load", check_size, partition.facts.tile)
    index_of, inside = _index_of(partition, tile, "load"), _is_inside(partition, tile)
    padding = check_padding("load", partition, types.StringLiteral("zero"), types.none)
    loaded, emit = load_window("load", partition, _own(partition), padding, proven=inside, roams=False, policy=eviction_policy)
    return loaded, lambda builder, value, tile, _: emit(builder, value, index_of(builder, value, tile))


@lowers_method(TensorType, lang.TensorView.store)
def store_own(self: TensorType, value: types.Type, tile: types.Type, eviction_policy: types.Type) -> Any:
    partition = with_tiles(self, "store")
    index_of, inside = _index_of(partition, tile, "store"), _is_inside(partition, tile)
    emit = store_window("store", partition, _own(partition), value, proven=inside, roams=False, policy=eviction_policy)
    return types.none, lambda builder, tensor, value, tile, _: emit(builder, tensor, index_of(builder, tensor, tile), value)


@lowers(intrinsics.store_piece)
def store_piece(
    array: types.Type, value: types.Type, tile: types.Type, rank: types.Type, pieces: types.Type, eviction_policy: types.Type
) -> Any:
    partition = with_tiles(the_tensor(array, "store"), "store")
    index_of, count = _index_of(partition, tile, "store"), known(pieces)
    *extents, columns = partition.facts.tile
    shape = (*extents, columns // count)
    emit = store_window("store", partition, cut_of(shape, shape), value, proven=False, policy=eviction_policy)

    def emit_store(
        builder: ir.IRBuilder, tensor: ir.Value, value: ir.Value, tile: ir.Value, rank: ir.Value, *_: ir.Value
    ) -> None:
        *index, column = index_of(builder, tensor, tile)
        pieces_before = builder.mul(column, ir.Constant(column.type, count))
        emit(builder, tensor, [*index, builder.add(pieces_before, as_wide_as(builder, rank, column))], value)

    return types.none, emit_store


def _is_inside(partition: TensorType, tile: types.Type) -> bool:
    """Whether `tile`, or the block's own, is sure to be inside: a tile of the partition's own map is on any grid."""
    return partition.facts.covered or (isinstance(tile, TileIndexType) and tile.tensor == partition)


@lowers_method(TensorType, lang.TensorView.tiles)
def tiles(self: TensorType, *what: types.Type) -> Any:
    if what and not isinstance(what[0], TensorType):
        if len(what) > 1:
            reject("tiles", f"one tile shape, such as {self.parameter}.tiles((64, 32)), not {len(what)} arguments")
        return grid_of_tiles(self, what[0]), lambda builder, value, *_: value
    for ty in (self, *what):
        partition = with_tiles(the_tensor(ty, "tiles"), "tiles")
        if partition.facts.group is None:
            reject("tiles", mapped.unmapped(partition.parameter))
        if partition.facts.cut_class != self.facts.cut_class:
            reject("tiles", mapped.cut_otherwise(self.parameter, partition.parameter))
    result = TilesType(self, tuple(other.parameter for other in what))
    return result, lambda builder, value, *_: pack(builder, tile_counts(builder, self, value))


# --------------------------------------------------------------------------------------------------------------- attributes


@attribute(TensorType, "tile_shape")
def tensor_tile_shape(tensor: TensorType) -> Any:
    return constant_tuple(with_tiles(tensor, "tile_shape").facts.tile)


@attribute(TensorType, "shape")
def tensor_shape(tensor: TensorType) -> Any:
    rank = tensor.facts.rank

    def emit(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return pack(builder, [tensor_field(builder, tensor, value, f"extent{d}") for d in range(rank)])

    return types.UniTuple(extent_type(tensor), rank), emit


@attribute(TensorType, "ndim")
def tensor_ndim(tensor: TensorType) -> Any:
    return types.literal(tensor.facts.rank), lambda builder, value: integer(64, tensor.facts.rank)


@attribute(TensorType, "dtype")
def tensor_dtype(tensor: TensorType) -> Any:
    return DTypeType(tensor.dtype), lambda builder, value: None
