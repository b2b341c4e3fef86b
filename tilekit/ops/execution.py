"""How an op runs: its steps are submitted to one stream, up to each point where the host must have a value first.

An op that runs is a generator. It enqueues device work as it goes, yields a list of what must have happened before it can go
on, and returns its result. Such a list holds moments (a stream and a serial of it) and jobs for the host (`HostJob`). Whoever
drives it decides how to wait: by blocking (`sync`), by suspending a task (`await`; jobs run in a worker thread), or not at all
until the device calls back (`async_on`; jobs run where that happens). An empty list means: another thread or task has to get
on first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit.errors import DeviceError
from tilekit.schedule import ExecutionContext
from tilekit.stream import Stream

if TYPE_CHECKING:
    from tilekit.ops.base import DeviceOp

__all__ = ["HostJob", "HostValue", "Moment", "Run", "Steps", "Submission", "Wait", "moments", "unwrap"]

Moment = tuple[Stream, int]


class HostJob:
    """Work of the host's that takes long or blocks, such as compiling a kernel. A step makes one, yields it, takes its result.

        job = HostJob(lambda: ...)
        yield [job]
        made = job.result()

    Args:
        work: what to do. Under `await` in a worker thread; it must keep alive what it uses, since it also goes on when the task
            is cancelled.
        blocking: what to do instead for a caller that blocks anyway.
        after: moments that others let pass first, lest `work` wait for them while it holds a thread.

    Attributes:
        done: whether it has been done.
    """

    __slots__ = ("_blocking", "_error", "_value", "_work", "after", "done")

    def __init__(
        self, work: Callable[[], Any], *, blocking: Callable[[], Any] | None = None, after: Sequence[Moment] = ()
    ) -> None:
        self._work: Callable[[], Any] | None = work
        self._blocking, self.after = blocking, after
        self._value: Any = None
        self._error: BaseException | None = None
        self.done = False

    def run(self, *, may_block: bool = False) -> None:
        """Do it, once, and keep what comes of it."""
        work = (self._blocking if may_block else None) or self._work
        if self._work is None or work is None:
            return
        self._work = self._blocking = None
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        self.done = True

    def result(self) -> Any:
        """What came of it. Does it now if nobody has."""
        self.run()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._value


Wait = Moment | HostJob
Steps = Generator[Any, Any, Any]  # yields a Sequence[Wait], or the Steps of a part whose result it is to be sent


class HostValue:
    """A value that the device is still writing to host memory, and the moment from which it can be read.

    Args:
        value: what it is then.
        stream: where the copy was just submitted.
        finish: called once the moment has passed, perhaps more than once, before anybody gets the value.
    """

    __slots__ = ("_finish", "_value", "moment")

    def __init__(self, value: Any, stream: Stream, finish: Callable[[], None] | None = None) -> None:
        self._value, self._finish = value, finish
        self.moment: Moment = (stream, stream.pending)

    def get(self) -> Any:
        """The value, once the moment has passed."""
        if self._finish is not None:
            self._finish()
        return self._value


def moments(value: Any) -> list[Moment]:
    """The moments that must pass before the host may look at `value`."""
    if type(value) is HostValue:
        return [value.moment]
    if type(value) in (tuple, list):
        return [moment for part in value for moment in moments(part)]
    return []


def unwrap(value: Any) -> Any:
    """`value` as users see it, once its moments have passed."""
    if type(value) is HostValue:
        return value.get()
    if type(value) in (tuple, list) and moments(value):
        return type(value)(unwrap(part) for part in value)
    return value


class _Local(threading.local):
    running: DeviceOp[Any] | None = None


_local = _Local()


def _refuse(op: DeviceOp[Any], running: DeviceOp[Any]) -> NoReturn:
    """One op at a time is submitted by a thread: work that a closure would start elsewhere could overtake this op's."""
    raise RuntimeError(
        f"{op!r} cannot run while {running!r} is being submitted by the same thread: closures given to then, map or "
        "with_context describe work, they do not wait for it. Return the op from the closure (then runs it next, on the same "
        "stream), or run it before"
    )


class Run:
    """Steps that are being run, and the steps of parts that they are in the middle of: a stack of generators."""

    __slots__ = ("_stack",)

    def __init__(self, steps: Steps) -> None:
        self._stack = [steps]

    def advance(self, failure: BaseException | None = None) -> Sequence[Wait]:
        """Run up to the next thing to wait for. After that has failed, `failure` is raised in the step that waits.

        Raises:
            StopIteration: that was all; its value is the result.
            Whatever the steps raise.
        """
        stack, result = self._stack, None
        while True:
            try:
                made = stack[-1].send(result) if failure is None else stack[-1].throw(failure)
            except StopIteration as stop:
                stack.pop()
                if not stack:
                    raise
                result, failure = stop.value, None
            except BaseException as error:
                stack.pop()
                if not stack:
                    raise
                result, failure = None, error
            else:
                result = failure = None
                if type(made) is not GeneratorType:
                    waits: Sequence[Wait] = made
                    return waits
                stack.append(made)

    def close(self) -> None:
        """Run no more."""
        while self._stack:
            self._stack.pop().close()


class Submission:
    """One run of an op on one stream.

    Attributes:
        op, stream: what runs, and where.
        waits: after `advance` returned False, what must have happened before it is called again.
        value: after `advance` returned True, the result; `unwrap` it once `moment` has passed.
    """

    __slots__ = ("_failure", "_run", "moment", "op", "stream", "value", "waits")

    def __init__(self, op: DeviceOp[Any], stream: Stream) -> None:
        self.op, self.stream = op, stream
        self.waits: Sequence[Wait] = ()
        self.value: Any = None
        self.moment: Moment = (stream, 0)
        self._failure: Exception | None = None
        self._run = Run(op.start(ExecutionContext(stream.device, stream)))

    def advance(self) -> bool:
        """Submit what can be submitted now. True if that was the last of it."""
        if _local.running is not None:
            _refuse(self.op, _local.running)
        _local.running = self.op
        try:
            failure, self._failure = self._failure, None
            try:
                self.waits = self._run.advance(failure)
            except StopIteration as stop:
                self.value = stop.value
                self.stream.ended(self.op.label)
                self.moment = (self.stream, self.stream.mark())
                return True
        except Exception as error:
            self.op.annotate(error)
            if isinstance(error, DeviceError) and error.lost:  # by work that was submitted before
                self.stream.explain(error)
            raise
        finally:
            _local.running = None
        return False

    def failed(self, error: Exception) -> None:
        """What was waited for has failed: the next `advance` raises `error` in the step that waits."""
        self._failure = error

    def close(self) -> None:
        """Submit no more."""
        self._run.close()

    def run(self) -> Any:
        """Submit everything, and block until it is done."""
        while not self.advance():
            try:
                self.block(self.waits)
            except Exception as error:
                self.failed(error)
        self.block([self.moment, *moments(self.value)])
        return unwrap(self.value)

    def block(self, waits: Sequence[Wait]) -> None:
        """Block until `waits` have passed; do what jobs there are."""
        if not waits:
            time.sleep(0)
        try:
            for wait in waits:
                if isinstance(wait, HostJob):
                    wait.run(may_block=True)
                else:
                    stream, serial = wait
                    stream.wait(serial)
        except Exception as error:
            self.op.annotate(error)
            raise
