"""Kernels of products that are dealt out to members: `arriving` and `leaving` multiply, the others tell who has come how far.

Both are the loop of `kernels.gemm`, over the tiles of one member's rows after those of another's. All flags only grow, see
`signals`.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._collective.signals import announce, wait_for_all

__all__ = ["arriving", "leave", "leaving", "ready"]

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


@tk.kernel
def leaving(
    out: tk.InOut, a: tk.In, b: tk.In, sent: tk.InOut, done: tk.InOut, parts: tk.InOut, flags: tk.InOut, calls: tk.In, start: int,
    stop: int, rank: int, rows: int, columns: int, chunk: int, chunks: int, size: tk.Const, lanes: tk.Const, dtype: tk.Const,
    precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """Products of rows of `a`: the tiles from `start` to `stop` of those of all members' rows, of the next member's first, and of
    one's own last. Copies take the others' to them; `done` counts the tiles of each `chunk` rows of tiles. To one's own is added
    what the others sent.
    """
    call, tiles = tk.load(calls, 0, ()), rows * columns
    stored, here = -1, -1  # the chunk of the tile that was stored last, and the last one that has come
    for at in range(start + tk.bid(0), stop, tk.num_blocks(0)):
        turn = at // tiles
        n = (rank + 1 + turn) % size
        i, j = row_and_column(at % tiles, rows, columns)
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        own, part = acc.astype(parts.dtype), i // chunk
        if stored >= 0:  # it has got there while the block multiplied
            tk.atomic_add(done, stored, 1, memory_order="release", memory_scope="system")
            stored = -1
        if n != rank:
            tk.store(sent, (turn, i, j), own.reshape((1, BM, BN)))
            stored = turn * chunks + part
        else:
            if part > here:
                wait_for_all(flags, part, call, rank, size, lanes)
                here = part
            total = own.astype(dtype)
            for further in range(1, size):
                other = tk.load(parts, ((rank + further) % size, i, j), (1, BM, BN))
                total = total + other.reshape((BM, BN)).astype(dtype)
            tk.store(out, (i, j), total.astype(out.dtype))
    if stored >= 0:
        tk.atomic_add(done, stored, 1, memory_order="release", memory_scope="system")


@tk.kernel
def ready(left: tk.InOut, calls: tk.InOut, rank: int, size: tk.Const, lanes: tk.Const):
    """Another call begins, as soon as the others have read what this member sent them in the last one."""
    wait_for_all(left, 0, tk.atomic_add(calls, 0, 1), rank, size, lanes)


@tk.kernel
def leave(left: tk.InOut, calls: tk.In, rank: int, size: tk.Const, lanes: tk.Const):
    """Say that all that has come was read."""
    announce(left, 0, tk.load(calls, 0, ()), rank, size, lanes)
