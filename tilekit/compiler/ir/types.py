"""Types of IR values, inferred by running the tile language's own references on samples: there is no second set of rules.

A sample is a value of a type with nothing particular in it: a tile of zeros, a tensor of zeros, a number. What an operation
gives for samples has the type of its result, and where it raises an error for them, the kernel is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.compiler.facts import ScalarFacts, TensorFacts
from tilekit.dtypes import DType
from tilekit.lang import block
from tilekit.lang.size import sized
from tilekit.lang.tile import Tile, scalar_kind
from tilekit.lang.views import TensorView, TiledView, TileGrid, TileRow

__all__ = [
    "UNKNOWN", "UNSET", "ObjectType", "ScalarType", "TensorType", "TileType", "Type", "Unknown", "joined", "of_argument",
    "sampling", "type_of",
]  # fmt: skip

_EXTENT_BITS, _SIZE_BITS = 16, 58  # a sample tensor has extents that no index of a kernel's is likely to leave


@dataclass(frozen=True)
class TileType:
    """A tile."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    def sample(self) -> Tile:
        """Zeros, which take no memory."""
        return Tile(np.broadcast_to(np.zeros((), self.dtype), self.shape))


@dataclass(frozen=True)
class ScalarType:
    """A number: one of Python's (`bool`, `int`, `float`), or one of a dtype; a parameter may be known to be positive."""

    kind: type | DType
    positive: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{'positive ' if self.positive else ''}{self.kind.__name__ if isinstance(self.kind, type) else self.kind.name}"

    def sample(self) -> Any:
        """0, or 1.0."""
        number = self.kind if isinstance(self.kind, type) else self.kind.type
        return number(1 if scalar_kind(number(0)) is float else 0)


@dataclass(frozen=True)
class TensorType:
    """A tensor parameter of the kernel."""

    name: str
    facts: TensorFacts

    def __str__(self) -> str:
        tile = "" if self.facts.tile is None else f" in tiles of {list(self.facts.tile)}"
        return f"{self.facts.role} {self.facts.dtype} tensor of rank {self.facts.rank}{tile}"

    def sample(self) -> TensorView:
        """Zeros, which take no memory; they may be written, and are one element then. Always the same: its tiles know it."""
        return self._sample

    @cached_property
    def _sample(self) -> TensorView:
        facts = self.facts
        extent = 1 << min(_EXTENT_BITS, _SIZE_BITS // max(1, facts.rank))
        dtype = dtypes.as_dtype(facts.dtype)
        array = np.ndarray((extent,) * facts.rank, dtype, bytearray(dtype.itemsize), strides=(0,) * facts.rank)
        view = TensorView(self.name, array, facts.tile, facts.role != "out", facts.group, None, None, facts.cluster)
        view.writable = facts.role != "in"
        return view


@dataclass(frozen=True, eq=False)
class ObjectType:
    """Anything else that kernels can have in a variable: a row of tiles, an index of a tile, None, a slice of a tensor."""

    object: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectType) and _identity(self.object) == _identity(other.object)

    def __hash__(self) -> int:
        return hash(type(self.object))

    def __str__(self) -> str:
        return type(self.object).__name__

    @property
    def is_view(self) -> bool:
        """Whether it is a tensor's, or its tiles'."""
        return isinstance(self.object, (TensorView, TiledView, TileGrid, TileRow))

    def sample(self) -> Any:
        """The object."""
        return self.object


def _identity(value: Any) -> Any:
    """What values have in common that one variable may have one after the other: of slices, the tensor that they are parts of."""
    match value:
        case TensorView():
            return TensorView, value.name, value.dtype, value.ndim, value.tile_shape, value.group, value.cluster
        case TiledView():
            return TiledView, _identity(value._view), value.tile_shape, value.traversal_steps, value._padding_mode
        case TileGrid():
            return TileGrid, _identity(value.windows)
        case TileRow():
            return TileRow, _identity(value.grid)
    return type(value)


@dataclass(frozen=True)
class Unknown:
    """Nothing was given for samples."""

    def __str__(self) -> str:
        return "?"

    def sample(self) -> Any:
        """There is none."""
        raise LookupError("a value whose type is not known")


@dataclass(frozen=True)
class Unset(Unknown):
    """Of a variable that has no value yet where a loop is looked at for the first time: it may be of any type."""


UNKNOWN, UNSET = Unknown(), Unset()
Type = TileType | ScalarType | TensorType | ObjectType | Unknown


def type_of(sample: Any) -> Type:
    """The type of a value."""
    if isinstance(sample, Tile):
        return TileType(sample.dtype, sample.shape)
    if isinstance(sample, np.generic):
        return ScalarType(sample.dtype)
    kind = scalar_kind(sample)
    return ObjectType(sample) if kind is None else ScalarType(kind)


def of_argument(name: str, facts: TensorFacts | ScalarFacts) -> Type:
    """The type of a kernel's parameter."""
    if isinstance(facts, TensorFacts):
        return TensorType(name, facts)
    python = {"int64": int, "float64": float, "bool": bool}.get(facts.dtype)
    return ScalarType(python or dtypes.as_dtype(facts.dtype), facts.positive)


def joined(first: Type, second: Type) -> Type:
    """The type of a variable that is the one or the other; `UNKNOWN` if that is not known."""
    if first == second or second == UNSET:
        return first
    if first == UNSET:
        return second
    if isinstance(first, ScalarType) and isinstance(second, ScalarType):
        kinds = [scalar_kind(one.sample()) for one in (first, second)]
        return ScalarType(float if float in kinds else int)
    return UNKNOWN


@contextmanager
def sampling(grid: tuple[int, int, int] = (4, 4, 4), num_warps: int | None = None) -> Iterator[None]:
    """While the block runs, operations of the tile language can be called on samples."""
    with block.running(block.Block(grid, sampled=True)), sized(num_warps), np.errstate(all="ignore"):
        yield
