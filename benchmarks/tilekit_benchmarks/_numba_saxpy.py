"""The peers' kernels in plain numba: one element a thread on a GPU, a parallel loop on the CPU. Imported when they take part."""

# mypy: ignore-errors
# numba's decorators have no types.

from __future__ import annotations

import numba


def on_gpu():
    """The kernel for a GPU, `kernel[blocks, threads, stream](y, a, x)`."""
    from numba import cuda

    @cuda.jit
    def saxpy(y, a, x):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = a * x[i] + y[i]

    return saxpy


@numba.njit(parallel=True)
def on_cpu(y, a, x):
    """The loop for the CPU."""
    for i in numba.prange(y.size):
        y[i] = a * x[i] + y[i]
