"""Which stream an op gets, and what its work must wait for there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from tilekit._runtime.storage import READERS_KEPT, Storage, allocate
from tilekit._runtime.stream import Stream, as_stream

if TYPE_CHECKING:
    from tilekit._runtime.device import Device

__all__ = [
    "ExecutionContext",
    "LeastLoaded",
    "SchedulingPolicy",
    "SingleStream",
    "StreamPoolRoundRobin",
    "borrowed_refused",
    "global_policy",
    "init_device_contexts",
    "submitting",
]


_LARGEST_POOL = 4096  # streams; devices run some hundred at a time


class _Submitting(threading.local):
    """What this thread is submitting now: a `tilekit.ops.execution.Submission`, or None."""

    submission: Any = None


submitting = _Submitting()


class ExecutionContext:
    """Where work is submitted to: a device, and a stream of it. Closures given to `with_context` get one.

    Around every piece of work that touches storages, call `acquire` before it is submitted and `note` after.

    Attributes:
        device, stream: where.
        recording: what the work is written down in, instead of being submitted; None if it is not.
    """

    __slots__ = ("device", "stream")

    recording: Any = None

    def __init__(self, device: Device, stream: Stream) -> None:
        self.device, self.stream = device, stream

    @property
    def driver(self) -> Any:
        """What takes the device's work (internal)."""
        return self.device.driver

    @property
    def context(self) -> Any:
        """What other libraries' calls are to be made in: the GPU's CUcontext (its primary one), which is current in this thread
        from now on. Of a CPU device an object that stands for it.
        """
        return self.device.driver.context

    def acquire(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Let the stream wait for those who use the storages on other streams. Does not block.

        A reader waits for the last write, a writer for all readers since as well. Waits for what is known to have passed, or
        was waited for before, are left out.
        """
        stream = self.stream
        for storage in reads:
            if storage.device is not self.device:
                self._refuse(storage)
            if storage.guarded:
                self._guard(storage)
            last = storage.last_write
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
        for storage in writes:
            if storage.device is not self.device:
                self._refuse(storage)
            if storage.guarded:
                self._guard(storage, written=True)
            last = storage.last_write
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
            readers = storage.reads
            if readers and (len(readers) > 1 or stream not in readers):
                for other, serial in list(readers.items()):
                    if other is not stream:
                        stream.wait_for(other, serial)

    def _refuse(self, storage: Storage) -> NoReturn:
        raise ValueError(
            f"memory of {storage.device!r} cannot be used by work on {self.device!r}: bring the tensor there with .to(device), "
            "or run the op where it is with .on(device)"
        )

    def _guard(self, storage: Storage, written: bool = False) -> None:
        """Refuse what may not be done to the memory of others."""
        if written and storage.readonly is not None:
            raise ValueError(f"{storage!r} is read-only, since {storage.readonly}: write to a dup() of the tensor")
        submission = submitting.submission
        if storage.borrowed and submission is not None and submission.detached:
            raise ValueError(borrowed_refused(submission.op, storage))

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

    def launch(self, executable: Any, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Launch a kernel: an `ops.Executable` (internal)."""
        executable.launch(self, grid, arguments)

    def beside(self) -> ExecutionContext:
        """A context for work that runs beside this one's: on the next stream of the device's policy (internal)."""
        return ExecutionContext(self.device, self.device.policy.next_stream())

    def on(self, stream: Stream) -> ExecutionContext:
        """A context for work on another stream (internal)."""
        return ExecutionContext(stream.device, stream)

    def __repr__(self) -> str:
        return f"<ExecutionContext on {self.stream!r}>"


def borrowed_refused(op: Any, storage: Storage) -> str:
    """Why an op that nobody waits for may not use borrowed memory, and what to do."""
    return (
        f"{op!r} uses borrowed memory, {storage.nbytes:,} bytes at {storage.memory.address:#x} on {storage.device.label}: nobody "
        "keeps that alive while the op runs on by itself. Give tk.from_pointer an owner=, or run the op in place, with sync(), "
        "sync_on(stream) or await"
    )


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
        priority: of the streams it makes; smaller is more urgent.

    Raises:
        TypeError: `streams` is neither.
        ValueError: no streams, or one on another device.
    """

    def __init__(self, device: Device, streams: int | Sequence[Any] = 4, *, priority: int = 0) -> None:
        from tilekit._runtime.device import Device

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
    """How many places were recorded in the stream and are not known to have passed."""
    while stream.completed < stream.pending - 1 and stream.passed(stream.completed + 1):
        stream.is_complete(stream.completed + 1)
    return stream.pending - 1 - stream.completed


class SingleStream:
    """One stream for everything: ops run in the order of their submission.

    Args:
        where: the stream, in anything that `as_stream` takes; or a device, on which one is made when first needed.
    """

    def __init__(self, where: Any) -> None:
        from tilekit._runtime.device import Device

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
    from tilekit._runtime.device import Device, default_device

    return (default_device() if device is None else Device(device)).policy


def init_device_contexts(default: int = 0, count: int | None = None) -> list[Device]:
    """Prepare the first `count` devices (by default all) and make number `default` the default one.

    Nothing has to be prepared: devices make themselves when they are first used. This makes the start-up cost fall here, and says
    early what is missing. GPUs where there are any, else CPU devices.

    Raises:
        ValueError: there are fewer devices, or `default` is none of them.
    """
    from tilekit._runtime.device import devices, set_default_device

    found = devices()
    gpus = [device for device in found if device.kind == "cuda"]
    usable = gpus or found
    wanted = len(usable) if count is None else count
    if not 1 <= wanted <= len(usable) or not 0 <= default < wanted:
        raise ValueError(f"init_device_contexts({default}, {count}): there are {len(usable)} devices: {usable}")
    for device in usable[:wanted]:
        device.policy.next_stream()
    set_default_device(usable[default])
    return usable[:wanted]
