"""What the parity tests of all families share: samples of each dtype, running a kernel, comparing with NumPy."""

import numpy as np

import tilekit as tk
from tilekit import api, dtypes

FLOATS = [tk.float16, tk.bfloat16, tk.float32, tk.float64]
SIGNED = [tk.int8, tk.int16, tk.int32, tk.int64]
UNSIGNED = [tk.uint8, tk.uint16, tk.uint32, tk.uint64]
INTEGERS = SIGNED + UNSIGNED
NUMBERS = INTEGERS + FLOATS
# Largest relative error that rounding once more than NumPy does may make.
TOLERANCE = {tk.float16: 2e-3, tk.bfloat16: 1.6e-2, tk.float32: 3e-7, tk.float64: 5e-16}


def sample(dtype, seed=0, n=100):
    """Random values of `dtype`: small enough that integer arithmetic rarely wraps, of both signs where there are two.

    Args:
        dtype: of the values.
        seed: another seed, other values.
        n: how many, or a shape.
    """
    rng = np.random.default_rng([seed, dtypes.ALL.index(dtype)])
    if dtype == tk.bool_:
        return rng.integers(0, 2, n).astype(bool)
    if dtypes.is_float(dtype):
        return rng.normal(0, 4, n).astype(dtype)
    return rng.integers(-50 if dtype.kind == "i" else 0, 100, n).astype(dtype)


def run(kernel, dtype, *arguments, n=100, tile=64):
    """The output of a kernel whose first parameter is the output: of shape `n`, in tiles of `tile`."""
    given = [api.from_host(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return kernel(api.zeros(n, dtype).partition(tile), *given).first().unpartition().to_host().sync()


def check(actual, expected, dtype=None, tolerance=None):
    """Equal, up to one more rounding where `dtype` is a float; `tolerance` is another relative error."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if dtypes.is_float(actual.dtype):  # NumPy's comparison of arrays does not know NaN in bfloat16
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if dtype is None or not dtypes.is_float(dtype):
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=tolerance or TOLERANCE[dtype], atol=1e-30)
