"""`DeviceFuture`: a run of an op that somebody else may wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, Literal, TypeVar

from tilekit.ops.base import DeviceOp
from tilekit.ops.execution import Moment, Submission, moments, unwrap
from tilekit.stream import Stream

__all__ = ["DeviceFuture"]

T = TypeVar("T")


class DeviceFuture(Generic[T]):
    """The result of an op that was submitted, or will be.

    It is `idle` until the work is submitted, `executing` while the device works, then `complete`, with a result or an error.
    Made by `async_on`, `schedule` and `await`. Dropping it lets the work finish.
    """

    def __init__(self, op: DeviceOp[T], stream: Stream) -> None:
        op.consumed()
        self.op, self.stream = op, stream
        self._submission: Submission | None = None
        self._error: BaseException | None = None
        self._submitted = False  # everything is: `_final` is known, or `_error` is
        self._rest: threading.Event | None = None  # set when `_submitted` is, where callbacks submit the rest
        self._final: list[Moment] = []

    @property
    def state(self) -> Literal["idle", "executing", "complete"]:
        """Where it stands."""
        if self._submission is None and self._error is None:
            return "idle"
        return "complete" if self.done() else "executing"

    def submit(self) -> None:
        """Submit the work, once, without waiting. Where a host value splits the chain, the rest follows from a callback."""
        self._begin()
        self._pump()
        if self._error is not None:
            raise self._error

    def _begin(self) -> Submission:
        if self._submission is not None or self._error is not None:
            raise ValueError(f"{self!r} has been submitted already")
        try:
            self._submission = Submission(self.op, self.stream)
        except BaseException as error:
            self._fail(error)
            raise
        return self._submission

    def _advance(self) -> bool:
        """One stretch of submission; True if it was the last."""
        assert self._submission is not None
        if not self._submission.advance():
            return False
        self._final = [self._submission.moment, *moments(self._submission.value)]
        self._finish()
        return True

    def _finish(self) -> None:
        self._submitted = True
        if self._rest is not None:
            self._rest.set()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def _pump(self, *_: Any) -> None:
        """Go on until the device must catch up, then let it call back."""
        assert self._submission is not None
        try:
            while not self._advance():
                behind = [(stream, serial) for stream, serial in self._submission.waits if not stream.is_complete(serial)]
                if behind:
                    self._rest = self._rest or threading.Event()
                    behind[0][0].add_callback(self._pump)
                    return
        except BaseException as error:
            self._fail(error)

    def done(self) -> bool:
        """Whether the device has finished, or the op has failed. Never blocks."""
        if not self._submitted:
            return False
        if self._error is None:
            try:
                return all(stream.is_complete(serial) for stream, serial in self._final)
            except Exception as error:
                self._fail(error)
        return True

    def result(self, timeout_s: float | None = None) -> T:
        """Block until the device has finished, and return the result.

        Args:
            timeout_s: how long to wait at most, in seconds.

        Raises:
            TimeoutError: the device has not finished in time; the work goes on.
            ValueError: nothing was submitted yet.
            Whatever the op failed with.
        """
        if self.state == "idle":
            raise ValueError(f"{self!r} is idle: submit() it, or await it")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        finished = self._submitted or self._rest is None or self._rest.wait(timeout_s)
        if self._error is None:
            for stream, serial in self._final:
                left = None if end is None else max(0.0, end - time.monotonic())
                try:
                    finished = finished and stream.wait(serial, left)
                except Exception as error:
                    self.op.annotate(error)
                    self._fail(error)
                    raise
        if not finished:
            raise TimeoutError(f"{self.op!r} has not finished within {timeout_s:g} s")
        return self._outcome()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Block until the device has finished; the error that `result` would raise, or None."""
        try:
            self.result(timeout_s)
        except TimeoutError:
            raise
        except Exception as error:
            return error
        return None

    def _outcome(self) -> T:
        if self._error is not None:
            raise self._error
        assert self._submission is not None
        result: T = unwrap(self._submission.value)
        return result

    def add_done_callback(self, function: Callable[[DeviceFuture[T]], None]) -> None:
        """Call `function(self)` once it is done: now if it is, else on tilekit's callback thread."""
        if self.done():
            function(self)
            return

        def again(*_: Any) -> None:
            self.add_done_callback(function)

        behind = [stream for stream, serial in self._final if not stream.is_complete(serial)] or [self.stream]
        behind[0].add_callback(again)

    def __await__(self) -> Generator[Any, None, T]:
        from tilekit.ops.completion import reached

        if self.state == "idle":
            submission = self._begin()
            try:
                while not self._advance():
                    yield from reached(submission.waits).__await__()
            except BaseException as error:
                self._fail(error)
                raise
        if self._error is None:
            try:
                while not self._submitted:  # its callbacks submit the rest from another thread
                    yield from reached([(self.stream, self.stream.mark())]).__await__()
                yield from reached(self._final).__await__()
            except Exception as error:
                self.op.annotate(error)
                self._fail(error)
                raise
        return self._outcome()

    def __repr__(self) -> str:
        submitted = self._submission is not None or self._error is not None
        return f"<DeviceFuture of {self.op!r}, {'submitted' if submitted else 'idle'}>"
