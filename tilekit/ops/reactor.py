"""Waiting for a stream from a coroutine: nothing blocks, and nothing runs Python on the driver's thread.

A moment that is near is polled for (`TILEKIT_SPIN_US`): between turns of the other tasks, or for a while without where no other
task is ready. For any other, the driver writes a status into a slot and rings the bell of a `SignalBoard`; the event loop
watches the bell's file descriptor, and wakes whoever waits for the slot. Every event loop has a reactor of its own, which is
found anew at each `await`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any

from tilekit._driver import forking
from tilekit._driver.signal import SignalBoard, dispatcher
from tilekit._runtime.stream import Stream
from tilekit.ops.execution import NAP_S, TURNS, HostJob, Submission, Wait
from tilekit.settings import load_settings

__all__ = ["Ask", "awaited", "patience", "reached", "rung", "submitted"]

# Asks for a slot of a board to be filled some time; False if there is nothing to wait for.
Ask = Callable[[SignalBoard, int], bool]
Waiting = Generator[Any, None, None]  # what `__await__` gives

# How long a task may go on before other tasks get a turn: with what is complete at once, or with polling if none is ready.
_TURN_S = 1e-4


def awaited(submission: Submission) -> Generator[Any, None, Any]:
    """Submit everything, suspend the task until it is done; its result. What `await op` is."""
    if not submission.submit():
        yield from submitted(submission)
    try:
        yield from reached(((submission.stream, submission.serial), *submission.pending))
    except Exception as error:
        submission.op.annotate(error)
        raise
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
        reactor = _reactor()
    except RuntimeError:  # as who waits then will say
        return 0.0
    now = time.perf_counter()
    return reactor.patience(now, now + reactor.spin_s)


def reached(waits: Sequence[Wait], turns: int = 0, polled_s: float = 0.0) -> Waiting:
    """Suspend the task until all of `waits` have passed; have the jobs among them done in a worker thread.

    If they have passed already, other tasks still get a turn, unless they just had one.

    Args:
        waits: what to wait for. If empty, only give way.
        turns: how often that was done already, to no avail.
        polled_s: for how many seconds they have been polled for already.

    Raises:
        DeviceError: the device failed meanwhile.
        RuntimeError: neither asyncio nor trio runs in this thread.
    """
    reactor = _reactor()
    for wait in waits:
        if isinstance(wait, HostJob):
            for stream, serial in wait.after:
                yield from reactor.passed(stream, serial)
            yield from reactor.in_thread(wait.run).__await__()
        else:
            yield from reactor.passed(*wait, polled_s)
    if not waits:
        yield from (reactor.turn() if turns < TURNS else reactor.nap()).__await__()


def rung(ask: Ask) -> Waiting:
    """Suspend the task until the slot that `ask` is given is filled."""
    yield from _reactor().rung(ask).__await__()


class _Reactor:
    """The waiters of one event loop.

    Attributes:
        spin_s: how long to poll.
    """

    def __init__(self) -> None:
        self.spin_s = load_settings().spin_us * 1e-6
        self._board = SignalBoard()
        self._waiting: dict[int, Any] = {}  # by slot: what `_resume` takes
        self._ready: Collection[Any] = (None,)  # what the loop is to call next, where it tells; else as if there were something
        self._others_at = 0.0  # when others shall have a turn, at the latest

    def patience(self, now: float, end: float) -> float:
        """For how many seconds a task may poll now, until `end` at most: 0 if another is ready, or waits for the bell."""
        if self._ready or self._waiting:
            return 0.0
        left = (end if end < self._others_at else self._others_at) - now
        return left if left > 0 else 0.0

    def passed(self, stream: Stream, serial: int, polled_s: float = 0.0) -> Waiting:
        """Return once a moment has passed. Others get a turn if it is time, while the device works: before the first poll."""
        clock, driver = time.perf_counter, stream.device.driver
        now = clock()
        # The worker of a CPU stream needs the interpreter that a poll would keep busy.
        end = now + self.spin_s - polled_s if driver.kind == "cuda" else now
        turn = now >= self._others_at
        while True:
            if turn:
                yield from self.turn().__await__()
                now = clock()
                self._others_at = now + _TURN_S
            if stream.is_complete(serial, self.patience(now, end)):
                return
            now, turn = clock(), True
            if now >= end:
                break
        if not driver.signals_ready():
            yield from self.in_thread(driver.make_signals_ready).__await__()
        while not stream.is_complete(serial):
            yield from self.rung(lambda board, slot: stream.signal(serial, board, slot)).__await__()

    async def rung(self, ask: Ask) -> None:
        """Return once the slot that `ask` is given is filled."""
        slot, waiter = self._board.arm(), self._waiter()
        self._waiting[slot] = waiter
        asked = False
        try:
            asked = ask(self._board, slot)
        finally:
            if not asked:
                del self._waiting[slot]
                self._board.release(slot)
        if asked:
            try:
                await self._until(waiter)
            except BaseException:
                # The slot remains the device's, and `_wake` takes it back when it has been filled; the waiter knows its loop.
                if self._waiting.get(slot) is waiter:
                    self._waiting[slot] = None
                raise

    def _wake(self) -> None:
        """The bell was rung."""
        self._board.drain()
        for slot in self._board.filled():
            waiter, status = self._waiting.pop(slot), self._board.status(slot)
            self._board.release(slot)
            for resumed in (waiter, *self._waiting.values()) if status else (waiter,):  # a fault may be everybody's: let all look
                if resumed is not None:  # else it was cancelled
                    self._resume(resumed)

    def close(self) -> None:
        """The loop is gone. The board stays until the device has filled its slots."""
        self._waiting = {}
        self._board.close()

    def __del__(self) -> None:
        if hasattr(self, "_board") and not sys.is_finalizing():
            self._board.close()

    # what differs between the libraries
    def turn(self) -> Awaitable[None]:
        """Let other tasks run."""
        raise NotImplementedError

    async def nap(self) -> None:
        """Let other tasks run for a moment."""
        raise NotImplementedError

    async def in_thread(self, function: Callable[[], object]) -> None:
        """Run a function that may block in a worker thread. It goes on there when the task is cancelled."""
        raise NotImplementedError

    def _waiter(self) -> Any:
        raise NotImplementedError

    async def _until(self, waiter: Any) -> None:
        raise NotImplementedError

    def _resume(self, waiter: Any) -> None:
        raise NotImplementedError


class _Turn:
    """What `asyncio.sleep(0)` awaits in the end: the task is put behind all others that can run."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_TURN = _Turn()


class _Asyncio(_Reactor):
    """Of a loop of asyncio's, or one that does what asyncio's do, as uvloop's. Does not keep the loop alive."""

    def __init__(self, asyncio: Any) -> None:
        super().__init__()
        self._asyncio = asyncio
        self._readable = True
        loop = asyncio.get_running_loop()
        ready = getattr(loop, "_ready", None)  # of asyncio's own loops: nothing public tells whether a task is ready
        if isinstance(ready, deque):
            self._ready = ready
        try:
            loop.add_reader(self._board.fd, self._wake)
        except NotImplementedError:  # a loop that watches no descriptors, such as the proactor of Windows
            self._readable = False
            self._board.close()

    async def rung(self, ask: Ask) -> None:
        if self._readable:
            await super().rung(ask)
            return
        # The callback thread watches its own board, and wakes the loop.
        loop, future, calls = self._asyncio.get_running_loop(), self._waiter(), dispatcher()

        def called(status: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._resume, future)

        slot = calls.arm(called)
        asked = False
        try:
            asked = ask(calls.board, slot)
        finally:
            if not asked:
                calls.disarm(slot)
        if asked:
            await future

    def turn(self) -> _Turn:
        return _TURN

    async def nap(self) -> None:
        await self._asyncio.sleep(NAP_S)

    async def in_thread(self, function: Callable[[], object]) -> None:
        await self._asyncio.to_thread(function)

    def _waiter(self) -> Any:
        return self._asyncio.get_running_loop().create_future()

    async def _until(self, waiter: Any) -> None:
        await waiter

    def _resume(self, waiter: Any) -> None:
        if not waiter.done():  # else its task was cancelled
            waiter.set_result(None)


class _Trio(_Reactor):
    """Of a run of trio's. A system task of that run watches the bell, and ends with it."""

    def __init__(self, trio: Any) -> None:
        super().__init__()
        self._trio = trio
        trio.lowlevel.spawn_system_task(self._serve)

    async def _serve(self) -> None:
        try:
            while True:
                await self._trio.lowlevel.wait_readable(self._board.fd)
                self._wake()
        finally:
            self.close()

    def turn(self) -> Awaitable[None]:
        checkpoint: Awaitable[None] = self._trio.lowlevel.checkpoint()
        return checkpoint

    async def nap(self) -> None:
        await self._trio.sleep(NAP_S)

    async def in_thread(self, function: Callable[[], object]) -> None:
        await self._trio.to_thread.run_sync(function, abandon_on_cancel=True)

    def _waiter(self) -> Any:
        return self._trio.Event()

    async def _until(self, waiter: Any) -> None:
        await waiter.wait()

    def _resume(self, waiter: Any) -> None:
        waiter.set()


_reactors: weakref.WeakKeyDictionary[Any, _Reactor] = weakref.WeakKeyDictionary()  # by asyncio loop, or trio token
_lock = threading.Lock()


class _Here(threading.local):
    """The loop of the last `await` in this thread, and its reactor: a loop is looked up once, not at each `await`."""

    known: tuple[Callable[[], Any], Callable[[], _Reactor | None]] = (lambda: None, lambda: None)


_here = _Here()


def _reactor() -> _Reactor:
    """That of the loop that runs in this thread."""
    trio = sys.modules.get("trio")
    if trio is not None and _in_trio(trio):
        token = trio.lowlevel.current_trio_token()
        return _reactors.get(token) or _made(token, lambda: _Trio(trio))
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    known_loop, known = _here.known
    if loop is not None and known_loop() is loop and (reactor := known()) is not None:
        return reactor
    if loop is None:
        raise RuntimeError(
            "await works in coroutines that asyncio (or uvloop) or trio runs, and neither runs here: call .sync() instead"
        )
    reactor = _reactors.get(loop) or _made(loop, lambda: _Asyncio(asyncio))
    _here.known = (weakref.ref(loop), weakref.ref(reactor))
    return reactor


def _in_trio(trio: Any) -> bool:
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # trio is being imported elsewhere; this is no task of trio's
        return False
    return True


def _made(key: Any, make: Callable[[], _Reactor]) -> _Reactor:
    """A reactor for a loop that has none. Those of closed loops, whose memory may not have been collected yet, are closed."""
    with _lock:
        gone = [loop for loop in _reactors if getattr(loop, "is_closed", bool)()]
        closing = [_reactors.pop(loop) for loop in gone]
    for reactor in closing:
        reactor.close()
    reactor = make()
    with _lock:
        _reactors[key] = reactor
    return reactor


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _reactors.clear()


forking.in_child(_after_fork)
