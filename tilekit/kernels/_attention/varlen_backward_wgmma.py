"""The gradients of attention of packed sequences where warpgroups multiply tiles in shared memory (sm_90).

`backward_dkv` is as that of `backward` which adds up the gradients by queries too: nothing is computed twice. Tiles begin
where sequences do, so the last of each may hold others' queries or keys. These have no weights, which makes nothing of them,
unless they are infinite or no number. `meet_others` marks the sequences that meet such; they are left to others.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._attention.backward import as_held, of_held
from tilekit.kernels._attention.mask import seen
from tilekit.kernels._attention.online_softmax import LOG2_E
from tilekit.kernels._attention.varlen import finite_outside
from tilekit.kernels._attention.varlen_schedule import bounds_of, range_at, visit_at

__all__ = ["backward_dkv", "meet_others", "of_sums"]

BM, BN, BD, BS = tk.generics("BM BN BD BS")


@tk.kernel
def meet_others(
    marks: tk.InOut, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, starts: tk.In, key_starts: tk.In, key_heads: int
):  # fmt: skip
    """Mark the sequences in whose last tiles others have what is infinite or no number, and the first part if there are any.

    There is a block for each, and each head.
    """
    part, h = tk.bid(0) + 1, tk.bid(1)
    begin, end = bounds_of(part, starts, q.shape[1])
    queries = end - begin
    i = max(0, queries - 1) // BN
    fine = finite_outside(tk.load(q.slice(1, begin), (h, i, 0), (1, BN, BD)).reshape((BN, BD)), i * BN, 0, queries)
    fine = fine and finite_outside(tk.load(grad.slice(1, begin), (h, i, 0), (1, BN, BD)).reshape((BN, BD)), i * BN, 0, queries)
    if h < key_heads:
        begin, end = bounds_of(part, key_starts, k.shape[1])
        keys = end - begin
        j = max(0, keys - 1) // BM
        fine = fine and finite_outside(tk.load(k.slice(1, begin), (h, j, 0), (1, BM, BD)).reshape((BM, BD)), j * BM, 0, keys)
        fine = fine and finite_outside(tk.load(v.slice(1, begin), (h, j, 0), (1, BM, BD)).reshape((BM, BD)), j * BM, 0, keys)
    if not fine:
        tk.atomic_max(marks, (part,), 1)
        tk.atomic_max(marks, (0,), 1)


@tk.kernel
def backward_dkv(
    dk: tk.Out, dv: tk.Out, dq: tk.InOut, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, marks: tk.In,
    visits: tk.In, scale: float, left: int, right: int, group: int, together: tk.Const, below: tk.Const, above: tk.Const,
    stages: tk.Const, early: tk.Const,
):  # fmt: skip
    """`dq` holds `BS` floats for each visit of a tile of queries: see `of_sums`. `early` as in the other.

    Blocks of `together` heads run side by side, as their queries and keys lie in memory.
    """
    h, visit = tk.bid(1) * together + tk.bid(0) % together, tk.bid(0) // together
    j, part, key_begin, key_end, _, _ = visit_at(visits, visit)
    if j >= 0 and tk.load(marks, part, ()).item() == 0:
        edges = 1
        if below or above:
            edges = 2
        factor = scale * LOG2_E
        for tkey, tvalue in tk.pipelined(
            k.slice(1, key_begin).tiles((1, BM, BD))[h, j : j + 1, 0],
            v.slice(1, key_begin).tiles((1, BM, BD))[h, j : j + 1, 0],
            stages=1,
        ):
            dk_acc, dv_acc = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, BD), tk.float32)
            at = h * group
            while at < (h + 1) * group:
                begin, first_visit, _, low, high, _ = _queries_at(visits, visit)
                i = first_visit + low
                for tq, tg, shift, less in tk.pipelined(
                    q.slice(1, begin).tiles((1, BN, BD))[at, low:high, 0],
                    grad.slice(1, begin).tiles((1, BN, BD))[at, low:high, 0],
                    sums.tiles((1, BN))[at, first_visit + low : first_visit + high],
                    delta.tiles((1, BN))[at, first_visit + low : first_visit + high],
                    stages=stages,
                ):
                    nothing = tk.zeros((BM, BN), tk.float32)
                    scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), nothing)
                    dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), nothing)
                    p = tk.exp2(scores * factor + shift, flush_to_zero=True)
                    weights = p.astype(v.dtype)
                    dv_acc = tk.mma(weights, tg.reshape((BN, BD)), dv_acc)
                    ds = (p * (dp + less)).astype(k.dtype)
                    if early:
                        dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                    dk_acc = tk.mma(ds, tq.reshape((BN, BD)), dk_acc)
                    if not early:
                        dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                    tk.atomic_add_tile(dq, (at, i, 0), as_held(dq_part).reshape((1, 1, BS)))
                    i += 1
                for edge in range(edges):
                    begin, first_visit, first, low, high, last = _queries_at(visits, visit)
                    j, _, key_begin, key_end, _, end = visit_at(visits, visit)
                    queries, keys = end - begin, key_end - key_begin
                    # What bounds the keys of a query bounds the queries of a key from the other side.
                    diagonal = j * BM + queries - keys
                    i, stop = high, last
                    if edge > 0:
                        i, stop = first, low
                    for tq, tg, shift, less in tk.pipelined(
                        q.slice(1, begin).tiles((1, BN, BD))[at, i:stop, 0],
                        grad.slice(1, begin).tiles((1, BN, BD))[at, i:stop, 0],
                        sums.tiles((1, BN))[at, first_visit + i : first_visit + stop],
                        delta.tiles((1, BN))[at, first_visit + i : first_visit + stop],
                        stages=stages,
                        split=False,
                    ):
                        nothing = tk.zeros((BM, BN), tk.float32)
                        scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), nothing)
                        dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), nothing)
                        scores = tk.where(tk.arange(BM)[:, None] + j * BM < keys, scores, float("-inf"))
                        scores = seen(scores, i * BN, queries, diagonal, right, left, above, below)
                        p = tk.exp2(scores * factor + shift, flush_to_zero=True)
                        weights = p.astype(v.dtype)
                        dv_acc = tk.mma(weights, tg.reshape((BN, BD)), dv_acc)
                        ds = tk.where(p == 0, 0.0, p * (dp + less)).astype(k.dtype)
                        dk_acc = tk.mma(ds, tq.reshape((BN, BD)), dk_acc)
                        dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                        tk.atomic_add_tile(dq, (at, first_visit + i, 0), as_held(dq_part).reshape((1, 1, BS)))
                        i += 1
                at += 1
            j, _, key_begin, key_end, _, _ = visit_at(visits, visit)
            result = (dk_acc * scale).astype(dk.dtype).reshape((1, BM, BD))
            tk.store(dk.slice(1, key_begin, key_end), (h, j, 0), result)
            tk.store(dv.slice(1, key_begin, key_end), (h, j, 0), dv_acc.astype(dv.dtype).reshape((1, BM, BD)))


@tk.function
def _queries_at(visits, visit):
    """Where the queries begin; their first visit; and of their tiles what `range_at` says, with none whole for the last keys, as
    others' are to get no weights."""
    j, part, key_begin, key_end, begin, _ = visit_at(visits, visit)
    first, low, high, last = range_at(visits, visit)
    if (j + 1) * BM > key_end - key_begin:
        high = low
    return begin, begin // BN + part, first, low, high, last


@tk.kernel
def of_sums(dq: tk.Out, sums: tk.In, marks: tk.In, visits: tk.In, scale: float):
    """The gradients by queries from their sums: a block for each visit."""
    h = tk.bid(1)
    i, part, begin, end, _, _ = visit_at(visits, tk.bid(0))
    if i >= 0 and tk.load(marks, part, ()).item() == 0:
        product = of_held(tk.load(sums, (h, tk.bid(0), 0), (1, 1, BS)))
        result = (product * scale).astype(dq.dtype).transpose().reshape((1, BN, BD))
        tk.store(dq.slice(1, begin, end), (h, i, 0), result)
