"""What `kernels.gemm` may do with a product before it is stored: `epilogue=` takes these, and functions like them.

Each takes the accumulator, a tile of float32 (float64, int32), and a tile of each of `operands` in the same dtype.
"""

from __future__ import annotations

import tilekit as tk

__all__ = ["bias", "bias_gelu", "bias_relu", "bias_silu", "gelu", "relu", "residual", "scale", "silu"]

_SQRT_HALF = 0.7071067811865476


@tk.function
def bias(acc, b):
    """`acc + b`: `b` of shape `(N,)` is one number for each column."""
    return acc + b


@tk.function
def residual(acc, r):
    """`acc + r`: `r` is a matrix of the shape of the result."""
    return acc + r


@tk.function
def scale(acc, s):
    """`acc * s`: `s` of shape `(N,)` for each column, `(M, 1)` for each row."""
    return acc * s


@tk.function
def relu(acc):
    """`max(acc, 0)`; NaN stays NaN."""
    return tk.where(acc < 0, 0, acc)


@tk.function
def gelu(acc):
    """`acc * (1 + erf(acc / sqrt(2))) / 2`."""
    return 0.5 * acc * (1.0 + tk.erf(acc * _SQRT_HALF))


@tk.function
def silu(acc):
    """`acc / (1 + exp(-acc))`."""
    return acc * tk.sigmoid(acc)  # which needs fewer registers at a time than acc / (1 + exp(-acc))


@tk.function
def bias_relu(acc, b):
    """`relu(acc + b)`."""
    return relu(acc + b)


@tk.function
def bias_gelu(acc, b):
    """`gelu(acc + b)`."""
    return gelu(acc + b)


@tk.function
def bias_silu(acc, b):
    """`silu(acc + b)`."""
    return silu(acc + b)
