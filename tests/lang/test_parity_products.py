"""Products of a matrix and a batch, and products that are added up in float16, on both devices."""

import numpy as np
import pytest
from test_parity_padding import ways

import tilekit as tk
from tilekit import api

RNG = np.random.default_rng(5)
BATCH = RNG.normal(0, 1, (4, 16, 32)).astype(np.float32)
MATRIX = RNG.normal(0, 1, (32, 16)).astype(np.float32)
LEFT = RNG.normal(0, 1, (16, 16)).astype(np.float32)


def by_operator():
    @tk.kernel
    def k(y: tk.Out, a: tk.In, b: tk.In):
        y.store(tk.load(a, (0, 0, 0), (4, 16, 32)) @ tk.load(b, (0, 0), (32, 16)))

    return k


def by_mma():
    @tk.kernel
    def k(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((4, 16, 16))
        y.store(tk.mma(tk.load(a, (0, 0, 0), (4, 16, 32)), tk.load(b, (0, 0), (32, 16)), acc))

    return k


@pytest.mark.parametrize("make", [by_operator, by_mma])
def test_a_batch_beside_a_matrix(make):
    for result in ways(make, (4, 16, 16), BATCH, MATRIX):
        np.testing.assert_allclose(result, BATCH @ MATRIX, rtol=1e-5, atol=1e-4)


def test_a_matrix_beside_a_batch():
    def make():
        @tk.kernel
        def k(y: tk.Out, a: tk.In, b: tk.In):
            y.store(tk.matmul(tk.load(a, (0, 0), (16, 16)), tk.load(b, (0, 0, 0), (4, 16, 32)), precision="tf32"))

        return k

    for result in ways(make, (4, 16, 32), LEFT, BATCH):
        np.testing.assert_allclose(result, LEFT @ BATCH, rtol=1e-2, atol=2e-2)


def in_float16():
    @tk.kernel
    def k(y: tk.Out, a: tk.In, b: tk.In):
        acc = tk.ones((16, 16), tk.float16)
        for i in range(2):
            acc = tk.mma(tk.load(a, (0, i), (16, 32)), tk.load(b, (i, 0), (32, 16)), acc)
        tk.static_assert(acc.dtype == tk.float16)
        y.store(acc.astype(tk.float32))

    return k


def test_sums_in_float16():
    a, b = (RNG.normal(0, 1, shape).astype(np.float16) for shape in ((16, 64), (64, 16)))
    wide = a.astype(np.float32) @ b.astype(np.float32) + 1
    error = 2.0**-9 * (np.abs(a).astype(np.float32) @ np.abs(b).astype(np.float32) + 1)
    for result in ways(in_float16, (16, 16), a, b):
        assert np.all(np.abs(result - wide) <= error)
        assert np.array_equal(result, result.astype(np.float16))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tensor_cores_add_up_in_float16(target):
    a, b = api.meta((64, 64), tk.float16), api.meta((64, 64), tk.float16)
    ptx = in_float16()(api.meta((16, 16)).partition((16, 16)), a, b).compile(target=target).ptx
    assert "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16" in ptx
