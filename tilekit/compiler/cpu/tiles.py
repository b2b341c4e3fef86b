"""Tiles of a kernel on the CPU: what each element is, written down where it is needed, a vector at a time.

A tile is a function from a place to the code of its elements there. Chains of operations so become one loop without anything in
between; what is expensive and needed more than once, or would be read too late, is kept in a buffer (`kept`). Extents are powers
of two, and so is the number of lanes, so that no loop has a remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from llvmlite import ir

from tilekit.compiler.cpu.code import Code, Number
from tilekit.dtypes import DType

__all__ = [
    "Buffer",
    "Index",
    "Tile",
    "Window",
    "address_of",
    "element_at",
    "inside_or_at_edges",
    "kept",
    "lanes_of",
    "new_buffer",
    "note_loop",
    "of_buffer",
    "of_value",
    "one",
    "traverse",
    "write_into",
]  # fmt: skip

Shape = tuple[int, ...]
_LEAST_LANES, _VECTORS = 4, 2  # of a turn of a loop; vectors at a time, so that one is computed while another is waited for


class Index(NamedTuple):
    """A place in a tile: an element, or several that follow each other along a dimension.

    Attributes:
        at: of the first, along each dimension.
        along: the dimension; None for one element.
        lanes: how many.
    """

    at: tuple[Number, ...]
    along: int | None = None
    lanes: int = 1


@dataclass(eq=False)
class Buffer:
    """Scratch memory that holds a tile, in row-major order."""

    address: ir.Value
    shape: Shape
    dtype: DType


@dataclass(eq=False)
class Window:
    """A part of a tensor.

    Attributes:
        name: the tensor's.
        inside: whether all of it lies in the tensor, an i1; None where that is known beforehand.
    """

    name: str
    inside: ir.Value | None = None


@dataclass(eq=False)
class Tile:
    """A tile.

    Attributes:
        shape, dtype: its own.
        element: gives the code of what stands at an index: a vector for several elements.
        cost: what an element costs, in about additions.
        reads: the names of tensors, and the buffers, whose elements it is made of.
        windows: of tensors that elements come from.
        buffer: where all of it lies, if it does.
        aligned: whether each element is made of elements, of windows and buffers, that stand at its own index.
    """

    shape: Shape
    dtype: DType
    element: Callable[[Index], ir.Value]
    cost: int = 0
    reads: frozenset[Any] = frozenset()
    windows: tuple[Window, ...] = ()
    buffer: Buffer | None = None
    aligned: bool = True

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def element_at(k: Code, tile: Tile, index: Index, shape: Shape) -> ir.Value:
    """What stands at an index of `shape`, to which the tile is broadcast."""
    ahead, at, along = len(shape) - len(tile.shape), [], None
    for d, extent in enumerate(tile.shape):
        whole = extent == shape[ahead + d]
        at.append(index.at[ahead + d] if whole else 0)
        if whole and index.along == ahead + d:
            along = d
    lanes = index.lanes if along is not None else 1
    value = tile.element(Index(tuple(at), along, lanes))
    return value if isinstance(value.type, ir.VectorType) else k.splat(value, index.lanes)


def one(k: Code, tile: Tile) -> ir.Value:
    """The element of a tile that has one."""
    return tile.element(Index((0,) * len(tile.shape)))


def traverse(
    k: Code,
    shape: Shape,
    tiles: Iterable[Tile],
    body: Callable[[Index], None],
    windows: Iterable[Window] = (),
    lanes: int | None = None,
) -> None:
    """Write loops over a shape.

    Args:
        k: the code.
        shape: what to go over.
        tiles: what `body` asks for elements.
        body: writes what is done at an index.
        windows: that it writes to. Where all windows lie inside of their tensors no element is looked at whether it does.
        lanes: how many elements at a time; by default as many as vectors have.
    """
    tiles = list(tiles)
    widest = max((tile.dtype.itemsize for tile in tiles), default=4)
    many = lanes_of(k, shape, widest) if lanes is None else min(lanes, shape[_last(shape)] if shape else 1)
    every = (*windows, *(window for tile in tiles for window in tile.windows))

    def write() -> None:
        note_loop(k, shape, many, tiles)
        _loops(k, shape, many, body)

    inside_or_at_edges(k, every, write)


def note_loop(k: Code, shape: Shape, lanes: int, tiles: Iterable[Tile]) -> None:
    """For `explain`: a loop over a shape, in which elements of tiles are computed."""
    tiles = list(tiles)
    reads = {one if isinstance(one, str) else "a buffer" for tile in tiles for one in tile.reads}
    k.note("loop", shape, lanes, max((tile.cost for tile in tiles), default=0), tuple(sorted(reads)))


def inside_or_at_edges(k: Code, windows: Iterable[Window], write: Callable[[], None]) -> None:
    """Write something that reads or writes windows; where all lie inside of their tensors, no element is looked at whether it
    does: it is written twice then, behind a branch."""
    known = [(window, window.inside) for window in dict.fromkeys(windows) if window.inside is not None]
    if not known:
        write()
        return
    k.note("edge", tuple(dict.fromkeys(window.name for window, _ in known)))
    inside = known[0][1]
    for _, more in known[1:]:
        inside = k.b.and_(inside, more)
    with k.b.if_else(inside) as (whole, edge):
        with whole:
            for window, _ in known:
                window.inside = None
            write()
            for window, before in known:
                window.inside = before
        with edge:
            notes_before = len(k.notes)
            write()
            del k.notes[notes_before:]  # `explain` has been told of it


def _last(shape: Shape) -> int:
    """The last dimension of more than one element; the last one, where there is none."""
    return next((d for d in reversed(range(len(shape))) if shape[d] > 1), len(shape) - 1)


def lanes_of(k: Code, shape: Shape, itemsize: int) -> int:
    """How many elements a turn of a loop over a shape computes at once: of its last dimension of more than one."""
    many = max(_LEAST_LANES, _VECTORS * k.machine.vector_bytes // max(itemsize, 4))
    return min(shape[_last(shape)], many) if shape else 1


def _loops(k: Code, shape: Shape, lanes: int, body: Callable[[Index], None]) -> None:
    along = _last(shape)
    steps = tuple(lanes if d == along else 1 for d in range(len(shape)))
    with k.counters(shape, steps) as at:
        body(Index(at, along, lanes) if lanes > 1 else Index(at))


def address_of(k: Code, buffer: Buffer, index: Index) -> tuple[ir.Value, int]:
    """The address of a buffer's element, and how many bytes the next one along the index is away."""
    flat: Number = 0
    stride, step = buffer.dtype.itemsize, 0
    for d in reversed(range(len(buffer.shape))):
        flat = k.add(flat, k.mul(index.at[d], stride))
        if d == index.along:
            step = stride
        stride *= buffer.shape[d]
    return k.offset(buffer.address, flat), step


def new_buffer(k: Code, shape: Shape, dtype: DType) -> Buffer:
    """Scratch memory for a tile."""
    at = k.reserve(math.prod(shape) * dtype.itemsize)
    return Buffer(k.offset(k.scratch, at), shape, dtype)


def of_buffer(k: Code, buffer: Buffer, shape: Shape | None = None) -> Tile:
    """What lies in a buffer; `shape` says it in another shape."""
    seen = Buffer(buffer.address, buffer.shape if shape is None else shape, buffer.dtype)

    def element(index: Index) -> ir.Value:
        address, step = address_of(k, seen, index)
        return k.read(address, seen.dtype, index.lanes, step)

    return Tile(seen.shape, seen.dtype, element, 0, frozenset({buffer}), buffer=buffer)


def write_into(k: Code, buffer: Buffer, tile: Tile) -> None:
    """Put a tile into a buffer of its shape, or of one that it is broadcast to."""

    def body(index: Index) -> None:
        address, step = address_of(k, buffer, index)
        k.write(address, buffer.dtype, index.lanes, step, None, element_at(k, tile, index, buffer.shape))

    traverse(k, buffer.shape, [tile], body)


def kept(k: Code, tile: Tile, why: str = "the operation needs all of it") -> Tile:
    """The tile, once it has been computed, and why it has to be, for `explain`."""
    if tile.buffer is not None:
        return tile
    if tile.size == 1:
        return of_value(tile.shape, tile.dtype, one(k, tile))
    buffer = new_buffer(k, tile.shape, tile.dtype)
    k.note("kept", tile.dtype.name, tile.shape, why)
    write_into(k, buffer, tile)
    return of_buffer(k, buffer)


def of_value(shape: Shape, dtype: DType, value: ir.Value) -> Tile:
    """A tile with a scalar for all its elements."""
    return Tile(shape, dtype, lambda index: value)
