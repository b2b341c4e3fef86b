"""Tiles that are made of nothing but numbers."""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.convert import converted
from tilekit.compiler.cpu.elementwise import as_tile, cast, check_fits
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.tiles import Index, Tile, address_of, new_buffer, of_buffer, one
from tilekit.compiler.cpu.values import Scalar, Unsupported, kind_of
from tilekit.lang.tile import check_shape

__all__: list[str] = []


@lowers("full")
def full(p: Any, shape: Any, value: Any, dtype: Any) -> Tile:
    """A number everywhere."""
    return _full(p, shape, value, dtype)


def _full(p: Any, shape: Any, value: Any, dtype: Any) -> Tile:
    extents, kind = check_shape(shape, "full"), kind_of(value)
    if kind is None:
        raise Unsupported("full of what is no scalar")
    chosen = dtypes.as_dtype(dtype) if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind)
    tile = as_tile(p.k, value, chosen)
    return Tile(extents, chosen, lambda index: p.k.splat(tile.element(Index(())), index.lanes))


@lowers("zeros")
def zeros(p: Any, shape: Any, dtype: Any) -> Tile:
    """Zeros."""
    return _full(p, shape, 0, dtype)


@lowers("ones")
def ones(p: Any, shape: Any, dtype: Any) -> Tile:
    """Ones."""
    return _full(p, shape, 1, dtype)


@lowers("arange")
def arange(p: Any, size: Any, dtype: Any, *, start: Any, step: Any) -> Tile:
    """Numbers in order, computed in their dtype."""
    k, chosen = p.k, dtypes.as_dtype(dtype)
    (extent,) = check_shape(size, "arange")
    for name, value in (("start", start), ("step", step)):
        if isinstance(value, Scalar) and value.kind is int:
            check_fits(k, value.value, chosen, "range", name, chosen.name)
    first, by = (as_tile(k, value, chosen).element(Index(())) for value in (start, step))
    times, plus = (arithmetic.binary(k, symbol, chosen) for symbol in "*+")

    def element(index: Index) -> ir.Value:
        at = k.number(index.at[0])
        places = at if index.lanes == 1 else k.b.add(k.splat(at, index.lanes), k.steps(index.lanes))
        numbers = converted(k, places, dtypes.int64, chosen)
        return plus(k.splat(first, index.lanes), times(numbers, k.splat(by, index.lanes)))

    return Tile((extent,), chosen, element, 2 if dtypes.is_float(chosen) else 0)


@lowers("astile")
def astile(p: Any, value: Any, dtype: Any) -> Tile:
    """A scalar as a tile, or nested tuples of them."""
    if isinstance(value, Tile):
        return value if dtype is None else cast(p.k, value, dtypes.as_dtype(dtype))
    shape, scalars = _nested(value)
    kinds = {kind_of(scalar) for scalar in scalars}
    kind = next(k for k in (float, int, bool, None) if k in kinds)
    if kind is None:
        raise Unsupported("astile of what is no scalar")
    chosen = dtypes.as_dtype(dtype) if dtype is not None else dtypes.scalar_dtype(dtypes.bool_, kind)
    tiles = [as_tile(p.k, scalar, chosen) for scalar in scalars]
    if not shape:
        return tiles[0]
    buffer = new_buffer(p.k, shape, chosen)
    for at, tile in zip(itertools.product(*map(range, shape)), tiles, strict=True):
        p.k.write(address_of(p.k, buffer, Index(at))[0], chosen, 1, 0, None, one(p.k, tile))
    return of_buffer(p.k, buffer)


def _nested(value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The lengths of nested tuples, and what is in them, in order."""
    if not isinstance(value, tuple):
        return (), [value]
    parts = [_nested(part) for part in value]
    return (len(value), *parts[0][0]), [scalar for _, scalars in parts for scalar in scalars]
