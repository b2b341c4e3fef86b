"""Sums and maxima by columns: which tiles are chosen, and what the compiler makes of them; no GPU is needed."""

from __future__ import annotations

import re

import pytest

import tilekit as tk
from tilekit import api
from tilekit_benchmarks import _tilekit_columns
from tilekit_benchmarks.drawn import columns

COUNT = 132  # multiprocessors
REGISTERS = 65536  # of one


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("n", [16, 67, 83, 344, 1025, 8192, 91305, 142728, 262144])
@pytest.mark.parametrize("m", [3, 24, 120, 10448])
def test_all_columns_are_read_at_the_same_time(m, n, itemsize):
    rows, width = columns._tile(m, n, itemsize, COUNT)
    blocks = -(-n // width)
    assert blocks <= columns._ROOM * COUNT
    assert rows * width * itemsize <= columns._BYTES
    assert rows < 2 * m and width < 2 * n
    assert width <= 128 or -(-n // (width // 2)) > columns._ROOM * COUNT  # no wider than it has to be


@pytest.mark.parametrize(
    ("n", "itemsize", "width"), [(128, 2, 128), (344, 2, 128), (175, 2, 64), (83, 2, 32), (67, 4, 32), (25, 2, 32)]
)
def test_few_columns_are_beyond_the_edge(n, itemsize, width):
    assert columns._tile(1 << 20, n, itemsize, COUNT)[1] == width


def compiled(kernel, dtype, n, width):
    """The kernel for the first of two launches, for a tile of so many columns."""
    dtype = getattr(tk, dtype)
    op = kernel(api.meta((4, n), tk.float32), api.meta((8192, n), dtype), 8, 2, columns._BYTES // (width * dtype.itemsize))
    return op.tile((1, width)).occupancy(columns._ROOM).compile(target="sm_90a")


@pytest.mark.parametrize("kernel", [_tilekit_columns.sums, _tilekit_columns.maxima], ids=["sums", "maxima"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("width", [32, 128, 512])
@pytest.mark.parametrize("n", [131072, 131073])
def test_threads_hold_few_partial_results(kernel, dtype, width, n):
    made = compiled(kernel, dtype, n, width)
    threads = made.block[0]
    assert threads == 128
    assert made.spilled_bytes == 0
    assert REGISTERS // (-(-made.registers // 8) * 8 * threads) >= columns._ROOM


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_loads_of_a_tile_are_under_way_before_one_is_waited_for(dtype):
    made = compiled(_tilekit_columns.sums, dtype, 131072, 128)
    order = re.findall(r"\b(LDG\S*|FADD)\b", made.sass)
    assert order[:5] == ["LDG.E.128"] * 4 + ["FADD"]
