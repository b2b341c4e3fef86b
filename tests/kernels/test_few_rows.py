"""Rows that are too few to keep a GPU busy: they are taken apart, a block for each part."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _host

RNG = np.random.default_rng(11)
LENGTHS = [40_000, 40_961, 100_003]  # of the last tile all, one element, some

CALLS = {
    "softmax": lambda x, w: kernels.softmax(x),
    "log_softmax": lambda x, w: kernels.log_softmax(x),
    "softmax_backward": lambda x, w: kernels.softmax_backward(x, x),
    "log_softmax_backward": lambda x, w: kernels.log_softmax_backward(x, x),
    "layer_norm": lambda x, w: kernels.layer_norm(x, w, w),
    "rms_norm": lambda x, w: kernels.rms_norm(x, w),
}


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
    t = x - x.mean(1, keepdims=True) if name == "layer_norm" else x
    t = t / np.sqrt((t * t).mean(1, keepdims=True) + (1e-5 if name == "layer_norm" else 1e-6))
    return t * w + (w if name == "layer_norm" else 0)


@pytest.fixture(params=[2, 3, 7])
def parts(request, device, monkeypatch):
    """Rows in so many parts, on a CPU device, too."""

    def divided(tile, matrix):
        share = -(-tile.chunks // request.param)
        return -(-tile.chunks // share), share

    monkeypatch.setattr(_host.RowTile, "parts", divided)
    monkeypatch.setattr(_host, "_CPU_ELEMENTS", 1 << 12)


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
def test_what_is_infinite_or_no_number_is_as_in_whole_rows(device):
    data = RNG.standard_normal((4, 40_961)).astype(np.float32)
    data[0, :20_000], data[1, 7], data[2, -1], data[3, 30_000:] = -np.inf, np.nan, np.nan, -np.inf
    result = kernels.softmax(api.from_host(data).sync()).sync().numpy()
    assert not result[0, :20_000].any() and not result[3, 30_000:].any()
    assert np.isnan(result[1:3]).all()
    np.testing.assert_allclose(result[[0, 3]].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 16, 131, 263, 264])
def test_a_gpu_has_blocks_enough(count):
    tile = _host.row_tile(api.meta((count, 1 << 20), tk.bfloat16))
    parts, share = tile.parts(api.meta((count, 1 << 20), tk.bfloat16))
    assert parts * share >= tile.chunks > (parts - 1) * share
    assert (parts > 1) == (count < 264)
    assert parts == tile.chunks or count * parts >= 264


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_they_read_and_write_at_full_width(name, dtype):
    x, w = api.meta((16, 1 << 20), dtype), api.meta(1 << 20, dtype)
    op = CALLS[name](x, w)
    op.consumed()
    for launch in op.parts():
        explained = launch.explain("sm_90a")
        assert launch.compile("sm_90a").spilled_bytes == 0
        wide = [a for a in explained.accesses if a.parameter in ("x", "y", "dx", "dy")]
        assert wide and all(a.bits == 128 for a in wide), [(a.parameter, a.bits) for a in wide]
