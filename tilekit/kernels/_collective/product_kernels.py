"""Kernels of products that are dealt out to members: `arriving`, `leaving` and `adding` multiply, the others tell who has come.

All three are the loop of `kernels.gemm`, over tiles of one's own rows or of others'. Flags of members only grow, see `signals`.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._collective.signals import announce, wait_for_all

__all__ = ["adding", "arriving", "leave", "leaving", "ready"]

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
    sent: tk.Out, a: tk.In, b: tk.In, done: tk.InOut, rank: int, chunk: int, chunks: int,
    size: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of all others' rows of `a`, the next member's first. Copies take them there; `done` counts the tiles of each
    `chunk` rows of tiles.
    """
    stored = -1  # the chunk of the tile that was stored last
    for tile in sent.tiles():
        turn, i, j = tile.index
        n = (rank + 1 + turn) % size
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        if stored >= 0:  # it has got there while the block multiplied
            tk.atomic_add(done, stored, 1, memory_order="release", memory_scope="system")
        sent.store(acc.astype(sent.dtype).reshape((1, BM, BN)), tile)
        stored = turn * chunks + i // chunk
    if stored >= 0:
        tk.atomic_add(done, stored, 1, memory_order="release", memory_scope="system")


@tk.kernel
def adding(
    out: tk.Out, a: tk.In, b: tk.In, parts: tk.InOut, flags: tk.InOut, calls: tk.In, rank: int, chunk: int,
    size: tk.Const, lanes: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of one's own rows, `a`, and what the others sent of them, as soon as each `chunk` rows of tiles have come."""
    call, here = tk.load(calls, 0, ()), -1
    for tile in out.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta, tb, acc, precision=precision)
        total, part = acc.astype(parts.dtype).astype(dtype), i // chunk
        if part > here:
            wait_for_all(flags, part, call, rank, size, lanes)
            here = part
        for further in range(1, size):
            other = tk.load(parts, ((rank + further) % size, i, j), (1, BM, BN))
            total = total + other.reshape((BM, BN)).astype(dtype)
        out.store(total.astype(out.dtype), tile)


@tk.kernel
def ready(left: tk.InOut, calls: tk.InOut, rank: int, size: tk.Const, lanes: tk.Const):
    """Another call begins, as soon as the others have read what this member sent them in the last one."""
    wait_for_all(left, 0, tk.atomic_add(calls, 0, 1), rank, size, lanes)


@tk.kernel
def leave(left: tk.InOut, calls: tk.In, rank: int, size: tk.Const, lanes: tk.Const):
    """Say that all that has come was read."""
    announce(left, 0, tk.load(calls, 0, ()), rank, size, lanes)
