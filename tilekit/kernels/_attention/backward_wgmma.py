"""The gradients of attention where warpgroups multiply tiles in shared memory (sm_90).

As in `backward`, with products under way while threads compute: the exponentials of the scores are taken while
`g @ v.T` is computed, and the products that add to a result are needed one turn later, where there are three stages. Tiles that
the mask cuts have a loop of their own: ptxas takes no product that is under way around a branch. The turns of both are written
out: of products in a function that the kernel calls, the compiler does not know that each turn has them once.

`backward_dkv` can add up the gradients by queries as well, so that no product is computed twice. Many blocks add to each of
them, in float32, in the order that chance makes.
"""

from __future__ import annotations

import tilekit as tk
from tilekit.kernels._attention.mask import hidden, seen
from tilekit.kernels._attention.online_softmax import LOG2_E

__all__ = ["as_held", "backward_dkv", "backward_dq", "of_held", "of_sums"]

BM, BN, BD, BS = tk.generics("BM BN BD BS")


@tk.kernel
def backward_dq(
    dq: tk.Out, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, scale: float, left: int, right: int,
    group: int, below: tk.Const, above: tk.Const, stages: tk.Const,
):  # fmt: skip
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    i, h = tk.num_blocks(0) - 1 - tk.bid(0), tk.bid(1)
    b = h // heads
    h = h - b * heads
    diagonal = i * BM + keys - queries
    first, last = 0, tk.cdiv(keys, BN)
    if below:
        first = max(0, diagonal - left) // BN
    if above:
        last = min(last, tk.cdiv(max(0, diagonal + min(BM, queries - i * BM) + right), BN))
    factor = scale * LOG2_E
    for tq, tg in tk.pipelined(
        q.tiles((1, 1, BM, BD))[b, h, i : i + 1, 0], grad.tiles((1, 1, BM, BD))[b, h, i : i + 1, 0], stages=1
    ):
        acc = tk.zeros((BM, BD), tk.float32)
        j = first
        for key, value in tk.pipelined(
            k.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            v.tiles((1, 1, BN, BD))[b, h // group, first:last, 0],
            stages=stages,
        ):
            nothing = tk.zeros((BM, BN), tk.float32)
            shift = tk.load(sums, (b, h, i), (1, 1, BM)).reshape((BM, 1))
            less = tk.load(delta, (b, h, i), (1, 1, BM)).reshape((BM, 1))
            scores = tk.mma(tq.reshape((BM, BD)), key.reshape((BN, BD)).transpose(), nothing)
            dp = tk.mma(tg.reshape((BM, BD)), value.reshape((BN, BD)).transpose(), nothing)
            scores = seen(scores, j * BN, keys, diagonal, left, right, below, above)
            p = tk.exp2(scores * factor + shift, flush_to_zero=True)
            ds = (p * (dp + less)).astype(k.dtype)
            acc = tk.mma(ds, key.reshape((BN, BD)), acc)
            j += 1
        tk.store(dq, (b, h, i, 0), (acc * scale).astype(dq.dtype).reshape((1, 1, BM, BD)))


@tk.kernel
def backward_dkv(
    dk: tk.Out, dv: tk.Out, dq: tk.InOut, q: tk.In, k: tk.In, v: tk.In, grad: tk.In, delta: tk.In, sums: tk.In, scale: float,
    left: int, right: int, group: int, below: tk.Const, above: tk.Const, stages: tk.Const, adds: tk.Const, early: tk.Const,
    ragged: tk.Const, wants_dk: tk.Const, wants_dv: tk.Const,
):  # fmt: skip
    """If it `adds`, `dq` holds `BS` floats, which are `BD * BN`, for each tile of queries: see `of_sums`.

    `early` is for who has the registers: products by keys are computed while threads add those by queries to the sums. `ragged`:
    the last tile of keys has some that do not exist. They are zeros, but their weights may be infinite. `wants_dk`, `wants_dv`:
    which gradients are wanted, see `_Tiling.wanted`.
    """
    queries, keys, key_heads = q.shape[2], k.shape[2], k.shape[1]
    j, h = tk.bid(0), tk.bid(1)
    b = h // key_heads
    h = h - b * key_heads
    diagonal = j * BM + queries - keys
    first, last = 0, tk.cdiv(queries, BN)
    if above:
        first = max(0, diagonal - right) // BN
    if below:
        last = min(last, tk.cdiv(max(0, diagonal + BM + left), BN))
    factor = scale * LOG2_E
    for tkey, tvalue in tk.pipelined(
        k.tiles((1, 1, BM, BD))[b, h, j : j + 1, 0], v.tiles((1, 1, BM, BD))[b, h, j : j + 1, 0], stages=1
    ):
        dk_acc, dv_acc = tk.zeros((BM, BD), tk.float32), tk.zeros((BM, BD), tk.float32)
        for which in range(group):
            at = h * group + which
            i = first
            for tq, tg, shift, less in tk.pipelined(
                q.tiles((1, 1, BN, BD))[b, at, first:last, 0],
                grad.tiles((1, 1, BN, BD))[b, at, first:last, 0],
                sums.tiles((1, 1, BN))[b, at, first:last],
                delta.tiles((1, 1, BN))[b, at, first:last],
                stages=stages,
            ):
                nothing = tk.zeros((BM, BN), tk.float32)
                scores = tk.mma(tkey.reshape((BM, BD)), tq.reshape((BN, BD)).transpose(), nothing)
                if wants_dk:
                    dp = tk.mma(tvalue.reshape((BM, BD)), tg.reshape((BN, BD)).transpose(), nothing)
                if adds and ragged:
                    scores = tk.where(tk.arange(BM)[:, None] < keys - j * BM, scores, float("-inf"))
                if above or below:  # rows are keys here, and columns queries: what bounds the one bounds the other
                    scores = seen(scores, i * BN, queries, diagonal, right, left, above, below)
                p = tk.exp2(scores * factor + shift.reshape((1, BN)), flush_to_zero=True)
                weights = p.astype(v.dtype)
                if wants_dv:
                    dv_acc = tk.mma(weights, tg.reshape((BN, BD)), dv_acc)
                if wants_dk:
                    ds = (p * (dp + less.reshape((1, BN)))).astype(k.dtype)
                    if early:
                        dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                    dk_acc = tk.mma(ds, tq.reshape((BN, BD)), dk_acc)
                if adds and not early:
                    dq_part = tk.mma(tkey.reshape((BM, BD)).transpose(), ds, tk.zeros((BD, BN), tk.float32))
                if adds:
                    tk.atomic_add_tile(dq, (b, at, i, 0), as_held(dq_part).reshape((1, 1, 1, BS)))
                i += 1
        if wants_dk:
            tk.store(dk, (b, h, j, 0), (dk_acc * scale).astype(dk.dtype).reshape((1, 1, BM, BD)))
        if wants_dv:
            tk.store(dv, (b, h, j, 0), dv_acc.astype(dv.dtype).reshape((1, 1, BM, BD)))


@tk.function
def as_held(product):
    """A product of `BD` rows and `BN` columns in the order in which threads hold it: each has 16 bytes, warps have 512."""
    return product.reshape((BD // 16, 2, 8, BN // 8, 4, 2)).permute((0, 3, 2, 4, 1, 5))


@tk.function
def of_held(held):
    """The product that `as_held` ordered so."""
    parts = held.reshape((BD // 16, BN // 8, 8, 4, 2, 2))
    return parts.permute((0, 4, 2, 1, 3, 5)).reshape((BD, BN))


@tk.kernel
def of_sums(dq: tk.Out, sums: tk.In, heads: int, scale: float):
    """The gradients by queries from their sums, as `as_held` orders them: a block for each tile of queries."""
    i, h = tk.bid(0), tk.bid(1)
    b = h // heads
    h = h - b * heads
    product = of_held(tk.load(sums, (b, h, i, 0), (1, 1, 1, BS)))
    tk.store(dq, (b, h, i, 0), (product * scale).astype(dq.dtype).transpose().reshape((1, 1, BN, BD)))
