"""How operands of element-wise operations meet: one shape, one dtype. The rules, and their words, are `lang.tile.operands`'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.diagnose import refuse, reject
from tilekit.compiler.lower.convert import convert
from tilekit.compiler.lower.emit import pack, unpack
from tilekit.compiler.ops import ABSENT, known
from tilekit.compiler.types import TileType, describe, scalar_dtype, scalar_kind
from tilekit.dtypes import DType

__all__ = ["common", "elements", "map_elements", "meet"]


def common(what: str, *operands: types.Type) -> TileType:
    """The type of tile that the operands make: their shape, and the dtype in which they meet, and can be calculated with."""
    made = meet(what, *operands)
    problem = dtypes.no_arithmetic(made.dtype)
    if problem:
        reject(what, problem)
    return made


def meet(what: str, *operands: types.Type) -> TileType:
    """As `common`, for what calculates nothing."""
    tiles = [t for t in operands if isinstance(t, TileType)]
    for operand in operands:
        if not isinstance(operand, TileType) and scalar_kind(operand) is None:
            reject(what, f"operands are tiles and scalars, not {describe(operand)}")
    if not tiles:
        reject(what, "one operand at least must be a tile")
    dtype = tiles[0].dtype
    for tile in tiles[1:]:
        if tile.shape != tiles[0].shape:
            reject(what, f"tiles of shapes {tiles[0].shape} and {tile.shape} do not match")
        if tile.layout != tiles[0].layout:
            # A numba device function without tiles among its arguments is compiled once, for the first kernel that calls it.
            reject(what, "one of the tiles comes from a device function that was compiled for other warps; pass it a tile")
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
    return tiles[0].like(dtype)


def elements(builder: ir.IRBuilder, ty: types.Type, value: ir.Value, like: TileType) -> list[ir.Value]:
    """The elements of an operand, by register, in the dtype of `like`; a scalar's is the same everywhere."""
    if isinstance(ty, TileType):
        return [convert(builder, e, ty.dtype, like.dtype) for e in unpack(builder, value)]
    return [convert(builder, value, scalar_dtype(ty), like.dtype)] * like.layout.num_registers


def map_elements(
    operands: Sequence[types.Type], meet: TileType, result: DType, function: Callable[..., ir.Value]
) -> tuple[TileType, Callable[..., ir.Value]]:
    """An operation that computes each element alone.

    Args:
        operands: the types of the operands.
        meet: what they are converted to.
        result: the dtype that `function` gives.
        function: of a builder and one element of each operand.
    """

    def emit(builder: ir.IRBuilder, *values: Any) -> ir.Value:
        columns = [elements(builder, ty, value, meet) for ty, value in zip(operands, values, strict=True)]
        return pack(builder, [function(builder, *row) for row in zip(*columns, strict=True)])

    return meet.like(result), emit
