"""Benchmarks: tilekit beside its peers, in one run, with the results checked. `python -m tilekit bench` runs them.

A benchmark is a module of this package, named in `BENCHMARKS`, with a function `run(options)` that returns a `report.Run`:
`saxpy` a `report.Record`, those of the host's side a `sweep.Sweep`, those of the kernels a `kernel_runs.KernelRun`, that
of drawn cases a `drawn.record.DrawnRun`, that of collectives a `collective_record.CollectiveRun`. `harness` compares
contestants, `report` says where that was, shows and keeps what came out. Peers are imported only by the functions that need them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilekit._runtime.device import Device

if TYPE_CHECKING:
    from tilekit_benchmarks.report import Run

__all__ = ["BENCHMARKS", "Benchmark", "Drawn", "Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark that can be asked for.

    Attributes:
        module: of this package.
        summary: what it is about.
        size: what `Options.n` counts.
        graph: whether it can be asked to use CUDA graphs, `Options.graph`.
        drawn: whether its cases are drawn, so that it needs `Options.drawn`, and has no size.
    """

    module: str
    summary: str
    size: str = ""
    graph: bool = False
    drawn: bool = False


BENCHMARKS: Mapping[str, Benchmark] = {
    "saxpy": Benchmark(
        module="saxpy",
        summary="y = a * x + y in place, float32: how near to the speed of the memory",
        size="elements of a vector",
    ),
    "launch": Benchmark(
        module="launch",
        summary="one launch of 0 to 16 tensors: what it costs the host, beside numba, Triton, CuPy, PyTorch and cuTile",
        size="elements of each tensor",
    ),
    "await": Benchmark(
        module="awaiting",
        summary="one small op, launched and waited for: blocking, and in a coroutine",
        size="elements of a vector",
    ),
    "guest": Benchmark(
        module="guest",
        summary="PyTorch's tensors in tilekit's kernels, ready-made or not: what a call costs the host, beside PyTorch's own",
        size="elements of a row",
    ),
    "block": Benchmark(
        module="block",
        summary="a transformer's block of tilekit.torch.ops, forward and backward, eager and compiled, beside PyTorch's",
        size="tokens of a sequence",
    ),
    "chain": Benchmark(
        module="chain",
        summary="chains of 1, 10, 100... ops: what each costs, synced one by one, chained, awaited",
        size="ops of the longest chain",
    ),
    "graph": Benchmark(
        module="graph",
        summary="CUDA graphs of 1, 10, 100... ops: what each costs, replayed, prepared, built anew",
        size="ops of the longest graph",
    ),
    "decode": Benchmark(
        module="decode",
        summary="a model of rms_norm, matvec and add, token by token: latency eager, chained, prepared, and as a CUDA graph",
        size="layers of the model",
    ),
    "overlap": Benchmark(
        module="overlap",
        summary="a chain of device ops and work for the host: one after the other, and both at once",
        size="ops of the chain",
        graph=True,
    ),
    "bimodal": Benchmark(
        module="bimodal",
        summary="short and long units of work over 1 to 8 streams: a thread for each, or one thread with tasks",
        size="units",
    ),
    "copies": Benchmark(
        module="copies",
        summary="copies between the host and the device, from page-locked and from ordinary memory",
        size="bytes of the largest copy",
    ),
    "allocate": Benchmark(
        module="allocating",
        summary="device memory allocated and given up",
        size="bytes",
    ),
    "cpu": Benchmark(
        module="cpu",
        summary="the CPU device: vectors, rows, products, attention, beside NumPy and numba, on one thread and on all",
        size="elements of vectors, the only ones then",
    ),
    "softmax": Benchmark(
        module="softmax",
        summary="softmax of float32, rows of 1024 to 131072 elements: how near to a copy",
        size="rows of each matrix",
    ),
    "norms": Benchmark(
        module="norms",
        summary="rms_norm and layer_norm of float16, forward and backward: how near to a copy",
        size="rows of each matrix",
    ),
    "kernels": Benchmark(
        module="kernels",
        summary="all other ready-made kernels: gelu, dropout, transpose, cumsum, cross-entropy...",
        size="rows of each matrix",
    ),
    "gemm": Benchmark(
        module="gemm",
        summary="products of bfloat16 matrices, square and not: TFLOP/s, beside cuBLAS and Triton",
        size="rows and columns of square matrices, the only ones then",
    ),
    "attention": Benchmark(
        module="attention",
        summary="attention in bfloat16, forward, backward and decoding, beside cuDNN, FlashAttention-2 and Triton",
        size="queries and keys of each sequence",
    ),
    "plain": Benchmark(
        module="plain",
        summary="products and attention as a user writes them, in several spellings, beside tilekit.kernels, cuBLAS and cuDNN",
        size="rows of square matrices, and queries and keys of each sequence",
    ),
    "varlen": Benchmark(
        module="varlen",
        summary="attention of packed sequences in bfloat16, forward and backward, beside FlashAttention-2",
        size="tokens of the longest sequence",
    ),
    "collectives": Benchmark(
        module="collectives",
        summary="all-reduce and others among all devices, in one process and a process each, beside torch.distributed",
        size="bytes of the largest message",
    ),
    "products": Benchmark(
        module="products",
        summary="products of groups: what is hidden of what the members tell each other, beside torch's symmetric memory",
        size="rows and columns of the large matrices",
    ),
    "sweep": Benchmark(
        module="drawn",
        summary="cases of a family of kernels that are drawn at random, beside all peers: geometric mean, quantiles, the worst",
        drawn=True,
    ),
}
"""The benchmarks, by name."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Which cases of a sweep are measured.

    Attributes:
        family: what they are drawn of.
        cases: how many the whole sweep has.
        seed: what they are drawn from; None for a fresh one.
        start, stop: from which of them on, and up to which, that one not included; None for all.
        lock: a file by which runs beside each other take turns at the device; None if there is one alone.
    """

    family: str
    cases: int = 60
    seed: int | None = None
    start: int = 0
    stop: int | None = None
    lock: Path | None = None

    def __post_init__(self) -> None:
        stop = self.cases if self.stop is None else self.stop
        if not 0 <= self.start < stop <= self.cases:
            raise ValueError(f"there are no cases {self.start} to {stop} among {self.cases}, which are counted from 0")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a benchmark is asked to do.

    Attributes:
        device: where it runs.
        n: the size of the problem; None leaves it to the benchmark.
        rounds: how many samples are taken of each contestant, in turns.
        graph: whether to use CUDA graphs, where the benchmark can (`Benchmark.graph`).
        command: the command line that asked for it, for the record.
        drawn: which cases, of a benchmark that draws them.
    """

    device: Device
    n: int | None = None
    rounds: int = 20
    graph: bool = False
    command: str | None = None
    drawn: Drawn | None = None

    def __post_init__(self) -> None:
        if self.n is not None and self.n < 1:
            raise ValueError(f"n = {self.n}: a benchmark needs at least one element")
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds}: a benchmark needs at least one round")


def run(name: str, options: Options) -> Run:
    """Run the benchmark `name`. Blocks until it is done.

    Raises:
        ValueError: there is no such benchmark, or it has no graphs.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    if options.graph and not BENCHMARKS[name].graph:
        able = ", ".join(one for one, benchmark in BENCHMARKS.items() if benchmark.graph)
        raise ValueError(f"the benchmark {name} does not run as a graph; {able} does")
    result: Run = importlib.import_module(f"{__name__}.{BENCHMARKS[name].module}").run(options)
    return result
