"""Attention and its gradients by NumPy in float64, and what its launches are compiled to."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilekit as tk

# What the weights and the result are rounded to, and sums in float32.
TOLERANCE = {np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1.2e-2, np.dtype(np.float32): 4e-6}


def seen(queries, keys, causal=False, window=None):
    """Which queries see which keys."""
    place, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)[None, :]
    visible = np.ones((queries, keys), bool)
    if causal:
        visible &= key <= place
    if window is not None:
        visible &= abs(key - place) < window
    return visible


def weights_of(q, k, scale=None, causal=False, window=None):
    """The weights, in float64, and the logarithms of the sums."""
    q, k = q.astype(np.float64), np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], 1)
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    scores = np.where(seen(q.shape[2], k.shape[2], causal, window), scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e300)
    e = np.exp(scores - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return e / np.where(total == 0, 1, total), (np.log(total) + top)[..., 0]


def right(q, k, v, **options):
    p, lse = weights_of(q, k, **options)
    return p @ np.repeat(v.astype(np.float64), q.shape[1] // k.shape[1], 1), lse


def gradients(g, q, k, v, **options):
    """In float64."""
    p, _ = weights_of(q, k, **options)
    scale = options.get("scale") or q.shape[3] ** -0.5
    group = q.shape[1] // k.shape[1]
    g, q = g.astype(np.float64), q.astype(np.float64)
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    dp = g @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale

    def of_group(x):
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    return ds @ k, of_group(ds.swapaxes(2, 3) @ q), of_group(p.swapaxes(2, 3) @ g)


def compiled(op, target):
    """What the last of its launches is compiled to, and the lines of its machine code."""
    op.consumed()
    while not isinstance(op, tk.KernelLaunch):
        op = op.parts()[-1]
    kernel = op.compile(target=target)
    return kernel, [line for line in kernel.sass.splitlines() if ";" in line]
