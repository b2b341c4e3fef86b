"""What `kernels.gemm` may do with a product before it is stored: `epilogue=` takes these, and functions like them.

Each takes the accumulator, a tile of float32 (float64, int32), and a tile of each of `operands` in the same dtype.
"""

from __future__ import annotations

from typing import Any

import tilekit as tk

__all__ = ["bias", "bias_gelu", "bias_relu", "bias_silu", "gelu", "relu", "residual", "scale", "silu"]

_SQRT_HALF = 0.7071067811865476


@tk.function
def bias(acc: Any, b: Any) -> Any:
    """`acc + b`: `b` of shape `(N,)` is one number for each column."""
    return acc + b


@tk.function
def residual(acc: Any, r: Any) -> Any:
    """`acc + r`: `r` is a matrix of the shape of the result."""
    return acc + r


@tk.function
def scale(acc: Any, s: Any) -> Any:
    """`acc * s`: `s` of shape `(N,)` for each column, `(M, 1)` for each row."""
    return acc * s


@tk.function
def relu(acc: Any) -> Any:
    """`max(acc, 0)`; NaN stays NaN."""
    return tk.where(acc < 0, 0, acc)


@tk.function
def gelu(acc: Any) -> Any:
    """`acc * (1 + erf(acc / sqrt(2))) / 2`."""
    return 0.5 * acc * (1.0 + tk.erf(acc * _SQRT_HALF))


@tk.function
def silu(acc: Any) -> Any:
    """`acc / (1 + exp(-acc))`."""
    return acc * tk.sigmoid(acc)  # which needs fewer registers at a time than acc / (1 + exp(-acc))


@tk.function
def bias_relu(acc: Any, b: Any) -> Any:
    """`relu(acc + b)`."""
    return relu(acc + b)


@tk.function
def bias_gelu(acc: Any, b: Any) -> Any:
    """`gelu(acc + b)`."""
    return gelu(acc + b)


@tk.function
def bias_silu(acc: Any, b: Any) -> Any:
    """`silu(acc + b)`."""
    return silu(acc + b)
