"""The kernels of the benchmarks of the host's side."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@tk.kernel
def accumulate(y: tk.InOut, x: tk.In, g: int):
    y.store(y.load() + tk.load_tile_like(x, y) * g)


@tk.kernel
def turn(y: tk.InOut, loops: int, a: int, b: int):
    t = y.load()
    for _ in range(loops):
        t = t * a + b
    y.store(t)
