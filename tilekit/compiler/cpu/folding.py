"""Operations that fold a tile along dimensions in a fixed order: scans, and folds by functions of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit.compiler.cpu import arithmetic
from tilekit.compiler.cpu.code import Number, i64
from tilekit.compiler.cpu.convert import wide_dtype
from tilekit.compiler.cpu.elementwise import cast
from tilekit.compiler.cpu.functions import Combined
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.rows import back, broadcast, flipped, read, rows_of, write
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, of_buffer, traverse
from tilekit.lang.reduction import sum_dtype
from tilekit.lang.shape import axes_of, axis_of

__all__: list[str] = []

Step = Callable[..., Sequence[ir.Value]]


@lowers("reduce")
def reduce(p: Any, x: Any, axis: Any, func: Any, identity: Any, *, keepdims: bool) -> Any:
    """Neighbours by twos, until there is one: the order of the reference."""
    k, alone = p.k, isinstance(x, Tile)
    tiles = broadcast(p, (x,) if alone else x, "reduce")
    shape = tiles[0].shape
    axes = axes_of(axis, len(shape), "reduce")
    function = Combined(p, func, [tile.dtype for tile in tiles], "reduce")
    columns = [rows_of(p, tile, axes) for tile in tiles]
    count, others = columns[0].shape
    if count > 1:
        with k.counted(count.bit_length() - 1) as level:
            half = k.b.lshr(i64(count // 2), k.number(level))
            if others == 1 and function.takes_vectors:
                half = _in_vectors(p, columns, half, function)
            with k.counted(half) as at:
                _meet(p, columns, at, function)
    kept = tuple(n for d, n in enumerate(shape) if d not in axes)
    full = tuple(1 if d in axes else n for d, n in enumerate(shape))
    folded = tuple(
        reshaped(p, of_buffer(k, Buffer(column.address, (others,), column.dtype)), full if keepdims else kept)
        for column in columns
    )
    return folded[0] if alone else folded


def _meet(p: Any, columns: Sequence[Buffer], row: Number, function: Combined) -> None:
    """A row: what a function makes of the two that are there now, behind twice as many."""
    k, others = p.k, columns[0].shape[1]
    pair = k.mul(row, 2), k.add(k.mul(row, 2), 1)

    def body(index: Index) -> None:
        (at,), lanes = index.at, index.lanes
        elements = [read(k, column, one, at, lanes) for one in pair for column in columns]
        for column, value in zip(columns, function(*elements), strict=True):
            write(k, column, row, at, value, lanes)

    lanes = None if function.takes_vectors else 1
    traverse(
        k, (others,), [of_buffer(k, Buffer(column.address, (others,), column.dtype)) for column in columns], body, lanes=lanes
    )


def _in_vectors(p: Any, columns: Sequence[Buffer], half: ir.Value, function: Combined) -> ir.Value:
    """The same of rows of one element each, a vector of rows at a time; how many rows are left."""
    k, b, count = p.k, p.k.b, columns[0].shape[0]
    lanes = k.machine.vector_bytes // max(4, *(column.dtype.itemsize for column in columns))
    if count < 2 * lanes:
        return half
    flat = [Buffer(column.address, (1, count), column.dtype) for column in columns]
    with k.counted(b.udiv(half, i64(lanes))) as n:
        at = b.mul(k.number(n), i64(lanes))
        both = [k.joined(*(read(k, c, 0, k.add(k.mul(at, 2), part), lanes) for part in (0, lanes))) for c in flat]
        elements = [k.part(vector, which, lanes, 2) for which in (0, 1) for vector in both]
        for column, value in zip(flat, function(*elements), strict=True):
            write(k, column, 0, at, value, lanes)
    return b.select(b.icmp_unsigned("<", half, i64(lanes)), half, i64(0))


def _scanned(p: Any, tiles: Sequence[Tile], axis: int, reverse: bool, function: Step, lanes: int | None) -> list[Tile]:
    """Each row by the one before, in order."""
    k, shape = p.k, tiles[0].shape
    columns = [rows_of(p, flipped(k, tile, axis) if reverse else tile, (axis,)) for tile in tiles]
    count, others = columns[0].shape

    def step(row: Any) -> None:
        before, here = k.add(row, -1), row

        def body(index: Index) -> None:
            (at,), many = index.at, index.lanes
            elements = [read(k, column, r, at, many) for r in (before, here) for column in columns]
            for column, value in zip(columns, function(*elements), strict=True):
                write(k, column, here, at, value, many)

        traverse(k, (others,), [of_buffer(k, column) for column in columns], body, lanes=lanes)

    if count > 1:
        with k.counted(count - 1) as before:
            step(k.add(before, 1))
    results = [back(p, column, shape, axis) for column in columns]
    return [flipped(k, result, axis) if reverse else result for result in results]


@lowers("scan")
def scan(p: Any, x: Any, axis: Any, func: Any, identity: Any, *, reverse: bool) -> Any:
    """By a function of the user's."""
    alone = isinstance(x, Tile)
    tiles = broadcast(p, (x,) if alone else x, "scan")
    function = Combined(p, func, [tile.dtype for tile in tiles], "scan")
    lanes = None if function.takes_vectors else 1
    results = _scanned(p, tiles, axis_of(axis, len(tiles[0].shape), "scan"), reverse, function, lanes)
    return results[0] if alone else tuple(results)


def _enter(name: str, symbol: str) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, axis: Any, *, reverse: bool) -> Tile:
        dtype = sum_dtype(x.dtype)
        wide = wide_dtype(dtype)
        function = arithmetic.binary(p.k, symbol, wide)
        along = axis_of(axis, len(x.shape), name)
        (result,) = _scanned(p, [cast(p.k, x, wide)], along, reverse, lambda a, b: [function(a, b)], None)
        return cast(p.k, result, dtype)


_enter("cumsum", "+")
_enter("cumprod", "*")
