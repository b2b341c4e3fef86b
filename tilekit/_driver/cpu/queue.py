"""What a CPU stream is made of: a queue, the worker thread that empties it, and the points that are recorded in it."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tilekit._driver import forking
from tilekit._driver.waiting import until
from tilekit.errors import DeviceError, TilekitError

if TYPE_CHECKING:
    from tilekit._driver.cpu.driver import CpuDriver
    from tilekit._driver.signal import SignalBoard

__all__ = [
    "CLEAR",
    "FAULT_STATUS",
    "FREE",
    "LOOK",
    "RECORD",
    "RUN",
    "SIGNAL",
    "STOP",
    "WAIT",
    "CpuStream",
    "Fault",
    "Item",
    "Point",
    "SteppedBy",
    "lock",
]

# What a stream can hold. An item is (kind, a, b).
RUN, RECORD, WAIT, LOOK, SIGNAL, FREE, CLEAR, STOP = range(8)
Item = tuple[int, Any, Any]

_LOOK_S = 2e-5  # between two looks at a word

FAULT_STATUS = 719  # what signals report: CUDA_ERROR_LAUNCH_FAILED, the nearest that CUDA has

# Guards the state of every stream and every point, of all devices, since streams wait for each other's events. It is held for
# a few instructions at a time, and no finalizer takes it.
lock = threading.Lock()


class Fault:
    """An exception in submitted work: tilekit's own as it is, any other as the cause of a DeviceError."""

    __slots__ = ("_traceback", "error")

    def __init__(self, error: BaseException) -> None:
        if isinstance(error, TilekitError):
            self.error = error
        else:
            self.error = DeviceError(f"work on a CPU stream failed: {type(error).__name__}: {error}")
            self.error.__cause__ = error
        self._traceback = self.error.__traceback__

    def again(self) -> TilekitError:
        """The error, to be raised to one more waiter, without the frames of those before."""
        return self.error.with_traceback(self._traceback)


class Point:
    """A moment of a stream that has been recorded: whether the stream has passed it, and the fault it then carried."""

    __slots__ = ("_bells", "_waiters", "at_s", "done", "fault", "stream")

    def __init__(self, stream: CpuStream) -> None:
        self.stream, self.done = stream, False
        self.fault: Fault | None = None
        self.at_s = 0.0
        self._waiters: list[threading.Lock] | None = []  # None once it has been passed
        self._bells: list[tuple[SignalBoard, int]] = []

    def complete(self, fault: Fault | None) -> None:
        """The stream has come here."""
        with lock:
            self.fault, self.at_s, self.done = fault, time.perf_counter(), True
            waiters, self._waiters = self._waiters, None
            bells, self._bells = self._bells, []
        for waiter in waiters or ():
            waiter.release()
        for board, slot in bells:
            board.ring(slot, self.status())

    def status(self) -> int:
        """What a signal for this moment reports, once the stream has come here."""
        return 0 if self.fault is None else FAULT_STATUS

    def signal(self, board: SignalBoard, slot: int) -> None:
        """Ring once the stream has come here; now if it has."""
        if self.stream.driver.stepper is not None:
            self.wait()  # whoever asks for a signal waits for it where no stepper sees that it waits
        with lock:
            if self._waiters is not None:
                self._bells.append((board, slot))
                return
        board.ring(slot, self.status())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the stream has come here; whether it has. Under a stepper, run work until it has."""
        if self.done:
            return True
        stepper = self.stream.driver.stepper
        if stepper is not None:
            stepper.run_until(self)
            return True
        self.stream.driver.check_process()  # nobody comes here any more in a forked one
        if sys.is_finalizing():
            self.stream.execute_until(self)
            return True
        waiter = threading.Lock()
        waiter.acquire()
        with lock:
            if self._waiters is None:
                return True
            self._waiters.append(waiter)
        return until(lambda seconds: waiter.acquire(timeout=seconds), timeout_s) or self.done

    def raise_fault(self) -> None:
        """Raise the fault that the stream carried here, and clear it for what is put into the stream from now on."""
        if self.fault is not None:
            self.stream.put((CLEAR, self.fault, None))
            raise self.fault.again()


class CpuStream:
    """An in-order queue. Its worker starts with the first item and ends when the stream is destroyed."""

    __slots__ = ("__weakref__", "deserted", "driver", "fault", "finished", "number", "priority", "queue", "queued", "worker")

    _numbers = itertools.count(1)
    _all: ClassVar[weakref.WeakSet[CpuStream]] = weakref.WeakSet()

    def __init__(self, driver: CpuDriver, priority: int) -> None:
        self.driver, self.priority, self.number = driver, priority, next(self._numbers)
        self.queue: SimpleQueue[Item] = SimpleQueue()
        self.queued = self.finished = 0
        self.fault: Fault | None = None
        self.worker: threading.Thread | None = None
        self.deserted = False  # the interpreter shuts down, and somebody has looked what the worker left
        self._all.add(self)

    @classmethod
    def after_fork(cls) -> None:
        """In the child no stream has a worker. Empty streams get new ones; a device that was at work is lost."""
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # another thread of the parent may have held it
        for stream in tuple(cls._all):
            if stream.idle():
                stream.queue, stream.worker = SimpleQueue(), None
            else:
                stream.driver.forked = True

    def put(self, item: Item) -> None:
        """Enqueue one item.

        Raises:
            DeviceError: there is no worker, and no thread to be had for one. Nothing was enqueued; a later item may be.
        """
        if self.driver.forked:
            self.driver.check_process()
        if sys.is_finalizing() and self.driver.stepper is None:  # whoever waits for it does it, see `execute_until`
            self._desert()
            self.queued += 1
            self.queue.put(item)
            return
        with lock:
            stepper = self.driver.stepper
            if stepper is None and self.worker is None:
                self._hire()
            self.queued += 1
            if stepper is not None:
                stepper.add(self, item)
            else:
                self.queue.put(item)

    def _hire(self) -> None:
        """Start the worker."""
        self.worker = threading.Thread(target=_work, args=(self,), name=f"tilekit-cpu-{self.number}", daemon=True)
        try:
            self.worker.start()
        except RuntimeError as error:
            self.worker = None
            raise DeviceError(
                f"{self!r} needs a thread to work in, and none can be started: {error}. The system limits how many there are "
                "(ulimit -u, pids.max of the container); once some have ended, the stream goes on"
            ) from error

    def execute_until(self, point: Point) -> None:
        """Do what is left in the stream, up to a point: for the one thread that is left while the interpreter shuts down.

        Raises:
            DeviceError: the worker was in the middle of something on the way there.
        """
        self._desert()
        while not point.done:
            try:
                item = self.queue.get_nowait()
            except Empty:
                raise _cut_off(self) from None
            self.execute(item)

    def _desert(self) -> None:
        """The interpreter shuts down: no other thread runs Python any more, nor lets go of a lock that it holds."""
        if self.deserted:
            return
        self.deserted = True
        lock._at_fork_reinit()  # type: ignore[attr-defined]
        if self.queued - self.finished > self.queue.qsize():  # the worker's last item has no end
            self.fault, self.finished = Fault(_cut_off(self)), self.finished + 1

    def stop(self) -> None:
        """Let the worker end once it has executed what is in the queue."""
        with lock:
            if self.worker is not None:
                self.queue.put((STOP, None, None))

    def execute(self, item: Item) -> None:
        """Do what an item says, in the thread of the caller. Its exceptions become the stream's fault."""
        kind, a, b = item
        if kind == RECORD:
            self.finished += 1  # first: whoever waits for the point must then find the stream idle
            a.complete(self.fault)
            return
        try:
            if kind == RUN:
                if self.fault is None:
                    a()
            elif kind == WAIT:
                a.wait()
                if self.fault is None:
                    self.fault = a.fault
            elif kind == LOOK:
                while a[0] < b and self.fault is None:
                    if sys.is_finalizing():
                        raise _cut_off(self)
                    time.sleep(_LOOK_S)
            elif kind == FREE:
                for point in b:
                    point.wait()
                self.driver.release(a)
            elif kind == CLEAR and self.fault is a:
                self.fault = None
        except KeyboardInterrupt:
            raise  # comes to the main thread alone, which steps: it is the user's, not the work's
        except BaseException as error:
            self.fault = Fault(error)
        finally:
            self.finished += 1
        if kind == SIGNAL:
            a.ring(b, 0 if self.fault is None else FAULT_STATUS)

    def record(self) -> Point:
        """A point behind all that is in the stream now."""
        point = Point(self)
        self.put((RECORD, point, None))
        return point

    def idle(self) -> bool:
        """Whether all that was put in has been executed."""
        return self.finished == self.queued

    def __repr__(self) -> str:
        return f"<CPU stream {self.number} of {self.driver.name}>"


def _cut_off(stream: CpuStream) -> DeviceError:
    return DeviceError(f"the interpreter shut down while {stream!r} was at work: what it did then has no end. Wait for it before")


class SteppedBy(Protocol):
    """What takes the place of the workers while a test steps the device (`tilekit._driver.cpu.stepper`)."""

    def add(self, stream: CpuStream, item: Item) -> None:
        """Take an item that was put into a stream."""
        ...

    def run_until(self, point: Point) -> None:
        """Execute items until the point has been passed."""
        ...


def _work(stream: CpuStream) -> None:
    """A worker: what is put into the stream, in order."""
    while True:
        item = stream.queue.get()
        if item[0] == STOP:
            return
        stream.execute(item)
        del item  # what it holds must not live until the next one comes


forking.in_child(CpuStream.after_fork)
