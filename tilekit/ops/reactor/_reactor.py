"""`Reactor`: what wakes the coroutines of an event loop that wait for streams, whatever the library of the loop.

A moment that is near is polled for (`TILEKIT_SPIN_US`): between turns of the other tasks, or for a while without where no other
task is ready. For any other, the driver writes a status into a slot and rings the bell of a `SignalBoard`; the event loop
watches the bell's file descriptor, and wakes whoever waits for the slot.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Any, NamedTuple

from tilekit._driver.signal import SignalBoard
from tilekit._runtime.stream import Stream
from tilekit.settings import load_settings

__all__ = ["Ask", "Library", "Reactor", "Waiting"]

# Asks for a slot of a board to be filled some time; False if there is nothing to wait for.
Ask = Callable[[SignalBoard, int], bool]
Waiting = Generator[Any, None, None]  # what `__await__` gives

# How long a task may go on before other tasks get a turn: with what is complete at once, or with polling if none is ready.
_TURN_S = 1e-4


class Reactor:
    """The coroutines of one event loop that wait for streams. Each library's loops have a class derived from this.

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

    # what differs between the libraries: a waiter is whatever a task can suspend on, and another callback resume
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


class Library(NamedTuple):
    """A library that runs coroutines.

    Attributes:
        name: of its module, which is asked for nothing unless the program has imported it.
        running: given the module, a function that gives the loop that runs in this thread: an object that can be a weak key; None
            if none does.
        reactor: given the module, a new reactor for that loop.
    """

    name: str
    running: Callable[[Any], Callable[[], Any]]
    reactor: Callable[[Any], Reactor]
