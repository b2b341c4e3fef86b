"""softmax and log_softmax, and their gradients, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from closeness import FLOATS, close, normal

from tilekit import api, kernels

SHAPES = [(5, 7), (3, 1000), (2, 3, 33), (300, 64), (1, 1), (2, 4096), (3, 40000), (1, 262144)]
f = api.from_host


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True).astype(np.float64))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_forward_and_backward(device, shape, dtype):
    x, g = normal(shape, dtype), normal(shape, dtype, 1)
    y = kernels.softmax(f(x)).to_host().sync()
    assert y.dtype == x.dtype
    close(y, softmax(x))
    log = kernels.log_softmax(f(x)).to_host().sync()
    assert log.dtype == x.dtype
    close(log, np.log(softmax(x)))

    p, dy = y.astype(np.float64), g.astype(np.float64)
    products = dy * p
    dx = kernels.softmax_backward(f(g), f(y)).to_host().sync()
    close(dx, products - p * products.sum(-1, keepdims=True), scale=max(np.abs(products).max(), np.abs(dx).max()))
    p = np.exp(log.astype(np.float64))
    expected = dy - p * dy.sum(-1, keepdims=True)
    close(kernels.log_softmax_backward(f(g), f(log)).to_host().sync(), expected, scale=1 + np.abs(expected).max())


@pytest.mark.parametrize("columns", [100, 50000])
def test_infinities_and_nan(device, columns):
    x = normal((5, columns), np.float32)
    x[0, 3] = np.nan
    x[1, 7] = -np.inf
    x[2, :] = -np.inf
    x[3, 5] = np.inf
    x[4, :] = 1e38
    y = kernels.softmax(f(x)).to_host().sync()
    assert np.isnan(y[0]).all()
    assert y[1, 7] == 0
    assert np.isnan(y[2]).all()
    assert np.isnan(y[3, 5])
    close(y[[1, 4]], softmax(x[[1, 4]]))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)], ids=str)
def test_empty(device, shape):
    assert kernels.softmax(api.zeros(shape)).sync().shape == shape
    assert kernels.softmax_backward(api.zeros(shape), api.zeros(shape)).sync().shape == shape


def test_views(device):
    x = f(normal((6, 80), np.float32)).sync()
    host = x.to_host().sync()
    close(kernels.softmax(x[1::2, 3:70]).to_host().sync(), softmax(host[1::2, 3:70]))
    close(kernels.softmax(x.T).to_host().sync(), softmax(host.T))
    close(kernels.softmax(x[:, ::2]).to_host().sync(), softmax(host[:, ::2]))


def test_in_place_and_into_views(device):
    host = normal((6, 80), np.float32)
    x = f(host).sync()
    assert kernels.softmax(x, out=x).sync() is x
    close(x.to_host().sync(), softmax(host))
    room = api.zeros((8, 100)).sync()
    into = room[1:7, 10:90]
    assert kernels.softmax(f(host), out=into).sync() is into
    written = room.to_host().sync()
    close(written[1:7, 10:90], softmax(host))
    assert (written[:, :10] == 0).all()
    assert (written[7] == 0).all()
