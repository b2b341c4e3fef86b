"""Large copies within the host's memory, by several threads: one alone does not fill the host's memory bus, nor the GPU's."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, thread, wait
from typing import Any

from tilekit._driver import forking

__all__ = ["in_parallel"]

_THREADS = min(8, max(2, (os.cpu_count() or 1) // 2))

_executor: Executor | None = None
_lock = threading.Lock()


def _reset() -> None:
    """In a forked process: the threads did not come along."""
    global _executor, _lock
    _executor, _lock = None, threading.Lock()


forking.in_child(_reset)


def in_parallel(work: Callable[[Any], None], items: Iterable[Any]) -> None:
    """`work(item)` for each of `items`, on a few threads. Blocks. The first exception is raised, once all are done.

    `items` is gone through by the caller; what it raises counts as well, and so does Ctrl-C: what was begun, a copy of a few
    megabytes in each thread, is finished before, since the threads use memory of the caller's.
    """
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(_THREADS, "tilekit-copy")
        executor = _executor
    futures: list[Future[None]] = []
    error: BaseException | None = None
    try:
        for item in items:
            try:
                futures.append(executor.submit(work, item))
            except RuntimeError:
                if not sys.is_finalizing() and not getattr(thread, "_shutdown", False):
                    raise
                work(item)  # Python takes no more for its threads once it has begun to shut down
    except BaseException as raised:
        error = raised
    waiting = True
    while waiting:
        try:
            wait(futures)
            waiting = False
        except BaseException as raised:  # a signal's
            error = error or raised
    for future in futures:
        error = error or future.exception()
    if error is not None:
        raise error
