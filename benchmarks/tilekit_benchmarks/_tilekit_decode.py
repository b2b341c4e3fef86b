"""The kernels of the benchmark `decode`: a layer is `x = x + matvec(weights, rms_norm(x))`."""

# mypy: ignore-errors
# Kernels are read by tilekit's rules, not by Python's typing.

from __future__ import annotations

import tilekit as tk


@tk.kernel
def rms_norm(y: tk.Out, x: tk.In, w: tk.In, per_n: float, eps: float):
    """A whole vector in one block. The weights are read before the sum is there: with one block, only waiting counts."""
    t, g = tk.load_tile_like(x, y).astype(tk.float32), tk.load_tile_like(w, y).astype(tk.float32)
    y.store((t * tk.rsqrt(tk.sum(t * t) * per_n + eps) * g).astype(y.dtype))


@tk.kernel
def matvec(y: tk.Out, m: tk.In, x: tk.In, columns: tk.Const):
    """A block has some whole rows: all its threads read one after the other, 16 bytes each, before anything is added up."""
    t = tk.load(m, (tk.bid(0), 0), (y.tile_shape[0], columns)).astype(tk.float32)
    y.store(tk.sum(t * tk.load(x, 0, columns).astype(tk.float32), 1).astype(y.dtype))


@tk.kernel
def add(x: tk.InOut, v: tk.In):
    x.store((x.load().astype(tk.float32) + tk.load_tile_like(v, x).astype(tk.float32)).astype(x.dtype))


@tk.kernel
def matvec_add(x: tk.InOut, m: tk.In, h: tk.In, columns: tk.Const):
    """`matvec` and `add` in one."""
    t = tk.load(m, (tk.bid(0), 0), (x.tile_shape[0], columns)).astype(tk.float32)
    total = tk.sum(t * tk.load(h, 0, columns).astype(tk.float32), 1).astype(x.dtype).astype(tk.float32)
    x.store((x.load().astype(tk.float32) + total).astype(x.dtype))
