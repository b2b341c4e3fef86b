"""Kernels of products that are dealt out to members: `arriving` and `leaving` multiply, the others tell who has come how far.

Both are the loop of `kernels.gemm`, over the tiles of one member's rows after those of another's. All flags only grow, see
`signals`.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._collective.signals import announce, wait_for_all

__all__ = ["arriving", "count", "leave", "leaving", "ready"]

BM, BN, BK = tk.generics("BM BN BK")

_BAND = 8  # rows of tiles that blocks visit together, column by column: they find each other's operands in the cache


@tk.function
def row_and_column(at, rows, columns):
    """Row and column of tile `at` of one member's rows."""
    band = at // (_BAND * columns)
    tall = min(_BAND, rows - band * _BAND)
    rest = at - band * _BAND * columns
    return band * _BAND + rest % tall, rest // tall


@tk.kernel
def arriving(
    out: tk.InOut, own: tk.In, a: tk.In, b: tk.In, arrivals: tk.InOut, calls: tk.In, rank: int, rows: int, columns: int,
    size: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of one's `own` rows, then of all others' rows in `a`, each as soon as it has arrived."""
    call, tiles, blocks = tk.load(calls, 0, ()), rows * columns, tk.num_blocks(0)
    for at in range(tk.bid(0), tiles, blocks):
        i, j = row_and_column(at, rows, columns)
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(own.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta, tb, acc, precision=precision)
        tk.store(out, (rank, i, j), acc.astype(out.dtype).reshape((1, BM, BN)))
    here = 0
    for at in range((tk.bid(0) + blocks - tiles % blocks) % blocks, (size - 1) * tiles, blocks):
        turn = 1 + at // tiles
        n = (rank + turn) % size
        i, j = row_and_column(at % tiles, rows, columns)
        if turn > here:
            while tk.atomic_add(arrivals, n, 0, memory_order="acquire", memory_scope="system") < call:
                pass
            here = turn
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        tk.store(out, (n, i, j), acc.astype(out.dtype).reshape((1, BM, BN)))


@tk.function
def turn_and_number(at, tiles, rounds, size: tk.Const):
    """Whose tile a block has in turn: 0 is the next member's, `size - 1` one's own; and which one it is.

    In a round the blocks have a tile of each other member's rows, and one of their own, of the round before: what is sent and
    what comes is spread over the whole time, and is there before it is needed.

    Args:
        at: how many it has had.
        tiles: of each member's rows.
        rounds: how many of them blocks have all `size` tiles in.
        size: how many members there are.
    """
    others, blocks, whole = size - 1, tk.num_blocks(0), rounds * size - 1
    if at < whole:
        turn, number = (at + 1) % size, (at + 1) // size * blocks + tk.bid(0)
        if at < others:
            turn = at
        elif turn == others:
            number -= blocks
    else:  # what makes no round: the rest of the others' tiles, and of one's own
        left = (at - max(whole, 0)) * blocks + tk.bid(0)
        rest = tiles - rounds * blocks
        if left < others * rest:
            turn, number = left // rest, rounds * blocks + left % rest
        else:
            turn, number = others, max(rounds - 1, 0) * blocks + left - others * rest
    return turn, number


@tk.kernel
def leaving(
    out: tk.InOut, a: tk.In, b: tk.In, parts: tk.InOut, flags: tk.InOut, calls: tk.In, rank: int, rows: int, tiles: int,
    rounds: int, size: tk.Const, lanes: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of all members' rows of `a`. Each goes to the member that has the rows, who adds them up."""
    call = tk.load(calls, 0, ())
    half = call % 2 * size
    to, sent = 0, -1  # the tile that was stored for another member last
    for at in range(tk.cdiv(size * tiles - tk.bid(0), tk.num_blocks(0))):
        turn, number = turn_and_number(at, tiles, rounds, size)
        n = (rank + 1 + turn) % size
        i, j = row_and_column(number, rows, tiles // rows)
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        if sent >= 0:  # it has got there while the block multiplied
            tk.atomic_xchg(flags, (to, rank, sent), call, memory_order="release", memory_scope="system")
            sent = -1
        if n != rank:
            tk.store(parts, (n, half + rank, i, j), acc.astype(parts.dtype).reshape((1, 1, BM, BN)))
            to, sent = n, number
        else:
            own = acc.astype(parts.dtype)
            wait_for_all(flags, number, call, rank, size, lanes)
            total = own.astype(dtype)
            for further in range(1, size):
                other = half + (rank + further) % size
                total = total + tk.load(parts, (rank, other, i, j), (1, 1, BM, BN)).reshape((BM, BN)).astype(dtype)
            tk.store(out, (i, j), total.astype(out.dtype))
    if sent >= 0:
        tk.atomic_xchg(flags, (to, rank, sent), call, memory_order="release", memory_scope="system")


@tk.kernel
def ready(left: tk.InOut, calls: tk.InOut, rank: int, size: tk.Const, lanes: tk.Const):
    """Another call begins, as soon as the others have read what this member sent them in the last one."""
    wait_for_all(left, 0, tk.atomic_add(calls, 0, 1), rank, size, lanes)


@tk.kernel
def leave(left: tk.InOut, calls: tk.In, rank: int, size: tk.Const, lanes: tk.Const):
    """Say that all that has come was read."""
    announce(left, 0, tk.load(calls, 0, ()), rank, size, lanes)


@tk.kernel
def count(calls: tk.InOut):
    """Another call begins."""
    tk.atomic_add(calls, 0, 1)
