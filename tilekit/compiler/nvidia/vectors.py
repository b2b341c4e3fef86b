"""Vectors that stay in memory: each thread loads what it needs of them, without a layout, where they meet another tile.

So they need no layout, no element moves between threads, and none waits for others. A stage of a ring may hold such a vector.
Others are loads of a few neighbouring elements, no more than the block has threads, from a tensor that the kernel cannot write.
Only kernels have them in which products may be under way around such loads: what a barrier in each turn costs is dearest there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from tilekit import dtypes
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.access import AccessPattern, Window
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.computed import ComputedType, scalars_of
from tilekit.compiler.codegen.emit import asm, special_register, thread_coordinates
from tilekit.compiler.codegen.transfer import Padding
from tilekit.compiler.codegen.types import TensorType, i32, i64, integer
from tilekit.compiler.codegen.windows import Cut
from tilekit.compiler.codegen.words import braced, predicated
from tilekit.compiler.layouts.linear import ACCESS_BYTES, WARP, Config, Layout, Vector
from tilekit.compiler.nvidia.multibuffer import the_pipelines
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.dtypes import DType

__all__ = ["StagedVectorType", "vector_load"]

Emit = Callable[[ir.IRBuilder, ir.Value, list[ir.Value]], ir.Value]


class _InMemory(ComputedType):
    """A vector that lies in memory."""

    combines = False

    def _alone(self, *_: object) -> ir.Value:
        raise AssertionError("elements are read together")

    def _places(self, builder: ir.IRBuilder, layout: Layout) -> tuple[ir.Value, list[int]]:
        """The first place that a thread needs, and how far behind it that of each register is."""
        along = next(d for d, n in enumerate(self.shape) if n > 1) + len(layout.shape) - len(self.shape)
        start = thread_coordinates(builder, special_register(builder, "tid.x"), layout.thread)[along]
        return start, [coordinate[along] for coordinate in layout.coordinates()]


class VectorType(_InMemory):
    """That of such a load; the value is the address of its first element, and how many there are from there to the tensor's end.

    Attributes:
        source: what is loaded, in words: see `ComputedType.text`.
        padding: what elements are that do not exist.
        paired: whether two neighbours, of which the first is at an even place, lie and exist together.
    """

    def __init__(self, source: str, shape: Vector, config: Config, padding: float, *, paired: bool) -> None:
        self.source, self.padding, self.paired = source, padding, paired
        super().__init__(source, dtypes.float32, shape, config, (dtypes.int64, dtypes.int32), self._alone)

    def renamed(self, dims: Vector) -> VectorType:
        shape = tuple(self.shape[dim] if dim >= 0 else 1 for dim in dims)
        return VectorType(self.source, shape, self.config, self.padding, paired=self.paired)

    def elements(self, builder: ir.IRBuilder, value: ir.Value, layout: Layout) -> list[ir.Value]:
        start, places = self._places(builder, layout)
        offset = builder.shl(builder.zext(start, i64), integer(64, 2))
        address = builder.add(builder.extract_value(value, 0), offset)
        left = builder.sub(builder.extract_value(value, 1), start)
        together = 2 if self.paired and {position ^ 1 for position in places} == set(places) else 1
        loaded: dict[int, ir.Value] = {}
        for position in sorted(set(places)):
            if position not in loaded:
                neighbours = self._loaded(builder, address, left, position, together)
                loaded.update((position + n, element) for n, element in enumerate(neighbours))
        return [loaded[position] for position in places]

    def _loaded(self, builder: ir.IRBuilder, address: ir.Value, left: ir.Value, position: int, count: int) -> list[ir.Value]:
        names, kind = [f"${n}" for n in range(count)], ir.LiteralStructType([ir.FloatType()] * count)
        fill = f"0f{dtypes.float32.type(self.padding).view('u4'):08x}"
        text = "".join(f"mov.f32 {name}, {fill}; " for name in names)
        text += f"@p ld.global.nc{'.v2' * (count == 2)}.f32 {braced(names)}, [${count}+{4 * position}];"
        there = builder.zext(builder.icmp_signed(">", left, integer(32, position)), i32)
        letters = ",".join(["=&f"] * count + ["l", "r"])
        loaded = asm(builder, predicated(text, count + 1), letters, kind if count > 1 else ir.FloatType(), [address, there])
        loaded.attributes.add("readnone")  # twice the same load is one
        return [builder.extract_value(loaded, n) for n in range(count)] if count > 1 else [loaded]


@register_model(VectorType)
class _VectorModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: VectorType) -> None:
        super().__init__(manager, ty, ir.LiteralStructType([i64, i32]))


class StagedVectorType(_InMemory):
    """That of a tile of one row in a stage of a ring; the value is its address, an i32.

    Attributes:
        ring: the number of the ring.
    """

    def __init__(self, dtype: DType, shape: Vector, config: Config, ring: int) -> None:
        self.ring = ring
        super().__init__(f"in ring {ring}", dtype, shape, config, (dtypes.int32,), self._alone)

    @classmethod
    def of(cls, tile: StagedType) -> StagedVectorType:
        return cls(tile.dtype, tile.shape, tile.config, tile.ring)

    def renamed(self, dims: Vector) -> StagedVectorType:
        return StagedVectorType(self.dtype, tuple(self.shape[dim] if dim >= 0 else 1 for dim in dims), self.config, self.ring)

    def elements(self, builder: ir.IRBuilder, value: ir.Value, layout: Layout) -> list[ir.Value]:
        the_pipelines().note_read(self.ring)
        start, places = self._places(builder, layout)
        address = shared.at(builder, value, start, self.dtype.itemsize)
        count = 1
        while 2 * count * self.dtype.itemsize <= ACCESS_BYTES and {position ^ count for position in places} == set(places):
            count *= 2
        read: dict[int, ir.Value] = {}
        for first in sorted(set(places))[::count]:
            neighbours = shared.get(builder, address, first * self.dtype.itemsize, self.dtype, count)
            read.update((first + n, element) for n, element in enumerate(neighbours))
        return [read[position] for position in places]


@register_model(StagedVectorType)
class _StagedVectorModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: StagedVectorType) -> None:
        super().__init__(manager, ty, i32)


def vector_load(tensor: TensorType, cut: Cut, padding: Padding | None) -> tuple[VectorType, Emit] | None:
    """The type of such a tile; and how to note where it lies, given the tensor and an index in the order of its dimensions.

    None if it is no such tile.
    """
    facts, state, rank = tensor.facts, current().pipelines, tensor.facts.rank
    if state is None or not state.target.wgmma or current().checks or tensor.origins != () or facts.unit is None:
        return None
    count = cut.extents[facts.unit]
    alone = all(n == 1 for d, n in enumerate(cut.extents) if d != facts.unit)
    if tensor.dtype != dtypes.float32 or not cut.shape or not alone or not 1 < count <= tensor.config.num_threads:
        return None
    if padding is None or padding.value is not None or facts.role != "in":
        return None
    if any(_may_be(tensor, other) for _, other in state.tensors.values()):
        return None
    even = all(facts.strides[d] % 2 == 0 for d in range(rank) if d != facts.unit) and facts.extents[facts.unit] % 2 == 0
    source = f"load of {tensor} {cut} {padding.number}"
    vector = VectorType(source, cut.shape, tensor.config, padding.number, paired=even and facts.align % 8 == 0)
    # The window of a thread that has the first element alone.
    zero = ((0,) * rank,)
    first = Layout(cut.extents, (), zero * (WARP.bit_length() - 1), zero * (tensor.config.num_warps.bit_length() - 1))
    pattern = AccessPattern(vector=(), edge=(), ragged=(facts.unit,), checked=tuple(range(rank)))

    def emit(builder: ir.IRBuilder, value: ir.Value, index: list[ir.Value]) -> ir.Value:
        window = Window(builder, tensor, value, index, first, pattern, cut.steps)
        return scalars_of(builder, vector, [window.base, window.remaining[facts.unit]])

    return vector, emit


def _may_be(tensor: TensorType, other: types.Type) -> bool:
    """Whether a tensor that is written may have the same storage: one that is given twice has as many dimensions and bytes."""
    assert isinstance(other, TensorType), "a parameter"
    same = other.facts.rank == tensor.facts.rank and other.dtype.itemsize == tensor.dtype.itemsize
    return other.facts.role != "in" and same
