"""NumPy references of products, quotients and powers, where NumPy itself warns, raises or rounds twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.lang.rounding import rounded

__all__ = ["ceiling_quotient", "floor_quotient", "high_product", "power", "product", "remainder"]


def floor_quotient(x: Any, y: Any) -> Any:
    """`x // y`; 0 where integers are divided by zero, as NumPy's."""
    return np.floor_divide(x, y)


def remainder(x: Any, y: Any) -> Any:
    """`x % y`, with the sign of `y`; 0 where integers are divided by zero, as NumPy's."""
    return np.remainder(x, y)


def ceiling_quotient(x: Any, y: Any) -> Any:
    """The quotient of integers, rounded up; 0 where the divisor is zero."""
    quotient = np.floor_divide(x, y)
    inexact = (np.remainder(x, y) != 0) & (y != 0)
    return (quotient + inexact.astype(quotient.dtype)).astype(quotient.dtype, copy=False)


def power(x: Any, y: Any) -> Any:
    """`x ** y`. Integers wrap; to a negative power they give 1 / x ** -y with the fraction cut off, and 0 for x = 0."""
    x, y = np.asarray(x), np.asarray(y)
    if dtypes.is_float(x.dtype):
        if y.shape == () and float(y) in (2, 3, 4):
            return _products(x, int(y))
        # Of one exponent for all elements NumPy makes a root, too, which is not C's pow of -inf and -0.
        shape = np.broadcast_shapes(x.shape, y.shape)
        bases, exponents = (np.array(np.broadcast_to(v, shape)).reshape(-1) for v in (x, y))
        return np.power(bases, exponents).reshape(shape)
    if x.dtype.kind == "u":
        return np.power(x, y)
    powers = np.power(x, np.maximum(y, y.dtype.type(0)))
    one, minus = x.dtype.type(1), x.dtype.type(-1)
    signs = np.where(y & one == 0, one, minus)
    return np.where(y < 0, np.where(x == 1, one, np.where(x == minus, signs, x.dtype.type(0))), powers)


def _products(x: Any, exponent: int) -> Any:
    """The power of floats by 2, 3 or 4, as a GPU has it: of 16-bit floats in float32, rounded once."""
    if exponent == 2:
        return product(x, x)
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    square = wide * wide
    return (square * (wide if exponent == 3 else square)).astype(x.dtype)


def product(x: Any, y: Any) -> Any:
    """`x * y`; of bfloat16 rounded once, where ml_dtypes rounds subnormal products to float32 first."""
    products = np.asarray(np.multiply(x, y))
    if products.dtype != dtypes.bfloat16:
        return products
    small = np.abs(products.astype(np.float32)) < 2.0**-125
    return np.where(small, rounded("mul", None, products.dtype, x, y), products) if small.any() else products


def high_product(x: Any, y: Any, dtype: dtypes.DType) -> Any:
    """The upper half of the bits of `x * y`, integers of `dtype`."""
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return np.asarray(x.astype(wide) * y.astype(wide) >> 8 * dtype.itemsize).astype(dtype)
    # The schoolbook product of two 64-bit numbers, in halves; then what the signs take away.
    m, n = x.astype(dtypes.uint64), y.astype(dtypes.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low, cross = (m & mask) * (n & mask), (m >> half) * (n & mask)
    middle = (m & mask) * (n >> half) + (cross & mask) + (low >> half)
    upper = (m >> half) * (n >> half) + (cross >> half) + (middle >> half)
    if dtype == dtypes.int64:
        upper = upper - np.where(x < 0, n, np.uint64(0)) - np.where(y < 0, m, np.uint64(0))
    return np.asarray(upper).astype(dtype)
