"""The benchmark `attention`: `kernels.attention`, its gradients, and decoding, beside PyTorch's scaled_dot_product_attention.

That takes part by cuDNN and by FlashAttention-2; forward, so does a kernel in Triton. tilekit's op is prepared (`op.prepare()`).
Of a causal mask half of the operations count, for all contestants; the gradients count 2.5 times what the result does, and only
they are timed. Decoding, one query of each head, counts the bytes of the keys and values, beside a copy of as many. On a CPU
device sequences are short, and of float32; the peer is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, kernel_peers
from tilekit_benchmarks.attention_checks import CheckedGradients, CheckedRows, attend, gradients, heads_of, is_causal
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_cases import Case, Tensors
from tilekit_benchmarks.kernel_runs import KernelRun, measure

__all__ = ["PEERS", "attention_cases", "run"]

# Batch, heads, length, head size.
_SIZES = ((1, 32, 8192, 128), (4, 16, 4096, 64))
_MORE_GRADIENTS = ((1, 16, 8192, 256),)
_CPU_SIZES = ((1, 2, 256, 64),)
# Of decoding: batch, heads, heads of keys and values, their length, head size.
_DECODED = ((8, 32, 8, 32768, 128), (4, 16, 16, 32768, 64))
_CPU_DECODED = ((2, 4, 2, 512, 64),)
# Weights and results of bfloat16 are rounded: half of its last place each. Of gradients, the weights' are as well.
_TOLERANCES = {dtypes.bfloat16: 8e-3, dtypes.float32: 2e-5}
_OF_GRADIENTS = 2
_REFERENCE = {"cuda": "cudnn", "cpu": "numpy"}

Shape = tuple[int, int, int, int]


def attention_cases(kind: str, n: int | None = None) -> list[Case]:
    """The cases for a kind of device, or those with sequences of length `n`."""
    dtype, sizes, decoded = (tk.bfloat16, _SIZES, _DECODED) if kind == "cuda" else (tk.float32, _CPU_SIZES, _CPU_DECODED)
    forward = [(b, h, n or length, d) for b, h, length, d in sizes]
    backward = forward + [(b, h, n or length, d) for b, h, length, d in (_MORE_GRADIENTS if kind == "cuda" else ())]
    return [
        *(
            make(shape, dtype, causal)
            for make, shapes in ((_forward, forward), (_backward, backward))
            for shape in shapes
            for causal in (False, True)
        ),
        *(_decode((b, h, hk, n or length, d), dtype) for b, h, hk, length, d in decoded),
    ]


def _random(shape: Shape, dtype: Any, seed: int) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
    return lambda: api.randn(0.0, 1.0, shape, seed=seed, dtype=dtype)


def _operands(q: Shape, k: Shape, dtype: Any) -> dict[str, Callable[[], tk.DeviceOp[tk.Tensor]]]:
    return {"x": _random(q, dtype, 1), "key": _random(k, dtype, 2), "value": _random(k, dtype, 3)}


def _operations(shape: Shape, causal: bool) -> int:
    batch, heads, length, size = shape
    return 4 * batch * heads * length * length * size // (2 if causal else 1)


def _forward(shape: Shape, dtype: Any, causal: bool) -> Case:
    return Case(
        kernel="causal attention" if causal else "attention",
        shape=shape,
        dtype=dtype,
        nbytes=4 * dtype.itemsize * int(np.prod(shape)),
        inputs=_operands(shape, shape, dtype),
        output=(shape, dtype),
        own=lambda t, y: kernels.attention(t["x"], t["key"], t["value"], causal=causal, out=y),
        tolerance=_TOLERANCES[dtype],
        operations=_operations(shape, causal),
        prepared=True,
        check=CheckedRows,
    )


def _backward(shape: Shape, dtype: Any, causal: bool) -> Case:
    operands = _operands(shape, shape, dtype)

    def attended() -> tk.DeviceOp[Any]:
        return kernels.attention(*(make() for make in operands.values()), causal=causal, return_lse=True)

    def own(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        return kernels.attention_backward(t["grad"], t["x"], t["key"], t["value"], t["result"], t["lse"], causal=causal)

    return Case(
        kernel="causal attention_backward" if causal else "attention_backward",
        shape=shape,
        dtype=dtype,
        nbytes=8 * dtype.itemsize * int(np.prod(shape)),
        inputs={
            **operands, "grad": _random(shape, dtype, 4), "result": lambda: attended().first(), "lse": lambda: attended().last(),
        },
        output=((3, *shape), dtype),
        own=own,
        tolerance=_OF_GRADIENTS * _TOLERANCES[dtype],
        operations=5 * _operations(shape, causal) // 2,
        prepared=True,
        check=CheckedGradients,
    )  # fmt: skip


def _decode(sizes: tuple[int, int, int, int, int], dtype: Any) -> Case:
    batch, heads, key_heads, length, size = sizes
    query, keys = (batch, heads, 1, size), (batch, key_heads, length, size)
    return Case(
        kernel="attention_decode",
        shape=sizes,
        dtype=dtype,
        nbytes=2 * dtype.itemsize * int(np.prod(keys)),
        inputs=_operands(query, keys, dtype),
        output=(query, dtype),
        own=lambda t, y: kernels.attention_decode(t["x"], t["key"], t["value"], out=y),
        tolerance=_TOLERANCES[dtype],
        prepared=True,
        check=CheckedRows,
    )


def _numpy(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    q, k, v, *grad = (
        tensors[what].to_host().sync_on(stream) for what in ("x", "key", "value", "grad") if what in tensors
    )  # fmt: skip
    result = np.empty(case.output[0], q.dtype)
    places = np.arange(q.shape[2]) if is_causal(case) else None

    def launch() -> None:
        for b, h, at in heads_of(q.shape, k.shape):
            if grad:
                for x, gradient in zip(result, gradients(q[b, h], k[b, at], v[b, at], grad[0][b, h], places), strict=True):
                    x[b, h] = gradient
            else:
                result[b, h] = attend(q[b, h], k[b, at], v[b, at], places)

    return Contestant(name="numpy", version=np.__version__, variants=(Variant(launch=launch),)), lambda: result


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {
    "cuda": {
        "cudnn": kernel_peers.sdpa("cudnn", "CUDNN_ATTENTION"),
        "flash-attention-2": kernel_peers.sdpa("flash-attention-2", "FLASH_ATTENTION"),
        "triton": kernel_peers.triton_kernel,
    },
    "cpu": {"numpy": _numpy},
}
"""The peers on each kind of device, by name."""


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    kind = options.device.kind
    return measure("attention", options, attention_cases(kind, options.n), peers=PEERS[kind], reference=_REFERENCE[kind])
