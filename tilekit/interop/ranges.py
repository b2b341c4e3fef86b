"""The memory that tilekit and others both have, by address: who met it, and in which order it is used.

Storages over memory of others' overlap where a library's array and a part of it are both imported. Such storages have one order,
so that whoever uses one of them waits for the users of all. The table of a device has its ranges of addresses that storages cover
without a gap; they are disjoint, and each has one order.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from tilekit._driver.protocol import Memory
from tilekit._runtime.device import Device
from tilekit._runtime.hazards import AccessHistory, Use
from tilekit._runtime.storage import Imported, Storage
from tilekit.interop.crossing import bridge

__all__ = ["admit", "known", "memory_at", "owner_range", "remember", "storage_of", "used"]

_FEW, _LITTLE = 8, 1 << 20  # how many collected storages are looked at together, and of how many bytes

_lock = threading.RLock()  # again by the same thread: a finalizer may import as well
_tables: weakref.WeakKeyDictionary[Device, _Table] = weakref.WeakKeyDictionary()


class _Range:
    """Addresses from `low` to `high` that storages cover.

    Attributes:
        order: of all who use them. It lives as long as a storage has it, or work on one that was collected is not done.
        parts: the storages; some may be gone.
        table: where it is; None once it is part of another range.
    """

    __slots__ = ("__weakref__", "high", "low", "order", "parts", "table")

    def __init__(self, low: int, high: int, order: AccessHistory, table: _Table) -> None:
        self.low, self.high, self.order = low, high, weakref.ref(order, self._left)
        self.parts: list[weakref.ref[Storage]] = []
        self.table: _Table | None = table

    def _left(self, _: weakref.ref[AccessHistory]) -> None:
        table = self.table
        if table is not None:
            table.left.append(self)

    def add(self, storage: Storage) -> None:
        """Have one more part, inside the range."""
        if self.parts:
            self.parts = [part for part in self.parts if part() is not None]
        self.parts.append(weakref.ref(storage))

    def storages(self) -> list[Storage]:
        """The parts that are still there."""
        return [storage for part in self.parts if (storage := part()) is not None]


_Met = list[tuple[_Range, AccessHistory]]


class _Table:
    """The ranges of one device, by their addresses.

    Attributes:
        ranges: disjoint, in the order of their addresses.
        lows: the lower end of each.
        left: those that nobody uses any more: finalizers append to it.
    """

    def __init__(self) -> None:
        self.ranges: list[_Range] = []
        self.lows: list[int] = []
        self.left: deque[_Range] = deque()

    def across(self, low: int, high: int) -> _Met:
        """Those that have bytes from `low` to `high`, and their orders."""
        self.tidy()
        first = bisect.bisect_right(self.lows, low)
        if first and self.ranges[first - 1].high > low:
            first -= 1
        last = bisect.bisect_left(self.lows, high, first)
        met = [(entry, order) for entry in self.ranges[first:last] if (order := entry.order()) is not None]
        for entry in [entry for entry in self.ranges[first:last] if entry.order() is None]:  # just now
            self.drop(entry)
        return met

    def tidy(self) -> None:
        """Drop the ranges that nobody uses any more."""
        while self.left:
            gone = self.left.popleft()
            if gone.table is not None:
                self.drop(gone)

    def put(self, known: _Range) -> None:
        """Add one, disjoint from all others."""
        at = bisect.bisect_left(self.lows, known.low)
        self.lows.insert(at, known.low)
        self.ranges.insert(at, known)

    def widen(self, known: _Range, low: int, high: int) -> None:
        """Let one have more, disjoint from all others."""
        at = bisect.bisect_left(self.lows, known.low)
        self.lows[at] = known.low = min(known.low, low)
        known.high = max(known.high, high)

    def drop(self, known: _Range) -> None:
        """Take one out."""
        at = bisect.bisect_left(self.lows, known.low)
        assert self.ranges[at] is known, "ranges are disjoint"
        del self.ranges[at], self.lows[at]
        known.table = None
        del known.order  # whose callback has the range, in a cycle


def _table(device: Device) -> _Table:
    table = _tables.get(device)
    return _tables.setdefault(device, _Table()) if table is None else table


def storage_of(device: Device, low: int, high: int, itemsize: int, array: Any, use: Use | None) -> Storage:
    """The Storage that has the memory of an array, which may be written: one that is known, or a new one.

    Args:
        device, low, high, itemsize: as of `known`.
        array: what keeps the memory alive.
        use: the moment behind what its library has done with it; None if that is done.
    """
    with _lock:
        table = _table(device)
        if table.left:
            table.tidy()
        lows, entries = table.lows, table.ranges
        at = bisect.bisect_right(lows, low)
        entry = entries[at - 1] if at and entries[at - 1].high > low else None
        order = None if entry is None else entry.order()
        if entry is not None and high <= entry.high and order is not None:
            for storage in entry.storages():
                if _has(storage, low, high, itemsize, True):
                    used(storage, device, use)
                    return storage
        start, end = owner_range(array, low, high)
        if (low - start) % itemsize:
            start, end = low, high  # a tensor's place in its storage counts elements
        memory = memory_at(device, start, end)
        if entry is None and (not at or entries[at - 1].high <= start) and (at == len(lows) or lows[at] >= end):
            order = AccessHistory()
            entry = _Range(start, end, order, table)
            table.put(entry)
        if entry is None or order is None or not (entry.low <= start and end <= entry.high):
            return admit(device, memory, array, use, None)
        storage = Imported(device, memory, order, owner=array)
        entry.add(storage)
        used(storage, device, use)
    # What was imported must be let go of, by a program that allocates nothing of its own; little of it can wait a while.
    if (device.garbage or device.owners) and (storage.nbytes > _LITTLE or len(device.garbage) > _FEW):
        device.collect()
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
        for entry, _ in _table(device).across(low, high):
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
        table = _table(storage.device)
        met = table.across(low, high)
        if all(order is not storage for _, order in met):
            _join(table, storage.device, met, low, high, storage)


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
        table = _table(device)
        met = table.across(low, high)
        if owner is not None:
            joined, order = _join(table, device, met, low, high, None)
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


def _join(table: _Table, device: Device, met: _Met, low: int, high: int, own: Storage | None) -> tuple[_Range, AccessHistory]:
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
        table.widen(joined, low, high)
        return joined, order
    order = owns[0] if owns else AccessHistory()
    joined = _Range(min(start for start, _ in ends), max(end for _, end in ends), order, table)
    gathered = [_gather(device, order, other) for _, other in met]
    if owns:
        joined.add(owns[0])
    for entry, _ in met:
        table.drop(entry)
        for storage in entry.storages():
            if isinstance(storage, Imported):
                storage.history = order
                joined.add(storage)
    table.put(joined)
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


# what a library's array is a part of


def owner_range(obj: Any, low: int, high: int) -> tuple[int, int]:
    """The addresses between which the memory lies that `obj` is a view of, as far as its library says; at least `low` to `high`.

    All views of one owner are then one Storage. NumPy is asked for the outermost array, PyTorch for the tensor's storage, CuPy
    for the allocation.
    """
    start, end = low, high
    if isinstance(obj, np.ndarray):
        start, end = _of_bases(obj, low, high)
    elif callable(storage := getattr(obj, "untyped_storage", None)):
        try:
            start = storage().data_ptr()
            end = start + storage().nbytes()
        except (RuntimeError, NotImplementedError):  # PyTorch's, of tensors that have none
            return low, high
    elif (memory := getattr(getattr(obj, "data", None), "mem", None)) is not None:
        address, size = getattr(memory, "ptr", None), getattr(memory, "size", None)
        if not isinstance(address, int) or not isinstance(size, int):
            return low, high
        start, end = address, address + size
    return (start, end) if start <= low and high <= end else (low, high)


def _of_bases(array: np.ndarray[Any, Any], low: int, high: int) -> tuple[int, int]:
    """The extent of the outermost array that has the bytes of `array`."""
    base = array.base
    while base is not None:  # what as_strided makes has a base that is no array itself
        if isinstance(base, np.ndarray) and base.size:
            start = base.__array_interface__["data"][0]
            ends = [(n - 1) * stride for n, stride in zip(base.shape, base.strides, strict=True)]
            before, behind = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
            if start + before <= low and high <= start + behind + base.itemsize:
                low, high = start + before, start + behind + base.itemsize
        base = getattr(base, "base", None)
    return low, high
