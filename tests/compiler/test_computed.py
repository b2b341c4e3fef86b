"""Ranges, and what is made of them and scalars, are computed where they are needed: they never move between threads."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.codegen.computed import ComputedType, combined
from tilekit.compiler.codegen.types import TileType
from tilekit.compiler.layouts.linear import Config


@tk.kernel
def causal(y: tk.Out, x: tk.In, ahead: int, keys: int):
    """The upper right triangle of a product is masked, which lies otherwise than ranges do by themselves."""
    t = tk.load_tile_like(x, y)
    scores = tk.mma(t, t.transpose(), tk.zeros(y.tile_shape, tk.float32))
    columns = tk.arange(y.tile_shape[1])[None, :]
    last = tk.minimum(tk.arange(y.tile_shape[0])[:, None] + ahead, keys - 1)
    y.store(tk.where((columns <= last) & (columns != 3), scores, -1.0))


@tk.kernel
def carried(y: tk.Out, n: int):
    k = tk.arange(y.tile_shape[0], start=2)
    for i in range(n):
        k = k + i
    y.store(k.astype(y.dtype))


@tk.function
def four_times(total, k):
    return (((total * 2 - k) * 2 - k) * 2 - k) * 2 - k


@tk.kernel
def long(y: tk.Out):
    k = tk.arange(y.tile_shape[0])
    y.store(four_times(four_times(four_times(k * 3, k), k), k).astype(y.dtype))


@tk.kernel
def turned(y: tk.Out):
    k = tk.arange(y.tile_shape[0] * y.tile_shape[1])
    y.store((k.reshape(y.tile_shape) * 10 + tk.arange(y.tile_shape[0]).reshape((y.tile_shape[0], 1))).astype(y.dtype))


@tk.kernel
def bounded(y: tk.Out, x: tk.In, keys: int, rows: int):
    """As many columns as a row has, which are none of the last rows."""
    t = tk.load_tile_like(x, y)
    scores = tk.mma(t, t.transpose(), tk.zeros(y.tile_shape, tk.float32))
    row, columns = tk.arange(y.tile_shape[0])[:, None], tk.arange(y.tile_shape[1])[None, :]
    y.store(tk.where(columns < tk.where(row < rows, tk.where(row > 2, keys, 7), 0), scores, -1.0))


@pytest.mark.parametrize("kernel", [causal, bounded], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_mask_takes_the_layout_of_what_it_masks(kernel, target):
    y, x = api.zeros((64, 64), tk.float32).sync(), api.zeros((64, 64), tk.float16).sync()
    op = kernel(y.partition((64, 64)), x, 5, 40)
    conversions = str(op.explain(target=target)).split("conversion")[1]
    assert "float16" in conversions
    assert "bool" not in conversions and "int32" not in conversions


ROWS, COLUMNS = np.arange(64)[:, None], np.arange(64)[None, :]
SEEN = {
    causal: (np.minimum(ROWS + 5, 39) >= COLUMNS) & (COLUMNS != 3),
    bounded: np.where(ROWS > 2, COLUMNS < 5, COLUMNS < 7) & (ROWS < 40),
}


@pytest.mark.parametrize(("kernel", "seen"), SEEN.items(), ids=["causal", "bounded"])
def test_its_elements(kernel, seen):
    x = np.random.default_rng(7).standard_normal((64, 64)).astype(np.float16)
    y = api.empty((64, 64), tk.float32).sync()
    kernel(y.partition((64, 64)), api.from_host(x).sync(), 5, 40).sync()
    exact = np.where(seen, x.astype(np.float64) @ x.T.astype(np.float64), -1.0)
    np.testing.assert_allclose(y.to_host().sync(), exact, rtol=1e-3, atol=1e-2)


def test_a_range_that_changes_in_a_loop():
    y = api.zeros(64, tk.float32).sync()
    carried(y.partition(64), 5).sync()
    assert (y.to_host().sync() == np.arange(64) + 12).all()


def test_a_long_formula_is_computed_once():
    y = api.zeros(64, tk.int64).sync()
    long(y.partition(64)).sync()
    k = np.arange(64, dtype=np.int32)
    total = k * 3
    for _ in range(12):
        total = total * np.int32(2) - k
    assert (y.to_host().sync() == total).all()


def test_dimensions_are_renamed_and_others_are_not():
    y = api.zeros((8, 16), tk.int32).sync()
    turned(y.partition((8, 16))).sync()
    assert (y.to_host().sync() == np.arange(128).reshape(8, 16) * 10 + np.arange(8)[:, None]).all()


@pytest.mark.parametrize("other", [(1, "int32"), (8, "int8")], ids=str)
def test_formulas_of_other_ranges_are_other_types(other):
    """numba keeps one type of each name: two whose elements differ would be computed alike."""
    config = Config(1, 4)

    def of(extent, dtype):
        return ComputedType("arange", np.dtype(dtype), (extent,), config, (), lambda builder, scalars, place: place[0])

    meet = TileType.of_shape(np.dtype("int32"), (8,), config)
    sums = [combined("+", [of(*first), of(8, "int32")], meet, meet.dtype, None)[0] for first in ((8, "int32"), other)]
    assert sums[0] != sums[1]
    assert sums[0] == combined("+", [of(8, "int32"), of(8, "int32")], meet, meet.dtype, None)[0]
