"""Loads that meet products: which come to the threads that have the product's elements, and what that spares."""

import numpy as np
import pytest
from through_ir import ir_of, rewritten

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

TILE = (64, 64)
X = (0, 0)


@tk.function
def product(a, b, acc):
    for k in range(a.shape[1] // 64):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), TILE), tk.load(b, (k, tk.bid(1)), TILE), acc)
    return acc


@tk.function
def none():
    return tk.zeros(TILE, tk.float32)


def added(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    c.store((product(a, b, none()) + tk.load(x, X, TILE)).astype(c.dtype))


def cast_and_scaled(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    c.store((product(a, b, none()) * 2 + tk.exp(tk.load(x, X, TILE).astype(tk.float32) * 0.5)).astype(c.dtype))


def ahead(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    tile = tk.load_tile_like(x, c)
    c.store((tile + product(a, b, none())).astype(c.dtype))


def begun_with(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    c.store(product(a, b, tk.load(x, X, TILE).astype(tk.float32)).astype(c.dtype))


def stacked(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    tile = tk.load(x, (1, 0, 0), (1, 64, 64), padding_mode="zero")
    c.store((tile.reshape(TILE) + product(a, b, none())).astype(c.dtype))


def chosen(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    acc, tile = product(a, b, none()), tk.load(x, X, TILE, eviction_policy="evict_first")
    c.store(tk.where(tile > 0, tk.maximum(acc, 0.0), acc / (1 + tk.abs(tile))).astype(c.dtype))


def own(c: tk.InOut, a: tk.In, b: tk.In, x: tk.In):
    c.store((c.load() + product(a, b, none())).astype(c.dtype))


def own_by_turns(c: tk.InOut, a: tk.In, b: tk.In, x: tk.In):
    for tile in c.tiles():
        acc = tk.zeros(TILE, tk.float32)
        for k in range(a.shape[1] // 64):
            acc += tk.load(a, (tile.index[0], k), TILE) @ tk.load(b, (k, tile.index[1]), TILE)
        c.store((acc + c.load(tile)).astype(c.dtype), tile)


def by_turns(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    most, p = tk.full((64, 1), float("-inf"), tk.float32), none()
    for k in range(a.shape[1] // 64):
        p = tk.mma(tk.load(a, (0, 0), TILE), tk.load(b, (k, 0), TILE), none()) + tk.load(x, (0, k), TILE)
        most = tk.maximum(most, tk.max(p, 1, keepdims=True))
    c.store((p - most).astype(c.dtype))


MET = [added, cast_and_scaled, ahead, begun_with, chosen, own, own_by_turns, by_turns, stacked]


def summed(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    tile = tk.load(x, X, TILE)
    c.store((product(a, b, none()) + tile + tk.sum(tile.astype(tk.float32), 1, keepdims=True)).astype(c.dtype))


def turned(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    c.store((product(a, b, none()) + tk.load(x, X, TILE).transpose()).astype(c.dtype))


def a_row(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    c.store((product(a, b, none()) + tk.load(x, X, (1, 64))).astype(c.dtype))


def apart(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    acc = product(a, b, none())
    c.store((tk.load(x, X, TILE) * 2 + tk.sum(acc)).astype(c.dtype))


def multiplied(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    tile = tk.load(x, X, TILE)
    acc = product(a, b, none())
    c.store(tk.mma(tile, tile, acc + tile).astype(c.dtype))


NOT_MET = [summed, turned, a_row, apart, multiplied]


def op_of(make, c, a, b, x):
    partition = c.partition(TILE)
    return tk.kernel(make)(partition.map(num_blocks=1) if make is own_by_turns else partition, a, b, x)


def meta_op(make, dtype=tk.float16, x_dtype=tk.float16):
    x = api.meta((2, 64, 64), x_dtype) if make is stacked else api.meta((64, 256), x_dtype)
    if make is ahead:
        x = x[:, :64]
    return op_of(make, api.meta((64, 64), x_dtype), api.meta((64, 256), dtype), api.meta((256, 64), dtype), x)


def loads(make):
    text = printed(ir_of(meta_op(make), *PASSES))
    return text.count("tilekit__load_beside(") + text.count("tilekit__load_tile_like_beside(")


@pytest.mark.parametrize("make", MET, ids=lambda make: make.__name__)
def test_a_load_that_meets_a_product(make):
    assert loads(make) == 1


@pytest.mark.parametrize("make", NOT_MET, ids=lambda make: make.__name__)
def test_other_loads_come_as_rows(make):
    assert loads(make) == 0


@pytest.mark.parametrize("make", [*MET, *NOT_MET], ids=lambda make: make.__name__)
def test_the_result_is_the_same(make, cpu):
    if make is stacked:
        shape = (2, 64, 64)
    else:
        shape = (64, 64) if make in (ahead, own, own_by_turns, apart, multiplied) else (64, 256)
    rng = np.random.default_rng(7)
    arrays = [rng.uniform(-1, 1, n).astype(np.float16) for n in ((64, 64), (64, 256), (256, 64), shape)]
    results = []
    for passes in (False, True):
        c, a, b, x = (api.from_host(array).sync() for array in arrays)
        if passes:
            with rewritten():
                op_of(make, c, a, b, x).sync()
        else:
            op_of(make, c, a, b, x).sync()
        results.append(c.to_host().sync().astype(np.float32))
    np.testing.assert_allclose(*results, atol=2e-2, rtol=2e-3)


def through_shared(explained):
    return [each for each in explained.conversions if each.way == "shared memory"]


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("make", [added, ahead, begun_with, own], ids=lambda make: make.__name__)
def test_nothing_of_it_goes_through_shared_memory(make, dtype):
    """It had taken 128 KB of what a ring's stages could have; and of the block's own tile no thread waits for others, but where
    lanes exchange what they store 16 bytes at a time: those read what others write."""
    explained = meta_op(make, tk.bfloat16, dtype).num_warps(4).explain("sm_90a")
    assert explained.products[0].instruction.startswith("wgmma")
    assert not through_shared(explained)
    assert not explained.compiled.local_bytes
    assert "STS" not in explained.compiled.sass
    assert explained.compiled.sass.count("BAR.SYNC") <= (3 if make is own and dtype is tk.float32 else 1)


def residual(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
    acc = tk.zeros((128, 256), tk.float32)
    for k in range(a.shape[1] // 64):
        acc += tk.load(a, (tk.bid(0), k), (128, 64)) @ tk.load(b, (k, tk.bid(1)), (64, 256))
    c.store((acc + tk.load_tile_like(x, c).astype(tk.float32)).astype(c.dtype))


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32], ids=lambda dtype: dtype.name)
def test_large_tiles_keep_all_their_stages(dtype):
    a, c = api.meta((4096, 4096), tk.bfloat16), api.meta((4096, 4096), dtype)
    explained = tk.kernel(residual)(c.partition((128, 256)), a, a, c).num_warps(8).explain("sm_90a")
    assert [ring.stages for ring in explained.pipelines] == [4]
    assert not explained.compiled.local_bytes
    assert not through_shared(explained)
    if dtype == tk.bfloat16:
        assert explained.compiled.sass.count("LDG.E.128") == 16, "all that a thread of 256 loads of it"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "warps"),
    [
        (tk.float16, 64, 64, 4), (tk.bfloat16, 128, 64, 8), (tk.float16, 64, 256, 8), (tk.float16, 256, 128, 8),
        (tk.float16, 32, 64, 4), (tk.float16, 128, 128, 16),
    ],
)  # fmt: skip
def test_it_lies_as_the_product_does_in_the_end(target, dtype, rows, columns, warps):
    def kernel(c: tk.Out, a: tk.In, b: tk.In, x: tk.In):
        acc = tk.zeros((rows, columns), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((rows, 64))[tk.bid(0), :], b.tiles((64, columns))[:, tk.bid(1)]):
            acc = tk.mma(ta, tb, acc)
        c.store((acc + tk.load_tile_like(x, c)).astype(c.dtype))

    a, b, c = api.meta((rows, 512), dtype), api.meta((512, columns), dtype), api.meta((rows, columns), dtype)
    explained = tk.kernel(kernel)(c.partition((rows, columns)), a, b, c).num_warps(warps).explain(target)
    assert all(ring.stages for ring in explained.pipelines)
    assert not [each for each in through_shared(explained) if each.line == kernel.__code__.co_firstlineno + 4]


def test_explain_says_so():
    remarks = meta_op(added).explain("sm_90a").remarks
    assert ("placement", True) in {(remark.transformation, remark.done) for remark in remarks}
