"""Somebody who looks whether the members of a joined group are there, while work of the devices waits for them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tilekit._groups.link import Link
from tilekit._runtime.stream import Stream
from tilekit.errors import GroupError, TilekitError

if TYPE_CHECKING:
    from tilekit._groups.group import Group

__all__ = ["Watch"]

_LOOK_S = 0.2  # how often
_log = logging.getLogger(__name__)


class Watch:
    """A thread that asks rank 0's process whether a member is gone, and looks whether what was submitted gets done.

    If not, the group is broken, so that no kernel waits any longer, and whoever waits for its work gets the error. It starts with
    the first work.

    Args:
        group: whose.
        host: the connection to ask by.
        timeout_s: how long work may take.
        failure: says what else went wrong, or None.
    """

    def __init__(self, group: Group, host: Link, timeout_s: float, failure: Callable[[], str | None] = lambda: None) -> None:
        self._group, self._host, self._timeout_s, self._failure = group, host, timeout_s, failure
        self._expected: deque[tuple[int, object, Stream, int, float]] = deque()
        self._submitted, self._lock = 0, threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, what: object, stream: Stream) -> None:
        """What `stream` holds now waits for other members, which submit the same."""
        with self._lock:
            self._submitted += 1
            self._expected.append((self._submitted, what, stream, stream.pending, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tilekit-group-watch", daemon=True)
                self._thread.start()

    def fail(self, error: GroupError) -> None:
        """Whoever waits for what is not done gets the error, once it has ended."""
        for _, _, stream, serial, _ in tuple(self._expected):
            if not stream.passed(serial):
                stream.fail(serial, error)

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            try:
                self._look()
            except TilekitError as error:
                if not self._stopped.is_set():
                    _log.error("%s", error)
                    self._group.broken(error)
                return

    def _look(self) -> None:
        self._host.report(self._submitted)
        why = self._failure()
        if why is not None:
            raise GroupError(why)
        while self._expected:
            number, what, stream, serial, at_s = self._expected[0]
            if not stream.passed(serial):
                if time.monotonic() - at_s > self._timeout_s:
                    self._host.accuse(number, str(what), self._timeout_s)
                return
            self._expected.popleft()
