"""Kernels that only the benchmark of the CPU device has. They are written as a tutorial would write them."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk

__all__ = ["gather", "histogram", "mandelbrot", "saxpy"]

TILE, TURNS, BINS = tk.generics("TILE TURNS BINS")


@tk.kernel
def saxpy(y: tk.InOut, a: float, x: tk.In):
    """y = a * x + y."""
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def mandelbrot(counts: tk.Out, left: float, top: float, step: float, width: int):
    """How many turns each point of a picture stays near the origin."""
    at = tk.bid(0) * TILE + tk.arange(TILE)
    cr, ci = left + (at % width) * step, top + (at // width) * step
    zr, zi, n = tk.zeros(TILE), tk.zeros(TILE), tk.zeros(TILE, tk.int32)
    for _ in range(TURNS):
        rr, ii = zr * zr, zi * zi
        inside = rr + ii <= 4.0
        zr, zi = tk.where(inside, rr - ii + cr, zr), tk.where(inside, 2.0 * zr * zi + ci, zi)
        n += inside
    counts.store(n)


@tk.kernel
def histogram(counts: tk.InOut, x: tk.In):
    """How often each number comes: a tile's counts are added to those of all."""
    tk.atomic_add(counts, tk.arange(BINS), tk.histogram(tk.load(x, tk.bid(0), TILE), BINS))


@tk.kernel
def gather(y: tk.Out, x: tk.In, at: tk.In):
    """y[i] = x[at[i]]."""
    y.store(tk.gather(x, tk.load_tile_like(at, y)))
