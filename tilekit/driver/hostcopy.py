"""Large copies within the host's memory, by several threads: one alone does not fill the host's memory bus, nor the GPU's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from tilekit.driver import forking

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

    `items` is gone through by the caller; what it raises counts as well.
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
            futures.append(executor.submit(work, item))  # noqa: PERF401 - those before an error are waited for
    except BaseException as raised:
        error = raised
    for future in futures:
        failed = future.exception()
        error = error or failed
    if error is not None:
        raise error
