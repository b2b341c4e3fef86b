"""The CPU device: NumPy buffers, and one in-order queue and worker thread a stream.

It is a device, not a shortcut: work is asynchronous, streams overlap, events and faults behave as CUDA's do, so that an
ordering bug shows here as it would on a GPU. `tilekit._driver.cpu.stepper` makes the interleaving deterministic for tests.

A fault is an exception in submitted work. It stops its stream: what is queued behind it is skipped, events recorded behind it
carry it, and streams that wait for such an event catch it. It is raised to whoever synchronizes, which clears it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilekit._driver import forking
from tilekit._driver.cpu.queue import FREE, LOOK, RUN, SIGNAL, WAIT, CpuStream, Point, SteppedBy, lock
from tilekit._driver.cpu.stepper import Stepper as Stepper
from tilekit._driver.ledger import Ledger, has_no_more
from tilekit._driver.nodes import Node
from tilekit._driver.pinned import PlainPool
from tilekit._driver.protocol import Allocator, Lent, Memory
from tilekit._driver.shadow import Shadow
from tilekit._driver.signal import SignalBoard
from tilekit._driver.tensormaps import TensorMap
from tilekit.errors import DeviceError, OutOfMemoryError, TilekitError

if TYPE_CHECKING:
    from tilekit._driver.windows import Exchange, HostWindow

__all__ = ["CpuDriver", "CpuEvent", "CpuStream", "Stepper", "discover"]

_ALIGNMENT = 64
_WAIT_IDLE_S = 10.0  # how long an allocation that finds no memory waits for what may free some
_POISON = 0xDD  # what a stepper puts into memory that nobody has written yet, or that is freed


class CpuEvent:
    """An event; the point is where it was recorded last."""

    __slots__ = ("point", "timing")

    def __init__(self, timing: bool) -> None:
        self.timing = timing
        self.point: Point | None = None


class CpuDriver:
    """One CPU device (`tilekit._driver.protocol.Driver`).

    Attributes:
        ledger: what is allocated and not freed yet, and how much may be.
        allocator: where memory comes from, if not from NumPy.
        pinned: memory for users' arrays, as a GPU has it.
        stepper: what runs the work instead of the workers, or None.
        forked: whether this process was forked from one where the device was at work.
    """

    kind: Literal["cuda", "cpu"] = "cpu"
    compute_capability: tuple[int, int] | None = None
    target = "cpu"
    l2_bytes = 0  # nothing of the device's, but of cores
    multiprocessors = 4  # what persistent kernels take for it, however many cores there are
    staging = None
    keeps_free_lists = False  # allocating costs no more than looking for one
    forked = False

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.name = f"CPU device {ordinal} ({os.cpu_count() or 1} cores)"
        self.ledger, self.pinned = Ledger(), PlainPool()
        self.allocator: Allocator | None = None
        self.stepper: SteppedBy | None = None
        self._streams: list[CpuStream] = []

    def check_process(self) -> None:
        """DeviceUnavailableError if the device was lost when this process was forked."""
        if self.forked:
            raise forking.lost(f"cpu:{self.ordinal}")

    def clocks_mhz(self) -> tuple[int, int] | None:
        return None

    def memory_info(self) -> tuple[int, int]:
        try:
            page = os.sysconf("SC_PAGE_SIZE")
            return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):  # not a system that tells
            return 0, 0

    @property
    def allocated_bytes(self) -> int:
        """How much memory is allocated and not freed yet."""
        return self.ledger.used

    def reserved_bytes(self) -> int:
        return self.ledger.used  # what is freed goes back at once

    def trim(self) -> None:
        pass

    def wait_idle(self) -> None:
        with lock:
            streams = list(self._streams)
        # Not for ever: a stream may wait for whoever it is that allocates.
        end_s = time.monotonic() + _WAIT_IDLE_S
        for point in [stream.record() for stream in streams if not stream.idle()]:
            try:
                point.wait(end_s - time.monotonic())
            except TilekitError:  # a stepper that cannot go on
                return

    def failure(self, code: int, doing: str) -> DeviceError:
        raise TypeError("no native code works on a CPU device")

    @property
    def native(self) -> None:
        return None

    @property
    def native_work(self) -> None:
        return None

    @property
    def context(self) -> CpuDriver:
        return self

    def synchronize(self) -> None:
        with lock:
            streams = list(self._streams)
        points = [stream.record() for stream in streams if not stream.idle() or stream.fault is not None]
        for point in points:
            point.wait()
        for point in points:
            point.raise_fault()

    def priority_range(self) -> tuple[int, int]:
        return 0, -1

    # streams
    def stream_create(self, priority: int) -> CpuStream:
        stream = CpuStream(self, priority)
        with lock:
            self._streams.append(stream)
        return stream

    def stream_destroy(self, stream: CpuStream) -> None:
        with lock:
            if stream in self._streams:
                self._streams.remove(stream)
        stream.stop()

    def stream_synchronize(self, stream: CpuStream) -> None:
        if stream.idle() and stream.fault is None:
            return
        point = stream.record()
        point.wait()
        point.raise_fault()

    def stream_query(self, stream: CpuStream) -> bool:
        if not stream.idle():
            return False
        if stream.fault is not None:
            raise stream.fault.again()
        return True

    def stream_wait(self, stream: CpuStream, event: CpuEvent) -> None:
        point = event.point
        if point is not None and point.stream is not stream and not (point.done and point.fault is None):
            stream.put((WAIT, point, None))

    def stream_address(self, stream: CpuStream) -> int:
        return stream.number

    def stream_adopt(self, address: int) -> CpuStream:
        raise TypeError(f"{self.name} runs tilekit's own streams only; there is no foreign stream {address} to adopt")

    def stream_signal(self, stream: CpuStream, board: SignalBoard, slot: int) -> None:
        stream.put((SIGNAL, board, slot))
        if self.stepper is not None:
            stream.record().wait()  # whoever asks for a signal waits for it where no stepper sees that it waits

    def signals_ready(self) -> bool:
        return True

    def make_signals_ready(self) -> None:
        pass

    # events
    def event_create(self, timing: bool = False) -> CpuEvent:
        return CpuEvent(timing)

    def event_destroy(self, event: CpuEvent) -> None:
        event.point = None

    def event_record(self, event: CpuEvent, stream: CpuStream) -> None:
        event.point = stream.record()

    def event_record_all(self, event: CpuEvent) -> None:
        raise TypeError(f"{self.name} has no work but tilekit's own, which is in its streams")

    def event_query(self, event: CpuEvent) -> bool:
        point = event.point
        if point is None:
            return True
        if point.done and point.fault is not None:
            raise point.fault.again()
        return point.done

    def event_synchronize(self, event: CpuEvent, timeout_s: float | None = None, poll: Any = None) -> bool:
        point = event.point
        if point is None:
            return True
        if not point.wait(timeout_s):
            return False
        point.raise_fault()
        return True

    def event_elapsed_ms(self, start: CpuEvent, end: CpuEvent) -> float:
        if not (start.timing and end.timing) or start.point is None or end.point is None:
            raise DeviceError("elapsed_ms needs two recorded events, made with timing=True", code="CUDA_ERROR_INVALID_HANDLE")
        if not (start.point.done and end.point.done):
            raise DeviceError("elapsed_ms: the events have not both passed; synchronize first", code="CUDA_ERROR_NOT_READY")
        return (end.point.at_s - start.point.at_s) * 1e3

    def event_signal(self, event: CpuEvent, board: SignalBoard, slot: int, line: tuple[int, int]) -> None:
        if event.point is None:
            board.ring(slot, 0)
        else:
            event.point.signal(board, slot)

    # memory
    def allocate(self, nbytes: int, stream: CpuStream) -> Memory:
        if not self.ledger.take(nbytes):
            raise self.exhausted(nbytes, limited=True)
        try:
            if self.allocator is not None:
                return self._lent(self.allocator, nbytes, stream)
            raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except BaseException as error:
            self.ledger.cancel(nbytes)
            if not has_no_more(error):
                raise
            raise self.exhausted(nbytes) from error
        skip = -raw.__array_interface__["data"][0] % _ALIGNMENT
        buffer = raw[skip : skip + nbytes]
        if self.stepper is not None:
            buffer[:] = _POISON
        return Memory(buffer.__array_interface__["data"][0], nbytes, buffer, Shadow(nbytes))

    def exhausted(self, nbytes: int, *, limited: bool = False) -> OutOfMemoryError:
        return self.ledger.exhausted(self.name, nbytes, self.memory_info(), self.reserved_bytes(), limited=limited)

    def _lent(self, lender: Allocator, nbytes: int, stream: CpuStream) -> Memory:
        address = int(lender.allocate(nbytes, stream.number))
        buffer = np.ndarray(nbytes, np.uint8, memoryview((ctypes.c_uint8 * nbytes).from_address(address)))
        return Lent(address, nbytes, lender, stream.number, buffer)

    def free(self, memory: Memory, stream: CpuStream, after: Sequence[CpuEvent] = ()) -> None:
        stream.put((FREE, memory, [event.point for event in after if event.point is not None]))

    def release(self, memory: Memory) -> None:
        """The stream that frees `memory` has come to that: it is gone now. Under a stepper, late users shall see that it is."""
        if self.stepper is not None and memory.raw is not None:
            memory.raw[:] = _POISON
        memory.raw = None
        self.ledger.give(memory.nbytes)
        if isinstance(memory, Lent):
            memory.lender.free(memory.address, memory.nbytes, memory.stream)

    def extent(self, address: int) -> tuple[int, int, int] | None:
        return None

    def window(
        self, members: Sequence[Any], ranks: Sequence[int], size: int, nbytes: int, exchange: Exchange | None
    ) -> HostWindow:
        from tilekit._driver.windows import HostWindow  # importing it takes some milliseconds

        try:
            return HostWindow(ranks[0], size, nbytes, exchange)
        except MemoryError as error:
            raise self.exhausted(nbytes) from error

    def copy_from_host(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: CpuStream) -> None:
        target = _bytes(memory, offset, source.nbytes)
        flat = source.reshape(-1).view(np.uint8)

        def work() -> None:
            np.copyto(target, flat)
            if memory.shadow is not None:
                memory.shadow.write(offset, flat.nbytes)

        self.submit(stream, work)

    def copy_to_host(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: CpuStream) -> None:
        source = _bytes(memory, offset, target.nbytes)
        if not target.flags.c_contiguous:
            raise ValueError("copy_to_host needs a C-contiguous target")
        flat = target.reshape(-1).view(np.uint8)

        def work() -> None:
            if memory.shadow is not None:
                memory.shadow.check(offset, flat.nbytes, "to_host", target)
            np.copyto(flat, source)

        self.submit(stream, work)

    def copy(
        self, target: Memory, target_offset: int, source: Memory, source_offset: int, nbytes: int, stream: CpuStream
    ) -> None:
        to, start = _bytes(target, target_offset, nbytes), _bytes(source, source_offset, nbytes)

        def work() -> None:
            if source.shadow is not None:
                source.shadow.check(source_offset, nbytes, "a copy on the device")
            np.copyto(to, start)
            if target.shadow is not None:
                target.shadow.write(target_offset, nbytes)

        self.submit(stream, work)

    def copy_from_peer(
        self, target: Memory, target_offset: int, peer: Any, source: Memory, source_offset: int, nbytes: int, stream: CpuStream
    ) -> None:
        self.copy(target, target_offset, source, source_offset, nbytes, stream)  # all CPU devices share the host's memory

    def open_way(self, peer: Any) -> None:
        pass

    def fill(self, memory: Memory, offset: int, count: int, pattern: bytes, stream: CpuStream) -> None:
        target = _bytes(memory, offset, count * len(pattern)).reshape(count, len(pattern))
        row = np.frombuffer(pattern, np.uint8)

        def work() -> None:
            np.copyto(target, row)
            if memory.shadow is not None:
                memory.shadow.write(offset, target.nbytes)

        self.submit(stream, work)

    def wait_for_word(self, memory: Memory, offset: int, least: int, stream: CpuStream) -> None:
        stream.put((LOOK, _bytes(memory, offset, 8).view(np.int64), least))

    # code
    def load(self, image: bytes, entry: str, shared_bytes: int = 0, starts_early: bool = False) -> Any:
        raise TypeError(f"{self.name} has no compiled kernels: it runs their Python functions")

    def watch(self, function: Any, sites: Sequence[Any]) -> None:
        raise TypeError(f"{self.name} has no compiled kernels: the Python functions that it runs always check")

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: CpuStream,
        params: int,
    ) -> None:
        raise TypeError(f"{self.name} has no compiled kernels to launch: submit() their Python functions")

    def tensor_map(self, known: TensorMap, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        raise TypeError(f"{self.name} has no compiled kernels, which take tensor maps")

    # recorded work
    def graph_create(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(nodes)

    def graph_change(self, graph: Any, nodes: Sequence[Node], changed: Sequence[int], template: bool = False) -> None:
        pass  # the graph is its nodes

    def graph_launch(self, graph: tuple[Node, ...], stream: CpuStream) -> None:
        for node in graph:
            node.enqueue(self, stream)

    def graph_destroy(self, graph: tuple[Node, ...]) -> None:
        pass

    def capture_begin(self) -> Any:
        raise TypeError(f"{self.name} runs tilekit's own work only: there is none of other libraries' to record")

    def capture_end(self, stream: Any) -> None:
        pass

    def submit(self, stream: CpuStream, work: Callable[[], None], keep: Sequence[Any] = ()) -> None:
        stream.put((RUN, work, keep))


def no_bytes() -> np.ndarray[Any, Any]:
    """The buffer of memory of no bytes."""
    return np.empty(0, np.uint8)


def recycle(pool: list[CpuEvent], event: CpuEvent) -> None:
    """Put an event back that nobody waits for. It forgets where it was recorded: a fault there has the frames of its waiters."""
    event.point = None
    pool.append(event)


def discover(count: int) -> list[CpuDriver]:
    """The CPU devices: `count` of them, which differ in nothing but their number."""
    return [CpuDriver(ordinal) for ordinal in range(count)]


def _bytes(memory: Memory, offset: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if memory.raw is None:
        raise ValueError("this memory is not the CPU device's, or has been freed")
    if not 0 <= offset <= offset + nbytes <= memory.nbytes:
        raise ValueError(f"bytes {offset} to {offset + nbytes} reach out of an allocation of {memory.nbytes}")
    return memory.raw[offset : offset + nbytes]
