"""Device memory that knows who uses it: which stream wrote it last, and which have read it since.

From that follows whom a later use must wait for (`ExecutionContext.acquire`), and when the memory can be freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilekit.driver.protocol import Memory

if TYPE_CHECKING:
    from tilekit.device import Device
    from tilekit.stream import Stream

__all__ = ["READERS_KEPT", "Garbage", "Storage", "Use", "allocate"]

Use = tuple["Stream", int]  # a moment: whatever the stream did with the memory was submitted before

# How many readers a storage remembers before it looks which are done.
READERS_KEPT = 8


class Garbage:
    """What a collected storage leaves: memory to free, or somebody else's to let go, once its users are done with it."""

    __slots__ = ("memory", "owner", "uses")

    def __init__(self, memory: Memory | None, uses: list[Use], owner: Any = None) -> None:
        self.memory, self.uses, self.owner = memory, uses, owner


class Storage:
    """A block of device memory and its users. Tensors, partitions and views share it.

    Collecting it frees the memory in stream order, after all its users; nobody waits for that.

    Attributes:
        memory: the driver's.
        device, nbytes: where, and how much.
        owned: whether it is freed with the Storage.
        owner: what keeps memory alive that is not tilekit's; None for tilekit's own, and for borrowed addresses.
        borrowed: whether it is a bare address that nobody keeps alive.
        last_write: the moment behind the last write, or None.
        reads: for each stream that has read since, the moment behind its last read.
    """

    __slots__ = ("__weakref__", "_leave", "borrowed", "device", "last_write", "memory", "nbytes", "owned", "owner", "reads")

    def __init__(
        self, device: Device, memory: Memory, *, owned: bool = False, owner: Any = None, last_write: Use | None = None
    ) -> None:
        self.device, self.memory, self.nbytes = device, memory, memory.nbytes
        self.owned, self.owner = owned, owner
        self.borrowed = not owned and owner is None and memory.nbytes > 0
        self.last_write = last_write
        self.reads: dict[Stream, int] = {}
        self._leave = device.garbage.append

    def prune(self) -> None:
        """Forget the reads that are known to be over."""
        for stream, serial in list(self.reads.items()):
            if serial <= stream.completed:
                self._drop(stream, serial)

    def written_by(self, use: Use) -> None:
        """Remember that `use` writes it: whoever comes later waits for that, and thereby for all that it waited for.

        Users that it did not wait for (other threads' that came in between) are still remembered.
        """
        stream = use[0]
        before, self.last_write = self.last_write, use
        for other, last in list(self.reads.items()):
            if other is stream or stream.follows(other, last):
                self._drop(other, last)
        if before is not None and not stream.follows(*before):
            self.reads[before[0]] = max(before[1], self.reads.get(before[0], 0))

    def _drop(self, stream: Stream, serial: int) -> None:
        """Forget a read, unless a later one took its place just now."""
        last = self.reads.pop(stream, None)
        if last is not None and last > serial:
            self.reads[stream] = max(last, self.reads.get(stream, 0))

    def uses(self) -> list[Use]:
        """Everybody who must be done before the memory can go."""
        uses = list(self.reads.items())
        if self.last_write is not None:
            uses.append(self.last_write)
        return uses

    def __del__(self) -> None:
        # No driver may be called while garbage is collected, so the device does the rest at the next occasion.
        if self.owned:
            self._leave(Garbage(self.memory, self.uses()))
        elif self.owner is not None:
            self._leave(Garbage(None, self.uses(), self.owner))

    def __repr__(self) -> str:
        return f"<tilekit.Storage of {self.nbytes:,} bytes on {self.device.label}>"


def allocate(device: Device, nbytes: int, stream: Stream) -> Storage:
    """New memory on `device`, allocated in the order of `stream`. Does not block.

    Raises:
        OutOfMemoryError: there is not enough. Everything else stays valid.
        ValueError: `nbytes` is negative.
    """
    if nbytes <= 0:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        return Storage(device, device.no_memory)
    device.collect()
    memory = device.driver.allocate(nbytes, stream.handle)
    return Storage(device, memory, owned=True, last_write=(stream, stream.pending))
