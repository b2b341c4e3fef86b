"""Waiting for a stream from a coroutine: nothing blocks, and nothing runs Python on the driver's thread.

A moment that is near is polled for (`TILEKIT_SPIN_US`), between turns of the other tasks. For any other, the driver writes a
status into a slot and rings the bell of a `SignalBoard`; the event loop watches the bell's file descriptor, and wakes whoever
waits for the slot. Every event loop has a reactor of its own, which is found anew at each `await`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tilekit.driver import forking
from tilekit.driver.signal import SignalBoard, dispatcher
from tilekit.ops.execution import HostJob, Wait
from tilekit.settings import load_settings
from tilekit.stream import Stream

__all__ = ["Ask", "reached", "rung"]

# Asks for a slot of a board to be filled some time; False if there is nothing to wait for.
Ask = Callable[[SignalBoard, int], bool]

_TURNS = 64  # how often a task that waits for another one only gives way, before it sleeps
_NAP_S = 5e-4


async def reached(waits: Sequence[Wait], turns: int = 0) -> None:
    """Suspend the task until all of `waits` have passed; have the jobs among them done in a worker thread.

    Other tasks get a turn in any case.

    Args:
        waits: what to wait for. If empty, only give way.
        turns: how often that was done already, to no avail.

    Raises:
        DeviceError: the device failed meanwhile.
        RuntimeError: neither asyncio nor trio runs in this thread.
    """
    reactor = _reactor()
    suspended = False
    for wait in waits:
        if isinstance(wait, HostJob):
            for stream, serial in wait.after:
                await reactor.passed(stream, serial)
            await reactor.in_thread(wait.run)
            suspended = True
        else:
            stream, serial = wait
            suspended = await reactor.passed(stream, serial) or suspended
    if not suspended:
        await (reactor.turn() if turns < _TURNS else reactor.nap())


async def rung(ask: Ask) -> None:
    """Suspend the task until the slot that `ask` is given is filled."""
    await _reactor().rung(ask)


class _Reactor:
    """The waiters of one event loop."""

    def __init__(self) -> None:
        self._spin_s = load_settings().spin_us * 1e-6
        self._board = SignalBoard()
        self._waiting: dict[int, Any] = {}  # by slot: what `_resume` takes

    async def passed(self, stream: Stream, serial: int) -> bool:
        """Return once a moment has passed; whether others had a turn meanwhile."""
        if stream.is_complete(serial):
            return False
        driver = stream.device.driver
        if driver.kind == "cuda":  # the worker of a CPU stream needs the interpreter that a poll would keep busy
            end = time.perf_counter() + self._spin_s
            while time.perf_counter() < end:
                await self.turn()
                if stream.is_complete(serial):
                    return True
        if not driver.signals_ready():
            await self.in_thread(driver.make_signals_ready)
        while not stream.is_complete(serial):
            await self.rung(lambda board, slot: stream.signal(serial, board, slot))
        return True

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
            # If the task is cancelled here the slot remains the device's; `_wake` takes it back when it has been filled.
            await self._until(waiter)

    def _wake(self) -> None:
        """The bell was rung."""
        self._board.drain()
        for slot in self._board.filled():
            waiter, status = self._waiting.pop(slot), self._board.status(slot)
            self._board.release(slot)
            self._resume(waiter)
            if status:  # a fault may be everybody's: let all look, each at its own stream
                for other in self._waiting.values():
                    self._resume(other)

    def close(self) -> None:
        """The loop is gone. The board stays until the device has filled its slots."""
        self._waiting = {}
        self._board.close()

    def __del__(self) -> None:
        if hasattr(self, "_board") and not sys.is_finalizing():
            self._board.close()

    # what differs between the libraries
    async def turn(self) -> None:
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


class _Asyncio(_Reactor):
    """Of a loop of asyncio's, or one that does what asyncio's do, as uvloop's. Does not keep the loop alive."""

    def __init__(self, asyncio: Any) -> None:
        super().__init__()
        self._asyncio = asyncio
        self._readable = True
        try:
            asyncio.get_running_loop().add_reader(self._board.fd, self._wake)
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

    async def turn(self) -> None:
        await self._asyncio.sleep(0)

    async def nap(self) -> None:
        await self._asyncio.sleep(_NAP_S)

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

    async def turn(self) -> None:
        await self._trio.lowlevel.checkpoint()

    async def nap(self) -> None:
        await self._trio.sleep(_NAP_S)

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


def _reactor() -> _Reactor:
    """That of the loop that runs in this thread."""
    trio = sys.modules.get("trio")
    if trio is not None and _in_trio(trio):
        token = trio.lowlevel.current_trio_token()
        return _reactors.get(token) or _made(token, lambda: _Trio(trio))
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    if loop is None:
        raise RuntimeError(
            "await works in coroutines that asyncio (or uvloop) or trio runs, and neither runs here: call .sync() instead"
        )
    return _reactors.get(loop) or _made(loop, lambda: _Asyncio(asyncio))


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
