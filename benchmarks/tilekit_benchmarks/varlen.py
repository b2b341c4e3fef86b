"""The benchmark `varlen`: attention of packed sequences and its gradients, beside FlashAttention-2 as PyTorch calls it.

The sequences have ten lengths, from the longest to a forty-first of it. tilekit's op is prepared (`op.prepare()`), and only the
device knows where sequences begin; FlashAttention-2 is told the longest. Operations count as in the benchmark `attention`. On a
CPU device sequences are short, and of float32; the peer is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, kernel_peers
from tilekit_benchmarks.attention_checks import CheckedSequences, is_causal, of_sequences
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_cases import Case, Tensors
from tilekit_benchmarks.kernel_runs import KernelRun, measure

__all__ = ["PEERS", "lengths_of", "run", "varlen_cases"]

# Of the longest sequence, what each has.
_PARTS = (1, 3 / 4, 1 / 41, 1 / 2, 1 / 8, 1 / 5, 3 / 8, 1 / 16, 3 / 4, 1 / 4)
_LONGEST, _CPU_LONGEST = 4096, 96
# Heads and the head size.
_SIZES, _CPU_SIZES = ((16, 128), (32, 64)), ((2, 64),)
# As in the benchmark `attention`.
_TOLERANCES = {dtypes.bfloat16: 8e-3, dtypes.float32: 2e-5}
_OF_GRADIENTS = 2
_REFERENCE = {"cuda": "flash-attention-2", "cpu": "numpy"}


def lengths_of(longest: int) -> list[int]:
    """The lengths of the sequences: a token alone has no gradients by queries and keys."""
    return [max(2, int(part * longest)) for part in _PARTS]


def varlen_cases(kind: str, n: int | None = None) -> list[Case]:
    """The cases for a kind of device; the longest sequence has length `n`."""
    dtype, sizes, longest = (tk.bfloat16, _SIZES, _LONGEST) if kind == "cuda" else (tk.float32, _CPU_SIZES, _CPU_LONGEST)
    lengths = lengths_of(n or longest)
    return [
        _case(lengths, heads, size, dtype, causal=causal, backward=backward)
        for backward in (False, True)
        for heads, size in sizes
        for causal in (False, True)
    ]


def _case(lengths: list[int], heads: int, size: int, dtype: Any, *, causal: bool, backward: bool) -> Case:
    shape = (sum(lengths), heads, size)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

    def random(seed: int) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
        return lambda: api.randn(0.0, 1.0, shape, seed=seed, dtype=dtype)

    inputs: dict[str, Callable[[], tk.DeviceOp[tk.Tensor]]] = {
        "x": random(1), "key": random(2), "value": random(3), "starts": lambda: api.from_host(starts),
    }  # fmt: skip

    def attended() -> tk.DeviceOp[Any]:
        operands = *(inputs[what]() for what in ("x", "key", "value")), api.from_host(starts), api.from_host(starts)
        return kernels.attention_varlen(*operands, causal=causal, return_lse=True)

    def forward(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        return kernels.attention_varlen(t["x"], t["key"], t["value"], t["starts"], t["starts"], causal=causal, out=y)

    def gradients(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        operands = (t[what] for what in ("grad", "x", "key", "value", "result", "lse", "starts", "starts"))
        return kernels.attention_varlen_backward(*operands, causal=causal)

    operations = 4 * heads * size * sum(n * n for n in lengths) // (2 if causal else 1)
    if backward:
        inputs |= {"grad": random(4), "result": lambda: attended().first(), "lse": lambda: attended().last()}
        operations = 5 * operations // 2
    return Case(
        kernel=f"{'causal ' if causal else ''}attention_varlen{'_backward' if backward else ''}",
        shape=shape,
        dtype=dtype,
        nbytes=(8 if backward else 4) * dtype.itemsize * int(np.prod(shape)),
        inputs=inputs,
        output=((3, *shape) if backward else shape, dtype),
        own=gradients if backward else forward,
        tolerance=(_OF_GRADIENTS if backward else 1) * _TOLERANCES[dtype],
        operations=operations,
        prepared=True,
        check=CheckedSequences,
    )


def _numpy(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    starts, *operands = (
        tensors[what].to_host().sync_on(stream) for what in ("starts", "x", "key", "value", "grad") if what in tensors
    )
    result = np.empty(case.output[0], operands[0].dtype)

    def launch() -> None:
        for b in range(len(starts) - 1):
            for h in range(operands[0].shape[1]):
                at = np.s_[..., starts[b] : starts[b + 1], h, :]
                result[at] = of_sequences(*(x[at] for x in operands), causal=is_causal(case))

    return Contestant(name="numpy", version=np.__version__, variants=(Variant(launch=launch),)), lambda: result


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {
    "cuda": {"flash-attention-2": kernel_peers.flash_varlen},
    "cpu": {"numpy": _numpy},
}
"""The peers on each kind of device, by name."""


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    kind = options.device.kind
    return measure("varlen", options, varlen_cases(kind, options.n), peers=PEERS[kind], reference=_REFERENCE[kind])
