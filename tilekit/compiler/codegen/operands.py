"""Broadcasting and type promotion: how operands of element-wise operations meet in one shape, one dtype, one layout.

The rules for shapes and dtypes, and their words, are `lang.tile.operands`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen.computed import ComputedType, combined
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import ABSENT, known
from tilekit.compiler.codegen.diagnose import refuse, reject
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.types import TileType, describe, prevailing, scalar_dtype, scalar_kind
from tilekit.compiler.layouts.linear import Layout
from tilekit.dtypes import DType
from tilekit.errors import CompileError
from tilekit.lang.tile import common_shape

__all__ = ["broadcast", "common", "elements", "map_elements", "meet"]


def common(what: str, *operands: types.Type) -> TileType:
    """The type of tile that the operands make: the shape and the dtype in which they meet, and can be calculated with."""
    tile = meet(what, *operands)
    problem = dtypes.no_arithmetic(tile.dtype)
    if problem:
        reject(what, problem)
    return tile


def meet(what: str, *operands: types.Type) -> TileType:
    """As `common`, for what calculates nothing."""
    tiles = [t for t in operands if isinstance(t, (TileType, ComputedType))]
    for operand in operands:
        if not isinstance(operand, (TileType, ComputedType)) and scalar_kind(operand) is None:
            reject(what, f"operands are tiles and scalars, not {describe(operand)}")
    if not tiles:
        reject(what, "one operand at least must be a tile")
    dtype = tiles[0].dtype
    for tile in tiles[1:]:
        try:
            dtype = dtypes.common_dtype(dtype, tile.dtype, what)
        except TypeError as error:
            reject(what, str(error))
    for operand in operands:
        kind = scalar_kind(operand)
        if kind is not None:
            dtype = dtypes.scalar_dtype(dtype, kind)
    for operand in operands:  # those whose value is known; others wrap, as in C
        value = known(operand) if scalar_kind(operand) is int else ABSENT
        problem = dtypes.misfit(dtype, value) if value is not ABSENT else None
        if problem:
            refuse(what, problem)
    return _in_one_layout(what, tiles).like(dtype)


def _in_one_layout(what: str, tiles: Sequence[TileType | ComputedType]) -> TileType:
    """A tile of the shape that all broadcast to, in the layout that costs least: one that an operand of that shape has."""
    try:
        shape = common_shape(what, [tile.shape for tile in tiles])
    except CompileError as error:
        reject(what, error.reason)
    whole = [tile for tile in tiles if isinstance(tile, TileType) and tile.shape == shape]
    splat = all(isinstance(tile, TileType) and tile.splat for tile in tiles)
    if whole and (splat or not all(tile.splat for tile in whole)):
        return prevailing(whole)
    return TileType.of_shape(tiles[0].dtype, shape, tiles[0].config, splat=splat)


def broadcast(builder: ir.IRBuilder, tile: TileType, value: ir.Value, layout: Layout) -> list[ir.Value]:
    """The elements of a tile, broadcast to `layout`, by its registers. All threads of the block take part."""
    held = unpack(builder, value)
    if tile.splat:
        return held[:1] * layout.num_registers
    small = tile.layout
    while len(small.shape) < len(layout.shape):
        small = small.expand_dims(0)
    if small == layout:
        return held
    registers = layout.broadcast(small)
    if registers is None:
        target = layout.project(small.shape)
        held = in_layout(builder, tile.at(small), held, target)
        registers = layout.broadcast(target)
        assert registers is not None, "what a projection is for"
    return [held[r] for r in registers]


def elements(builder: ir.IRBuilder, ty: types.Type, value: ir.Value, like: TileType) -> list[ir.Value]:
    """The elements of an operand, by register, in the dtype and the layout of `like`; a scalar's is the same everywhere."""
    if isinstance(ty, ComputedType):
        return [convert(builder, e, ty.dtype, like.dtype) for e in ty.elements(builder, value, like.layout)]
    if isinstance(ty, TileType):
        return [convert(builder, e, ty.dtype, like.dtype) for e in broadcast(builder, ty, value, like.layout)]
    return [convert(builder, value, scalar_dtype(ty), like.dtype)] * like.layout.num_registers


def map_elements(
    operands: Sequence[types.Type], meet: TileType, result: DType, function: Callable[..., ir.Value], what: str | None = None
) -> tuple[TileType | ComputedType, Callable[..., ir.Value]]:
    """An operation that computes each element alone.

    Args:
        operands: the types of the operands.
        meet: what they are converted to.
        result: the dtype that `function` gives.
        function: of a builder and one element of each operand.
        what: its name, if it is cheap enough to be computed again in each layout that its result is needed in, where it can.
    """
    computed = None if what is None else combined(what, operands, meet, result, function)
    if computed is not None:
        return computed

    def emit(builder: ir.IRBuilder, *values: Any) -> ir.Value:
        columns = [elements(builder, ty, value, meet) for ty, value in zip(operands, values, strict=True)]
        return pack(builder, [function(builder, *row) for row in zip(*columns, strict=True)])

    return meet.like(result), emit
