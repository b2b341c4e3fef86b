"""Kernels that tests of the compiler for CPUs look at from several sides."""

from __future__ import annotations

import tilekit as tk

__all__ = ["product", "softmax"]


@tk.kernel
def softmax(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y, padding_mode="-inf")
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(e / tk.sum(e, 1, keepdims=True))


@tk.kernel
def product(y: tk.Out, a: tk.In, b: tk.In):
    y.store(tk.load(a, (tk.bid(0), 0), (32, 64)) @ tk.load(b, (0, tk.bid(1)), (64, 64)))
