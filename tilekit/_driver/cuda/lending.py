"""Memory of a GPU that another library's allocator gives, and when it gets it back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from tilekit._driver.ledger import has_no_more
from tilekit._driver.protocol import Allocator, Lent, Memory
from tilekit.errors import TilekitError

if TYPE_CHECKING:
    from tilekit._driver.cuda.memory import CudaMemory

__all__ = ["Lending"]

_log = logging.getLogger("tilekit")


class Lending:
    """What is on its way back to an allocator of one GPU.

    Allocators use a block again for the stream that they gave it out for, and know of no other. So a block goes back at once if
    that stream is behind all its users; else when they are known to be done.
    """

    def __init__(self, driver: CudaMemory) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._returning: deque[tuple[Any, Lent]] = deque()  # with the event behind the last user
        self._stream: Any = None  # one with nothing in it

    def allocate(self, lender: Allocator, nbytes: int, stream: Any) -> Memory:
        """A new block, which the ledger has noted already."""
        self.collect()
        address = int(stream)
        try:
            return Lent(int(lender.allocate(nbytes, address)), nbytes, lender, address)
        except BaseException as error:
            self._driver.ledger.cancel(nbytes)
            if has_no_more(error):
                raise self._driver.exhausted(nbytes) from error
            raise

    def free(self, memory: Lent, stream: Any, *, alone: bool) -> None:
        """Give a block back, in the order of `stream`; `alone` if that is the stream of all its users."""
        if alone and int(stream) == memory.stream:
            self._give(memory, memory.stream)
        else:
            driver = self._driver
            event = driver.event_create()
            driver.event_record(event, stream)
            self._returning.append((event, memory))
        self.collect()

    def collect(self) -> None:
        """Give back what is not used any more. Does not block."""
        driver = self._driver
        for _ in range(len(self._returning)):
            try:
                event, memory = self._returning.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                passed = driver.event_query(event)
            except TilekitError:  # with a fault, which is for others to hear of
                passed = True
            if not passed:
                self._returning.append((event, memory))
                continue
            driver.event_destroy(event)
            with self._lock:
                if self._stream is None:
                    self._stream = driver.stream_create(0)
            self._give(memory, int(self._stream))

    def _give(self, memory: Lent, stream: int) -> None:
        self._driver.ledger.give(memory.nbytes)
        try:
            memory.lender.free(memory.address, memory.nbytes, stream)
        except Exception:  # whoever allocates just now, and so collects, has nothing to do with it
            _log.exception("%r did not take back %d bytes at %#x", memory.lender, memory.nbytes, memory.address)
