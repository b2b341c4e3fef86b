"""Types of tiles on their way to a product by warpgroups, or from one: operands in registers, and results that are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion

from tilekit import dtypes
from tilekit.compiler.codegen.compilation import Waited, current, own_line
from tilekit.compiler.codegen.convert_layout import in_layout
from tilekit.compiler.codegen.definition import materialize, materialized
from tilekit.compiler.codegen.emit import asm, pack, unpack
from tilekit.compiler.codegen.types import DeferredType, TileType, register_type
from tilekit.compiler.codegen.words import elements_of, packed, words_of
from tilekit.compiler.layouts.mma import WARPS_OF_GROUP, warpgroup_accumulator
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.dtypes import DType

__all__ = ["ROWS", "WAIT", "AbreastType", "OperandType", "PendingType", "joined", "register_letter", "split"]

ROWS = 64
"""Of an instruction's result."""
WAIT = "wgmma.wait_group.sync.aligned 0;"
"""Waits for all products."""
_PAIR = words_of(dtypes.float16, 2)


def register_letter(dtype: DType) -> str:
    """LLVM's constraint for a register of a result."""
    return "r" if dtype == dtypes.int32 else "f"


class PendingType(DeferredType):
    """A product that is under way; the value is what will be the fragment.

    Attributes:
        materialized: the tile that it becomes.
        columns: how many of its columns are under way; what is behind them nobody adds to.
    """

    mangling_args = ("p", ())

    def __init__(self, materialized: TileType, columns: int) -> None:
        self.materialized, self.columns = materialized, columns
        super().__init__(f"Pending({materialized}, {columns})")

    @property
    def under_way(self) -> list[int]:
        """The registers that are."""
        return [r for r, at in enumerate(self.materialized.layout.least(-1)) if at < self.columns]

    def materialize(self, builder: ir.IRBuilder, value: ir.Value, left: int = 0) -> ir.Value:
        """Wait for it; so many may be `left` under way that were asked for later."""
        state = current().pipelines
        if state is not None:
            state.products.append(Waited(own_line(), left))
            asked, state.waiting = state.waiting, None
            if asked is not None and left == 0 and asked.parent is builder.block:  # nothing comes between
                asked.callee.asm = asked.callee.asm.replace(WAIT, "")
        held = unpack(builder, value)
        elements = [held[r] for r in self.under_way]
        count = len(elements)
        letter = register_letter(self.materialized.dtype)
        letters = ",".join([f"={letter}"] * count + [str(n) for n in range(count)] + ["~{memory}"])
        kind = ir.LiteralStructType([elements[0].type] * count)
        waited = asm(builder, f"wgmma.wait_group.sync.aligned {left};", letters, kind, elements, convergent=True)
        for n, r in enumerate(self.under_way):
            held[r] = builder.extract_value(waited, n)
        return pack(builder, held)

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """A variable that other products are added to is under way all the time."""
        mine = self.materialized
        if isinstance(other, PendingType) and mine == other.materialized:
            return PendingType(mine, max(self.columns, other.columns))
        if isinstance(other, TileType) and (mine.dtype, mine.shape) == (other.dtype, other.shape):
            return self
        return super().unify(typingctx, other)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """To one of which as much is under way, or more; or to what threads hold."""
        if isinstance(other, PendingType):
            return Conversion.safe if self.unify(typingctx, other) == other else None
        return super().can_convert_to(typingctx, other)


@register_model(PendingType)
class _PendingModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: PendingType) -> None:
        super().__init__(manager, ty, ir.ArrayType(register_type(ty.materialized.dtype), ty.materialized.layout.num_registers))


@registry.lower_cast(TileType, PendingType)
def _pending(context: Any, builder: ir.IRBuilder, source: TileType, target: PendingType, value: ir.Value) -> ir.Value:
    return pack(builder, in_layout(builder, source, unpack(builder, value), target.materialized.layout))


@registry.lower_cast(PendingType, PendingType)
def _more(context: Any, builder: ir.IRBuilder, source: PendingType, target: PendingType, value: ir.Value) -> ir.Value:
    assert source.columns <= target.columns, "PendingType.can_convert_to"
    return source.materialize(builder, value)  # products with more columns may be added to it


class AbreastType(types.Type):
    """Tiles that products are added to together (see `passes.abreast`); the value has that of each.

    Attributes:
        parts: their types: tiles, or products that are under way.
    """

    mangling_args = ("b", ())

    def __init__(self, parts: tuple[types.Type, ...]) -> None:
        self.parts = parts
        super().__init__(f"Abreast({parts})")

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        if not isinstance(other, AbreastType):
            return None
        parts = tuple(typingctx.unify_pairs(*pair) for pair in zip(self.parts, other.parts, strict=True))
        return None if None in parts else AbreastType(parts)


@register_model(AbreastType)
class _AbreastModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: AbreastType) -> None:
        super().__init__(manager, ty, ir.LiteralStructType([manager.lookup(part).get_value_type() for part in ty.parts]))


@registry.lower_cast(AbreastType, AbreastType)
def _each(context: Any, builder: ir.IRBuilder, source: AbreastType, target: AbreastType, value: ir.Value) -> ir.Value:
    parts = zip(split(builder, value), source.parts, target.parts, strict=True)
    return joined(builder, [context.cast(builder, *part) for part in parts])


def split(builder: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    """Those of the parts of an `AbreastType`."""
    return [builder.extract_value(value, at) for at in range(len(value.type.elements))]


def joined(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """The value of an `AbreastType` of these."""
    aggregate: Any = ir.Constant(ir.LiteralStructType([part.type for part in parts]), ir.Undefined)
    for at, part in enumerate(parts):
        aggregate = builder.insert_value(aggregate, part, at)
    return aggregate


class OperandType(DeferredType):
    """A tile of 16-bit elements as threads pass it to a product, two elements in a word: a row lies as one of the result does.

    Attributes:
        materialized: the tile.
        renewed: whether the loop that it is carried round computes it anew: then its registers are written where turns meet.
        depth: how many of its columns may be there: those behind them are zeros.
    """

    mangling_args = ("o", ())

    def __init__(self, materialized: TileType, *, renewed: bool = False, depth: int) -> None:
        self.materialized, self.renewed, self.depth = materialized, renewed, depth
        super().__init__(f"Operand({materialized}, {renewed}, {depth})")

    @classmethod
    def of(cls, ty: types.Type, *, renewed: bool = False) -> OperandType | None:
        """That of a tile; None if there is none."""
        if not isinstance(ty, OperandType):
            if not isinstance(ty, TileType) or len(ty.shape) != 2:
                return None
            if current().pipelines is None or not current().target.wgmma:
                return None
        operand_type = cls.of_tile(ty, renewed=renewed)
        return None if isinstance(operand_type, str) else operand_type

    @classmethod
    def of_tile(cls, ty: TileType | OperandType, *, renewed: bool = False) -> OperandType | str:
        """That of a matrix, where products are by warpgroups; or why there is none."""
        if isinstance(ty, OperandType):
            return cls(ty.materialized, renewed=ty.renewed or renewed, depth=ty.depth)
        if ty.dtype not in (dtypes.float16, dtypes.bfloat16):
            return f"a is in registers, where it takes float16 and bfloat16, not {ty.dtype.name}"
        warps = ty.config.num_warps
        layout = warpgroup_accumulator(ty.shape, warps)
        if layout is None or ty.shape[0] // ROWS < warps // WARPS_OF_GROUP:
            needed = f"{ROWS} rows of its own for each group of {WARPS_OF_GROUP} warps"
            return f"a is in registers, where it takes {needed}: it has {ty.shape[0]} rows and {warps} warps"
        return cls(TileType(ty.dtype, layout, ty.config), renewed=renewed, depth=ty.shape[1])

    def short(self, depth: int) -> OperandType:
        """The same of which so many columns may be there."""
        return OperandType(self.materialized, renewed=self.renewed, depth=depth)

    @property
    def count(self) -> int:
        """How many words a thread has."""
        return self.materialized.layout.num_registers // 2

    def words(self, builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
        """A tile's, given as any type."""
        if isinstance(ty, OperandType):
            return unpack(builder, value)
        if isinstance(ty, StagedType):
            held = ty.read(builder, value, self.materialized.layout, matrices=True)
        else:
            held = in_layout(
                builder, materialized(ty), unpack(builder, materialize(builder, ty, value)), self.materialized.layout
            )
        pairs = [held[n : n + 2] for n in range(0, len(held), 2)]
        return [word for pair in pairs for word in packed(builder, pair, self.materialized.dtype, _PAIR)]

    def materialize(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        words = unpack(builder, value)
        return pack(builder, [e for word in words for e in elements_of(builder, [word], self.materialized.dtype, 2)])

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """A variable that is passed to products is ready for it all the time."""
        ready = OperandType.of(other, renewed=self.renewed)
        if ready is None or ready.short(self.depth) != self:
            return super().unify(typingctx, other)
        return self.short(max(self.depth, ready.depth))


@register_model(OperandType)
class _OperandModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: OperandType) -> None:
        super().__init__(manager, ty, ir.ArrayType(_PAIR.type, ty.count))


@registry.lower_cast(OperandType, OperandType)
def _deeper(context: Any, builder: ir.IRBuilder, source: OperandType, target: OperandType, value: ir.Value) -> ir.Value:
    assert source.count == target.count, "OperandType.unify"
    return value


@registry.lower_cast(TileType, OperandType)
def _operand(context: Any, builder: ir.IRBuilder, source: TileType, target: OperandType, value: ir.Value) -> ir.Value:
    return pack(builder, target.words(builder, source, value))
