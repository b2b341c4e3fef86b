"""The reactor of asyncio's event loops, and of those that do what asyncio's do, such as uvloop's."""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from tilekit._driver.signal import dispatcher
from tilekit.ops.execution import NAP_S
from tilekit.ops.reactor._reactor import Ask, Library, Reactor

__all__ = ["LIBRARY", "AsyncioReactor"]


class _Turn:
    """What `asyncio.sleep(0)` awaits in the end: the task is put behind all others that can run."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_TURN = _Turn()


class AsyncioReactor(Reactor):
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


LIBRARY = Library("asyncio", operator.attrgetter("_get_running_loop"), AsyncioReactor)
