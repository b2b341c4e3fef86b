"""Attention as users write it: whatever the spelling, the loop is rotated, its tiles come ahead, and no register spills."""

from __future__ import annotations

import random

import attending
import hazards
import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api, kernels

BM, BN, D = tk.generics("BM BN D")


@tk.kernel(num_warps=8)
def looped(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    m, total, acc = tk.full((BM, 1), float("-inf"), tk.float32), tk.zeros((BM, 1), tk.float32), tk.zeros((BM, D), tk.float32)
    for j in range(tk.cdiv(k.shape[1], BN)):
        key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
        value = tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D))
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp(s - higher), tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        m = higher
    o.store((acc / total).astype(o.dtype).reshape((1, BM, D)))


@tk.kernel(num_warps=8)
def pipelined(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    m, total, acc = tk.full((BM, 1), float("-inf"), tk.float32), tk.zeros((BM, 1), tk.float32), tk.zeros((BM, D), tk.float32)
    for key, value in tk.pipelined(k.tiles((1, BN, D))[h, :, 0], v.tiles((1, BN, D))[h, :, 0]):
        s = tk.mma(query, key.reshape((BN, D)).transpose(), tk.zeros((BM, BN), tk.float32)) * scale
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp2(s - higher), tk.exp2(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value.reshape((BN, D)), acc * shrink)
        m = higher
    o.store((acc / total).astype(o.dtype).reshape((1, BM, D)))


@tk.function
def turn(query, key, value, state, scale):
    acc, m, total = state
    s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32))
    higher = tk.maximum(m, tk.max(s, 1) * scale)
    p, shrink = tk.exp2(s * scale - higher[:, None]), tk.exp2(m - higher)
    return tk.mma(p.astype(value.dtype), value, acc * shrink[:, None]), higher, total * shrink + tk.sum(p, 1)


@tk.kernel(num_warps=8)
def helped(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    state, j = (tk.zeros((BM, D), tk.float32), tk.full((BM,), float("-inf"), tk.float32), tk.zeros((BM,), tk.float32)), 0
    while j < tk.cdiv(k.shape[1], BN):
        key, value = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D)), tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D))
        state = turn(query, key, value, state, scale)
        j += 1
    o.store((state[0] / state[2][:, None]).astype(o.dtype).reshape((1, BM, D)))


@tk.kernel(num_warps=8)
def padded(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    """Keys behind the last count nothing; values are added by `+`."""
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    m, total, acc = tk.full((BM, 1), float("-inf"), tk.float32), tk.zeros((BM, 1), tk.float32), tk.zeros((BM, D), tk.float32)
    for j in range(tk.cdiv(k.shape[1], BN)):
        key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        s = tk.where(j * BN + tk.arange(BN)[None, :] < k.shape[1], s, float("-inf"))
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp(s - higher), tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = acc * shrink + p.astype(v.dtype) @ tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D))
        m = higher
    o.store((acc / total).astype(o.dtype).reshape((1, BM, D)))


@tk.kernel(num_warps=8)
def causal_in_two(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    """Tiles below the diagonal in one loop, those that it cuts in another."""
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    m, total, acc = tk.full((BM, 1), float("-inf"), tk.float32), tk.zeros((BM, 1), tk.float32), tk.zeros((BM, D), tk.float32)
    rows, whole = i * BM + tk.arange(BM)[:, None], i * BM // BN
    for j in range(whole):
        key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp(s - higher), tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D)), acc * shrink)
        m = higher
    for j in range(whole, tk.cdiv((i + 1) * BM, BN)):
        key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
        s = tk.where(j * BN + tk.arange(BN)[None, :] <= rows, s, float("-inf"))
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp(s - higher), tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D)), acc * shrink)
        m = higher
    o.store((acc / total).astype(o.dtype).reshape((1, BM, D)))


@tk.kernel(num_warps=8)
def staying(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float):
    """Blocks that visit one tile after the other."""
    for tile in o.tiles():
        h, i, _ = tile.index
        query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
        m, total = tk.full((BM, 1), float("-inf"), tk.float32), tk.zeros((BM, 1), tk.float32)
        acc = tk.zeros((BM, D), tk.float32)
        for j in range(tk.cdiv(k.shape[1], BN)):
            key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
            s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * D**-0.5
            higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
            p, shrink = tk.exp(s - higher), tk.exp(m - higher)
            total = total * shrink + tk.sum(p, 1, keepdims=True)
            acc = tk.mma(p.astype(v.dtype), tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D)), acc * shrink)
            m = higher
        o.store((acc / total).astype(o.dtype).reshape((1, BM, D)), tile)


KERNELS = [looped, pipelined, helped, padded, causal_in_two, staying]
named = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def launch(kernel, o, q, k, v, tile):
    parts = o.partition((1, tile[0], q.shape[2]))
    op = kernel(parts.map(num_blocks=7) if kernel is staying else parts, q, k, v, 1.4426950408889634 / q.shape[2] ** 0.5)
    return op.generics(BM=tile[0], BN=tile[1], D=q.shape[2])


@named
@pytest.mark.parametrize("size", [64, 128])
def test_the_loop_is_rotated(kernel, size):
    o, q = (api.meta((16, 4096, size), tk.bfloat16) for _ in range(2))
    explained = launch(kernel, o, q, q, q, (128, 128)).explain("sm_90a")
    compiled, stages = explained.compiled, [ring.stages for ring in explained.pipelines]
    assert sorted(stages)[:3] == [1, 1, 1], "the queries; the first keys; the last values"
    assert max(stages) == (2 if size == 128 else 5)
    assert compiled.registers <= 168
    assert compiled.local_bytes <= (8 if kernel is staying else 0)
    assert not explained.serialised
    assert "LDG.E" not in compiled.sass
    assert {product.instruction.partition(".")[0] for product in explained.products} == {"wgmma"}
    done = {remark.transformation for remark in explained.remarks if remark.done}
    assert {"staging", "exponential", "partial sums", "rotation"} <= done
    assert ("splitting" in done) == (kernel in (padded, causal_in_two))
    if kernel is not staying:  # which has more paths than the scan can follow
        hazards.check(compiled)


def main_loop(compiled):
    """The instructions of the shortest loop with two products and many exponentials."""
    loops = hazards.loops(compiled.sass)
    return min((names for names in loops if sum("HGMMA" in n for n in names) > 8 and names.count("MUFU.EX2") > 64), key=len)


@pytest.fixture(scope="module")
def librarys():
    q = api.meta((1, 16, 4096, 128), tk.bfloat16)
    return main_loop(attending.compiled(kernels.attention(q, q, q), "sm_90a")[0])


@named
def test_the_loop_is_as_short_as_that_of_the_library(kernel, librarys):
    o, q = (api.meta((16, 4096, 128), tk.bfloat16) for _ in range(2))
    assert len(main_loop(launch(kernel, o, q, q, q, (128, 128)).compile(target="sm_90a"))) <= len(librarys) + 4


@named
@pytest.mark.parametrize("number", range(3))
def test_results_are_right(kernel, number, cpu):
    draw, rng = random.Random(number), np.random.default_rng(number)
    tile, size = (draw.choice([64, 128]), draw.choice([64, 128])), draw.choice([64, 128])
    queries = draw.randrange(1, 4) * tile[0]
    keys = -(-queries // tile[1]) * tile[1] if kernel is causal_in_two else draw.randrange(1, 5) * tile[1]
    keys -= draw.randrange(tile[1]) if kernel is padded else 0
    q, k, v = (rng.standard_normal((2, rows, size)).astype(np.float16) for rows in (queries, keys, keys))
    scores = np.einsum("hik,hjk->hij", q.astype(float), k.astype(float)) / size**0.5
    if kernel is causal_in_two:
        scores = np.where(np.arange(keys)[None, :] <= np.arange(queries)[:, None], scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hij,hjk->hik", p / p.sum(-1, keepdims=True), v.astype(float))
    with through_ir.rewritten():
        o = api.zeros((2, queries, size)).sync()
        launch(kernel, o, *(api.from_host(x).sync() for x in (q, k, v)), tile).sync()
    assert np.abs(o.to_host().sync() - expected).max() < 2e-3
