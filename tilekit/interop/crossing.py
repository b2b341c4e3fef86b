"""What both directions share: the streams by which others and tilekit wait for each other, and the memory that both know."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from tilekit.device import Device
from tilekit.driver.protocol import EventHandle
from tilekit.errors import DeviceError, TilekitError
from tilekit.storage import Garbage, Storage, Use
from tilekit.stream import Stream

__all__ = ["bridge", "consumer_stream", "known", "lend", "remember"]

# How many streams there are, of each device, by which others are waited for at the same time.
_BRIDGES = 8

_bridges: weakref.WeakKeyDictionary[Device, list[Stream]] = weakref.WeakKeyDictionary()
_shared: weakref.WeakKeyDictionary[Device, weakref.WeakValueDictionary[int, Storage]] = weakref.WeakKeyDictionary()

atexit.register(_bridges.clear)  # streams that outlive the modules have no way to go


def bridge(device: Device) -> Stream:
    """A stream that does nothing but wait: for others, on behalf of tilekit, or for tilekit, on behalf of others.

    An idle one, so that nobody waits for what is nothing to him; of eight that are all busy, the one that was used longest ago.
    """
    streams = _bridges.setdefault(device, [])
    for stream in tuple(streams):
        if stream.query():
            return stream
    if len(streams) < _BRIDGES:
        streams.append(device.stream())
    else:
        streams.append(streams.pop(0))
    return streams[-1]


def consumer_stream(device: Device, stream: Any) -> Stream | None:
    """The stream that a consumer names by DLPack's rules; None if it asks for no order at all (-1).

    Raises:
        TypeError, ValueError: it names none.
    """
    if stream is None:
        stream = 1  # CU_STREAM_LEGACY
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"__dlpack__: stream is None, 1, 2, -1 or the address of a CUDA stream, not {stream!r}")
    if stream == -1:
        return None
    if stream <= 0:
        raise ValueError(f"__dlpack__: stream={stream} is ambiguous: 1 is the legacy default stream, 2 that of the thread")
    return device.adopt(stream, None)


def remember(storage: Storage) -> None:
    """The memory is another library's too: if it is met again, it shall be the same Storage."""
    _shared.setdefault(storage.device, weakref.WeakValueDictionary())[storage.memory.address] = storage


def known(device: Device, low: int, high: int, itemsize: int) -> Storage | None:
    """The living Storage that has the bytes from `low` to `high`, if it can be viewed in elements of that size."""
    for storage in list(_shared.get(device, {}).values()):
        base = storage.memory.address
        fits = base <= low and high <= base + storage.nbytes and (low - base) % itemsize == 0
        if fits and not storage.borrowed:  # which may have been freed meanwhile, and the address be another's
            return storage
    return None


def lend(storage: Storage) -> None:
    """Others use the memory, on streams of theirs: when tilekit lets it go, it waits for all work of the device first. What they
    write is not seen."""
    remember(storage)
    if storage.memory.shadow is not None:
        storage.memory.shadow.trust()
    if storage.device.kind == "cuda":
        storage.leave_by(_Lent(storage.device))


class _Lent:
    """Takes what a lent storage leaves, and passes it on to the device once whoever uses it is done."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, garbage: Garbage) -> None:
        everybody: Any = _Everybody(self._device)  # in the place of a stream
        use: Use = (everybody, 0)
        self._device.garbage.append(Garbage(None, [use], _Left(self._device, garbage)))


class _Left:
    """Holds what a lent storage left; gives it to the device when it is collected itself."""

    def __init__(self, device: Device, garbage: Garbage) -> None:
        self._device, self._garbage = device, garbage

    def __del__(self) -> None:
        self._device.garbage.append(self._garbage)


class _Everybody:
    """All streams of a device, those of other libraries included: as much of a Stream as `Device.collect` asks for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._event: EventHandle = None

    def passed(self, serial: int) -> bool:
        """Whether all work is done that was on the device when this was first asked, or the device has failed."""
        driver, pool = self._device.driver, self._device.event_pool
        try:
            if self._event is None:
                event = driver.event_create()
                driver.event_record_all(event)
                self._event = event
            if not driver.event_query(self._event):
                return False
        except TilekitError as error:
            return isinstance(error, DeviceError) and error.lost  # else it could not be asked just now
        pool.append(self._event)
        return True
