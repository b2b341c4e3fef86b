"""Scheduling policies: which stream of a pool an op gets, in turn or the least loaded one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from tilekit._runtime.device import Device, as_stream, default_device, devices, set_default_device
from tilekit._runtime.scheduling import SchedulingPolicy as SchedulingPolicy
from tilekit._runtime.scheduling import default_policy
from tilekit._runtime.stream import Stream

__all__ = [
    "LeastLoaded",
    "SchedulingPolicy",
    "SingleStream",
    "StreamPoolRoundRobin",
    "global_policy",
    "init_device_contexts",
]

_LARGEST_POOL = 4096  # streams; devices run some hundred at a time


@default_policy
class StreamPoolRoundRobin:
    """A pool of streams, taken in turn: independent ops overlap.

    Args:
        device: where the streams are.
        streams: how many to make (when first needed), or the streams themselves, in anything that `as_stream` takes.
        priority: of the streams it makes; smaller is more urgent.

    Raises:
        TypeError: `streams` is neither.
        ValueError: no streams, or one on another device.
    """

    def __init__(self, device: Device, streams: int | Sequence[Any] = 4, *, priority: int = 0) -> None:
        self.device, self.priority = Device(device), priority
        if isinstance(streams, bool) or not isinstance(streams, (int, Sequence)):
            raise TypeError(f"streams is {streams!r}: expected how many, or a list of streams")
        if isinstance(streams, int) and streams > _LARGEST_POOL:
            raise ValueError(f"streams is {streams}: a pool has at most {_LARGEST_POOL}")
        self._streams: list[Stream | None]
        if isinstance(streams, int):
            self._streams = [None] * max(streams, 0)
        else:
            self._streams = [as_stream(stream, self.device) for stream in streams]
        if not self._streams:
            raise ValueError(f"streams is {streams!r}: a pool needs at least one stream")
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def next_stream(self) -> Stream:
        """The next stream of the pool."""
        return self._stream(next(self._turns) % len(self._streams))

    def _stream(self, index: int) -> Stream:
        stream = self._streams[index]
        if stream is None:
            with self._lock:
                stream = self._streams[index]
                if stream is None:
                    stream = self._streams[index] = self.device.stream(priority=self.priority)
        return stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.device!r}, streams={len(self._streams)})"


class LeastLoaded(StreamPoolRoundRobin):
    """A pool that gives the stream with the fewest submissions still to finish; of several such, the next in turn.

    For work of very different lengths: a short op does not queue behind a long one while another stream is idle. Each choice asks
    the driver once a stream that is busy. Arguments as for `StreamPoolRoundRobin`.
    """

    def next_stream(self) -> Stream:
        """The stream that has the least to do."""
        first, count = next(self._turns), len(self._streams)
        turns = [self._stream((first + turn) % count) for turn in range(count)]
        return min(turns, key=_unfinished)


def _unfinished(stream: Stream) -> int:
    """How many marks of the stream are not known to have passed."""
    while stream.completed < stream.pending - 1 and stream.passed(stream.completed + 1):
        stream.is_complete(stream.completed + 1)
    return stream.pending - 1 - stream.completed


class SingleStream:
    """One stream for everything: ops run in the order of their submission.

    Args:
        where: the stream, in anything that `as_stream` takes; or a device, on which one is made when first needed.
    """

    def __init__(self, where: Any) -> None:
        self._stream: Stream | None = None if isinstance(where, Device) else as_stream(where)
        self._lock = threading.Lock()
        self.device = where if self._stream is None else self._stream.device

    def next_stream(self) -> Stream:
        """The stream."""
        stream = self._stream
        if stream is None:
            with self._lock:
                stream = self._stream = self._stream or self.device.stream()
        return stream

    def __repr__(self) -> str:
        return f"SingleStream({self.next_stream()!r})"


def global_policy(device: Any = None) -> SchedulingPolicy:
    """The policy by which ops on `device` (by default the default device) get their streams; `device.policy` is the same."""
    return (default_device() if device is None else Device(device)).policy


def init_device_contexts(default: int = 0, count: int | None = None) -> list[Device]:
    """Prepare the first `count` devices (by default all) and make number `default` the default one.

    Nothing has to be prepared: devices make themselves when they are first used. This makes the start-up cost fall here, and says
    early what is missing. GPUs where there are any, else CPU devices.

    Raises:
        ValueError: there are fewer devices, or `default` is none of them.
    """
    every = devices()
    usable = [device for device in every if device.kind == "cuda"] or every
    wanted = len(usable) if count is None else count
    if not 1 <= wanted <= len(usable) or not 0 <= default < wanted:
        raise ValueError(f"init_device_contexts({default}, {count}): there are {len(usable)} devices: {usable}")
    for device in usable[:wanted]:
        device.policy.next_stream()
    set_default_device(usable[default])
    return usable[:wanted]
