"""Fragments: operands of products, brought through shared memory into the layouts in which they are multiplied.

They go there all at once, and come back as they are asked for. Those that lie right already stay where they are;
tiles in stages of a pipeline are read there.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.cuda import types

from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.compilation import current
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import Beyond, InShared, Passage, Take, in_layout
from tilekit.compiler.codegen.definition import materialize
from tilekit.compiler.codegen.diagnose import in_words
from tilekit.compiler.codegen.emit import unpack
from tilekit.compiler.codegen.types import TileType, integer
from tilekit.compiler.codegen.types import constant as constant_of
from tilekit.compiler.layouts.conversion import within_threads
from tilekit.compiler.layouts.linear import Layout, Vector
from tilekit.compiler.nvidia.products import MatrixProduct
from tilekit.compiler.nvidia.staged import StagedType
from tilekit.dtypes import DType
from tilekit.lang import matmul as lang

__all__ = ["Elements", "Operand", "Operands"]

Elements = list[ir.Value]


class Operands:
    """The operands of a product, and its accumulator.

    Args:
        product: see there.
        dtypes: what the operands are converted to.
        layouts: what they are brought into.
        across: whether neighbours along `k` are not read in one access (see `passes.summed`).
    """

    def __init__(
        self, product: MatrixProduct, dtypes: tuple[DType, DType], layouts: tuple[Layout, Layout], *, across: bool = False
    ) -> None:
        if product.acc is not None:
            acc = product.tiles[2]
            in_words(product.what, lang.check_accumulator, acc.shape, acc.dtype, product.shape, product.dtype)
        self._product, self._layouts, self._across = product, layouts, across
        self._tiles = [tile.like(dtype) for tile, dtype in zip(product.tiles[:2], dtypes, strict=True)]
        both = zip((product.a, product.b), dtypes, layouts, strict=True)
        self._staged = [_readable(ty, dtype, layout) for ty, dtype, layout in both]

    def brought(
        self, builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value | None, result: TileType, at_once: int
    ) -> tuple[Operand, Operand, Elements]:
        """The operands, and what their product is added to, in the layout of the result.

        Args:
            builder, x, y, z: the values of `a`, `b` and `acc`.
            result: the type of the product.
            at_once: how much of `k` is multiplied before a loop begins its next turn.
        """
        product, tiles = self._product, self._tiles
        x_elements, y_elements = (
            [value] if staged else unpack(builder, materialize(builder, ty, value))
            for ty, value, staged in zip((product.a, product.b), (x, y), self._staged, strict=True)
        )
        if product.acc is None or z is None:
            total = [constant_of(result.dtype, 0)] * result.layout.num_registers
        else:
            added = unpack(builder, materialize(builder, product.acc, z))
            total = in_layout(builder, product.tiles[2], added, result.layout)
        converted = [
            held if tile.dtype == to.dtype else [convert(builder, e, tile.dtype, to.dtype) for e in held]
            for tile, to, held in zip(product.tiles[:2], tiles, (x_elements, y_elements), strict=True)
        ]
        turns = _turns(len(product.shape), at_once, product.depth)
        each = list(zip(tiles, converted, self._layouts, strict=True))
        first, second = _brought(builder, each, turns, self._staged, self._across)
        return first, second, list(total)


def _readable(ty: types.Type, dtype: DType, layout: Layout) -> StagedType | None:
    """An operand in shared memory, if fragments can be read there, 16 bytes at a time."""
    if not isinstance(ty, StagedType) or ty.dtype != dtype:
        return None
    reader = ty.reader(layout, matrices=True)
    return ty if reader is not None and (reader.matrices or reader.nearby) else None


class Operand:
    """An operand on its way to the layout in which it is multiplied."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        tile: TileType,
        held: Elements,
        target: Layout,
        turns: Sequence[tuple[int, Vector]],
        staged: StagedType | None,
        kept: int,
        *,
        across: bool,
    ) -> None:
        """`turns` are the bits of `k` that a loop counts, and how far they move a coordinate of the tile.

        `held` is the address of a tile that is `staged`. `kept` is its dimension (-2 or -1) that the result has, too.
        """
        self.tile, self.held, self.target, self.turns = tile, held, target, turns
        self._k = [v for v in target.reg if v[-3 - kept]]
        self.passage: Passage | None = None
        self.lies: InShared | None = None
        self.start: ir.Value | None = None
        if staged is not None:
            staged.note_read()
            self.lies, self.start = staged.reader(target, matrices=True), held[0]
        elif not tile.splat:
            if within_threads(tile.layout, target) is None:
                current().note("conversion", tile.dtype, tile.layout, target, True)
                apart = self._k if across else [vector for _, vector in turns]
                self.lies = self.passage = Passage(tile.dtype, tile.layout, target, apart, matrices=True, read_wide=across)
            else:
                self.held = in_layout(builder, tile, held, target)

    def taker(self, builder: ir.IRBuilder, k: ir.Value | None = None) -> Take:
        """What gives the element of a register of `target`; that which lies `k` further on, if it is given."""
        if self.tile.splat:
            return lambda _: self.held[0]
        if self.lies is None:
            return self.held.__getitem__
        return self.lies.taker(builder, self.start, None if k is None else Beyond(k, self.turns))

    @property
    def anywhere(self) -> bool:
        """Whether its elements need not be known by register."""
        return self.tile.splat or self.lies is not None

    @property
    def deep(self) -> bool:
        """Whether an access reads neighbours along `k`, or it is not read from shared memory at all."""
        return self.lies is None or any(v in self.lies.swizzle.shared for v in self._k)


def _turns(rank: int, at_once: int, depth: int) -> list[list[tuple[int, Vector]]]:
    """For each operand, the bits of `k` from `at_once` on, with their vectors."""
    bits = range(at_once.bit_length() - 1, depth.bit_length() - 1)
    return [[(bit, tuple(1 << bit if d == dim else 0 for d in range(rank))) for bit in bits] for dim in (rank - 1, rank - 2)]


def _brought(
    builder: ir.IRBuilder,
    tiles: Sequence[tuple[TileType, Elements, Layout]],
    turns: Sequence[Sequence[tuple[int, Vector]]],
    staged: Sequence[StagedType | None],
    across: bool,
) -> list[Operand]:
    """Operands (types, elements, and where they must go), together through shared memory if they must."""
    each = zip(tiles, turns, staged, (-2, -1), strict=True)
    operands = [Operand(builder, *tile, counted, lies, kept, across=across) for tile, counted, lies, kept in each]
    moving = [(operand, operand.passage) for operand in operands if operand.passage is not None]
    if moving:
        sizes = [-(-passage.nbytes // 16) * 16 for _, passage in moving]
        base = shared.room(builder, sum(sizes), "the operands")
        for n, (operand, passage) in enumerate(moving):
            operand.start = builder.add(base, integer(32, sum(sizes[:n])))
            passage.put(builder, operand.start, operand.held)
        shared.barrier(builder)
    return operands
