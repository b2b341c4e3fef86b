"""What the tests of the kernels share: random tensors, and how far off a result may be."""

from __future__ import annotations

import ml_dtypes
import numpy as np

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)

# Of results of the order of 1: a rounding to the type, and what a calculation in float32 loses before.
TOLERANCE = {"float16": 1.5e-3, "bfloat16": 1.2e-2, "float32": 4e-6, "float64": 1e-12}


def normal(shape, dtype, seed=0):
    return np.random.default_rng((seed, *np.atleast_1d(shape))).standard_normal(shape).astype(dtype)


def close(found, expected, dtype=None, scale=None):
    """Whether they agree to the precision of the type, relative to the largest element."""
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    name = np.dtype(dtype if dtype is not None else found.dtype).name
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    assert np.array_equal(np.isnan(found), np.isnan(expected)), "NaN in other places"
    if found.size and not np.all(np.isnan(expected)):
        off = np.nanmax(np.abs(found - expected))
        largest = np.nanmax(np.abs(expected)) if scale is None else scale
        assert off <= TOLERANCE[name] * max(largest, 1e-30), f"off by {off:.3g}, the largest element is {largest:.3g}"
