"""Products by warpgroups (wgmma, sm_90a): four warps multiply tiles in shared memory, and go on before the result is there.

What such an instruction gives is a tile under way (`PendingType`). The next product may be added to it as it is; whatever else
needs it waits. `a` and `b` are described to the instruction by 64 bits each: where the tile begins, and how far its rows and
panels are apart, in units of 16 bytes (PTX ISA, "matrix descriptor").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model

from tilekit import dtypes
from tilekit.compiler.fragments import WARPS_OF_GROUP, warpgroup_accumulator
from tilekit.compiler.layout import WARP, Layout
from tilekit.compiler.lower.emit import asm, pack, special_register, unpack
from tilekit.compiler.lower.relayout import in_layout
from tilekit.compiler.lower.staged import StagedType
from tilekit.compiler.lower.words import elements_of, packed, words_of
from tilekit.compiler.ops import settle, settled
from tilekit.compiler.types import DeferredType, TileType, current, i64, integer, lowered_line, register_type
from tilekit.dtypes import DType

__all__ = ["PendingType", "warpgroup_product"]

_ROWS, _MOST_COLUMNS = 64, 256  # of an instruction's result
_STEP = 32  # bytes of k that it takes
_SPAN = 128  # the width of panels that descriptors here are for, in bytes
_PAIR = words_of(dtypes.float16, 2)
_NAMES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}


class PendingType(DeferredType):
    """A product that is under way; the value is what will be the fragment.

    Attributes:
        settled: the tile that it becomes.
    """

    mangling_args = ("p", ())

    def __init__(self, settled: TileType) -> None:
        self.settled = settled
        super().__init__(f"Pending({settled})")

    def settle(self, builder: ir.IRBuilder, value: ir.Value, left: int = 0) -> ir.Value:
        """Wait for it; so many may be `left` under way that were asked for later."""
        state = current().pipelines
        if state is not None:
            state.products.append((lowered_line(), left))
        elements = unpack(builder, value)
        count = len(elements)
        letter = _letter(self.settled.dtype)
        letters = ",".join([f"={letter}"] * count + [str(n) for n in range(count)] + ["~{memory}"])
        kind = ir.LiteralStructType([elements[0].type] * count)
        made = asm(builder, f"wgmma.wait_group.sync.aligned {left};", letters, kind, elements, convergent=True)
        return pack(builder, [builder.extract_value(made, n) for n in range(count)])

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """A variable that other products are added to is under way all the time."""
        mine = self.settled
        if isinstance(other, TileType) and (mine.dtype, mine.shape) == (other.dtype, other.shape):
            return self
        return super().unify(typingctx, other)


@register_model(PendingType)
class _PendingModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: PendingType) -> None:
        super().__init__(manager, ty, ir.ArrayType(register_type(ty.settled.dtype), ty.settled.layout.num_registers))


@registry.lower_cast(TileType, PendingType)
def _pending(context: Any, builder: ir.IRBuilder, source: TileType, target: PendingType, value: ir.Value) -> ir.Value:
    return pack(builder, in_layout(builder, source, unpack(builder, value), target.settled.layout))


class OperandType(DeferredType):
    """A tile of 16-bit elements as threads pass it to a product, two elements in a word: a row lies as one of the result does.

    Attributes:
        settled: the tile.
    """

    mangling_args = ("o", ())

    def __init__(self, settled: TileType) -> None:
        self.settled = settled
        super().__init__(f"Operand({settled})")

    @classmethod
    def of(cls, ty: types.Type) -> OperandType | None:
        """That of a tile; None if there is none."""
        if isinstance(ty, OperandType):
            return ty
        if not isinstance(ty, TileType) or ty.dtype not in _NAMES or len(ty.shape) != 2 or current().pipelines is None:
            return None
        warps = ty.config.num_warps
        layout = warpgroup_accumulator(ty.shape, warps)
        whole = ty.shape[0] // _ROWS >= warps // WARPS_OF_GROUP  # each group has rows of its own
        return None if layout is None or not whole else cls(TileType(ty.dtype, layout, ty.config))

    def words(self, builder: ir.IRBuilder, ty: types.Type, value: ir.Value) -> list[ir.Value]:
        """A tile's, given as any type."""
        if ty == self:
            return unpack(builder, value)
        held = in_layout(builder, settled(ty), unpack(builder, settle(builder, ty, value)), self.settled.layout)
        pairs = [held[n : n + 2] for n in range(0, len(held), 2)]
        return [word for pair in pairs for word in packed(builder, pair, self.settled.dtype, _PAIR)]

    def settle(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        words = unpack(builder, value)
        return pack(builder, [e for word in words for e in elements_of(builder, [word], self.settled.dtype, 2)])

    def unify(self, typingctx: Any, other: types.Type) -> types.Type | None:
        """A variable that is passed to products is ready for it all the time."""
        return self if OperandType.of(other) == self else super().unify(typingctx, other)


@register_model(OperandType)
class _OperandModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: OperandType) -> None:
        super().__init__(manager, ty, ir.ArrayType(_PAIR.type, ty.settled.layout.num_registers // 2))


@registry.lower_cast(TileType, OperandType)
def _operand(context: Any, builder: ir.IRBuilder, source: TileType, target: OperandType, value: ir.Value) -> ir.Value:
    return pack(builder, target.words(builder, source, value))


def _letter(dtype: DType) -> str:
    return "r" if dtype == dtypes.int32 else "f"


class _Operand:
    """A tile in shared memory as a descriptor tells of it.

    Attributes:
        turned: whether the dimension without gaps is not `k`.
        depth: how far a step along `k` is, by the number of the step; and `along`, by their number, how far rows (of `a`; columns
            of `b`) are. Both in 16 bytes.
        bits: of the descriptor, but for the address.
    """

    def __init__(self, tile: StagedType, kept: int, deep: int) -> None:
        """`kept` is the dimension of rows or columns, `deep` that of `k`."""
        assert {kept, deep} == {0, 1}, "matrices"
        itemsize, panel = tile.dtype.itemsize, tile.rows * _SPAN
        self.turned = tile.axes[kept] == len(tile.memory) - 1
        self.depth: Callable[[int], int]
        self.along: Callable[[int], int]
        if self.turned:
            leading = panel
            self.depth = lambda step: step * (_STEP // itemsize) * _SPAN >> 4
            self.along = lambda rows: rows * itemsize // _SPAN * panel >> 4
        else:
            leading, steps = 16, _SPAN // _STEP  # in one panel; the first is not looked at
            self.depth = lambda step: (step % steps * _STEP + step // steps * panel) >> 4
            self.along = lambda rows: rows * _SPAN >> 4
        groups = 8 * _SPAN  # eight rows of a panel
        self.bits = 1 << 62 | (groups >> 4) << 32 | (leading >> 4) << 16

    def descriptor(self, builder: ir.IRBuilder, address: ir.Value, offset: ir.Value | None = None) -> ir.Value:
        """The descriptor of the tile at an address; `offset` is added to it, in 16 bytes."""
        low = builder.lshr(builder.and_(address, integer(32, 0x3FFFF)), integer(32, 4))
        if offset is not None:
            low = builder.add(low, offset)
        return builder.or_(builder.zext(low, i64), integer(64, self.bits))


@dataclass(frozen=True)
class _Shape:
    """How the warpgroups of a block share a product `(M, K) @ (K, N)` of 16-bit elements.

    Attributes:
        layout: of the result.
        down: how many groups have rows of their own; others have columns of theirs.
        high: instructions down a group's rows, and `wide` across its columns; `deep` along `k`.
        columns: that an instruction takes.
    """

    layout: Layout
    down: int
    high: int
    wide: int
    deep: int
    columns: int

    @classmethod
    def of(cls, rows: int, columns: int, depth: int, num_warps: int, itemsize: int) -> _Shape | None:
        """None if warpgroups cannot compute it."""
        layout = warpgroup_accumulator((rows, columns), num_warps)
        if layout is None or num_warps % WARPS_OF_GROUP or depth * itemsize % _STEP:
            return None
        groups = num_warps // WARPS_OF_GROUP
        down = min(groups, rows // _ROWS)
        width = columns // (groups // down)
        at_once = min(width, _MOST_COLUMNS)
        return cls(layout, down, rows // down // _ROWS, width // at_once, depth * itemsize // _STEP, at_once)


def warpgroup_product(a: types.Type, b: types.Type, acc: types.Type) -> Any:
    """The type of `tk.mma(a, b, acc)` and how to emit it, if warpgroups can multiply these; None if not.

    `b` must lie in shared memory; `a` may, or its elements are passed as threads hold them.
    """
    first = a if isinstance(a, StagedType) else settled(a)
    tile = settled(acc)
    if current().capability != (9, 0) or not isinstance(b, StagedType) or not isinstance(first, (StagedType, TileType)):
        return None
    if not isinstance(tile, TileType) or tile.dtype != dtypes.float32 or first.dtype != b.dtype or b.dtype not in _NAMES:
        return None
    if len(first.shape) != 2 or len(b.shape) != 2 or first.shape[1] != b.shape[0]:
        return None
    (rows, depth), columns = first.shape, b.shape[1]
    warps, itemsize = tile.config.num_warps, b.dtype.itemsize
    shape = _Shape.of(rows, columns, depth, warps, itemsize)
    if shape is None or tile.shape != (rows, columns) or b.span != _SPAN:
        return None
    second = _Operand(b, 1, 0)
    if second.turned and shape.columns * itemsize < _SPAN:
        return None
    result = PendingType(TileType(dtypes.float32, shape.layout, tile.config))
    if isinstance(first, StagedType):
        if first.span != _SPAN:
            return None
        operand, fragments = _Operand(first, 0, 1), None
    else:
        fragments = OperandType.of(a) or OperandType.of(first)
        if fragments is None:
            return None

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        state = current().pipelines
        if state is not None:
            state.products.append((lowered_line(), None))
        total = unpack(builder, z)
        if acc != result:
            total = in_layout(builder, tile, unpack(builder, settle(builder, acc, z)), shape.layout)
        group = builder.lshr(special_register(builder, "tid.x"), integer(32, 7))
        beside = None
        if shape.down < warps // WARPS_OF_GROUP:
            number = builder.lshr(group, integer(32, shape.down.bit_length() - 1))
            beside = builder.mul(number, integer(32, second.along(shape.columns * shape.wide)))
        of_b = second.descriptor(builder, y, beside)
        if fragments is None:
            down = builder.and_(group, integer(32, shape.down - 1))
            mine = builder.mul(down, integer(32, shape.high * operand.along(_ROWS)))
            return pack(
                builder,
                _from_memory(builder, shape, b.dtype, operand, second, (operand.descriptor(builder, x, mine), of_b), total),
            )
        words = fragments.words(builder, a, x)
        return pack(builder, _from_registers(builder, shape, b.dtype, words, second, of_b, total))

    return result, emit


def _from_memory(
    builder: ir.IRBuilder,
    shape: _Shape,
    dtype: DType,
    first: _Operand,
    second: _Operand,
    descriptors: tuple[ir.Value, ir.Value],
    total: list[ir.Value],
) -> list[ir.Value]:
    """Multiply two tiles in shared memory."""

    def operand(step: int, down: int) -> tuple[str, str]:
        return f"add.s64 x, ${2 * len(total)}, {first.depth(step) + down * first.along(_ROWS)};", "x"

    turned = f"{int(first.turned)}, {int(second.turned)}"
    return _asked(builder, shape, dtype, operand, second, turned, list(descriptors), total)


def _from_registers(
    builder: ir.IRBuilder,
    shape: _Shape,
    dtype: DType,
    words: list[ir.Value],
    second: _Operand,
    descriptor: ir.Value,
    total: list[ir.Value],
) -> list[ir.Value]:
    """Multiply a tile that threads hold, two elements in a word, with one in shared memory."""

    def operand(step: int, down: int) -> tuple[str, str]:
        begin = 2 * len(total) + 4 * (down * shape.deep + step)
        return "", "{" + ", ".join(f"${n}" for n in range(begin, begin + 4)) + "}"

    return _asked(builder, shape, dtype, operand, second, f"{int(second.turned)}", [*words, descriptor], total)


def _asked(
    builder: ir.IRBuilder,
    shape: _Shape,
    dtype: DType,
    operand: Callable[[int, int], tuple[str, str]],
    second: _Operand,
    turned: str,
    given: list[ir.Value],
    total: list[ir.Value],
) -> list[ir.Value]:
    """Ask for a product, and do not wait.

    Args:
        builder, shape, dtype, total: where, how it is shared out, what is multiplied, what it is added to.
        operand: of a step along `k` and one down the rows, what comes before the instruction, and how it names its first operand.
        second: the other; its descriptor is the last of `given`.
        turned: the instruction's flags for operands whose contiguous dimension is not `k`.
        given: values behind those of `total`.
    """
    count, per_instruction = len(total), _ROWS * shape.columns // (WARPS_OF_GROUP * WARP)
    name = f"m64n{shape.columns}k{_STEP // dtype.itemsize}.f32.{_NAMES[dtype]}.{_NAMES[dtype]}"
    lines = ["{ .reg .b64 x, y; wgmma.fence.sync.aligned;"]
    for step in range(shape.deep):
        for down in range(shape.high):
            before, first = operand(step, down)
            for across in range(shape.wide):
                begin = (down * shape.wide + across) * per_instruction  # registers go along the columns, then down the rows
                d = ", ".join(f"${n}" for n in range(begin, begin + per_instruction))
                at = second.depth(step) + across * second.along(shape.columns)
                lines.append(f"{before} add.s64 y, ${2 * count + len(given) - 1}, {at};")
                lines.append(f"wgmma.mma_async.sync.aligned.{name} {{{d}}}, {first}, y, 1, 1, 1, {turned};")
    lines.append("wgmma.commit_group.sync.aligned; }")
    letters = ["l" if value.type == i64 else "r" for value in given]
    constraints = ",".join(["=f"] * count + [str(n) for n in range(count)] + [*letters, "~{memory}"])
    kind = ir.LiteralStructType([total[0].type] * count)
    made = asm(builder, " ".join(lines), constraints, kind, [*total, *given], convergent=True)
    return [builder.extract_value(made, n) for n in range(count)]
