"""Products by warpgroups (wgmma, sm_90a): four warps multiply tiles in shared memory, and go on before the result is there.

What such an instruction gives is a tile under way (`PendingType`). The next product may be added to it as it is; whatever else
needs it waits. `a` and `b` are described to the instruction by 64 bits each: where the tile begins, and how far its rows and
panels are apart, in units of 16 bytes (PTX ISA, "matrix descriptor").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model

from tilekit import dtypes
from tilekit.compiler.fragments import WARPS_OF_GROUP, warpgroup_accumulator
from tilekit.compiler.lower.emit import asm, pack, special_register, unpack
from tilekit.compiler.lower.relayout import in_layout
from tilekit.compiler.lower.staged import StagedType
from tilekit.compiler.types import DeferredType, TileType, current, i64, integer, register_type
from tilekit.dtypes import DType

__all__ = ["PendingType", "warpgroup_product"]

_ROWS, _MOST_COLUMNS = 64, 256  # of an instruction's result
_STEP = 32  # bytes of k that it takes
_SPAN = 128  # the width of panels that descriptors here are for, in bytes
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

    def settle(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        elements = unpack(builder, value)
        count = len(elements)
        letter = _letter(self.settled.dtype)
        letters = ",".join([f"={letter}"] * count + [str(n) for n in range(count)] + ["~{memory}"])
        kind = ir.LiteralStructType([elements[0].type] * count)
        made = asm(builder, "wgmma.wait_group.sync.aligned 0;", letters, kind, elements, convergent=True)
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


def _letter(dtype: DType) -> str:
    return "r" if dtype == dtypes.int32 else "f"


class _Operand:
    """A tile in shared memory as a descriptor tells of it.

    Attributes:
        turned: whether the dimension without gaps is not `k`.
        depth: how far a step along `k` is, in 16 bytes, by the number of the step.
        across: how far the next 64 rows (of `a`; columns of `b`) are, in 16 bytes.
        bits: of the descriptor, but for the address.
    """

    def __init__(self, tile: StagedType, kept: int, deep: int) -> None:
        """`kept` is the dimension of rows or columns, `deep` that of `k`."""
        itemsize, panel = tile.dtype.itemsize, tile.rows * _SPAN
        self.turned = tile.axes[kept] == len(tile.memory) - 1
        groups = 8 * _SPAN  # eight rows of a panel
        if self.turned:
            self.across = panel >> 4
            self.depth: Callable[[int], int] = lambda step: step * (_STEP // itemsize) * _SPAN >> 4
            leading = panel
        else:
            steps = _SPAN // _STEP
            self.across = _ROWS * _SPAN >> 4
            self.depth = lambda step: (step % steps * _STEP + step // steps * panel) >> 4
            leading = 16
        self.bits = 1 << 62 | (groups >> 4) << 32 | (leading >> 4) << 16

    def descriptor(self, builder: ir.IRBuilder, address: ir.Value, offset: ir.Value | None = None) -> ir.Value:
        """The descriptor of the tile at an address; `offset` is added to it, in 16 bytes."""
        low = builder.lshr(builder.and_(address, integer(32, 0x3FFFF)), integer(32, 4))
        if offset is not None:
            low = builder.add(low, offset)
        return builder.or_(builder.zext(low, i64), integer(64, self.bits))


def warpgroup_product(a: types.Type, b: types.Type, acc: types.Type) -> Any:
    """The type of `tk.mma(a, b, acc)` and how to emit it, if a warpgroup can multiply these; None if not."""
    warps = current().config.num_warps
    if current().capability != (9, 0) or warps % WARPS_OF_GROUP or not (isinstance(a, StagedType) and isinstance(b, StagedType)):
        return None
    if a.dtype != b.dtype or a.dtype not in _NAMES or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return None
    (rows, depth), columns = a.shape, b.shape[1]
    itemsize, groups = a.dtype.itemsize, warps // WARPS_OF_GROUP
    layout = warpgroup_accumulator((rows, columns), warps)
    if layout is None or a.span != _SPAN or b.span != _SPAN or depth * itemsize % _STEP:
        return None
    tile = acc.settled if isinstance(acc, DeferredType) else acc
    if not isinstance(tile, TileType) or tile.shape != (rows, columns) or tile.dtype != dtypes.float32:
        return None
    result = PendingType(TileType(dtypes.float32, layout, tile.config))
    down = min(groups, rows // _ROWS)  # groups that have rows of their own; others have columns of theirs
    width = columns // (groups // down)
    at_once = min(width, _MOST_COLUMNS)
    first, second = _Operand(a, 0, 1), _Operand(b, 1, 0)
    if second.turned and at_once * itemsize < _SPAN:
        return None
    name = f"m64n{at_once}k{_STEP // itemsize}.f32.{_NAMES[a.dtype]}.{_NAMES[a.dtype]}"

    def emit(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if acc == result:
            total = unpack(builder, z)
        elif isinstance(acc, DeferredType):
            total = in_layout(builder, tile, unpack(builder, acc.settle(builder, z)), layout)
        else:
            total = in_layout(builder, tile, unpack(builder, z), layout)
        group = builder.lshr(special_register(builder, "tid.x"), integer(32, 7))
        mine_a = builder.mul(builder.and_(group, integer(32, down - 1)), integer(32, rows // down // _ROWS * first.across))
        beside = builder.lshr(group, integer(32, down.bit_length() - 1))
        mine_b = builder.mul(beside, integer(32, _columns(second, b, width))) if groups > down else None
        return pack(
            builder, _multiplied(builder, first.descriptor(builder, x, mine_a), second.descriptor(builder, y, mine_b), total)
        )

    def _multiplied(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, total: list[ir.Value]) -> list[ir.Value]:
        count = len(total)
        per_instruction = _ROWS * at_once // (WARPS_OF_GROUP * 32)
        lines = ["{ .reg .b64 x, y; wgmma.fence.sync.aligned;"]
        high, wide = rows // down // _ROWS, width // at_once
        for step in range(depth * itemsize // _STEP):
            for down_by in range(high):
                for across_by in range(wide):
                    # Registers go along the columns first, then down the rows.
                    begin = (down_by * wide + across_by) * per_instruction
                    d = ", ".join(f"${n}" for n in range(begin, begin + per_instruction))
                    at_a = first.depth(step) + down_by * first.across
                    at_b = second.depth(step) + across_by * _columns(second, b, at_once)
                    lines.append(f"add.s64 x, ${2 * count}, {at_a}; add.s64 y, ${2 * count + 1}, {at_b};")
                    turned = f"{int(first.turned)}, {int(second.turned)}"
                    lines.append(f"wgmma.mma_async.sync.aligned.{name} {{{d}}}, x, y, 1, 1, 1, {turned};")
        lines.append("wgmma.commit_group.sync.aligned; }")
        letters = ",".join(["=f"] * count + [str(n) for n in range(count)] + ["l", "l", "~{memory}"])
        kind = ir.LiteralStructType([total[0].type] * count)
        made = asm(builder, " ".join(lines), letters, kind, [*total, x, y], convergent=True)
        return [builder.extract_value(made, n) for n in range(count)]

    return result, emit


def _columns(operand: _Operand, tile: StagedType, count: int) -> int:
    """How far `count` columns are, in 16 bytes."""
    if operand.turned:
        return count * tile.dtype.itemsize // _SPAN * operand.across
    return count * _SPAN >> 4
