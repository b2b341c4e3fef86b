"""Masks of operands: which leave the loads, and that the sums are the same."""

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.passes.masks import mask_tiles


def kernel_of(load):
    load = tk.function(load)

    def kernel(y: tk.Out, a: tk.In, b: tk.In, n: int):
        acc = tk.zeros((64, 64), tk.float32)
        for k in range(tk.cdiv(a.shape[1], 64)):
            acc = tk.mma(load(a, 0, k, n), tk.load(b, (k, 0), (64, 64)), acc)
        y.store(acc)

    return tk.kernel(kernel)


def columns(a, i, k, n):
    return tk.load(a, (i, k), (64, 64), mask=64 * k + tk.arange(64) < n)


def rows_of_zeros(a, i, k, n):
    return tk.load(a, (i, k), (64, 64), mask=(tk.arange(64) < n)[:, None], padding_value=0, padding_mode="zero")


def kept(a, i, k, n):
    return tk.load(a, (i, k), (64, 64), mask=(tk.arange(64) < n)[:, None], eviction_policy="evict_first")


def other_padding(a, i, k, n):
    return tk.load(a, (i, k), (64, 64), mask=tk.arange(64) < n, padding_value=1)


def padded_with_nans(a, i, k, n):
    return tk.load(a, (i, k), (64, 64), mask=tk.arange(64) < n, padding_mode="neg_zero")


APART, STAY = [columns, rows_of_zeros, kept], [other_padding, padded_with_nans]
named = {"ids": lambda load: load.__name__}


@pytest.mark.parametrize("load", APART + STAY, **named)
def test_which_leave_the_load(load):
    a = api.meta((64, 256), tk.float16)
    text = printed(
        ir_of(kernel_of(load)(api.meta((64, 64)).partition((64, 64)), a, api.meta((256, 64), tk.float16), 9), mask_tiles)
    )
    assert ("mask=" in text, " where(" in text) == (load in STAY, load in APART)
    assert ("evict_first" in text) == (load is kept)


def test_of_what_no_product_reads_they_stay():
    @tk.kernel
    def kernel(y: tk.Out, a: tk.In):
        y.store(tk.load(a, (0, 0), (64, 64), mask=tk.arange(64) < 9).astype(y.dtype))

    op = kernel(api.meta((64, 64)).partition((64, 64)), api.meta((64, 64), tk.float16))
    assert "mask=" in printed(ir_of(op, mask_tiles))


@pytest.mark.parametrize("load", APART + STAY, **named)
def test_the_sums_are_the_same(load, device):
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((60, 200), (200, 50)))

    def run():
        y = api.zeros((64, 64)).sync()
        kernel_of(load)(y.partition((64, 64)), *(api.from_host(x).sync() for x in (a, b)), 37).num_warps(4).sync()
        return y.to_host().sync()

    whole = np.pad(a.astype(np.float64), ((0, 4), (0, 56)))
    left = {columns: np.arange(256) < 37, other_padding: np.arange(256) % 64 < 37, padded_with_nans: np.arange(256) % 64 < 37}
    inside = np.broadcast_to(left.get(load, (np.arange(64) < 37)[:, None]), (64, 256))
    if load is other_padding:
        whole = np.where(inside & (np.arange(64) < 60)[:, None] & (np.arange(256) < 200), whole, 1.0)
    wanted = np.where(inside | (load is other_padding), whole, 0.0) @ np.pad(b.astype(np.float64), ((0, 56), (0, 14)))
    for result in both_ways(run, device):
        np.testing.assert_allclose(result, wanted, atol=3e-2)
