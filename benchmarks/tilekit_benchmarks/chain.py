"""What an op costs in a chain of N: each waited for by itself, or chained and waited for once, blocking or in a coroutine;
prepared, and as a CUDA graph.

The op is `y = y + x * g` on 32-bit integers, so that the result counts the ops. The floor is a loop over a prepared launch of the
same machine code.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit.launch import KernelLaunch
from tilekit.ops import DeviceOp
from tilekit_benchmarks import Options, raw
from tilekit_benchmarks._tilekit_host import accumulate
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.harness import Prepared
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "ELEMENTS", "Data", "lengths", "on_cpu", "on_gpu", "run"]

DEFAULT_N = {"cuda": 1000, "cpu": 100}
"""The longest chain, by the kind of device."""

ELEMENTS = 2048
"""How many elements an op works on."""

_TILE, _FACTOR, _SEED = 1024, 3, 20261121
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure chains of 1, 10, 100... ops, up to `options.n`. Blocks until it is done."""
    device, longest = options.device, options.n or DEFAULT_N[options.device.kind]
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        data = Data(stream, stack)
        candidates = [*(on_gpu(data) if device.kind == "cuda" else on_cpu(data)), *_own(data)]
        _log.info("chain: up to %d ops on %d elements, on %s", longest, ELEMENTS, device.label)
        return sweep(
            options,
            candidates,
            lengths(longest),
            items=lambda ops: ops,
            benchmark="chain",
            axis="ops in the chain",
            unit="us per op",
            parameters={"n": longest, "elements": ELEMENTS},
        )


def lengths(longest: int) -> list[int]:
    """1, 10, 100... up to `longest`, and that."""
    powers, length = [], 1
    while length < longest:
        powers.append(length)
        length *= 10
    return [*powers, longest]


class Data:
    """The vectors, and the work that a contestant makes of launches."""

    def __init__(self, stream: Stream, stack: ExitStack) -> None:
        self.stream, self.stack = stream, stack
        self._on_host = np.random.default_rng(_SEED).integers(-(2**31), 2**31, ELEMENTS, dtype=np.int32)
        self.x = api.from_host(self._on_host).sync_on(stream)
        self.y, self._blank = (api.zeros(ELEMENTS, tk.int32).sync_on(stream) for _ in range(2))
        self.partition = self.y.partition(_TILE)

    def op(self, x: tk.Tensor | None = None) -> KernelLaunch:
        """One op, anew; it reads `x`, if that is given, for the vector."""
        launch: KernelLaunch = accumulate(self.partition, self.x if x is None else x, _FACTOR)
        return launch

    def chained(self, ops: int) -> DeviceOp[Any]:
        """A chain of so many, anew."""
        op: DeviceOp[Any] = self.op()
        for _ in range(ops - 1):
            op = op.apply(accumulate)  # an op's result is the tuple of its arguments, which are the next one's
        return op

    def work(self, ops: int, launch: Callable[[], object]) -> Work:
        """With the check that all contestants share: the result says how many ops there were."""

        def check() -> str | None:
            expected = self._on_host * np.int32(_FACTOR) * np.int32(ops)  # modulo 2^32, as the device's
            wrong = np.count_nonzero(self.y.to_host().sync_on(self.stream) != expected)
            return f"{wrong} of {ELEMENTS} elements differ from NumPy's after {ops} ops" if wrong else None

        return Work(launch=launch, reset=lambda: api.memcpy(self.y, self._blank).sync_on(self.stream), check=check)


def _own(data: Data) -> list[Candidate]:
    def one_by_one(ops: int) -> Callable[[], object]:
        def launch() -> None:
            for _ in range(ops):
                data.op().sync()

        return launch

    def listed(ops: int) -> DeviceOp[Any]:
        return tk.join_all([data.op() for _ in range(ops)])

    def blocking(op: DeviceOp[Any]) -> None:
        op.sync()

    async def awaited(op: DeviceOp[Any]) -> None:
        await op

    def anew(make: Callable[[int], DeviceOp[Any]]) -> Callable[[int], Callable[[], object]]:
        return lambda ops: lambda: make(ops).sync()

    def anew_awaited(ops: int) -> Callable[[], object]:
        async def launch() -> None:
            await data.chained(ops)

        return launch

    def prepared(ops: int) -> Callable[[], object]:
        op = data.chained(ops).prepare()
        return lambda: op.sync_on(data.stream)

    def graph(ops: int) -> Callable[[], object]:
        recorded = data.chained(ops).graph()
        return lambda: recorded.sync_on(data.stream)

    ways: dict[str, Callable[[int], Callable[[], object]]] = {
        "each built and synced": one_by_one,
        "chain built, sync": anew(data.chained),
        "chain built before, sync": lambda ops: Prepared(lambda: data.chained(ops), blocking),
        "join_all built, sync": anew(listed),
        "chain built, await": anew_awaited,
        "chain built before, await": lambda ops: Prepared(lambda: data.chained(ops), awaited),
        "prepared, sync": prepared,
        "graph, sync": graph,
    }

    def candidate(variant: str, launcher: Callable[[int], Callable[[], object]]) -> Candidate:
        build = lambda ops: data.work(ops, launcher(ops))  # noqa: E731
        return Candidate(name=OWN, version=tk.__version__, variant=variant, build=build)

    return [candidate(variant, launcher) for variant, launcher in ways.items()]


def on_gpu(data: Data) -> list[Candidate]:
    def python_loop(ops: int) -> Work:
        prepared = raw.RawLaunch(data.op(), data.stream)
        return data.work(ops, lambda: prepared.launch_and_wait(ops))

    def native_loop(ops: int) -> Work:
        prepared = raw.RawLaunch(data.op(), data.stream)

        def launch() -> None:
            prepared.native_launches(ops)
            prepared.wait()

        return data.work(ops, launch)

    return [
        Candidate(name=raw.NAME, version=raw.version(), variant="cuLaunchKernel in a Python loop", build=python_loop),
        Candidate(name="numba", version=f"{version_of('numba')}", variant="cuLaunchKernel in a native loop", build=native_loop),
    ]


def on_cpu(data: Data) -> list[Candidate]:
    """What Python itself offers: another thread, with a queue."""
    x, y, factor = data.x.host_view(), data.y.host_view(), np.int32(_FACTOR)
    pool = data.stack.enter_context(ThreadPoolExecutor(1))

    def add() -> None:
        np.add(y, x * factor, out=y)

    def build(ops: int) -> Work:
        def launch() -> None:
            last: Future[None] | None = None
            for _ in range(ops):
                last = pool.submit(add)
            if last is not None:
                last.result()

        return data.work(ops, launch)

    return [Candidate(name="python", version=platform.python_version(), variant="executor.submit, last result", build=build)]
