"""numba's types of tiled views: grids and rows of tiles, and what iterates over them. All are the tensor they are cut from."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion

from tilekit.compiler.codegen.emit import as_wide_as, unpack
from tilekit.compiler.codegen.transfer import Padding
from tilekit.compiler.codegen.types import TensorType, extent_dtype, i64, register_type
from tilekit.compiler.codegen.windows import Cut, load_window

__all__ = ["MultipleType", "RowIterator", "TileGridType", "TileRowType", "TiledViewType", "load_of_view", "view_width"]


class MultipleType(types.Type):
    """A number, and `of` which one it is a multiple; the value is the number."""

    mangling_args = ("m", ())

    def __init__(self, number: types.Type, of: int) -> None:
        self.number, self.of = number, of
        super().__init__(f"Multiple({number}, {of})")


@register_model(MultipleType)
class _MultipleModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: MultipleType) -> None:
        super().__init__(manager, ty, manager.lookup(ty.number).get_value_type())


class TiledViewType(types.Type):
    """A tiled view: the value is the tensor's.

    Attributes:
        tensor, cut, padding: what it was made with.
    """

    mangling_args = ("V", ())
    kind = "View"

    def __init__(self, tensor: TensorType, cut: Cut, padding: Padding) -> None:
        self.tensor, self.cut, self.padding = tensor, cut, padding
        super().__init__(f"{self.kind}({tensor}, {cut}, {padding.number})")

    def unify(self, typingctx: Any, other: types.Type) -> TiledViewType | None:
        """As tensors are unified."""
        if type(other) is not type(self) or (self.cut, self.padding) != (other.cut, other.padding):
            return None
        tensor = self.tensor.unify(typingctx, other.tensor)
        return None if tensor is None else type(self)(tensor, self.cut, self.padding)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """As tensors are converted."""
        return Conversion.safe if self.unify(typingctx, other) == other else None


class TileGridType(TiledViewType, types.IterableType):
    """The tiles of a tensor, by index; to iterate over, too."""

    kind = "Grid"

    @property
    def iterator_type(self) -> types.Type:
        """What walks all of them."""
        return RowIterator(self, tuple(range(self.tensor.facts.rank)))


class TileRowType(types.SimpleIterableType):
    """Tiles of a grid along some dimensions: the tensor, and for each dimension the first index and how many there are.

    Attributes:
        grid: the grid.
        free: the dimensions along which there are several.
        width: the LLVM type of what counts its tiles: that of the tensor's extents; along several dimensions there may be more.
    """

    mangling_args = ("R", ())

    def __init__(self, grid: TileGridType, free: tuple[int, ...]) -> None:
        self.grid, self.free = grid, free
        self.width = i64 if grid.tensor.facts.many and len(free) > 1 else view_width(grid)
        super().__init__(f"Row({grid}, {free})", RowIterator(grid, free))

    def unify(self, typingctx: Any, other: types.Type) -> TileRowType | None:
        """As tensors are unified."""
        if not isinstance(other, TileRowType) or self.free != other.free:
            return None
        grid = self.grid.unify(typingctx, other.grid)
        return None if grid is None else TileRowType(grid, self.free)

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """As tensors are converted."""
        return Conversion.safe if self.unify(typingctx, other) == other else None

    def index(self, builder: ir.IRBuilder, value: ir.Value, position: ir.Value) -> list[ir.Value]:
        """The index of the tile at a place of the row."""
        firsts, counts = (unpack(builder, builder.extract_value(value, k)) for k in (1, 2))
        rest = position
        for d in reversed(self.free):
            step = rest
            if d != self.free[0]:
                count = as_wide_as(builder, counts[d], rest)
                step, rest = builder.urem(rest, count), builder.udiv(rest, count)
            firsts[d] = builder.add(firsts[d], as_wide_as(builder, step, firsts[d]))
        return firsts


class RowIterator(types.SimpleIteratorType):
    """Where an iteration is among the tiles of a row."""

    mangling_args = ("r", ())

    def __init__(self, grid: TileGridType, free: tuple[int, ...]) -> None:
        self.grid, self.free = grid, free
        tile, _ = load_of_view(grid, free)
        super().__init__(f"RowIterator({grid}, {free})", tile)

    def unify(self, typingctx: Any, other: types.Type) -> RowIterator | None:
        """As tensors are unified."""
        if not isinstance(other, RowIterator) or self.free != other.free:
            return None
        grid = self.grid.unify(typingctx, other.grid)
        return None if grid is None else RowIterator(grid, self.free)


@register_model(TiledViewType)
@register_model(TileGridType)
class _ViewModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: TiledViewType) -> None:
        super().__init__(manager, ty, manager[ty.tensor].get_value_type())


@register_model(TileRowType)
class _RowModel(core_models.PrimitiveModel):
    """The tensor, the first index and the number of tiles along each dimension."""

    def __init__(self, manager: Any, ty: TileRowType) -> None:
        numbers = ir.ArrayType(view_width(ty.grid), ty.grid.tensor.facts.rank)
        super().__init__(manager, ty, ir.LiteralStructType([manager[ty.grid.tensor].get_value_type(), numbers, numbers]))


@register_model(RowIterator)
class _RowIteratorModel(core_models.PrimitiveModel):
    """A pointer to the place of the next tile, the row, the number of all its tiles."""

    def __init__(self, manager: Any, ty: RowIterator) -> None:
        row = TileRowType(ty.grid, ty.free)
        members = [row.width.as_pointer(), manager[row].get_value_type(), row.width]
        super().__init__(manager, ty, ir.LiteralStructType(members))


def load_of_view(view: TiledViewType, inside: tuple[int, ...], policy: types.Type | None = None) -> Any:
    """The type of a tile of the view, and what emits its load; the index is `inside` along some dimensions."""
    return load_window("load", view.tensor, view.cut, view.padding, proven=inside, policy=policy)


def view_width(view: TiledViewType) -> ir.Type:
    """The LLVM type of an index of its tiles along a dimension, and of their number: that of the tensor's extents."""
    return register_type(extent_dtype(view.tensor.facts))


@registry.lower_cast(TensorType, TensorType)
@registry.lower_cast(TiledViewType, TiledViewType)
@registry.lower_cast(TileRowType, TileRowType)
def _cast(context: Any, builder: ir.IRBuilder, source: types.Type, target: types.Type, value: ir.Value) -> ir.Value:
    assert source.can_convert_to(None, target) is not None, "only what is known of a tensor differs: no value tells"
    return value
