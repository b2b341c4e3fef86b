"""numba types of tensor parameters and tiles, and how both look to LLVM (data models).

A tile's value is the calling thread's fragment: one LLVM array with an element for each register of its layout. LLVM takes such
arrays apart into registers; they never reach memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.types.ext_types import bfloat16

from tilekit import dtypes
from tilekit.compiler.codegen.compilation import compiles, current
from tilekit.compiler.facts import ScalarFacts, TensorFacts
from tilekit.compiler.layouts.linear import Config, Layout
from tilekit.compiler.layouts.mma import is_accumulator
from tilekit.dtypes import DType

__all__ = [
    "DTypeType", "DeferredType", "TensorType", "TileType", "argument_type", "constant", "describe", "dtype_of",
    "extent_dtype", "extent_type", "integer", "prevailing", "register_type", "scalar_dtype", "scalar_kind", "scalar_type",
]  # fmt: skip

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))

# What an element is in a register. bfloat16 and 8-bit floats travel as their bits: LLVM's dialect below sm_100 lacks such types.
_REGISTER: dict[DType, ir.Type] = {
    dtypes.bool_: i1,
    dtypes.int8: i8,
    dtypes.uint8: i8,
    dtypes.int16: i16,
    dtypes.uint16: i16,
    dtypes.int32: i32,
    dtypes.uint32: i32,
    dtypes.int64: i64,
    dtypes.uint64: i64,
    dtypes.float16: ir.HalfType(),
    dtypes.bfloat16: i16,
    dtypes.float8_e4m3fn: i8,
    dtypes.float8_e5m2: i8,
    dtypes.float32: ir.FloatType(),
    dtypes.float64: ir.DoubleType(),
}
_NARROW = (dtypes.float16, dtypes.bfloat16, *dtypes.EIGHT_BIT_FLOATS)
_SCALAR: dict[DType, types.Type] = {
    d: getattr(types, "boolean" if d == dtypes.bool_ else d.name) for d in dtypes.ALL if d not in _NARROW
}
_FROM_SCALAR: dict[types.Type, DType] = {t: d for d, t in _SCALAR.items()}
# A narrower float scalar is passed as float32, which holds it exactly: numba's own arithmetic on them goes through local memory.
_SCALAR |= dict.fromkeys(_NARROW, types.float32)
_NAMED: dict[types.Type, DType] = _FROM_SCALAR | {types.float16: dtypes.float16, bfloat16: dtypes.bfloat16}


def register_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element of `dtype` in a register."""
    return _REGISTER[dtype]


def integer(bits: int, value: int) -> ir.Constant:
    """An LLVM integer constant."""
    return ir.Constant(ir.IntType(bits), value)


def constant(dtype: DType, value: Any) -> ir.Constant:
    """An LLVM constant: `value`, as NumPy holds it in `dtype`."""
    exact = np.asarray(value).astype(dtype)
    if dtype == dtypes.bfloat16 or dtype in dtypes.EIGHT_BIT_FLOATS:
        return ir.Constant(register_type(dtype), int(exact.view(f"u{dtype.itemsize}")))
    if dtypes.is_float(dtype):
        return ir.Constant(register_type(dtype), float(exact))
    return ir.Constant(register_type(dtype), int(exact))


class TensorType(types.Type):
    """A tensor parameter: everything the compiler may assume about it is in the type, and so in the compiled code.

    Attributes:
        parameter: the parameter's name, for errors.
        facts, config: as given.
        dtype: the element type.
        origins: the dimensions along which it begins behind the parameter's beginning: those of `x.slice(axis, start, stop)`.
            None for any other part of a parameter.
    """

    mangling_args = ("T", ())  # symbol names spell out the types; kilobytes of them without this

    def __init__(self, parameter: str, facts: TensorFacts, config: Config, *, origins: tuple[int, ...] | None = ()) -> None:
        self.parameter, self.facts, self.config, self.origins = parameter, facts, config, origins
        self.dtype = np.dtype(dtypes.as_dtype(facts.dtype))
        super().__init__(f"Tensor({parameter}, {facts}, {config}{'' if origins == () else f', from {origins}'})")

    def unify(self, typingctx: Any, other: types.Type) -> TensorType | None:
        """Of two parts of one parameter, of which the same is known but for alignment: what is known of both.

        numba types the body of a loop with the constants of its first turn before it sees that a variable is none, so that what
        is known of `x.slice(0, n)` is first too much, then less.
        """
        if not isinstance(other, TensorType) or self._skeleton() != other._skeleton():
            return None
        one, two = self.facts, other.facts
        extents = tuple(map(math.gcd, one.extents, two.extents))
        short = one.short if one.short == two.short else 0
        facts = one._replace(align=min(one.align, two.align), extents=extents, short=short)
        return TensorType(self.parameter, facts, self.config, origins=self.origins)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """To the same part of which less is known."""
        return Conversion.safe if isinstance(other, TensorType) and self.unify(typingctx, other) == other else None

    def _skeleton(self) -> Any:
        return self.parameter, self.facts._replace(align=1, extents=(), short=0), self.config, self.origins


class TileType(types.Type):
    """A tile.

    Attributes:
        dtype: the element type.
        layout: which thread holds what.
        config: shared by all tiles of the kernel.
        splat: all elements are equal, so that any other layout holds them as well.
        zero: they are known to be zeros; a `splat`, too.
    """

    mangling_args = ("t", ())

    def __init__(self, dtype: DType, layout: Layout, config: Config, *, splat: bool = False, zero: bool = False) -> None:
        self.dtype, self.layout, self.config, self.splat, self.zero = dtype, layout, config, splat, zero
        super().__init__(f"Tile({dtype.name}, {layout}, {config}{', splat' * splat}{', zero' * zero})")
        if compiles():
            current().hold(self)

    @classmethod
    def of_shape(
        cls, dtype: DType, shape: tuple[int, ...], config: Config, *, splat: bool = False, zero: bool = False
    ) -> TileType:
        """The type of a tile of `shape` that nothing else has decided the layout of."""
        return cls(dtype, Layout.blocked(shape, config), config, splat=splat, zero=zero)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tile's extents."""
        return self.layout.shape

    def like(self, dtype: DType) -> TileType:
        """The same tile with another element type."""
        return TileType(dtype, self.layout, self.config, splat=self.splat)

    def at(self, layout: Layout) -> TileType:
        """The same elements in another layout, of this shape or another."""
        return TileType(self.dtype, layout, self.config, splat=self.splat)

    def unify(self, typingctx: Any, other: types.Type) -> TileType | None:
        """The type of a variable that is now one tile, now the other: a tile carried round a loop, or set in two branches."""
        if isinstance(other, TileType) and (self.dtype, self.shape) == (other.dtype, other.shape):
            return prevailing([self, other])
        return None

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """Between layouts, always; `codegen.convert_layout` does it."""
        same = isinstance(other, TileType) and (self.dtype, self.shape) == (other.dtype, other.shape)
        return Conversion.safe if same else None


def prevailing(tiles: Sequence[TileType]) -> TileType:
    """Of tiles of one shape, the one whose layout the others are converted to: no splat; that of products of matrices, if any,
    so that one which is added to round a loop stays where it is; else the layout that loads have."""
    fixed = [tile for tile in tiles if not tile.splat]
    products = (t for t in fixed if is_accumulator(t.layout))
    usual = (tile for tile in fixed if tile.layout == Layout.blocked(tile.shape, tile.config))
    return next(products, next(usual, (fixed or sorted(tiles, key=lambda tile: tile.zero))[0]))


class DeferredType(types.Type):
    """A tile that is no thread's yet: it lies in shared memory, or is still being computed, or can be at any time.

    Operations get what threads hold in the end, unless they say that they take it as it is (`definition.lowers`).

    Attributes:
        materialized: the tile that threads hold then.
        anywhere: whether threads can compute it in any layout, without each other.
    """

    materialized: TileType
    anywhere = False

    def materialize(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """Wait for it, or load it: the threads' fragments."""
        raise NotImplementedError

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """With any other tile, what threads hold."""
        return self.materialized.unify(typingctx, other.materialized if isinstance(other, DeferredType) else other)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """To what threads hold, in any layout."""
        return self.materialized.can_convert_to(typingctx, other)


class DTypeType(types.Opaque):
    """A dtype in a kernel, such as `y.dtype`: it exists while compiling only."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        super().__init__(f"dtype({dtype.name})")


def extent_dtype(facts: TensorFacts) -> DType:
    """The integer type of a tensor's extents, and of arithmetic on its element indices."""
    return dtypes.int64 if facts.wide else dtypes.int32


def extent_type(tensor: TensorType) -> types.Type:
    """The type of a tensor's extents, and of the number of its tiles along a dimension."""
    return _SCALAR[extent_dtype(tensor.facts)]


@register_model(TensorType)
class _TensorModel(core_models.StructModel):
    """Address, extents, strides but the one that is 1: the flat kernel parameters, in this order. Of a slice also its origin."""

    def __init__(self, manager: Any, tensor: TensorType) -> None:
        extent = _SCALAR[extent_dtype(tensor.facts)]
        strides = [d for d in range(tensor.facts.rank) if d != tensor.facts.unit]
        members = [("address", types.uint64)]
        members += [(f"extent{d}", extent) for d in range(tensor.facts.rank)]
        members += [(f"stride{d}", types.int64) for d in strides]
        members += [(f"origin{d}", extent) for d in tensor.origins or ()]
        super().__init__(manager, tensor, members)


@register_model(TileType)
class _TileModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, tile: TileType) -> None:
        super().__init__(manager, tile, ir.ArrayType(register_type(tile.dtype), tile.layout.num_registers))


register_model(DTypeType)(core_models.OpaqueModel)


def argument_type(parameter: str, facts: TensorFacts | ScalarFacts, config: Config) -> types.Type:
    """The numba type of a kernel's parameter."""
    if isinstance(facts, TensorFacts):
        return TensorType(parameter, facts, config)
    return _SCALAR[dtypes.as_dtype(facts.dtype)]


def scalar_type(dtype: DType) -> types.Type:
    """The type of a scalar of `dtype` in a kernel."""
    return _SCALAR[dtype]


def scalar_dtype(ty: types.Type) -> DType | None:
    """The dtype of a scalar in a kernel, or None if `ty` is no scalar."""
    return _FROM_SCALAR.get(types.unliteral(ty))


def scalar_kind(ty: types.Type) -> type | None:
    """The Python type (bool, int, float) that a scalar of type `ty` counts as, or None if it is none."""
    dtype = scalar_dtype(ty)
    if dtype is None:
        return None
    return bool if dtype == dtypes.bool_ else float if dtypes.is_float(dtype) else int


def dtype_of(ty: types.Type) -> DType | None:
    """The dtype that a value of type `ty` names (`tk.float32`, `y.dtype`, `np.int8`, `"float16"`), or None."""
    match ty:
        case DTypeType():
            return ty.dtype
        case types.DType():
            return _NAMED.get(ty.dtype)
        case types.NumberClass():
            return _NAMED.get(ty.instance_type)
        case types.StringLiteral(literal_value=spec) | types.Omitted(value=spec):
            try:
                return dtypes.as_dtype(spec)
            except TypeError:
                return None
    return None


def describe(ty: types.Type) -> str:
    """What a value is, in the words of the tile language: numba's names mean nothing to the reader of an error."""
    match ty:
        case DeferredType():
            return describe(ty.materialized)
        case TileType():
            return f"a {ty.dtype.name} tile of shape {ty.shape}"
        case TensorType():
            return f"the tensor {ty.parameter}"
        case types.StringLiteral():
            return f"the string {ty.literal_value!r}"
        case types.UnicodeType():
            return "a string"
        case types.NoneType():
            return "None"
        case types.BaseTuple():
            return "a tuple"
        case types.List() | types.LiteralList():
            return "a list"
        case types.Array():
            return "an array"
    kind = scalar_kind(ty)
    if kind is not None:
        return f"a scalar ({kind.__name__})"
    return "a dtype" if dtype_of(ty) is not None else "something else"
