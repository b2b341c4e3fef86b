"""`ExecutionContext`: where work is submitted, and what it waits for there: the hazards of the memory it reads and writes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tilekit._runtime.allocator import allocate
from tilekit._runtime.hazards import READERS_KEPT
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream, next_stream

if TYPE_CHECKING:
    from tilekit._runtime.device import Device

__all__ = ["ExecutionContext", "borrowed_refused", "submitting"]


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

        A reader waits for the last write and for what other libraries have done, a writer for all readers since as well. Waits
        for what is known to have passed, or was waited for before, are left out.
        """
        stream = self.stream
        for storage in reads:
            if storage.device is not self.device:
                self._refuse(storage)
            if storage.guarded:
                self._guard(storage)
            last, theirs = storage.last_write, storage.theirs
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
            if theirs is not None:
                stream.wait_for(theirs[0], theirs[1])
        for storage in writes:
            if storage.device is not self.device:
                self._refuse(storage)
            if storage.guarded:
                self._guard(storage, written=True)
            last, theirs = storage.last_write, storage.theirs
            if last is not None and last[0] is not stream:
                stream.wait_for(last[0], last[1])
            if theirs is not None:
                stream.wait_for(theirs[0], theirs[1])
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
            if storage.reads or storage.theirs is not None or (last is not None and last[0] is not stream):
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
        return ExecutionContext(self.device, next_stream(self.device.policy))

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
