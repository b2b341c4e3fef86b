"""Reductions along the first axis as a user writes them: parts of the rows first, then what these give."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk

__all__ = ["maxima", "sums"]


@tk.kernel
def sums(y: tk.Out, x: tk.In, tiles: int, share: int, rows: tk.Const):
    """Block (s, j) has the columns of tile j, and the s-th part of the rows: `share` tiles of them."""
    total = tk.zeros((rows, y.tile_shape[1]), tk.float32)
    for i in range(tk.bid(0) * share, min(tiles, (tk.bid(0) + 1) * share)):
        total = total + tk.load(x, (i, tk.bid(1)), (rows, y.tile_shape[1])).astype(tk.float32)
    y.store(tk.sum(total, 0, keepdims=True).astype(y.dtype))


@tk.kernel
def maxima(y: tk.Out, x: tk.In, tiles: int, share: int, rows: tk.Const):
    """As `sums`."""
    total = tk.full((rows, y.tile_shape[1]), -float("inf"), tk.float32)
    for i in range(tk.bid(0) * share, min(tiles, (tk.bid(0) + 1) * share)):
        tile = tk.load(x, (i, tk.bid(1)), (rows, y.tile_shape[1]), padding_value=-float("inf"))
        total = tk.maximum(total, tile.astype(tk.float32))
    y.store(tk.max(total, 0, keepdims=True).astype(y.dtype))
