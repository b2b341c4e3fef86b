"""The peer's kernel in Triton, as its tutorials write one. Imported when it takes part; Triton reads the source of this file."""

# mypy: ignore-errors
# Kernels are read by Triton's rules, not by Python's typing.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def saxpy(y_ptr, a, x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(y_ptr + offsets, a * x + y, mask=inside)
