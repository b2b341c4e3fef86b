"""The benchmark's kernel in the tile language."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())
