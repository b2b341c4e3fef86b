"""Threads that help to run the blocks of a launch on a CPU device. Machine code runs without Python's lock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable

from tilekit._driver import forking
from tilekit.settings import load_settings

__all__ = ["cores", "run_with_helpers"]


def cores() -> int:
    """How many threads may run blocks at once: those that were asked for, or as many as this process may use cores."""
    asked = load_settings().cpu_threads
    if asked is not None:
        return asked
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class _Job:
    """A function that several threads run at once; who comes too late does not begin."""

    def __init__(self, work: Callable[[int], None], helpers: int) -> None:
        self.work, self.helpers = work, helpers
        self.closed, self.active = False, 0
        self.lock = threading.Lock()
        self.left = threading.Event()
        self.error: BaseException | None = None

    def help(self) -> None:
        with self.lock:
            if self.closed:
                return
            self.active += 1
        try:
            self.work(self.helpers)
        except BaseException as error:
            self.error = error
        with self.lock:
            self.active -= 1
            if self.closed and not self.active:
                self.left.set()

    def close(self) -> None:
        """Wait for those who have begun."""
        with self.lock:
            self.closed = True
            waits = self.active > 0
        if waits:
            self.left.wait()
        if self.error is not None:
            raise self.error


class _Helpers:
    """The threads. They are made when they are first needed, and never end."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.core: int | None = None  # that they keep off
        self.lock = threading.Lock()

    def want(self, count: int) -> None:
        with self.lock:
            while len(self.threads) < count:
                self.threads.append(threading.Thread(target=self._help, name=f"tilekit helper {len(self.threads)}", daemon=True))
                self.threads[-1].start()
                self.core = None

    def keep_off(self, core: int) -> None:
        """Have the threads run on other cores. Linux wakes a thread beside the one that wakes it, and leaves it waiting there:
        after a pause a launch of a millisecond would run on one core, and so would those that follow."""
        with self.lock:
            if core == self.core:
                return
            self.core, others = core, os.sched_getaffinity(0) - {core}
            for thread in self.threads if others else ():
                with contextlib.suppress(OSError):  # a system that does not allow it
                    os.sched_setaffinity(thread.native_id or 0, others)

    def _help(self) -> None:
        while True:
            self.jobs.get().help()


_helpers = _Helpers()
_getcpu: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None


def run_with_helpers(work: Callable[[int], None], pieces: int) -> None:
    """Run a function here and in idle threads at once, until all of them return.

    Args:
        work: called with the number of other threads that may take part; it takes pieces until there are none.
        pieces: how many there are.
    """
    count = min(cores(), pieces) - 1
    if count < 1:
        work(0)
        return
    job = _Job(work, count)
    _helpers.want(count)
    if _getcpu is not None:
        _helpers.keep_off(_getcpu())
    for _ in range(count):
        _helpers.jobs.put(job)
    try:
        work(count)
    finally:
        job.close()


def _forget() -> None:
    """In a forked child there are no threads."""
    global _helpers
    _helpers = _Helpers()


forking.in_child(_forget)
