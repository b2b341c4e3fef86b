"""What a process of a crew does: one member of a group, or all of them. `OfTilekit` is a group of tilekit's.

Whoever measures tells all members the same: build a case in some way, which is checked at once; sample it, as often as wanted;
drop it. See `collective_crew`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tilekit as tk
from tilekit import api, kernels
from tilekit._environment import version_of
from tilekit_benchmarks.collective_cases import Array, Case

__all__ = [
    "GRAPH_OPS",
    "GROUP_S",
    "Clock",
    "EventClock",
    "Member",
    "OfTilekit",
    "WallClock",
    "Work",
    "one_process",
    "process_each",
]

GRAPH_OPS = 20
"""How many ops a CUDA graph has."""

GROUP_S = 90.0
"""How long members wait for each other in a collective."""

_TURNS, _LARGE = 3, 1 << 27  # in how many the result is checked, each with other data; two, of more bytes

_Ops = list[tk.DeviceOp[Any]]


@dataclass(kw_only=True)
class Work:
    """A collective in a member's process, built.

    Attributes:
        launch: submits it once, and does not wait, or does it.
        fill: gives each member of this process its input; None for zeros.
        results: what each of them has, by rank, when all is done.
        ops: how many collectives a launch is.
        in_place: whether each of them takes the result of the one before.
        close: gives up what it uses.
    """

    launch: Callable[[], object]
    fill: Callable[[int, Array | None], object]
    results: Callable[[], dict[int, Array]]
    ops: int = 1
    in_place: bool = False
    close: Callable[[], object] = lambda: None


class Clock(Protocol):
    """How samples are taken."""

    def sample_us(self, launch: Callable[[], object], launches: int) -> tuple[float, float]:
        """Microseconds that a launch takes the device, and the host until it has returned, as the mean of `launches`."""
        ...

    def wait(self) -> None:
        """Block until what was submitted is done."""
        ...


class WallClock:
    """By the host's clock alone, on CPU devices; `wait` blocks until what was submitted is done."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def sample_us(self, launch: Callable[[], object], launches: int) -> tuple[float, float]:
        """See `Clock`. A launch that is not timed lets the members meet."""
        launch()
        self._wait()
        start = time.perf_counter()
        for _ in range(launches):
            launch()
        returned = time.perf_counter()
        self._wait()
        end = time.perf_counter()
        return 1e6 * (end - start) / launches, 1e6 * (returned - start) / launches

    def wait(self) -> None:
        """See `Clock`."""
        self._wait()


class EventClock:
    """By events of a GPU, around launches that are submitted one behind the other.

    Args:
        record_start, record_end: record an event behind all that was submitted.
        wait: blocks until what was submitted is done, and raises if that failed.
        elapsed_ms: between the events.
    """

    def __init__(
        self,
        record_start: Callable[[], object],
        record_end: Callable[[], object],
        wait: Callable[[], object],
        elapsed_ms: Callable[[], float],
    ) -> None:
        self._record_start, self._record_end, self._wait, self._elapsed_ms = record_start, record_end, wait, elapsed_ms

    def sample_us(self, launch: Callable[[], object], launches: int) -> tuple[float, float]:
        """See `Clock`. In a launch that is not timed the members meet; the others queue up behind it."""
        launch()
        self._record_start()
        start = time.perf_counter()
        for _ in range(launches):
            launch()
        returned = time.perf_counter()
        self._record_end()
        self._wait()
        return 1e3 * self._elapsed_ms() / launches, 1e6 * (returned - start) / launches

    def wait(self) -> None:
        """See `Clock`."""
        self._wait()


class Member:
    """What is the same for all libraries.

    Attributes:
        about: versions of what takes part, by name.
        ranks: of the members of this process.
    """

    def __init__(self, ranks: Sequence[int], about: dict[str, str | None]) -> None:
        self.ranks, self.about = tuple(ranks), about
        self._works: dict[str, Work] = {}
        self.clock: Clock

    def work(self, way: str, case: Case) -> Work:
        """A case, to be done in one of the ways that the library has."""
        raise NotImplementedError

    def build(self, way: str, case: Case) -> str | None:
        """Build a case and check it, with other data in each turn; what is wrong with its results, None if nothing is.

        All turns are taken, whatever comes out, so that all members do the same.
        """
        work = self._works[way] = self.work(way, case)
        repeats = work.ops if work.in_place and case.op == "all_reduce" else 1
        wrong = []
        for turn in range(_TURNS if case.nbytes < _LARGE else 2):
            for rank in self.ranks:
                work.fill(rank, case.data(rank, turn))
            work.launch()
            self.clock.wait()
            results = work.results()
            wrong += [case.difference(results.pop(rank), rank, turn, repeats) for rank in self.ranks]
        if work.in_place:  # sums of sums of sums would be infinite
            for rank in self.ranks:
                work.fill(rank, None)
        return next(filter(None, wrong), None)

    def sample(self, way: str, launches: int) -> tuple[float, float]:
        """Microseconds that an op takes the device, and the host, as the mean of `launches` launches."""
        work = self._works[way]
        device_us, host_us = self.clock.sample_us(work.launch, launches)
        return device_us / work.ops, host_us / work.ops

    def drop(self) -> None:
        """Give up all that was built."""
        for work in self._works.values():
            work.close()
        self._works.clear()
        gc.collect()
        self.clock.wait()

    def close(self) -> None:
        """Leave the group. Graphs are given up before: NCCL waits for those that were recorded with a communicator."""
        self.drop()


class OfTilekit(Member):
    """A group of tilekit's. All is submitted to one stream of the first device's, which is not the group's own."""

    def __init__(self, group: tk.Group) -> None:
        packages = ("nccl4py", "nvidia-nccl-cu13", "nvidia-nccl-cu12") if group.devices[0].kind == "cuda" else ()
        super().__init__(group.ranks, {name: version for name in packages if (version := version_of(name)) is not None})
        self._group, self._joined = group, hasattr(group, "rank")
        self._stream = stream = group.devices[0].stream()
        if group.devices[0].kind == "cuda":
            start, end = stream.device.event(timing=True), stream.device.event(timing=True)
            self.clock = EventClock(
                lambda: start.record(stream), lambda: end.record(stream), self._wait, lambda: start.elapsed_ms(end)
            )
        else:
            self.clock = WallClock(self._wait)

    def _wait(self) -> None:
        self._stream.synchronize()

    def work(self, way: str, case: Case) -> Work:
        """See `Member`. The ways are "eager", "graph", and "kernel", which is `kernels.all_reduce` in a graph."""
        devices = self._group.devices
        xs = [api.zeros(case.inputs).on(device).sync() for device in devices]
        in_place = way != "kernel" and case.op in ("all_reduce", "broadcast")
        ys = xs if in_place else [api.zeros(case.outputs).on(device).sync() for device in devices]
        ops = self._kernel(case, xs, ys) if way == "kernel" else self._collective(case, xs, ys)

        def fill(rank: int, values: Array | None) -> None:
            x = xs[self.ranks.index(rank)]
            (x.fill(0.0) if values is None else api.memcpy(x, values)).sync()

        def work(launch: Callable[[], object], received: Callable[[], list[Any]], **options: Any) -> Work:
            def results() -> dict[int, Array]:
                tensors = _last(received()) if case.op == "send_recv" else ys
                of_ranks = [tensors] if isinstance(tensors, tk.Tensor) else tensors
                return {rank: tensor.to_host().sync() for rank, tensor in zip(self.ranks, of_ranks, strict=True)}

            return Work(launch=launch, fill=fill, results=results, in_place=in_place, **options)

        if way == "eager":
            futures: list[Any] = []

            def launch() -> None:
                futures[:] = [op.async_on(self._stream) for op in ops()]

            return work(launch, lambda: [future.result(GROUP_S) for future in futures], close=futures.clear)
        for op in ops():
            op.sync_on(self._stream)  # what happens only once happens now, at all members
        graph = tk.join_all([op for _ in range(GRAPH_OPS) for op in ops()]).graph_on(self._stream)
        return work(lambda: graph.run(self._stream), lambda: list(graph.output), ops=GRAPH_OPS, close=graph.close)

    def _collective(self, case: Case, xs: list[tk.Tensor], ys: list[tk.Tensor]) -> Callable[[], _Ops]:
        """Makes the ops of a case, which are run in that order."""
        group = self._group
        if case.op == "send_recv":
            return self._ring(xs, ys)
        collective = getattr(group, case.op)
        x, y = (xs[0], ys[0]) if self._joined else (xs, ys)
        return lambda: [collective(x, out=y)]

    def _ring(self, xs: list[tk.Tensor], ys: list[tk.Tensor]) -> Callable[[], _Ops]:
        """Each member's tensor goes to the next: a send and a receive at once."""
        group = self._group
        ring = [(rank, (rank + 1) % group.size) for rank in range(group.size)]
        x, y = (xs[0], ys[0]) if self._joined else (xs, ys)
        return lambda: [group.permute(x, ring, out=y)]

    def _kernel(self, case: Case, xs: list[tk.Tensor], ys: list[tk.Tensor]) -> Callable[[], _Ops]:
        if case.op != "all_reduce":
            raise NotImplementedError(f"there is no kernel for {case.op}")
        own: Any = kernels  # which may not have it yet
        workspace = own.AllReduceWorkspace(self._group, case.elements)
        return lambda: [own.all_reduce(xs[0], workspace, out=ys[0])]

    def close(self) -> None:
        """See `Member`."""
        super().close()
        for device in self._group.devices:
            device.synchronize()
        self._group.close()


def _last(results: list[Any]) -> Any:
    """The last that is something: to send gives nothing."""
    return next(result for result in reversed(results) if result is not None)


def one_process(labels: Sequence[str]) -> OfTilekit:
    """A group of all devices, in this process."""
    tk.set_default_device(labels[0])
    return OfTilekit(tk.Group(labels))


def process_each(rank: int, size: int, address: str, label: str) -> OfTilekit:
    """This process's member of a group of processes."""
    tk.set_default_device(label)
    return OfTilekit(tk.Group.join(rank, size, address=address, device=label, timeout_s=GROUP_S))
