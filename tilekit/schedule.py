"""Which stream an op gets, and what its work must wait for there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tilekit.storage import READERS_KEPT, Storage, allocate
from tilekit.stream import Stream, as_stream

if TYPE_CHECKING:
    from tilekit.device import Device

__all__ = ["ExecutionContext", "SchedulingPolicy", "SingleStream", "StreamPoolRoundRobin"]


class ExecutionContext:
    """Where work is submitted to: a device and a stream of it. Closures given to `with_context` get one.

    Around every piece of work that touches storages, call `acquire` before it is submitted and `note` after.
    """

    __slots__ = ("device", "stream")

    def __init__(self, device: Device, stream: Stream) -> None:
        self.device, self.stream = device, stream

    def acquire(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Let the stream wait for those who use the storages on other streams. Does not block.

        A reader waits for the last write, a writer for all readers since as well. Waits for what is known to have passed, or
        was waited for before, are left out.
        """
        stream = self.stream
        for storage in reads:
            last = storage.last_write
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
        for storage in writes:
            last = storage.last_write
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
            readers = storage.reads
            if readers and (len(readers) > 1 or stream not in readers):
                for other, serial in list(readers.items()):
                    if other is not stream:
                        stream.wait_for(other, serial)

    def note(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Remember that the work just submitted uses the storages, for those who come later on other streams."""
        stream = self.stream
        serial = stream.pending
        use = (stream, serial)
        for storage in writes:
            last = storage.last_write
            if storage.reads or (last is not None and last[0] is not stream):
                storage.written_by(use)
            else:
                storage.last_write = use
        for storage in reads:
            if storage.last_write is not use:  # else whoever comes later waits for it as a write anyway
                readers = storage.reads
                readers[stream] = serial
                if len(readers) > READERS_KEPT:
                    storage.prune()

    def allocate(self, nbytes: int) -> Storage:
        """New memory, allocated in the order of the stream.

        Raises:
            OutOfMemoryError: there is not enough. Everything else stays valid.
        """
        return allocate(self.device, nbytes, self.stream)

    def __repr__(self) -> str:
        return f"<ExecutionContext on {self.stream!r}>"


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Decides which stream the next op runs on."""

    def next_stream(self) -> Stream:
        """The stream for the next op. Called once for each, from any thread."""
        ...


class StreamPoolRoundRobin:
    """A pool of streams, taken in turn: independent ops overlap.

    Args:
        device: where the streams are.
        streams: how many to make (when first needed), or the streams themselves, in anything that `as_stream` takes.

    Raises:
        TypeError: `streams` is neither.
        ValueError: no streams, or one on another device.
    """

    def __init__(self, device: Device, streams: int | Sequence[Any] = 4) -> None:
        self.device = device
        if isinstance(streams, bool) or not isinstance(streams, (int, Sequence)):
            raise TypeError(f"streams is {streams!r}: expected how many, or a list of streams")
        self._streams: list[Stream | None]
        if isinstance(streams, int):
            self._streams = [None] * max(streams, 0)
        else:
            self._streams = [as_stream(stream, device) for stream in streams]
        if not self._streams:
            raise ValueError(f"streams is {streams!r}: a pool needs at least one stream")
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def next_stream(self) -> Stream:
        """The next stream of the pool."""
        index = next(self._turns) % len(self._streams)
        stream = self._streams[index]
        if stream is None:
            with self._lock:
                stream = self._streams[index]
                if stream is None:
                    stream = self._streams[index] = self.device.stream()
        return stream

    def __repr__(self) -> str:
        return f"StreamPoolRoundRobin({self.device!r}, streams={len(self._streams)})"


class SingleStream:
    """One stream for everything: ops run in the order of their submission.

    Args:
        where: the stream, in anything that `as_stream` takes; or a device, on which one is made when first needed.
    """

    def __init__(self, where: Any) -> None:
        from tilekit.device import Device

        if isinstance(where, Device):
            self._pool = StreamPoolRoundRobin(where, 1)
        else:
            stream = as_stream(where)
            self._pool = StreamPoolRoundRobin(stream.device, [stream])
        self.device = self._pool.device

    def next_stream(self) -> Stream:
        """The stream."""
        return self._pool.next_stream()

    def __repr__(self) -> str:
        return f"SingleStream({self.next_stream()!r})"
