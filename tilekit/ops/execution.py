"""How an op runs: its steps are submitted to one stream, up to each point where the host must have a value first.

An op that has to wait for something on the way runs as a generator. It enqueues device work as it goes, yields a list of what
must have happened before it can go on, and returns its result; any other op is done at once (`Done`). Such a list holds moments
(a stream and a serial of it) and jobs for the host (`HostJob`). Whoever drives it decides how to wait: by blocking (`sync`), by
suspending a task (`await`; jobs run in a worker thread), or not at all until the device calls back (`async_on`; jobs run where
that happens). An empty list means: another thread or task has to get on first.

Nothing here recurses: ops nest deeper than Python's stack. A step that needs a part's result yields what `start` gives; one that
needs a stretch of a run of its own (`Run`: parts side by side, shared ones) yields that run. Both are the business of the loop
in `Run.advance`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.stream import Stream
from tilekit.errors import DeviceError
from tilekit.ops.host_values import Moment, moments, unwrap

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = [
    "NAP_S",
    "TURNS",
    "Done",
    "HostJob",
    "Run",
    "Steps",
    "Submission",
    "Wait",
    "called_on_host",
]

TURNS = 64  # how often a thread or task that waits for another one only gives way, before it sleeps
NAP_S = 5e-4

_starting = threading.Lock()


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
        prepares: whether it comes up once, such as compiling, so that what is submitted meanwhile must not depend on it: parts
            that run side by side are submitted in their order all the same.

    Attributes:
        started: whether somebody does it, or has done it.
        done: whether it has been done.
    """

    __slots__ = ("_blocking", "_error", "_value", "_work", "after", "done", "prepares", "started")

    def __init__(
        self,
        work: Callable[[], Any],
        *,
        blocking: Callable[[], Any] | None = None,
        after: Sequence[Moment] = (),
        prepares: bool = False,
    ) -> None:
        self._work: Callable[[], Any] | None = work
        self.prepares = prepares
        self._blocking, self.after = blocking, after
        self._value: Any = None
        self._error: BaseException | None = None
        self.started = self.done = False

    def run(self, *, may_block: bool = False) -> None:
        """Do it, once, and keep what comes of it."""
        with _starting:
            work = (self._blocking if may_block else None) or self._work
            if self.started or work is None:
                return
            self.started = True
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
# Yields a Sequence[Wait]; or what `start` gives of a part, and is sent its result; or a Run, see there.
Steps = Generator[Any, Any, Any]


def _refuse(op: DeviceOp[Any], running: DeviceOp[Any]) -> NoReturn:
    """One op at a time is submitted by a thread: work that a closure would start elsewhere could overtake this op's."""
    if getattr(running, "records", False):  # a scope in which ops are recorded
        raise RuntimeError(f"{op!r} cannot run while {running!r} records: give it to scope.record(op), or run it before or after")
    raise RuntimeError(
        f"{op!r} cannot run while {running!r} is being submitted by the same thread: functions given to then, map, with_context "
        "or stream_chunks describe work, they do not wait for it. Return the op from the closure (then runs it next, on the same "
        "stream), run it in a tk.host_fn, which is called when the work before it is done, or run it before"
    )


def called_on_host(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call, from a step, a function of the user's that may run ops itself: all work that it follows must be done.

    Nothing is left that its ops could overtake, and no lock is held that they could wait for, except that of shared ops which
    wait for the function's own result.
    """
    running, submitting.submission = submitting.submission, None
    try:
        return function(*arguments)
    finally:
        submitting.submission = running


class Done:
    """The result of an op that was submitted in one go: what its `steps` return where there is nothing to wait for."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Run:
    """The one run of an op: its steps, and those of the parts that it is in the middle of, as a stack of generators.

    A step may have runs of its own. It yields one, having called `begin`, to have it taken a stretch further, and is sent what
    `advance` would return; what that would raise is raised in the step.

    Args:
        op: what to run; from here on it is spent.
        ctx: where.
        lasting: it may go on when the step that yielded it has ended: it is not the step's alone.

    Attributes:
        failure: for a run that a step yields: what is to be raised in it, where it waits. Taken by that.

    Raises:
        ValueError: the op has run already.
    """

    __slots__ = ("_inner", "_stack", "ctx", "failure", "lasting", "op")

    def __init__(self, op: DeviceOp[Any], ctx: ExecutionContext, lasting: bool = False) -> None:
        op.claim()
        self.op, self.ctx, self.lasting = op, ctx, lasting
        self.failure: BaseException | None = None
        self._stack: list[Steps] | None = None
        self._inner: set[Run] | None = None  # those that its steps have begun, and that end with them

    def advance(self, failure: BaseException | None = None) -> Sequence[Wait] | Done:
        """Run up to the next thing to wait for, or to the end. If a wait failed, `failure` is raised in the step that waits.

        Raises:
            Whatever the steps raise.
        """
        stack, result = self._stack, None
        if stack is None:
            self._stack = []  # it has begun, whatever comes of it
            yielded: Any = self.op.steps(self.ctx)
            if isinstance(yielded, Done):
                return yielded
            stack = self._stack = [yielded]
        if not stack:
            raise self._interrupted()
        run: Run = self
        outer: list[tuple[Run, list[Steps]]] = []  # the runs whose steps have yielded `run`, and its like; outermost first
        try:
            while True:
                try:
                    yielded = stack[-1].send(result) if failure is None else stack[-1].throw(failure)
                except StopIteration as stop:
                    stack.pop()
                    result, failure = stop.value, None
                    if stack:
                        continue
                    if not outer:
                        return Done(result)
                    result = Done(result)
                except BaseException as error:
                    stack.pop()
                    yielded = result = failure = None  # the error holds this frame: it must not hold the error, nor results
                    if not stack and not outer:
                        raise
                    failure = error
                    if stack:
                        continue
                else:
                    result = failure = None
                    if type(yielded) is GeneratorType:
                        stack.append(yielded)
                        continue
                    if type(yielded) is Done:
                        result = yielded.value
                        continue
                    if type(yielded) is Run:
                        if not yielded.lasting:
                            if run._inner is None:
                                run._inner = set()
                            run._inner.add(yielded)
                        outer.append((run, stack))
                        run, stack = yielded, yielded._stack or []
                        failure, yielded.failure = yielded.failure, None
                        continue
                    if not outer:
                        waits: Sequence[Wait] = yielded
                        return waits
                    result = yielded
                # An inner run has come to where it waits, or to its end: the step that yielded it goes on.
                inner, ended = run, not stack
                run, stack = outer.pop()
                if ended and run._inner is not None:
                    run._inner.discard(inner)
        except BaseException:
            if stack or outer:  # interrupted between two steps: none must be left where it waits for an inner run
                run.close()
                for waiting, _ in reversed(outer):
                    waiting.close()
            raise

    def begin(self) -> Done | None:
        """For a step, before it yields the run: begin it if nobody has. Done if that was all, else it has to be yielded.

        Raises:
            Whatever its first step raises.
        """
        if self._stack is None:
            self._stack = []
            steps = self.op.steps(self.ctx)
            if isinstance(steps, Done):
                return steps
            self._stack.append(steps)
        elif not self._stack:
            raise self._interrupted()
        return None

    def _interrupted(self) -> RuntimeError:
        return RuntimeError(f"{self.op!r} was interrupted, and cannot go on")

    def close(self) -> None:
        """Run no more, and neither let the runs that are its steps' own."""
        runs = [self]
        for run in runs:  # which grows
            runs.extend(run._inner or ())
        for run in reversed(runs):  # inner ones first: so that no step's end has to close anything that is deep
            while run._stack:
                run._stack.pop().close()


class Submission(Run):
    """One run of an op on one stream, by whoever waits for it.

    Attributes:
        stream: where.
        waits: after `submit` returned False, what must have happened before it is called again.
        serial: after `submit` returned True, of the mark behind the work;
        value: and the result; `unwrap` it once that moment, and `pending`, have passed.
        pending: the moments of what the result holds for the host.
        detached: whether the op runs on by itself, so that it must not use borrowed memory.
    """

    __slots__ = ("_failure", "detached", "pending", "serial", "stream", "value", "waits")

    def __init__(self, op: DeviceOp[Any], stream: Stream, detached: bool = False) -> None:
        op.claim()
        self.detached = detached
        self.op, self.ctx, self.stream = op, ExecutionContext(stream.device, stream), stream
        self._stack = self._inner = None
        self._failure: Exception | None = None
        self.value: Any = None

    @classmethod
    def ended(cls, op: DeviceOp[Any], stream: Stream, serial: int, value: Any) -> Submission:
        """That of an op that was submitted by other means."""
        self: Submission = object.__new__(cls)
        self.op, self.ctx, self.stream, self.detached = op, ExecutionContext(stream.device, stream), stream, True
        self._stack, self._inner, self._failure = [], None, None
        self.value, self.serial, self.pending = value, serial, []
        return self

    def submit(self) -> bool:
        """Submit what can be submitted now. True if that was the last of it."""
        if submitting.submission is not None:
            _refuse(self.op, submitting.submission.op)
        submitting.submission = self
        try:
            failure, self._failure = self._failure, None
            progress = self.advance(failure)
            if isinstance(progress, Done):
                self.serial = self.stream.end(self.op)
                self.value = progress.value
                self.pending = moments(progress.value)
                return True
            self.waits: Sequence[Wait] = progress
            return False
        except Exception as error:
            self.op.annotate(error)
            if isinstance(error, DeviceError) and error.lost:  # by work that was submitted before
                self.stream.note_unfinished(error)
            raise
        finally:
            submitting.submission = None

    def failed(self, error: Exception) -> None:
        """What was waited for has failed: the next `submit` raises `error` in the step that waits."""
        self._failure = error

    def run(self) -> Any:
        """Submit everything, and block until it is done."""
        turns = 0
        while not self.submit():
            turns = 0 if self.waits else turns + 1
            try:
                self.block(self.waits, turns)
            except Exception as error:
                self.failed(error)
        try:
            self.stream.wait(self.serial)
        except Exception as error:
            self.op.annotate(error)
            raise
        if self.pending:
            self.block(self.pending)
        return self.result()

    def result(self) -> Any:
        """The result, once its moments have passed."""
        return unwrap(self.value) if self.pending else self.value

    def block(self, waits: Sequence[Wait], turns: int = 0) -> None:
        """Block until `waits` have passed; do what jobs there are. If there are none, give way, for the `turns`-th time."""
        if not waits:
            time.sleep(0 if turns < TURNS else NAP_S)
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
