"""What one launch costs the host, for 0, 1, 3, 8 and 16 tensors: built and run, prepared, with other libraries' arrays.

The kernel adds up all tensors but the first into that one, so that the result says who was passed. Where a launch is not waited
for, the clock stops when the call returns: the kernels are so small that the device keeps up. The floor is a prepared launch of
the same machine code.
"""

from __future__ import annotations

import itertools
import logging
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._runtime.stream import Stream
from tilekit.launch import KernelLaunch
from tilekit_benchmarks import Options, launch_peers, raw
from tilekit_benchmarks._tilekit_host import LAUNCHES
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.harness import Unwaited
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.saxpy_peers import need
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["COUNTS", "DEFAULT_N", "run"]

COUNTS = (0, 1, 3, 8, 16)
"""How many tensors a launch has."""

DEFAULT_N = 2048
"""How many elements each has: so few that the device is done at once."""

_TILE, _SEED = 1024, 20261121
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure launches. Blocks until it is done."""
    device, n = options.device, options.n or DEFAULT_N
    with ExitStack() as stack:
        stack.enter_context(tk.use_device(device))  # a launch without tensors runs on the default one
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        data = _Data(stream, n, stack)
        candidates = [*(_on_gpu(data) if device.kind == "cuda" else _on_cpu(data)), *_own(data)]
        _log.info("launch: tensors of %d elements, on %s", n, device.label)
        return sweep(
            options,
            candidates,
            COUNTS,
            benchmark="launch",
            axis="tensors",
            unit="us per launch",
            parameters={"n": n},
        )


class _Data:
    """The tensors, and the work that a contestant makes of a launch."""

    def __init__(self, stream: Stream, n: int, stack: ExitStack) -> None:
        self.stream, self.n, self.stack = stream, n, stack
        inputs = max(COUNTS) - 1
        self.values = np.random.default_rng(_SEED).integers(-(2**31), 2**31, (inputs, n), dtype=np.int32)
        self.inputs = [api.from_host(values).sync_on(stream) for values in self.values]
        self.y, self._blank = (api.zeros(n, tk.int32).sync_on(stream) for _ in range(2))
        self.partition = self.y.partition(_TILE)

    def tensors(self, count: int) -> list[tk.Tensor]:
        """The first `count`."""
        return [self.y, *self.inputs][:count]

    def op(self, count: int, inputs: Sequence[Any] | None = None) -> KernelLaunch:
        """The launch, anew; of other inputs, if they are given."""
        kernel, arguments = LAUNCHES[count], self.inputs[: max(0, count - 1)] if inputs is None else inputs
        launch: KernelLaunch = kernel(self.partition, *arguments) if count else kernel().grid(1)
        return launch

    def work(self, count: int, launch: Callable[[], object], **fields: Any) -> Work:
        """With the check that all contestants share."""

        def check() -> str | None:
            result = self.y.to_host().sync_on(self.stream)
            expected = self.values[: count - 1].sum(0, dtype=np.int32) if count > 1 else np.int32(count)
            wrong = np.count_nonzero(result != expected)
            return f"{wrong} of {self.n} elements are not the sum of {count - 1} tensors" if wrong else None

        def reset() -> None:
            api.memcpy(self.y, self._blank).sync_on(self.stream)

        return Work(launch=launch, reset=reset, check=check, **fields)

    def unwaited(self, count: int, launch: Callable[[], object], **fields: Any) -> Work:
        """The same of a launch that does not wait."""
        return self.work(count, Unwaited(launch, self.stream.synchronize), **fields)


def _own(data: _Data) -> list[Candidate]:
    stream = data.stream

    def built(count: int) -> Work:
        op = _maker(data, count)
        return data.unwaited(count, lambda: op().async_on(stream))

    def built_and_synced(count: int) -> Work:
        op = _maker(data, count)
        return data.work(count, lambda: op().sync_on(stream))

    def built_and_awaited(count: int) -> Work:
        op = _maker(data, count)

        async def launch() -> None:
            await op()

        return data.work(count, launch)

    def prepared(count: int) -> Work:
        op = data.op(count).prepare()
        return data.unwaited(count, lambda: op.run(stream))

    def prepared_and_synced(count: int) -> Work:
        op = data.op(count).prepare()
        return data.work(count, lambda: op.sync_on(stream))

    def slotted(count: int) -> tuple[Any, Any]:
        """A prepared op whose last input can be bound, and the tensors to bind, in turns: all with the same values."""
        *others, last = data.inputs[: count - 1]
        op = data.op(count, [*others, tk.slot("last", last)]).prepare()
        return op, itertools.cycle([last.dup().sync_on(stream), last])

    def bound(count: int) -> Work:
        op, lasts = slotted(count)
        return data.unwaited(count, lambda: op.run(stream, last=next(lasts)))

    def bind_alone(count: int) -> Work:
        op, lasts = slotted(count)
        work = data.work(count, lambda: op.bind(last=next(lasts)))

        def check() -> str | None:
            op.run(stream)
            return work.check()

        return Work(launch=work.launch, reset=work.reset, check=check)

    several = [count for count in COUNTS if count > 1]
    ways: dict[str, tuple[Callable[[int], Work], Sequence[float] | None]] = {
        "built, run": (built, None),
        "prepared, run": (prepared, None),
        "prepared, run with a pointer bound": (bound, several),
        "bind of a pointer alone": (bind_alone, several),
        "built, run, synced": (built_and_synced, None),
        "built, awaited": (built_and_awaited, None),
        "prepared, run, synced": (prepared_and_synced, None),
        "built, run, inputs of PyTorch's": (lambda count: _with_torch(data, count), several),
        "built, run, inputs of CuPy's": (lambda count: _with_cupy(data, count), several),
    }
    if stream.device.kind == "cpu":
        del ways["built, run, inputs of CuPy's"]
    return [
        Candidate(name=OWN, version=tk.__version__, variant=variant, build=build, places=places)
        for variant, (build, places) in ways.items()
    ]


def _maker(data: _Data, count: int) -> Callable[[], KernelLaunch]:
    """What builds the launch, as a program would write it down: the arguments are at hand."""
    kernel, partition, inputs = LAUNCHES[count], data.partition, data.inputs[: max(0, count - 1)]
    if not count:
        return lambda: kernel().grid(1)
    if count == 1:
        return lambda: kernel(partition)
    if count == 3:
        a, b = inputs
        return lambda: kernel(partition, a, b)
    return lambda: kernel(partition, *inputs)


def _with_torch(data: _Data, count: int) -> Work:
    need(("torch", "torch"))
    import torch

    on_gpu = data.stream.device.kind == "cuda"
    device, active = launch_peers.in_torch(data.stream) if on_gpu else (torch.device("cpu"), nullcontext)
    return _foreign(data, count, [torch.from_numpy(values).to(device) for values in data.values[: count - 1]], active)


def _with_cupy(data: _Data, count: int) -> Work:
    active = launch_peers.in_cupy(data.stream)
    import cupy

    with active():
        arrays = [cupy.asarray(values) for values in data.values[: count - 1]]
        cupy.cuda.get_current_stream().synchronize()
    return _foreign(data, count, arrays, active)


def _foreign(data: _Data, count: int, arrays: Sequence[Any], active: Any) -> Work:
    """Inputs of another library's, which become tensors at each launch."""
    kernel, partition, stream, as_tensor = LAUNCHES[count], data.partition, data.stream, tk.as_tensor
    return data.unwaited(
        count, lambda: kernel(partition, *(as_tensor(array) for array in arrays)).async_on(stream), active=active
    )


def _on_gpu(data: _Data) -> list[Candidate]:
    def launch(count: int) -> Work:
        return data.unwaited(count, raw.RawLaunch(data.op(count), data.stream).once())

    def launch_and_wait(count: int) -> Work:
        prepared = raw.RawLaunch(data.op(count), data.stream)
        once, wait = prepared.once(), prepared.wait

        def both() -> None:
            once()
            wait()

        return data.work(count, both)

    def candidate(name: str, peer: launch_peers.Peer) -> Candidate:
        def build(count: int) -> Work:
            launched, active = peer.build(data.tensors(count), data.stream)
            return data.unwaited(count, launched, active=active)

        return Candidate(name=name, version=peer.version, variant=peer.variant, build=build, places=peer.places)

    return [
        Candidate(name=raw.NAME, version=raw.version(), variant="cuLaunchKernel", build=launch),
        Candidate(name=raw.NAME, version=raw.version(), variant="cuLaunchKernel, cuStreamSynchronize", build=launch_and_wait),
        *(candidate(name, peer) for name, peer in launch_peers.PEERS.items()),
    ]


def _on_cpu(data: _Data) -> list[Candidate]:
    """What Python itself offers: another thread, with a queue."""
    pool, y = data.stack.enter_context(ThreadPoolExecutor(1)), data.y.host_view()

    def build(count: int) -> Work:
        inputs = data.values[: max(0, count - 1)]

        def work() -> None:
            if count:
                y[:] = inputs.sum(0, dtype=np.int32) if count > 1 else 1

        return data.work(count, Unwaited(lambda: pool.submit(work), lambda: pool.submit(int).result()))

    return [Candidate(name="python", version=platform.python_version(), variant="executor.submit", build=build)]
