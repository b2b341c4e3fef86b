"""Pipeline intrinsics: acquire and fill a stage, wait for it, release it. Users do not write them.

The functions do nothing in Python, but for loads; `lower.pipelines`, `lower.memory` and `nvidia.multibuffer` lower them.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from tilekit.lang import create, matmul, memory
from tilekit.lang.shape import broadcast_to

__all__ = [
    "CONSUMER", "PRODUCER", "clear", "counted", "drain", "end", "everybody", "give", "join", "last", "load_beside",
    "load_tile_like_beside", "meet", "mma_abreast", "multiple", "nth", "one_tile", "operand", "operand_tile", "part", "peek",
    "place", "put", "registers", "ring", "role", "spread", "steps", "store_piece", "sum_of_blocks", "take", "variant",
    "wait_product", "within",
]  # fmt: skip

CONSUMER, PRODUCER = 0, 1


def steps(*rows: Any) -> Any:
    """The number of turns."""


def counted(turns: Any) -> Any:
    """A number of turns as 32 bits, of which threads keep fewer registers than of an int."""
    return turns


def nth(row: Any, k: Any) -> Any:
    """Load the tile of a turn."""


def one_tile(grid: Any, index: Any) -> Any:
    """The row of one tile. An index outside of the grid is one of zeros."""


def ring(
    number: Any, stages: Any, shared: Any, follows: Any, counts: Any, summed: Any, begins: Any, *grids: Any
) -> Any:  # fmt: skip
    """A ring: stages for tiles of the first so many grids, or of the next, ...; each comes to all blocks of a cluster along the
    dimensions whose bits its number in `shared` has; those whose bits of `follows` are set lie right behind the ones before them.
    Where `summed` is a dimension (counted from the end; 0 is none), threads read across it. Along each dimension of each grid
    tiles begin a period apart, behind an offset: two numbers each (see `passes.begins`)."""


def variant(ring: Any, which: Any) -> Any:
    """The same ring, for tiles of others of its grids."""


def role() -> Any:
    """Warp specialisation, what a thread does: CONSUMER, PRODUCER, or nothing."""


def registers(role: Any, products: Any) -> Any:
    """Reallocate registers (setmaxnreg): a thread needs as many as its role does; a turn of some loop has so many `products`."""


def peek(tensor: Any, indices: Any, scope: Any) -> Any:
    """An element, for the thread that issues copies alone: what others wrote before it is there for the copies that follow."""


def clear(ring: Any, turn: Any, k: Any, *rows: Any) -> Any:
    """Zero what does not come of the tiles of a loop over rows, which has `k` turns; `turn` is the first."""


def put(ring: Any, turn: Any, k: Any, *rows: Any) -> Any:
    """Issue copies of the tiles of turn `k` of a loop, as soon as a stage is empty; `turn` counts those of all loops."""


def take(ring: Any, turn: Any, lines: Any) -> Any:
    """Wait until the stage of a turn is full. The statements on the given lines run once in it."""


def operand(tile: Any, renewed: Any) -> Any:
    """A tile as products take it, so that it need not be converted in each turn; `renewed` if the loop computes it anew."""


def operand_tile(tile: Any) -> Any:
    """A tile in a stage, in the registers of the threads that take it for the first operand of a product."""
    return tile


def spread(dtype: Any, extents: Any, tile: Any) -> Any:
    """A row or column as a whole tile, whose elements lie as those of a product whose operands are of `dtype`."""
    return broadcast_to(tile, extents)


def wait_product(product: Any, *later: Any) -> Any:
    """Wait for a product (wgmma.wait_group), and not for those that were asked for later."""


def join(*tiles: Any) -> Any:
    """Sums of products that are taken as one: `mma_abreast` adds to them."""
    return tiles


def part(joined: Any, which: Any) -> Any:
    """One of them."""
    return joined[which]


def mma_abreast(a: Any, b: Any, acc: Any, precision: Any = "ieee") -> Any:
    """`tk.mma` of a tile with each of the tiles `b`, as one product, which is added to sums that were joined."""
    return tuple(matmul.mma(a, tile, total, precision=precision) for tile, total in zip(b, acc, strict=True))


def multiple(number: Any, of: Any) -> Any:
    """The number, of which it is known that it is a multiple."""
    return number


def within(shape: Any, factors: Any, *sums: Any) -> Any:
    """A mask of a tile of two dimensions: where `a * row + b * column + sum <= 0`, for each sum and the next two
    factors `a` and `b`."""
    row, column = create.arange(shape[0])[:, None], create.arange(shape[1])[None, :]
    masks = [row * a + column * b + sum_ <= 0 for a, b, sum_ in zip(factors[::2], factors[1::2], sums, strict=True)]
    return functools.reduce(operator.and_, masks)


def everybody(tiles: Any) -> Any:
    """The tiles that a block visits, where several visit each tile together: all of them, and not the first alone."""
    return tiles


def place(blocks: Any) -> Any:
    """The number of a block among so many that visit a tile together."""
    return 0


def meet(blocks: Any, sizes: Any) -> Any:
    """Make room in the shared memory of so many blocks for what the others send them: pieces of tiles, of so many bytes."""


def sum_of_blocks(number: Any, blocks: Any, pieces: Any, tile: Any) -> Any:
    """A piece of the sum of the tiles that so many blocks have, in as many of them as there are pieces of their columns: that of
    its place. The blocks send theirs to each other, once for each number, which is that of a size in `meet`."""
    return create.zeros((*tile.shape[:-1], tile.shape[-1] // pieces), tile.dtype) if pieces > 1 else tile


def store_piece(array: Any, value: Any, tile: Any, rank: Any, pieces: Any, eviction_policy: Any = "evict_normal") -> None:
    """Store a piece of the columns of a tile of a mapped partition: that of a block among so many."""


def give(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """Release a turn's stage; or, if a product that reads them may stay under way in the next turn, with those of the turn
    before. `k` is 0 if there is no next one. The statements on the given lines run once in each turn."""


def drain(ring: Any, turn: Any) -> Any:
    """Wait until all stages are empty; `turn` is the next. The other blocks of a cluster tell a block that they have read one,
    and must not find it gone: distributed shared memory is there while its block is."""


def end() -> Any:
    """All is done."""


def last(ring: Any, turn: Any, k: Any, lines: Any) -> Any:
    """The loop is over, which had `k` turns; `turn` is the next."""


def load_beside(
    dtype: Any, array: Any, index: Any, shape: Any, order: Any = "C", padding_mode: Any = "zero", mask: Any = None,
    padding_value: Any = None, eviction_policy: Any = "evict_normal",
) -> Any:  # fmt: skip
    """`tk.load`, to the threads that have these elements of a product whose operands are of `dtype`."""
    fill = {"padding_mode": padding_mode, "padding_value": padding_value}
    return memory.load(array, index, shape, order=order, mask=mask, eviction_policy=eviction_policy, **fill)


def load_tile_like_beside(
    dtype: Any, array: Any, like: Any, padding_mode: Any = "zero", eviction_policy: Any = "evict_normal"
) -> Any:
    """`tk.load_tile_like`, likewise."""
    return memory.load_tile_like(array, like, padding_mode=padding_mode, eviction_policy=eviction_policy)
