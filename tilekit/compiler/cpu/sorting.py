"""Operations that put the elements of a tile in order: networks of comparisons on keys, integers in the elements' order.

Batcher's bitonic network (K. E. Batcher: Sorting networks and their applications, 1968). Its stages are loops of the machine
code, so that the code does not grow with the tile: partners that are farther apart than a vector are two vectors, the others are
lanes of one. Places of elements are part of what is compared, so that of equal ones the first comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from tilekit import dtypes
from tilekit.compiler.cpu.code import Code, Number, i32, i64, type_of
from tilekit.compiler.cpu.elementwise import mapped
from tilekit.compiler.cpu.registry import lowers
from tilekit.compiler.cpu.rows import back, read, rows_of, write
from tilekit.compiler.cpu.tiles import Buffer, Index, Tile, address_of, new_buffer, traverse
from tilekit.dtypes import DType
from tilekit.lang.shape import axis_of

__all__: list[str] = []


def _keys(k: Code, x: Tile, descending: bool, signed_zeros: bool) -> Tile:
    """Signed integers in the order of the elements, NaN above all, -0 as 0 or below it; turned round for a descending order."""
    b, dtype = k.b, x.dtype
    size = dtype.itemsize
    integer = ir.IntType(8 * size)
    signed = dtypes.as_dtype(f"int{8 * size}")

    def key(value: ir.Value) -> ir.Value:
        if dtypes.is_float(dtype):
            bits = b.bitcast(value, k.with_lanes(integer, value))
            negative = b.icmp_signed("<", bits, k.like(0, bits))
            magnitude = b.and_(bits, k.like((1 << 8 * size - 1) - 1, bits))
            number = b.select(negative, b.not_(magnitude) if signed_zeros else b.neg(magnitude), magnitude)
            infinity = _infinity(dtype)
            number = b.select(b.icmp_unsigned(">", magnitude, k.like(infinity, bits)), k.like(infinity + 1, bits), number)
        elif dtype == dtypes.bool_:
            number = b.zext(value, k.with_lanes(integer, value))
        else:
            number = value if dtype.kind == "i" else b.xor(value, k.like(1 << 8 * size - 1, value))
        return b.not_(number) if descending else number

    return mapped(k, [x], signed, key, 4)


def _infinity(dtype: DType) -> int:
    """Its bits; those of NaN are above it."""
    exponent = {dtypes.float16: 5, dtypes.bfloat16: 8, dtypes.float32: 8, dtypes.float64: 11}[dtype]
    return ((1 << exponent) - 1) << 8 * dtype.itemsize - 1 - exponent


def _elements(k: Code, keys: Tile, dtype: DType, descending: bool, signed_zeros: bool) -> Tile:
    """The elements that have these keys; see `_keys`."""
    b, size = k.b, dtype.itemsize

    def element(number: ir.Value) -> ir.Value:
        number = b.not_(number) if descending else number
        if dtypes.is_float(dtype):
            negative = b.icmp_signed("<", number, k.like(0, number))
            sign = k.like(1 << 8 * size - 1, number)
            bits = b.select(negative, b.or_(b.not_(number) if signed_zeros else b.neg(number), sign), number)
            quiet = _infinity(dtype) + (1 << _fraction(dtype) - 1)
            bits = b.select(b.icmp_signed(">", number, k.like(_infinity(dtype), number)), k.like(quiet, number), bits)
            return b.bitcast(bits, k.with_lanes(type_of(dtype), bits))
        if dtype == dtypes.bool_:
            return b.icmp_unsigned("!=", number, k.like(0, number))
        return number if dtype.kind == "i" else b.xor(number, k.like(1 << 8 * size - 1, number))

    return mapped(k, [keys], dtype, element, 3)


def _fraction(dtype: DType) -> int:
    return {dtypes.float16: 10, dtypes.bfloat16: 7, dtypes.float32: 23, dtypes.float64: 52}[dtype]


def _network(k: Code, columns: Sequence[Buffer]) -> None:
    """Sort each row of the first buffer, and those of the others with it; elements of all of them are compared, in turn."""
    many, count = columns[0].shape
    widest = max(4, *(column.dtype.itemsize for column in columns))
    lanes = min(count, k.machine.vector_bytes // widest)
    b, levels = k.b, count.bit_length() - 1
    inner = lanes.bit_length() - 1

    def less(x: Sequence[ir.Value], y: Sequence[ir.Value]) -> ir.Value:
        result = b.icmp_signed("<", x[-1], y[-1])
        for u, v in zip(reversed(x[:-1]), reversed(y[:-1]), strict=True):
            result = b.or_(b.icmp_signed("<", u, v), b.and_(b.icmp_unsigned("==", u, v), result))
        return result

    def apart(row: Number, size: ir.Value, distance: ir.Value) -> None:
        """Compare and exchange all partners at a distance of a vector or more."""
        with k.counted(count // 2 // lanes) as n:
            at = b.mul(k.number(n), i64(lanes))
            low = b.and_(at, b.sub(distance, i64(1)))
            first = b.add(b.shl(b.sub(at, low), i64(1)), low)
            second = b.add(first, distance)
            x, y = ([read(k, column, row, where, lanes) for column in columns] for where in (first, second))
            up = b.icmp_unsigned("==", b.and_(first, size), i64(0))
            swap = b.xor(less(y, x), k.splat(b.not_(up), lanes))
            for column, u, v in zip(columns, x, y, strict=True):
                write(k, column, row, first, b.select(swap, v, u), lanes)
                write(k, column, row, second, b.select(swap, u, v), lanes)

    def within(row: Number, size: ir.Value) -> None:
        """Then those that are lanes of one vector."""
        with k.counted(count // lanes) as n:
            at = b.mul(k.number(n), i64(lanes))
            values = [read(k, column, row, at, lanes) for column in columns]
            places = b.add(k.splat(at, lanes), k.steps(lanes))
            down = b.icmp_unsigned("!=", b.and_(places, k.splat(size, lanes)), ir.Constant(places.type, [i64(0)] * lanes))
            for bit in reversed(range(inner)):
                distance = 1 << bit
                partner = ir.Constant(ir.VectorType(i32, lanes), [i32(lane ^ distance) for lane in range(lanes)])
                upper = ir.Constant(down.type, [down.type.element(lane >> bit & 1) for lane in range(lanes)])
                others = [b.shuffle_vector(v, v, partner) for v in values]
                # The lower lane of an ascending pair takes the less one, as does the upper lane of a descending one.
                wants_more = b.xor(down, upper)
                takes = b.select(wants_more, less(values, others), less(others, values))
                takes = b.and_(takes, k.splat(b.icmp_unsigned("<", i64(distance), size), lanes))
                values = [b.select(takes, other, v) for v, other in zip(values, others, strict=True)]
            for column, value in zip(columns, values, strict=True):
                write(k, column, row, at, value, lanes)

    if count == 1:
        return
    with k.counted(many) as row, k.counted(levels) as level:
        size = b.shl(i64(2), k.number(level))
        if levels > inner:
            far = b.sub(k.number(level), i64(inner - 1))  # how many distances there are from a vector up
            far = b.select(b.icmp_signed(">", far, i64(0)), far, i64(0))
            with k.counted(far) as nearer:
                apart(row, size, b.lshr(size, b.add(k.number(nearer), i64(1))))
        if inner:
            within(row, size)


def _ordered(p: Any, what: str, x: Tile, axis: Any, descending: bool, *, places: bool) -> tuple[list[Buffer], int]:
    """The keys in order, and the places that they come from."""
    k = p.k
    along = axis_of(axis, len(x.shape), what)
    columns = [rows_of(p, _keys(k, x, descending, signed_zeros=not places), (along,), last=True)]
    if places:
        columns.append(new_buffer(k, columns[0].shape, dtypes.int32))

        def number(index: Index) -> None:
            address, step = address_of(k, columns[1], index)
            numbers = k.splat(k.b.trunc(k.number(index.at[1]), i32), index.lanes)
            if index.along == 1:
                numbers = k.b.add(numbers, k.steps(index.lanes, i32))
            k.write(address, dtypes.int32, index.lanes, step, None, numbers)

        traverse(k, columns[1].shape, [], number)
    _network(k, columns)
    return columns, along


@lowers("sort")
def sort(p: Any, x: Tile, axis: Any, *, descending: bool) -> Tile:
    """The elements in order."""
    (keys,), along = _ordered(p, "sort", x, axis, descending, places=False)
    return _elements(p.k, back(p, keys, x.shape, along, last=True), x.dtype, descending, signed_zeros=True)


@lowers("argsort")
def argsort(p: Any, x: Tile, axis: Any, *, descending: bool) -> Tile:
    """The places of the elements in order."""
    (_, places), along = _ordered(p, "argsort", x, axis, descending, places=True)
    return back(p, places, x.shape, along, last=True)


@lowers("topk")
def topk(p: Any, x: Tile, k: int, axis: Any, *, largest: bool) -> tuple[Tile, Tile]:
    """The first elements in order, and their places."""
    columns, along = _ordered(p, "topk", x, axis, largest, places=True)
    shape = tuple(k if d == along else n for d, n in enumerate(x.shape))
    first = []
    for column in columns:
        whole = back(p, column, x.shape, along, last=True)
        first.append(Tile(shape, column.dtype, whole.element, whole.cost, whole.reads, aligned=False))
    return _elements(p.k, first[0], x.dtype, largest, signed_zeros=False), first[1]
