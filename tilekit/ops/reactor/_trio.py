"""The reactor of a run of trio's."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from tilekit.ops.execution import NAP_S
from tilekit.ops.reactor._reactor import Library, Reactor

__all__ = ["LIBRARY", "TrioReactor", "in_trio"]


class TrioReactor(Reactor):
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


def in_trio(trio: Any) -> bool:
    """Whether what runs in this thread is a task of trio's."""
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):  # trio is being imported elsewhere; this is no task of trio's
        return False
    return True


def _running(trio: Any) -> Any:
    return trio.lowlevel.current_trio_token() if in_trio(trio) else None


LIBRARY = Library("trio", lambda trio: functools.partial(_running, trio), TrioReactor)
