"""Attention in one pass: scores that never leave the multiprocessor, and a softmax that is corrected as it goes.

    python examples/06_flash_attention.py
    python examples/06_flash_attention.py --heads 32 --length 8192 --size 128

It computes attention of random numbers with a kernel of its own, in float16, and with the ready-made one, also with a causal
mask; all are compared with NumPy's. It runs on the first GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu or
cuda chooses.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

# isort: split
# The tutorial begins here.
import numpy as np

import tilekit as tk
from tilekit import api, kernels

BM, BN, D = tk.generics("BM BN D")


@tk.kernel
def attention(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, scale: float) -> None:
    h, i = tk.bid(0), tk.bid(1)
    query = tk.load(q, (h, i, 0), (1, BM, D)).reshape((BM, D))
    acc, total = tk.zeros((BM, D), tk.float32), tk.zeros((BM, 1), tk.float32)
    most = tk.full((BM, 1), float("-inf"), tk.float32)
    for j in range(tk.cdiv(k.shape[1], BN)):
        key = tk.load(k, (h, j, 0), (1, BN, D)).reshape((BN, D))
        value = tk.load(v, (h, j, 0), (1, BN, D)).reshape((BN, D))
        scores = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * scale
        inside = tk.arange(BN)[None, :] + j * BN < k.shape[1]
        scores = tk.where(inside, scores, float("-inf"))  # the last tile may hang over the edge
        higher = tk.maximum(most, tk.max(scores, 1, keepdims=True))
        p, shrink = tk.exp(scores - higher), tk.exp(most - higher)
        total = total * shrink + tk.sum(p, 1, keepdims=True)
        acc = tk.mma(p.astype(v.dtype), value, acc * shrink)
        most = higher
    o.store((acc / total).astype(o.dtype).reshape((1, BM, D)))


def launch(q: tk.Tensor, k: tk.Tensor, v: tk.Tensor) -> tk.DeviceOp[tk.Tensor]:
    """An op: attention of tensors of shape (heads, length, size)."""
    _, length, size = q.shape
    rows, columns, warps = 64, 64, 4
    if length >= 256:  # keys and values come once for more queries
        rows, columns, warps = (256, 64, 16) if size <= 64 else (128, 128, 8)
    out = api.empty(q.shape, q.dtype).partition((1, rows, size))
    op = attention(out, q, k, v, 1 / size**0.5)
    return op.generics(BM=rows, BN=columns, D=size).num_warps(warps).first().unpartition()


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.
CHECKED = 32  # rows of the last head that are compared with NumPy's


def own(q: tk.Tensor, k: tk.Tensor, v: tk.Tensor) -> tk.DeviceOp[Any]:
    """Attention with the kernel above, of tensors of shape (1, heads, length, size)."""
    return launch(*(x.reshape(*x.shape[1:]) for x in (q, k, v)))


def ready_made(q: tk.Tensor, k: tk.Tensor, v: tk.Tensor) -> tk.DeviceOp[Any]:
    """The same with tilekit.kernels."""
    return kernels.attention(q, k, v)


def causal(q: tk.Tensor, k: tk.Tensor, v: tk.Tensor) -> tk.DeviceOp[Any]:
    """Queries that see only what came before them: half the work."""
    return kernels.attention(q, k, v, causal=True)


def expected(q: tk.Tensor, k: tk.Tensor, v: tk.Tensor, rows: NDArray[np.intp], masked: bool) -> NDArray[np.float64]:
    """NumPy's, of some rows of the last head."""
    queries, keys, values = (x.to_host().sync()[0, -1].astype(np.float64) for x in (q, k, v))
    scores = queries[rows] @ keys.T / math.sqrt(queries.shape[1])
    if masked:
        scores = np.where(np.arange(len(keys)) <= rows[:, None], scores, -np.inf)
    e = np.exp(scores - scores.max(1, keepdims=True))
    result: NDArray[np.float64] = e / e.sum(1, keepdims=True) @ values
    return result


def seconds_of(make: Callable[..., tk.DeviceOp[Any]], *tensors: tk.Tensor) -> tuple[float, tk.Tensor]:
    """The best time of an op, run several times, and its result; the first run compiles the kernel."""
    result: tk.Tensor = make(*tensors).sync()
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        make(*tensors).sync()
        times.append(time.perf_counter() - start)
    return min(times), result


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Attention of float16 tensors, compared with NumPy's.")
    parser.add_argument("--heads", type=int, help="(default: 32 on a GPU, 2 on a CPU device)")
    parser.add_argument("--length", type=int, help="queries and keys (default: 4096 on a GPU, 200 on a CPU device)")
    parser.add_argument("--size", type=int, default=64, choices=(64, 128), help="of a head (default: 64)")
    options = parser.parse_args(argv)
    device = tk.default_device()
    usual = (32, 4096) if device.kind == "cuda" else (2, 200)
    heads, length = (n if given is None else given for n, given in zip(usual, (options.heads, options.length), strict=True))
    if min(heads, length) < 1:
        parser.exit(2, f"{parser.prog}: --heads and --length are at least 1\n")

    shape = (1, heads, length, options.size)
    q, k, v = (api.randn(0.0, 1.0, shape, seed=seed, dtype=tk.float16).sync() for seed in range(3))
    rows = np.unique(np.linspace(0, length - 1, min(length, CHECKED)).astype(int))
    print(f"{heads} heads of {length} x {options.size} on {device.kind}:{device.ordinal} ({device.name})")
    contestants = (("the kernel above", own, False), ("kernels.attention", ready_made, False), ("... causal", causal, True))
    for name, make, masked in contestants:
        seconds, result = seconds_of(make, q, k, v)
        right = expected(q, k, v, rows, masked)
        found = result.to_host().sync().reshape(shape)[0, -1][rows]
        error = np.abs(found - right).max() / np.abs(right).max()
        if not error <= 3e-3:
            parser.exit(1, f"{parser.prog}: {name}: off by {error:.3g} of the largest element\n")
        tflops = 4e-12 * heads * length**2 * options.size / (2 if masked else 1) / seconds
        print(f"{name:20} {1e3 * seconds:9.3f} ms, {tflops:8.3f} TFLOP/s; the same as NumPy's to {error:.1e}")


if __name__ == "__main__":
    main()
