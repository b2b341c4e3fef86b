"""Values that come from several places: from a branch, or from a turn of a loop to the next."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu import elementwise, scalars
from tilekit.compiler.cpu.code import Code, type_of
from tilekit.compiler.cpu.tiles import Buffer, Tile, new_buffer, of_buffer, of_value, one, write_into
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.compiler.ir.nodes import Value
from tilekit.compiler.ir.types import ScalarType, TileType

__all__ = ["Slot", "copied", "slot_of"]


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


def slot_of(k: Code, value: Value) -> Slot:
    """A place for what a value is."""
    match value.type:
        case ScalarType(kind):
            return Slot(k.slot(scalars.type_of_kind(kind)), kind, None)
        case TileType(dtype, shape) as tile:
            if all(n == 1 for n in shape):
                return Slot(k.slot(type_of(dtype)), None, None, tile)
            return Slot(None, None, new_buffer(k, shape, dtype))
    raise Unsupported(f"{value.name}, which is {value.type}, from several places")


def copied(k: Code, tile: Tile) -> Tile:
    """The tile, in a buffer of its own."""
    buffer = new_buffer(k, tile.shape, tile.dtype)
    write_into(k, buffer, tile)
    return of_buffer(k, buffer)
