"""layer_norm, rms_norm, with a sum before it and without, and l2_norm, with their gradients, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from closeness import FLOATS, close, normal

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _norm_gradients, _tiles

SHAPES = [(5, 7), (3, 1000), (2, 3, 33), (300, 64), (70, 128), (2, 4096), (2, 40000), (1, 140000)]
f = api.from_host


def statistics(x, eps, centred):
    x = x.astype(np.float64)
    mean = x.mean(-1, keepdims=True) if centred else 0.0
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) * rstd, rstd


def gradients(g, x, w, eps, centred):
    g, w = g.astype(np.float64), w.astype(np.float64)
    t, rstd = statistics(x, eps, centred)
    gw = g * w
    dx = gw - t * (gw * t).mean(-1, keepdims=True)
    if centred:
        dx = dx - gw.mean(-1, keepdims=True)
    others = tuple(range(x.ndim - 1))
    return dx * rstd, (g * t).sum(others), g.sum(others)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_forward_and_backward(device, shape, dtype):
    x, g, other = normal(shape, dtype), normal(shape, dtype, 1), normal(shape, dtype, 2)
    w, b = normal(shape[-1], dtype, 3), normal(shape[-1], dtype, 4)
    wide = w.astype(np.float64)
    y = kernels.layer_norm(f(x + 3), f(w), f(b)).to_host().sync()
    assert y.dtype == x.dtype
    close(y, statistics(x + 3, 1e-5, True)[0] * wide + b.astype(np.float64))
    close(kernels.rms_norm(f(x), f(w), 0.1).to_host().sync(), statistics(x, 0.1, False)[0] * wide)

    y, h = (made.to_host().sync() for made in kernels.add_rms_norm(f(x), f(other), f(w)).sync())
    assert np.array_equal(h, x + other)
    close(y, statistics(h, 1e-6, False)[0] * wide)

    for backward, eps, centred in ((kernels.layer_norm_backward, 1e-5, True), (kernels.rms_norm_backward, 1e-6, False)):
        made = [made.to_host().sync() for made in backward(f(g), f(x), f(w), eps).sync()]
        assert len(made) == 2 + centred
        for found, expected in zip(made, gradients(g, x, w, eps, centred)):
            assert found.dtype == x.dtype
            close(found, expected)

    dx, dw = (each.to_host().sync() for each in kernels.add_rms_norm_backward(f(g), f(other), f(x), f(w)).sync())
    assert dx.dtype == dw.dtype == x.dtype
    expected = gradients(g, x, w, 1e-6, False)
    close(dx, expected[0] + other.astype(np.float64))
    close(dw, expected[1])


# Rows, columns, and launches on a GPU of two multiprocessors: of few elements one block has all, and of few rows one has the sums
# of its columns; longer rows have another kernel for their statistics.
ON_A_GPU = [
    (1, 3, 1), (3, 9, 1), (16, 200, 1), (49, 200, 2), (700, 200, 2), (5000, 16, 2), (301, 56, 2), (37, 752, 2), (20, 2049, 2),
    (9, 8192, 2), (5, 17000, 2), (70, 17000, 3), (3, 40000, 2), (70, 33000, 3),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "launches"), ON_A_GPU)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_gradients_as_on_a_gpu(device, monkeypatch, rows, columns, launches, dtype):
    """Blocks that stay take several tiles each, the last of which may be partly empty; what they have is added up in one launch
    for both gradients."""
    monkeypatch.setattr(_tiles, "_FEW", 0)  # rows are not taken apart
    monkeypatch.setattr(_norm_gradients, "on_cpu", lambda x: False)
    monkeypatch.setattr(_norm_gradients, "multiprocessors", lambda x: 2)
    g, x, extra = (normal((rows, columns), dtype, seed) for seed in range(3))
    x, w = x * 2 + 1, normal(columns, dtype, 3)
    for backward, eps, centred in ((kernels.layer_norm_backward, 0.1, True), (kernels.rms_norm_backward, 0.1, False)):
        op = backward(f(g).sync(), f(x).sync(), f(w).sync(), eps)
        assert len(op.parts()) == launches
        for found, expected in zip(op.sync(), gradients(g, x, w, eps, centred)):
            close(found.to_host().sync(), expected)
    dx, dw = kernels.add_rms_norm_backward(f(g), f(extra), f(x), f(w), 0.1).sync()
    expected = gradients(g, x, w, 0.1, False)
    close(dx.to_host().sync(), expected[0] + extra.astype(np.float64))
    close(dw.to_host().sync(), expected[1])


@pytest.mark.parametrize("shape", [(3, 5, 32), (7, 300, 33), (2, 70, 300), (300, 3, 17), (2, 9, 5000)], ids=str)
def test_gradients_of_batches_with_gaps_as_on_a_gpu(device, monkeypatch, shape):
    """Blocks that stay take rows of one batch each, as these lie; of longer rows there are copies first."""
    monkeypatch.setattr(_norm_gradients, "on_cpu", lambda x: False)
    monkeypatch.setattr(_norm_gradients, "multiprocessors", lambda x: 2)
    batches, rows, columns = shape
    whole = [normal((batches, rows + 3, columns), np.float32, seed) for seed in range(3)]
    (g, x, extra), w = (f(each).sync()[:, :rows] for each in whole), normal(columns, np.float32, 3)
    right = gradients(whole[0][:, :rows], whole[1][:, :rows], w, 0.1, True)
    op = kernels.layer_norm_backward(g, x, f(w).sync(), 0.1)
    assert (op.parts()[0].label == "kernel _norm_backward_staying") == (columns < 5000)
    for found, expected in zip(op.sync(), right, strict=True):
        close(found.to_host().sync(), expected)
    dx, dw = kernels.add_rms_norm_backward(g, extra, x, f(w).sync(), 0.1).sync()
    right = gradients(whole[0][:, :rows], whole[1][:, :rows], w, 0.1, False)
    close(dx.to_host().sync(), right[0] + whole[2][:, :rows].astype(np.float64))
    close(dw.to_host().sync(), right[1])


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("steps", [False, True])
def test_means_of_long_rows_may_be_far_from_where_they_begin(device, mean, steps):
    """Squares are added up beyond the mean of the first tile: as exact as beyond that of the row, also where it is another."""
    host = normal((2, 140_000), np.float32) + np.float32(mean)
    if steps:
        host[:, :4096] -= np.float32(50)
    w, b = normal(140_000, np.float32, 3), normal(140_000, np.float32, 4)
    y = kernels.layer_norm(f(host), f(w), f(b)).to_host().sync()
    close(y, statistics(host, 1e-5, True)[0] * w.astype(np.float64) + b)


@pytest.mark.parametrize("count", [1, 5, 131, 132, 661, 5000, 100_003])
@pytest.mark.parametrize("columns", [16, 700, 2048, 8192])
@pytest.mark.parametrize("dtype", [tk.float32, tk.bfloat16, tk.float64], ids=str)
def test_blocks_that_stay_have_about_as_many_tiles_each(count, columns, dtype):
    x = api.meta((count, columns), dtype)
    dealt = _norm_gradients._staying(x, x, x)
    if columns * max(1, dtype.itemsize // 4) > 4096:  # the sums of its columns take more registers than there are
        assert dealt is None
        return
    if dealt is None:  # of few rows the sums of all blocks would be much of what is read
        assert 3 * count * dtype.itemsize < 8 * 8 * 132 * 6
        return
    assert dealt.parts == 1 or 64 * dealt.parts <= 3 * count * dtype.itemsize
    tile = dealt.tile
    assert dealt.tiles == -(-count // tile.rows)
    most = -(-dealt.tiles // dealt.parts)
    assert (dealt.parts - 1) * most < dealt.tiles
    assert dealt.parts <= 132 * tile.occupancy
    assert 32 * tile.num_warps * tile.occupancy <= 2048


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_l2_norm(device, shape, dtype):
    x = normal(shape, dtype)
    wide = x.astype(np.float64)
    y = kernels.l2_norm(f(x)).to_host().sync()
    assert y.dtype == x.dtype
    norm = np.sqrt((wide**2).sum(-1, keepdims=True))
    close(y, wide / norm)
    eps = float(np.median(norm)) + 0.5
    close(kernels.l2_norm(f(x), eps).to_host().sync(), wide / np.maximum(norm, eps))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shorter", [False, True])
def test_l2_norm_backward(device, shape, dtype, shorter):
    """Of rows that are all longer than eps, and where some are shorter."""
    x, g = normal(shape, dtype), normal(shape, dtype, 1)
    wide, steep = x.astype(np.float64), g.astype(np.float64)
    norm = np.sqrt((wide**2).sum(-1, keepdims=True))
    eps = float(np.median(norm)) + 0.5 if shorter else 1e-12
    dx = kernels.l2_norm_backward(f(g), f(x), eps).to_host().sync()
    assert dx.dtype == x.dtype
    along = np.where(norm < eps, 0, (steep * wide).sum(-1, keepdims=True) / norm**2)
    close(dx, (steep - wide * along) / np.maximum(norm, eps))


@pytest.mark.parametrize("columns", [100, 140000])
@pytest.mark.parametrize("eps", [1e-12, 1e-45, 1e-320])
def test_l2_norm_of_zeros_and_nan(device, columns, eps):
    x = np.zeros((3, columns), np.float32)
    x[1, 0], x[2, 0] = np.nan, -5
    y = kernels.l2_norm(f(x), eps).to_host().sync()
    assert not y[0].any()
    assert np.isnan(y[1]).all()
    assert y[2, 0] == pytest.approx(-1)
    assert not y[2, 1:].any()


@pytest.mark.parametrize("columns", [100, 140000])
def test_l2_norm_backward_of_zeros_nan_and_extremes(device, columns):
    x, g = np.zeros((4, columns), np.float32), normal((4, columns), np.float32)
    x[1, 0], x[2, 0], x[3] = np.nan, 1e-15, 1e30
    dx = kernels.l2_norm_backward(f(g), f(x), 1e-10).to_host().sync()
    np.testing.assert_allclose(dx[[0, 2]], g[[0, 2]] * 1e10, rtol=1e-5)
    assert np.isnan(dx[1, 0])
    assert not dx[3].any()  # its squares are infinite, and so its result is 0
    assert np.isfinite(kernels.l2_norm_backward(f(np.ones_like(x)), f(x * 0), 1e-45).to_host().sync()[0]).all()


def test_weights_of_another_dtype(device):
    x, w, b = normal((4, 100), np.float16), normal(100, np.float32), normal(100, np.float32, 1)
    close(kernels.layer_norm(f(x), f(w), f(b)).to_host().sync(), statistics(x, 1e-5, True)[0] * w + b)
    dx, dw = kernels.rms_norm_backward(f(x), f(x), f(w)).sync()
    assert dx.dtype == np.float16
    assert dw.dtype == np.float32


def test_a_constant_row(device):
    x = np.full((2, 1000), 5.0, np.float32)
    w, b = normal(1000, np.float32), normal(1000, np.float32, 1)
    close(kernels.layer_norm(f(x), f(w), f(b)).to_host().sync(), np.broadcast_to(b, (2, 1000)))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)], ids=str)
def test_empty(device, shape):
    x, w = api.zeros(shape).sync(), api.ones(shape[-1]).sync()
    assert kernels.layer_norm(x, w, w).sync().shape == shape
    assert kernels.l2_norm(x).sync().shape == shape
    assert kernels.l2_norm_backward(x, x).sync().shape == shape
    assert [t.shape for t in kernels.add_rms_norm(x, x, w).sync()] == [shape, shape]
    dx, dw, db = kernels.layer_norm_backward(x, x, w).sync()
    assert (dx.shape, dw.shape, db.shape) == (shape, w.shape, w.shape)
    assert [t.shape for t in kernels.add_rms_norm_backward(x, x, x, w).sync()] == [shape, w.shape]
    assert not dw.to_host().sync().any()


def test_in_place(device):
    host, w = normal((6, 80), np.float32), normal(80, np.float32, 1)
    x = f(host).sync()
    assert kernels.rms_norm(x, f(w).sync(), out=x).sync() is x
    close(x.to_host().sync(), statistics(host, 1e-6, False)[0] * w)
    assert kernels.l2_norm(x, out=x).sync() is x
    unit = x.to_host().sync()
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)
    grad = f(host).sync()
    assert kernels.l2_norm_backward(grad, x, out=grad).sync() is grad
    close(grad.to_host().sync(), host - unit * (host * unit).sum(1, keepdims=True))
