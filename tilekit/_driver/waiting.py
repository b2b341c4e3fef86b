"""Waiting so that signals get through: Python runs their handlers in the main thread, between two of its instructions.

A call into the CUDA driver that blocks ends when the device has got there, and Ctrl-C comes no earlier. So the main thread never
makes such a call before it is known to return at once: it looks again and again, or has another thread wait. Nor does it wait for
a lock in one go: of a signal that comes between its last instruction and the block Python says nothing until the block ends. No
other thread is interrupted by anything, and blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["aside", "gets_signals", "until"]

T = TypeVar("T")

_SLICE_S = 0.1  # how long a signal may wait for whom it interrupts, where it came at a bad moment


def gets_signals() -> bool:
    """Whether this is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


def until(wait: Callable[[float], bool], timeout_s: float | None = None) -> bool:
    """What `wait` says in the end, which blocks for so many seconds at most: `threading.Event.wait`, or a lock's `acquire`."""
    limit = threading.TIMEOUT_MAX if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
    if not gets_signals():
        return wait(limit)
    end = time.monotonic() + limit
    while not wait(min(_SLICE_S, max(0.0, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def aside(function: Callable[[], T]) -> T:
    """`function()`, which blocks, in a thread of its own, where an interrupted caller leaves it; here if none is to be had."""
    outcome: list[tuple[T | None, BaseException | None]] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))
        ended.set()

    try:
        threading.Thread(target=run, name="tilekit-wait", daemon=True).start()
    except RuntimeError:
        return function()
    until(ended.wait)
    result, error = outcome.pop()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
