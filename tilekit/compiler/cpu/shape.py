"""Tiles in other shapes, parts of tiles, and tiles made of nothing but numbers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Number, i64
from tilekit.compiler.cpu.convert import converted
from tilekit.compiler.cpu.elementwise import as_tile, cast, check_fits, mapped
from tilekit.compiler.cpu.memory import index_of
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, element_at, kept, new_buffer, of_buffer, of_value, place, traverse
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
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
            along = None if index.along is None else old[new.index(index.along)]
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
    k, (first, second) = p.k, tiles
    along = axis_of(axis, len(first.shape), "cat")
    shape = tuple(n << (d == along) for d, n in enumerate(first.shape))
    buffer = new_buffer(k, shape, first.dtype)
    for half, tile in enumerate(tiles):

        def body(index: Index, half: int = half, tile: Tile = tile) -> None:
            at = list(index.at)
            at[along] = k.add(at[along], half * first.shape[along])
            address, step = place(k, buffer, Index(tuple(at), index.along, index.lanes))
            k.write(address, buffer.dtype, index.lanes, step, None, element_at(k, tile, index, first.shape))

        traverse(k, first.shape, [tile], body)
    return of_buffer(k, buffer)


@lowers("extract")
def extract(p: Any, x: Tile, index: Any, shape: Any) -> Tile:
    """A part of a tile."""
    k = p.k
    part, grid = grid_of(shape, x.shape, "extract")
    indices = index if isinstance(index, tuple) else (index,)
    starts = []
    for at, n, count in zip(indices, part, grid, strict=True):
        number = index_of(p, at)
        if not isinstance(number, int):  # which part is known at run time only
            p.check(k.b.icmp_unsigned(">=", number, i64(count)), ("part", "extract", grid), [index_of(p, one) for one in indices])
        elif not 0 <= number < count:
            raise Unsupported("a part outside the tile")
        starts.append(k.mul(number, n))
    whole = x if x.buffer is not None or x.cost == 0 else kept(k, x)

    def element(place_: Index) -> ir.Value:
        at = tuple(k.add(i, start) for i, start in zip(place_.at, starts, strict=True))
        return whole.element(Index(at, place_.along, place_.lanes))

    return Tile(part, x.dtype, element, whole.cost, whole.reads, whole.windows, aligned=not whole.reads)


# --------------------------------------------------------------------------------------------------------------- made of numbers


@lowers("full")
def full(p: Any, shape: Any, value: Any, dtype: Any) -> Tile:
    """A number everywhere."""
    extents, kind = check_shape(shape, "full"), kind_of(value)
    if kind is None:
        raise Unsupported("full of what is no scalar")
    chosen = dtypes.as_dtype(dtype) if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind)
    tile = as_tile(p.k, value, chosen)
    return Tile(extents, chosen, lambda index: p.k.splat(tile.element(Index(())), index.lanes))


@lowers("zeros")
def zeros(p: Any, shape: Any, dtype: Any) -> Tile:
    """Zeros."""
    return full(p, shape, 0, dtype)


@lowers("ones")
def ones(p: Any, shape: Any, dtype: Any) -> Tile:
    """Ones."""
    return full(p, shape, 1, dtype)


@lowers("arange")
def arange(p: Any, size: Any, dtype: Any, *, start: Any, step: Any) -> Tile:
    """Numbers in order."""
    k, chosen = p.k, dtypes.as_dtype(dtype)
    (extent,) = check_shape(size, "arange")
    if dtypes.is_float(chosen) or chosen.itemsize > 8 or dtypes.bool_ == chosen:
        raise Unsupported(f"arange of {chosen.name}")
    first, by = (as_tile(k, value, dtypes.int64).element(Index(())) for value in (start, step))
    for name, value, number in (("start", start, first), ("step", step, by)):
        if isinstance(value, Scalar):
            check_fits(k, number, chosen, "range", name, chosen.name)

    def element(index: Index) -> ir.Value:
        at = k.number(index.at[0])
        lanes = at if index.lanes == 1 else k.b.add(k.splat(at, index.lanes), k.steps(index.lanes))
        wide = k.b.add(k.b.mul(lanes, k.splat(by, index.lanes)), k.splat(first, index.lanes))
        return converted(k, wide, dtypes.int64, chosen)

    return Tile((extent,), chosen, element, 0)


@lowers("astile")
def astile(p: Any, value: Any, dtype: Any) -> Tile:
    """A scalar as a tile."""
    if isinstance(value, Tile):
        return value if dtype is None else cast(p.k, value, dtypes.as_dtype(dtype))
    kind = kind_of(value)
    if kind is None:
        raise Unsupported("astile of what is no scalar")
    return as_tile(p.k, value, dtypes.as_dtype(dtype) if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind))


_ = (mapped, of_value)
