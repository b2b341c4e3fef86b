"""Stream-ordered allocation: free lists of each stream, the garbage that collected storages leave, and how a device runs out.

Memory is allocated and freed in the order of streams (cuMemAllocAsync). A finalizer calls no driver: it puts a small block on a
free list of its stream, where that needs to wait for nobody, or leaves it as garbage, which the next allocation frees.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilekit._driver.ledger import ADDRESSABLE
from tilekit._driver.protocol import Allocator, Driver, Memory, StreamHandle
from tilekit._runtime.storage import Garbage, Kept, Storage
from tilekit.errors import OutOfMemoryError

if TYPE_CHECKING:
    from tilekit._runtime.device import Device
    from tilekit._runtime.stream import Stream

__all__ = ["LARGEST_KEPT", "MANY", "MUCH", "FreeList", "FreeLists", "StreamOrderedMemory", "allocate"]

# Blocks up to this many bytes are kept when they are freed: for each stream, of up to _SIZES sizes, one of each or up to _BYTES.
# (The partial sums of a product of few rows are some MiB, and the driver takes 2 us to give and take them.)
LARGEST_KEPT = 8 << 20
_SIZES, _BYTES, _BLOCKS = 32, 2 << 20, 64
# How many storages are wanted, of how many bytes, until it is looked which of others' memory can go.
MANY, MUCH = 64, 64 << 20


class FreeList(list[Memory]):
    """Freed blocks of one size that all their users left behind on one stream, so that its next work may use them at once.

    Attributes:
        number: the stream's.
        capacity: how many are worth keeping.
        closed: whether nobody looks here any more.
    """

    __slots__ = ("capacity", "closed", "number")

    def __init__(self, number: int, nbytes: int) -> None:
        super().__init__()
        self.number, self.capacity, self.closed = number, min(_BLOCKS, max(1, _BYTES // nbytes)), False


class FreeLists(dict[int, FreeList]):
    """The free lists of one stream by the size of their blocks.

    Attributes:
        number, handle: the stream's.
    """

    __slots__ = ("handle", "number")

    def __init__(self, number: int, handle: StreamHandle) -> None:
        super().__init__()
        self.number, self.handle = number, handle

    def of_size(self, nbytes: int, driver: Driver) -> FreeList:
        """The list of blocks of so many bytes. Too many sizes are those of a program whose sizes do not repeat: then all go."""
        if len(self) >= _SIZES:
            self.close(driver)
        return self.setdefault(nbytes, FreeList(self.number, nbytes))

    def close(self, driver: Driver) -> None:
        """Free all blocks, and keep no more in these lists."""
        lists = list(self.values())
        self.clear()
        for blocks in lists:  # a finalizer that appends to one looks again whether it is closed
            blocks.closed = True
        self._free(driver, lists)

    def drain(self, driver: Driver) -> None:
        """Free all blocks."""
        self._free(driver, list(self.values()))

    def _free(self, driver: Driver, lists: list[FreeList]) -> None:
        for blocks in lists:
            while blocks:
                try:
                    memory = blocks.pop()
                except IndexError:  # another thread was faster
                    break
                driver.free(memory, self.handle)

    def content(self) -> tuple[int, int]:
        """(blocks, bytes) that are kept."""
        counts = [(len(blocks), nbytes) for nbytes, blocks in list(self.items())]
        return sum(n for n, _ in counts), sum(n * nbytes for n, nbytes in counts)


class StreamOrderedMemory:
    """The memory of a device (internal); `Device` is one. Any thread may use it.

    Attributes:
        driver: where memory is from.
        garbage: what collected storages left, to be freed.
        retired: the streams that were collected, to be destroyed.
        imports: what collected storages of other libraries' memory left, while the device used it.
        owners: the same that was looked at before.
        free_lists: the free blocks of each stream of tilekit's own, by its number.
        largest_kept: the size of the largest blocks that free lists get; 0 where they are of no use.
    """

    __slots__ = (
        "_letting",
        "_lock",
        "_private",
        "_unseen",
        "driver",
        "free_lists",
        "garbage",
        "imports",
        "largest_kept",
        "owners",
        "retired",
    )

    driver: Driver
    # Finalizers append to these three, from any thread and at any moment, so nobody may need a lock for it.
    garbage: deque[Garbage]
    imports: list[Kept]
    retired: deque[tuple[weakref.ref[Stream], StreamHandle]]
    owners: list[Kept]
    free_lists: dict[int, FreeLists]
    largest_kept: int
    _lock: threading.Lock
    _letting: threading.Lock  # of who looks at `owners`
    _unseen: tuple[int, int]  # how many storages, of how many bytes, since `owners` was looked at
    _private: StreamHandle  # of a stream that waits for all users of what it frees; None before there is one

    def _no_garbage(self, driver: Driver) -> None:
        """Begin: nothing was allocated yet."""
        self.driver = driver
        self.garbage, self.imports, self.retired, self.owners, self.free_lists = deque(), [], deque(), [], {}
        self._unseen = (0, 0)
        self.largest_kept = LARGEST_KEPT if driver.keeps_free_lists else 0
        self._lock, self._letting, self._private = threading.Lock(), threading.Lock(), None

    def collect(self) -> None:
        """Free the memory of collected storages, in stream order, destroy collected streams, and let go of what is others'. Does
        not block.

        Called by `stream` and by `synchronize`.
        """
        self.free_collected()
        self._let_go()

    def free_collected(self) -> None:
        """But for what is others': what every allocation does (internal)."""
        if self.garbage:
            for item in _drained(self.garbage):
                try:
                    self._free(item)
                except BaseException:
                    self.garbage.appendleft(item)  # the next call tries again
                    raise
        if self.retired:
            # In a cycle, a stream's finalizer may run before that of a storage, which names the stream as its user and so keeps
            # it alive until its memory has been freed.
            alive = []
            for stream, handle in _drained(self.retired):
                if stream() is None:
                    self._close_free_lists(handle)
                    self.driver.stream_destroy(handle)
                else:
                    alive.append((stream, handle))
            self.retired.extend(alive)

    def let_go(self, nbytes: int) -> None:
        """One more storage of so many bytes is wanted. Whatever a program does, it must let go of what it imported; of little
        that can wait a while, since the driver has to be asked (internal)."""
        count, total = self._unseen
        self._unseen = (count + 1, total + nbytes)
        if count >= MANY + len(self.owners) or total + nbytes > MUCH:
            self.collect()

    def _let_go(self) -> None:
        self._unseen = (0, 0)
        if not self._letting.acquire(blocking=False):  # another thread is at it, or this one, whom a finalizer interrupted
            return
        try:
            count = len(self.imports)  # finalizers may add to it meanwhile
            waiting = self.owners = self.owners + self.imports[:count]
            del self.imports[:count]
            self.owners = self._in_use(waiting)
        finally:
            self._letting.release()
        # What is let go goes with `waiting`, now that the lock is free: what is run then may come back here.

    @staticmethod
    def _in_use(waiting: list[Kept]) -> list[Kept]:
        """Those whose moments have not passed, as far as a few questions of each stream tell. (`tilekit._native` has its own,
        which alone leaves storages.)"""
        serials: dict[Stream, list[int]] = {}
        for stream, serial, *_ in waiting:  # type: ignore[misc]
            serials.setdefault(stream, []).append(serial)
        reached = {stream: _reached(stream, of_stream) for stream, of_stream in serials.items()}
        return [item for item in waiting if item[1] > reached[item[0]]]  # type: ignore[index]

    def obtain(self, nbytes: int, stream: Stream) -> Memory:
        """New memory from the driver. If it has none, everything is freed that nobody uses, and it is asked again (internal).

        Raises:
            OutOfMemoryError: there is none all the same.
        """
        driver = self.driver
        if nbytes >= ADDRESSABLE:
            raise driver.exhausted(nbytes)
        try:
            return driver.allocate(nbytes, stream.handle)
        except OutOfMemoryError as error:
            limit = driver.ledger.limit
            if 0 < error.total_bytes < nbytes or (limit is not None and limit < nbytes):
                raise
        gc.collect()  # tensors in cycles
        self.release()
        try:
            return driver.allocate(nbytes, stream.handle)
        except OutOfMemoryError:
            pass
        driver.wait_idle()  # what is freed behind work comes free with it
        self.release()
        return driver.allocate(nbytes, stream.handle)

    def release(self) -> None:
        """Free collected storages, the blocks of free lists, and what the driver's pool holds and nobody uses (internal)."""
        self.collect()
        for lists in list(self.free_lists.values()):
            lists.drain(self.driver)
        self.driver.trim()
        self.driver.pinned.release()

    def use_allocator(self, allocator: Allocator | None) -> None:
        """Take memory from `allocator` from now on; None for the driver's own (internal)."""
        driver = self.driver
        driver.allocator = allocator
        self.largest_kept = LARGEST_KEPT if driver.keeps_free_lists and allocator is None else 0
        for lists in list(self.free_lists.values()):
            lists.close(driver)

    def _close_free_lists(self, handle: StreamHandle) -> None:
        """The stream with this handle is about to be destroyed, and its object is gone."""
        for number, lists in list(self.free_lists.items()):
            if lists.handle is handle:
                del self.free_lists[number]
                lists.close(self.driver)

    def _free(self, item: Garbage) -> None:
        if item.memory is None:
            self.imports.extend((stream, serial, item.owner, None) for stream, serial in item.uses)
            return
        # A stream that runs behind all users needs no waits. If there is none, a private stream waits for them: a user's stream
        # must not be held up by others for the sake of memory that it is done with.
        for stream, _ in item.uses:
            if stream.closed or stream.device is not self:
                continue
            if len(item.uses) == 1 or all(stream.follows(*use) for use in item.uses):
                self.driver.free(item.memory, stream.handle)
                return
        with self._lock:
            if self._private is None:
                self._private = self.driver.stream_create(0)
        marks = [mark for stream, serial in item.uses if (mark := stream.mark_at(serial)) is not None]
        self.driver.free(item.memory, self._private, [mark.event for mark in marks])


def allocate(device: Device, nbytes: int, stream: Stream) -> Storage:
    """New memory on `device`, allocated in the order of `stream`. Does not block, unless memory runs out.

    Raises:
        OutOfMemoryError: there is not enough, even when all is free that will be. Everything else stays valid.
        ValueError: `nbytes` is negative.
    """
    if nbytes <= 0:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        return Storage(device, device.no_memory)
    if device.garbage or device.retired:
        device.free_collected()
    if device.imports or device.owners:
        device.let_go(nbytes)
    blocks = None
    if nbytes <= device.largest_kept and (lists := device.free_lists.get(stream.number)) is not None:
        blocks = lists.get(nbytes)
        if blocks is None:
            blocks = lists.of_size(nbytes, device.driver)
    try:
        memory = blocks.pop() if blocks else device.obtain(nbytes, stream)
    except IndexError:  # another thread was faster
        memory = device.obtain(nbytes, stream)
    storage: Storage = object.__new__(Storage)  # past __init__, which asks more
    storage.device, storage.memory, storage.nbytes, storage.owned = device, memory, nbytes, True
    storage.owner = storage.readonly = None
    storage.borrowed = storage.guarded = False
    storage.last_write, storage.reads, storage.theirs = (stream, stream.pending), {}, None
    storage._leave, storage._free_list = device.garbage.append, blocks
    return storage


def _reached(stream: Stream, serials: list[int]) -> int:
    """The last of some moments that is found to have passed, -1 if none is: few questions, since each takes long."""
    serials.sort()  # storages are collected in any order
    if not stream.passed(serials[0]):
        return -1
    at = len(serials) - 1
    while at > 0 and not stream.passed(serials[at]):
        at //= 2
    return serials[at]


def _drained(queue: deque[Any]) -> Iterator[Any]:
    while True:
        try:
            item = queue.popleft()
        except IndexError:  # empty, or another thread was faster
            return
        yield item
