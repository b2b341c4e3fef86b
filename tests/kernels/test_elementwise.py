"""Activation functions and dropout, and their gradients, against NumPy in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from closeness import FLOATS, close, normal

from tilekit import api, kernels

SHAPES = [(5,), (3, 1000), (2, 3, 4097), (1,), ()]
f = api.from_host
erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x * sigmoid(x)


def slope(function, x):
    """By the central difference of fourth order."""
    h = 1e-3
    return (8 * (function(x + h) - function(x - h)) - (function(x + 2 * h) - function(x - 2 * h))) / (12 * h)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_activations(device, shape, dtype):
    x, g, u = (np.asarray(normal(shape, np.float64, seed) * 3).astype(dtype) for seed in range(3))
    wide, dy, up = (a.astype(np.float64) for a in (x, g, u))
    many = ((kernels.gelu, kernels.gelu_backward, gelu, {}), (kernels.silu, kernels.silu_backward, silu, {}))
    for forward, backward, expected, options in (
        *many,
        (kernels.gelu, kernels.gelu_backward, gelu_tanh, {"approximate": "tanh"}),
    ):
        y = forward(f(x), **options).to_host().sync()
        assert y.dtype == x.dtype
        close(y, expected(wide))
        dx = backward(f(g), f(x), **options).to_host().sync()
        assert dx.dtype == x.dtype
        close(dx.astype(np.float64), dy * slope(expected, wide), dtype=np.float32 if dtype == np.float64 else dtype)

    close(kernels.swiglu(f(x), f(u)).to_host().sync(), silu(wide) * up)
    dgate, dup = (made.to_host().sync() for made in kernels.swiglu_backward(f(g), f(x), f(u)).sync())
    close(dup, dy * silu(wide))
    close(dgate.astype(np.float64), dy * up * slope(silu, wide), dtype=np.float32 if dtype == np.float64 else dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_far_away(device, dtype):
    x = np.array([-60000, -100, -20, 0, 20, 100, 60000]).astype(dtype)
    expected = np.maximum(x.astype(np.float64), 0)
    for function in (kernels.gelu, kernels.silu, lambda x: kernels.gelu(x, approximate="tanh")):
        y = function(f(x)).to_host().sync().astype(np.float64)
        assert np.abs(y - expected).max() < 1e-6
    for function in (kernels.gelu_backward, kernels.silu_backward):
        dx = function(f(np.ones_like(x)), f(x)).to_host().sync().astype(np.float64)
        assert np.abs(dx - np.where(x == 0, 0.5, x > 0)).max() < 1e-6


def test_views_and_in_place(device):
    host = normal((6, 80), np.float32)
    x = f(host).sync()
    close(kernels.silu(x[::2, 5:]).to_host().sync(), silu(host[::2, 5:]))
    close(kernels.silu(x.T).to_host().sync(), silu(host.T))
    assert kernels.silu(x, out=x).sync() is x
    close(x.to_host().sync(), silu(host))


def with_gaps(shape, gaps, dtype=np.float32, seed=0):
    """A tensor with so many elements between the ends of its dimensions and those of the memory; and its elements."""
    host = normal([n + gap for n, gap in zip(shape, gaps, strict=True)], dtype, seed)
    part = tuple(slice(0, n) for n in shape)
    return f(host).sync()[part], host[part].astype(np.float64)


@pytest.mark.parametrize(
    ("shape", "gaps"),
    [((37, 100), (0, 4)), ((5, 2049), (0, 1)), ((70, 3), (0, 5)), ((3, 7, 40), (0, 2, 0)), ((3, 7, 40), (0, 2, 8))],
    ids=str,
)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_rows_with_gaps(device, shape, gaps, dtype):
    (x, wide), (g, dy), (u, up) = (with_gaps(shape, gaps, dtype, seed) for seed in range(3))
    out = with_gaps(shape, gaps, dtype)[0]
    close(kernels.swiglu(x, u).to_host().sync(), silu(wide) * up)
    assert kernels.gelu(x, out=out).sync() is out
    close(out.numpy(), gelu(wide))
    dgate, dup = (made.to_host().sync().astype(np.float64) for made in kernels.swiglu_backward(g, x, u).sync())
    alone = np.float32 if dtype == np.float64 else dtype
    close(dup, dy * silu(wide), dtype=dtype)
    close(dgate, dy * up * slope(silu, wide), dtype=alone)
    even = f(dy.astype(dtype)).sync()  # one has gaps, the other none
    close(kernels.silu_backward(even, x).to_host().sync().astype(np.float64), dy * slope(silu, wide), dtype=alone)


def test_transposed_tensors(device):
    """As they lie where the result lies so, too."""
    host, out = normal((60, 40), np.float32), f(np.zeros((60, 48), np.float32)).sync()[:, :40].T
    x = f(host).sync().T
    assert kernels.silu(x, out=out).sync() is out
    close(out.numpy(), silu(host.T))


def meta_with_gaps(rows, columns, gap, dtype):
    return api.meta((rows, columns + gap), dtype)[:, :columns]


@pytest.mark.parametrize(("dtype", "gap", "bits"), [("float16", 4, {64}), ("float16", 8, {128}), ("float32", 2, {64})])
def test_rows_with_gaps_are_read_as_they_lie(dtype, gap, bits):
    op = kernels.swiglu_backward(*(meta_with_gaps(16384, 1024, gap, dtype) for _ in range(3)))
    (launch,) = op.parts()
    assert launch.kernel.name == "_swiglu_backward", "nothing is copied first"
    accesses = launch.explain(target="sm_90a").accesses
    assert {access.bits for access in accesses} == bits
    assert not any(access.masked for access in accesses)
    op.consumed()


@pytest.mark.parametrize(
    ("columns", "tile"),
    [(1024, (2, 1024)), (1023, (2, 1024)), (1100, (1, 2048)), (3000, (2, 1024)), (5, (256, 8)), (50000, (1, 2048))],
)
def test_rows_with_gaps_are_whole_in_tiles_or_leave_them_mostly_full(columns, tile):
    op = kernels.silu(meta_with_gaps(4096, columns, 8, "float16"))
    (launch,) = op.parts()
    assert launch.arguments[0].tile_shape == tile
    op.consumed()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout(device, dtype, p):
    x = normal((3, 1001), dtype)
    seed = 2**64 - 5
    kept = api.rand(x.shape, seed).to_host().sync() >= p
    y = kernels.dropout(f(x), p, seed).to_host().sync()
    assert y.dtype == x.dtype
    close(y, np.where(kept, x.astype(np.float64) / (1 - p) if p < 1 else 0.0, 0.0))
    assert (p not in (0.0, 1.0)) or (y != 0).all() == (p == 0.0)
    g = normal(x.shape, dtype, 1)
    dx = kernels.dropout_backward(f(g), p, seed).to_host().sync()
    assert np.array_equal(dx != 0, kept & (g != 0) if p < 1 else np.zeros(x.shape, bool))


def test_dropout_drops_its_share(device):
    kept = kernels.dropout(api.ones(1 << 18), 0.25, 1).to_host().sync() != 0
    assert abs(kept.mean() - 0.75) < 0.004  # nearly five standard deviations
    other = kernels.dropout(api.ones(1 << 18), 0.25, 2).to_host().sync() != 0
    assert abs((kept & other).mean() - 0.5625) < 0.005


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_gelu_of_every_number_of_16_bits(device, dtype):
    info = ml_dtypes.finfo(dtype)
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    x = x[np.abs(x.astype(np.float32)) <= float(info.max)]
    wide = x.astype(np.float64)
    bell = np.exp(-0.5 * wide * wide)
    below = 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-wide / math.sqrt(2))
    ones = f(np.ones_like(x)).sync()
    for result, exact in (
        (kernels.gelu(f(x)), wide * below),
        (kernels.gelu_backward(ones, f(x)), below + wide * bell / math.sqrt(2 * math.pi)),
    ):
        y = result.to_host().sync()
        ulp = 2.0 ** (np.frexp(np.maximum(np.abs(exact), float(info.smallest_normal)))[1] - 1 - info.nmant)
        # Half an ulp is the rounding; where the slope crosses zero, what is left of its two parts.
        assert (np.abs(y.astype(np.float64) - exact) <= 0.52 * ulp + 1e-6).all()
    far = np.array([-np.inf, np.inf, np.nan]).astype(dtype)
    assert np.array_equal(kernels.gelu(f(far)).to_host().sync().astype(np.float32), [np.nan, np.inf, np.nan], equal_nan=True)
