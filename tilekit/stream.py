"""Streams and events: in-order queues of device work, and how one waits for another.

Every stream counts the places that are recorded in it. The next one gets the serial `pending`; work that is submitted now has
passed once that place, or any later one, has. So (stream, serial) names a moment, at no cost: an event is recorded only at the
end of a submission, or when somebody else needs to wait and none is there yet.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

from tilekit.driver.signal import SignalBoard, dispatcher
from tilekit.errors import DeviceError, TilekitError

if TYPE_CHECKING:
    from tilekit.device import Device
    from tilekit.driver.protocol import EventHandle, StreamHandle

__all__ = ["Event", "Mark", "Stream", "as_stream"]

# How many marks a stream keeps before it looks which have passed; how many streams it remembers having waited for.
_MARKS_KEPT = 32
_STREAMS_SEEN = 256
# How many pieces of work a stream remembers the names of, to say what a fault left undone.
_NAMES_KEPT = 1024


class Mark:
    """A recorded place in a stream. While anybody holds the mark, its event is not recorded anew."""

    __slots__ = ("_recycle", "event", "serial")

    def __init__(self, serial: int, event: EventHandle, recycle: Callable[[EventHandle], None]) -> None:
        self.serial, self.event, self._recycle = serial, event, recycle

    def __del__(self) -> None:
        self._recycle(self.event)  # an append to the device's pool: no driver is called while garbage is collected


class Labelled(Protocol):
    """What has a name for messages."""

    @property
    def label(self) -> str:
        """The name."""
        ...


class _ClosedHandle:
    """What a closed stream has for a handle: any driver that uses it raises the error that explains. Costs nothing before."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def __index__(self) -> int:
        raise ValueError(f"{self._stream}: no work can be submitted to it")

    def __getattr__(self, name: str) -> Any:
        return self.__index__()


class Stream:
    """An in-order queue of work on a device. Made by `device.stream()`, or from somebody else's by `as_stream`.

    `with device.stream() as stream:` closes it at the end, which does not wait. Any thread may use it.

    Attributes:
        device: where it is.
        handle: the driver's. Any use of it is a ValueError once the stream is closed.
        address: a CUDA stream's CUstream; another number on a CPU device.
        priority: smaller is more urgent; 0 by default.
        pending: the serial that the next recorded place gets (from 1).
        completed: every serial up to this one is known to have passed.
        closed: whether `close` was called.
    """

    __slots__ = (
        "__weakref__",
        "_create",
        "_events",
        "_failures",
        "_lock",
        "_lost",
        "_marks",
        "_names",
        "_owned",
        "_record",
        "_recycle",
        "_seen",
        "_source",
        "_stable",
        "_trim_at",
        "_undone",
        "address",
        "closed",
        "completed",
        "device",
        "handle",
        "number",
        "pending",
        "priority",
    )

    _numbers = itertools.count(1)

    def __init__(
        self, device: Device, handle: StreamHandle, *, priority: int = 0, owned: bool = True, source: Any = None
    ) -> None:
        driver = device.driver
        self._owned, self.closed, self._source = owned, False, source
        self.device, self.handle, self.priority = device, handle, priority
        self.address = driver.stream_address(handle)
        self.number = next(self._numbers)  # unlike an id, never given to another stream
        self.pending, self.completed = 1, 0
        self._lock = threading.Lock()
        self._marks: deque[Mark] = deque()  # of consecutive serials, up to pending - 1
        self._trim_at = _MARKS_KEPT
        self._events, self._recycle = device.event_pool, device.event_pool.append
        self._create, self._record = driver.event_create, driver.event_record
        # What this stream has waited for: the highest serial of each other stream, by its number. Not kept for a bare address:
        # behind that there may be another stream tomorrow, which has waited for nothing.
        self._seen: dict[int, int] = {}
        self._stable = owned or source is not None
        self._failures: deque[tuple[int, TilekitError]] = deque(maxlen=64)  # serials that failed, and how
        self._lost: tuple[int, TilekitError] | None = None  # the first serial that failed for good, with the device
        self._undone: tuple[str, ...] | None = None  # what was unfinished then
        self._names: deque[tuple[int, str]] = deque(maxlen=_NAMES_KEPT)  # and the serial behind each

    # moments
    def mark(self) -> int:
        """Record a place behind all work submitted so far; its serial."""
        with self._lock:
            return self._mark()

    def _mark(self) -> int:
        if self.closed:
            raise ValueError(f"{self!r}: no work can be submitted to it")
        try:
            event = self._events.pop()
        except IndexError:
            event = self._create()
        self._record(event, self.handle)
        serial, marks = self.pending, self._marks
        marks.append(Mark(serial, event, self._recycle))
        self.pending = serial + 1
        if marks[0].serial <= self.completed:
            self._forget_until(self.completed)
        elif len(marks) > self._trim_at:
            self._trim()
        return serial

    def mark_at(self, serial: int) -> Mark | None:
        """The first place at or behind `serial`, recorded now if there is none yet; None if it is known to have passed."""
        if serial <= self.completed:
            return None
        try:
            last = self._marks[-1]
            if last.serial == serial:
                return last
        except IndexError:
            pass
        with self._lock:
            if serial >= self.pending and not self.closed:  # behind the last mark of a closed stream there is nothing
                serial = self._mark()
            return self._find(serial)

    def _find(self, serial: int) -> Mark | None:
        marks = self._marks
        if not marks or serial < marks[0].serial:
            return None
        return marks[min(serial - marks[0].serial, len(marks) - 1)]

    def _trim(self) -> None:
        """Forget the older half of the marks if it has passed. At most one query in 16 marks."""
        middle = self._marks[len(self._marks) // 2]
        try:
            passed = self.device.driver.event_query(middle.event)
        except TilekitError as error:
            passed = any(error is known for _, known in self._failures)  # else it is kept for those who wait: nobody was told
            if passed:
                self._failures.append((middle.serial, error))
        if passed:
            self._forget_until(middle.serial)
        self._trim_at = max(_MARKS_KEPT, 2 * len(self._marks))

    def _forget_until(self, serial: int) -> None:
        """Everything up to `serial` has passed."""
        while self._marks and self._marks[0].serial <= serial:
            mark = self._marks.popleft()
            if self._failures and mark.serial < serial:
                try:
                    self.device.driver.event_query(mark.event)
                except TilekitError as error:  # it was cleared on behalf of others; who waits for this one must still learn
                    self._failures.append((mark.serial, error))
        self.completed = max(self.completed, serial)

    def _advance(self, serial: int) -> None:
        with self._lock:
            self._forget_until(serial)

    def _check(self, serial: int) -> bool:
        """True; but if a moment is remembered to have passed with a fault, that is raised."""
        for failed, error in tuple(self._failures):
            if failed == serial:
                self.explain(error)
                raise error
        if self._lost is not None and serial >= self._lost[0]:
            raise self._lost[1]
        return True

    def follows(self, other: Stream, serial: int) -> bool:
        """Whether all that is submitted here from now on is known to run after that moment of `other`."""
        return other is self or serial <= other.completed or (self._stable and serial <= self._seen.get(other.number, 0))

    def wait_for(self, other: Stream, serial: int) -> None:
        """Let the work submitted here from now on wait for a moment of `other`, and for nothing submitted there later.

        Costs nothing if that is known to be so already.

        Raises:
            ValueError: one of the streams is a CPU device's, the other a GPU's.
        """
        if other is self or serial <= other.completed or serial <= self._seen.get(other.number, 0):
            return
        if other.device.kind != self.device.kind:
            raise ValueError(
                f"{self!r} cannot wait for {other!r}: no device orders a CPU's work after a GPU's. Synchronize instead"
            )
        mark = other.mark_at(serial)
        if mark is None:
            return
        self.device.driver.stream_wait(self.handle, mark.event)
        if self._stable:
            if len(self._seen) >= _STREAMS_SEEN:
                self._seen = {}
            self._seen[other.number] = max(mark.serial, self._seen.get(other.number, 0))

    def is_complete(self, serial: int) -> bool:
        """Whether a moment has passed. Records a place if there is none at or behind it yet. Does not block.

        Raises:
            DeviceError: it has passed, with a fault.
        """
        mark = self.mark_at(serial)
        if mark is None:
            return self._check(serial)
        try:
            if not self.device.driver.event_query(mark.event):
                return False
        except TilekitError:
            return self._wait(mark, None)  # raises it in the way that clears it
        if mark.serial > self.completed:
            self.completed = mark.serial
        return True

    def passed(self, serial: int) -> bool:
        """As `is_complete`, but a fault is nothing but one way to have passed, and stays to be raised to others."""
        mark = self.mark_at(serial)
        try:
            return mark is None or self.device.driver.event_query(mark.event)
        except TilekitError:
            return True

    def wait(self, serial: int, timeout_s: float | None = None) -> bool:
        """Block until a moment has passed, at most `timeout_s` seconds; whether it has.

        Raises:
            DeviceError: it has passed, with a fault.
        """
        mark = self.mark_at(serial)
        return self._check(serial) if mark is None else self._wait(mark, timeout_s)

    def _wait(self, mark: Mark, timeout_s: float | None) -> bool:
        try:
            if not self.device.driver.event_synchronize(mark.event, timeout_s):
                return False
        except TilekitError as error:
            self.explain(error)
            with self._lock:
                if self._lost is None and isinstance(error, DeviceError) and error.lost:
                    self._lost = (min(mark.serial, self._marks[0].serial if self._marks else mark.serial), error)
                if not any(error is known and mark.serial == failed for failed, known in self._failures):
                    self._failures.append((mark.serial, error))
            # Somebody has been told. Work that comes later and waits for this moment runs: it must not fail for it again.
            self._advance(mark.serial)
            raise
        if mark.serial > self.completed:
            self.completed = mark.serial  # the marks up to it are forgotten when the next one is made
        return True

    # signals
    def signal(self, serial: int, board: SignalBoard, slot: int) -> bool:
        """Have `slot` of `board` filled once a moment has passed, whatever comes behind it; False if it is known to have.

        Does not block. The status may be a fault's: `is_complete` then tells.
        """
        mark = self.mark_at(serial)
        if mark is None:
            return False
        try:
            self.device.driver.event_signal(mark.event, board, slot, (self.number, mark.serial))
        except TilekitError as error:
            self.explain(error)
            raise
        return True

    def call_when(self, serial: int, function: Callable[[int], object]) -> bool:
        """Call `function(status)` on the callback thread once a moment has passed; False, and no call, if it is known to have."""
        calls = dispatcher()
        slot = calls.arm(function)
        try:
            if self.signal(serial, calls.board, slot):
                return True
        except BaseException:
            calls.disarm(slot)
            raise
        calls.disarm(slot)
        return False

    # what a fault leaves undone
    def submitted(self, name: str) -> None:
        """Remember the name of work that was just submitted."""
        self._names.append((self.pending, name))

    def end(self, op: Labelled) -> int:
        """A whole submission is over: mark its end, under the name of `op` if none was given for any part of it."""
        names = self._names
        with self._lock:
            if not names or names[-1][0] != self.pending:
                names.append((self.pending, op.label))
            return self._mark()

    def unfinished(self) -> tuple[str, ...]:
        """The names of the work that is not known to be done, oldest first. Of more than a thousand pieces the last ones."""
        passed = self.completed
        left: list[str] = []
        for serial, name in tuple(self._names):
            if serial <= passed:
                continue
            with self._lock:
                mark = self._find(serial)
            try:
                if not left and mark is not None and self.device.driver.event_query(mark.event):
                    passed = mark.serial
                    continue
            except TilekitError:  # it, or something before it, is what failed
                pass
            left.append(name)
        counts = [(name, len(list(same))) for name, same in itertools.groupby(left)]
        return tuple(name if count == 1 else f"{name} ({count} times)" for name, count in counts)

    def explain(self, error: TilekitError) -> None:
        """Note on a fault what it left undone here."""
        if not isinstance(error, DeviceError) or error.unfinished:
            return
        names = self._undone
        if names is None:
            names = self.unfinished()
            if error.lost:  # the first to be told: from here on nothing finishes, and marks are forgotten
                self._undone = names
        if names:
            error.unfinished = names
            note = f"not known to be finished on {self!r}, oldest first: {', '.join(names)}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    # what users call
    def synchronize(self) -> None:
        """Block until all work submitted so far is done.

        Raises:
            DeviceError: the device failed meanwhile.
        """
        self.device.collect()
        self.wait(self.pending - 1 if self.closed else self.mark())

    def query(self) -> bool:
        """Whether all work submitted so far is done. Does not block.

        Raises:
            DeviceError: the device failed meanwhile.
        """
        try:
            return self.device.driver.stream_query(self.handle)
        except TilekitError as error:
            self.explain(error)
            raise

    def add_callback(self, fn: Callable[[Stream, int, Any], object], arg: Any = None) -> None:
        """Call `fn(stream, status, arg)` once all work submitted so far is done, on a thread of tilekit's. Does not block.

        The status is 0, or after a fault the driver's number for it. `fn` may use the device. What it raises is logged.
        """
        calls = dispatcher()
        slot = calls.arm(lambda status: fn(self, status, arg))
        try:
            self.device.driver.stream_signal(self.handle, calls.board, slot)
        except BaseException:
            calls.disarm(slot)
            raise

    def close(self) -> None:
        """Give the stream up. What was submitted still runs, and can be waited for; more cannot be submitted.

        Somebody else's stream stays as it is; only this object ends.
        """
        with self._lock:
            if self.closed:
                return
            with contextlib.suppress(TilekitError):  # of a broken device, which tells everybody who waits for it
                self._mark()  # for those who wait for what is in it: there will be no later place
            handle, self.closed = self.handle, True
            self.handle = _ClosedHandle(repr(self))
        self.device.forget(self)
        if self._owned:
            self.device.driver.stream_destroy(handle)

    def after_fork(self) -> None:
        """In a forked process: another thread of the parent may have held the lock (internal)."""
        self._lock = threading.Lock()

    def keep(self, source: Any) -> None:
        """Keep alive what an adopted stream belongs to (internal)."""
        if not self._stable:
            self._source, self._stable = source, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which CUDA libraries take each other's streams: (version, CUstream).

        Raises:
            TypeError: this is a CPU device's.
        """
        if self.device.kind != "cuda":
            raise TypeError(f"{self!r} is no CUDA stream")
        return 0, self.device.driver.stream_address(self.handle)

    def __del__(self) -> None:
        if self._owned and not self.closed:
            # Destroyed by a later collect(), which no driver call here could be, once nobody has the stream any more.
            self.device.retired.append((weakref.ref(self), self.handle))

    def __repr__(self) -> str:
        return f"<tilekit.Stream {self.address:#x} on {self.device.label}{', closed' if self.closed else ''}>"


class Event:
    """A place in a stream that can be recorded, waited for, and timed. Made by `device.event()`.

    Attributes:
        device: where it is.
        timing: whether `elapsed_ms` works.
    """

    __slots__ = ("_handle", "device", "timing")

    def __init__(self, device: Device, timing: bool = False) -> None:
        self.device, self.timing = device, timing
        self._handle: EventHandle = device.driver.event_create(timing)

    @property
    def handle(self) -> EventHandle:
        """The driver's. ValueError once the event is closed."""
        if self._handle is None:
            raise ValueError("this event is closed")
        return self._handle

    def record(self, stream: Stream) -> Self:
        """Move the event behind all work now in `stream`. Does not block."""
        self.device.driver.event_record(self.handle, stream.handle)
        return self

    def wait(self, stream: Stream) -> None:
        """Let the work submitted to `stream` from now on wait for the event. Does not block."""
        self.device.driver.stream_wait(stream.handle, self.handle)

    def query(self) -> bool:
        """Whether the event has passed (or was never recorded)."""
        return self.device.driver.event_query(self.handle)

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Block until the event has passed, at most `timeout_s` seconds; whether it has."""
        return self.device.driver.event_synchronize(self.handle, timeout_s)

    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            DeviceError: one of them was made without `timing=True`, was not recorded, or has not passed.
        """
        return self.device.driver.event_elapsed_ms(self.handle, end.handle)

    def close(self) -> None:
        """Give the event up. May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.device.driver.event_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tilekit.Event on {self.device.label}{', closed' if self._handle is None else ''}>"


def as_stream(obj: Any, device: Device | None = None) -> Stream:
    """The stream that `obj` is, whoever made it.

    Args:
        obj: a tilekit Stream, a CUstream as an int (0 is the legacy default stream), or a stream of numba, torch, cupy, cuda.core
            or any other library that has `__cuda_stream__`. It is kept alive; an int must stay valid by itself.
        device: which device it is on, where the object does not say so; by default the current GPU.

    Returns:
        The same object for the same stream, as long as that is in use.

    Raises:
        TypeError: `obj` is no stream.
        ValueError: it is on another device than `device`, or closed.
    """
    if isinstance(obj, Stream):
        if obj.closed:
            raise ValueError(f"{obj!r} is closed: no work can be submitted to it")
        if device is not None and obj.device is not device:
            raise ValueError(f"{obj!r} is not on {device!r}")
        return obj
    address = _address_of(obj)
    if address is None:
        raise TypeError(
            f"{obj!r} is no stream. Accepted: tilekit streams (device.stream()), those of numba, torch, cupy and cuda.core, "
            "objects with __cuda_stream__, and the CUstream as an int"
        )
    if device is None:
        device = _cuda_device(obj)
    return device.adopt(address, None if isinstance(obj, int) else obj)


def _address_of(obj: Any) -> int | None:
    """The CUstream behind a foreign stream, or None if it is no stream."""
    if isinstance(obj, bool):
        return None
    if isinstance(obj, int):
        return obj if obj >= 0 else None
    protocol = getattr(obj, "__cuda_stream__", None)
    if protocol is not None:
        version, address = protocol() if callable(protocol) else protocol
        if version != 0:
            raise TypeError(f"{obj!r} speaks version {version} of __cuda_stream__; tilekit knows version 0")
        return int(address)
    for name in ("cuda_stream", "ptr", "handle"):  # torch; cupy; numba and pycuda
        value = getattr(obj, name, None)
        if value is not None:
            value = getattr(value, "value", value)  # ctypes keeps the integer there, and None for 0
            return 0 if value is None else int(value)
    return None


def _cuda_device(obj: Any) -> Device:
    from tilekit.device import Device, default_device

    for name in ("device_index", "device_id"):  # torch; cupy
        ordinal = getattr(obj, name, None)
        if isinstance(ordinal, int) and ordinal >= 0:
            return Device(ordinal)
    current = default_device()
    return current if current.kind == "cuda" else Device("cuda")
