"""The kernels of the benchmark of the CPU device as one writes them by hand for numba: a loop over elements, in parallel."""

# mypy: ignore-errors
# numba reads these functions.

from __future__ import annotations

import numba
import numpy as np

__all__ = ["gather", "histogram", "mandelbrot"]

_4, _2 = np.float32(4), np.float32(2)


@numba.njit(parallel=True)
def mandelbrot(counts, left, top, step, width, turns):
    """Leaves a point as soon as it is far away."""
    for at in numba.prange(counts.size):
        cr, ci = left + np.float32(at % width) * step, top + np.float32(at // width) * step
        zr, zi, n = np.float32(0), np.float32(0), 0
        for _ in range(turns):
            rr, ii = zr * zr, zi * zi
            if rr + ii > _4:
                break
            zr, zi = rr - ii + cr, _2 * zr * zi + ci
            n += 1
        counts[at] = n


@numba.njit(parallel=True)
def histogram(counts, x, parts):
    """Each of so many parts has counts of its own."""
    own = np.zeros((parts, counts.size), np.int32)
    size = (x.size + parts - 1) // parts
    for part in numba.prange(parts):
        for at in range(part * size, min(x.size, (part + 1) * size)):
            own[part, x[at]] += 1
    for part in range(parts):
        for at in range(counts.size):
            counts[at] += own[part, at]


@numba.njit(parallel=True)
def gather(y, x, at):
    """With the same tests of indices; how many are outside."""
    outside = 0
    for i in numba.prange(at.size):
        j = at[i]
        if j < 0 or j >= x.size:
            outside += 1
        else:
            y[i] = x[j]
    return outside
