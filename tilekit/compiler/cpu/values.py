"""What the variables of a kernel are on the CPU device, besides tiles: numbers, tensors, and what is made of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Number
from tilekit.dtypes import DType
from tilekit.lang.tile import scalar_kind

__all__ = ["Grid", "Row", "Scalar", "Tensor", "Unsupported", "Views", "Visited", "kind_of"]

Shape = tuple[int, ...]


class Unsupported(Exception):
    """Something in a kernel that is not compiled for the CPU, yet: the kernel is interpreted."""


@dataclass(frozen=True, eq=False)
class Scalar:
    """A number that the kernel computes.

    Attributes:
        value: an i64, a double or an i1, or of another dtype.
        kind: `int`, `float` or `bool`, or that dtype.
    """

    value: ir.Value
    kind: type | DType

    @property
    def dtype(self) -> DType:
        """What it is an element of."""
        return (
            {int: dtypes.int64, float: dtypes.float64, bool: dtypes.bool_}[self.kind]
            if isinstance(self.kind, type)
            else self.kind
        )


def kind_of(value: Any) -> type | None:
    """The type of Python's (bool, int, float) that a scalar counts as; None for what is none."""
    if not isinstance(value, Scalar):
        return scalar_kind(value)
    return value.kind if isinstance(value.kind, type) else scalar_kind(np.zeros((), value.kind)[()])


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor parameter, or a slice of one.

    Attributes:
        name: the parameter's; `parameter`: its number.
        dtype: of its elements.
        address: of its first element.
        extents: an i64 for each dimension, and `divisors`: what is known to divide them.
        strides: in elements; 1 where that is known.
        tile: of a partition, the shape of its tiles.
        role: `in`, `out` or `inout`.
        group, cluster: of a mapped partition.
    """

    name: str
    parameter: int
    dtype: DType
    address: ir.Value
    extents: tuple[Number, ...]
    divisors: tuple[int, ...]
    strides: tuple[Number, ...]
    tile: Shape | None
    role: str
    group: Shape | None = None
    cluster: Shape | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.extents)


@dataclass(frozen=True, eq=False)
class Views:
    """Windows of a tensor, `x.tiled_view(...)`: their extents, the shape of a tile, how far apart they begin, the padding."""

    tensor: Tensor
    extents: Shape
    shape: Shape
    steps: Shape
    padding: str


@dataclass(frozen=True, eq=False)
class Grid:
    """All tiles of a tensor, `x.tiles(shape)`."""

    views: Views


@dataclass(frozen=True, eq=False)
class Row:
    """Tiles along some dimensions, `x.tiles(shape)[i, :]`; each part is a number, or a slice of numbers and None."""

    views: Views
    parts: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Visited:
    """A tile of a mapped partition: its index, and the partitions that take it."""

    index: tuple[Number, ...]
    tensors: tuple[Tensor, ...]
