"""Products of one tile with several: which become one, what the machine does then, and that the results stay what they are."""

import re

import numpy as np
import pytest
from closeness import normal
from through_ir import both_ways, ir_of
from warpgroup_code import products

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

BM, BN, BK = tk.generics("BM BN BK")


@tk.function
def stored(out, i, j, left, right):
    tk.store(out, (i, 2 * j), left.astype(out.dtype))
    tk.store(out, (i, 2 * j + 1), right.astype(out.dtype))


@tk.function
def zeros():
    return tk.zeros((BM, BN), tk.float32)


def two_weights(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    """As a gated layer has them."""
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for k in range(tk.cdiv(x.shape[1], BK)):
        tile = tk.load(x, (i, k), (BM, BK))
        left += tile @ tk.load(gate, (k, j), (BK, BN))
        right += tile @ tk.load(up, (k, j), (BK, BN))
    stored(out, i, j, left, right)


def in_another_order(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for b, a, c in tk.pipelined(up.tiles((BK, BN))[:, j], x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j]):
        left = tk.mma(a, c, left)
        right = tk.mma(a, b, right)
    stored(out, i, j, left, right)


def begun_with(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros() + 1.0, zeros()
    for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        left, right = tk.mma(a, b, left), tk.mma(a, c, right)
    stored(out, i, j, left * 2.0, right)


def views(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        left = tk.mma(a.reshape((1, BM, BK)).reshape((BM, BK)), b.reshape((1, BK, BN)).reshape((BK, BN)), left)
        right = tk.mma(a.reshape((1, BM, BK)).reshape((BM, BK)), c, right)
    stored(out, i, j, left, right)


def computed(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    """With a first operand that threads hold."""
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        twice = (a.astype(tk.float32) * 2.0).astype(x.dtype)
        left, right = tk.mma(twice, b, left), tk.mma(twice, c, right)
    stored(out, i, j, left, right)


JOINED = [two_weights, in_another_order, begun_with, views, computed]


def read_in_the_turn(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        left = tk.mma(a, b, left)
        right = tk.mma(a, c, right) + tk.sum(left) * 0.0
    stored(out, i, j, left, right)


def one_after_the_other(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        left = tk.mma(a, c, tk.mma(a, b, left))
    stored(out, i, j, left, right)


def of_one_tile_twice(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In):
    i, j, left, right = tk.bid(0), tk.bid(1), zeros(), zeros()
    for a, b, _ in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
        left, right = tk.mma(a, b, left), tk.mma(a, b, right)
    stored(out, i, j, left, right)


APART = [read_in_the_turn, one_after_the_other, of_one_tile_twice]
named = {"ids": lambda make: make.__name__}


def op_of(make, out, x, gate, up, tile=(64, 64, 64)):
    m, n = x.shape[0], gate.shape[1]
    op = tk.kernel(make)(out.scattered(), x, gate, up).generics(BM=tile[0], BN=tile[1], BK=tile[2])
    return op.grid(-(-m // tile[0]), -(-n // tile[1]))


def meta_op(make, tile=(128, 64, 64), dtype=tk.bfloat16, turned=(False, False)):
    gate, up = (api.meta((1024, 1024), dtype).T if over else api.meta((1024, 1024), dtype) for over in turned)
    return op_of(make, api.meta((1024, 2048)), api.meta((1024, 1024), dtype), gate, up, tile)


@pytest.mark.parametrize("make", JOINED, **named)
def test_products_of_one_tile_become_one(make):
    text = printed(ir_of(meta_op(make), *PASSES))
    assert text.count("tilekit__mma_abreast(") == 1
    assert not re.search(r"\bmma\(", text)


@pytest.mark.parametrize("make", APART, **named)
def test_others_stay(make):
    assert "tilekit__mma_abreast(" not in printed(ir_of(meta_op(make), *PASSES))


@pytest.mark.parametrize(
    ("tile", "dtype"),
    [((128, 256, 64), tk.bfloat16), ((32, 64, 64), tk.bfloat16), ((128, 64, 128), tk.bfloat16), ((128, 4, 64), tk.float16)],
    ids=str,
)
def test_no_instruction_would_be_so_wide(tile, dtype):
    """Or so narrow, or the rows would not go on."""
    assert "tilekit__mma_abreast(" not in printed(ir_of(meta_op(two_weights, tile, dtype), *PASSES))


@pytest.mark.parametrize("make", [*JOINED, *APART], **named)
def test_the_result_is_the_same(make, device):
    """On the CPU device by way of the passes, too."""
    m, n, k = 150, 200, 136
    x, gate, up = (normal(shape, np.float16, seed) for seed, shape in enumerate([(m, k), (k, n), (k, n)]))

    def run():
        out = api.zeros((m, 512)).sync()
        op_of(make, out, *(api.from_host(array).sync() for array in (x, gate, up))).num_warps(4).sync()
        return out.to_host().sync()

    wide = [array.astype(np.float64) for array in (x, gate, up)]
    products_ = [np.pad(wide[0] @ weight, ((0, 0), (0, 256 - n))) for weight in wide[1:]]
    left, right = {
        begun_with: (2 * (products_[0] + 1), products_[1]), computed: (2 * products_[0], 2 * products_[1]),
        one_after_the_other: (products_[0] + products_[1], 0 * products_[1]), of_one_tile_twice: (products_[0], products_[0]),
    }.get(make, tuple(products_))  # fmt: skip
    wanted = np.stack([left.reshape(m, -1, 64), right.reshape(m, -1, 64)], 2).reshape(m, -1)
    for result in both_ways(run, device):
        np.testing.assert_allclose(result, wanted, atol=2e-2, rtol=2e-3)


def instructions(kernel):
    return set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+)k", kernel.ptx))


@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=["rows", "columns"])
@pytest.mark.parametrize("make", JOINED, **named)
def test_the_machine_does_one(make, turned):
    explained = meta_op(make, turned=turned).num_warps(8).explain("sm_90a")
    kernel = explained.compiled
    assert instructions(kernel) == {"m64n128"}
    assert not kernel.local_bytes
    assert [ring.stages for ring in explained.pipelines] == [7]
    assert "AHHHG" in products(kernel)
    assert any("2 products of one tile, 128 columns together" in remark.text for remark in explained.remarks)


def test_tiles_that_lie_otherwise_than_each_other_are_multiplied_one_by_one():
    kernel = meta_op(two_weights, turned=(True, False)).num_warps(8).compile("sm_90a")
    assert instructions(kernel) == {"m64n64"}
    assert not kernel.local_bytes


def test_groups_that_have_columns_of_their_own_multiply_one_by_one():
    kernel = meta_op(two_weights, (64, 64, 64)).num_warps(8).compile("sm_90a")
    assert instructions(kernel) == {"m64n32"}


@pytest.mark.parametrize("dtype", [tk.int8, tk.float32], ids=str)
def test_other_dtypes_whose_columns_are_contiguous(dtype):
    def kernel(out: tk.Out, x: tk.In, gate: tk.In, up: tk.In, precision: tk.Const):
        i, j, left = tk.bid(0), tk.bid(1), tk.zeros((BM, BN), out.dtype)
        right = left * 1
        for a, b, c in tk.pipelined(x.tiles((BM, BK))[i, :], gate.tiles((BK, BN))[:, j], up.tiles((BK, BN))[:, j]):
            left, right = tk.mma(a, b, left, precision=precision), tk.mma(a, c, right, precision=precision)
        stored(out, i, j, left, right)

    a, b = api.meta((1024, 1024), dtype), api.meta((1024, 1024), dtype).T
    out = api.meta((1024, 2048), tk.int32 if dtype == tk.int8 else dtype).scattered()
    op = tk.kernel(kernel)(out, a, b, b, "tf32").generics(BM=128, BN=128, BK=128 // dtype.itemsize).num_warps(8).grid(8, 8)
    assert instructions(op.compile("sm_90a")) == {"m64n256"}


def test_three_of_64_columns_are_192():
    @tk.kernel
    def kernel(out: tk.Out, a: tk.In, b: tk.In):
        i, j = tk.bid(0), 3 * tk.bid(1)
        x, y, z = zeros(), zeros(), zeros()
        for k in range(tk.cdiv(a.shape[1], BK)):
            tile = tk.load(a, (i, k), (BM, BK))
            x = tk.mma(tile, tk.load(b, (k, j), (BK, BN)), x)
            y = tk.mma(tile, tk.load(b, (k, j + 1), (BK, BN)), y)
            z = tk.mma(tile, tk.load(b, (k, j + 2), (BK, BN)), z)
        tk.store(out, (i, j), x)
        tk.store(out, (i, j + 1), y)
        tk.store(out, (i, j + 2), z)

    a = api.meta((1024, 1024), tk.float16)
    op = kernel(api.meta((1024, 1024)).scattered(), a, a).generics(BM=256, BN=64, BK=64).num_warps(8).grid(4, 6)
    explained = op.explain("sm_90a")
    assert instructions(explained.compiled) == {"m64n192"}
    assert not explained.compiled.local_bytes
    assert [ring.stages for ring in explained.pipelines] == [4]
