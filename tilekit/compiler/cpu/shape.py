"""Tiles in other shapes, and parts of tiles."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu.code import Number, i64
from tilekit.compiler.cpu.memory import index_of
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, address_of, element_at, kept, new_buffer, of_buffer, traverse, write_into
from tilekit.compiler.cpu.values import Unsupported
from tilekit.lang.shape import axes_of, axis_of, grid_of, reshape_to
from tilekit.lang.tile import check_shape

__all__ = ["permuted", "reshaped"]

Shape = tuple[int, ...]


def reshaped(p: Any, x: Tile, shape: Shape) -> Tile:
    """The elements in another shape, in row-major order."""
    if x.shape == shape:
        return x
    old, new = ([d for d, n in enumerate(s) if n > 1] for s in (x.shape, shape))
    if x.buffer is None and [x.shape[d] for d in old] == [shape[d] for d in new]:
        # Dimensions of extent 1 come and go.
        def element(index: Index) -> ir.Value:
            at: list[Number] = [0] * len(x.shape)
            for source, target in zip(old, new, strict=True):
                at[source] = index.at[target]
            along = old[new.index(index.along)] if index.along is not None and index.lanes > 1 else None
            return x.element(Index(tuple(at), along, index.lanes))

        return Tile(shape, x.dtype, element, x.cost, x.reads, x.windows, aligned=x.aligned)
    whole = kept(p.k, x)
    if whole.buffer is None:
        return Tile(shape, x.dtype, lambda index: whole.element(Index((0,) * len(x.shape))))
    return of_buffer(p.k, whole.buffer, shape)


def permuted(x: Tile, axes: Shape) -> Tile:
    """The dimensions in another order."""
    if axes == tuple(range(len(axes))):
        return x

    def element(index: Index) -> ir.Value:
        at: list[Number] = [0] * len(axes)
        for position, axis in enumerate(axes):
            at[axis] = index.at[position]
        return x.element(Index(tuple(at), None if index.along is None else axes[index.along], index.lanes))

    shape = tuple(x.shape[axis] for axis in axes)
    return Tile(shape, x.dtype, element, x.cost + 3, x.reads, x.windows, aligned=not x.reads)


@lowers("reshape")
def reshape(p: Any, x: Tile, shape: Any) -> Tile:
    """In another shape."""
    return reshaped(p, x, reshape_to(shape, x.shape, "reshape"))


@lowers("permute")
def permute(p: Any, x: Tile, axes: Any) -> Tile:
    """In another order of dimensions."""
    return permuted(x, axes_of(axes, len(x.shape), "permute"))


@lowers("transpose")
def transpose(p: Any, x: Tile, axis0: int = -2, axis1: int = -1) -> Tile:
    """Two dimensions exchanged."""
    first, second = (axis_of(axis, len(x.shape), "transpose") for axis in (axis0, axis1))
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = second, first
    return permuted(x, tuple(axes))


@lowers("expand_dims")
def expand_dims(p: Any, x: Tile, axis: int) -> Tile:
    """With one more dimension."""
    at = axis_of(axis, len(x.shape) + 1, "expand_dims")
    return reshaped(p, x, (*x.shape[:at], 1, *x.shape[at:]))


@lowers("broadcast_to")
def broadcast_to(p: Any, x: Tile, shape: Any) -> Tile:
    """Repeated along dimensions of extent 1."""
    extents = check_shape(shape, "broadcast_to")
    if extents == x.shape:
        return x
    aligned = x.aligned and not x.reads
    return Tile(extents, x.dtype, lambda index: element_at(p.k, x, index, extents), x.cost, x.reads, x.windows, aligned=aligned)


@lowers("cat")
def cat(p: Any, tiles: tuple[Tile, Tile], axis: int) -> Tile:
    """One tile behind the other."""
    k, first = p.k, tiles[0]
    along = axis_of(axis, len(first.shape), "cat")
    shape = tuple(n << (d == along) for d, n in enumerate(first.shape))
    buffer = new_buffer(k, shape, first.dtype)
    for half, tile in enumerate(tiles):

        def body(index: Index, half: int = half, tile: Tile = tile) -> None:
            at = list(index.at)
            at[along] = k.add(at[along], half * first.shape[along])
            address, step = address_of(k, buffer, Index(tuple(at), index.along, index.lanes))
            k.write(address, buffer.dtype, index.lanes, step, None, element_at(k, tile, index, first.shape))

        traverse(k, first.shape, [tile], body)
    return of_buffer(k, buffer)


@lowers("extract")
def extract(p: Any, x: Tile, index: Any, shape: Any) -> Tile:
    """A part of a tile."""
    k = p.k
    part, starts = _part(p, "extract", x, index, shape)
    whole = x if x.buffer is not None or x.cost == 0 else kept(k, x)

    def element(at_index: Index) -> ir.Value:
        at = tuple(k.add(i, start) for i, start in zip(at_index.at, starts, strict=True))
        return whole.element(Index(at, at_index.along, at_index.lanes))

    return Tile(part, x.dtype, element, whole.cost, whole.reads, whole.windows, aligned=not whole.reads)


@lowers("insert")
def insert(p: Any, x: Tile, index: Any, value: Tile) -> Tile:
    """A tile with another part."""
    k = p.k
    _, starts = _part(p, "insert", x, index, value.shape or ())
    part = value if value.buffer is not None else kept(k, value)
    buffer = new_buffer(k, x.shape, x.dtype)
    write_into(k, buffer, x)

    def body(at_index: Index) -> None:
        at = tuple(k.add(i, start) for i, start in zip(at_index.at, starts, strict=True))
        address, step = address_of(k, buffer, Index(at, at_index.along, at_index.lanes))
        k.write(address, buffer.dtype, at_index.lanes, step, None, element_at(k, part, at_index, part.shape))

    traverse(k, part.shape, [part], body)
    return of_buffer(k, buffer)


def _part(p: Any, what: str, x: Tile, index: Any, shape: Any) -> tuple[Shape, list[Number]]:
    """The shape of a part, and where it begins; a computed index outside the tile ends the block."""
    k = p.k
    part, grid = grid_of(shape, x.shape, what)
    numbers = [index_of(p, at) for at in (index if isinstance(index, tuple) else (index,))]
    for number, count in zip(numbers, grid, strict=True):
        if not isinstance(number, int):
            p.check(k.b.icmp_unsigned(">=", number, i64(count)), ("part", what, grid), numbers)
        elif not 0 <= number < count:
            raise Unsupported("a part outside the tile")
    return part, [k.mul(number, n) for number, n in zip(numbers, part, strict=True)]
