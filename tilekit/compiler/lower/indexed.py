"""Lowering of `tilekit.lang.indexed`: gather and scatter, an address for each element, vectorized where they are neighbours.

Elements that lie side by side in a thread are moved together where their addresses do, too: that is seen at run time, for all
elements of a thread at once. Of indices that are made of `arange` the compiler knows the answer, and only the wide accesses stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.access import Access, Slot, tensor_field
from tilekit.compiler.codegen.checks import checking, require
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import reject
from tilekit.compiler.codegen.emit import all_of, pack, special_register
from tilekit.compiler.codegen.operands import broadcast
from tilekit.compiler.codegen.operands import elements as operand_elements
from tilekit.compiler.codegen.transfer import Padding, read, write
from tilekit.compiler.codegen.types import TensorType, TileType, describe, i64, integer, prevailing, scalar_dtype, scalar_kind
from tilekit.compiler.codegen.windows import (
    check_eviction,
    check_fill,
    check_mask,
    check_value,
    fill_of,
    mask_elements,
    order_access,
    the_tensor,
    writable,
)
from tilekit.compiler.layouts.linear import ACCESS_BYTES
from tilekit.errors import CompileError
from tilekit.lang import indexed as lang
from tilekit.lang.tile import common_shape
from tilekit.lang.windows import written_only

__all__ = ["Points", "check_points", "index_parts"]


class Points:
    """Elements of a tensor that indices name, as far as their types tell.

    Attributes:
        tensor: whose they are.
        tile: a tile of the shape to which the indices broadcast, of the tensor's dtype, in the layout that the operation has.
        masked: whether there is a mask.
    """

    def __init__(self, what: str, tensor: TensorType, parts: list[types.Type], mask: types.Type, tile: TileType) -> None:
        self.what, self.tensor, self.parts, self.mask, self.tile = what, tensor, parts, mask, tile
        self.masked = check_mask(what, mask, tile.shape)

    def open(
        self,
        builder: ir.IRBuilder,
        value: ir.Value,
        indices: list[ir.Value],
        mask: ir.Value,
        *,
        writing: bool,
        limit: int = ACCESS_BYTES,
    ) -> Access:
        """Addresses and predicates: wide ones where elements lie side by side, else one by register, always with a predicate.

        Args:
            builder: at the place of the access.
            value, indices, mask: of the tensor, and what was given.
            writing: threads that hold copies take no part.
            limit: how many elements one access may take.
        """
        bits = self._together(limit)
        layout, tensor = self.tile.layout, self.tensor
        chosen = mask_elements(builder, self.mask, mask, self.tile) if self.masked else [None] * layout.num_registers
        columns = [self._column(builder, ty, v) for ty, v in zip(self.parts, indices, strict=True)]
        inside = [self._inside(builder, value, list(row)) for row in zip(*columns, strict=True)]
        if checking():
            self._require(builder, columns, inside, chosen)
        owner = None
        if writing and layout.copies:
            thread = special_register(builder, "tid.x")
            owner = builder.icmp_unsigned("==", builder.and_(thread, integer(32, layout.copies)), integer(32, 0))
        predicates = [all_of(builder, [owner, holds, wanted]) for holds, wanted in zip(inside, chosen, strict=True)]
        addresses = [self._address(builder, value, list(row)) for row in zip(*columns, strict=True)]
        current().note("points", tensor, layout, bits, writing)
        single = [Slot([r], a, 0, p) for r, (a, p) in enumerate(zip(addresses, predicates, strict=True))]
        if not bits:
            return Access(single, [], None)
        wide, conditions = [], []
        for registers in layout.chunks(bits):
            first = registers[0]
            wide.append(Slot(registers, addresses[first], 0, owner))
            conditions.append(self._contiguous(builder, columns, registers))
            conditions += [all_of(builder, [inside[r], chosen[r]]) for r in registers]
        return Access(wide, single, all_of(builder, conditions))

    def _require(
        self, builder: ir.IRBuilder, columns: list[list[ir.Value]], inside: list[ir.Value], chosen: list[ir.Value | None]
    ) -> None:
        """Under checks, stop at an index that is outside and that the mask leaves."""
        fine = [i if c is None else builder.or_(i, builder.not_(c)) for i, c in zip(inside, chosen, strict=True)]

        def first() -> list[ir.Value]:
            """The indices of the first register that has such."""
            shown = [column[-1] for column in columns]
            for r in reversed(range(len(fine) - 1)):
                shown = [builder.select(fine[r], v, column[r]) for v, column in zip(shown, columns, strict=True)]
            return shown

        holds = all_of(builder, fine)
        assert holds is not None, "a tile has elements"
        marks = ", ".join(["{}"] * len(columns))
        require(builder, holds, f"{self.what}: index ({marks}) is outside {self.tensor.parameter}", first)

    def _column(self, builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
        """The indices along one dimension, by register, as i32 or i64."""
        layout = self.tile.layout
        if isinstance(ty, TileType):
            dtype, elements = ty.dtype, broadcast(builder, ty, value, layout)
        else:
            dtype, elements = scalar_dtype(ty), [value] * layout.num_registers
        wide = dtype.itemsize == 8 or dtype == dtypes.uint32
        target = dtypes.int64 if wide else dtypes.int32
        converted: dict[int, ir.Value] = {}  # what is one value stays one
        for element in elements:
            if id(element) not in converted:
                converted[id(element)] = convert(builder, element, dtype, target)
        return [converted[id(element)] for element in elements]

    def _inside(self, builder: ir.IRBuilder, value: ir.Value, row: list[ir.Value]) -> ir.Value:
        conditions = []
        for d, index in enumerate(row):
            extent = tensor_field(builder, self.tensor, value, f"extent{d}")
            if index.type == i64 and extent.type != i64:
                extent = builder.zext(extent, i64)
            elif extent.type == i64 and index.type != i64:
                index = builder.sext(index, i64)
            conditions.append(builder.icmp_unsigned("<", index, extent))  # a negative index is a huge one
        result = all_of(builder, conditions)
        assert result is not None, "a tensor has dimensions"
        return result

    def _address(self, builder: ir.IRBuilder, value: ir.Value, row: list[ir.Value]) -> ir.Value:
        total = integer(64, 0)
        for d, index in enumerate(row):
            wide = index if index.type == i64 else builder.zext(index, i64)
            if d != self.tensor.facts.unit:
                wide = builder.mul(wide, tensor_field(builder, self.tensor, value, f"stride{d}"))
            total = builder.add(total, wide)
        itemsize = integer(64, self.tensor.dtype.itemsize)
        return builder.add(tensor_field(builder, self.tensor, value, "address"), builder.mul(total, itemsize))

    def _together(self, limit: int) -> tuple[int, ...]:
        """Register bits whose elements may lie side by side in memory; none where that is known not to be."""
        facts, layout = self.tensor.facts, self.tile.layout
        if facts.unit is None or not layout.shape:
            return ()
        ty, along = self.parts[facts.unit], len(layout.shape) - 1
        if not isinstance(ty, TileType) or ty.splat or not ty.shape or ty.shape[-1] != layout.shape[along]:
            return ()
        widest = min(ACCESS_BYTES, facts.align) // self.tensor.dtype.itemsize
        limit = min([limit, widest, *(facts.strides[d] for d in range(facts.rank) if d != facts.unit)])
        return layout.run(along)[: max(1, limit).bit_length() - 1]

    def _contiguous(self, builder: ir.IRBuilder, columns: list[list[ir.Value]], registers: list[int]) -> ir.Value:
        """Whether registers hold indices of neighbours, the first of them at a multiple of their number."""
        first, conditions = registers[0], []
        for d, column in enumerate(columns):
            start = column[first]
            if d == self.tensor.facts.unit:
                low = builder.and_(start, ir.Constant(start.type, len(registers) - 1))
                conditions.append(builder.icmp_unsigned("==", low, ir.Constant(start.type, 0)))
            for step, r in enumerate(registers):
                wanted = builder.add(start, ir.Constant(start.type, step)) if d == self.tensor.facts.unit else start
                if r != first and column[r] is not wanted:
                    conditions.append(builder.icmp_unsigned("==", column[r], wanted))
        result = all_of(builder, conditions)
        assert result is not None, "the unit dimension has one"
        return result


def check_points(
    what: str, array: types.Type, indices: types.Type, mask: types.Type, values: Sequence[types.Type] = (), *, writing: bool
) -> Points:
    """Look at the types of indices and mask, and of the values that meet them; refuse what does not fit."""
    tensor = the_tensor(array, what)
    if writing:
        writable(tensor, what)
    parts = list(indices.types) if isinstance(indices, types.BaseTuple) else [indices]
    for part in parts:
        dtype = part.dtype if isinstance(part, TileType) else scalar_dtype(part)
        if dtype is None or dtypes.is_float(dtype) or dtype == dtypes.bool_:
            shown = f"a {dtype.name} tile" if isinstance(part, TileType) else describe(part)
            reject(what, f"indices are integer tiles and ints, one for each dimension of the tensor, not {shown}")
    if len(parts) != tensor.facts.rank:
        reject(what, f"{len(parts)} indices for {tensor.parameter}, which has {tensor.facts.rank} dimensions")
    tiles = [part for part in parts if isinstance(part, TileType)]
    try:
        shape = common_shape(what, [tile.shape for tile in tiles] or [()])
        for value in values:
            if isinstance(value, TileType) and common_shape(what, [value.shape, shape]) != shape:
                reject(what, f"a tile of shape {value.shape} for indices of shape {shape}")
    except CompileError as error:
        reject(what, error.reason)
    for value in values:
        check_value(what, value, tensor)
    others = [t for t in (*values, mask) if isinstance(t, TileType)]
    whole = [tile for tile in (*tiles, *others) if tile.shape == shape and not tile.splat]
    layout = prevailing(whole).layout if whole else TileType.of_shape(tensor.dtype, shape, tensor.config).layout
    return Points(what, tensor, parts, mask, TileType(tensor.dtype, layout, tensor.config))


def index_parts(builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
    """The values of indices, one for each dimension."""
    return [builder.extract_value(value, d) for d in range(len(ty.types))] if isinstance(ty, types.BaseTuple) else [value]


@lowers(lang.gather)
def gather(
    array: types.Type, indices: types.Type, mask: types.Type, padding_value: types.Type, eviction_policy: types.Type
) -> Any:
    eviction = check_eviction("gather", eviction_policy)
    points = check_points("gather", array, indices, mask, writing=False)
    tensor = points.tensor
    if tensor.facts.role == "out":
        reject("gather", written_only(tensor.parameter))
    default = padding_value.value if isinstance(padding_value, types.Omitted) else None
    if default is None and scalar_kind(padding_value) is None:
        reject("gather", f"padding_value is a scalar, not {describe(padding_value)}")
    if default is None:
        check_fill("gather", tensor, padding_value)

    def emit(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, mask_: ir.Value, fill: ir.Value, _: Any) -> ir.Value:
        order_access(builder, tensor)
        access = points.open(builder, array, index_parts(builder, indices, at), mask_, writing=False)
        padding = fill_of(builder, tensor, padding_value, fill) if default is None else Padding(number=default or 0)
        return pack(builder, read(builder, access, tensor.dtype, padding, eviction=eviction))

    return points.tile, emit


@lowers(lang.scatter)
def scatter(array: types.Type, indices: types.Type, value: types.Type, mask: types.Type, eviction_policy: types.Type) -> Any:
    eviction = check_eviction("scatter", eviction_policy)
    points = check_points("scatter", array, indices, mask, [value], writing=True)

    def emit(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, stored: ir.Value, mask_: ir.Value, _: Any) -> None:
        column = operand_elements(builder, value, stored, points.tile)
        order_access(builder, points.tensor, writes=True)
        access = points.open(builder, array, index_parts(builder, indices, at), mask_, writing=True)
        write(builder, access, points.tensor.dtype, column, eviction=eviction)

    return types.none, emit
