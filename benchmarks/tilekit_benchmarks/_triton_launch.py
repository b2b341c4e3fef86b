"""The kernels of the benchmark of launches in Triton. Imported when it takes part; Triton reads the source of this file."""

# mypy: ignore-errors
# Kernels are read by Triton's rules, not by Python's typing.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nothing():
    pass


@triton.jit
def of_1(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 1, mask=at < n)


@triton.jit
def of_3(y, a, b, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(a + at, mask=inside)
    total += tl.load(b + at, mask=inside)
    tl.store(y + at, total, mask=inside)


@triton.jit
def of_8(y, a, b, c, d, e, f, g, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(a + at, mask=inside)
    total += tl.load(b + at, mask=inside)
    total += tl.load(c + at, mask=inside)
    total += tl.load(d + at, mask=inside)
    total += tl.load(e + at, mask=inside)
    total += tl.load(f + at, mask=inside)
    total += tl.load(g + at, mask=inside)
    tl.store(y + at, total, mask=inside)


@triton.jit
def of_16(y, a, b, c, d, e, f, g, h, i, j, k, q, m, p, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(a + at, mask=inside)
    total += tl.load(b + at, mask=inside)
    total += tl.load(c + at, mask=inside)
    total += tl.load(d + at, mask=inside)
    total += tl.load(e + at, mask=inside)
    total += tl.load(f + at, mask=inside)
    total += tl.load(g + at, mask=inside)
    total += tl.load(h + at, mask=inside)
    total += tl.load(i + at, mask=inside)
    total += tl.load(j + at, mask=inside)
    total += tl.load(k + at, mask=inside)
    total += tl.load(q + at, mask=inside)
    total += tl.load(m + at, mask=inside)
    total += tl.load(p + at, mask=inside)
    total += tl.load(o + at, mask=inside)
    tl.store(y + at, total, mask=inside)


LAUNCHES = {0: nothing, 1: of_1, 3: of_3, 8: of_8, 16: of_16}
