"""Rows that begin anywhere, of which a warp stores whole lines: every element, and nothing beside the tensor."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.lang.size import ELEMENTS_A_THREAD

from .parity import check, sample

DTYPES = [tk.bool_, tk.int8, tk.float8_e4m3fn, tk.float16, tk.bfloat16, tk.float32, tk.int32]
WARP, LINE = 32, 128


@tk.kernel
def copied(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@tk.kernel
def copied_twice(y: tk.InOut, x: tk.In):
    """What one lane has stored, another one reads."""
    y.store(tk.load_tile_like(x, y))
    t = y.load()
    y.store(t)


def drawn(seed, dtype):
    """The shape of a tensor, how far apart its rows are and where the first begins in memory, and a tile of two lines or more."""
    rng = np.random.default_rng(seed)
    line = LINE // np.dtype(dtype).itemsize
    columns = line * int(rng.choice([2, 4]))
    rows = min(int(rng.choice([1, 2, 8])), ELEMENTS_A_THREAD * WARP // columns)
    width = int(rng.integers(1, 5 * line))
    height, gap, offset = int(rng.integers(1, 20)), int(rng.integers(0, 9)), int(rng.integers(0, 9))
    return (height, width), width + offset + gap, offset, (rows, columns)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [copied, copied_twice], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("seed", range(6))
def test_rows_that_begin_anywhere_are_stored(seed, kernel, dtype, device):
    (height, width), pitch, offset, tile = drawn(seed, dtype)
    before, x = sample(dtype, 1, (height, pitch)), sample(dtype, 2, (height, width))
    memory = api.from_host(before).sync()
    part = memory[:, offset : offset + width].partition(tile)
    kernel(part, api.from_host(x)).num_warps(1).sync()
    expected = before.copy()
    expected[:, offset : offset + width] = x
    check(memory.to_host().sync(), expected)


@tk.kernel
def product(y: tk.Out, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    rows, columns = y.tile_shape
    t = tk.load(a, (i, 0), (rows, 64)) @ tk.load(b, (0, j), (64, columns))
    y.store(t.astype(y.dtype))


@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.float32], ids=str)
@pytest.mark.parametrize(("m", "n", "tile"), [(130, 257, (64, 128)), (77, 1001, (128, 256)), (200, 130, (128, 128))])
def test_results_of_products_are_stored_by_lines(m, n, tile, dtype, device):
    """They lie across rows: what a warp has of each comes from all of its lanes. (Of int8, two lines are 256 columns.)"""
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-1, 2, shape).astype(tk.float16) for shape in ((m, 64), (64, n)))
    y = product(api.zeros((m, n), dtype).partition(tile), api.from_host(a), api.from_host(b)).first().unpartition()
    check(y.to_host().sync(), (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype))
