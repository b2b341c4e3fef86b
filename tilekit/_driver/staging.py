"""Copies between the device and memory of the host's that it cannot reach by itself: through page-locked chunks.

A driver copies to and from pageable memory while the caller waits, for all that is in the stream before. With page-locked
memory it does so by itself. There are many small chunks, for copies that are submitted at once, and a few large ones, through
which the rest goes piece by piece, while the host copies the next piece: that blocks, and is for a thread that may.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit._driver.hostcopy import in_parallel
from tilekit.errors import TilekitError

if TYPE_CHECKING:
    from tilekit._driver.protocol import Driver, Memory

__all__ = ["PARALLEL", "Chunk", "Fetch", "Staging"]

SMALL = 64 * 1024  # bytes: copied by the host in less time than a task takes to change threads
LARGE = 4 * 1024 * 1024
_SMALL_SLAB, _SMALL_MOST = 32, 512  # chunks allocated at once, and in all: 2 MiB, 32 MiB
_LARGE_SLAB, _LARGE_MOST = 4, 16  # 16 MiB, 64 MiB
# From here on several threads move the data faster, piece by piece, than the driver does when it copies pageable memory alone.
PARALLEL = 8 * LARGE
_LOOKED_AT = 8  # how many chunks are looked at, to find one whose last copy has passed


class Chunk:
    """A piece of page-locked memory, and the event behind the last copy that used it."""

    __slots__ = ("bytes", "event", "used")

    def __init__(self, memory: np.ndarray[Any, Any], event: Any) -> None:
        self.bytes, self.event, self.used = memory, event, False


class _Pool:
    """Chunks of one size."""

    def __init__(
        self, driver: Driver, allocate: Callable[[int], np.ndarray[Any, Any]], size: int, slab: int, capacity: int
    ) -> None:
        self._driver, self._allocate, self._size, self._slab, self._capacity = driver, allocate, size, slab, capacity
        self._allocated = 0
        self._lock = threading.Lock()
        self._idle: list[Chunk] = []
        self._busy: deque[Chunk] = deque()  # a copy may still use them

    def give_back(self, chunk: Chunk) -> None:
        """Let others have a chunk. Called by finalizers too, so without the lock: an append is enough."""
        (self._busy if chunk.used else self._idle).append(chunk)

    def take(self) -> Chunk | None:
        """A chunk that no copy uses any more; None if there is none at the moment. Does not block."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            for _ in range(min(len(self._busy), _LOOKED_AT)):
                chunk = self._busy.popleft()
                if self._passed(chunk):
                    chunk.used = False
                    return chunk
                self._busy.append(chunk)
            if self._allocated >= self._capacity:
                return None
            memory = self._allocate(self._size * self._slab)
            if not memory.nbytes:
                return None
            self._allocated += self._slab
            starts = range(0, memory.nbytes, self._size)
            chunk, *others = (Chunk(memory[at : at + self._size], self._driver.event_create()) for at in starts)
            self._idle.extend(others)
            return chunk

    def _passed(self, chunk: Chunk) -> bool:
        try:
            return self._driver.event_query(chunk.event)
        except TilekitError:  # it has, with a fault, which is for others to hear of
            return True

    def wait(self) -> Chunk | None:
        """A chunk, as soon as there is one; None if there never will be."""
        pause_s = 20e-6
        while (chunk := self.take()) is None:
            if not self._allocated:
                return None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1e-3)
        return chunk


class Fetch:
    """A small copy from the device that is on its way into a chunk."""

    __slots__ = ("_chunk", "_lock", "_pool", "_target")

    def __init__(self, pool: _Pool, chunk: Chunk, target: np.ndarray[Any, Any]) -> None:
        self._pool, self._target = pool, target
        self._chunk: Chunk | None = chunk
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Move what came to the array that it is for. Once the copy has passed; may be called again."""
        with self._lock:
            chunk, self._chunk = self._chunk, None
            if chunk is not None:
                np.copyto(self._target, chunk.bytes[: self._target.nbytes])
                chunk.used = False
                self._pool.give_back(chunk)

    def __del__(self) -> None:
        if self._chunk is not None:  # nobody wants it any more; whoever takes the chunk looks at its event
            self._pool.give_back(self._chunk)


class Staging:
    """The chunks of one device.

    Args:
        driver: the device's.
        allocate: gives so many bytes of page-locked memory, for good; none if there is no more.
        is_pinned: whether an array is in page-locked memory already.
    """

    def __init__(
        self,
        driver: Driver,
        allocate: Callable[[int], np.ndarray[Any, Any]],
        is_pinned: Callable[[np.ndarray[Any, Any]], bool],
    ) -> None:
        self._driver, self.is_pinned = driver, is_pinned
        self._small = _Pool(driver, allocate, SMALL, _SMALL_SLAB, _SMALL_MOST)
        self._large = _Pool(driver, allocate, LARGE, _LARGE_SLAB, _LARGE_MOST)

    def send(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: Any) -> bool:
        """Submit a small copy to the device. Does not block: False if it is not small, or no chunk is free.

        Args:
            source: C-contiguous. It has been read when this returns.
        """
        chunk = self._small.take() if source.nbytes <= SMALL else None
        if chunk is None:
            return False
        try:
            self._put(chunk, memory, offset, _flat(source), stream)
        finally:
            self._small.give_back(chunk)
        return True

    def send_all(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Submit a copy of any size to the device. Blocks until `source`, C-contiguous, has been read."""
        flat = _flat(source)

        def chunks() -> Iterator[tuple[int, Chunk | None]]:  # taken by the caller: nobody else shall wait for this stream
            for start in range(0, flat.nbytes, LARGE):
                yield start, self._large.wait()

        def send(transfer: tuple[int, Chunk | None]) -> None:
            start, chunk = transfer
            piece = flat[start : start + LARGE]
            if chunk is None:
                self._driver.copy_from_host(memory, offset + start, piece, stream)
                return
            try:
                self._put(chunk, memory, offset + start, piece, stream)
            finally:
                self._large.give_back(chunk)

        _each(send, chunks(), flat.nbytes)

    def _put(self, chunk: Chunk, memory: Memory, offset: int, flat: np.ndarray[Any, Any], stream: Any) -> None:
        part = chunk.bytes[: flat.nbytes]
        np.copyto(part, flat)
        self._driver.copy_from_host(memory, offset, part, stream)
        self._record(chunk, stream)

    def fetch(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: Any) -> Fetch | None:
        """Submit a small copy from the device; `finish` it once it has passed. None if not small, or no chunk is free.

        Does not block.
        """
        chunk = self._small.take() if target.nbytes <= SMALL else None
        if chunk is None:
            return None
        fetch = Fetch(self._small, chunk, _flat(target))
        self._get(chunk, target.nbytes, memory, offset, stream)
        return fetch

    def fetch_all(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: Any) -> None:
        """Copy from the device, any size. Blocks until all of `target`, C-contiguous, has been written."""
        flat = _flat(target)

        def chunks() -> Iterator[tuple[int, Chunk | None]]:
            for start in range(0, flat.nbytes, LARGE):
                chunk = self._large.wait()
                if chunk is not None:
                    try:
                        self._get(chunk, min(LARGE, flat.nbytes - start), memory, offset + start, stream)
                    except BaseException:
                        self._large.give_back(chunk)
                        raise
                yield start, chunk

        def fetch(transfer: tuple[int, Chunk | None]) -> None:
            start, chunk = transfer
            piece = flat[start : start + LARGE]
            if chunk is None:
                self._driver.copy_to_host(piece, memory, offset + start, stream)
                self._driver.stream_synchronize(stream)
                return
            try:
                self._driver.event_synchronize(chunk.event)
                np.copyto(piece, chunk.bytes[: piece.nbytes])
                chunk.used = False
            finally:
                self._large.give_back(chunk)

        if flat.nbytes > LARGE:
            self._driver.stream_synchronize(stream)  # the threads that copy are everybody's: only the caller waits for the device
        _each(fetch, chunks(), flat.nbytes)

    def _get(self, chunk: Chunk, nbytes: int, memory: Memory, offset: int, stream: Any) -> None:
        self._driver.copy_to_host(chunk.bytes[:nbytes], memory, offset, stream)
        self._record(chunk, stream)

    def _record(self, chunk: Chunk, stream: Any) -> None:
        chunk.used = True
        self._driver.event_record(chunk.event, stream)


def _each(copy: Callable[[Any], None], transfers: Iterable[Any], nbytes: int) -> None:
    """`copy(transfer)` for each piece of so many bytes; by several threads if there are several."""
    if nbytes > LARGE:
        in_parallel(copy, transfers)
    else:
        for transfer in transfers:
            copy(transfer)


def _flat(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1).view(np.uint8)
