"""Random inputs, and the shapes that the tables use."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilekit as tk
from tilekit import dtypes

FLOATS = [tk.float16, tk.bfloat16, tk.float32, tk.float64]
WIDE_FLOATS = [tk.float32, tk.float64]
SIGNED = [tk.int8, tk.int16, tk.int32, tk.int64]
UNSIGNED = [tk.uint8, tk.uint16, tk.uint32, tk.uint64]
INTEGERS = SIGNED + UNSIGNED
NUMBERS = INTEGERS + FLOATS

# (shape, tile, edge): neighbours in this list share kernels where their extents are divided by the same powers of two.
LINES = [
    ((1,), (256,), "plain"), ((255,), (256,), "plain"), ((5003,), (256,), "plain"), ((1024,), (256,), "plain"),
    ((1000,), (256,), "plain"), ((259,), (256,), "unaligned"), ((513,), (64,), "strided"), ((4096,), (512,), "plain"),
]  # fmt: skip
PLANES = [
    ((8, 32), (8, 32), "plain"), ((33, 101), (8, 32), "plain"), ((64, 64), (8, 32), "plain"), ((7, 5), (8, 32), "unaligned"),
    ((40, 24), (16, 4), "fortran"), ((19, 21), (8, 16), "strided"),
]  # fmt: skip
DEEP = [((3, 5, 17), (2, 4, 16), "plain"), ((4, 8, 32), (2, 4, 16), "plain"), ((2, 3, 4, 9), (1, 2, 4, 8), "plain")]
PLACES = LINES + PLANES + DEEP
FEW = [LINES[2], LINES[3], PLANES[1], PLANES[4]]


def any_of(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> Any:
    """Values over the whole range of `dtype`: for floats numbers of ordinary size, of any size, and special ones."""
    if dtype == tk.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtypes.is_float(dtype):
        made = rng.integers(0, 256, (int(np.prod(shape)), dtype.itemsize), np.uint8).view(dtype).reshape(shape)
        small = rng.integers(-3 if dtype.kind == "i" else 0, 4, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.3, small, made).astype(dtype)
    made = bits_of(rng, shape, dtype)
    ordinary = rng.normal(0, 4, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.25, made, ordinary).astype(dtype)


def bits_of(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> Any:
    """Any bits at all, NaNs among them with one pattern only; for bool 0 and 1."""
    if dtype == tk.bool_:
        return any_of(rng, shape, dtype)
    made = rng.integers(0, 256, (int(np.prod(shape)), dtype.itemsize), np.uint8).view(dtype).reshape(shape)
    if dtypes.is_float(dtype):
        special = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf], np.float32).astype(dtype)
        made = np.where(rng.random(shape) < 0.2, rng.choice(special.astype(np.float64), shape).astype(dtype), made)
        made = np.where(np.isnan(made.astype(np.float64)), special[3], made)
    return made.astype(dtype)


def modest(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers of ordinary size, of both signs where there are two."""
    if dtype == tk.bool_:
        return any_of(rng, shape, dtype)
    if dtypes.is_float(dtype):
        return rng.normal(0, 4, shape).astype(dtype)
    return rng.integers(-50 if dtype.kind == "i" else 0, 100, shape).astype(dtype)
