"""Kernels of products that are dealt out to members: `arriving` and `leaving` multiply, the others tell who has come how far.

Both are the loop of `kernels.gemm`, over the tiles of one member's rows after those of another's. Arrivals are 0 or 1, and
set by copies; all other flags only grow, see `signals`.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._collective.signals import announce, wait_for_all

__all__ = ["arriving", "begin", "count", "leave", "leaving", "meet"]

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
    out: tk.InOut, a: tk.In, b: tk.In, arrivals: tk.InOut, rank: int, rows: int, columns: int,
    size: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of all members' rows of `a`, one's own first, each as soon as it has arrived."""
    tiles, here = rows * columns, 0
    for at in range(tk.bid(0), size * tiles, tk.num_blocks(0)):
        turn = at // tiles
        n = (rank + turn) % size
        i, j = row_and_column(at - turn * tiles, rows, columns)
        if turn > here:
            while tk.atomic_add(arrivals, n, 0, memory_order="acquire", memory_scope="system") < 1:
                pass
            here = turn
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        tk.store(out, (n, i, j), acc.astype(out.dtype).reshape((1, BM, BN)))


@tk.kernel
def leaving(
    out: tk.InOut, a: tk.In, b: tk.In, parts: tk.InOut, flags: tk.InOut, calls: tk.In, rank: int, rows: int, columns: int,
    size: tk.Const, lanes: tk.Const, dtype: tk.Const, precision: tk.Const, warp_specialize: tk.Const,
):  # fmt: skip
    """The products of all members' rows of `a`, one's own last. Each goes to the member that has the rows, who adds them up."""
    call, tiles = tk.load(calls, 0, ()), rows * columns
    half = call % 2 * size
    for at in range(tk.bid(0), size * tiles, tk.num_blocks(0)):
        turn = at // tiles
        n = (rank + 1 + turn) % size
        number = at - turn * tiles
        i, j = row_and_column(number, rows, columns)
        acc = tk.zeros((BM, BN), dtype)
        for ta, tb in tk.pipelined(a.tiles((1, BM, BK))[n, i, :], b.tiles((BK, BN))[:, j], warp_specialize=warp_specialize):
            acc = tk.mma(ta.reshape((BM, BK)), tb, acc, precision=precision)
        tk.store(parts, (n, half + rank, i, j), acc.astype(parts.dtype).reshape((1, 1, BM, BN)))
        if n != rank:
            tk.atomic_xchg(flags, (n, rank, number), call, memory_order="release", memory_scope="system")
        else:
            # One's own part is read again, too: all are read alike then, and no elements change threads.
            wait_for_all(flags, number, call, rank, size, lanes)
            total = tk.load(parts, (rank, half, i, j), (1, 1, BM, BN)).reshape((BM, BN)).astype(dtype)
            for other in range(1, size):
                total = total + tk.load(parts, (rank, half + other, i, j), (1, 1, BM, BN)).reshape((BM, BN)).astype(dtype)
            tk.store(out, (i, j), total.astype(out.dtype))


@tk.kernel
def begin(left: tk.InOut, calls: tk.In, rank: int, size: tk.Const, lanes: tk.Const):
    """Wait until the others have taken what was there in the last call."""
    wait_for_all(left, 0, tk.load(calls, 0, ()), rank, size, lanes)


@tk.kernel
def meet(ready: tk.InOut, arrivals: tk.InOut, calls: tk.InOut, rank: int, size: tk.Const, lanes: tk.Const):
    """Another call begins: nothing has arrived but what is one's own, which all may take, and so may this member theirs."""
    call = tk.atomic_add(calls, 0, 1) + 1
    ranks = tk.arange(lanes)
    tk.scatter(arrivals, ranks, tk.where(ranks == rank, 1, 0).astype(arrivals.dtype), mask=ranks < size)
    announce(ready, 0, call, rank, size, lanes)
    wait_for_all(ready, 0, call, rank, size, lanes)


@tk.kernel
def leave(left: tk.InOut, calls: tk.In, rank: int, size: tk.Const, lanes: tk.Const):
    """Say that all has been taken."""
    announce(left, 0, tk.load(calls, 0, ()), rank, size, lanes)


@tk.kernel
def count(calls: tk.InOut):
    """Another call begins."""
    tk.atomic_add(calls, 0, 1)
