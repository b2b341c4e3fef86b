"""Which event loop runs in this thread, and its reactor."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tilekit._driver import forking
from tilekit.ops.reactor import _asyncio, _trio
from tilekit.ops.reactor._reactor import Reactor

__all__ = ["LIBRARIES", "running_reactor"]

# In this order: in trio's guest mode a thread has a loop of asyncio's as well.
LIBRARIES = (_trio.LIBRARY, _asyncio.LIBRARY)
_FIRST = LIBRARIES[0].name

_reactors: weakref.WeakKeyDictionary[Any, Reactor] = weakref.WeakKeyDictionary()  # by the loop
_lock = threading.Lock()


class _Here(threading.local):
    """The loop of the last `await` in this thread, what asks for it, and its reactor: a loop is looked up once, not each time."""

    asked: Callable[[], Any] = staticmethod(lambda: None)
    loop: Callable[[], Any] = staticmethod(lambda: None)
    reactor: Callable[[], Reactor | None] = staticmethod(lambda: None)


_here = _Here()


def running_reactor() -> Reactor:
    """That of the loop that runs in this thread."""
    here = _here
    if _FIRST not in sys.modules:  # then what ran last is asked first: this is on the way of every `await`
        loop = here.asked()
        if loop is not None and here.loop() is loop and (known := here.reactor()) is not None:
            return known
    for name, asks, new in LIBRARIES:
        library = sys.modules.get(name)
        loop = None if library is None else asks(library)()
        if loop is None:
            continue
        if here.loop() is loop and (known := here.reactor()) is not None:
            return known
        reactor = _reactors.get(loop) or _enter(loop, new(library))
        here.asked, here.loop, here.reactor = asks(library), weakref.ref(loop), weakref.ref(reactor)
        return reactor
    raise RuntimeError(
        "await works in coroutines that asyncio (or uvloop) or trio runs, and neither runs here: call .sync() instead"
    )


def _enter(loop: Any, reactor: Reactor) -> Reactor:
    """Remember the reactor of a loop. Those of closed loops, whose memory may not have been collected yet, are closed."""
    with _lock:
        gone = [other for other in _reactors if getattr(other, "is_closed", bool)()]
        closing = [_reactors.pop(other) for other in gone]
        _reactors[loop] = reactor
    for closed in closing:
        closed.close()
    return reactor


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _reactors.clear()


forking.in_child(_after_fork)
