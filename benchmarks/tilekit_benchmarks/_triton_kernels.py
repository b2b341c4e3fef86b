"""The peers' kernels in Triton: softmax and layer norm as its tutorials write them, the others in the same manner.

Imported when they take part; Triton reads the source of this file. `VARIANTS` has, by kernel, the ways that are tried.
"""

# mypy: ignore-errors
# Kernels are read by Triton's rules, not by Python's typing.

from __future__ import annotations

import triton
import triton.language as tl

from tilekit_benchmarks.kernel_cases import DROPPED, row_warps


@triton.jit
def _softmax(y_ptr, x_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def _rms_norm(y_ptr, x_ptr, w_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    w = tl.load(w_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride + at, x * r * w, mask=at < n)


@triton.jit
def _layer_norm(y_ptr, x_ptr, w_ptr, b_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    x = tl.where(at < n, x - tl.sum(x, axis=0) / n, 0.0)
    r = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    w = tl.load(w_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride + at, x * r * w + b, mask=at < n)


@triton.jit
def _cross_entropy(loss_ptr, x_ptr, target_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    target = tl.load(target_ptr + row)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    lse = top + tl.log(tl.sum(tl.exp(x - top), axis=0))
    chosen = tl.load(x_ptr + row * stride + target).to(tl.float32)
    tl.store(loss_ptr + row, lse - chosen)


@triton.jit
def _gelu(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=at < n)


@triton.jit
def _dropout(y_ptr, x_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    keep = tl.rand(seed, at) > p
    tl.store(y_ptr + at, tl.where(keep, x / (1.0 - p), 0.0), mask=at < n)


@triton.jit
def _cumsum(y_ptr, x_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride + at, tl.cumsum(x, axis=0), mask=at < n)


@triton.jit
def _transpose(y_ptr, x_ptr, rows, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i[:, None] * columns + j[None, :], mask=(i[:, None] < rows) & (j[None, :] < columns))
    tl.store(y_ptr + j[:, None] * rows + i[None, :], tl.trans(x), mask=(j[:, None] < columns) & (i[None, :] < rows))


@triton.jit
def _gemm(
    c_ptr, a_ptr, b_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Programs in groups of GROUP rows of tiles, which share the columns of b in the cache.
    across = tl.cdiv(n, BN)
    first = tl.program_id(0) // (GROUP * across) * GROUP
    high = min(tl.cdiv(m, BM) - first, GROUP)
    tile = tl.program_id(0) % (GROUP * across)
    i = (first + tile % high) * BM + tl.arange(0, BM)
    j = tile // high * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a = a_ptr + (i % m).to(tl.int64)[:, None] * k + step[None, :]
    b = b_ptr + step.to(tl.int64)[:, None] * n + (j % n)[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, k, BK):
        ta = tl.load(a, mask=step[None, :] < k - at, other=0.0)
        tb = tl.load(b, mask=step[:, None] < k - at, other=0.0)
        acc = tl.dot(ta, tb, acc)
        a += BK
        b += BK * n
    target = c_ptr + i.to(tl.int64)[:, None] * n + j[None, :]
    tl.store(target, acc.to(c_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


# Those that the tutorial tries: BM, BN, BK, stages, warps.
_GEMM_TILES = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2),
)  # fmt: skip
_FLAT = ((1024, 4), (2048, 4), (2048, 8), (4096, 8))


def _by_rows(kernel, *names, extra=()):
    """Variants of a kernel that has a row in a program, in one block of elements."""

    def variants(tensors, out):
        x = tensors["x"]
        rows, n = x.shape
        inputs = [tensors[name] for name in names]
        block = triton.next_power_of_2(n)

        def launch(warps):
            return lambda: kernel[(rows,)](out, *inputs, x.stride(0), n, *extra, BLOCK=block, num_warps=warps)

        return [(f"{warps} warps", launch(warps)) for warps in row_warps(block)]

    return variants


def _flat(kernel, extra=()):
    def variants(tensors, out):
        x = tensors["x"]
        n = x.numel()

        def launch(block, warps):
            return lambda: kernel[(triton.cdiv(n, block),)](out, x, n, *extra, BLOCK=block, num_warps=warps)

        return [(f"block {block}, {warps} warps", launch(block, warps)) for block, warps in _FLAT]

    return variants


def _squares(tensors, out):
    x = tensors["x"]
    rows, columns = x.shape

    def launch(block, warps):
        grid = (triton.cdiv(rows, block), triton.cdiv(columns, block))
        return lambda: _transpose[grid](out, x, rows, columns, BLOCK=block, num_warps=warps)

    return [(f"block {block}, {warps} warps", launch(block, warps)) for block, warps in ((32, 4), (64, 4), (64, 8), (128, 8))]


def _products(tensors, out):
    (m, k), n = tensors["x"].shape, tensors["weight"].shape[1]

    def launch(bm, bn, bk, stages, warps):
        grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
        arguments = out, tensors["x"], tensors["weight"], m, n, k
        return lambda: _gemm[grid](*arguments, BM=bm, BN=bn, BK=bk, GROUP=8, num_stages=stages, num_warps=warps)

    return [(f"{bm}x{bn}x{bk}, {stages} stages, {warps} warps", launch(bm, bn, bk, stages, warps))
            for bm, bn, bk, stages, warps in _GEMM_TILES]  # fmt: skip


VARIANTS = {
    "softmax": _by_rows(_softmax, "x"),
    "rms_norm": _by_rows(_rms_norm, "x", "weight", extra=(1e-6,)),
    "layer_norm": _by_rows(_layer_norm, "x", "weight", "bias", extra=(1e-5,)),
    "cross_entropy": _by_rows(_cross_entropy, "x", "target"),
    "gelu": _flat(_gelu),
    "dropout": _flat(_dropout, extra=(DROPPED, 123)),
    "cumsum": _by_rows(_cumsum, "x"),
    "transpose": _squares,
    "gemm": _products,
}
