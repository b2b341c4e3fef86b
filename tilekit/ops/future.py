"""`DeviceFuture`: a run of an op that somebody else may wait for."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tilekit._driver.signal import SignalBoard
from tilekit._driver.waiting import until
from tilekit._runtime.storage import BORROWED
from tilekit._runtime.stream import Stream
from tilekit._runtime.timeline import as_timeout
from tilekit.elsewhere import FUTURES, UnknownAttribute
from tilekit.errors import TilekitError
from tilekit.ops.borrowing import refuse_borrowed
from tilekit.ops.execution import NAP_S, TURNS, HostJob, Submission
from tilekit.ops.host_values import Moment
from tilekit.ops.reactor import reached, rung, submitted

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["DeviceFuture"]

T = TypeVar("T")

_completing = threading.Lock()  # see DeviceFuture.__getattr__
_log = logging.getLogger("tilekit")
_CALLBACKS = "tilekit-callbacks"  # the name of the `Dispatcher`'s thread


class DeviceFuture(Generic[T]):
    """The result of an op that was submitted, or will be.

    It is `idle` until the work is submitted, `executing` while the device works, then `complete`, with a result or an error.
    Made by `async_on`, `schedule`, `into_future` and `await`. Dropping it lets the work finish, and so does cancelling a task
    that waits for it; only what was not submitted yet never is.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_final",
        "_lock",
        "_serial",
        "_submission",
        "_submitted",
        "_turns",
        "_when_submitted",
        "op",
        "stream",
    )

    _serial: int

    def __init__(self, op: DeviceOp[T], stream: Stream) -> None:
        op.consumed()
        self.op, self.stream = op, stream
        self._submission: Submission | None = None
        self._error: BaseException | None = None
        self._submitted = False  # everything is: `_final` is known, or `_error` is
        self._final: tuple[Moment, ...] = ()
        self._lock = threading.Lock()
        self._turns = 0
        self._when_submitted: list[Callable[[], object]] | None = None

    @classmethod
    def of_submitted(cls, op: Any, stream: Stream, serial: int) -> DeviceFuture[Any]:
        """That of an op that was submitted to the end, and has its result as `arguments` (internal)."""
        self: DeviceFuture[Any] = object.__new__(cls)
        self.op, self.stream, self._serial = op, stream, serial
        return self

    def __getattr__(self, name: str) -> Any:
        """What a future lacks that was made with an op, its stream, and in `_serial` that behind it, by `of_submitted` or by the
        compiled part: most are asked for nothing else.
        """
        if name not in DeviceFuture.__slots__ or name == "_serial":
            raise UnknownAttribute(self, name, FUTURES)
        with _completing:
            try:
                return object.__getattribute__(self, name)  # another thread was faster
            except AttributeError:
                serial: int = self._serial
                op: Any = self.op
            self._error, self._final, self._turns, self._when_submitted = None, ((self.stream, serial),), 0, None
            self._lock, self._submission = threading.Lock(), Submission.ended(op, self.stream, serial, op.arguments)
            self._submitted = True
            return object.__getattribute__(self, name)

    if not TYPE_CHECKING:  # which then says itself that there is no such thing

        def __getitem__(self, index: Any) -> Any:
            raise TypeError("a future is not indexed: write future.result()[...], which waits and gives what the op gives")

    @property
    def state(self) -> Literal["idle", "executing", "complete"]:
        """Where it stands."""
        if self._submission is None and self._error is None:
            return "idle"
        return "complete" if self.done() else "executing"

    # submitting

    def submit(self) -> None:
        """Submit the work, once, without waiting. Where a host value splits the chain, the rest follows from a callback.

        Raises:
            ValueError: it was submitted before; the op uses borrowed memory (`tilekit.from_pointer`).
            Whatever the op fails with until the first such place.
        """
        if BORROWED and self._submission is None:
            refuse_borrowed(self.op)
        if not self._begin(detached=True):
            raise ValueError(f"{self!r} has been submitted already")
        self._pump()
        if self._submitted and self._error is not None:
            raise self._error

    def _begin(self, detached: bool = False) -> bool:
        """Take the right to submit; False if somebody has it."""
        with self._lock:
            if self._submission is not None or self._error is not None:
                return False
            try:
                self._submission = Submission(self.op, self.stream, detached)
                return True
            except BaseException as error:
                failure = error
        self._fail(failure)
        raise failure

    def _advance(self) -> bool:
        """One stretch of submission; True if it was the last."""
        assert self._submission is not None, "it has begun"
        if not self._submission.submit():
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        if self._error is None and self._submission is not None:
            self._final = ((self.stream, self._submission.serial), *self._submission.pending)
        with self._lock:
            self._submitted = True
            callbacks, self._when_submitted = self._when_submitted, None
        for callback in callbacks or ():
            try:
                callback()
            except Exception:
                _log.exception("a callback of %r failed", self)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if not self._submitted:
            self._finish()

    def _pump(self) -> None:
        """Go on until the device must catch up, then let it call back."""
        try:
            while not self._advance():
                if not self._caught_up():
                    return
        except BaseException as error:
            self._fail(error)

    def _resume(self, status: int) -> None:
        """On the callback thread: look whether it can go on."""
        try:
            ready = self._caught_up()
        except BaseException as error:
            self._fail(error)
            return
        if ready:
            self._pump()

    def _caught_up(self) -> bool:
        """Whether submission can go on. If not, `_resume` is called when it is time to look again."""
        submission = self._submission
        assert submission is not None, "it has begun"
        if not submission.waits:  # for another thread or task: look again when this one has had its turn
            self._turns += 1
            if self._turns > TURNS:
                time.sleep(NAP_S)  # on the callback thread, whose other calls can wait that long
            self.stream.add_callback(lambda stream, status, arg: self._pump())
            return False
        self._turns = 0
        try:
            if sys.is_finalizing():  # nobody calls back any more
                submission.block(submission.waits)
                return True
            for wait in submission.waits:
                for stream, serial in wait.after if isinstance(wait, HostJob) else (wait,):
                    if not stream.is_complete(serial) and stream.call_when(serial, self._resume):
                        return False
                if isinstance(wait, HostJob):
                    wait.run()
        except Exception as error:
            submission.failed(error)
        return True

    # looking and waiting

    def done(self) -> bool:
        """Whether the device has finished, or the op has failed. Never blocks."""
        if not self._submitted:
            return False
        if self._error is None:
            try:
                return all(stream.is_complete(serial) for stream, serial in self._final)
            except Exception as error:
                self._failed_on_device(error)
        return True

    def result(self, timeout_s: float | None = None) -> T:
        """Block until the device has finished, and return the result.

        Args:
            timeout_s: how long to wait at most, in seconds; None or infinity for as long as it takes, 0 or less not at all.

        Raises:
            TimeoutError: the device has not finished in time; the work goes on, and its result can still be had.
            ValueError: nothing was submitted yet; `timeout_s` is NaN. TypeError: it is no number.
            concurrent.futures.CancelledError: the task that submitted it was cancelled before all of it was submitted.
            RuntimeError: this is tilekit's callback thread, which has to submit the rest of the op first.
            Whatever the op failed with.
        """
        if self._submission is None and self._error is None:
            raise ValueError(f"{self!r} is idle: submit() it, or await it")
        limit_s = None if timeout_s is None else as_timeout(timeout_s, "result")
        end = None if limit_s is None else time.monotonic() + limit_s
        finished = self._submitted or self._wait_submitted(limit_s)
        if self._error is None and finished:
            for stream, serial in self._final:
                left = None if end is None else max(0.0, end - time.monotonic())
                try:
                    finished = finished and stream.wait(serial, left)
                except TilekitError as error:  # of the device, and so for good: any other is this call's
                    self._failed_on_device(error)
        if not finished:
            raise TimeoutError(f"{self.op!r} has not finished within {limit_s:g} s")
        return self._outcome()

    def _wait_submitted(self, timeout_s: float | None) -> bool:
        submission = self._submission
        if sys.is_finalizing() and submission is not None:  # what was left to the callback thread is this one's now
            self._resume(0)
            return self._submitted
        if submission is not None and submission.detached and threading.current_thread().name == _CALLBACKS:
            raise RuntimeError(
                f"{self!r}: its result cannot be waited for on tilekit's callback thread, which has to submit the rest of it (a "
                "host value splits it). In a host_fn or a done callback, run the op with .sync(), or add_done_callback(f) to the "
                "future"
            )
        event = threading.Event()
        return not self._tell_when_submitted(event.set) or until(event.wait, timeout_s)

    def _tell_when_submitted(self, tell: Callable[[], object]) -> bool:
        """Call `tell()` once everything is submitted; False, and no call, if it is."""
        with self._lock:
            if self._submitted:
                return False
            self._when_submitted = [*(self._when_submitted or ()), tell]
            return True

    def _failed_on_device(self, error: Exception) -> None:
        self.op.annotate(error)
        self._fail(error)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Block until the device has finished; the error that `result` would raise, or None."""
        limit_s = as_timeout(timeout_s, "exception")
        try:
            self.result(limit_s)
        except TimeoutError:
            raise
        except Exception as error:
            return error
        return None

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._submission is not None, "it has been submitted"
        result: T = self._submission.result()
        return result

    def add_done_callback(self, function: Callable[[DeviceFuture[T]], None]) -> None:
        """Call `function(self)` once it is done: now if it is, else on tilekit's callback thread, or the one that submits it.

        An exception in it is logged (logger `tilekit`, level ERROR), whoever calls it.
        """
        if not callable(function):
            raise TypeError(f"add_done_callback takes a function, not {type(function).__name__}")
        if not self._tell_when_submitted(lambda: self._call_when_done(function)):
            self._call_when_done(function)

    def _call_when_done(self, function: Callable[[DeviceFuture[T]], None]) -> None:
        for stream, serial in self._final if self._error is None else ():
            try:
                if not stream.is_complete(serial) and stream.call_when(serial, lambda _: self._call_when_done(function)):
                    return
            except Exception as error:
                self._failed_on_device(error)
                break
        try:
            function(self)
        except Exception:
            _log.exception("a callback of %r failed: %r", self, function)

    def __await__(self) -> Generator[Any, None, T]:
        if self._begin():
            yield from self._submit_in_turns()
        elif not self._submitted:  # somebody else submits it

            def ask(board: SignalBoard, slot: int) -> bool:
                return self._tell_when_submitted(lambda: board.ring(slot, 0))

            yield from rung(ask)
        if self._error is None:
            try:
                yield from reached(self._final)
            except Exception as error:
                self._failed_on_device(error)
        return self._outcome()

    def _submit_in_turns(self) -> Generator[Any, None, None]:
        """Submit everything; suspend the task where that must wait."""
        submission = self._submission
        assert submission is not None, "it has begun"
        try:
            if not submission.submit():
                yield from submitted(submission)
            self._finish()
        except Exception as error:
            self._fail(error)
        except BaseException:
            from concurrent.futures import CancelledError

            self._fail(CancelledError(f"{self.op!r}: the task that submitted it ended before all of it was submitted"))
            raise

    def __repr__(self) -> str:
        submitted = self._submission is not None or self._error is not None
        return f"<DeviceFuture of {self.op!r}, {'submitted' if submitted else 'idle'}>"
