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
