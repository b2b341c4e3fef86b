"""What it costs to launch one small op and to wait for it: blocking, and in a coroutine.

The op is `y = x * g` on float32. tilekit builds it anew each time. The floor is a prepared launch of the same machine code.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._environment import version_of
from tilekit._runtime.device import Device
from tilekit._runtime.policy import SingleStream
from tilekit._runtime.stream import Stream
from tilekit.launch import KernelLaunch
from tilekit_benchmarks import Options, raw
from tilekit_benchmarks._tilekit_host import scale
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import DeviceArray, need
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "policy_of", "run"]

DEFAULT_N = 2048
"""How many elements: so few that the device is done at once."""

_TILE = 1024
_THREADS = 256  # of a block of numba's kernel
_FACTOR = float(np.float32(1.7))
_SEED = 20261121
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure launching and waiting. Blocks until it is done."""
    device, n = options.device, options.n or DEFAULT_N
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        data = _Data(stream, n, stack)
        candidates = [*(_on_gpu(data) if device.kind == "cuda" else _on_cpu(data)), *_own(data)]
        _log.info("await: one op on %d elements, on %s", n, device.label)
        return sweep(
            options,
            candidates,
            [n],
            benchmark="await",
            axis="elements",
            unit="us per op",
            parameters={"n": n},
        )


@contextmanager
def policy_of(device: Device, stream: Stream) -> Iterator[None]:
    """Make `stream` what the device's policy gives: `op.sync()` and `await op` then use the stream that their peers use."""
    before, device.policy = device.policy, SingleStream(stream)
    try:
        yield
    finally:
        device.policy = before


class _Data:
    """The vectors, and the work that a contestant makes of a launch."""

    def __init__(self, stream: Stream, n: int, stack: ExitStack) -> None:
        self.stream, self.n, self.stack = stream, n, stack
        x = np.random.default_rng(_SEED).random(n, dtype=np.float32)
        self.x, self.y, self._blank = (api.from_host(array).sync_on(stream) for array in (x, x, np.full(n, np.nan, np.float32)))
        self.partition = self.y.partition(_TILE)
        self._expected = x * np.float32(_FACTOR)  # one rounding, so every way of doing it gives the same bits

    def op(self) -> KernelLaunch:
        """The op, anew."""
        launch: KernelLaunch = scale(self.partition, self.x, _FACTOR)
        return launch

    def work(self, launch: Callable[[], object]) -> Work:
        """With the check that all contestants share."""
        return Work(launch=launch, reset=lambda: api.memcpy(self.y, self._blank).sync_on(self.stream), check=self._check)

    def _check(self) -> str | None:
        result = self.y.to_host().sync_on(self.stream)
        wrong = np.count_nonzero(result != self._expected)
        return f"{wrong} of {self.n} elements differ from NumPy's" if wrong else None


def _own(data: _Data) -> list[Candidate]:
    op = data.op

    def blocking() -> None:
        op().sync()

    async def awaited() -> None:
        await op()

    def candidate(variant: str, launch: Callable[[], object]) -> Candidate:
        return Candidate(name=OWN, version=tk.__version__, variant=variant, build=lambda _: data.work(launch))

    return [candidate("launch, sync", blocking), candidate("launch, await", awaited)]


def _on_gpu(data: _Data) -> list[Candidate]:
    def prepared(_: float) -> Work:
        return data.work(raw.RawLaunch(data.op(), data.stream).launch_and_wait)

    def numba_blocking(_: float) -> Work:
        launch, stream = _numba(data)

        def work() -> None:
            launch()
            stream.synchronize()

        return data.work(work)

    def numba_awaited(_: float) -> Work:
        launch, stream = _numba(data)
        from tilekit_benchmarks._numba_host import async_done

        async def work() -> None:
            launch()
            await async_done(stream)  # type: ignore[no-untyped-call]

        return data.work(work)

    numba_version = f"{version_of('numba-cuda')}"
    return [
        Candidate(name=raw.NAME, version=raw.version(), variant="cuLaunchKernel, cuStreamSynchronize", build=prepared),
        Candidate(name="numba-cuda", version=numba_version, variant="launch, synchronize", build=numba_blocking),
        Candidate(name="numba-cuda", version=numba_version, variant="launch, await async_done (repaired)", build=numba_awaited),
    ]


def _numba(data: _Data) -> tuple[Callable[[], object], Any]:
    """A launch of numba's, and the stream that it goes to, which is tilekit's."""
    need(("numba_cuda", "numba-cuda"))
    from numba import cuda

    from tilekit_benchmarks import _numba_host

    cuda.select_device(data.stream.device.ordinal)
    kernel: Any = _numba_host.scale()  # type: ignore[no-untyped-call]
    x, y = cuda.as_cuda_array(DeviceArray(data.x)), cuda.as_cuda_array(DeviceArray(data.y))
    stream = cuda.external_stream(data.stream.address)
    factor = np.float32(_FACTOR)  # a Python float would make numba compute in float64
    configured = kernel[-(-data.n // _THREADS), _THREADS, stream]
    return lambda: configured(y, x, factor), stream


def _on_cpu(data: _Data) -> list[Candidate]:
    """What Python itself offers: another thread, with a queue."""
    x, y, factor = data.x.host_view(), data.y.host_view(), np.float32(_FACTOR)
    pool = data.stack.enter_context(ThreadPoolExecutor(1))

    def multiply() -> None:
        np.multiply(x, factor, out=y)

    def blocking() -> None:
        pool.submit(multiply).result()

    async def awaited() -> None:
        await asyncio.get_running_loop().run_in_executor(pool, multiply)

    def candidate(variant: str, launch: Callable[[], object]) -> Candidate:
        return Candidate(name="python", version=platform.python_version(), variant=variant, build=lambda _: data.work(launch))

    return [candidate("executor.submit, result", blocking), candidate("await run_in_executor", awaited)]
