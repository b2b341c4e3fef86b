"""Rematerialized tiles: ranges, masks and indices that follow from the places of their elements, computed where they are used.

No thread holds one. It is computed where it is needed, in the layout of what it meets there, and so a mask or an index never
moves between threads. What an operation makes of such tiles alone is one again; all others get what threads would hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model

from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.emit import pack, special_register, thread_coordinates
from tilekit.compiler.codegen.types import DeferredType, TileType, integer, register_type, scalar_dtype
from tilekit.compiler.layouts.linear import Config, Layout, Vector
from tilekit.dtypes import DType

__all__ = ["ComputedType", "combined", "scalars_of"]

_TERM, _MOST_TERMS = " in ", 12  # each operation of a formula has one; a larger formula is computed once, and held

Index = Sequence[ir.Value]  # an i32 for each dimension
Formula = Callable[[ir.IRBuilder, Sequence[ir.Value], Index], ir.Value]


class ComputedType(DeferredType):
    """A tile that can be computed in any layout; the value is the scalars in its formula.

    Attributes:
        combines: whether its formula can be a part of another's.
        text: the formula in words, with the dtype and the shape: types with the same are the same to numba.
        dtype: the element type.
        shape: its extents.
        config: the kernel's.
        formula: of the builder, the scalars, and the index of an element, the element.
        scalars: their dtypes.
    """

    mangling_args = ("c", ())
    anywhere = True
    combines = True

    def __init__(
        self, text: str, dtype: DType, shape: Vector, config: Config, scalars: tuple[DType, ...], formula: Formula
    ) -> None:
        self.dtype, self.shape, self.config, self.scalars, self.formula = dtype, shape, config, scalars, formula
        self.text = f"{text}: {dtype.name} {shape}"
        super().__init__(f"Computed({self.text}, {[s.name for s in scalars]}, {config})")

    @cached_property
    def materialized(self) -> TileType:  # type: ignore[override]
        """What threads hold of it where nothing else decides."""
        return TileType.of_shape(self.dtype, self.shape, self.config)

    def materialize(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return pack(builder, self.elements(builder, value, self.materialized.layout))

    def elements(self, builder: ir.IRBuilder, value: ir.Value, layout: Layout) -> list[ir.Value]:
        """The elements by register of a layout of a shape that this one's broadcasts to."""
        scalars = [builder.extract_value(value, n) for n in range(len(self.scalars))]
        begin = thread_coordinates(builder, special_register(builder, "tid.x"), layout.thread)
        before = len(layout.shape) - len(self.shape)

        def at(register: Vector) -> ir.Value:
            index = [
                builder.add(begin[d], integer(32, register[d])) if self.shape[d - before] > 1 else integer(32, 0)
                for d in range(before, len(layout.shape))
            ]
            return self.formula(builder, scalars, index)

        return [at(register) for register in layout.coordinates()]

    def renamed(self, dims: Vector) -> ComputedType:
        """The tile whose dimensions are these of this one, where -1 is a new one of extent 1."""
        formula, rank = self.formula, len(self.shape)

        def moved(builder: ir.IRBuilder, scalars: Sequence[ir.Value], index: Index) -> ir.Value:
            back = [integer(32, 0)] * rank
            for coordinate, dim in zip(index, dims, strict=True):
                if dim >= 0:
                    back[dim] = coordinate
            return formula(builder, scalars, back)

        shape = tuple(self.shape[dim] if dim >= 0 else 1 for dim in dims)
        return ComputedType(f"({self.text})[{dims}]", self.dtype, shape, self.config, self.scalars, moved)


@register_model(ComputedType)
class _ComputedModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: ComputedType) -> None:
        super().__init__(manager, ty, ir.LiteralStructType([register_type(dtype) for dtype in ty.scalars]))


@registry.lower_cast(ComputedType, TileType)
def _held(context: Any, builder: ir.IRBuilder, source: ComputedType, target: TileType, value: ir.Value) -> ir.Value:
    return pack(builder, source.elements(builder, value, target.layout))


def combined(
    what: str, operands: Sequence[types.Type], meet: TileType, result: DType, function: Callable[..., ir.Value]
) -> tuple[ComputedType, Callable[..., ir.Value]] | None:
    """What an operation on each element alone makes of tiles that can be computed anywhere, and of numbers (scalars, and tiles of
    one element), and how to emit it.

    Args:
        what: the operation's name.
        operands: the types of the operands.
        meet: their shape, and the dtype that they are converted to.
        result: the dtype that `function` gives.
        function: of a builder and one element of each operand.

    Returns:
        None if an operand is any other tile, or one whose elements are read together, or the formula would be long.
    """
    computed_ones = [ty for ty in operands if isinstance(ty, ComputedType)]
    if not computed_ones or not all(ty.combines for ty in computed_ones):
        return None
    if any(isinstance(ty, TileType) and not ty.splat and math.prod(ty.shape) > 1 for ty in operands):
        return None
    parts = [_part(ty, meet) for ty in operands]
    scalars = tuple(dtype for part in parts for dtype in part.scalars)
    text = f"{what}{_TERM}{meet.dtype.name}({', '.join(part.text for part in parts)})"
    if text.count(_TERM) > _MOST_TERMS:
        return None

    def formula(builder: ir.IRBuilder, scalars: Sequence[ir.Value], index: Index) -> ir.Value:
        values, first = [], 0
        for part in parts:
            inner = index[len(index) - len(part.shape) :]
            at = [integer(32, 0) if extent == 1 else coordinate for extent, coordinate in zip(part.shape, inner, strict=True)]
            value = part.formula(builder, scalars[first : first + len(part.scalars)], at)
            values.append(convert(builder, value, part.dtype, meet.dtype))
            first += len(part.scalars)
        return function(builder, *values)

    computed = ComputedType(text, result, meet.shape, meet.config, scalars, formula)

    def emit(builder: ir.IRBuilder, *values: ir.Value) -> ir.Value:
        held: list[ir.Value] = []
        for ty, value in zip(operands, values, strict=True):
            if isinstance(ty, ComputedType):
                held += [builder.extract_value(value, n) for n in range(len(ty.scalars))]
            elif isinstance(ty, TileType):
                held.append(builder.extract_value(value, 0))
            else:
                dtype = scalar_dtype(ty)
                assert dtype is not None, "operands are tiles and scalars"
                held.append(convert(builder, value, dtype, meet.dtype))
        return scalars_of(builder, computed, held)

    return computed, emit


def _part(ty: types.Type, meet: TileType) -> ComputedType:
    if isinstance(ty, ComputedType):
        return ty
    dtype = ty.dtype if isinstance(ty, TileType) else meet.dtype
    return ComputedType("s", dtype, (), meet.config, (dtype,), lambda builder, scalars, index: scalars[0])


def scalars_of(builder: ir.IRBuilder, ty: ComputedType, held: Sequence[ir.Value]) -> ir.Value:
    """The value of such a tile, given the scalars of its formula."""
    value: Any = ir.Constant(ir.LiteralStructType([register_type(dtype) for dtype in ty.scalars]), ir.Undefined)
    for n, scalar in enumerate(held):
        value = builder.insert_value(value, scalar, n)
    return value
