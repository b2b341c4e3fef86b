"""Waiting for a stream from a coroutine: nothing blocks, and nothing runs Python on the driver's thread.

A moment that is near is polled for (`TILEKIT_SPIN_US`). For any other, the driver writes a status into a slot and rings the
bell of a `SignalBoard`; the event loop watches the bell's file descriptor, and wakes whoever waits for the slot.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any

from tilekit.driver.signal import SignalBoard
from tilekit.ops.execution import Moment
from tilekit.settings import load_settings
from tilekit.stream import Stream

__all__ = ["reached"]


async def reached(waits: list[Moment]) -> None:
    """Suspend the task until every moment has passed.

    Raises:
        DeviceError: the device failed meanwhile.
        RuntimeError: no asyncio event loop runs in this thread.
    """
    if not waits:
        await asyncio.sleep(0)
    for stream, serial in waits:
        if not _spin(stream, serial):
            reactor = _reactor()
            while not stream.is_complete(serial):
                await reactor.when_done(stream)


def _spin(stream: Stream, serial: int) -> bool:
    """Poll for a moment until the budget is spent; whether it has passed."""
    end = time.perf_counter() + load_settings().spin_us * 1e-6
    while not stream.is_complete(serial):
        if time.perf_counter() >= end:
            return False
    return True


class _Reactor:
    """The waiters of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._board = SignalBoard()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        loop.add_reader(self._board.fd, self._wake)

    async def when_done(self, stream: Stream) -> int:
        """The status of the stream once all work that is in it now has passed."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        slot = self._board.arm()
        self._waiting[slot] = future
        try:
            stream.device.driver.stream_signal(stream.handle, self._board, slot)
        except BaseException:
            del self._waiting[slot]
            self._board.release(slot)
            raise
        return await future

    def _wake(self) -> None:
        self._board.drain()
        for slot in list(self._waiting):
            status = self._board.status(slot)
            if status is not None:
                future = self._waiting.pop(slot)
                self._board.release(slot)
                if not future.done():  # its task was cancelled; the slot was the device's until now
                    future.set_result(status)


_reactors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reactor] = weakref.WeakKeyDictionary()


def _reactor() -> Any:
    loop = asyncio.get_running_loop()
    reactor = _reactors.get(loop)
    if reactor is None:
        reactor = _reactors[loop] = _Reactor(loop)
    return reactor
