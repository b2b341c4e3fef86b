"""Kernels as a user writes them, to be spelled in other ways, each with an op of it, and what it gives for arrays."""

from __future__ import annotations

import numpy as np

import tilekit as tk
from tilekit import api

__all__ = ["KERNELS"]

GEMM = """
@tk.kernel(num_warps=8)
def kernel(c: tk.Out, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((128, 128), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        ta = tk.load(a, (i, k), (128, 64))
        tb = tk.load(b, (k, j), (64, 128))
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))
"""

SPLIT_K = """
@tk.kernel(num_warps=8)
def kernel(c: tk.Out, a: tk.In, b: tk.In, share: int):
    s, i, j = tk.bid(0), tk.bid(1), tk.bid(2)
    acc = tk.zeros((128, 128), tk.float32)
    for k in range(s * share, (s + 1) * share):
        ta = tk.load(a, (i, k), (128, 64))
        tb = tk.load(b, (k, j), (64, 128))
        acc = tk.mma(ta, tb, acc)
    c.store(acc.reshape((1, 128, 128)))
"""

QUANTISED = """
@tk.kernel(num_warps=8)
def kernel(c: tk.Out, a: tk.In, b: tk.In, scale: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((128, 128), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        ta = tk.load(a, (i, k), (128, 64))
        packed = tk.load(b, (k, j), (64, 128))
        low = (packed & 15).astype(a.dtype)
        tb = low - 8
        acc = tk.mma(ta, tb, acc)
    factor = tk.load(scale, (j,), (128,))
    c.store((acc * factor[None, :]).astype(c.dtype))
"""

CONVOLUTION = """
@tk.kernel(num_warps=4)
def kernel(c: tk.Out, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((64, 64), tk.float32)
    for tap in range(3):
        for k in range(tk.cdiv(a.shape[2], 64)):
            ta = tk.load(a, (tap, i, k), (1, 64, 64)).reshape((64, 64))
            tb = tk.load(b, (tap, k, j), (1, 64, 64)).reshape((64, 64))
            acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))
"""

SOFTMAX = """
@tk.kernel(num_warps=4)
def kernel(y: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, y, padding_mode='-inf').astype(tk.float32)
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    total = tk.sum(e, 1, keepdims=True)
    y.store((e / total).astype(y.dtype))
"""

LONG_SOFTMAX = """
@tk.kernel(num_warps=4)
def kernel(y: tk.Out, x: tk.In):
    m = tk.full((1, 1), float('-inf'), tk.float32)
    total = tk.zeros((1, 1), tk.float32)
    squares = tk.zeros((1, 1), tk.float32)
    for j in range(tk.cdiv(x.shape[1], 1024)):
        t = tk.load(x, (tk.bid(0), j), (1, 1024), padding_mode='-inf').astype(tk.float32)
        higher = tk.maximum(m, tk.max(t, 1, keepdims=True))
        p = tk.exp(t - higher)
        shrink = tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        m = higher
    for j in range(tk.cdiv(x.shape[1], 1024)):
        t = tk.load(x, (tk.bid(0), j), (1, 1024)).astype(tk.float32)
        squares = squares + tk.sum(t * t, 1, keepdims=True)
    y.store((m + tk.log(total) + tk.sqrt(squares)).astype(y.dtype))
"""

COLUMNS = """
@tk.kernel(num_warps=4)
def kernel(y: tk.Out, x: tk.In):
    total = tk.zeros(64, tk.float32)
    largest = tk.full(64, float('-inf'), tk.float32)
    for i in range(tk.cdiv(x.shape[0], 128)):
        t = tk.load(x, (i, tk.bid(0)), (128, 64)).astype(tk.float32)
        total = total + tk.sum(t, 0)
        largest = tk.maximum(largest, tk.max(t, 0))
    y.store((total + largest).astype(y.dtype))
"""

LAYER_NORM = """
@tk.kernel(num_warps=4)
def kernel(y: tk.Out, x: tk.In, weight: tk.In, bias: tk.In):
    t = tk.load_tile_like(x, y).astype(tk.float32)
    mean = tk.sum(t, 1, keepdims=True) / x.shape[1]
    centred = t - mean
    variance = tk.sum(centred * centred, 1, keepdims=True) / x.shape[1]
    scaled = centred * tk.rsqrt(variance + 1e-5)
    w = tk.load(weight, (0,), (1024,))
    b = tk.load(bias, (0,), (1024,))
    y.store((scaled * w[None, :] + b[None, :]).astype(y.dtype))
"""

ATTENTION = """
@tk.kernel(num_warps=8)
def kernel(o: tk.Out, q: tk.In, k: tk.In, v: tk.In):
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, 128, 64)).reshape((128, 64))
    m = tk.full((128, 1), -1e30, tk.float32)
    total = tk.zeros((128, 1), tk.float32)
    acc = tk.zeros((128, 64), tk.float32)
    for j in range(LAST):
        key = tk.load(k, (h, j, 0), (1, 128, 64)).reshape((128, 64))
        value = tk.load(v, (h, j, 0), (1, 128, 64)).reshape((128, 64))
        nothing = tk.zeros((128, 128), tk.float32)
        s = tk.mma(query, key.transpose(), nothing) * 0.125
        MASK
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p = tk.exp(s - higher)
        shrink = tk.exp(m - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        m = higher
    o.store((acc / total).astype(o.dtype).reshape((1, 128, 64)))
"""
FULL = ATTENTION.replace("LAST", "tk.cdiv(k.shape[1], 128)").replace("        MASK\n", "")
CAUSAL = ATTENTION.replace("LAST", "i + 1").replace(
    "MASK",
    "columns = j * 128 + tk.arange(128)[None, :]\n        rows = i * 128 + tk.arange(128)[:, None]\n"
    "        s = tk.where(columns <= rows, s, float('-inf'))",
)


def _normal(draw, *shape, dtype=np.float16):
    return draw.standard_normal(shape).astype(dtype)


def _attended(q, k, v, causal):
    s = np.einsum("hik,hjk->hij", *(x.astype(np.float64) for x in (q, k))) / 8
    if causal:
        s = np.where(np.arange(s.shape[2])[None, :] <= np.arange(s.shape[1])[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hij,hjk->hik", p / p.sum(-1, keepdims=True), v.astype(np.float64))


def _layer_norm(x, w, b):
    x = x.astype(np.float64)
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w + b


def _softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    return e / e.sum(1, keepdims=True)


def _long_softmax(x):
    x = x.astype(np.float64)
    return np.log(np.exp(x).sum(1, keepdims=True)) + np.sqrt((x * x).sum(1, keepdims=True))


def _columns(x):
    return x.astype(np.float64).sum(0) + x.max(0)


def _wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


# By name: the source; the inputs, as arrays; the shape of the result and of its tiles; scalars; and what it should be.
KERNELS = {
    "gemm": (GEMM, lambda d: [_normal(d, 256, 256), _normal(d, 256, 128)], ((256, 128), (128, 128)), (),
             lambda a, b: np.matmul(*_wide(a, b))),
    "gemm by 32": (GEMM.replace("64", "32"), lambda d: [_normal(d, 256, 256), _normal(d, 256, 128)], ((256, 128), (128, 128)), (),
                   lambda a, b: np.matmul(*_wide(a, b))),
    "split-K": (SPLIT_K, lambda d: [_normal(d, 128, 384), _normal(d, 384, 128)], ((2, 128, 128), (1, 128, 128)), (3,),
                lambda a, b: np.stack([np.matmul(*_wide(a[:, at], b[at])) for at in (slice(192), slice(192, None))])),
    "int4": (QUANTISED, lambda d: [_normal(d, 128, 128), d.integers(0, 256, (128, 128)).astype(np.uint8),
                                   _normal(d, 128, dtype=np.float32)], ((128, 128), (128, 128)), (),
             lambda a, b, s: a.astype(np.float64) @ ((b & 15).astype(np.int64) - 8) * s),
    "convolution": (CONVOLUTION, lambda d: [_normal(d, 3, 128, 128), _normal(d, 3, 128, 64)], ((128, 64), (64, 64)), (),
                    lambda a, b: np.einsum("tik,tkj->ij", *_wide(a, b))),
    "softmax": (SOFTMAX, lambda d: [_normal(d, 8, 1000)], ((8, 1000), (4, 1024)), (), _softmax),
    "long softmax": (LONG_SOFTMAX, lambda d: [_normal(d, 4, 5000)], ((4, 1), (1, 1)), (), _long_softmax),
    "columns": (COLUMNS, lambda d: [_normal(d, 512, 128)], ((128,), (64,)), (), _columns),
    "layer norm": (LAYER_NORM, lambda d: [_normal(d, 8, 1024), *(_normal(d, 1024, dtype=np.float32) for _ in range(2))],
                   ((8, 1024), (4, 1024)), (), _layer_norm),
    "attention": (FULL, lambda d: [_normal(d, 2, n, 64) for n in (128, 384, 384)], ((2, 128, 64), (1, 128, 64)), (),
                  lambda q, k, v: _attended(q, k, v, False)),
    "causal attention": (CAUSAL, lambda d: [_normal(d, 2, 384, 64) for _ in range(3)], ((2, 384, 64), (1, 128, 64)), (),
                         lambda q, k, v: _attended(q, k, v, True)),
}  # fmt: skip
del tk, api
