"""Waiting so that signals get through: Python runs their handlers in the main thread, between two of its instructions.

A call into the CUDA driver that blocks ends when the device has got there, and Ctrl-C comes no earlier. So the main thread never
makes such a call before it is known to return at once: it looks again and again, or has another thread wait. No other thread is
interrupted by anything, and blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["aside", "gets_signals"]

T = TypeVar("T")


def gets_signals() -> bool:
    """Whether this is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


def aside(function: Callable[[], T]) -> T:
    """`function()`, which blocks, in a thread of its own, where an interrupted caller leaves it; here if none is to be had."""
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    try:
        threading.Thread(target=run, name="tilekit-wait", daemon=True).start()
    except RuntimeError:
        return function()
    result, error = outcome.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
