"""First operands that are computed of a tile in a stage: threads read what they multiply."""

from __future__ import annotations

import hazards
import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

BM, BN, BK = 128, 128, 64


def scaled(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta * 2, tb, acc)
    c.store(acc)


def silu(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        x = tk.load(a, (tk.bid(0), k), (BM, BK)).astype(tk.float32)
        acc += (x / (1 + tk.exp(-x))).astype(a.dtype) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc)


def squared_beside(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Its squares are added up by rows."""
    acc, squares = tk.zeros((BM, BN), tk.float32), tk.zeros((BM, 1), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        x = tk.load(a, (tk.bid(0), k), (BM, BK))
        wide = x.astype(tk.float32)
        squares += tk.sum(wide * wide, 1, keepdims=True)
        acc = tk.mma((wide * 2).astype(a.dtype), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc * tk.rsqrt(squares))


def plain_too(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Another product has the tile itself."""
    acc, other = tk.zeros((BM, BN), tk.float32), tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        x, y = tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN))
        acc = tk.mma(tk.maximum(x, 0), y, acc)
        other = tk.mma(x, y, other)
    c.store(acc + 3 * other)


def masked(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, cols = tk.zeros((BM, BN), tk.float32), tk.arange(BK)[None, :]
    for k in range(tk.cdiv(a.shape[1], BK)):
        x = tk.load(a, (tk.bid(0), k), (BM, BK))
        x = tk.where(k * BK + cols < n, x, 0.0).astype(a.dtype)
        acc = tk.mma(x, tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc)


COMPUTED = [scaled, silu, squared_beside, plain_too, masked]


def second(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)) * 2, acc)
    c.store(acc)


def turned(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Which moves elements to other threads."""
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        x = tk.load(a, (k, tk.bid(0)), (BK, BM)) * 2
        acc = tk.mma(x.transpose(), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc)


each = pytest.mark.parametrize("make", COMPUTED, ids=lambda make: make.__name__)


def meta_op(make):
    c, a, b = api.meta((256, 256)), api.meta((256, 1024), tk.float16), api.meta((1024, 256), tk.float16)
    return tk.kernel(num_warps=8)(make)(c.partition((BM, BN)), a, b, 1000)


@each
def test_such_a_tile_is_read_as_it_is_multiplied(make):
    text = printed(ir_of(meta_op(make), *PASSES))
    assert text.count("tilekit__operand_tile(") == 1


@pytest.mark.parametrize("make", [second, turned], ids=lambda make: make.__name__)
def test_others_are_read_as_rows(make):
    assert "operand_tile" not in printed(ir_of(meta_op(make), *PASSES))


@each
def test_nothing_goes_through_shared_memory(make):
    explained = meta_op(make).explain("sm_90a")
    compiled = explained.compiled
    loop = min((names for names in hazards.loops(compiled.sass) if any("HGMMA" in name for name in names)), key=len)
    assert not [name for name in loop if name.startswith(("STS", "BAR."))]
    assert "LDSM" in compiled.sass
    assert compiled.local_bytes == 0
    assert not explained.serialised
    hazards.check(compiled)


@each
def test_the_result_is_the_same(make, device):
    rng = np.random.default_rng(11)
    arrays = [rng.integers(-3, 4, shape).astype(np.float16) for shape in ((256, 200), (200, 256))]

    def run():
        c, a, b = [api.zeros((256, 256)).sync(), *(api.from_host(x).sync() for x in arrays)]
        tk.kernel(num_warps=8)(make)(c.partition((BM, BN)), a, b, 150).sync()
        return c.to_host().sync()

    plain, passed = both_ways(run, device)
    assert np.abs(plain).max() > 1
    np.testing.assert_allclose(passed, plain, rtol=1e-3, atol=2e-2)
