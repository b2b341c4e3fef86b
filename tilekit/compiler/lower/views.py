"""Lowering of `tilekit.lang.views`: tiled views, grids and rows of tiles, slices: all are pointers and bounds of one tensor."""

from __future__ import annotations

import math
import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudaimpl import registry

from tilekit.compiler.codegen.access import count_tiles, members, tensor_field
from tilekit.compiler.codegen.checks import require
from tilekit.compiler.codegen.definition import attribute, known, lowers, lowers_method, lowers_operator
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import as_wide_as, constant_tuple, pack, unpack
from tilekit.compiler.codegen.transfer import Padding
from tilekit.compiler.codegen.types import DTypeType, TensorType, extent_type, i32, i64, integer
from tilekit.compiler.codegen.view_types import (
    MultipleType,
    RowIterator,
    TiledViewType,
    TileGridType,
    TileRowType,
    load_of_view,
    view_width,
)
from tilekit.compiler.codegen.windows import (
    Cut,
    check_index,
    check_indices,
    check_padding,
    constant_of,
    cut_of,
    in_rule,
    index_value,
    index_values,
    proven,
    store_window,
    tile_shape,
    writable,
)
from tilekit.compiler.facts import divisor
from tilekit.compiler.frontend import intrinsics
from tilekit.lang import views as lang
from tilekit.lang import windows
from tilekit.lang.shape import axis_of

__all__ = [
    "all_of_grid", "grid_of_tiles", "load_of_row", "tiles_of_row", "view_of",
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------- making


def _cut(tensor: TensorType, shape: types.Type, what: str) -> Cut:
    extents, tile = in_rule(what, windows.check_window, tile_shape(shape, what, empty=True), tensor.facts.rank, tensor.parameter)
    return cut_of(extents, tile)


def view_of(tensor: TensorType, shape: types.Type, padding_mode: types.Type, steps: types.Type) -> TiledViewType:
    """The type of `tensor.tiled_view(...)`."""
    what = "tiled_view"
    cut = _cut(tensor, shape, what)
    padding = check_padding(what, tensor, padding_mode, types.none)
    assert padding is not None, "no value was given for it"
    chosen_steps = constant_of(steps, what, "traversal_steps")
    return TiledViewType(tensor, cut._replace(steps=in_rule(what, windows.check_steps, chosen_steps, cut.extents)), padding)


@lowers_method(TensorType, lang.TensorView.tiled_view)
def tiled_view(self: TensorType, tile_shape: types.Type, padding_mode: types.Type, traversal_steps: types.Type) -> Any:
    view = view_of(self, tile_shape, padding_mode, traversal_steps)
    return view, lambda builder, value, *_: value


def grid_of_tiles(tensor: TensorType, shape: types.Type) -> TileGridType:
    """The type of `tensor.tiles(shape)`."""
    return TileGridType(tensor, _cut(tensor, shape, "tiles"), Padding())


@lowers(intrinsics.multiple)
def multiple(number: types.Type, of: types.Type) -> Any:
    return MultipleType(number, known(of)), lambda builder, value, _: value


@lowers_method(TensorType, lang.TensorView.slice)
def slice_(self: TensorType, axis: types.Type, start: types.Type, stop: types.Type) -> Any:
    facts, name = self.facts, self.parameter
    along = in_rule("slice", axis_of, constant_of(axis, "slice", "the axis"), facts.rank)
    rest = known(stop) is None
    first, last = (bound.of if isinstance(bound, MultipleType) else known(bound) for bound in (start, stop))
    start, stop = (bound.number if isinstance(bound, MultipleType) else bound for bound in (start, stop))
    for bound in (start,) if rest else (start, stop):
        check_indices(bound, 1, "slice", "start and stop are ints")
    itemsize = self.dtype.itemsize
    # What is known of the start leaves something to be known of the address.
    known_start = first if isinstance(first, int) and first >= 0 else 1
    stride = 1 if along == facts.unit else facts.strides[along]
    align = min(facts.align, divisor(known_start) * stride * itemsize)
    # The extent that is left, likewise, and if it is no more than one of nothing.
    known_stop = last if type(last) is int else 1
    left_by = min(divisor(known_start), facts.extents[along]) if rest else divisor(math.gcd(known_start, known_stop))
    extents = tuple(left_by if d == along else n for d, n in enumerate(facts.extents))
    part = facts._replace(tile=None, group=None, cut_class=0, covered=False, extents=extents, align=align)
    if along == facts.unit:
        part = part._replace(short=0)
    begins = None if self.origins is None else tuple(sorted({*self.origins, along}))
    result = TensorType(name, part, self.config, origins=begins)

    def emit(builder: ir.IRBuilder, value: ir.Value, _: ir.Value, start_: ir.Value, stop_: ir.Value) -> ir.Value:
        extent = tensor_field(builder, self, value, f"extent{along}")
        wide = extent if extent.type == i64 else builder.zext(extent, i64)
        bounds = [index_value(builder, start, start_), wide if rest else index_value(builder, stop, stop_)]
        low, high = (v if v.type == i64 else builder.sext(v, i64) for v in bounds)
        ordered = builder.icmp_unsigned("<=", low, high)  # a negative bound is a huge one
        inside = builder.and_(ordered, builder.icmp_unsigned("<=", high, wide))
        require(builder, inside, f"slice: {{}}:{{}} is outside {name}", [low, high])
        low = _within(builder, low, integer(64, 0), wide)
        high = _within(builder, high, low, wide)
        begin = low
        if divisor(known_start) > 1:  # nothing is left behind the end, which copies of 16 bytes may not begin at
            low = builder.and_(low, integer(64, -divisor(known_start) & 0xFFFFFFFFFFFFFFFF))
        offset = builder.mul(low, tensor_field(builder, self, value, f"stride{along}"))
        address = builder.add(tensor_field(builder, self, value, "address"), builder.mul(offset, integer(64, itemsize)))
        left = builder.sub(high, begin)
        left, low = (v if extent.type == i64 else builder.trunc(v, i32) for v in (left, low))
        fields = [builder.extract_value(value, n) for n in range(members(self))]
        fields[0], fields[1 + along] = address, left
        for d in begins or ():
            before = tensor_field(builder, self, value, f"origin{d}")
            fields.append(builder.add(before, low) if d == along else before)
        return _struct(builder, fields)

    return result, emit


def _within(builder: ir.IRBuilder, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    value = builder.select(builder.icmp_signed("<", value, low), low, value)
    return builder.select(builder.icmp_signed(">", value, high), high, value)


# -------------------------------------------------------------------------------------------------------------------- using


@lowers_method(TiledViewType, lang.TiledView.load)
def load(self: TiledViewType, index: types.Type, eviction_policy: types.Type) -> Any:
    check_index(index, self.tensor, "load")
    tile, emit = load_of_view(self, proven(index, self.tensor, self.cut), eviction_policy)
    return tile, lambda builder, value, at, _: emit(builder, value, index_values(builder, index, at))


@lowers_method(TiledViewType, lang.TiledView.store)
def store(self: TiledViewType, index: types.Type, tile: types.Type, eviction_policy: types.Type) -> Any:
    writable(self.tensor, "store")
    check_index(index, self.tensor, "store")
    inside = proven(index, self.tensor, self.cut)
    emit = store_window("store", self.tensor, self.cut, tile, proven=inside, policy=eviction_policy)
    return types.none, lambda builder, value, at, stored, _: emit(builder, value, index_values(builder, index, at), stored)


@lowers_method(TiledViewType, lang.TiledView.num_tiles)
def num_tiles(self: TiledViewType, axis: types.Type) -> Any:
    along = in_rule("num_tiles", axis_of, constant_of(axis, "num_tiles", "the axis"), self.tensor.facts.rank)
    return extent_type(self.tensor), lambda builder, value, _: _count(builder, self, value, along)


def _count(builder: ir.IRBuilder, view: TiledViewType, value: ir.Value, dim: int) -> ir.Value:
    """The number of tiles along a dimension."""
    return count_tiles(builder, tensor_field(builder, view.tensor, value, f"extent{dim}"), view.cut.steps[dim])


@attribute(TiledViewType, "dtype")
def view_dtype(view: TiledViewType) -> Any:
    return DTypeType(view.tensor.dtype), lambda builder, value: None


@attribute(TiledViewType, "tile_shape")
def view_tile_shape(view: TiledViewType) -> Any:
    return constant_tuple(view.cut.shape)


@attribute(TiledViewType, "traversal_steps")
def view_steps(view: TiledViewType) -> Any:
    return constant_tuple(view.cut.steps)


@attribute(TileGridType, "shape")
def grid_shape(grid: TileGridType) -> Any:
    rank = grid.tensor.facts.rank
    return types.UniTuple(extent_type(grid.tensor), rank), lambda builder, value: pack(
        builder, [_count(builder, grid, value, d) for d in range(rank)]
    )


@lowers_operator(operator.getitem, "[]", TileGridType)
def pick(grid: types.Type, index: types.Type) -> Any:
    if not isinstance(grid, TileGridType):
        return None
    rank = grid.tensor.facts.rank
    parts = list(index.types) if isinstance(index, types.BaseTuple) else [index]
    if len(parts) != rank:
        reject("[]", f"{len(parts)} indices for the tiles of {grid.tensor.parameter}, which has {rank} dimensions")
    free = tuple(d for d, part in enumerate(parts) if isinstance(part, types.SliceType))
    for d, part in enumerate(parts):
        if d not in free:
            check_indices(part, 1, "[]", "an index of tiles is an int, ':' or a range such as 'a:b'")
        elif part.has_step and not isinstance(part, types.SliceLiteral):
            reject("[]", "an index of tiles is an int, ':' or a range such as 'a:b', without a step")
    if not free:
        tile, emit_load = load_of_view(grid, proven(index, grid.tensor, grid.cut))
        return tile, lambda builder, value, at: emit_load(builder, value, index_values(builder, index, at))

    def emit(builder: ir.IRBuilder, value: ir.Value, at: ir.Value) -> ir.Value:
        elements = [builder.extract_value(at, d) for d in range(rank)] if isinstance(index, types.BaseTuple) else [at]
        firsts, counts = [], []
        for d, (part, element) in enumerate(zip(parts, elements, strict=True)):
            there = _count(builder, grid, value, d)
            if d in free:
                low, high = (_bound(builder, builder.extract_value(element, k), there) for k in range(2))
                firsts.append(low)
                some = builder.icmp_signed("<", low, high)
                counts.append(builder.select(some, builder.sub(high, low), ir.Constant(there.type, 0)))
            else:
                firsts.append(_index_in(builder, index_value(builder, part, element), there.type))
                counts.append(ir.Constant(there.type, 1))
        return _struct(builder, [value, pack(builder, firsts), pack(builder, counts)])

    return TileRowType(grid, free), emit


@lowers(intrinsics.one_tile)
def one_tile(grid: TileGridType, index: types.Type) -> Any:
    def emit(builder: ir.IRBuilder, value: ir.Value, at: ir.Value) -> ir.Value:
        width = view_width(grid)
        firsts = [_index_in(builder, one, width) for one in index_values(builder, index, at)]
        return _struct(builder, [value, pack(builder, firsts), pack(builder, [ir.Constant(width, 1)] * len(firsts))])

    return TileRowType(grid, ()), emit


def _bound(builder: ir.IRBuilder, bound: ir.Value, count: ir.Value) -> ir.Value:
    """A bound of a Python slice (64 bits, from the end where it is negative) as one of 0 to `count`, in its type."""
    wide = count if count.type == i64 else builder.sext(count, i64)
    zero = integer(64, 0)
    bound = builder.select(builder.icmp_signed("<", bound, zero), builder.add(bound, wide), bound)
    return as_wide_as(builder, _within(builder, bound, zero, wide), count)


def _index_in(builder: ir.IRBuilder, index: ir.Value, width: ir.Type) -> ir.Value:
    """An index in so many bits; -1, which is outside as well, for what does not fit."""
    if index.type == width:
        return index
    if width == i64:
        return builder.sext(index, i64)
    fits = builder.icmp_unsigned("<", index, integer(64, 1 << 31))
    return builder.select(fits, builder.trunc(index, i32), integer(32, -1))


def _struct(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    struct: Any = ir.Constant(ir.LiteralStructType([part.type for part in parts]), ir.Undefined)
    for index, part in enumerate(parts):
        struct = builder.insert_value(struct, part, index)
    return struct


def all_of_grid(builder: ir.IRBuilder, grid: TileGridType, value: ir.Value) -> ir.Value:
    """The row of all tiles of a grid."""
    rank = grid.tensor.facts.rank
    counts = pack(builder, [_count(builder, grid, value, d) for d in range(rank)])
    return _struct(builder, [value, pack(builder, [ir.Constant(view_width(grid), 0)] * rank), counts])


def tiles_of_row(builder: ir.IRBuilder, row: TileRowType, value: ir.Value) -> ir.Value:
    """The number of tiles of a row, in its width."""
    total = ir.Constant(row.width, 1)
    for count in unpack(builder, builder.extract_value(value, 2)):
        total = builder.mul(total, as_wide_as(builder, count, total))
    return total


def load_of_row(row: TileRowType) -> Any:
    """The type of a tile of a row; and how to load it, given the row and its place in it, of the row's width."""
    tile, emit = load_of_view(row.grid, row.free)
    return tile, lambda builder, value, at: emit(builder, builder.extract_value(value, 0), row.index(builder, value, at))


@registry.lower("getiter", TileGridType)
def grid_iterator(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
    (grid,), (value,) = signature.args, args
    return _iterator(builder, TileRowType(grid, tuple(range(grid.tensor.facts.rank))), all_of_grid(builder, grid, value))


@registry.lower("getiter", TileRowType)
def row_iterator(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
    return _iterator(builder, signature.args[0], args[0])


def _iterator(builder: ir.IRBuilder, row: TileRowType, value: ir.Value) -> ir.Value:
    position = cgutils.alloca_once_value(builder, ir.Constant(row.width, 0))
    return _struct(builder, [position, value, tiles_of_row(builder, row, value)])


@registry.lower("iternext", RowIterator)
@iternext_impl(RefType.UNTRACKED)
def next_in_row(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value], result: Any) -> None:
    iterator: RowIterator = signature.args[0]
    position, row, total = (builder.extract_value(args[0], k) for k in range(3))
    at = builder.load(position)
    more = builder.icmp_unsigned("<", at, total)
    result.set_valid(more)
    with builder.if_then(more):
        result.yield_(load_of_row(TileRowType(iterator.grid, iterator.free))[1](builder, row, at))
        builder.store(builder.add(at, ir.Constant(at.type, 1)), position)
