"""Streams and events: in-order queues of device work, and how one waits for another.

`tilekit._runtime.timeline` has the moments of a stream.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tilekit._driver.signal import dispatcher
from tilekit._runtime.timeline import Timeline, as_timeout
from tilekit.errors import TilekitError

if TYPE_CHECKING:
    from tilekit._driver.protocol import EventHandle, StreamHandle
    from tilekit._runtime.device import Device
    from tilekit._runtime.hazards import Use
    from tilekit._runtime.scheduling import SchedulingPolicy

__all__ = ["Event", "Stream", "address_of", "check_next", "next_stream"]

_DEFAULT = (0, 1)  # CUDA's, by which all threads mean one: none, CU_STREAM_LEGACY


class _ClosedHandle:
    """What a closed stream has for a handle: any driver that uses it raises the error that explains. Costs nothing before."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def __index__(self) -> int:
        raise ValueError(f"{self._stream}: no work can be submitted to it")

    def __getattr__(self, name: str) -> Any:
        return self.__index__()


class Stream(Timeline):
    """An in-order queue of work on a device. Made by `device.stream()`, or from somebody else's by `as_stream`.

    `with device.stream() as stream:` closes it at the end, which does not wait. Any thread may use it.

    Attributes:
        device: where it is.
        handle: the driver's. Any use of it is a ValueError once the stream is closed.
        address: a CUDA stream's CUstream; another number on a CPU device.
        priority: smaller is more urgent; 0 by default.
        pending: the serial that the next mark gets (from 1).
        completed: every serial up to this one is known to have passed.
        closed: whether `close` was called.
    """

    __slots__ = ("__weakref__", "_owned", "_source", "address", "priority")

    def __init__(
        self, device: Device, handle: StreamHandle, *, priority: int = 0, owned: bool = True, source: Any = None
    ) -> None:
        self._owned, self._source = owned, source
        super().__init__(device, handle, stable=owned or source is not None)
        self.priority = priority
        self.address = device.driver.stream_address(handle)

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
            self.note_unfinished(error)
            raise

    def add_callback(self, fn: Callable[[Stream, int, Any], object], arg: Any = None) -> None:
        """Call `fn(stream, status, arg)` once all work submitted so far is done, on a thread of tilekit's. Does not block.

        The status is 0, or after a fault the driver's number for it. `fn` may use the device. What it raises is logged.
        """
        if not callable(fn):
            raise TypeError(f"add_callback takes a function, not {type(fn).__name__}")
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
                self._mark()  # for those who wait for what is in it: there will be no later mark
            handle, self.closed = self.handle, True
            self.handle = _ClosedHandle(repr(self))
        self.device.forget(self)
        if self._owned:
            self.device.driver.stream_destroy(handle)

    def after_fork(self) -> None:
        """In a forked process: another thread of the parent may have held the lock (internal)."""
        self._lock = threading.Lock()

    @property
    def lasting(self) -> bool:
        """Whether the stream is there as long as this object is: not where it is but an address (internal)."""
        return self._stable

    def moment(self) -> Use:
        """That behind all work submitted so far. No place is recorded for it yet, but in a stream that may be gone by the time
        that somebody waits (internal)."""
        return self, self.pending if self._stable or self.address in _DEFAULT else self.mark()

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
        self.device.driver.event_record(self.handle, self.device.as_stream(stream, self.device).handle)
        return self

    def wait(self, stream: Stream) -> None:
        """Let the work submitted to `stream` from now on wait for the event. Does not block.

        Raises:
            ValueError: one of them is a GPU's, the other a CPU device's.
        """
        waiting = self.device.as_stream(stream)
        if waiting.device.kind != self.device.kind:
            raise ValueError(
                f"{waiting!r} cannot wait for an event of {self.device!r}: no device orders a CPU's work after a GPU's, or the "
                "other way round. Synchronize instead"
            )
        self.device.driver.stream_wait(waiting.handle, self.handle)

    def query(self) -> bool:
        """Whether the event has passed (or was never recorded)."""
        return self.device.driver.event_query(self.handle)

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Block until the event has passed, at most `timeout_s` seconds (None: for ever); whether it has."""
        return self.device.driver.event_synchronize(self.handle, as_timeout(timeout_s, "Event.synchronize"))

    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            DeviceError: one of them was made without `timing=True`, was not recorded, or has not passed.
        """
        if not isinstance(end, Event):
            raise TypeError(f"elapsed_ms takes the event at the end, not {type(end).__name__}")
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


def next_stream(policy: SchedulingPolicy) -> Stream:
    """The next stream of a scheduling policy, which may be a user's. Raises as `check_next`."""
    return check_next(policy.next_stream(), policy)


def check_next(stream: Any, policy: SchedulingPolicy) -> Stream:
    """What a policy gave for the next stream; TypeError if it is none."""
    if not isinstance(stream, Stream):
        raise TypeError(f"the policy {policy!r} gave {stream!r}: its next_stream() returns a stream, such as device.stream()")
    return stream


def address_of(obj: Any) -> int | None:
    """The CUstream behind a foreign stream, or None if it is no stream."""
    if isinstance(obj, bool):
        return None
    if isinstance(obj, int):
        return obj if obj >= 0 else None
    protocol = getattr(obj, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        try:
            version, address = pair
            number = int(address) if version == 0 else None
        except (TypeError, ValueError) as error:
            raise TypeError(f"{obj!r} has {pair!r} for __cuda_stream__, not a version and an address: {error}") from None
        if number is None:
            raise TypeError(f"{obj!r} speaks version {version} of __cuda_stream__; tilekit knows version 0")
        return number
    for name in ("cuda_stream", "ptr", "handle"):  # torch; cupy; numba and pycuda
        value = getattr(obj, name, None)
        if value is not None:
            value = getattr(value, "value", value)  # ctypes keeps the integer there, and None for 0
            if value is None:
                return 0
            # cuda.bindings' CUstream has __int__ alone; a float has both, and is no address.
            whole = hasattr(value, "__index__") or (hasattr(value, "__int__") and not hasattr(value, "__float__"))
            try:
                number = int(value) if whole else -1
            except (TypeError, ValueError):
                number = -1
            return number if number >= 0 else None
    return None
