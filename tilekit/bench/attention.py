"""The benchmark `attention`: `kernels.attention` beside PyTorch's scaled_dot_product_attention, by cuDNN and by FlashAttention-2.

tilekit's op is prepared (`op.prepare()`). Of a causal mask half of the operations count, for all contestants. On a CPU device
sequences are short, and of float32; the peer is NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit.bench import Options, kernel_peers
from tilekit.bench.harness import Contestant, Variant
from tilekit.bench.kernel_cases import Case, Tensors
from tilekit.bench.kernel_runs import KernelRun, measure
from tilekit.stream import Stream

__all__ = ["PEERS", "attention_cases", "run"]

# Batch, heads, length, head size.
_SIZES = ((1, 32, 8192, 128), (4, 16, 4096, 64))
_CPU_SIZES = ((1, 2, 256, 64),)
_CAUSAL = "causal attention"
# Heads that are compared, and rows of each.
_HEADS, _ROWS = 4, 32
# Weights and results of bfloat16 are rounded: half of its last place each.
_TOLERANCES = {dtypes.bfloat16: 8e-3, dtypes.float32: 2e-5}
_REFERENCE = {"cuda": "cudnn", "cpu": "numpy"}


def attention_cases(kind: str, n: int | None = None) -> list[Case]:
    """The cases for a kind of device, or those with sequences of length `n`."""
    dtype, sizes = (tk.bfloat16, _SIZES) if kind == "cuda" else (tk.float32, _CPU_SIZES)
    return [_case((b, h, n or length, d), dtype, causal) for b, h, length, d in sizes for causal in (False, True)]


def _case(shape: tuple[int, int, int, int], dtype: Any, causal: bool) -> Case:
    def random(seed: int) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
        return lambda: api.randn(0.0, 1.0, shape, seed=seed, dtype=dtype)

    batch, heads, length, size = shape
    return Case(
        kernel=_CAUSAL if causal else "attention",
        shape=shape,
        dtype=dtype,
        nbytes=4 * math.prod(shape) * dtype.itemsize,
        inputs={"x": random(1), "key": random(2), "value": random(3)},
        output=(shape, dtype),
        own=lambda t, y: kernels.attention(t["x"], t["key"], t["value"], causal=causal, out=y),
        tolerance=_TOLERANCES[dtype],
        operations=4 * batch * heads * length * length * size // (2 if causal else 1),
        prepared=True,
        check=_Rows,
    )


def _attend(q: Any, k: Any, v: Any, places: Any) -> Any:
    """Rows of the result, for queries at these places of a causal sequence, or anywhere if there are none."""
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if places is not None:
        scores = np.where(np.arange(len(k))[None, :] <= places[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


class _Rows:
    """Some rows of some heads of the right result."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        batch, heads, length, size = case.shape
        self._heads = np.unique(np.linspace(0, batch * heads - 1, min(_HEADS, batch * heads)).astype(int))
        self._rows = np.unique(np.linspace(0, length - 1, min(_ROWS, length)).astype(int))
        q, k, v = (
            tensors[what].to_host().sync_on(stream).reshape(-1, length, size)[self._heads].astype(np.float64)
            for what in ("x", "key", "value")
        )
        places = self._rows if case.kernel == _CAUSAL else None
        self._right = np.stack([_attend(q[h][self._rows], k[h], v[h], places) for h in range(len(self._heads))])

    def error(self, result: Any) -> float:
        """The largest error of these rows, relative to the largest element; NaN where an element of any row is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        found = result.reshape(-1, *result.shape[2:])[self._heads][:, self._rows].astype(np.float64)
        return float(np.abs(found - self._right).max() / np.abs(self._right).max())


def _numpy(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    batch, heads, length, size = case.shape
    q, k, v = (tensors[what].to_host().sync_on(stream).reshape(-1, length, size) for what in ("x", "key", "value"))
    made = np.empty((batch * heads, length, size), q.dtype)
    places = np.arange(length) if case.kernel == _CAUSAL else None

    def launch() -> None:
        for h in range(batch * heads):
            made[h] = _attend(q[h], k[h], v[h], places)

    return Contestant(name="numpy", version=np.__version__, variants=(Variant(launch=launch),)), lambda: made.reshape(case.shape)


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {
    "cuda": {
        "cudnn": kernel_peers.sdpa("cudnn", "CUDNN_ATTENTION"),
        "flash-attention-2": kernel_peers.sdpa("flash-attention-2", "FLASH_ATTENTION"),
    },
    "cpu": {"numpy": _numpy},
}
"""The peers on each kind of device, by name."""


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    kind = options.device.kind
    return measure("attention", options, attention_cases(kind, options.n), peers=PEERS[kind], reference=_REFERENCE[kind])
