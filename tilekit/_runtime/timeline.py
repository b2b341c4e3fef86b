"""The moments of a stream: marks that are recorded in it, who has waited for them, and what a fault left undone.

Every stream counts its marks. The next one gets the serial `pending`; work that is submitted now has passed once that mark, or
any later one, has. So (stream, serial) names a moment, at no cost: an event is recorded only at the end of a submission, or when
somebody else needs to wait and none is there yet. Whoever submits looks at `pending` afterwards, and needs no lock: it is raised
before an event is recorded, under the stream's lock.
"""

from __future__ import annotations

import itertools
import numbers
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tilekit._driver.signal import SignalBoard, dispatcher
from tilekit.errors import DeviceError, TilekitError

if TYPE_CHECKING:
    from tilekit._driver.protocol import EventHandle, StreamHandle
    from tilekit._runtime.device import Device

__all__ = ["MARKS_KEPT", "Labelled", "Mark", "Timeline", "as_timeout"]

# How many marks a stream keeps before it looks which have passed (the question takes the driver of an H200 1.8 us, whatever the
# answer); how many streams it remembers having waited for.
MARKS_KEPT = 128
_STREAMS_SEEN = 256
# How many pieces of work a stream remembers the names of, to say what a fault left undone.
_NAMES_KEPT = 1024


def as_timeout(timeout_s: float | None, what: str) -> float | None:
    """`timeout_s` as a lock takes it: None, which is for ever, for infinity and whatever a lock cannot count; 0 for less than 0.

    Args:
        timeout_s: as a user gave it.
        what: who takes it, for messages.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise TypeError(f"{what}: timeout_s is a number of seconds, or None to wait for ever, not {timeout_s!r}")
    if timeout_s != timeout_s:
        raise ValueError(f"{what}: timeout_s is NaN: give a number of seconds, or None to wait for ever")
    if timeout_s >= threading.TIMEOUT_MAX:  # 292 years
        return None
    return float(timeout_s) if timeout_s > 0 else 0.0


class Mark:
    """An event that was recorded in a stream, and its serial. While anybody holds the mark, its event is not recorded anew.

    The compiled part makes marks of its own, which have the same attributes.

    Attributes:
        serial: the stream's.
        event: the driver's.
        poll: asks the driver whether the event has passed, for up to so many seconds, without Python's lock: True or False; None
            if it cannot tell. Of Python's own marks there is none.
    """

    __slots__ = ("_recycle", "event", "serial")

    poll: Callable[[float], bool | None] | None = None

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


class Timeline:
    """What a stream knows of its moments (internal); `Stream` is one. Any thread may use it.

    Attributes:
        device: where the stream is.
        handle: the driver's. Any use of it is a ValueError once the stream is closed.
        number: the stream's, in this process.
        pending: the serial that the next mark gets (from 1).
        completed: every serial up to this one is known to have passed.
        closed: whether the stream was closed.
    """

    __slots__ = (
        "_create",
        "_events",
        "_failures",
        "_lock",
        "_lost",
        "_marks",
        "_names",
        "_record",
        "_recycle",
        "_seen",
        "_stable",
        "_trim_at",
        "_undone",
        "closed",
        "completed",
        "device",
        "handle",
        "number",
        "pending",
    )

    _numbers = itertools.count(1)

    def __init__(self, device: Device, handle: StreamHandle, *, stable: bool) -> None:
        driver = device.driver
        self.device, self.handle, self.closed = device, handle, False
        self.number = next(self._numbers)  # unlike an id, never given to another stream
        self.pending, self.completed = 1, 0
        self._lock = threading.Lock()
        self._marks: deque[Mark] = deque()  # of rising serials below `pending`; one is missing where an event was not recorded
        self._trim_at = MARKS_KEPT
        self._events, self._recycle = device.event_pool, device.recycle
        self._create, self._record = driver.event_create, driver.event_record
        # What this stream has waited for: the highest serial of each other stream, by its number. Not kept for a bare address:
        # behind that there may be another stream tomorrow, which has waited for nothing.
        self._seen: dict[int, int] = {}
        self._stable = stable
        self._failures: deque[tuple[int, TilekitError]] = deque(maxlen=64)  # serials that failed, and how
        self._lost: tuple[int, TilekitError] | None = None  # the first serial that failed for good, with the device
        self._undone: tuple[str, ...] | None = None  # what was unfinished then
        self._names: deque[tuple[int, str]] = deque(maxlen=_NAMES_KEPT)  # and the serial behind each

    def mark(self) -> int:
        """Record a mark behind all work submitted so far; its serial."""
        with self._lock:
            return self._mark()

    def _mark(self) -> int:
        if self.closed:
            raise ValueError(f"{self!r}: no work can be submitted to it")
        try:
            event = self._events.pop()
        except IndexError:
            event = self._create()
        serial, marks = self.pending, self._marks
        self.pending = serial + 1  # first: what other threads submit from now on may come behind the event
        self._record(event, self.handle)
        marks.append(Mark(serial, event, self._recycle))
        if marks[0].serial <= self.completed:
            self._forget_until(self.completed)
        elif len(marks) > self._trim_at:
            self._trim()
        return serial

    def mark_at(self, serial: int) -> Mark | None:
        """The first mark at or behind `serial`, recorded now if there is none yet; None if it is known to have passed."""
        if serial <= self.completed:
            return None
        try:
            last = self._marks[-1]
            if last.serial == serial:
                return last
        except IndexError:
            pass
        with self._lock:
            last_serial = self._marks[-1].serial if self._marks else self.completed
            if last_serial < serial and not self.closed:  # behind the last mark of a closed stream there is nothing
                serial = self._mark()
            return self._find(serial)

    def _find(self, serial: int) -> Mark | None:
        marks = self._marks
        if not marks or serial < marks[0].serial:
            return None
        return marks[min(serial - marks[0].serial, len(marks) - 1)]

    def _trim(self) -> None:
        """Forget the older half of the marks if it has passed. At most one query in 64 marks."""
        middle = self._marks[len(self._marks) // 2]
        try:
            passed = self.device.driver.event_query(middle.event)
        except TilekitError as error:
            passed = any(error is known for _, known in self._failures)  # else it is kept for those who wait: nobody was told
            if passed:
                self._failures.append((middle.serial, error))
        if passed:
            self._forget_until(middle.serial)
        self._trim_at = max(MARKS_KEPT, 2 * len(self._marks))

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
                self.note_unfinished(error)
                raise error
        if self._lost is not None and serial >= self._lost[0]:
            raise self._lost[1]
        return True

    def follows(self, other: Timeline, serial: int) -> bool:
        """Whether all that is submitted here from now on is known to run after that moment of `other`."""
        return other is self or serial <= other.completed or (self._stable and serial <= self._seen.get(other.number, 0))

    def wait_for(self, other: Timeline, serial: int) -> None:
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

    def is_complete(self, serial: int, poll_s: float = 0.0) -> bool:
        """Whether a moment has passed. Records a mark if there is none at or behind it yet. Does not block.

        Args:
            serial: of the moment.
            poll_s: how many seconds to go on asking, if that costs other threads nothing.

        Raises:
            DeviceError: it has passed, with a fault.
        """
        mark = self.mark_at(serial)
        if mark is None:
            return self._check(serial)
        passed = None if mark.poll is None else mark.poll(poll_s)
        if passed is None:
            try:
                passed = self.device.driver.event_query(mark.event)
            except TilekitError:
                return self._wait(mark, None)  # raises it in the way that clears it
        if not passed:
            return False
        if mark.serial > self.completed:
            self.completed = mark.serial
        return not self._failures or self._check(mark.serial)

    def passed(self, serial: int) -> bool:
        """As `is_complete`, but a fault is nothing but one way to have passed, and stays to be raised to others."""
        mark = self.mark_at(serial)
        if mark is None:
            return True
        passed = None if mark.poll is None else mark.poll(0.0)
        try:
            if passed is None:
                passed = self.device.driver.event_query(mark.event)
        except TilekitError:
            return True
        if passed and mark.serial > self.completed:
            self.completed = mark.serial
        return passed

    def wait(self, serial: int, timeout_s: float | None = None) -> bool:
        """Block until a moment has passed, at most `timeout_s` seconds; whether it has.

        Raises:
            DeviceError: it has passed, with a fault.
        """
        mark = self.mark_at(serial)
        return self._check(serial) if mark is None else self._wait(mark, timeout_s)

    def _wait(self, mark: Mark, timeout_s: float | None) -> bool:
        try:
            if not self.device.driver.event_synchronize(mark.event, timeout_s, mark.poll):
                return False
        except TilekitError as error:
            self.note_unfinished(error)
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
        return not self._failures or self._check(mark.serial)

    def fail(self, serial: int, error: TilekitError) -> None:
        """What was submitted between a moment and now has failed: for who knows of it otherwise than by the driver. Those who
        wait for it are told once the driver says that it has passed.
        """
        with self._lock:
            self._failures.extend((at, error) for at in range(serial, self.pending + 1))

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
            self.note_unfinished(error)
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

    def note_unfinished(self, error: TilekitError) -> None:
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
