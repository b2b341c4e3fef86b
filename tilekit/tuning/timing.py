"""`do_bench`, how long an op takes, and the stopwatch that it and searches measure with."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import default_device
from tilekit._runtime.stream import Stream
from tilekit.lang.tile import scalar_kind
from tilekit.ops import DeviceOp

__all__ = ["Stopwatch", "Timing", "do_bench"]

_FEWEST, _MANY = 5, 10_000  # samples


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long an op takes.

    Attributes:
        median_us, lower_us, upper_us: the median and the quartiles of the samples, in microseconds.
        samples: them, in the order in which they were taken, in microseconds.
        device: the device's name.
        method: what was timed: `"events"`, an op that is submitted, between two events of the device's; `"graph"`, a recorded one
            that is launched; `"wall"`, on a CPU device, by the host's clock.
        clocks_mhz: of the multiprocessors and of the memory, behind the last sample; None where nobody tells.
    """

    median_us: float
    lower_us: float
    upper_us: float
    samples: tuple[float, ...]
    device: str
    method: str
    clocks_mhz: tuple[int, int] | None

    def __str__(self) -> str:
        clocks = "" if self.clocks_mhz is None else "; clocks {} and {} MHz".format(*self.clocks_mhz)
        quartiles = f"{self.lower_us:.1f} to {self.upper_us:.1f}"
        return f"{self.median_us:.1f} us ({quartiles}, {len(self.samples)} samples, {self.method}) on {self.device}{clocks}"


class Stopwatch:
    """Times ops on a stream, each with nothing of its data in a GPU's L2 cache. A context manager.

    On a GPU by its own clock: what the host takes to submit an op passes while the GPU clears its cache. A CPU device's ops are
    timed by the host's clock, from their submission to their end, and find their data in the caches.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.device = stream, stream.device
        self._ends = ExitStack()
        self._events = [self._ends.enter_context(self.device.event(timing=True)) for _ in range(2)]
        self._bytes = 2 * self.device.driver.l2_bytes
        self._ctx = ExecutionContext(self.device, stream)
        self._buffer = self._ctx.allocate(self._bytes) if self._bytes else None

    def sample_us(self, op: DeviceOp[Any]) -> float:
        """How long `op` takes, in microseconds. Runs it, and blocks until it is done."""
        stream = self.stream
        stream.synchronize()
        if self.device.kind == "cpu":
            begin = time.perf_counter_ns()
            op.sync_on(stream)
            return 1e-3 * (time.perf_counter_ns() - begin)
        start, end = self._events
        if self._buffer is not None:
            self._ctx.driver.fill(self._buffer.memory, 0, self._bytes // 4, bytes(4), stream.handle)
            self._ctx.note((), (self._buffer,))
        start.record(stream)
        future = op.async_on(stream)
        end.record(stream)
        future.result()
        end.synchronize()
        return 1e3 * start.elapsed_ms(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()


def do_bench(op: DeviceOp[Any] | Callable[[], DeviceOp[Any]], *, seconds: float = 0.2, stream: Any = None) -> Timing:
    """How long an op takes: it runs again and again, each time with a GPU's L2 cache cleared of its data.

    ::

        print(tk.do_bench(saxpy(y.partition(1024), 2.0, x)))           # recorded once: what the device does
        print(tk.do_bench(lambda: saxpy(y.partition(1024), 2.0, x)))   # built and submitted for each sample

    What it writes it writes each time: of a kernel that adds to a tensor the tensor has grown by as many samples.

    Args:
        op: an op, which is recorded as a graph; or a function that makes one, which is called for each sample.
        seconds: for about how long samples are taken; 5 at least.
        stream: where; by default a new one of the op's device.

    Raises:
        TypeError: it is neither; the op cannot be recorded.
        ValueError: `seconds` is negative, or no number.
        Whatever the op fails with.
    """
    if scalar_kind(seconds) not in (int, float) or not 0 <= seconds <= sys.float_info.max:
        raise ValueError(f"do_bench: seconds is a number that is not negative, not {seconds!r}")
    if isinstance(op, DeviceOp):
        first, make = op, None
    elif callable(op):
        first, make = op(), op
        if not isinstance(first, DeviceOp):
            raise TypeError(f"do_bench: the function makes an op, not {first!r}")
    else:
        raise TypeError(f"do_bench takes an op, or a function that makes one, not {op!r}")
    device = first.device or default_device()
    with ExitStack() as ends:
        chosen = ends.enter_context(device.stream()) if stream is None else device.as_stream(stream, device)
        watch = ends.enter_context(Stopwatch(chosen))
        if make is None:
            graph = first.graph_on(chosen)
            make, method = graph.launch, "graph"
            make().sync_on(chosen)
        else:
            first.sync_on(chosen)  # what happens once, such as compiling, is over
            method = "events"
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < _FEWEST or (time.perf_counter() < end and len(samples) < _MANY):
            samples.append(watch.sample_us(make()))
        clocks = device.driver.clocks_mhz()
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(
        median_us=median,
        lower_us=lower,
        upper_us=upper,
        samples=tuple(samples),
        device=device.name,
        method="wall" if device.kind == "cpu" else method,
        clocks_mhz=clocks,
    )
