"""Rows that are too few to keep a GPU busy: they are taken apart, a block for each part."""

import numpy as np
import pytest
from row_kernels import BACKWARD, CALLS

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _tiles

RNG = np.random.default_rng(11)
LENGTHS = [40_000, 40_961, 100_003]  # of the last tile all, one element, some


def reference(name, x, w):
    """In float64."""
    e = np.exp(x - x.max(1, keepdims=True))
    total = e.sum(1, keepdims=True)
    if name == "softmax":
        return e / total
    if name == "log_softmax":
        return x - x.max(1, keepdims=True) - np.log(total)
    if name == "softmax_backward":
        return x * (x - (x * x).sum(1, keepdims=True))
    if name == "log_softmax_backward":
        return x - np.exp(x) * x.sum(1, keepdims=True)
    if name == "l2_norm":
        return x / np.sqrt((x * x).sum(1, keepdims=True))
    t = x - x.mean(1, keepdims=True) if name == "layer_norm" else x
    t = t / np.sqrt((t * t).mean(1, keepdims=True) + (1e-5 if name == "layer_norm" else 1e-6))
    return t * w + (w if name == "layer_norm" else 0)


@pytest.fixture(params=[2, 3, 7])
def parts(request, device, monkeypatch):
    """Rows in so many parts, on a CPU device, too."""

    def divided(tile, matrix):
        share = -(-tile.chunks // request.param)
        return -(-tile.chunks // share), share

    monkeypatch.setattr(_tiles.RowTile, "parts", divided)
    monkeypatch.setattr(_tiles, "_CPU_ELEMENTS", 1 << 12)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CALLS)
def test_they_are_right(device, name, length):
    data = (RNG.standard_normal((3, length)) * 0.1 + (5 if name == "layer_norm" else 0)).astype(np.float32)
    weight = RNG.standard_normal(length).astype(np.float32)
    x, w = api.from_host(data).sync(), api.from_host(weight).sync()
    op = CALLS[name](x, w)
    op.consumed()
    assert len(op.parts()) == 2
    right = reference(name, data.astype(np.float64), weight.astype(np.float64))
    result = CALLS[name](x, w).sync().numpy()
    np.testing.assert_allclose(result, right, rtol=3e-5, atol=3e-5 * np.abs(right).max())


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("length", LENGTHS)
def test_losses_are_right(device, length):
    data, classes = RNG.standard_normal((4, length)).astype(np.float32), np.array([0, length - 1, -100, 17])
    op = kernels.cross_entropy(api.from_host(data).sync(), api.from_host(classes).sync(), reduction="none")
    losses, lse = (result.numpy() for result in op.sync())
    wide = data.astype(np.float64)
    expected = np.log(np.exp(wide).sum(1))
    np.testing.assert_allclose(lse, expected, rtol=1e-6)
    picked = wide[np.arange(4), np.maximum(classes, 0)]
    np.testing.assert_allclose(losses, np.where(classes == -100, 0, expected - picked), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("centred", [True, False])
def test_gradients_of_norms_are_right(device, centred, length):
    x, dy = RNG.standard_normal((2, 3, length)) + 3 * centred
    w = RNG.standard_normal(length)
    on_device = [api.from_host(a.astype(np.float32)).sync() for a in (dy, x, w)]
    function = kernels.layer_norm_backward if centred else kernels.rms_norm_backward
    results = [result.numpy() for result in function(*on_device).sync()]
    t = x - x.mean(1, keepdims=True) if centred else x
    r = 1 / np.sqrt((t * t).mean(1, keepdims=True) + (1e-5 if centred else 1e-6))
    t, g = t * r, dy * w
    d = g - t * (g * t).mean(1, keepdims=True) - (g.mean(1, keepdims=True) if centred else 0)
    expected = [d * r, (dy * t).sum(0), *([dy.sum(0)] if centred else [])]
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=2e-4, atol=2e-5 * np.abs(right).max())


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("length", LENGTHS)
def test_gradients_of_a_sums_norm_are_right(device, length):
    dy, extra, h = (api.from_host(a).sync() for a in RNG.standard_normal((3, 3, length)).astype(np.float32))
    w = api.from_host(RNG.standard_normal(length).astype(np.float32)).sync()
    dx, dw = (result.numpy() for result in kernels.add_rms_norm_backward(dy, extra, h, w).sync())
    right, by_weight = (result.numpy() for result in kernels.rms_norm_backward(dy, h, w).sync())
    np.testing.assert_allclose(dx, right + extra.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(dw, by_weight)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("eps", [1e-12, 1e3])
def test_gradients_of_l2_norm_are_right(device, eps, length):
    """Of rows that are longer than `eps`, and shorter."""
    x, dy = RNG.standard_normal((2, 3, length))
    op = kernels.l2_norm_backward(*(api.from_host(a.astype(np.float32)).sync() for a in (dy, x)), eps)
    n = np.sqrt((x * x).sum(1, keepdims=True))
    right = dy / eps if eps == 1e3 else (dy - x * (dy * x).sum(1, keepdims=True) / n**2) / n
    np.testing.assert_allclose(op.sync().numpy(), right, rtol=2e-4, atol=2e-5 * np.abs(right).max())


@pytest.mark.usefixtures("parts")
def test_what_is_infinite_or_no_number_is_as_in_whole_rows(device):
    data = RNG.standard_normal((4, 40_961)).astype(np.float32)
    data[0, :20_000], data[1, 7], data[2, -1], data[3, 30_000:] = -np.inf, np.nan, np.nan, -np.inf
    result = kernels.softmax(api.from_host(data).sync()).sync().numpy()
    assert not result[0, :20_000].any() and not result[3, 30_000:].any()
    assert np.isnan(result[1:3]).all()
    np.testing.assert_allclose(result[[0, 3]].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 16, 131, 263, 264])
def test_a_gpu_has_blocks_enough(count):
    tile = _tiles.row_tile(api.meta((count, 1 << 20), tk.bfloat16))
    parts, share = tile.parts(api.meta((count, 1 << 20), tk.bfloat16))
    assert parts * share >= tile.chunks > (parts - 1) * share
    assert (parts > 1) == (count < 264)
    assert parts == tile.chunks or count * parts >= 264


WIDE = CALLS | BACKWARD | {"cross_entropy": lambda x, w: kernels.cross_entropy(x, api.meta(x.shape[0], tk.int64))}


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_they_read_and_write_at_full_width(name, dtype):
    x, w = api.meta((16, 1 << 20), dtype), api.meta(1 << 20, dtype)
    op = WIDE[name](x, w)
    op.consumed()
    parts = [launch for launch in op.parts() if launch.label.endswith(("_parts", "_joined", "_by_columns"))]
    assert len(parts) == 2
    for launch in parts:
        explained = launch.explain("sm_90a")
        assert launch.compile("sm_90a").spilled_bytes == 0
        wide = [a for a in explained.accesses if a.parameter in ("x", "y", "dx", "dy") and a.tile_shape[-1] > 32]
        assert wide or name == "cross_entropy"
        assert all(a.bits == 128 for a in wide), [(a.parameter, a.bits) for a in wide]
