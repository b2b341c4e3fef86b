"""Masks of 16 bits, of floats that were just rounded from float32: ptxas 13.0 loses constant ones of every other element."""

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
