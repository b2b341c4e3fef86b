"""Reductions along the first axis as a user writes them: parts of the rows first, then what these give."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk

__all__ = ["maxima", "sums"]


@tk.kernel
def sums(y: tk.Out, x: tk.In, tiles: int, share: int, rows: tk.Const):
    """Block (s, j) has the columns of tile j, and the s-th part of the rows: `share` tiles of them."""
    columns: tk.Const = y.tile_shape[1]
    total = tk.zeros((1, columns), tk.float32)
    for i in range(tk.bid(0) * share, min(tiles, (tk.bid(0) + 1) * share)):
        tile = tk.load(x, (i, tk.bid(1)), (rows, columns)).astype(tk.float32)
        total = total + tk.sum(tile, 0, keepdims=True)
    y.store(total.astype(y.dtype))


@tk.kernel
def maxima(y: tk.Out, x: tk.In, tiles: int, share: int, rows: tk.Const):
    """As `sums`."""
    columns: tk.Const = y.tile_shape[1]
    total = tk.full((1, columns), -float("inf"), tk.float32)
    for i in range(tk.bid(0) * share, min(tiles, (tk.bid(0) + 1) * share)):
        tile = tk.load(x, (i, tk.bid(1)), (rows, columns), padding_value=-float("inf")).astype(tk.float32)
        total = tk.maximum(total, tk.max(tile, 0, keepdims=True))
    y.store(total.astype(y.dtype))
