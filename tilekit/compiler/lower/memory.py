"""Lowering of `tilekit.lang.memory`: where a block is, and tiles from and to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.diagnose import refuse, reject
from tilekit.compiler.layout import Layout, elements
from tilekit.compiler.lower.access import open_access, tensor_field
from tilekit.compiler.lower.convert import convert
from tilekit.compiler.lower.emit import constant_tuple, pack, special_register, unpack
from tilekit.compiler.lower.mapped import TileIndexType, TilesType, tile_counts
from tilekit.compiler.lower.relayout import in_layout
from tilekit.compiler.lower.transfer import read, write
from tilekit.compiler.ops import ABSENT, attribute, known, lowers, lowers_method
from tilekit.compiler.types import (
    DTypeType,
    TensorType,
    TileType,
    describe,
    extent_dtype,
    i32,
    i64,
    integer,
    scalar_dtype,
    scalar_kind,
)
from tilekit.errors import CompileError
from tilekit.lang import mapped
from tilekit.lang import memory as lang
from tilekit.lang.tile import check_shape

__all__ = ["check_indices", "index_values", "tile_shape"]

_PADDING = {"zero": 0.0, "neg_zero": -0.0, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def tile_shape(ty: types.Type, what: str) -> tuple[int, ...]:
    """The tile shape that an argument of type `ty` gives; rejected unless it is known, and of powers of two."""
    shape = known(ty)
    if shape is ABSENT:
        parts = ty.types if isinstance(ty, types.BaseTuple) else [ty]
        if all(scalar_kind(part) is int for part in parts):
            reject(
                what,
                "the tile shape must be known when the kernel is compiled: make it a generic (tk.generics) or a tk.Const",
            )
        reject(what, f"a tile shape is an int or a tuple of ints, not {describe(ty)}")
    try:
        return check_shape(shape, what)
    except CompileError as error:
        reject(what, error.reason)


# ---------------------------------------------------------------------------------------------------------------- the block


def _grid_register(what: str, register: str) -> Callable[[types.Type], Any]:
    def define(axis: types.Type) -> Any:
        value = known(axis)
        if value is ABSENT or value not in (0, 1, 2) or isinstance(value, bool):
            shown = "a value that is computed in the kernel" if value is ABSENT else repr(value)
            reject(what, f"the axis is 0, 1 or 2, known when the kernel is compiled, not {shown}")
        return types.int32, lambda builder, _: special_register(builder, f"{register}.{'xyz'[value]}")

    return define


lowers(lang.bid)(_grid_register("bid", "ctaid"))
lowers(lang.num_blocks)(_grid_register("num_blocks", "nctaid"))


# -------------------------------------------------------------------------------------------------- checks, as in the language


def _partition(ty: types.Type, what: str) -> TensorType:
    """The type of a partition: a tensor with tiles of its own."""
    tensor = _tensor(ty, what)
    if tensor.facts.tile is None:
        name = tensor.parameter
        reject(
            what,
            f"{name} is a tensor without tiles of its own: writing needs a partition; pass {name}.partition(...) to write it, "
            f"or read it with tk.load({name}, index, shape)",
        )
    return tensor


def _tensor(ty: types.Type, what: str) -> TensorType:
    if not isinstance(ty, TensorType):
        reject(what, f"needs a tensor parameter, not {describe(ty)}")
    return ty


def check_indices(ty: types.Type, rank: int, what: str, rule: str) -> list[types.Type]:
    """The types of an index's parts: an int, or an integer tile of shape (), for each dimension.

    Args:
        ty: the index.
        rank: how many parts there must be.
        what: the operation.
        rule: what an index is, for the error.
    """
    parts = list(ty.types) if isinstance(ty, types.BaseTuple) else [ty]
    for part in parts:
        dtype = part.dtype if isinstance(part, TileType) and part.shape == () else scalar_dtype(part)
        if dtype is None or dtype == dtypes.bool_ or dtypes.is_float(dtype):
            reject(what, f"{rule}, not {describe(part)}")
    if len(parts) != rank:
        reject(what, f"{rule}; here are {len(parts)} of {rank}")
    return parts


def _check_index(ty: types.Type, tensor: TensorType, what: str) -> None:
    if isinstance(ty, TileIndexType):
        reject(what, mapped.not_an_index())
    parts = len(ty.types) if isinstance(ty, types.BaseTuple) else 1
    check_indices(ty, parts, what, "a tile index is an int or a tuple of ints")
    if parts != tensor.facts.rank:
        reject(what, f"{parts} indices for {tensor.parameter}, which has {tensor.facts.rank} dimensions")


def index_values(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
    """An index as an i32 or i64 for each dimension."""
    if isinstance(ty, types.BaseTuple):
        parts = [(t, builder.extract_value(value, d)) for d, t in enumerate(ty.types)]
    else:
        parts = [(ty, value)]
    values = []
    for part, element in parts:
        if isinstance(part, TileType):
            dtype, element = part.dtype, builder.extract_value(element, 0)
        else:
            dtype = scalar_dtype(part)
        wide = dtype.itemsize == 8 or dtype == dtypes.uint32
        values.append(convert(builder, element, dtype, dtypes.int64 if wide else dtypes.int32))
    return values


def _check_value(value: types.Type, tensor: TensorType, shape: tuple[int, ...]) -> None:
    """Refuse a value that may not be stored as a tile of `shape`."""
    name = tensor.parameter
    if isinstance(value, TileType):
        if value.shape != shape:
            reject("store", f"a tile of shape {value.shape} into {name}, whose tiles are {shape}")
        if not dtypes.storable(value.dtype, tensor.dtype):
            reject(
                "store",
                f"a {value.dtype.name} tile does not fit {name}, a {tensor.dtype.name} tensor, without loss; "
                f"write .astype({name}.dtype) if that is meant",
            )
    elif scalar_kind(value) is None:
        reject("store", f"the value is a tile or a scalar, not {describe(value)}")
    else:
        problem = dtypes.unstorable(tensor.dtype, scalar_kind(value), known(value), tensor.parameter)
        if problem:
            refuse("store", problem)


# --------------------------------------------------------------------------------------------------------- loads and stores


Place = Callable[[ir.IRBuilder, ir.Value, ir.Value], list[ir.Value]]


def _place(tensor: TensorType, tile: types.Type, what: str) -> Place:
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
    axes = [special_register(builder, f"ctaid.{axis}") for axis in "xyz"]
    rank, tile = tensor.facts.rank, tensor.facts.tile
    if rank < 4:
        return axes[:rank]
    extent = tensor_field(builder, tensor, value, "extent1")
    count = builder.lshr(
        builder.add(extent, ir.Constant(extent.type, tile[1] - 1)), ir.Constant(extent.type, tile[1].bit_length() - 1)
    )
    tiles = builder.trunc(count, i32) if extent.type == i64 else count
    return [builder.udiv(axes[0], tiles), builder.urem(axes[0], tiles), axes[1], axes[2]]


def _load(
    what: str, tensor: TensorType, shape: tuple[int, ...], padding_mode: types.Type, *, proven: bool
) -> tuple[TileType, Callable[..., ir.Value]]:
    """The type of a loaded tile, and how to load it at an index."""
    name, facts = tensor.parameter, tensor.facts
    if facts.role == "out":
        reject(what, f"{name} is declared Out, which is written only; annotate it InOut to read it")
    mode = known(padding_mode)
    if mode is ABSENT or mode not in _PADDING:
        shown = describe(padding_mode) if mode is ABSENT else repr(mode)
        reject(what, f"padding_mode is one of {', '.join(map(repr, _PADDING))}, not {shown}")
    if mode != "zero" and not dtypes.is_float(tensor.dtype):
        reject(what, f"padding_mode {str(mode)!r} needs a floating-point tensor; {name} is {tensor.dtype.name}")
    tile = TileType(tensor.dtype, Layout.blocked(shape, tensor.config, facts.unit), tensor.config)

    def emit(builder: ir.IRBuilder, value: ir.Value, index: list[ir.Value]) -> ir.Value:
        access = open_access(builder, tensor, value, index, tile.layout, proven=proven, writing=False)
        return pack(builder, read(builder, access, tensor.dtype, _PADDING[mode]))

    return tile, emit


def _store(
    tensor: TensorType, shape: tuple[int, ...], value: types.Type, *, proven: bool
) -> Callable[[ir.IRBuilder, ir.Value, list[ir.Value], ir.Value], None]:
    """How to store a tile, or a scalar, at an index."""
    layout = Layout.blocked(shape, tensor.config, tensor.facts.unit)
    _check_value(value, tensor, shape)
    if isinstance(value, TileType) and not value.splat and _wide_enough(value.layout, tensor):
        layout = value.layout

    def emit(builder: ir.IRBuilder, tensor_value: ir.Value, index: list[ir.Value], stored: ir.Value) -> None:
        if isinstance(value, TileType):
            converted = [convert(builder, e, value.dtype, tensor.dtype) for e in unpack(builder, stored)]
            elements = in_layout(builder, value.like(tensor.dtype), converted, layout)
        else:
            elements = [convert(builder, stored, scalar_dtype(value), tensor.dtype)] * layout.num_registers
        access = open_access(builder, tensor, tensor_value, index, layout, proven=proven, writing=True)
        write(builder, access, tensor.dtype, elements)

    return emit


_SECTOR, _FEW = 32, 2048


def _wide_enough(layout: Layout, tensor: TensorType) -> bool:
    """Whether a tile may be stored as it lies: a warp fills whole sectors of 32 bytes, or the tile is small anyway."""
    itemsize, unit = tensor.dtype.itemsize, tensor.facts.unit
    if elements(layout.shape) * itemsize <= _FEW or unit is None:
        return True
    return layout.stretch(unit) * itemsize >= _SECTOR


@lowers(lang.load)
def load(array: types.Type, index: types.Type, shape: types.Type, padding_mode: types.Type) -> Any:
    extents = tile_shape(shape, "load")
    tensor = _tensor(array, "load")
    _check_index(index, tensor, "load")
    if len(extents) != tensor.facts.rank:
        reject("load", f"a tile of shape {extents} from {tensor.parameter}, which has {tensor.facts.rank} dimensions")
    tile, emit = _load("load", tensor, extents, padding_mode, proven=False)
    return tile, lambda builder, array, at, *_: emit(builder, array, index_values(builder, index, at))


@lowers(lang.load_tile_like)
def load_tile_like(array: types.Type, like: types.Type, padding_mode: types.Type) -> Any:
    at = like if isinstance(like, TileIndexType) else types.none
    partition = _partition(like.tensor if isinstance(like, TileIndexType) else like, "load_tile_like")
    tensor, shape = _tensor(array, "load_tile_like"), partition.facts.tile
    if tensor.facts.rank != len(shape):
        reject(
            "load_tile_like",
            f"{tensor.parameter} has {tensor.facts.rank} dimensions, {partition.parameter} has {len(shape)}; "
            "use tk.load with an index of its own",
        )
    place = _place(partition, at, "load_tile_like")
    tile, emit = _load("load_tile_like", tensor, shape, padding_mode, proven=tensor.facts.covered)
    return tile, lambda builder, array, like, *_: emit(builder, array, place(builder, like, like))


@lowers(lang.store)
def store(array: types.Type, index: types.Type, tile: types.Type) -> Any:
    partition = _partition(array, "store")
    if partition.facts.group is not None:
        reject("store", mapped.ownerless(partition.parameter))
    _check_index(index, partition, "store")
    emit = _store(partition, partition.facts.tile, tile, proven=False)
    return types.none, lambda builder, array, at, tile: emit(builder, array, index_values(builder, index, at), tile)


@lowers_method(TensorType, lang.TensorView.load)
def load_own(self: TensorType, tile: types.Type) -> Any:
    partition = _partition(self, "load")
    place, proven = _place(partition, tile, "load"), _is_inside(partition, tile)
    loaded, emit = _load("load", partition, partition.facts.tile, types.StringLiteral("zero"), proven=proven)
    return loaded, lambda builder, value, tile: emit(builder, value, place(builder, value, tile))


@lowers_method(TensorType, lang.TensorView.store)
def store_own(self: TensorType, value: types.Type, tile: types.Type) -> Any:
    partition = _partition(self, "store")
    place = _place(partition, tile, "store")
    emit = _store(partition, partition.facts.tile, value, proven=_is_inside(partition, tile))
    return types.none, lambda builder, tensor, value, tile: emit(builder, tensor, place(builder, tensor, tile), value)


def _is_inside(partition: TensorType, tile: types.Type) -> bool:
    """Whether `tile`, or the block's own, is sure to be inside: a tile of the partition's own map is on any grid."""
    return partition.facts.covered or (isinstance(tile, TileIndexType) and tile.tensor == partition)


@lowers_method(TensorType, lang.TensorView.tiles)
def tiles(self: TensorType, *others: types.Type) -> Any:
    for ty in (self, *others):
        partition = _partition(ty, "tiles")
        if partition.facts.group is None:
            reject("tiles", mapped.unmapped(partition.parameter))
        if partition.facts.kin != self.facts.kin:
            reject("tiles", mapped.cut_otherwise(self.parameter, partition.parameter))
    made = TilesType(self, tuple(other.parameter for other in others))
    return made, lambda builder, value, *_: pack(builder, tile_counts(builder, self, value))


# --------------------------------------------------------------------------------------------------------------- attributes


@attribute(TensorType, "tile_shape")
def tensor_tile_shape(tensor: TensorType) -> Any:
    return constant_tuple(_partition(tensor, "tile_shape").facts.tile)


@attribute(TensorType, "shape")
def tensor_shape(tensor: TensorType) -> Any:
    extent = types.int64 if extent_dtype(tensor.facts) == dtypes.int64 else types.int32
    rank = tensor.facts.rank

    def emit(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return pack(builder, [tensor_field(builder, tensor, value, f"extent{d}") for d in range(rank)])

    return types.UniTuple(extent, rank), emit


@attribute(TensorType, "ndim")
def tensor_ndim(tensor: TensorType) -> Any:
    return types.literal(tensor.facts.rank), lambda builder, value: integer(64, tensor.facts.rank)


@attribute(TensorType, "dtype")
def tensor_dtype(tensor: TensorType) -> Any:
    return DTypeType(tensor.dtype), lambda builder, value: None
