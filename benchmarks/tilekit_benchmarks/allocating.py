"""What it costs to allocate device memory and to give it up, beside the driver's own pool and the pools of peers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from tilekit import __version__, api
from tilekit._environment import version_of
from tilekit._runtime.allocator import allocate
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, raw
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import need
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["SIZES", "run"]

SIZES = (4096, 2**20)
"""In bytes."""

_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure allocating and freeing, of 4 KiB and 1 MiB, or of `options.n` bytes. Blocks until it is done."""
    device = options.device
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        candidates = [*(_on_gpu(stream) if device.kind == "cuda" else _on_cpu()), *_own(stream)]
        _log.info("allocate: on %s", device.label)
        return sweep(
            options,
            candidates,
            (options.n,) if options.n else SIZES,
            benchmark="allocate",
            axis="bytes",
            unit="us",
            parameters={},
        )


def _work(launch: Callable[[], object]) -> Work:
    """Nothing is computed, so there is nothing to check but that it does not fail."""
    return Work(launch=launch, reset=lambda: None, check=lambda: None)


def _candidate(name: str, version: str, variant: str, make: Callable[[int], Callable[[], object]]) -> Candidate:
    return Candidate(name=name, version=version, variant=variant, build=lambda nbytes: _work(make(int(nbytes))))


def _own(stream: Stream) -> list[Candidate]:
    return [
        _candidate(OWN, __version__, "memory alone", lambda nbytes: lambda: allocate(stream.device, nbytes, stream)),
        _candidate(OWN, __version__, "api.empty, sync", lambda nbytes: lambda: api.empty(nbytes, np.uint8).sync()),
    ]


def _on_gpu(stream: Stream) -> list[Candidate]:
    def driver(nbytes: int) -> Callable[[], object]:
        from cuda.bindings import driver as cu

        def once() -> None:
            code, address = cu.cuMemAllocAsync(nbytes, stream.handle)
            if code or cu.cuMemFreeAsync(address, stream.handle)[0]:
                raise RuntimeError("the driver did not allocate")

        return once

    def torch(nbytes: int) -> Callable[[], object]:
        need(("torch", "torch"))
        import torch

        return lambda: torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def cupy(nbytes: int) -> Callable[[], object]:
        need(("cupy", "cupy"))
        import cupy

        return lambda: cupy.empty(nbytes, cupy.uint8)

    return [
        _candidate(raw.NAME, raw.version(), "cuMemAllocAsync, cuMemFreeAsync", driver),
        _candidate("torch", f"{version_of('torch')}", "empty", torch),
        _candidate("cupy", f"{version_of('cupy')}", "empty", cupy),
    ]


def _on_cpu() -> list[Candidate]:
    make: Callable[[int], Callable[[], Any]] = lambda nbytes: lambda: np.empty(nbytes, np.uint8)  # noqa: E731
    return [_candidate("numpy", np.__version__, "empty", make)]
