"""Tiles as rows of elements that an operation folds, scans or sorts: copies in scratch memory, in which it works."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu.code import Code, Number
from tilekit.compiler.cpu.shape import permuted
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, address_of, element_at, new_buffer, of_buffer, traverse
from tilekit.lang.tile import common_shape

__all__ = ["back", "broadcast", "flipped", "read", "rows_of", "write"]

Shape = tuple[int, ...]


def broadcast(p: Any, tiles: tuple[Tile, ...], what: str) -> list[Tile]:
    """Tiles in one shape."""
    shape = common_shape(what, [tile.shape for tile in tiles])
    return [tile if tile.shape == shape else _spread(p.k, tile, shape) for tile in tiles]


def _spread(k: Code, x: Tile, shape: Shape) -> Tile:
    return Tile(shape, x.dtype, lambda index: element_at(k, x, index, shape), x.cost, x.reads, x.windows, aligned=False)


def rows_of(p: Any, x: Tile, axes: Shape, *, last: bool = False) -> Buffer:
    """A copy of a tile of two dimensions: its elements along `axes`, and the others; the other way round with `last`."""
    k = p.k
    others = tuple(d for d in range(len(x.shape)) if d not in axes)
    turned = permuted(x, (*others, *axes) if last else (*axes, *others))
    copy = new_buffer(k, turned.shape, x.dtype)

    def body(index: Index) -> None:
        address, step = address_of(k, copy, index)
        k.write(address, copy.dtype, index.lanes, step, None, element_at(k, turned, index, turned.shape))

    traverse(k, turned.shape, [turned], body)
    sizes = tuple(math.prod(x.shape[d] for d in dims) for dims in (others, axes))
    return Buffer(copy.address, sizes if last else sizes[::-1], x.dtype)


def back(p: Any, rows: Buffer, shape: Shape, axis: int, *, last: bool = False) -> Tile:
    """The tile of a shape whose rows along an axis these are; see `rows_of`."""
    rank = len(shape)
    others = [d for d in range(rank) if d != axis]
    order = [*others, axis] if last else [axis, *others]
    turned = of_buffer(p.k, rows, tuple(shape[d] for d in order))
    return permuted(turned, tuple(order.index(d) for d in range(rank)))


def flipped(k: Code, x: Tile, axis: int) -> Tile:
    """The elements the other way round along an axis."""
    extent = x.shape[axis]

    def element(index: Index) -> ir.Value:
        at = list(index.at)
        turned = index.along == axis
        at[axis] = k.add(k.mul(at[axis], -1), extent - (index.lanes if turned else 1))
        value = x.element(Index(tuple(at), index.along, index.lanes))
        return k.reversed(value) if turned and index.lanes > 1 and isinstance(value.type, ir.VectorType) else value

    return Tile(x.shape, x.dtype, element, x.cost + 1, x.reads, x.windows, aligned=not x.reads)


def read(k: Code, rows: Buffer, row: Number, column: Number, lanes: int = 1) -> ir.Value:
    """Elements that follow each other in a row."""
    address, step = address_of(k, rows, Index((row, column), 1, lanes))
    return k.read(address, rows.dtype, lanes, step)


def write(k: Code, rows: Buffer, row: Number, column: Number, value: ir.Value, lanes: int = 1) -> None:
    """Put elements there."""
    address, step = address_of(k, rows, Index((row, column), 1, lanes))
    k.write(address, rows.dtype, lanes, step, None, value)
