"""Tiles that no GPU's shared memory holds at once: 256 KB and more. What changes their layout goes through it in parts."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

M, N = tk.generics("M N")

# 131,072 elements of 2 bytes, 65,536 of 4, 32,768 of 8; smaller ones beside them, which go at once.
TILES = [
    (tk.float16, 256, 512), (tk.bfloat16, 512, 256), (tk.int16, 128, 1024), (tk.float32, 256, 256), (tk.int32, 64, 1024),
    (tk.float64, 128, 256), (tk.int64, 256, 128), (tk.uint64, 32, 1024), (tk.int8, 256, 512), (tk.bool_, 512, 128),
    (tk.float32, 128, 256),
]  # fmt: skip
IDS = [f"{dtype.name}-{m}x{n}" for dtype, m, n in TILES]


def numbers(dtype, *shape):
    """Numbers of few bits, of which neighbours differ."""
    drawn = np.random.default_rng(5).integers(0, 2 if dtype == tk.bool_ else 120, shape)
    return drawn.astype(dtype)


def result(kernel, x, shape, dtype, tile=None):
    y = api.zeros(shape, dtype).sync()
    return kernel(y.partition(tile or shape), api.from_host(x).sync()).first().unpartition().to_host().sync()


@tk.kernel
def transposed(y: tk.Out[N, M], x: tk.In):
    y.store(tk.load(x, (0, 0), (M, N)).transpose())


@tk.kernel
def turned(y: tk.Out, x: tk.In, m: tk.Const, n: tk.Const):
    y.store(tk.load(x, (0, 0), (m, n)).reshape((m // 8, 8, n)).permute((1, 2, 0)))


@tk.kernel
def met(y: tk.Out[M, M], x: tk.In):
    t = tk.load(x, (0, 0), (M, M))
    for _ in range(2):  # shared memory is still read when it is written again
        t = t.transpose() + t
    y.store(t)


@tk.kernel
def summed(y: tk.Out[M, N], x: tk.In):
    y.store(tk.cumsum(tk.load_tile_like(x, y), 0))


@tk.kernel
def column_sums(y: tk.Out[N], x: tk.In, m: tk.Const):
    y.store(tk.sum(tk.load(x, (0, 0), (m, N)).transpose(), 1))


@tk.kernel
def in_order(y: tk.Out[M, N], x: tk.In):
    y.store(tk.sort(tk.load_tile_like(x, y), 1))


@pytest.mark.parametrize(("dtype", "m", "n"), TILES, ids=IDS)
def test_transposes(device, dtype, m, n):
    x = numbers(dtype, m, n)
    np.testing.assert_array_equal(result(transposed, x, (n, m), dtype), x.T)


@pytest.mark.parametrize(("dtype", "m", "n"), TILES[::3], ids=IDS[::3])
def test_permuted_parts(device, dtype, m, n):
    x, y = numbers(dtype, m, n), api.zeros((8, n, m // 8), dtype).sync()
    made = turned(y.partition((8, n, m // 8)), api.from_host(x).sync(), m, n).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(made, x.reshape(m // 8, 8, n).transpose(1, 2, 0))


def test_a_tile_that_meets_its_transpose_in_a_loop(device):
    x = numbers(tk.int32, 256, 256)
    once = x + x.T
    np.testing.assert_array_equal(result(met, x, (256, 256), tk.int32), once + once.T)


@pytest.mark.parametrize(("dtype", "m", "n"), [(tk.int32, 256, 256), (tk.float32, 128, 512)])
def test_scans_along_columns(device, dtype, m, n):
    x = numbers(dtype, m, n)
    np.testing.assert_array_equal(result(summed, x, (m, n), dtype), np.cumsum(x, 0, dtype=dtype))


def test_sums_of_a_transposed_tile(device):
    x = numbers(tk.int32, 256, 256)
    y = column_sums(api.zeros(256, tk.int32).partition(256), api.from_host(x).sync(), 256)
    np.testing.assert_array_equal(y.first().unpartition().to_host().sync(), x.sum(0, dtype=np.int32))


@pytest.mark.parametrize(("dtype", "m", "n"), [(tk.float64, 128, 256), (tk.int32, 512, 128)])
def test_sorts(device, dtype, m, n):
    x = np.random.default_rng(6).permutation(m * n).reshape(m, n).astype(dtype)
    np.testing.assert_array_equal(result(in_order, x, (m, n), dtype), np.sort(x, 1))
