"""Swizzled tiles in shared memory, as the tensor memory accelerator puts them there, or copies by threads (cp.async).

A tile lies in panels, of 128 bytes of each row at most; in a panel row follows row, without gaps. Within every 1024 bytes the
16-byte pieces of a row are exchanged: to their number the number of the row is added, by XOR, so that the same column of
neighbouring rows lies in other banks. (PTX calls this the swizzle mode of 128, 64 or 32 bytes, after the width of a panel.)
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model

from tilekit.compiler.codegen.compilation import RING_ALIGNMENT, current
from tilekit.compiler.codegen.convert_layout import InShared, in_layout
from tilekit.compiler.codegen.emit import pack, unpack
from tilekit.compiler.codegen.types import DeferredType, TileType, i32
from tilekit.compiler.layouts.conversion import Matrices, Swizzle
from tilekit.compiler.layouts.linear import ACCESS_BYTES, Config, Layout, Vector
from tilekit.dtypes import DType

__all__ = ["LEAST_ROWS", "SPANS", "StagedType", "span_of"]

SPANS = (128, 64, 32)
"""The widths of a panel, in bytes."""
LEAST_ROWS = 8  # of a panel: the exchange repeats after so many rows of 128 bytes
_PIECES = 1024


def span_of(nbytes: int) -> int | None:
    """The width of the panels of rows of `nbytes`; None if there are none such."""
    return next((span for span in SPANS if nbytes % span == 0), None)


class StagedType(DeferredType):
    """A tile that lies in shared memory; the value is its address, an i32.

    Attributes:
        dtype: the element type.
        memory: its extents in memory, the slowest dimension first.
        axes: the dimension in memory of each dimension of the tile; dimensions of extent 1 may have none (-1).
        config: the kernel's.
        ring: the number of the ring whose stages it is in.
        short: how many elements of its rows in memory may be there, if not all: those behind them are zeros. Else 0.
        panel: the width of its panels in bytes, if they are wider than its rows, as those of a tile that it follows; else 0. What
            is behind its rows then is no part of it.
    """

    mangling_args = ("S", ())

    def __init__(
        self, dtype: DType, memory: Vector, axes: Vector, config: Config, ring: int = 0, short: int = 0, panel: int = 0
    ) -> None:
        self.dtype, self.memory, self.axes, self.config, self.ring, self.short = dtype, memory, axes, config, ring, short
        self.panel = panel
        self.shape = tuple(memory[axis] if axis >= 0 else 1 for axis in axes)
        super().__init__(f"Staged({dtype.name}, {memory}, {axes}, {config}, {ring}, {short}, {panel})")

    @cached_property
    def materialized(self) -> TileType:  # type: ignore[override]
        """What threads hold that have loaded it: as if they had done so from the tensor."""
        along = next((d for d, axis in enumerate(self.axes) if axis == len(self.memory) - 1), None)
        return TileType(self.dtype, Layout.blocked(self.shape, self.config, along), self.config)

    @property
    def is_vector(self) -> bool:
        """Whether it has one row: that is one panel, whose pieces are not exchanged."""
        return self.rows == 1

    @property
    def span(self) -> int:
        """The width of a panel, in bytes."""
        if self.is_vector:
            return self.nbytes
        width = self.panel or span_of(self.memory[-1] * self.dtype.itemsize)
        assert width is not None, "looked at when the ring was made"
        return width

    @property
    def rows(self) -> int:
        """The rows of a panel."""
        return math.prod(self.memory[:-1])

    @property
    def panels(self) -> int:
        """How many there are."""
        return -(-self.memory[-1] * self.dtype.itemsize // self.span)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.rows * self.panel if self.panel else math.prod(self.memory) * self.dtype.itemsize

    @property
    def room(self) -> int:
        """How far apart such tiles lie."""
        return -(-self.nbytes // RING_ALIGNMENT) * RING_ALIGNMENT

    def present(self, dim: int) -> int:
        """How many elements along a dimension may be there: those behind them are zeros."""
        return self.short if self.short and self.axes[dim] == len(self.memory) - 1 else self.shape[dim]

    def of(self, memory: Vector) -> StagedType:
        """A tile of other extents in memory, all of it there."""
        return StagedType(self.dtype, memory, self.axes, self.config, self.ring)

    def renamed(self, dims: Vector) -> StagedType:
        """The tile whose dimensions are these of this one, where -1 is a new one of extent 1. It stays where it is."""
        axes = tuple(self.axes[d] if d >= 0 else -1 for d in dims)
        return StagedType(self.dtype, self.memory, axes, self.config, self.ring, self.short, self.panel)

    def swizzle(self) -> Swizzle:
        """Where each element lies: offsets in elements, and the bits that an access of 16 bytes covers."""
        itemsize, span = self.dtype.itemsize, self.span
        offsets: dict[Vector, int] = {}
        for dim, axis in enumerate(self.axes):
            for bit in range(self.shape[dim].bit_length() - 1):
                vector = tuple(1 << bit if d == dim else 0 for d in range(len(self.shape)))
                offsets[vector] = self._offset(axis, 1 << bit, itemsize, span) // itemsize
        near = (ACCESS_BYTES // itemsize).bit_length() - 1
        shared_bits = sorted((v for v, offset in offsets.items() if offset < 1 << near), key=offsets.__getitem__)
        return Swizzle(offsets, tuple(shared_bits))

    def _offset(self, axis: int, at: int, itemsize: int, span: int) -> int:
        """The offset in bytes of index `at`, a power of two, along a dimension in memory."""
        if axis == len(self.memory) - 1:
            panel, within = divmod(at * itemsize, span)
            linear = panel * self.rows * span + within
        else:
            linear = at * math.prod(self.memory[axis + 1 : -1]) * span
        if self.is_vector:
            return linear
        # Bits 4 and up of the address, as many as number the pieces of a row, get those from bit 7 on.
        exchanged = linear >> 3 & (span - 1) & ~(ACCESS_BYTES - 1)
        return linear ^ exchanged

    def materialize(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return pack(builder, self.read(builder, value, self.materialized.layout))

    def read(self, builder: ir.IRBuilder, base: ir.Value, layout: Layout, *, matrices: bool = False) -> list[ir.Value]:
        """The elements, by register of a layout of the tile's shape; `matrices` as for `reader`."""
        self.note_read()
        take = self.reader(layout, matrices=matrices).taker(builder, base)
        return [take(r) for r in range(layout.num_registers)]

    def note_read(self) -> None:
        """Tell those who have stages filled that threads read them."""
        state = current().pipelines
        if state is not None:
            state.note_read(self.ring)

    def reader(self, layout: Layout, *, matrices: bool = False) -> InShared:
        """How threads read it in a layout of its shape, by `ldmatrix` if that is possible and `matrices` says so."""
        swizzle = self.swizzle()
        ldmatrix = Matrices.between(swizzle.shared, layout, self.dtype.itemsize) if matrices else None
        if ldmatrix is not None and ldmatrix.pointing.reg[: len(swizzle.shared)] != swizzle.shared:
            ldmatrix = None
        return InShared(self.dtype, swizzle, layout, ldmatrix)


@register_model(StagedType)
class _StagedModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: StagedType) -> None:
        super().__init__(manager, ty, i32)


@registry.lower_cast(DeferredType, TileType)
def _materialize(context: Any, builder: ir.IRBuilder, source: DeferredType, target: TileType, value: ir.Value) -> ir.Value:
    assert isinstance(target, types.Type), "of the same dtype and shape: DeferredType.can_convert_to"
    held = unpack(builder, source.materialize(builder, value))
    return pack(builder, in_layout(builder, source.materialized, held, target.layout))
