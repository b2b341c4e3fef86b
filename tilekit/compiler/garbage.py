"""Garbage collection while kernels compile: put off, as numba makes a million objects, of which few are garbage in cycles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]

_lock, _pauses, _ran = threading.Lock(), 0, False


@contextmanager
def collector_paused() -> Iterator[None]:
    """While a block runs, or those of other threads, Python's cyclic collector does not, which takes a fifth of the time else.

    Whoever has it turned off keeps it so.
    """
    global _pauses, _ran
    with _lock:
        if not _pauses:
            _ran = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _ran and not _pauses:
                gc.enable()
