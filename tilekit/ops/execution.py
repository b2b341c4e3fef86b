"""How an op runs: its steps are submitted to one stream, up to each point where the host must have a value first.

An op that runs is a generator. It enqueues device work as it goes, yields the moments (a stream and a serial of it) that must
have passed before it can go on, and returns its result. Whoever drives it decides how to wait: by blocking (`sync`), by
suspending a task (`await`), or not at all until the device calls back (`async_on`). No moments at all means: another thread
or task has to get on first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit.schedule import ExecutionContext
from tilekit.stream import Stream

if TYPE_CHECKING:
    from tilekit.ops.base import DeviceOp

__all__ = ["HostValue", "Moment", "Steps", "Submission", "moments", "unwrap"]

Moment = tuple[Stream, int]
Steps = Generator[list[Moment], None, Any]


class HostValue:
    """A value that the device is still writing to host memory, and the moment from which it can be read."""

    __slots__ = ("moment", "value")

    def __init__(self, value: Any, stream: Stream) -> None:
        self.value = value
        self.moment: Moment = (stream, stream.pending)


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
        return value.value
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


class Submission:
    """One run of an op on one stream.

    Attributes:
        op, stream: what runs, and where.
        waits: after `advance` returned False, the moments that must pass before it is called again.
        value: after `advance` returned True, the result; `unwrap` it once `moment` has passed.
    """

    __slots__ = ("_steps", "moment", "op", "stream", "value", "waits")

    def __init__(self, op: DeviceOp[Any], stream: Stream) -> None:
        self.op, self.stream = op, stream
        self.waits: list[Moment] = []
        self.value: Any = None
        self.moment: Moment = (stream, 0)
        self._steps: Steps = op.start(ExecutionContext(stream.device, stream))

    def advance(self) -> bool:
        """Submit what can be submitted now. True if that was the last of it."""
        if _local.running is not None:
            _refuse(self.op, _local.running)
        _local.running = self.op
        try:
            self.waits = next(self._steps)
        except StopIteration as stop:
            self.value = stop.value
            self.moment = (self.stream, self.stream.mark())
            return True
        except Exception as error:
            self.op.annotate(error)
            raise
        finally:
            _local.running = None
        return False

    def run(self) -> Any:
        """Submit everything, and block until it is done."""
        while not self.advance():
            self.block(self.waits)
        self.block([self.moment, *moments(self.value)])
        return unwrap(self.value)

    def block(self, waits: list[Moment]) -> None:
        """Block until `waits` have passed."""
        if not waits:
            time.sleep(0)
        try:
            for stream, serial in waits:
                stream.wait(serial)
        except Exception as error:
            self.op.annotate(error)
            raise
