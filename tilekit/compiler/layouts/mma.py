"""Fragments of matrix products on tensor cores (mma.sync, wgmma): layouts of operands and accumulator over a block.

All instructions for matrices (`mma.sync`, of every dtype) treat the 32 lanes of a warp alike. Of the result, a lane's two lowest
bits walk columns and its three highest rows; of `a`, the two lowest walk `k` and the others rows; of `b`, the two lowest walk `k`
and the others columns. What is left of an instruction's extents lies in registers:

    instruction          a thread's registers hold
    all                  two neighbouring columns of the result
    all but m8n8k4       two rows of `a` and of the result, 8 apart
    all but m8n8k4       two groups of `k`; each fills a register: 4 8-bit elements, 2 of 16 bits, 1 float32 or float64

Which column, row or `k` of a *tile* an instruction takes for one of its own is free, as long as operands and result agree.

For operands of 16 bits they are its own, in order: `ldmatrix` reads such operands from shared memory just as instructions take
them, whichever of their dimensions is contiguous there (`conversion.Matrices`). It cannot do so for others. These are taken such
that a thread's registers hold neighbours, 16 bytes along `k` of both operands, 4 columns and 4 rows, which are read 16 bytes at a
time whichever dimension is contiguous; and 8 neighbouring columns of the result are in one thread, of float32 4, beside those of
the next.

A result of 16-bit operands has its columns where an operand `a` has its `k`: where warps share no rows, it is one as it lies.

A tile that is smaller than an instruction needs no other way: lanes for rows or columns that do not exist hold copies, and
compute them; those for a `k` that does not exist must take part with zeros (`Product.idle`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilekit.compiler.layouts.conversion import MATRIX_ITEMSIZE
from tilekit.compiler.layouts.linear import ACCESS_BYTES, Layout, Vector

__all__ = ["WARPS_OF_GROUP", "Product", "accumulator", "is_accumulator", "product", "sum_of_products", "warpgroup_accumulator"]

_LEAST_ROWS, _LEAST_COLUMNS = 4, 3  # bits of a warp's part of the result, as far as warps can be given parts of their own
_NEIGHBOURS = 2  # bits of a row's and a column's number that are in registers, before those that lanes walk
_ROW_LANES, _COLUMN_LANES, _DEPTH_LANES = 3, 2, 2
_SINGLE = 4  # bytes of a float32, which threads multiply and add by themselves, unless it is rounded for tensor cores


@dataclass(frozen=True)
class _Parts:
    """Where the bits of the result's coordinates are.

    Attributes:
        column: what the registers of an instruction walk; () if there is one column only.
        columns, rows, batch: what registers walk besides; the first of `rows` is within an instruction.
        column_lanes, row_lanes: the lanes' vectors, zero where there are no more bits.
        warp: the warps' vectors.
    """

    column: tuple[Vector, ...]
    columns: tuple[Vector, ...]
    rows: tuple[Vector, ...]
    batch: tuple[Vector, ...]
    column_lanes: tuple[Vector, ...]
    row_lanes: tuple[Vector, ...]
    warp: tuple[Vector, ...]


@dataclass(frozen=True)
class Product:
    """The layouts of a product `(..., M, K) @ (..., K, N)`, and how instructions find their registers.

    Attributes:
        a, b, acc: the operands and the result.
        packed: the bits of `k` in a 32-bit register.
        high: the bit of `k` by which an instruction's two groups differ; 0 if there is one group only.
        steps: `k` at the start of each instruction.
        row, column: what an instruction's registers of the result walk, zero if there is one row or column only.
        batches, starts: the coordinates in the result at which instructions start are the sums of one of each.
        idle: the lanes' bits for `k` that do not exist: a lane with one of them set must bring zeros.
    """

    a: Layout
    b: Layout
    acc: Layout
    packed: tuple[int, ...]
    high: int
    steps: tuple[int, ...]
    row: Vector
    column: Vector
    batches: tuple[Vector, ...]
    starts: tuple[Vector, ...]
    idle: tuple[int, ...]

    def part(self, depth: int, columns: int) -> Product:
        """The instructions that have some of so much of `k`, and of the result's columns, in one of the warps."""
        steps = tuple(k for k in self.steps if k < depth)
        return replace(self, steps=steps, starts=tuple(at for at in self.starts if at[-1] < columns))


@functools.cache
def accumulator(shape: Vector, num_warps: int, itemsize: int) -> Layout:
    """The layout of every product of this shape, `(..., M, N)`, of operands that are multiplied in so many bytes."""
    parts = _parts(shape, num_warps, itemsize)
    reg = (*parts.columns[:_NEIGHBOURS], *parts.column, *parts.rows, *parts.columns[_NEIGHBOURS:], *parts.batch)
    return Layout(shape, reg, parts.column_lanes + parts.row_lanes, parts.warp)


WARPS_OF_GROUP = 4
"""Of a warpgroup, whose instruction multiplies 64 rows: 16 for each of its warps."""


@functools.cache
def warpgroup_accumulator(shape: Vector, num_warps: int) -> Layout | None:
    """The layout of a product `(M, N)` by warpgroups; None if there is none: M is less than 64, or N too small for the groups.

    Groups of warps have rows of their own, 64 at least; if there are more groups than that, columns.
    """
    if len(shape) != 2 or num_warps < WARPS_OF_GROUP or shape[0] < 64:
        return None
    rows, columns = (
        [(1 << bit, 0) for bit in range(shape[0].bit_length() - 1)],
        [(0, 1 << bit) for bit in range(shape[1].bit_length() - 1)],
    )
    apart = []
    for _ in range((num_warps // WARPS_OF_GROUP).bit_length() - 1):
        left = rows if len(rows) > 6 else columns
        if not left:
            return None
        apart.append(left.pop())
    down = [v for v in reversed(apart) if v[0]]
    if len(columns) < 3:
        return None
    reg = (columns[0], rows[3], *columns[3:], *rows[6:])
    return Layout(shape, reg, (*columns[1:3], *rows[:3]), (*rows[4:6], *down, *[v for v in reversed(apart) if v[1]]))


@functools.cache
def is_accumulator(layout: Layout) -> bool:
    """Whether a tile lies as products do; or its rows, as those of products by warpgroups do, whatever became of the columns."""
    if len(layout.shape) < 2:
        return False
    down = next((d for d, extent in enumerate(layout.shape) if extent > 1), 0)
    rows = [tuple(1 << bit if d == down else 0 for d in range(len(layout.shape))) for bit in range(6)]
    if len(layout.warp) > 1 and (*layout.lane[2:], *layout.warp[:2]) == (*rows[:3], *rows[4:]):
        return True
    warps = 1 << len(layout.warp)
    products = [accumulator(layout.shape, warps, size) for size in (1, 2, 4)]
    return layout in (*products, warpgroup_accumulator(layout.shape, warps))


@functools.cache
def product(shape: Vector, depth: int, num_warps: int, itemsize: int, packed: int, *, wide: bool) -> Product:
    """How to compute a product with instructions for matrices.

    Args:
        shape: of the result, `(..., M, N)`.
        depth: K.
        num_warps: of the block.
        itemsize: of the operands' elements as they go through shared memory, in bytes.
        packed: how many bits of `k` are within a register of the instruction.
        wide: whether it takes two rows and two groups of `k` from a thread, or one.
    """
    parts, zero = _parts(shape, num_warps, itemsize), (0,) * len(shape)
    bits = [1 << bit for bit in range(depth.bit_length() - 1)]
    widest = (ACCESS_BYTES // itemsize).bit_length() - 1 if _near(itemsize) else packed
    near = min(len(bits), widest, max(packed, len(bits) - _DEPTH_LANES))
    walked = bits[near : near + _DEPTH_LANES]
    held = bits[:near] + bits[near + _DEPTH_LANES :]
    lanes = (*walked, *[0] * (_DEPTH_LANES - len(walked)))
    pair = held[packed : packed + wide]
    row = parts.rows[0] if wide and parts.rows else zero
    first = max(near, packed + wide)
    # In the order of an instruction's registers: those that it takes side by side are then read side by side, if they can be;
    # and what is read together is used together.
    of_a: list[Vector | int] = [*held[:packed], *parts.rows[:1], *held[packed:first]]
    of_a += [*parts.rows[1:], *held[first:], *parts.batch]
    of_b: list[Vector | int] = [*held[:first], *parts.columns, *held[first:], *parts.batch]
    across = (*(parts.column or (zero,)), *parts.column_lanes)
    return Product(
        a=_operand(shape, -2, depth, of_a, (*lanes, *parts.row_lanes), parts.warp),
        b=_operand(shape, -1, depth, of_b, (*lanes, *across), parts.warp),
        acc=accumulator(shape, num_warps, itemsize),
        packed=tuple(held[:packed]),
        high=pair[0] if pair else 0,
        steps=tuple(_sums(held[packed + wide :])),
        row=row,
        column=parts.column[0] if parts.column else zero,
        batches=_combined(parts.batch, zero),
        starts=_combined([v for v in parts.rows if v != row] + list(parts.columns), zero),
        idle=tuple(range(len(walked), _DEPTH_LANES)),
    )


@functools.cache
def sum_of_products(shape: Vector, depth: int, num_warps: int, itemsize: int = _SINGLE) -> tuple[Layout, Layout]:
    """The layouts of operands whose products each thread adds up by itself, for a result in the `accumulator` of such."""
    parts = _parts(shape, num_warps, itemsize)
    held = [1 << bit for bit in range(depth.bit_length() - 1)]
    rows: list[Vector | int] = [*held[:_NEIGHBOURS], *parts.rows, *held[_NEIGHBOURS:], *parts.batch]
    columns: list[Vector | int] = [*held[:_NEIGHBOURS], *parts.columns, *parts.column, *held[_NEIGHBOURS:], *parts.batch]
    return (
        _operand(shape, -2, depth, rows, (*(0,) * _COLUMN_LANES, *parts.row_lanes), parts.warp),
        _operand(shape, -1, depth, columns, (*parts.column_lanes, *(0,) * _ROW_LANES), parts.warp),
    )


def _operand(
    shape: Vector,
    kept: int,
    depth: int,
    registers: Sequence[Vector | int],
    lanes: Sequence[Vector | int],
    warps: Sequence[Vector],
) -> Layout:
    """The layout of an operand, that has dimension `kept` (-2 or -1) of the result's last two, and `k` in place of the other.

    Args:
        shape, kept, depth: of the result; see above; the extent of `k`.
        registers, lanes, warps: what they walk: vectors of the result; an int is a bit of `k`, 0 for none.
    """

    def within(walked: Vector | int) -> Vector:
        coordinate = [0] * len(shape) if isinstance(walked, int) else list(walked)
        coordinate[-3 - kept] = walked if isinstance(walked, int) else 0
        return tuple(coordinate)

    extents = list(shape)
    extents[-3 - kept] = depth
    return Layout(tuple(extents), *(tuple(map(within, basis)) for basis in (registers, lanes, warps)))


@functools.cache
def _parts(shape: Vector, num_warps: int, itemsize: int) -> _Parts:
    rank, zero, near, alone = len(shape), (0,) * len(shape), _near(itemsize), itemsize == _SINGLE
    left = [extent.bit_length() - 1 for extent in shape]  # the highest bits go to the warps

    def vectors(dim: int, first: int, count: int | None = None) -> tuple[Vector, ...]:
        """Of a dimension's bits `count`, or all that are left."""
        last = left[dim] if count is None else min(first + count, left[dim])
        return tuple(tuple(1 << bit if d == dim else 0 for d in range(rank)) for bit in range(first, last))

    warp = []
    for _ in range(num_warps.bit_length() - 1):
        dim = _halved(left, alone=alone)
        if dim is None:
            warp.append(zero)
            continue
        left[dim] -= 1
        warp.append(tuple(1 << left[dim] if d == dim else 0 for d in range(rank)))
    rows, columns = rank - 2, rank - 1
    near_columns = max(0, min(near, left[columns] - _COLUMN_LANES - 1))
    # Lanes that hold 16 bytes next to each other write whole sectors of 32 bytes at once.
    beside = alone and near_columns == _NEIGHBOURS
    column_lanes = vectors(columns, near_columns + (not beside), _COLUMN_LANES)
    near_rows = max(0, min(near, left[rows] - _ROW_LANES))
    row_lanes = vectors(rows, near_rows, _ROW_LANES)
    return _Parts(
        column=vectors(columns, near_columns + _COLUMN_LANES * beside, 1),
        columns=vectors(columns, 0, near_columns) + vectors(columns, near_columns + 1 + _COLUMN_LANES),
        rows=vectors(rows, 0, near_rows) + vectors(rows, near_rows + _ROW_LANES),
        batch=tuple(vector for dim in range(rank - 2) for vector in vectors(dim, 0)),
        column_lanes=column_lanes + (zero,) * (_COLUMN_LANES - len(column_lanes)),
        row_lanes=row_lanes + (zero,) * (_ROW_LANES - len(row_lanes)),
        warp=tuple(warp),
    )


def _near(itemsize: int) -> int:
    """How many bits of rows and columns are in registers before those that lanes walk."""
    return 0 if itemsize == MATRIX_ITEMSIZE else _NEIGHBOURS


def _halved(left: list[int], *, alone: bool) -> int | None:
    """The dimension that the next bit of the warp's number divides: a batch; else the longer side, which saves most reading.

    Where each thread reads for itself `alone`, the sides are those of what it has: 8 x 8 elements for 8 x 4 threads.
    """
    *batch, rows, columns = left
    for dim, bits in enumerate(batch):
        if bits:
            return dim
    down, across = (_ROW_LANES, _COLUMN_LANES) if alone else (0, 0)
    sides = [(rows - down, 1, len(left) - 2)] * (rows > _LEAST_ROWS)
    sides += [(columns - across, 0, len(left) - 1)] * (columns > _LEAST_COLUMNS)
    return max(sides)[-1] if sides else None


def _sums(bits: list[int]) -> list[int]:
    """The numbers made of `bits`, counting up."""
    return [sum(bit for k, bit in enumerate(bits) if n >> k & 1) for n in range(1 << len(bits))]


def _combined(vectors: Sequence[Vector], zero: Vector) -> tuple[Vector, ...]:
    """The sums of `vectors`, each taken or not, the first changing fastest."""
    sums = [zero]
    for vector in vectors:
        sums += [tuple(a | b for a, b in zip(at, vector, strict=True)) for at in sums]
    return tuple(sums)
