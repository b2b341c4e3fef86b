"""Cross-entropy and its gradient, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from closeness import FLOATS, close, normal

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import _loss
from tilekit.kernels._tiles import row_tile

SHAPES = [(5, 7), (3, 1000), (2, 3, 33), (300, 64), (3, 40000), (2, 140000), (5000, 3), (9000, 2)]
f = api.from_host


def test_columns_of_two_tiles():
    """A row of 527 elements has a tile of 512 and one of 32 beside it, where one of 1024 would be empty for half of it."""

    def tiles(rows, columns, dtype):
        x = api.meta((rows, columns), dtype)
        return _loss._of_two(row_tile(x, blocks=_loss._LOOPS), x)

    assert tiles(100, 527, tk.float16) == (512, 32)
    assert tiles(100, 528, tk.float16) == (512, 256)
    assert tiles(100, 336, tk.float32) == (256, 128)
    assert tiles(100, 1100, tk.float32) == (1024, 512)
    assert tiles(100, 512, tk.float32) is None
    assert tiles(100, 450, tk.float32) is None
    assert tiles(100, 33, tk.float32) is None
    assert tiles(100, 100_000, tk.float32) is None


def test_blocks_that_add_up():
    assert _loss._shares(5) == (8, 1, 1, 1, 1)
    assert [_loss._shares(count).parts for count in (2048, 8192, 8193)] == [1, 1, 5]
    for count in (1, 2048, 2049, 110_216, 4_194_304, 123_456_789):
        tile, tiles, share, parts, _ = _loss._shares(count)
        assert tiles == -(-count // tile)
        assert (parts - 1) * share < tiles <= parts * share
        assert parts <= 512
    # The one block that adds up what hundreds have is of a power of two of warps, however many these are.
    assert {_loss._shares(count).num_warps for count in range(8193, 1 << 24, 8191)} == {1, 2, 4, 8}


def loss_of(x, target, ignored=-100):
    x = x.astype(np.float64)
    top = x.max(-1)
    lse = top + np.log(np.exp(x - top[..., None]).sum(-1))
    at = np.where(target == ignored, 0, target)
    return np.where(target == ignored, 0.0, lse - np.take_along_axis(x, at[..., None].astype(np.int64), -1)[..., 0]), lse


def targets(shape, dtype=np.int64, ignored=-100):
    made = np.random.default_rng(7).integers(0, shape[-1], shape[:-1]).astype(dtype)
    made.flat[1::3] = ignored
    return made


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(5, 527, tk.float16), (4, 336, tk.float32), (3, 1100, tk.bfloat16)])
@pytest.mark.parametrize("few", [True, False])
def test_rows_in_two_tiles(device, monkeypatch, rows, columns, dtype, few):
    """On a CPU device as well, which has them in one."""
    monkeypatch.setattr(_loss, "on_cpu", lambda tensor: False)
    monkeypatch.setattr(_loss, "_BLOCKS", 32 if few else 0)
    x, target = normal((rows, columns), dtype), targets((rows, columns))
    losses, lse = (t.to_host().sync() for t in kernels.cross_entropy(f(x), f(target), reduction="none").sync())
    expected, norm = loss_of(x, target)
    close(losses, expected)
    close(lse, norm)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_forward_and_backward(device, shape, dtype):
    x, target = normal(shape, dtype), targets(shape)
    wide = np.float64 if dtype == np.float64 else np.float32
    expected, norm = loss_of(x, target)
    losses, lse = (t.to_host().sync() for t in kernels.cross_entropy(f(x), f(target), reduction="none").sync())
    assert losses.dtype == lse.dtype == wide
    close(losses, expected)
    close(lse, norm)
    assert (losses[target == -100] == 0).all()

    counted = (target != -100).sum()
    mean = kernels.cross_entropy(f(x), f(target)).first().to_host().sync()
    assert mean.shape == ()
    close(mean, np.asarray(expected.sum() / counted))
    close(kernels.cross_entropy(f(x), f(target), reduction="sum").first().to_host().sync(), np.asarray(expected.sum()))

    p = np.exp(x.astype(np.float64) - norm[..., None])
    np.put_along_axis(p, np.maximum(target, 0)[..., None], np.take_along_axis(p, np.maximum(target, 0)[..., None], -1) - 1, -1)
    p[target == -100] = 0
    grad = normal(target.shape, wide, 5)
    for reduction, given, factor in (
        ("none", grad, grad[..., None].astype(np.float64)),
        ("mean", np.asarray(2.0, wide), 2.0 / counted),
        ("sum", np.asarray(-1.0, wide), -1.0),
    ):
        dx = kernels.cross_entropy_backward(f(given), f(x), f(target), f(lse), reduction=reduction).to_host().sync()
        assert dx.dtype == x.dtype
        close(dx, p * factor)


def test_other_integers_and_another_index_to_ignore(device):
    x, target = normal((50, 20), np.float32), targets((50, 20), np.int32, ignored=3)
    expected, _ = loss_of(x, target, 3)
    losses = kernels.cross_entropy(f(x), f(target), reduction="none", ignore_index=3).first().to_host().sync()
    close(losses, expected)


def test_in_place(device):
    host, target = normal((50, 20), np.float32), targets((50, 20))
    x, t = f(host).sync(), f(target).sync()
    lse = kernels.cross_entropy(x, t).last().sync()
    grad = api.ones(()).sync()
    fresh = kernels.cross_entropy_backward(grad, x, t, lse).to_host().sync()
    assert kernels.cross_entropy_backward(grad, x, t, lse, out=x).sync() is x
    assert np.array_equal(x.to_host().sync(), fresh)
