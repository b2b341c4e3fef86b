"""The benchmark `plain`: products and attention as a user writes them, beside `tilekit.kernels` and the peers of those.

One product in several spellings, and attention from one loop, as the guide has them: what a way to write costs. On a CPU device
matrices and sequences are small, and of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import tilekit as tk
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, _tilekit_plain, attention, gemm, kernel_peers
from tilekit_benchmarks.harness import Contestant
from tilekit_benchmarks.kernel_cases import Case, Tensors
from tilekit_benchmarks.kernel_runs import KernelRun, measure, prepared

__all__ = ["PEERS", "plain_cases", "run"]

_LIBRARY = "tilekit.kernels"
_SPELLINGS: Mapping[str, tk.Kernel] = {
    "tk.pipelined": _tilekit_plain.pipelined,
    "a loop": _tilekit_plain.looped,
    "while and a helper": _tilekit_plain.turned,
    "acc += a @ b": _tilekit_plain.summed,
    "blocks that stay": _tilekit_plain.persistent,
}
_IN_LARGE = ("a loop", "blocks that stay")  # of what is measured at each size
_TILE = {"cuda": (128, 256, 64), "cpu": (64, 64, 32)}
# Queries and keys at a time, and warps, by the size of heads.
_ATTENDED = {"cuda": {64: (256, 64, 16), 128: (128, 128, 8)}, "cpu": {64: (64, 64, 8), 128: (64, 64, 8)}}


def plain_cases(kind: str, n: int | None = None) -> list[Case]:
    """The cases for a kind of device: products of square matrices, of `n` rows if that is given, and attention."""
    sizes = (n,) if n else (4096, 8192) if kind == "cuda" else (128,)
    products = [
        replace(case, kernel=f"gemm, {spelling}", own=_product(kernel, kind))
        for at, size in enumerate(sizes)
        for case in gemm.gemm_cases(kind, size)
        for spelling, kernel in _SPELLINGS.items()
        if not at or spelling in _IN_LARGE
    ]
    kernels = {"attention": _tilekit_plain.attention, "causal attention": _tilekit_plain.causal_attention}
    return products + [
        replace(case, kernel=f"{case.kernel}, a loop", own=_attention(kernels[case.kernel], kind))
        for case in attention.attention_cases(kind, n)
        if case.kernel in kernels
    ]


def _product(kernel: tk.Kernel, kind: str) -> Callable[[Tensors, tk.Tensor], tk.DeviceOp[Any]]:
    m, n, k = _TILE[kind]

    def own(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        parts = y.partition((m, n))
        blocks: Any = parts.map(group=(8, 8)) if kernel is _tilekit_plain.persistent else parts
        return kernel(blocks, t["x"], t["weight"]).generics(BM=m, BN=n, BK=k).first().unpartition()

    return own


def _attention(kernel: tk.Kernel, kind: str) -> Callable[[Tensors, tk.Tensor], tk.DeviceOp[Any]]:
    def own(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        size = y.shape[3]
        m, n, warps = _ATTENDED[kind][size]
        op = kernel(y.partition((1, 1, m, size)), t["x"], t["key"], t["value"])
        return op.generics(BM=m, BN=n, D=size).num_warps(warps).first().unpartition()

    return own


def _library(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    """The kernel of `tilekit.kernels` that does the same."""
    products = gemm.gemm_cases(stream.device.kind, out.shape[0])
    same = products if _task(case) == "gemm" else attention.attention_cases(stream.device.kind)
    own = next(one.own for one in same if one.kernel == _task(case))
    return prepared(_LIBRARY, own(tensors, out), stream)


def _peer(build: kernel_peers.Build, multiplies: bool) -> kernel_peers.Build:
    """One that takes part in products, or in attention."""

    def joined(case: Case, *of_it: Any) -> tuple[Contestant, Callable[[], Any]]:
        if (_task(case) == "gemm") != multiplies:
            raise NotImplementedError
        return build(replace(case, kernel=_task(case)), *of_it)

    return joined


def _task(case: Case) -> str:
    return case.kernel.partition(",")[0]


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {
    "cuda": {
        _LIBRARY: _library,
        "torch": _peer(gemm.PEERS["cuda"]["torch"], multiplies=True),
        "cudnn": _peer(attention.PEERS["cuda"]["cudnn"], multiplies=False),
    },
    "cpu": {_LIBRARY: _library},
}
"""The peers on each kind of device, by name."""


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    kind = options.device.kind
    return measure("plain", options, plain_cases(kind, options.n), peers=PEERS[kind], reference=_LIBRARY)
