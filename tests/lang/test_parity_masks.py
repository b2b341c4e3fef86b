"""What compilers below tilekit lose of narrow elements, unless they are gone round.

Of floats that were just rounded from float32, ptxas 13.0 loses constant masks of 16 bits of every other one. Of 8-bit integers
in a vector of four, NVVM forgets to extend what was computed with the first.
"""

import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

HALVES = [tk.float16, tk.bfloat16]


@tk.kernel(num_warps=1)
def magnitudes(y: tk.Out, x: tk.In):
    y.store(tk.abs((tk.load_tile_like(x, y) * 1.5).astype(y.dtype)))


@tk.kernel(num_warps=1)
def low_bits(y: tk.Out, x: tk.In, dtype: tk.Const):
    y.store(tk.bitcast((tk.load_tile_like(x, y) * 1.5).astype(dtype), tk.int16) & 0xFF)


@tk.kernel(num_warps=1)
def in_order(y: tk.Out, x: tk.In):
    y.store(tk.sort((tk.load_tile_like(x, y) * 1.5).astype(y.dtype), axis=1))


def drawn():
    return np.random.default_rng(3).standard_normal((32, 8)).astype(np.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_magnitudes(device, dtype):
    x = drawn()
    y = magnitudes(api.empty((32, 8), dtype).partition((32, 8)), api.from_host(x).sync()).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.abs((x * np.float32(1.5)).astype(dtype)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bits(device, dtype):
    x = drawn()
    out = api.empty((32, 8), tk.int16).partition((32, 8))
    y = low_bits(out, api.from_host(x).sync(), dtype).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, (x * np.float32(1.5)).astype(dtype).view(np.int16) & 0xFF)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_keys_of_sorts(device, dtype):
    x = drawn()
    y = in_order(api.empty((32, 8), dtype).partition((32, 8)), api.from_host(x).sync()).first().unpartition().to_host().sync()
    want = np.sort((x * np.float32(1.5)).astype(dtype).astype(np.float32), axis=1)
    np.testing.assert_array_equal(y.astype(np.float32), want)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_no_mask_is_lost(dtype, target):
    """A thread has eight elements."""
    kernel = magnitudes(api.meta((32, 8), dtype).partition((32, 8)), api.meta((32, 8))).compile(target=target)
    assert len(re.findall(r"LOP3\.LUT [^;]*, 0x7fff,", kernel.sass)) == 8


@tk.kernel(num_warps=8)
def extended(c: tk.Out, r: tk.Out, a: tk.In, b: tk.In):
    acc, total = tk.zeros((128, 64), tk.int32), tk.zeros(128, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((128, 128))[tk.bid(0), :], b.tiles((128, 64))[:, tk.bid(1)], stages=3):
        twice = ta + ta
        acc = tk.mma(twice, tb, acc)
        total = total + tk.sum(tk.where(twice < 3, twice.astype(tk.float32), 0.5), 1)
    c.store(acc)
    r.store(total.reshape((128, 1)))


def test_the_first_of_four_integers_is_extended(device):
    rng = np.random.default_rng(4)
    a, b = rng.integers(-3, 4, (128, 256)).astype(np.int8), rng.integers(0, 4, (256, 64)).astype(np.uint8)
    outputs = api.zeros((128, 64), tk.int32).partition((128, 64)), api.zeros((128, 1)).partition((128, 1))
    c, r, *_ = extended(*outputs, api.from_host(a).sync(), api.from_host(b).sync()).sync()
    np.testing.assert_array_equal(c.unpartition().to_host().sync(), 2 * a.astype(np.int32) @ b.astype(np.int32))
    twice = 2 * a.astype(np.float32)
    want = np.where(twice < 3, twice, 0.5).sum(1, keepdims=True)
    np.testing.assert_array_equal(r.unpartition().to_host().sync(), want)


def test_each_integer_is_extended():
    """A thread has 64 of a turn's first operand."""
    outputs = api.meta((128, 64), tk.int32).partition((128, 64)), api.meta((128, 1)).partition((128, 1))
    ptx = extended(*outputs, api.meta((128, 256), tk.int8), api.meta((256, 64), tk.uint8)).compile(target="sm_90a").ptx
    assert len(re.findall(r"cvt\.s(?:16|32)\.s8", ptx)) == 64
