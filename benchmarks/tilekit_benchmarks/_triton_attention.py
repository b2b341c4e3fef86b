"""The peer's kernel of attention in Triton: as its tutorial goes about it, forward, for heads of the same length.

Imported when it takes part; Triton reads the source of this file. `VARIANTS` has, by kernel, the ways that are tried.
"""

# mypy: ignore-errors
# Kernels are read by Triton's rules, not by Python's typing.

from __future__ import annotations

import math

import triton
import triton.language as tl


@triton.jit
def _over_keys(
    acc, row_sum, row_max, q, k, v, first, last, i, n, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    d, step = tl.arange(0, D), tl.arange(0, BN)
    for at in range(first, last, BN):
        at = tl.multiple_of(at, BN)
        column = at + step
        if MASKED:
            key = tl.load(k + column[None, :] * D + d[:, None], mask=column[None, :] < n, other=0.0)
            value = tl.load(v + column[:, None] * D + d[None, :], mask=column[:, None] < n, other=0.0)
        else:
            key = tl.load(k + column[None, :] * D + d[:, None])
            value = tl.load(v + column[:, None] * D + d[None, :])
        scores = tl.dot(q, key) * scale
        if MASKED:
            seen = column[None, :] < n
            if CAUSAL:
                seen = seen & (column[None, :] <= (i * BM + tl.arange(0, BM))[:, None])
            scores = tl.where(seen, scores, -1.0e38)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.math.exp2(scores - new_max[:, None])
        alpha = tl.math.exp2(row_max - new_max)
        row_sum = row_sum * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(value.dtype), value, acc * alpha[:, None])
        row_max = new_max
    return acc, row_sum, row_max


@triton.jit
def _attention(
    o_ptr, q_ptr, k_ptr, v_ptr, n, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    # The last rows first: with a causal mask they have most to do.
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * n * D
    row, d = i * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + head + row[:, None] * D + d[None, :], mask=row[:, None] < n, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    row_sum, row_max = tl.zeros((BM,), tl.float32), tl.full((BM,), -1.0e38, tl.float32)
    k, v = k_ptr + head, v_ptr + head
    # Only tiles that the mask cuts, or that hang over the last key, are masked.
    last = tl.minimum(n, (i + 1) * BM) if CAUSAL else n
    cut = (i * BM // BN if CAUSAL else n // BN) * BN
    acc, row_sum, row_max = _over_keys(acc, row_sum, row_max, q, k, v, 0, cut, i, n, scale, D, BM, BN, False, CAUSAL)
    acc, row_sum, row_max = _over_keys(acc, row_sum, row_max, q, k, v, cut, last, i, n, scale, D, BM, BN, True, CAUSAL)
    target = o_ptr + head + row[:, None] * D + d[None, :]
    tl.store(target, (acc / row_sum[:, None]).to(o_ptr.dtype.element_ty), mask=row[:, None] < n)


# BM, BN, stages, warps.
_TILES = ((128, 128, 2, 8), (128, 128, 3, 8), (128, 64, 3, 8), (128, 64, 3, 4), (128, 32, 4, 4), (64, 64, 3, 4))


def _tiles(causal):
    def variants(tensors, out):
        q, k, v = (tensors[name] for name in ("x", "key", "value"))
        batch, heads, n, size = q.shape
        scale = math.log2(math.e) / math.sqrt(size)

        def launch(bm, bn, stages, warps):
            grid = (triton.cdiv(n, bm), batch * heads)
            arguments = out, q, k, v, n, scale
            return lambda: _attention[grid](*arguments, D=size, BM=bm, BN=bn, CAUSAL=causal, num_stages=stages, num_warps=warps)

        return [(f"{bm}x{bn}, {stages} stages, {warps} warps", launch(bm, bn, stages, warps)) for bm, bn, stages, warps in _TILES]

    return variants


VARIANTS = {"attention": _tiles(False), "causal attention": _tiles(True)}
