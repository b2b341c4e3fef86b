"""Lowering of `tilekit.lang.reduction`: reduction trees in registers, butterfly shuffles, shared memory between warps.

A dimension's bits lie in registers, lanes and warps (see `layouts.linear`). They are folded in this order: registers in a tree;
lanes by butterfly shuffles, after which all of them hold the result; and the warps' results, if several warps share the
dimension, through shared memory, where each thread reads them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types

from tilekit import dtypes
from tilekit.compiler.codegen import arithmetic
from tilekit.compiler.codegen import shared_memory as shared
from tilekit.compiler.codegen.convert import convert
from tilekit.compiler.codegen.convert_layout import exchange, thread_bit
from tilekit.compiler.codegen.definition import lowers
from tilekit.compiler.codegen.diagnose import in_words, reject
from tilekit.compiler.codegen.emit import pack, special_register, thread_coordinates, unpack, xor_of_bits
from tilekit.compiler.codegen.types import TileType, integer
from tilekit.compiler.layouts.linear import HardwareBit, Layout
from tilekit.compiler.lower.combining import Operands, calling, flag
from tilekit.compiler.lower.shape import constant, the_tile
from tilekit.dtypes import DType
from tilekit.lang import reduction as lang
from tilekit.lang.shape import axes_of

__all__ = ["Column", "fold", "result_layout"]

Elements = list[ir.Value]
Combine = Callable[[ir.IRBuilder, Sequence[ir.Value], Sequence[ir.Value]], Sequence[ir.Value]]


class Column:
    """One of the values that are folded together: its dtype, and its elements by register."""

    __slots__ = ("dtype", "elements")

    def __init__(self, dtype: DType, elements: Elements) -> None:
        self.dtype, self.elements = dtype, elements


def result_layout(layout: Layout, axes: tuple[int, ...], keepdims: bool) -> Layout:
    """The layout of a tile that was folded along `axes`."""
    result = layout.without(axes)
    for axis in sorted(axes) if keepdims else ():
        result = result.expand_dims(axis)
    return result


def fold(
    builder: ir.IRBuilder,
    columns: Sequence[Column],
    layout: Layout,
    axes: tuple[int, ...],
    combine: Combine,
    num_threads: int,
    *,
    ordered: bool = False,
    fused: bool = False,
) -> list[Elements]:
    """Reduce: fold tiles of one layout, element by element together, along `axes`. All threads of the block take part.

    Args:
        builder: at the place of the operation.
        columns: what is folded; `combine` gets an element of each.
        layout: theirs.
        axes: the dimensions.
        combine: of two rows of elements; associative and commutative. Given in the same order in every thread if `ordered`.
        num_threads: of the block.
        ordered: `combine` may round differently if its arguments are exchanged, and threads that hold copies must agree.
        fused: `combine` adds floats, so that the multiplication of a product goes into it.

    Returns:
        For each column its results, by register of `layout.without(axes)`.
    """
    result = layout.without(axes)
    kept = [d for d in range(len(layout.shape)) if d not in axes]
    groups: dict[int, list[int]] = {}
    for register, at in enumerate(layout.coordinates()):
        groups.setdefault(result.register_of(tuple(at[d] for d in kept)), []).append(register)
    operands = [list(row) for row in zip(*(column.elements for column in columns), strict=True)]
    together = _chains if fused else _tree
    rows = [together(builder, [operands[r] for r in groups[g]], combine) for g in range(result.num_registers)]
    for bit, vector in enumerate(layout.lane):
        if any(vector[a] for a in axes):
            rows = _with_partner(builder, rows, columns, HardwareBit("lane", bit), bit, combine, num_threads, ordered)
    warps = [bit for bit, vector in enumerate(layout.warp) if any(vector[a] for a in axes)]
    if warps:
        rows = _across_warps(builder, rows, columns, result, warps, len(layout.lane), combine)
    return [[row[k] for row in rows] for k in range(len(columns))]


# So many hide the latency of an addition, 4 cycles.
_CHAINS = 8


def _chains(builder: ir.IRBuilder, rows: list[Any], combine: Combine) -> Any:
    """Reduction tree: fold many registers in chains side by side, and these in a tree.

    Of products a chain takes one instruction an element, the multiplication and the addition in one. A tree takes one and a half:
    its first additions have two products each, of which one goes into them.
    """
    if len(rows) > 2 * _CHAINS:
        chains = rows[:_CHAINS]
        for number, row in enumerate(rows[_CHAINS:]):
            chains[number % _CHAINS] = combine(builder, chains[number % _CHAINS], row)
        rows = chains
    return _tree(builder, rows, combine)


def _tree(builder: ir.IRBuilder, rows: list[Any], combine: Combine) -> Any:
    while len(rows) > 1:
        rows = [combine(builder, *rows[k : k + 2]) if k + 1 < len(rows) else rows[k] for k in range(0, len(rows), 2)]
    return rows[0]


def _with_partner(
    builder: ir.IRBuilder,
    rows: list[Any],
    columns: Sequence[Column],
    hardware: HardwareBit,
    bit: int,
    combine: Combine,
    num_threads: int,
    ordered: bool,
) -> list[Any]:
    theirs = [exchange(builder, [row[k] for row in rows], c.dtype, hardware, num_threads) for k, c in enumerate(columns)]
    folded = []
    for row, other in zip(rows, zip(*theirs, strict=True), strict=True):
        if ordered:
            upper = thread_bit(builder, bit)
            first = [builder.select(upper, b, a) for a, b in zip(row, other, strict=True)]
            second = [builder.select(upper, a, b) for a, b in zip(row, other, strict=True)]
            folded.append(combine(builder, first, second))
        else:
            folded.append(combine(builder, row, other))
    return folded


def _across_warps(
    builder: ir.IRBuilder,
    rows: list[Any],
    columns: Sequence[Column],
    result: Layout,
    warps: list[int],
    lane_bits: int,
    combine: Combine,
) -> list[Any]:
    """Fold what the warps have: `[result][warp]` in shared memory, so that a result's parts are read side by side."""
    parts, total = 1 << len(warps), 1
    for extent in result.shape:
        total *= extent
    flat, threads = result.reshape((total,)), total // len(rows)
    # As many registers' results at once as have room; bits of the register number that count the turns have no place.
    at_once = shared.at_once(len(rows), sum(-(-threads * parts * column.dtype.itemsize // 16) * 16 for column in columns))
    at_once = 1 << at_once.bit_length() - 1
    turns = sum(vector[0] for vector in flat.reg[at_once.bit_length() - 1 :])
    thread = special_register(builder, "tid.x")
    masks = [_squeezed(vector[0], turns) * parts for vector in flat.thread]
    for part, warp in enumerate(warps):  # a bit of these warps' numbers moves no coordinate of the result
        masks[lane_bits + warp] = 1 << part
    mine = xor_of_bits(builder, thread, masks)
    first = xor_of_bits(builder, thread, [_squeezed(vector[0], turns) * parts for vector in flat.thread])
    starts = [0]
    for column in columns:  # each of them aligned for accesses of 16 bytes
        starts.append(starts[-1] + -(-threads * at_once * parts * column.dtype.itemsize // 16) * 16)
    offsets = [_squeezed(at[0], turns) * parts for at in flat.coordinates()[:at_once]]
    folded: list[Any] = []
    for start in range(0, len(rows), at_once):
        base = shared.room(builder, starts[-1], "what the warps have")
        folded += _met(builder, rows[start : start + at_once], columns, base, (mine, first), starts, offsets, parts, combine)
    return folded


def _squeezed(number: int, bits: int) -> int:
    """A number without these of its bits; higher ones move down."""
    for bit in reversed(range(bits.bit_length())):
        if bits >> bit & 1:
            number = number >> bit + 1 << bit | number & (1 << bit) - 1
    return number


def _met(
    builder: ir.IRBuilder,
    rows: list[Any],
    columns: Sequence[Column],
    base: ir.Value,
    places: tuple[ir.Value, ir.Value],
    starts: list[int],
    offsets: list[int],
    parts: int,
    combine: Combine,
) -> list[Any]:
    """Put rows into shared memory, and fold what all warps have put there; `places`: of a thread's own, of the first warp's."""
    mine, first = places
    for k, column in enumerate(columns):
        address, itemsize = shared.at(builder, base, mine, column.dtype.itemsize), column.dtype.itemsize
        for row, offset in zip(rows, offsets, strict=True):
            shared.put(builder, address, starts[k] + offset * itemsize, column.dtype, [row[k]])
    shared.barrier(builder)
    read: list[list[Elements]] = []  # by column and row, what the warps have
    for k, column in enumerate(columns):
        address, itemsize = shared.at(builder, base, first, column.dtype.itemsize), column.dtype.itemsize
        step = min(parts, 16 // itemsize)
        read.append([])
        for offset in offsets:
            places = [starts[k] + (offset + part) * itemsize for part in range(0, parts, step)]
            pieces = [shared.get(builder, address, at, column.dtype, step) for at in places]
            read[k].append([element for piece in pieces for element in piece])
    return [_tree(builder, list(zip(*row, strict=True)), combine) for row in zip(*read, strict=True)]


# ------------------------------------------------------------------------------------------------------------------ operations


def _folded(
    what: str,
    tile: TileType,
    axes: tuple[int, ...],
    keepdims: bool,
    through: DType,
    result: DType,
    combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value],
    *,
    fused: bool = False,
) -> Any:
    """The type of a fold of one tile in dtype `through`, converted to `result` afterwards, and how to emit it; `fused` as for
    `fold`.
    """
    layout = result_layout(tile.layout, axes, keepdims)

    def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
        column = Column(through, [convert(builder, e, tile.dtype, through) for e in unpack(builder, value)])

        def both(b: ir.IRBuilder, x: Sequence[ir.Value], y: Sequence[ir.Value]) -> Sequence[ir.Value]:
            return [combine(b, x[0], y[0])]

        (results,) = fold(builder, [column], tile.layout, axes, both, tile.config.num_threads, fused=fused)
        return pack(builder, [convert(builder, e, through, result) for e in results])

    return TileType(result, layout, tile.config, splat=tile.splat), emit


def _through(dtype: DType) -> DType:
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype


def _axes(tile: TileType, axis: types.Type, what: str) -> tuple[int, ...]:
    return in_words(what, axes_of, constant(axis, what, "the axis"), len(tile.shape))


def _arithmetic(what: str, symbol: str) -> Callable[..., Any]:
    def define(x: types.Type, axis: types.Type, keepdims: types.Type) -> Any:
        tile = the_tile(x, what)
        if problem := dtypes.no_arithmetic(tile.dtype):
            reject(what, problem)
        result = lang.sum_dtype(tile.dtype)
        through = _through(result)
        keep, combine = flag(keepdims, what, "keepdims"), arithmetic.binary(symbol, through)
        fused = symbol == "+" and dtypes.is_float(through)
        return _folded(what, tile, _axes(tile, axis, what), keep, through, result, combine, fused=fused)

    return define


lowers(lang.sum_)(_arithmetic("sum", "+"))
lowers(lang.prod)(_arithmetic("prod", "*"))


def _extreme(what: str, name: str) -> Callable[..., Any]:
    def define(x: types.Type, axis: types.Type, keepdims: types.Type, propagate_nan: types.Type) -> Any:
        tile = the_tile(x, what)
        if problem := lang.reducible(tile.dtype, what):
            reject(what, problem)
        through = _through(tile.dtype)
        propagate = flag(propagate_nan, what, "propagate_nan")
        choose = arithmetic.extremum(name, through) if propagate else arithmetic.extremum_of_numbers(name, through)
        return _folded(what, tile, _axes(tile, axis, what), flag(keepdims, what, "keepdims"), through, tile.dtype, choose)

    return define


lowers(lang.max_)(_extreme("max", "maximum"))
lowers(lang.min_)(_extreme("min", "minimum"))


def _truth(what: str, symbol: str) -> Callable[..., Any]:
    def define(x: types.Type, axis: types.Type, keepdims: types.Type) -> Any:
        tile = the_tile(x, what)
        # A bool is a bit; as an integer it is shuffled without being widened and narrowed each time.
        combine = arithmetic.BITWISE[symbol]
        axes, keep = _axes(tile, axis, what), flag(keepdims, what, "keepdims")
        result, emit = _folded(what, tile.like(dtypes.bool_), axes, keep, dtypes.bool_, dtypes.bool_, combine)

        def emit_truth(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            return emit(builder, pack(builder, [convert(builder, e, tile.dtype, dtypes.bool_) for e in unpack(builder, value)]))

        return result, emit_truth

    return define


lowers(lang.any_)(_truth("any", "|"))
lowers(lang.all_)(_truth("all", "&"))


def _position(what: str, symbol: str) -> Callable[..., Any]:
    def define(x: types.Type, axis: types.Type, keepdims: types.Type, propagate_nan: types.Type) -> Any:
        tile = the_tile(x, what)
        if problem := lang.reducible(tile.dtype, what):
            reject(what, problem)
        along = constant(axis, what, "the axis")
        if isinstance(along, tuple):
            reject(what, f"the axis is an int, or None for the position among all elements, not {along!r}")
        keep, propagate = flag(keepdims, what, "keepdims"), flag(propagate_nan, what, "propagate_nan")
        rank = len(tile.shape)
        if along is None:  # the elements in a row
            layout, axes = tile.layout.reshape((1 << sum(n.bit_length() - 1 for n in tile.shape),)), (0,)
            result = layout.without(axes).reshape((1,) * rank if keep else ())
        else:
            layout, axes = tile.layout, in_words(what, axes_of, along, rank)
            result = result_layout(layout, axes, keep)
        through = _through(tile.dtype)
        beats = _beats(symbol, through, propagate)

        def choose(b: ir.IRBuilder, x: Sequence[ir.Value], y: Sequence[ir.Value]) -> Sequence[ir.Value]:
            first = beats(b, x, y)
            return [b.select(first, p, q) for p, q in zip(x, y, strict=True)]

        def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
            values = Column(through, [convert(builder, e, tile.dtype, through) for e in unpack(builder, value)])
            (dim,) = axes
            start = thread_coordinates(builder, special_register(builder, "tid.x"), layout.thread)[dim]
            places = Column(dtypes.int32, [builder.or_(start, integer(32, at[dim])) for at in layout.coordinates()])
            _, positions = fold(builder, [values, places], layout, axes, choose, tile.config.num_threads)
            return pack(builder, positions)

        return TileType(dtypes.int32, result, tile.config), emit

    return define


def _beats(symbol: str, dtype: DType, propagate_nan: bool) -> Callable[..., ir.Value]:
    """Whether (value, place) comes before another: the better value; of equal ones the first."""
    better, equal = arithmetic.compare(symbol, dtype), arithmetic.compare("==", dtype)

    def beats(b: ir.IRBuilder, x: Sequence[ir.Value], y: Sequence[ir.Value]) -> ir.Value:
        wins, ties = better(b, x[0], y[0]), equal(b, x[0], y[0])
        if dtypes.is_float(dtype):
            mine, other = (b.fcmp_unordered("uno", v, v) for v in (x[0], y[0]))
            alone = b.and_(mine, b.not_(other)) if propagate_nan else b.and_(other, b.not_(mine))
            wins, ties = b.or_(wins, alone), b.or_(ties, b.and_(mine, other))
        return b.or_(wins, b.and_(ties, b.icmp_signed("<", x[1], y[1])))

    return beats


lowers(lang.argmax)(_position("argmax", ">"))
lowers(lang.argmin)(_position("argmin", "<"))


@lowers(lang.reduce)
def reduce(x: types.Type, axis: types.Type, func: types.Type, identity: types.Type, keepdims: types.Type) -> Any:
    operands = Operands(x, "reduce")
    layout = operands.layout
    axes = in_words("reduce", axes_of, constant(axis, "reduce", "the axis"), len(layout.shape))
    keep = flag(keepdims, "reduce", "keepdims")
    combine = calling(func, identity, operands, "reduce")
    result, finish = operands.result(result_layout(layout, axes, keep))

    def emit(builder: ir.IRBuilder, value: ir.Value, *_: ir.Value) -> ir.Value:
        rows = operands.elements(builder, value)
        columns = [Column(tile.dtype, held) for tile, held in zip(operands.tiles, rows, strict=True)]
        return finish(builder, fold(builder, columns, layout, axes, combine, operands.num_threads, ordered=True))

    return result, emit
