"""Streams and events of a GPU."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from tilekit._driver.cuda.context import CudaContext, this_thread
from tilekit._driver.cuda.errors import FAULTS, NOT_READY, check, given_up
from tilekit._driver.signal import SignalBoard
from tilekit._driver.waiting import aside, gets_signals
from tilekit.errors import DeviceError
from tilekit.settings import load_settings

__all__ = ["CudaStreams"]

# How the main thread waits, which has to see signals: for so long it polls, a turn at a time, as the driver would; then it sleeps
# between looks, a small part of the time that it has waited already, so that it notices no later than that part.
_POLLED_S, _TURN_S = 10e-3, 5e-3
_PART, _SHORTEST_S, _LONGEST_S = 1 / 512, 20e-6, 300e-6


class _Watcher:
    """A private stream that waits for moments of another one: which, and the last moment (`Driver.event_signal`)."""

    __slots__ = ("handle", "line")

    def __init__(self, handle: Any, line: tuple[int, int]) -> None:
        self.handle, self.line = handle, line


class CudaStreams(CudaContext):
    """One GPU's streams, events, and the ways to wait for them."""

    def __init__(self, bindings: Any, ordinal: int, alone: bool) -> None:
        super().__init__(bindings, ordinal, alone)
        self._spin_s = load_settings().spin_us * 1e-6
        self._callback: Any = None
        self._query = bindings.cuEventQuery
        self._sleepers: list[tuple[Any, Any]] = []  # a stream and an event, for a thread that waits long
        self._wait_events: list[Any] = []  # events, for the main thread's waits for streams, and for everything
        self._watchers: list[_Watcher] = []
        self._watching = threading.Lock()

    def after_fork(self) -> None:
        super().after_fork()
        self._watching = threading.Lock()

    def priority_range(self) -> tuple[int, int]:
        self.activate()
        low, high = check(self._cu, self._cu.cuCtxGetStreamPriorityRange())
        return int(low), int(high)

    # streams
    def stream_create(self, priority: int) -> Any:
        self.activate()
        flags = int(self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return check(self._cu, self._cu.cuStreamCreateWithPriority(flags, priority))

    def stream_destroy(self, stream: Any) -> None:
        self.activate()
        given_up(self._cu, self._cu.cuStreamDestroy(stream))

    def stream_synchronize(self, stream: Any) -> None:
        self.activate()
        if gets_signals() and not self._passed(self._cu.cuStreamQuery(stream)):
            self._wait_behind(lambda event: self.event_record(event, stream))  # what is submitted meanwhile is not waited for
        else:
            check(self._cu, self._cu.cuStreamSynchronize(stream))

    def synchronize(self) -> None:
        self.activate()
        if gets_signals() and not self._wait_behind(self._record_all):
            aside(super().synchronize)
        else:  # also then: the pool frees what this has seen the end of, and kernels' prints come with it
            check(self._cu, self._cu.cuCtxSynchronize())

    def wait_idle(self) -> None:
        with contextlib.suppress(DeviceError):
            self.synchronize()

    def _wait_behind(self, record: Callable[[Any], object]) -> bool:
        """Wait for an event that `record` moves behind what is to be waited for; False, at once, if it returns False."""
        try:
            event = self._wait_events.pop()
        except IndexError:
            event = self.event_create()
        try:
            if record(event) is False:
                return False
            self._wait_in_turns(event)
        finally:
            self._wait_events.append(event)  # also while work is before it: it is the next wait's, which moves it
        return True

    def stream_query(self, stream: Any) -> bool:
        self.activate()
        return self._passed(self._cu.cuStreamQuery(stream))

    def stream_wait(self, stream: Any, event: Any) -> None:
        self.activate()
        check(self._cu, self._cu.cuStreamWaitEvent(stream, event, 0))

    def stream_address(self, stream: Any) -> int:
        return int(stream)

    def stream_adopt(self, address: int) -> Any:
        return self._cu.CUstream(address)

    def stream_signal(self, stream: Any, board: SignalBoard, slot: int) -> None:
        self.activate()
        if self._callback is None:
            self.make_signals_ready()
        # Not cuLaunchHostFunc: that is never called after a fault.
        result = self._cu.cuStreamAddCallback(stream, self._callback, board.slot_address(slot), 0)
        if int(result[0]) in FAULTS:
            board.ring(slot, int(result[0]))
        else:
            check(self._cu, result)

    def signals_ready(self) -> bool:
        return self._callback is not None

    def make_signals_ready(self) -> None:
        from tilekit._driver.cuda.callbacks import ring_address

        self._callback = self._cu.CUstreamCallback(ring_address())

    # events
    def event_create(self, timing: bool = False) -> Any:
        self.activate()
        return self._new_event(0 if timing else int(self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def _new_event(self, flags: int) -> int:
        return int(check(self._cu, self._cu.cuEventCreate(flags)))  # the compiled part asks each time for its address

    def event_destroy(self, event: Any) -> None:
        self.activate()
        given_up(self._cu, self._cu.cuEventDestroy(event))

    def event_record(self, event: Any, stream: Any) -> None:
        if this_thread.driver is not self:
            self.activate()
        result = self._cu.cuEventRecord(event, stream)
        if result[0]:
            check(self._cu, result)

    def event_record_all(self, event: Any) -> None:
        self.activate()
        if not self._record_all(event):
            self.synchronize()

    def _record_all(self, event: Any) -> bool:
        """Move the event behind all work now on the device; False before CUDA 12.8, and while somebody's graph is captured."""
        record = getattr(self._cu, "cuCtxRecordEvent", None)
        return record is not None and not record(self._context, event)[0]

    def event_query(self, event: Any) -> bool:
        if this_thread.driver is not self:
            self.activate()
        result = self._query(event)
        return True if not result[0] else self._passed(result)

    def event_synchronize(
        self, event: Any, timeout_s: float | None = None, poll: Callable[[float], bool | None] | None = None
    ) -> bool:
        if this_thread.driver is not self:
            self.activate()
        query, clock = self._query, time.perf_counter
        start = clock()
        spin_s = self._spin_s if timeout_s is None else min(self._spin_s, timeout_s)
        while True:
            result = query(event)
            if not result[0]:
                return True
            if result[0] != NOT_READY:
                check(self._cu, result)
            if clock() - start >= spin_s:
                break
        if timeout_s is None:
            if gets_signals():
                self._wait_in_turns(event, poll)
            elif self._spin_s:  # the driver polls on, without Python's lock: it notices at once
                check(self._cu, self._cu.cuEventSynchronize(event))
            else:
                self._sleep_until(event)
            return True
        pause_s = 20e-6  # the driver has no timed wait, and a signal would also wait for what comes behind the event
        while (left_s := start + timeout_s - clock()) > 0:
            time.sleep(min(pause_s, left_s))
            if self._passed(query(event)):
                return True
            pause_s = min(2 * pause_s, 1e-3)
        return False

    def _wait_in_turns(self, event: Any, poll: Callable[[float], bool | None] | None = None) -> None:
        """Block in the main thread: Python looks for signals after each turn."""
        query, clock = self._query, time.perf_counter
        start, polled_s = clock(), _POLLED_S if self._spin_s else 0.0
        waited_s = 0.0
        while True:
            passed = None if poll is None else poll(min(_TURN_S, max(0.0, polled_s - waited_s)))
            if passed is None:
                passed = self._passed(query(event))
            if passed:
                break
            waited_s = clock() - start
            if waited_s >= polled_s:
                time.sleep(min(max(_SHORTEST_S, waited_s * _PART), _LONGEST_S))
        check(self._cu, self._cu.cuEventSynchronize(event))  # at once: it brings what kernels have printed

    def _sleep_until(self, event: Any) -> None:
        """Block, and leave the processor to others meanwhile; on an H200 that notices 30 to 300 microseconds late.

        For that the driver wants an event of another kind, which passes a microsecond later. So it is not that kind that is
        recorded behind all work, but one behind the event, in a stream of the waiter's own.
        """
        cu, kinds = self._cu, self._cu.CUevent_flags
        try:
            stream, waker = self._sleepers.pop()
        except IndexError:
            flags = int(kinds.CU_EVENT_BLOCKING_SYNC) | int(kinds.CU_EVENT_DISABLE_TIMING)
            stream, waker = self._private_stream(), self._new_event(flags)
        try:
            check(cu, cu.cuStreamWaitEvent(stream, event, 0))
            check(cu, cu.cuEventRecord(waker, stream))
            check(cu, cu.cuEventSynchronize(waker))
        finally:
            self._sleepers.append((stream, waker))

    def event_elapsed_ms(self, start: Any, end: Any) -> float:
        self.activate()
        return float(check(self._cu, self._cu.cuEventElapsedTime(start, end)))

    def event_signal(self, event: Any, board: SignalBoard, slot: int, line: tuple[int, int]) -> None:
        self.activate()
        cu = self._cu
        # Not a callback in the stream of the event: that would come after all that is behind the event by now, and CUDA would
        # hold up what comes behind the callback until it has been called.
        with self._watching:
            watcher = self._watcher(line)
            check(cu, cu.cuStreamWaitEvent(watcher.handle, event, 0))
            self.stream_signal(watcher.handle, board, slot)

    def _watcher(self, line: tuple[int, int]) -> _Watcher:
        """One that has nothing to wait for, or waits for earlier moments of the same stream; a new one if there is none."""
        number, serial = line
        for watcher in self._watchers:
            if watcher.line[0] == number and watcher.line[1] <= serial:
                watcher.line = line
                return watcher
        for watcher in self._watchers:
            if not self._cu.cuStreamQuery(watcher.handle)[0]:
                watcher.line = line
                return watcher
        watcher = _Watcher(self._private_stream(), line)
        self._watchers.append(watcher)
        return watcher

    def _private_stream(self) -> Any:
        """A stream that does nothing but wait for others."""
        # Streams of one priority share a few hardware queues, where a waiting one holds up the others: not the compute streams.
        return self.stream_create(self.priority_range()[1])

    def _passed(self, result: tuple[Any, ...]) -> bool:
        if result[0] == NOT_READY:
            return False
        check(self._cu, result)
        return True
