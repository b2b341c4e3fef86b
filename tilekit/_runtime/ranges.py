"""The memory that tilekit and others both have, by address: who met it, and in which order it is used.

Storages over memory of others' overlap where a library's array and a part of it are both imported. Such storages have one order,
so that whoever uses one of them waits for the users of all. The table of a device has its ranges of addresses that storages cover
without a gap; they are disjoint, and each has one order.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from tilekit._driver.protocol import Memory
from tilekit._runtime.bridges import bridge
from tilekit._runtime.device import Device
from tilekit._runtime.hazards import AccessHistory, Use
from tilekit._runtime.storage import Imported, Kept, Storage

__all__ = ["Range", "Ranges", "admit", "known", "memory_at", "ranges_of", "remember", "storage_of", "used"]

_RECENT = 256  # how many ranges are kept that no storage is in, since their memory will be met again

_lock = threading.RLock()  # again by the same thread: a finalizer may import as well


class Range:
    """Addresses from `low` to `high` that storages cover.

    Attributes:
        order: of all who use them, by a weak reference. It lives as long as a storage has it, or work on one that was collected
            is not done, or few others were made since.
        memory: that of all of it, where the compiled part has made storages of that.
        parts: the storages, by weak references; some may be gone.
        ranges: where it is; None once it is part of another range.
    """

    __slots__ = ("__weakref__", "high", "low", "memory", "order", "parts", "ranges")

    def __init__(self, low: int, high: int, order: AccessHistory, ranges: Ranges) -> None:
        self.low, self.high, self.order = low, high, weakref.ref(order, self._left)
        self.memory: Memory | None = None
        self.parts: list[weakref.ref[Storage]] = []
        self.ranges: Ranges | None = ranges

    def _left(self, _: weakref.ref[AccessHistory]) -> None:
        ranges = self.ranges
        if ranges is not None:
            ranges.left.append(self)

    def add(self, storage: Storage) -> None:
        """Have one more part, inside the range."""
        for part in tuple(self.parts):
            if part() is None:
                with contextlib.suppress(ValueError):  # the compiled part was faster, and has put another in its place
                    self.parts.remove(part)
        self.parts.append(weakref.ref(storage))

    def storages(self) -> list[Storage]:
        """The parts that are still there."""
        return [storage for part in tuple(self.parts) if (storage := part()) is not None]

    def is_over(self) -> bool:
        """Whether nobody has or uses the memory any more, as far as is known: what is there next may be cut otherwise."""
        order = self.order()
        return order is None or not (isinstance(order, Storage) or order.is_busy() or self.storages())


_Met = list[tuple[Range, AccessHistory]]
_low = attrgetter("low")


class Ranges:
    """The ranges of one device, by their addresses.

    The compiled part reads them, and gives a range more parts; whoever changes more of them has the lock. Each change of the list
    is one that leaves them disjoint.

    Attributes:
        entries: disjoint, in the order of their addresses.
        left: those that nobody uses any more: finalizers append to it.
        leave: takes what a storage of the device leaves.
        recent: the orders of the ranges that were made last.
    """

    __slots__ = ("entries", "leave", "left", "recent")

    def __init__(self, leave: Callable[[Kept], None]) -> None:
        self.entries: list[Range] = []
        self.left: deque[Range] = deque()
        self.leave = leave
        self.recent: deque[AccessHistory] = deque(maxlen=_RECENT)

    def across(self, low: int, high: int) -> _Met:
        """Those that have bytes from `low` to `high`, and their orders."""
        self.tidy()
        first = bisect.bisect_right(self.entries, low, key=_low)
        if first and self.entries[first - 1].high > low:
            first -= 1
        last = bisect.bisect_left(self.entries, high, first, key=_low)
        met = [entry for entry in self.entries[first:last] if not self.dropped(entry)]
        return [(entry, order) for entry in met if (order := entry.order()) is not None]

    def tidy(self) -> None:
        """Drop the ranges that nobody uses any more."""
        while self.left:
            gone = self.left.popleft()
            if gone.ranges is not None:
                self.drop(gone)

    def put(self, known: Range, order: AccessHistory) -> None:
        """Add one, disjoint from all others."""
        bisect.insort(self.entries, known, key=_low)
        if not isinstance(order, Storage):  # which is to be freed when it is dropped
            self.recent.append(order)

    def widen(self, known: Range, low: int, high: int) -> None:
        """Let one have more, disjoint from all others."""
        known.low, known.high = min(known.low, low), max(known.high, high)

    def dropped(self, known: Range) -> bool:
        """Whether one was over, and so was taken out."""
        known.ranges = None  # while it is, the compiled part gives it no more parts
        if known.is_over():
            self.drop(known)
            return True
        known.ranges = self
        return False

    def drop(self, known: Range) -> None:
        """Take one out."""
        at = bisect.bisect_left(self.entries, known.low, key=_low)
        if at < len(self.entries) and self.entries[at] is known:  # else a finalizer that came in between has
            del self.entries[at]
            known.ranges = None
            del known.order  # whose callback has the range, in a cycle


def ranges_of(device: Device) -> Ranges:
    """Those of a device."""
    ranges = device.ranges
    if ranges is None:
        with _lock:
            ranges = device.ranges = device.ranges or Ranges(device.imports.append)
    return ranges


def storage_of(device: Device, low: int, high: int, itemsize: int, array: Any, use: Use | None) -> Storage:
    """The Storage that has the memory of an array, which may be written: one that is known, or a new one of that memory alone.

    Args:
        device, low, high, itemsize: as of `known`.
        array: what keeps the memory alive.
        use: the moment behind what its library has done with it; None if that is done.
    """
    with _lock:
        ranges = ranges_of(device)
        if ranges.left:
            ranges.tidy()
        entries = ranges.entries
        at = bisect.bisect_right(entries, low, key=_low)
        entry = entries[at - 1] if at and entries[at - 1].high > low else None
        if entry is not None and (low, high) != (entry.low, entry.high) and ranges.dropped(entry):
            entry, at = None, at - 1
        order = None if entry is None else entry.order()
        if entry is not None and high <= entry.high and order is not None:
            for storage in entry.storages():
                if _has(storage, low, high, itemsize, True):
                    used(storage, device, use)
                    return storage
        memory = memory_at(device, low, high)
        if entry is None and (at == len(entries) or entries[at].low >= high):
            order = AccessHistory()
            entry = Range(low, high, order, ranges)
            ranges.put(entry, order)
        if entry is None or order is None or high > entry.high:
            storage = admit(device, memory, array, use, None)
        else:
            storage = Imported(device, memory, order, owner=array)
            entry.add(storage)
            used(storage, device, use)
    device.let_go(storage.nbytes)
    return storage


def memory_at(device: Device, low: int, high: int) -> Memory:
    """The memory between two addresses of others'."""
    buffer = None
    if device.kind == "cpu":
        buffer = np.ndarray(high - low, np.uint8, memoryview((ctypes.c_uint8 * (high - low)).from_address(low)))
    return Memory(low, high - low, buffer)


def used(storage: AccessHistory, device: Device, use: Use | None) -> None:
    """The library that has the memory too has used it until the moment `use`: whoever comes later waits for that."""
    before = storage.theirs
    if use is None or use == before:
        return
    if before is not None:
        if before[0] is use[0]:
            use = max(before, use, key=lambda one: one[1])
        elif not use[0].follows(*before) and not before[0].is_complete(before[1]):
            use = _behind(device, [before, use])
    storage.theirs = use


def known(device: Device, low: int, high: int, itemsize: int, writable: bool) -> Storage | None:
    """The living Storage that has the bytes from `low` to `high`, and can be viewed in elements of that size, writable or not."""
    with _lock:
        for entry, _ in ranges_of(device).across(low, high):
            for storage in entry.storages():
                if _has(storage, low, high, itemsize, writable):
                    return storage
    return None


def _has(storage: Storage, low: int, high: int, itemsize: int, writable: bool) -> bool:
    base = storage.memory.address
    fits = base <= low and high <= base + storage.nbytes and (low - base) % itemsize == 0
    return fits and not storage.borrowed and (storage.readonly is None) == writable


def remember(storage: Storage) -> None:
    """The memory is another library's too: if it is met again, it shall be the same Storage."""
    if isinstance(storage, Imported) or not storage.nbytes:
        return
    low, high = storage.memory.address, storage.memory.address + storage.nbytes
    with _lock:
        ranges = ranges_of(storage.device)
        met = ranges.across(low, high)
        if all(order is not storage for _, order in met):
            _join(ranges, storage.device, met, low, high, storage)


def admit(device: Device, memory: Memory, owner: Any, last: Use | None, readonly: str | None) -> Storage:
    """A new Storage over memory of others', in one order with all that is known of it.

    Args:
        device: where it is.
        memory: the memory.
        owner: what keeps it alive. Memory without one may be freed, and the address become another's: it joins what is known,
            and is not known itself.
        last: the moment behind what its library has done with it.
        readonly: why it must not be written.
    """
    low, high = memory.address, memory.address + memory.nbytes
    with _lock:
        ranges = ranges_of(device)
        met = ranges.across(low, high)
        if owner is not None:
            joined, order = _join(ranges, device, met, low, high, None)
        elif len(met) == 1:
            joined, order = met[0]
        else:
            joined, order = None, AccessHistory()
            for _, other in met:
                _gather(device, order, other)
        storage = Imported(device, memory, order, owner=owner, readonly=readonly)
        if joined is not None:
            joined.add(storage)
        used(storage, device, last)
    return storage


def _join(ranges: Ranges, device: Device, met: _Met, low: int, high: int, own: Storage | None) -> tuple[Range, AccessHistory]:
    """One range from `low` to `high`, and of all that was met there; `own` is the memory there, if that is tilekit's.

    Raises:
        ValueError: that would be memory of several storages of tilekit's.
    """
    owns = [order for _, order in met if isinstance(order, Storage)] + ([] if own is None else [own])
    if len(owns) > 1:
        raise ValueError(
            f"the {high - low:,} bytes from {low:#x} on reach over several tensors of {device!r}: that is no one array's memory"
        )
    ends = [(entry.low, entry.high) for entry, _ in met] + [(low, high)]
    if own is None and len(met) == 1:
        joined, order = met[0]
        ranges.widen(joined, low, high)
        return joined, order
    order = owns[0] if owns else AccessHistory()
    joined = Range(min(start for start, _ in ends), max(end for _, end in ends), order, ranges)
    gathered = [_gather(device, order, other) for _, other in met]
    if owns:
        joined.add(owns[0])
    for entry, _ in met:
        ranges.drop(entry)
        for storage in entry.storages():
            if isinstance(storage, Imported):
                storage.history = order
                joined.add(storage)
    ranges.put(joined, order)
    for (_, other), known in zip(met, gathered, strict=True):  # what other threads did meanwhile
        _gather(device, order, other, known)
    return joined, order


def _gather(device: Device, order: AccessHistory, other: AccessHistory, known: Use | None = None) -> Use | None:
    """Let those who use the memory by `order` wait for those who have used it by `other`, but for a write that is `known`.

    Returns:
        The last write by `other`.
    """
    if other is order:
        return None
    before, last = order.last_write, other.last_write
    if last is not None and last is not known:
        if before is None or before[1] <= before[0].completed:
            order.last_write = last
        elif before[0] is last[0]:
            order.last_write = max(before, last, key=lambda use: use[1])
        elif last[1] > last[0].completed:
            order.last_write = _behind(device, [before, last])
    for stream, serial in list(other.reads.items()):
        order.reads[stream] = max(serial, order.reads.get(stream, 0))
    used(order, device, other.theirs)
    return last


def _behind(device: Device, uses: list[Use]) -> Use:
    """A moment behind all of these, on a stream that does nothing but wait."""
    stream = bridge(device, uses)
    for user, serial in uses:
        stream.wait_for(user, serial)
    return stream, stream.mark()
