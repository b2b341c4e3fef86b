"""How exact products of float32 are dealt out, which threads multiply and add by themselves: tiles, warps, parts of long sums.

The ways are compared by a model, in clocks: a multiprocessor has so many tiles, of which it has room for some at a time; all of
these together reach so much of the multiply-adds that it could do, one alone less, for it waits for its operands or has no warp
for each of the four schedulers. What is stored, and what is read at the start of a round, is not hidden. The numbers are those of
an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilekit.kernels._gemm.model import Product
from tilekit.kernels._host import power
from tilekit.kernels._staging import SECTOR

__all__ = ["FEW_STEPS", "ExactWay", "exact_way", "exact_ways", "fits_stages", "staged_blocks"]

FEW_STEPS = 2
"""Products of so few tiles along K, which are loaded as the loop goes, are over before any could come ahead: several blocks on a
multiprocessor, with smaller tiles, load and store while others do."""


class ExactWay(NamedTuple):
    """A way to deal a product out.

    Attributes:
        rows, columns, depth, warps: of a tile, and of a block.
        blocks: of a multiprocessor, for the launch; None leaves that to the compiler.
        room: blocks that a multiprocessor has room for.
        reached, alone: what these do together of the multiply-adds that it could do, and what one does.
        staged: whether tiles come to stages of shared memory.
        parts: that sums are taken in.
        clocks: that it takes by the model.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    blocks: int | None
    room: int
    reached: float
    alone: float
    staged: bool = False
    parts: int = 1
    clocks: float = 0.0


# Operands that come to stages: a thread has 8 x 16 elements of the result, and 174 of 216 registers of a thread hold these and
# two turns of what it multiplies, so that two blocks fit a multiprocessor; or 8 x 8, and three fit.
_STAGED = (
    ExactWay(128, 128, 16, 4, 2, 2, 0.86, 0.70, True),
    ExactWay(64, 128, 16, 4, 3, 3, 0.84, 0.62, True),
    ExactWay(128, 64, 16, 4, 3, 3, 0.84, 0.62, True),
)
_STAGED_WARPS, _STAGED_LEAST = 4, 64 * 128  # warps, and elements of tiles that come so
# Tiles that are loaded as the loop goes: 8 x 8 elements of a thread.
_LOADED = ExactWay(64, 64, 32, 2, None, 6, 0.74, 0.26)
_LOADED_LARGE = ExactWay(128, 128, 32, 4, None, 2, 0.80, 0.50)
# Others, which are cut down to the product: what threads reach by the elements that they have. With 8 x 8 of them one reads an
# operand from shared memory for each 8 products, with 4 x 4 for 4: shared memory gives a warp 128 bytes a clock.
_SIZES, _DEPTH, _SHARES = ((128, 128), (128, 64), (64, 128), (64, 64)), 16, {64: 0.77, 32: 0.65, 16: 0.42}
# Smaller ones, for products that have few of those. A step waits for its operands, and so these have fewer, of a larger depth.
_SMALL, _SMALL_DEPTH, _SMALL_SHARES = ((64, 32), (32, 64), (32, 32)), 32, {32: 0.62, 16: 0.40, 8: 0.30}
# Others, of which a thread has 4 x 16 elements, or fewer: where they spare so much of what lies beyond the product.
_FLAT, _SPARED, _FLAT_SHARES = ((32, 128), (128, 32)), 1.2, {64: 0.70, 32: 0.62, 16: 0.42}
# Multiply-adds in a clock; rows and columns of operands that come to shared memory in one, also if not 16 bytes at a time; clocks
# that a block waits for its operands, while others that are there calculate: so many warps at most, and no more than have room:
# a thread has registers for its elements of the result, what it loads of a step, and so many others.
_PRODUCTS, _BROUGHT, _BROUGHT_SINGLY, _WAITING, _WARPS = 128, 4, 2, 400, 24
_REGISTERS, _OTHERS = 2048, 48
# Two blocks of large tiles have room with so many registers; unless operands come 4 bytes at a time: then a thread has twice as
# many elements, and registers.
_LARGE, _BLOCKS = 128 * 128, 2
# Clocks of a kernel before the first tile has come and after the last, and of a round of blocks; elements that are stored in one;
# bytes that come from memory in one, or go there; clocks to the work of the next kernel.
_LATENCY, _ROUND, _STORED, _MEMORY, _NEXT = 3000, 1000, 10, 2400, 2400
_LEAST, _FEW, _MOST_SPLITS, _LEAST_SHARE, _MOST_NARROW, _ROUNDS = 16, 4, 64, 64, 32, 4
# Some multiprocessors get their blocks before others do. So where most blocks but a third have one tile more than these, all of
# those multiprocessors' blocks have: 176 x 9304 x 15272 in 657 tiles of 64 x 128, three at a time on each of 132, takes 1360 us,
# as if these were 792.
_UNEVEN = 0.75
# What lies along K comes to its stage one element at a time: so much longer takes a tile, for each element of it of which `_SOME`
# more than one come so; some come so of what lies across K, if rows begin anywhere. (240 x 6704 x 11240,
# with `b` along K: 1080 us in tiles of 64 x 128, and 996 of 128 x 64.)
_SINGLY, _SOME, _NOT_ALL = 0.08, 128, 0.5
# Rows of the result that begin within sectors of the cache: so many more elements of each row of a tile are as good as stored.
# (49 x 6046 x 1649 x 1 takes 890 us with tiles of 64 columns, and 630 with 128.)
_PARTLY = 32


def exact_way(product: Product, *, even: bool, fetched: bool, splits: int | None) -> ExactWay:
    """The way that takes the fewest clocks; see `schedules.schedule_of`."""
    return exact_ways(product, even=even, fetched=fetched, splits=splits)[0]


def exact_ways(product: Product, *, even: bool, fetched: bool, splits: int | None) -> list[ExactWay]:
    """All ways, each tile with the best number of parts: that which takes the fewest clocks comes first."""
    best = []
    for way in _ways(product.shape, product.beside, even, fetched):
        dealt = [way._replace(parts=parts) for parts in ([splits] if splits else _parts(product, way))]
        best.append(min((each._replace(clocks=clocks(product, each, even)) for each in dealt), key=lambda each: each.clocks))
    return sorted(best, key=lambda each: each.clocks)


def fits_stages(bm: int, bn: int, bk: int, warps: int, k: int) -> bool:
    """Whether tiles of exact products of float32 come to stages: if threads have much to do with them, in several steps."""
    return warps >= _STAGED_WARPS and bm * bn >= _STAGED_LEAST and -(-k // bk) > FEW_STEPS


def staged_blocks(bm: int, bn: int, warps: int) -> int | None:
    """How many blocks with such tiles in stages a multiprocessor is to have; None leaves that to the compiler."""
    return next((way.blocks for way in _STAGED if (warps, bm * bn) == (way.warps, way.rows * way.columns)), None)


def _ways(shape: tuple[int, int, int, int], beside: int, even: bool, fetched: bool) -> Iterator[ExactWay]:
    _, m, n, k = shape
    # With an element of other matrices for each of its own, a thread has no registers for large tiles.
    staged = (way for way in _STAGED if fetched and fits_stages(*way[:4], k))
    yield from (way for way in staged if not beside or way.rows * way.columns < _LARGE)
    if not (fetched or beside) and k > _LOADED_LARGE.depth:
        yield _LOADED_LARGE
    # Of so few products for what is stored, none is to be by zeros. (Each depth is another kernel to compile.)
    few = {"depth": _FEW} if k <= _FEW else {}
    loaded = (way._replace(**few) for way in (_LOADED, *_cut(m, n, beside, even)))
    yield from {way[:4]: way for way in loaded if not (fetched and fits_stages(*way[:4], k))}.values()


def _cut(m: int, n: int, beside: int, even: bool) -> Iterator[ExactWay]:
    """Tiles that are cut down to the product."""
    # Of 16 columns or fewer a thread with many elements loads much for each step (21 x 6445 x 13 x 1720: 667 us, 485).
    narrow = min(m, n) <= _LEAST
    for rows, columns in (*_SIZES, *_SMALL, *_FLAT):
        flat, small = (rows, columns) in _FLAT, (rows, columns) in _SMALL
        if flat and _beyond(m, n, rows, columns) * _SPARED > min(_beyond(m, n, *size) for size in _SIZES):
            continue
        bm, bn = (max(_LEAST, min(size, power(extent))) for size, extent in ((rows, m), (columns, n)))
        large, depth = bm * bn >= _LARGE and not beside, _SMALL_DEPTH if small or narrow else _DEPTH
        for elements, share in (_FLAT_SHARES if flat else _SMALL_SHARES if small else _SHARES).items():
            if narrow and elements > _MOST_NARROW:
                continue
            warps = max(1, min(8, bm * bn // (32 * elements)))
            warps = warps if even or not large else 4
            products, brought = bm * bn * depth / _PRODUCTS, (bm + bn) * depth / _DEPTH
            clocks = products / share + brought / (_BROUGHT if even else _BROUGHT_SINGLY)
            # One alone that has not a warp for each of the four schedulers.
            alone = clocks * max(1, 4 / warps) + _WAITING
            registers = (bm * bn + (bm + bn) * depth) / (32 * warps) + _OTHERS
            room, blocks = max(1, int(min(_WARPS, _REGISTERS / registers)) // warps), _BLOCKS if large else None
            yield ExactWay(bm, bn, depth, warps, blocks, room, products / clocks, products / alone)


def _beyond(m: int, n: int, rows: int, columns: int) -> int:
    """The elements of all such tiles of a product, cut down to it, with those beyond it."""
    rows, columns = (max(_LEAST, min(size, power(extent))) for size, extent in ((rows, m), (columns, n)))
    return -(-m // rows) * rows * -(-n // columns) * columns


def _parts(product: Product, way: ExactWay) -> list[int]:
    """Numbers of parts that give multiprocessors so many tiles each as there is room for, or fewer, or some times as many."""
    (batch, m, n, k), count = product.shape, product.count
    tiles = max(1, batch * -(-m // way.rows) * -(-n // way.columns))
    limit = max(1, min(_MOST_SPLITS, k // max(_LEAST_SHARE, way.depth)))
    return sorted({1, *(max(1, min(limit, each * count // tiles)) for each in range(1, _ROUNDS * way.room + 1))})


def clocks(product: Product, way: ExactWay, even: bool) -> float:
    """How many it takes in this way."""
    (batch, m, n, k), count = product.shape, product.count
    steps = -(-k // way.depth)
    share = -(-steps // min(way.parts, steps))
    parts = -(-steps // share)
    tiles = max(1, batch * -(-m // way.rows) * -(-n // way.columns) * parts)
    turns = -(-tiles // count)
    work = way.rows * way.columns * share * way.depth / _PRODUCTS
    if way.staged:
        if turns > way.room and tiles % (count * way.room) > _UNEVEN * count * (way.room - 1):
            turns = -(-turns // way.room) * way.room
        sides = zip((way.rows, way.columns), product.across, strict=True)
        singly = sum(size * ((0 if even else _NOT_ALL) if across else 1) for size, across in sides)
        work *= 1 + _SINGLY * (_SOME * singly / (way.rows * way.columns) - 1)

    def together(blocks: int) -> float:
        return max(blocks * work / way.reached, work / way.alone)

    rounds, rest = divmod(turns, way.room)
    taken = rounds * together(way.room) + (together(rest) if rest else 0)
    taken += turns * way.rows * way.columns / _STORED + (rounds + (rest > 0)) * _ROUND
    stored = m * n * (1 if product.begins >= SECTOR else 1 + _PARTLY / way.columns)
    moved = 4 * batch * (m * k + k * n + stored) / _MEMORY
    after = _NEXT + 8 * batch * m * n * parts / _MEMORY if parts > 1 else 0  # they are written, and read
    return float((taken**4 + moved**4) ** 0.25 + _LATENCY + after)
