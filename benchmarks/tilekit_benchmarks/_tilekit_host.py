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


@tk.kernel
def nothing():
    pass


@tk.kernel
def of_1(y: tk.Out):
    y.store(tk.ones(y.tile_shape, y.dtype))


@tk.kernel
def of_3(y: tk.Out, a: tk.In, b: tk.In):
    y.store(tk.load_tile_like(a, y) + tk.load_tile_like(b, y))


@tk.kernel
def of_8(y: tk.Out, a: tk.In, b: tk.In, c: tk.In, d: tk.In, e: tk.In, f: tk.In, g: tk.In):
    total = tk.load_tile_like(a, y)
    total = total + tk.load_tile_like(b, y)
    total = total + tk.load_tile_like(c, y)
    total = total + tk.load_tile_like(d, y)
    total = total + tk.load_tile_like(e, y)
    total = total + tk.load_tile_like(f, y)
    total = total + tk.load_tile_like(g, y)
    y.store(total)


@tk.kernel
def of_16(
    y: tk.Out, a: tk.In, b: tk.In, c: tk.In, d: tk.In, e: tk.In, f: tk.In, g: tk.In, h: tk.In,
    i: tk.In, j: tk.In, k: tk.In, p: tk.In, m: tk.In, n: tk.In, o: tk.In,
):  # fmt: skip
    total = tk.load_tile_like(a, y)
    total = total + tk.load_tile_like(b, y)
    total = total + tk.load_tile_like(c, y)
    total = total + tk.load_tile_like(d, y)
    total = total + tk.load_tile_like(e, y)
    total = total + tk.load_tile_like(f, y)
    total = total + tk.load_tile_like(g, y)
    total = total + tk.load_tile_like(h, y)
    total = total + tk.load_tile_like(i, y)
    total = total + tk.load_tile_like(j, y)
    total = total + tk.load_tile_like(k, y)
    total = total + tk.load_tile_like(p, y)
    total = total + tk.load_tile_like(m, y)
    total = total + tk.load_tile_like(n, y)
    total = total + tk.load_tile_like(o, y)
    y.store(total)


LAUNCHES: dict[int, tk.Kernel] = {0: nothing, 1: of_1, 3: of_3, 8: of_8, 16: of_16}
"""By the number of their tensors: kernels that write the sum of all but the first into that one (ones, where it is alone)."""
