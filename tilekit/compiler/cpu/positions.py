"""Where the largest and the smallest elements of a tile are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, Number, i32
from tilekit.compiler.cpu.convert import wide_dtype
from tilekit.compiler.cpu.elementwise import cast
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.rows import read, rows_of
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, new_buffer, of_buffer, place, traverse
from tilekit.dtypes import DType
from tilekit.lang.shape import axes_of

__all__: list[str] = []

Beats = Callable[[ir.Value, ir.Value], ir.Value]
Pair = tuple[ir.Value, ir.Value]


def _order(k: Code, largest: bool, dtype: DType, propagate_nan: bool) -> Beats:
    """Whether an element is better than another; NaN is better than all numbers, or worse."""
    b, symbol = k.b, ">" if largest else "<"
    if not dtypes.is_float(dtype):
        compare = b.icmp_signed if dtype.kind == "i" else b.icmp_unsigned
        return lambda x, y: compare(symbol, x, y)

    def beats(x: ir.Value, y: ir.Value) -> ir.Value:
        nan, other = (b.fcmp_unordered("uno", value, value) for value in ((x, y) if propagate_nan else (y, x)))
        return b.or_(b.fcmp_ordered(symbol, x, y), b.and_(nan, b.not_(other)))

    return beats


def _best(k: Code, beats: Beats, count: int, row: Callable[[Number], Pair]) -> Pair:
    """Lane by lane the best of `count` vectors, of equal ones the first, and its place; `row` gives a vector and its places."""
    value, at = row(0)
    best, where = k.slot(value.type), k.slot(at.type)
    k.b.store(value, best)
    k.b.store(at, where)
    if count > 1:
        with k.counted(count - 1) as before:
            value, at = row(k.add(before, 1))
            known, place_ = k.b.load(best, typ=value.type), k.b.load(where, typ=at.type)
            better = beats(value, known)
            k.b.store(k.b.select(better, value, known), best)
            k.b.store(k.b.select(better, at, place_), where)
    return k.b.load(best, typ=value.type), k.b.load(where, typ=at.type)


def _best_lane(k: Code, beats: Beats, pair: Pair, lanes: int) -> ir.Value:
    """The place of the best of all lanes; of equal ones the first."""
    b, (value, at) = k.b, pair
    while lanes > 1:
        lanes //= 2
        parts = [
            tuple(k.part(v, start, lanes) if lanes > 1 else b.extract_element(v, i32(start)) for v in (value, at))
            for start in (0, lanes)
        ]
        (x, i), (y, j) = parts
        second = b.or_(beats(y, x), b.and_(b.not_(beats(x, y)), b.icmp_signed("<", j, i)))
        value, at = b.select(second, y, x), b.select(second, j, i)
    return at


def _enter(name: str) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, axis: Any, *, keepdims: bool, propagate_nan: bool) -> Tile:
        k, dtype = p.k, wide_dtype(x.dtype)
        rank = len(x.shape)
        axes = axes_of(axis, rank, name)
        beats = _order(k, name == "argmax", dtype, propagate_nan)
        last = len(axes) == rank or rank - 1 in axes
        rows = rows_of(p, cast(k, x, dtype), axes, last=last)
        found = new_buffer(k, (rows.shape[0 if last else 1],), dtypes.int32)

        def keep(at: Index, where: ir.Value) -> None:
            address, step = place(k, found, at)
            k.write(address, dtypes.int32, at.lanes, step, None, where)

        if last:
            count = rows.shape[1]
            lanes = min(count, k.machine.vector_bytes // max(4, dtype.itemsize))

            def vector(row: Number, n: Number) -> Pair:
                column = k.mul(n, lanes)
                first = k.b.trunc(k.number(column), i32)
                places = first if lanes == 1 else k.b.add(k.splat(first, lanes), k.steps(lanes, i32))
                return read(k, rows, row, column, lanes), places

            with k.counted(rows.shape[0]) as row:
                pair = _best(k, beats, count // lanes, lambda n: vector(row, n))
                keep(Index((row,)), _best_lane(k, beats, pair, lanes))
        else:

            def body(index: Index) -> None:
                def at(n: Number) -> Pair:
                    return read(k, rows, n, index.at[0], index.lanes), k.splat(k.b.trunc(k.number(n), i32), index.lanes)

                keep(index, _best(k, beats, rows.shape[0], at)[1])

            traverse(k, found.shape, [of_buffer(k, Buffer(rows.address, found.shape, dtype))], body)
        kept = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes)
        return reshaped(p, of_buffer(k, found), kept)


for _name in ("argmax", "argmin"):
    _enter(_name)
