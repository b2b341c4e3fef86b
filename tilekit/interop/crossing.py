"""The streams by which others and tilekit wait for each other."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from tilekit._runtime.device import Device
from tilekit._runtime.stream import Stream

__all__ = ["bridge", "consumer_stream"]

# How many streams there are, of each device, by which others are waited for at the same time.
_BRIDGES = 8

_bridges: weakref.WeakKeyDictionary[Device, list[Stream]] = weakref.WeakKeyDictionary()

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
