"""Operations that fold a tile along some of its dimensions: lanes side by side, and these at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import type_of
from tilekit.compiler.cpu.convert import constant, wide_dtype
from tilekit.compiler.cpu.elementwise import cast, mapped
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import Index, Tile, kept, new_buffer, of_buffer, place, traverse
from tilekit.compiler.cpu.values import Unsupported
from tilekit.dtypes import DType
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.shape import axes_of

__all__: list[str] = []

Shape = tuple[int, ...]


def _folded(p: Any, x: Tile, axes: Shape, first: Any, function: Callable[..., ir.Value]) -> Tile:
    """A tile with extent 1 along `axes`: the elements there by an associative function, from what it begins with."""
    k, rank = p.k, len(x.shape)
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    inner = [d for d in axes if x.shape[d] > 1]
    if not inner:
        return x
    last = max((d for d in range(rank) if x.shape[d] > 1), default=0)
    buffer = new_buffer(k, shape, x.dtype)
    start = constant(first, x.dtype)
    lanes_wanted = max(4, 2 * k.machine.vector_bytes // max(x.dtype.itemsize, 4))
    if last in axes:
        # Along vectors: a vector of partial results, folded at the end.
        lanes = min(x.shape[last], lanes_wanted)
        kind = type_of(x.dtype) if lanes == 1 else ir.VectorType(type_of(x.dtype), lanes)
        total = k.slot(kind)

        def row(at: tuple[Any, ...]) -> None:
            k.b.store(k.splat(start, lanes), total)

            def level(n: int, here: list[Any]) -> None:
                if n == len(inner):
                    value = x.element(Index(tuple(here), last, lanes))
                    k.b.store(function(k.b.load(total, typ=kind), k.splat(value, lanes) if not isinstance(value.type, ir.VectorType) else value), total)
                    return
                d = inner[n]
                with k.counted(x.shape[d], lanes if d == last else 1) as i:
                    level(n + 1, [i if e == d else v for e, v in enumerate(here)])

            level(0, list(at))
            found = k.b.load(total, typ=kind)
            found = found if lanes == 1 else k.folded(found, function)
            address, step = place(k, buffer, Index(at))
            k.write(address, x.dtype, 1, step, None, found)

        _inside(p, x, lambda: _rows(k, shape, row))
        return of_buffer(k, buffer)

    # Across vectors: those of the result are gone over for each element that is folded.
    def clear(index: Index) -> None:
        address, step = place(k, buffer, index)
        k.write(address, x.dtype, index.lanes, step, None, k.splat(start, index.lanes))

    traverse(k, shape, [of_buffer(k, buffer)], clear)

    def outer(n: int, here: dict[int, Any]) -> None:
        if n < len(inner):
            with k.counted(x.shape[inner[n]]) as i:
                outer(n + 1, {**here, inner[n]: i})
            return

        def add(index: Index) -> None:
            address, step = place(k, buffer, index)
            value = x.element(Index(tuple(here.get(d, at) for d, at in enumerate(index.at)), index.along, index.lanes))
            before = k.read(address, x.dtype, index.lanes, step)
            k.write(address, x.dtype, index.lanes, step, None, function(before, value if isinstance(before.type, ir.VectorType) == isinstance(value.type, ir.VectorType) else k.splat(value, index.lanes)))

        traverse(k, shape, [of_buffer(k, buffer)], add)

    _inside(p, x, lambda: outer(0, {}))
    return of_buffer(k, buffer)


def _inside(p: Any, x: Tile, write: Callable[[], None]) -> None:
    """Write loops over a tile; where all its windows lie inside of their tensors, no element is looked at whether it does."""
    k = p.k
    unsure = [(window, window.inside) for window in dict.fromkeys(x.windows) if window.inside is not None]
    if not unsure:
        write()
        return
    inside = unsure[0][1]
    for _, more in unsure[1:]:
        inside = k.b.and_(inside, more)
    with k.b.if_else(inside) as (whole, edge):
        with whole:
            for window, _ in unsure:
                window.inside = None
            write()
            for window, before in unsure:
                window.inside = before
        with edge:
            write()


def _rows(k: Any, shape: Shape, body: Callable[[tuple[Any, ...]], None]) -> None:
    def level(d: int, at: tuple[Any, ...]) -> None:
        if d == len(shape):
            body(at)
            return
        with k.counted(shape[d]) as i:
            level(d + 1, (*at, i))

    level(0, ())


def _reduced(p: Any, x: Tile, axis: Any, keepdims: bool, what: str, first: Any, function: Callable[..., ir.Value]) -> Tile:
    axes = axes_of(axis, len(x.shape), what)
    folded = _folded(p, x if x.cost <= 12 or x.size < 4 else x, axes, first, function)
    shape = x.shape if keepdims else tuple(n for d, n in enumerate(x.shape) if d not in axes)
    kept_shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    return reshaped(p, folded, kept_shape if keepdims else shape)


@lowers("sum", "prod")
def total(p: Any, x: Tile, axis: Any, *, keepdims: bool, name: str) -> Tile:
    """The sum or the product."""
    dtype = sum_dtype(x.dtype)
    wide = wide_dtype(dtype)
    function = arithmetic.binary(p.k, "+" if name == "sum" else "*", wide)
    return cast(p.k, _reduced(p, cast(p.k, x, wide), axis, keepdims, name, int(name == "prod"), function), dtype)


@lowers("max", "min")
def extreme(p: Any, x: Tile, axis: Any, *, keepdims: bool, propagate_nan: bool, name: str) -> Tile:
    """The largest or smallest element."""
    largest, dtype = name == "max", x.dtype
    wide = wide_dtype(dtype)
    if dtypes.is_float(dtype):
        first: Any = -np.inf if largest else np.inf
        if not propagate_nan:
            first = np.nan
    else:
        limits = np.iinfo(dtype)
        first = limits.min if largest else limits.max
    function = arithmetic.extremum(p.k, largest, wide, propagate_nan)
    return cast(p.k, _reduced(p, cast(p.k, x, wide), axis, keepdims, name, first, function), dtype)


@lowers("any", "all")
def truth(p: Any, x: Tile, axis: Any, *, keepdims: bool, name: str) -> Tile:
    """Whether any, or all, are true."""
    function = arithmetic.binary(p.k, "|" if name == "any" else "&", dtypes.bool_)
    return _reduced(p, cast(p.k, x, dtypes.bool_), axis, keepdims, name, name == "all", function)


_ = (DType, kept, mapped, Unsupported)
