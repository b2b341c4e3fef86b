"""Operations that fold a tile along some of its dimensions: lanes side by side, and these at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Code, type_of
from tilekit.compiler.cpu.convert import constant, wide_dtype
from tilekit.compiler.cpu.elementwise import cast
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import (
    Buffer,
    Index,
    Tile,
    address_of,
    inside_or_at_edges,
    lanes_of,
    new_buffer,
    note_loop,
    of_buffer,
    traverse,
)
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.shape import axes_of

__all__: list[str] = []

Shape = tuple[int, ...]


def _folded(p: Any, x: Tile, axes: Shape, first: Any, function: Callable[..., ir.Value]) -> Tile:
    """A tile with extent 1 along `axes`: the elements there by an associative function, from what it begins with."""
    if all(x.shape[d] == 1 for d in axes):
        return x
    k = p.k
    buffer = new_buffer(k, tuple(1 if d in axes else n for d, n in enumerate(x.shape)), x.dtype)
    last = max(d for d, n in enumerate(x.shape) if n > 1)
    fold = _fold_along if last in axes else _fold_across
    inside_or_at_edges(k, x.windows, lambda: fold(k, x, axes, last, constant(first, x.dtype), function, buffer))
    return of_buffer(k, buffer)


def _fold_along(
    k: Code, x: Tile, axes: Shape, last: int, start: ir.Constant, function: Callable[..., ir.Value], buffer: Buffer
) -> None:
    """Where neighbours are folded: a vector of partial results for each result, folded at the end."""
    lanes = lanes_of(k, x.shape, x.dtype.itemsize)
    note_loop(k, x.shape, lanes, [x])
    kind = type_of(x.dtype) if lanes == 1 else ir.VectorType(type_of(x.dtype), lanes)
    total = k.slot(kind)
    counts = [x.shape[d] if d in axes else 1 for d in range(len(x.shape))]
    steps = [lanes if d == last else 1 for d in range(len(x.shape))]
    with k.counters(buffer.shape) as row:
        k.b.store(k.splat(start, lanes), total)
        with k.counters(counts, steps) as along:
            at = tuple(along[d] if d in axes else row[d] for d in range(len(x.shape)))
            value = _spread(k, x.element(Index(at, last, lanes)), lanes)
            k.b.store(function(k.b.load(total, typ=kind), value), total)
        folded = k.b.load(total, typ=kind)
        address, _ = address_of(k, buffer, Index(row))
        k.write(address, x.dtype, 1, 0, None, folded if lanes == 1 else k.folded(folded, function))


def _fold_across(
    k: Code, x: Tile, axes: Shape, last: int, start: ir.Constant, function: Callable[..., ir.Value], buffer: Buffer
) -> None:
    """Where neighbours belong to results that are neighbours: these are gone over for each element that is folded."""
    results = of_buffer(k, buffer)

    def begin(index: Index) -> None:
        address, step = address_of(k, buffer, index)
        k.write(address, x.dtype, index.lanes, step, None, k.splat(start, index.lanes))

    traverse(k, buffer.shape, [results], begin)
    with k.counters([x.shape[d] if d in axes else 1 for d in range(len(x.shape))]) as along:

        def add(index: Index) -> None:
            at = tuple(along[d] if d in axes else index.at[d] for d in range(len(x.shape)))
            value = _spread(k, x.element(Index(at, index.along, index.lanes)), index.lanes)
            address, step = address_of(k, buffer, index)
            before = k.read(address, x.dtype, index.lanes, step)
            k.write(address, x.dtype, index.lanes, step, None, function(before, value))

        traverse(k, buffer.shape, [results], add)


def _spread(k: Code, value: ir.Value, lanes: int) -> ir.Value:
    """One value for all lanes where there are as many elements that are the same."""
    return value if isinstance(value.type, ir.VectorType) else k.splat(value, lanes)


def _reduced(p: Any, x: Tile, axis: Any, keepdims: bool, what: str, first: Any, function: Callable[..., ir.Value]) -> Tile:
    axes = axes_of(axis, len(x.shape), what)
    folded = _folded(p, x, axes, first, function)
    return folded if keepdims else reshaped(p, folded, tuple(n for d, n in enumerate(x.shape) if d not in axes))


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
