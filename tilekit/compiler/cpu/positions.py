"""Where the largest and the smallest elements of a tile are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, Number, i32
from tilekit.compiler.cpu.convert import wide_dtype
from tilekit.compiler.cpu.elementwise import cast
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.shape import reshaped
from tilekit.compiler.cpu.tiles import (
    Buffer,
    Index,
    Tile,
    address_of,
    element_at,
    inside_or_at_edges,
    new_buffer,
    note_loop,
    of_buffer,
    traverse,
)
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


class _Best:
    """The best elements so far, lane by lane, and their places: of equal ones the first."""

    def __init__(self, k: Code, beats: Beats, first: Pair) -> None:
        self.k, self.beats, self.kinds = k, beats, [value.type for value in first]
        self.slots = [k.slot(kind) for kind in self.kinds]
        self.put(first)

    def put(self, pair: Pair) -> None:
        for slot, value in zip(self.slots, pair, strict=True):
            self.k.b.store(value, slot)

    def get(self) -> Pair:
        value, at = (self.k.b.load(slot, typ=kind) for slot, kind in zip(self.slots, self.kinds, strict=True))
        return value, at

    def meet(self, pair: Pair) -> None:
        """Look at more elements, which stand behind those before."""
        before = self.get()
        better = self.beats(pair[0], before[0])
        value, at = (self.k.b.select(better, new, old) for new, old in zip(pair, before, strict=True))
        self.put((value, at))


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


def _along(k: Code, beats: Beats, x: Tile, axes: Sequence[int], results: Buffer) -> None:
    """Where neighbours are compared: vectors of them, and the lanes at the end."""
    last = len(x.shape) - 1
    lanes = min(x.shape[last], k.machine.vector_bytes // max(4, x.dtype.itemsize))
    note_loop(k, x.shape, lanes, [x])
    counts = [n if d in axes else 1 for d, n in enumerate(x.shape)]
    with k.counters(results.shape) as row:

        def vector(at: Sequence[Number]) -> Pair:
            flat: Number = 0
            for d in axes:
                flat = k.add(k.mul(flat, x.shape[d]), at[d])
            first = k.splat(k.b.trunc(k.number(flat), i32), lanes)
            index = Index(tuple(at[d] if d in axes else row[d] for d in range(len(at))), last, lanes)
            return element_at(k, x, index, x.shape), first if lanes == 1 else k.b.add(first, k.steps(lanes, i32))

        best = _Best(k, beats, vector([0] * len(x.shape)))
        with k.counters(counts, [lanes if d == last else 1 for d in range(len(x.shape))]) as at:
            best.meet(vector(at))
        address, _ = address_of(k, results, Index(row))
        k.write(address, dtypes.int32, 1, 0, None, _best_lane(k, beats, best.get(), lanes))


def _across(k: Code, beats: Beats, x: Tile, axis: int, results: Buffer) -> None:
    """Where neighbours are of different rows: vectors of these."""

    def body(index: Index) -> None:
        def vector(n: Number) -> Pair:
            at = Index(tuple(n if d == axis else i for d, i in enumerate(index.at)), index.along, index.lanes)
            return element_at(k, x, at, x.shape), k.splat(k.b.trunc(k.number(n), i32), index.lanes)

        best = _Best(k, beats, vector(0))
        with k.counted(x.shape[axis]) as n:
            best.meet(vector(n))
        address, step = address_of(k, results, index)
        k.write(address, dtypes.int32, index.lanes, step, None, best.get()[1])

    traverse(k, results.shape, [Tile(results.shape, x.dtype, x.element, x.cost, x.reads)], body)


def _enter(name: str) -> None:
    @lowers(name)
    def lower(p: Any, x: Tile, axis: Any, *, keepdims: bool, propagate_nan: bool) -> Tile:
        k, dtype, rank = p.k, wide_dtype(x.dtype), len(x.shape)
        axes = axes_of(axis, rank, name)
        beats = _order(k, name == "argmax", dtype, propagate_nan)
        wide = cast(k, x, dtype)
        results = new_buffer(k, tuple(1 if d in axes else n for d, n in enumerate(x.shape)), dtypes.int32)
        if len(axes) < rank and rank - 1 not in axes:
            inside_or_at_edges(k, wide.windows, lambda: _across(k, beats, wide, axes[0], results))
        elif rank:
            inside_or_at_edges(k, wide.windows, lambda: _along(k, beats, wide, axes, results))
        else:
            k.write(results.address, dtypes.int32, 1, 0, None, i32(0))
        kept = tuple(1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes)
        return reshaped(p, of_buffer(k, results), kept)


for _name in ("argmax", "argmin"):
    _enter(_name)
