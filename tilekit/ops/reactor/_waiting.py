"""What a coroutine awaits: an op that is being submitted, moments of streams, a slot of a signal board."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from tilekit.ops.execution import TURNS, HostJob, Submission, Wait
from tilekit.ops.reactor._reactor import Ask, Waiting
from tilekit.ops.reactor._running import running_reactor

if TYPE_CHECKING:
    from tilekit.ops.op import DeviceOp

__all__ = ["awaited", "patience", "reached", "rung", "submitted"]


def awaited(submission: Submission) -> Generator[Any, None, Any]:
    """Submit everything, suspend the task until it is done; its result. What `await op` is."""
    if not submission.submit():
        yield from submitted(submission)
    yield from reached(((submission.stream, submission.serial), *submission.pending), op=submission.op)
    return submission.result()


def submitted(submission: Submission) -> Waiting:
    """Submit what is left after the first stretch; suspend the task before each other one."""
    turns, done = 0, False
    try:
        while not done:
            turns = 0 if submission.waits else turns + 1
            try:
                yield from reached(submission.waits, turns)
            except Exception as error:
                submission.failed(error)
            done = submission.submit()
    finally:
        if not done:  # nothing to close after an error, but the task may have been cancelled
            submission.close()


def patience() -> float:
    """For how many seconds a task may poll now, without a turn of the loop before; 0 where no loop runs."""
    try:
        reactor = running_reactor()
    except RuntimeError:  # as who waits then will say
        return 0.0
    now = time.perf_counter()
    return reactor.patience(now, now + reactor.spin_s)


def reached(waits: Sequence[Wait], turns: int = 0, polled_s: float = 0.0, op: DeviceOp[Any] | None = None) -> Waiting:
    """Suspend the task until all of `waits` have passed; have the jobs among them done in a worker thread.

    If they have passed already, other tasks still get a turn, unless they just had one.

    Args:
        waits: what to wait for. If empty, only give way.
        turns: how often that was done already, to no avail.
        polled_s: for how many seconds they have been polled for already.
        op: whose end that is: errors name it.

    Raises:
        DeviceError: the device failed meanwhile.
        RuntimeError: neither asyncio nor trio runs in this thread.
    """
    try:
        reactor = running_reactor()
        for wait in waits:
            if isinstance(wait, HostJob):
                for stream, serial in wait.after:
                    yield from reactor.passed(stream, serial)
                yield from reactor.in_thread(wait.run).__await__()
            else:
                yield from reactor.passed(*wait, polled_s)
        if not waits:
            yield from (reactor.turn() if turns < TURNS else reactor.nap()).__await__()
    except Exception as error:
        if op is not None:
            op.annotate(error)
        raise


def rung(ask: Ask) -> Waiting:
    """Suspend the task until the slot that `ask` is given is filled."""
    yield from running_reactor().rung(ask).__await__()
