"""numba's types of mapped partitions (persistent kernels): their tiles, what iterates over these, and the index of one."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model

from tilekit.compiler.codegen.types import TensorType, i32, i64

__all__ = ["TileIndexType", "TilesIterator", "TilesType", "index_width"]


def _key(tensor: TensorType, others: tuple[str, ...]) -> str:
    """All that is in the type: numba takes types of one name for one type, in every kernel of the process."""
    return f"{tensor.parameter}, {tensor.facts}, {tensor.config}, {others}"


def index_width(tensor: TensorType) -> ir.Type:
    """The LLVM type of what counts the tiles of a mapped partition, and of an index of one."""
    return i64 if tensor.facts.many or tensor.facts.wide else i32


class TileIndexType(types.Type):
    """A tile of a mapped partition: its index, an integer for each dimension, is its value.

    Attributes:
        tensor: the partition.
        others: the names of partitions that are cut alike, and take its tiles too.
    """

    mangling_args = ("i", ())

    def __init__(self, tensor: TensorType, others: tuple[str, ...]) -> None:
        self.tensor, self.others = tensor, others
        super().__init__(f"TileIndex({_key(tensor, others)})")


class TilesIterator(types.SimpleIteratorType):
    """Where a block is among the tiles that it visits."""

    mangling_args = ("v", ())

    def __init__(self, tensor: TensorType, others: tuple[str, ...]) -> None:
        self.tensor, self.others = tensor, others
        super().__init__(f"TilesIterator({_key(tensor, others)})", TileIndexType(tensor, others))


class TilesType(types.SimpleIterableType):
    """What `y.tiles()` gives: the number of tiles along each dimension is its value.

    Attributes:
        everybody: whether all blocks visit a tile that several have, and not the first of these alone.
    """

    mangling_args = ("T", ())

    def __init__(self, tensor: TensorType, others: tuple[str, ...], *, everybody: bool = False) -> None:
        self.tensor, self.others, self.everybody = tensor, others, everybody
        super().__init__(f"Tiles({_key(tensor, others)}, {everybody})", TilesIterator(tensor, others))


@register_model(TileIndexType)
@register_model(TilesType)
class _IntsModel(core_models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any) -> None:
        super().__init__(manager, ty, ir.ArrayType(index_width(ty.tensor), ty.tensor.facts.rank))


@register_model(TilesIterator)
class _IteratorModel(core_models.PrimitiveModel):
    """A pointer to the place of the next tile, the numbers of tiles along each dimension, and of all."""

    def __init__(self, manager: Any, ty: TilesIterator) -> None:
        width = index_width(ty.tensor)
        counts = ir.ArrayType(width, ty.tensor.facts.rank)
        super().__init__(manager, ty, ir.LiteralStructType([width.as_pointer(), counts, width]))
