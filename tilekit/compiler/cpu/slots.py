"""Values that come from several places: from a branch, or from a turn of a loop to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu import elementwise, scalars
from tilekit.compiler.cpu.code import Code, Number, type_of
from tilekit.compiler.cpu.tiles import Buffer, Tile, new_buffer, of_buffer, of_value, one, write_into
from tilekit.compiler.cpu.values import Grid, Scalar, Tensor, Unsupported, Views, kind_of
from tilekit.compiler.ir.nodes import Value
from tilekit.compiler.ir.types import ObjectType, ScalarType, TileType

__all__ = ["PartsSlot", "Slot", "copied", "slot_of"]


class Slot:
    """Where a value is that comes from several places: a variable for a number, a buffer for a tile."""

    def __init__(self, variable: ir.Value | None, kind: Any, buffer: Buffer | None, tile: TileType | None = None) -> None:
        self.variable, self.kind, self.buffer, self.tile = variable, kind, buffer, tile

    def scalar_of(self, k: Code, value: Any) -> ir.Value:
        """What a variable gets of a value."""
        if self.tile is not None:
            return one(k, elementwise.as_tile(k, value, self.tile.dtype))
        if isinstance(value, Tile) or kind_of(value) is None:
            raise Unsupported("a variable that is a number here and something else there")
        return scalars.as_kind(k, value, self.kind)

    def put(self, k: Code, value: Any) -> None:
        """Write a value there: a tile, or what `scalar_of` gives."""
        if self.buffer is None:
            k.b.store(value, self.variable)
        else:
            write_into(k, self.buffer, value)

    def value(self, k: Code) -> Any:
        """What is there."""
        if self.buffer is not None:
            return of_buffer(k, self.buffer)
        if self.tile is not None:
            kind = type_of(self.tile.dtype)
            return of_value(self.tile.shape, self.tile.dtype, k.b.load(self.variable, typ=kind))
        return Scalar(k.b.load(self.variable, typ=scalars.type_of_kind(self.kind)), self.kind)


class PartsSlot:
    """The same for a slice of a tensor, or for tiles of one: variables for the numbers in it. All else does not change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.buffer = None
        self._like: Any = None
        self._variables: list[ir.Value] = []

    def scalar_of(self, k: Code, value: Any) -> Any:
        """What `put` gets of a value."""
        return value

    def put(self, k: Code, value: Any) -> None:
        """Write a value there."""
        tensor = _tensor_of(value)
        numbers = [n if isinstance(n, ir.Value) else k.number(n) for n in _numbers(tensor)]
        if self._like is None:
            self._like, self._variables = value, [k.slot(number.type) for number in numbers]
        if len(numbers) != len(self._variables) or type(value) is not type(self._like):
            raise Unsupported(f"{self.name}, which is one thing here and another there")
        for number, variable in zip(numbers, self._variables, strict=True):
            k.b.store(number, variable)

    def value(self, k: Code) -> Any:
        """What is there."""
        tensor = _tensor_of(self._like)
        numbers = iter([k.b.load(variable, typ=variable.allocated_type) for variable in self._variables])
        other = replace(
            tensor,
            address=next(numbers),
            extents=tuple(next(numbers) for _ in tensor.extents),
            divisors=(1,) * tensor.rank,  # nothing is known of all of them
            strides=tuple(1 if _is_unit(stride) else next(numbers) for stride in tensor.strides),
        )
        match self._like:
            case Views() as views:
                return replace(views, tensor=other)
            case Grid(views):
                return Grid(replace(views, tensor=other))
        return other


def _tensor_of(value: Any) -> Tensor:
    match value:
        case Tensor():
            return value
        case Views(tensor=tensor) | Grid(views=Views(tensor=tensor)):
            return tensor
    raise Unsupported(f"a {type(value).__name__.lower()} from several places")


def _numbers(tensor: Tensor) -> list[Number]:
    """What may differ between slices of a tensor."""
    return [tensor.address, *tensor.extents, *(stride for stride in tensor.strides if not _is_unit(stride))]


def _is_unit(stride: Number) -> bool:
    return isinstance(stride, int) and stride == 1


def slot_of(k: Code, value: Value) -> Slot | PartsSlot:
    """A place for what a value is."""
    match value.type:
        case ScalarType(kind):
            return Slot(k.slot(scalars.type_of_kind(kind)), kind, None)
        case TileType(dtype, shape) as tile:
            if all(n == 1 for n in shape):
                return Slot(k.slot(type_of(dtype)), None, None, tile)
            return Slot(None, None, new_buffer(k, shape, dtype))
        case ObjectType():
            return PartsSlot(value.name)
    raise Unsupported(f"{value.name}, which is {value.type}, from several places")


def copied(k: Code, tile: Tile) -> Tile:
    """The tile, in a buffer of its own."""
    buffer = new_buffer(k, tile.shape, tile.dtype)
    write_into(k, buffer, tile)
    return of_buffer(k, buffer)
