"""Instruction selection for products of matrices: which family of instructions (wgmma, mma.sync, fma) computes one.

A family registers itself: a name, and a predicate that looks at a product and answers with a `Way`, which has the emitter, or
with the reason why it cannot compute that one. `choose` asks the families, the most preferred first, and takes the first that
can; `explain` shows which, and why those before it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.definition import materialized
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.types import TileType, describe
from tilekit.compiler.layouts.linear import Config, Layout, Vector
from tilekit.compiler.layouts.mma import accumulator, warpgroup_accumulator
from tilekit.dtypes import DType
from tilekit.lang import matmul as lang

__all__ = ["Emitter", "MatrixProduct", "Way", "beside_product", "choose", "left_out", "product_family", "selected"]

Emitter = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value | None], ir.Value]
"""Given the values of `a`, `b` and `acc` (None if there is none), emits the product, and gives its value."""


@dataclass(frozen=True)
class MatrixProduct:
    """`a @ b + acc` of matrices, or of batches of them, as a kernel asks for it.

    Attributes:
        what: how it is spelled there, for errors.
        a, b: the types of the operands: tiles, in registers or in shared memory. `b` is a tuple of them where products abreast
            are taken as one.
        acc: that of the accumulator; None if there is none.
        precision: of float32, see `tilekit.lang.mma`.
    """

    what: str
    a: types.Type
    b: types.Type
    acc: types.Type | None
    precision: str

    @cached_property
    def tiles(self) -> tuple[TileType, ...]:
        """`a`, `b` and `acc` in registers.

        A tile in shared memory takes registers for this, and the kernel then gets as many warps as it needs for them
        (`MoreWarps`): only families that read operands from registers may ask.
        """
        named = zip(("a", "b", "acc"), (self.a, self.b, self.acc), strict=True)
        return tuple(self._tile(name, materialized(ty)) for name, ty in named if ty is not None)

    def _tile(self, name: str, ty: types.Type) -> TileType:
        if not isinstance(ty, TileType):
            reject(self.what, f"{name} is a tile, not {describe(ty)}")
        return ty

    @cached_property
    def shape(self) -> Vector:
        """Of the result; operands that do not fit together are an error in the kernel."""
        return in_words(self.what, lang.product_shape, self.tiles[0].shape, self.tiles[1].shape)

    @property
    def depth(self) -> int:
        """The extent of `k`, which is summed over."""
        return self.tiles[0].shape[-1]

    @cached_property
    def dtype(self) -> DType:
        """What the products are added up in."""
        a, b = self.tiles[0].dtype, self.tiles[1].dtype
        if self.acc is None:
            return in_words(self.what, lang.accumulator_dtype, a, b)
        return in_words(self.what, lang.sum_dtype, a, b, self.tiles[2].dtype)


@dataclass(frozen=True)
class Way:
    """How a product is computed.

    Attributes:
        result: the type of the result: a tile, or one that is still under way.
        instruction: what is emitted, as PTX calls it.
        emit: the emitter.
        present: what of the product is computed, in words, where rows of operands are shorter than tiles; empty if all of it is.
    """

    result: types.Type
    instruction: str
    emit: Emitter
    present: str = ""


def left_out(*parts: tuple[int, int, str]) -> str:
    """`Way.present`, of parts of which so many are computed, of so many."""
    return ", ".join(f"{n} of {whole} {what}" for n, whole, what in parts if n < whole)


Predicate = Callable[[MatrixProduct], "Way | str"]


@dataclass(frozen=True)
class _Family:
    name: str
    preference: int
    predicate: Predicate


_families: list[_Family] = []


def product_family(name: str, preference: int) -> Callable[[Predicate], Predicate]:
    """Register the decorated predicate as a family of instructions.

    Args:
        name: for `explain`.
        preference: families with a higher one are asked first.
    """

    def register(predicate: Predicate) -> Predicate:
        _families.append(_Family(name, preference, predicate))
        _families.sort(key=lambda family: -family.preference)
        return predicate

    return register


def choose(product: MatrixProduct, *refused: tuple[str, str]) -> tuple[types.Type, Emitter]:
    """The type of a product, and how to emit it: by the most preferred family that can compute it. Others `refused` it before."""
    refusals = list(refused)
    for family in _families:
        way = family.predicate(product)
        if isinstance(way, Way):
            break
        refusals.append((family.name, way))
    assert isinstance(way, Way), "the last of them computes every product"
    return selected(product, way, refusals)


def selected(product: MatrixProduct, way: Way, refusals: Sequence[tuple[str, str]] = ()) -> tuple[types.Type, Emitter]:
    """The same of the family whose way it is, and why others do not compute it."""

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None) -> ir.Value:
        current().note("product", _shown(product.a), _shown(product.b), way.instruction, way.present, tuple(refusals))
        return way.emit(builder, x, y, z)

    return way.result, emit


_BY_WARPGROUPS = 2  # bytes of an operand's element; of float32 they multiply only what was asked to be rounded, if it lies right


def beside_product(shape: Vector, config: Config, dtype: DType) -> Layout:
    """The layout of a tile each of whose elements is wanted where a product of operands of `dtype` has its own: what the family
    that is preferred would give. If it is another's in the end, elements change threads where the two meet.
    """
    extents = tuple(n for n in shape if n > 1)
    groups = current().target.wgmma and dtype.itemsize <= _BY_WARPGROUPS
    layout = warpgroup_accumulator(extents, config.num_warps) if groups else None
    return (layout or accumulator(extents, config.num_warps, dtype.itemsize)).reshape(shape)


def _shown(ty: types.Type) -> str:
    if isinstance(ty, types.BaseTuple):
        first = ty.types[0]
        return f"{first.dtype.name} {first.shape[0]}x{sum(tile.shape[1] for tile in ty.types)}"
    tile = ty if hasattr(ty, "shape") else materialized(ty)  # of a tile in shared memory the type in registers is not asked for
    return f"{tile.dtype.name} {'x'.join(map(str, tile.shape))}"
