"""Accesses: which tensors a kernel loads tiles of and stores tiles to, and how large these are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilekit.compiler.facts import TensorFacts
from tilekit.compiler.ir.nodes import Constant, Operation, Region
from tilekit.compiler.ir.types import TensorType, TileType
from tilekit.lang import memory

__all__ = ["Access", "accesses"]


class Access(NamedTuple):
    """A tile that is loaded or stored.

    Attributes:
        facts: what is known of its tensor.
        shape: the tile's.
    """

    facts: TensorFacts
    shape: tuple[int, ...]


_CALLS, _METHODS = (memory.load, memory.load_tile_like, memory.store), ("load", "store")


def accesses(kernel: Region) -> Iterator[Access]:
    """Those of a kernel but for loops over streams, whose tiles may come to shared memory.

    A load has a tensor and results in a tile, a store has both; where there are several tensors it is the first.
    """
    for operation in kernel.walk():
        if not (operation.what in _METHODS if operation.kind == "method" else _is_access(operation)):
            continue
        types = [value.type for value in operation.reads()]
        tensor = next((type_ for type_ in types if isinstance(type_, TensorType)), None)
        tiles = [type_ for type_ in (*(result.type for result in operation.results), *types) if isinstance(type_, TileType)]
        if tensor is not None and tiles:
            yield Access(tensor.facts, tiles[0].shape)


def _is_access(operation: Operation) -> bool:
    return operation.kind == "call" and isinstance(operation.what, Constant) and operation.what.value in _CALLS
