"""Tiles of a mapped partition, as a persistent kernel visits them: `for tile in y.tiles():`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilekit._tensor.partition import grouped_index
from tilekit.lang import block

if TYPE_CHECKING:
    from tilekit.lang.memory import TensorView

__all__ = ["TileIndex", "cut_otherwise", "foreign_tile", "no_tile", "not_an_index", "ownerless", "unmapped", "visited"]


class TileIndex:
    """A tile of a mapped partition, by its place: what `y.tiles()` gives, and what `y.load` and `y.store` of that `y` take.

    Attributes:
        index: its index, counted in tiles along each dimension, for loads of other tensors: `tk.load(x, tile.index, shape)`.
        views: the partitions that take it; the first is that whose `tiles` was called.
    """

    __slots__ = ("index", "views")

    def __init__(self, index: tuple[int, ...], views: tuple[TensorView, ...]) -> None:
        self.index, self.views = index, views

    def __repr__(self) -> str:
        return f"<tile {self.index} of {self.views[0].name}>"


def visited(
    views: tuple[TensorView, ...], tile_shape: tuple[int, ...], group: tuple[int, ...], cluster: tuple[int, ...] | None
) -> Iterator[TileIndex]:
    """The tiles of `views`, which are cut alike, that the running block visits, in order."""
    running = block.current()
    assert running is not None, "views exist only while a kernel runs"
    tiles = [-(-extent // n) for extent, n in zip(views[0].shape, tile_shape, strict=True)]
    for at in range(running.index[0], math.prod(tiles), running.grid[0]):
        yield TileIndex(grouped_index(at, tiles, group, cluster), views)


# What is said of misuse, on the CPU device and by the compiler.


def unmapped(name: str) -> str:
    """A plain partition's blocks own one tile each."""
    return (
        f"{name} is a partition of which each block owns one tile: use {name}.load() and {name}.store(value), or pass "
        f"{name}.partition(...).map() to visit many"
    )


def ownerless(name: str) -> str:
    """A mapped partition's blocks own no tile."""
    return (
        f"{name} is a mapped partition, whose blocks visit many tiles: name one, in `for tile in {name}.tiles():`, with "
        f"{name}.load(tile), {name}.store(value, tile) or tk.load_tile_like(x, tile); or pass the plain partition"
    )


def no_tile(name: str, actual: str) -> str:
    """An int, say, in the place of a tile."""
    anywhere = f"tk.load({name}, index, shape), tk.store({name}, index, tile)"
    return f"the tile is one that {name}.tiles() gives, not {actual}; of any tile write {anywhere}"


def foreign_tile(name: str, other: str) -> str:
    """A tile of another partition."""
    return f"the tile is one of {other}.tiles(); {name} takes tiles of its own, from {name}.tiles() or {other}.tiles({name})"


def cut_otherwise(name: str, other: str) -> str:
    """One loop over two partitions that differ."""
    return f"{other} is cut or mapped otherwise than {name}: one loop visits partitions of the same shape, tiles and group"


def not_an_index() -> str:
    """A tile in the place of an index."""
    return "a tile index is an int or a tuple of ints: write tile.index for that of a tile, or tk.load_tile_like(x, tile)"
