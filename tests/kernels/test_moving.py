"""Kernels that move, count, choose and add up elements: transpose, cumsum, argmax, topk, histogram, embedding, rope."""

from __future__ import annotations

import numpy as np
import pytest
from closeness import FLOATS, close, normal

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit.kernels import _embedding, _rope, _scan

f = api.from_host
named = {"ids": lambda d: np.dtype(d).name}
NUMBERS = (*FLOATS, np.int32, np.int64)


def numbers(shape, dtype, seed=0):
    if np.dtype(dtype).kind == "i":
        return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(dtype)
    return normal(shape, dtype, seed)


@pytest.mark.parametrize("dtype", dtypes.ALL, **named)
@pytest.mark.parametrize(
    "shape", [(64, 64), (5, 7), (130, 257), (2, 3, 65, 33), (0, 4), (3, 1, 100), (2, 7, 2100), (2100, 3)], ids=str
)
def test_transpose(device, shape, dtype):
    x = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    x = (x[..., 0] & 1).astype(bool) if dtype == tk.bool_ else x.view(dtype)[..., 0]
    y = kernels.transpose(f(np.ascontiguousarray(x))).to_host().sync()
    assert y.shape == (*shape[:-2], shape[-1], shape[-2])
    assert y.tobytes() == np.ascontiguousarray(np.swapaxes(x, -1, -2)).tobytes()


@pytest.mark.parametrize(
    ("shape", "dtype", "name", "tile"),
    [
        ((4096, 4096), "float32", "_transpose", (64, 64, 1)),
        ((32, 4096), "float32", "_transpose", (64, 32, 1)),
        ((6, 7, 226629), "float32", "_transpose", (1024, 8, 1)),
        ((226629, 7), "float16", "_transpose", (8, 1024, 1)),
        ((297, 50208), "float32", "_transpose_along", (128, 64, 1)),
        ((50208, 297), "float32", "_transpose", (64, 128, 1)),
        ((840, 50208), "float32", "_transpose_along", (64, 64, 1)),
        ((50208, 1001), "float32", "_transpose", (64, 128, 1)),
        ((50200, 4096), "float32", "_transpose_along", (64, 64, 1)),
    ],
)
def test_how_a_transpose_is_cut(shape, dtype, name, tile):
    """Tiles of few rows are long; blocks go along rows that share lines of memory, of both along the side of fewer tiles."""
    op = kernels.transpose(api.meta(shape, dtype))
    (launch,) = op.parts()
    assert (launch.kernel.name, launch.arguments[0].tile_shape) == (name, tile)
    (store,) = (access for access in launch.explain(target="sm_90a").accesses if access.kind == "store")
    assert store.coalesced == 1
    op.consumed()


@pytest.mark.parametrize("dtype", NUMBERS, **named)
@pytest.mark.parametrize("shape", [(5, 7), (3, 1000), (300, 64), (2, 8192), (3, 15001), (2, 20000), (1, 300001), (4, 0)], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(device, shape, dtype, reverse):
    x = numbers(shape, dtype)
    y = kernels.cumsum(f(x), reverse=reverse).to_host().sync()
    assert y.dtype == x.dtype
    order = slice(None, None, -1 if reverse else 1)
    if np.dtype(dtype).kind == "i":
        assert np.array_equal(y, np.cumsum(x[..., order], -1, dtype=dtype)[..., order])
    else:
        # The sums of what the elements could be: that is what the additions round.
        expected = np.cumsum(x[..., order].astype(np.float64), -1)[..., order]
        close(y, expected, scale=max(1.0, np.sqrt(shape[-1]) * 4))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 40)])
def test_cumsum_along_rows(device, shape, reverse):
    """Blocks that go along their rows, tile by tile, of matrices and of batches with gaps."""
    g = np.random.default_rng(0)
    outer = g.integers(-9, 9, (*shape[:-2], shape[-2] + 2, shape[-1])).astype(np.int32)
    x = api.from_host(outer).sync()[..., : shape[-2], :]
    y = api.zeros(shape, tk.int32).sync()
    _scan._Way(1, 16, 1, -(-shape[-1] // 16), True).launch(y, x, reverse).sync()
    order = slice(None, None, -1 if reverse else 1)
    expected = np.cumsum(outer[..., : shape[-2], :][..., order], -1, dtype=np.int32)[..., order]
    assert np.array_equal(y.to_host().sync(), expected)


def test_how_rows_are_scanned():
    """Few long rows in two passes, many by blocks that go along; batches with gaps as they lie; several short ones in a block."""

    def launches(x):
        op = kernels.cumsum(x)
        op.consumed()
        return [(launch.kernel.name, launch.arguments[0].tile_shape) for launch in op.parts()]

    assert launches(api.meta((1024, 65536), "float32")) == [("_cumsum_along", (1, 1, 4096))]
    assert [name for name, _ in launches(api.meta((64, 65536), "float32"))] == ["_tile_sums", "_cumsum_after"]
    assert launches(api.meta((5, 4100, 648), "float32")[:, :4096]) == [("_cumsum", (1, 2, 1024))]
    assert launches(api.meta((2, 3, 600, 65536), "float32")[:, :, :500]) == [("_cumsum_along", (1, 1, 4096))]
    assert launches(api.meta((455072, 464), "bfloat16")) == [("_cumsum", (4, 512))]


@pytest.mark.parametrize("dtype", NUMBERS, **named)
@pytest.mark.parametrize("shape", [(5, 7), (3, 1000), (2, 3, 33), (300, 64), (2, 50000), (1, 300001)], ids=str)
def test_argmax(device, shape, dtype):
    x = numbers(shape, dtype)
    y = kernels.argmax(f(x)).to_host().sync()
    assert y.dtype == np.int64
    assert np.array_equal(y, np.argmax(x.astype(np.float64), -1))


@pytest.mark.parametrize("columns", [100, 100000])
def test_argmax_of_nan_and_of_the_smallest_there_is(device, columns):
    x = normal((4, columns), np.float32)
    x[0, [30, 70]] = np.nan
    x[1] = -np.inf
    x[2, [5, columns - 1]] = 99
    x[3, 0], x[3, columns - 1] = np.inf, np.nan
    assert kernels.argmax(f(x)).to_host().sync().tolist() == [30, 0, 5, columns - 1]
    assert kernels.argmax(f(np.full((1, columns), -(2**31), np.int32))).to_host().sync().tolist() == [0]


@pytest.mark.parametrize("dtype", NUMBERS, **named)
@pytest.mark.parametrize(("shape", "k"), [((5, 7), 3), ((3, 1000), 1), ((300, 64), 64), ((2, 2, 20000), 10), ((1, 300001), 100)])
def test_topk(device, shape, k, dtype):
    x = numbers(shape, dtype)
    for largest in (True, False):
        values, places = (t.to_host().sync() for t in kernels.topk(f(x), k, largest=largest).sync())
        assert values.dtype == x.dtype
        assert places.dtype == np.int64
        wide = x.astype(np.float64)
        order = np.argsort(-wide if largest else wide, -1, kind="stable")[..., :k]
        assert np.array_equal(places, order)
        assert np.array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64], **named)
@pytest.mark.parametrize(
    ("n", "bins"),
    [
        (10, 4), (100001, 256), (5000, 1), (0, 5), (5000000, 300), (65536, 5000), (70000, 20000), (300001, 32768), (70000, 32769),
        (70000, 100003), (0, 40000),
    ],
)  # fmt: skip
def test_histogram(device, n, bins, dtype):
    x = np.random.default_rng(0).integers(-2, bins + 2, n).astype(dtype)
    counts = kernels.histogram(f(x), bins).to_host().sync()
    assert counts.dtype == np.int32
    assert np.array_equal(counts, np.bincount(x[(x >= 0) & (x < bins)], minlength=bins))


@pytest.mark.parametrize("bins", [3, 256, 40000])
@pytest.mark.parametrize("value", [0, 2, -1, 1 << 32], ids=str)
def test_histogram_of_one_value(device, value, bins):
    """Zeros are what the last tile is padded with; of 2**32 the lower half is zero."""
    counts = kernels.histogram(f(np.full((77, 999), value)), bins).to_host().sync()
    assert np.array_equal(counts, 77 * 999 * (np.arange(bins) == value))


def test_histogram_of_every_other_column(device):
    x = np.random.default_rng(0).integers(0, 50, (100, 64))
    counts = kernels.histogram(f(x).sync()[:, ::2], 50)
    assert counts.shape == (50,)
    assert np.array_equal(counts.to_host().sync(), np.bincount(x[:, ::2].reshape(-1), minlength=50))


@pytest.mark.parametrize("dtype", FLOATS, **named)
@pytest.mark.parametrize(("rows", "width", "shape"), [(7, 5, (11,)), (100, 64, (2, 3)), (50, 5000, (20,)), (5, 128, (0,))])
def test_embedding(device, rows, width, shape, dtype):
    table = normal((rows, width), dtype)
    ids = np.random.default_rng(0).integers(0, rows, shape)
    for kind in (np.int32, np.int64):
        y = kernels.embedding(f(table), f(ids.astype(kind))).to_host().sync()
        assert y.tobytes() == table[ids].tobytes()
        assert y.shape == (*shape, width)
        assert y.dtype == table.dtype
    grad = normal((*shape, width), dtype, 1)
    expected = np.zeros((rows, width))
    np.add.at(expected, ids.reshape(-1), grad.reshape(-1, width).astype(np.float64))
    made = kernels.embedding_backward(f(grad), f(ids), rows).to_host().sync()
    assert made.dtype == table.dtype
    close(made, expected)


@pytest.mark.parametrize("dtype", [np.float16, tk.bfloat16], **named)
@pytest.mark.parametrize("width", [1, 64, 70, 1001, 2056])
@pytest.mark.parametrize("most", [1, 20, 1000])
def test_few_rows_of_a_large_table(device, most, width, dtype):
    """Indices that meet, all of them for one, get one row of sums; rows that none has are zeros."""
    ids = np.random.default_rng(most).integers(0, most, 301)
    grad = normal((301, width), dtype, 1)
    expected = np.zeros((1000, width))
    np.add.at(expected, ids, grad.astype(np.float64))
    made = kernels.embedding_backward(f(grad), f(ids), 1000).to_host().sync()
    assert made.dtype == dtype
    close(made, expected)
    assert not made[sorted(set(range(1000)) - set(ids))].any()


@pytest.mark.parametrize(
    ("rows", "width", "count", "dtype", "names"),
    [
        (2048, 8192, 64, "float16", ["_add_to_owners", "_sums_of_owners"]),
        (22544, 70, 2278, "bfloat16", ["_add_to_owners", "_sums_by_elements"]),
        (1000, 64, 1000, "float16", ["_embedding_backward"]),
        (2048, 8192, 64, "float32", ["_embedding_backward"]),
    ],
)
def test_only_what_is_added_has_sums_of_its_own(rows, width, count, dtype, names):
    op = kernels.embedding_backward(api.meta((count, width), dtype), api.meta(count, "int64"), rows)
    launches = [part for part in op.parts() if isinstance(part, tk.KernelLaunch)]
    assert [launch.kernel.name for launch in launches] == names
    if dtype != "float32" and len(names) == 2:
        assert launches[0].arguments[1].shape == (count, width)
        made = launches[1].compile(target="sm_90a")
        assert not made.local_bytes
    op.consumed()


@pytest.mark.parametrize("dtype", [tk.float8_e4m3fn, tk.bool_, tk.bfloat16, tk.float32, tk.int64], **named)
@pytest.mark.parametrize("width", [1, 2, 3, 8, 62, 65, 255, 256, 1001])
def test_embedding_by_elements(device, width, dtype, monkeypatch):
    """What short and odd rows take on a GPU, on any device: whole tables, parts of rows, results that are parts of others."""
    monkeypatch.setattr(_embedding, "on_cpu", lambda tensor: False)
    random = np.random.default_rng(width)
    table = random.integers(0, 2, (300, width + 5), np.uint8).astype(dtype)
    ids = random.integers(0, 300, 77)
    whole, numbers = f(table).sync(), f(ids).sync()
    for columns in (slice(0, width), slice(1, 1 + width), slice(4, 4 + width)):
        assert kernels.embedding(whole[:, columns], numbers).to_host().sync().tobytes() == table[ids, columns].tobytes()
    rows = f(np.ascontiguousarray(table[:, :width])).sync()
    out = api.zeros((79, width), dtype).sync()
    kernels.embedding(rows, numbers, out=out[1:78]).sync()
    assert out.to_host().sync()[1:78].tobytes() == table[ids, :width].tobytes()
    assert not out.to_host().sync()[[0, 78]].any()
    gaps = api.zeros((77, 2 * width), dtype).sync()
    kernels.embedding(rows, numbers, out=gaps[:, ::2]).sync()
    assert gaps.to_host().sync()[:, ::2].tobytes() == table[ids, :width].tobytes()


@pytest.mark.parametrize("dtype", FLOATS, **named)
@pytest.mark.parametrize("shape", [(3, 5, 2, 8), (6, 4, 80), (2, 9, 3, 128), (1, 3, 33, 2), (3, 66, 64), (2, 130, 512)], ids=str)
@pytest.mark.parametrize("dealt", ["as here", "as on a GPU"])
def test_rope(device, monkeypatch, shape, dtype, dealt):
    if dealt == "as on a GPU":
        monkeypatch.setattr(_rope, "on_cpu", lambda x: False)
    positions, size = shape[-3], shape[-1]
    x = normal(shape, dtype)
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    wide = np.float64 if dtype == np.float64 else np.float32
    cos, sin = np.cos(angles).astype(wide), np.sin(angles).astype(wide)

    def turned(x, sin):
        a, b = np.split(x.astype(np.float64), 2, -1)
        c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
        return np.concatenate((a * c - b * s, b * c + a * s), -1)

    y = kernels.rope(f(x), f(cos), f(sin)).to_host().sync()
    assert y.dtype == x.dtype
    close(y, turned(x, sin))
    close(kernels.rope_backward(f(x), f(cos), f(sin)).to_host().sync(), turned(x, -sin))


def test_heads_of_a_tile_of_rope():
    """As many as leave little over: of 10 heads 2 at a time, not 16."""
    assert [_rope._together(heads, 64) for heads in (1, 2, 8, 10, 12, 16, 30, 32, 40, 64, 128)] == [
        1, 2, 8, 2, 4, 16, 32, 32, 8, 64, 64
    ]  # fmt: skip
