"""Products and attention as a user writes them, by the guide: nothing here is written for the compiler's sake."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk

__all__ = ["attention", "causal_attention", "looped", "persistent", "pipelined", "summed", "turned"]

BM, BN, BK, D = tk.generics("BM BN BK D")


@tk.kernel(num_warps=8)
def pipelined(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def looped(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.function
def _step(a, b, i, j, k, acc):
    return tk.mma(tk.load(a, (i, k), (BM, BK)), tk.load(b, (k, j), (BK, BN)), acc), k + 1


@tk.kernel(num_warps=8)
def turned(c: tk.Out, a: tk.In, b: tk.In):
    acc, k = tk.zeros((BM, BN), tk.float32), 0
    while k < tk.cdiv(a.shape[1], BK):
        acc, k = _step(a, b, tk.bid(0), tk.bid(1), k, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def summed(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def persistent(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), tk.float32)
        for k in range(tk.cdiv(a.shape[1], BK)):
            acc = tk.mma(tk.load(a, (i, k), (BM, BK)), tk.load(b, (k, j), (BK, BN)), acc)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel(num_warps=8)
def attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In):
    b, h, i = tk.bid(0) // q.shape[1], tk.bid(0) % q.shape[1], tk.bid(1)
    query = tk.load(q, (b, h, i, 0), (1, 1, BM, D)).reshape((BM, D))
    acc, total = tk.zeros((BM, D), tk.float32), tk.zeros((BM, 1), tk.float32)
    highest = tk.full((BM, 1), float("-inf"), tk.float32)
    for j in range(tk.cdiv(k.shape[2], BN)):
        key = tk.load(k, (b, h, j, 0), (1, 1, BN, D)).reshape((BN, D))
        value = tk.load(v, (b, h, j, 0), (1, 1, BN, D)).reshape((BN, D))
        scores = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        higher = tk.maximum(highest, tk.max(scores, 1, keepdims=True))
        p, shrink = tk.exp(scores - higher), tk.exp(highest - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        highest = higher
    o.store((acc / total).astype(o.dtype).reshape((1, 1, BM, D)))


@tk.kernel(num_warps=8)
def causal_attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In):
    b, h, i = tk.bid(0) // q.shape[1], tk.bid(0) % q.shape[1], tk.bid(1)
    query = tk.load(q, (b, h, i, 0), (1, 1, BM, D)).reshape((BM, D))
    acc, total = tk.zeros((BM, D), tk.float32), tk.zeros((BM, 1), tk.float32)
    highest = tk.full((BM, 1), float("-inf"), tk.float32)
    rows = i * BM + tk.arange(BM)[:, None]
    for j in range(tk.cdiv((i + 1) * BM, BN)):
        key = tk.load(k, (b, h, j, 0), (1, 1, BN, D)).reshape((BN, D))
        value = tk.load(v, (b, h, j, 0), (1, 1, BN, D)).reshape((BN, D))
        scores = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        scores = tk.where(j * BN + tk.arange(BN)[None, :] <= rows, scores, float("-inf"))
        higher = tk.maximum(highest, tk.max(scores, 1, keepdims=True))
        p, shrink = tk.exp(scores - higher), tk.exp(highest - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        highest = higher
    o.store((acc / total).astype(o.dtype).reshape((1, 1, BM, D)))
