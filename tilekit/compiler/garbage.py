"""Garbage collection while kernels compile: put off, as numba makes a million objects, of which few are garbage in cycles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilekit._driver.forking import in_child

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
            _pauses = max(0, _pauses - 1)  # a fork in the block has ended it
            if _ran and not _pauses:
                gc.enable()


def _forked() -> None:
    """In the child of a fork no thread compiles."""
    global _lock, _pauses
    _lock = threading.Lock()
    if _ran and _pauses:
        gc.enable()
    _pauses = 0


in_child(_forked)
