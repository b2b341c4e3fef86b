"""Device memory that knows who uses it: which stream wrote it last, and which have read it since.

From that follows whom a later use must wait for (`ExecutionContext.acquire`), and when the memory can be freed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tilekit._driver.protocol import Driver, Memory, StreamHandle

if TYPE_CHECKING:
    from tilekit._runtime.device import Device
    from tilekit._runtime.stream import Stream

__all__ = [
    "BORROWED",
    "LARGEST_SPARE",
    "READERS_KEPT",
    "Garbage",
    "Imported",
    "Order",
    "Shelf",
    "Spares",
    "Storage",
    "Use",
    "allocate",
]

Use = tuple["Stream", int]  # a moment: whatever the stream did with the memory was submitted before

# How many readers a storage remembers before it looks which are done.
READERS_KEPT = 8

# Blocks up to this many bytes are kept when they are freed: for each stream, of up to _SIZES sizes, up to _SPARE_BYTES of each.
LARGEST_SPARE = 1 << 20
_SIZES, _SPARE_BYTES, _MOST_SPARES = 32, 2 << 20, 64

# The borrowed storages that are alive, by their ids. While there are none, nobody asks an op whether it uses one.
BORROWED: dict[int, None] = {}


class _Guarded(dict["Stream", int]):
    """The reads of a storage that not every use may have. Native launches take no dict but a plain one for a storage's reads, so
    those that use such a storage go through `ExecutionContext.acquire`, which looks at it."""


class Spares(list[Memory]):
    """Freed blocks of one size that all their users left behind on one stream, so that its next work may use them at once.

    Attributes:
        number: the stream's.
        most: how many are worth keeping.
        closed: whether nobody looks here any more.
    """

    __slots__ = ("closed", "most", "number")

    def __init__(self, number: int, nbytes: int) -> None:
        super().__init__()
        self.number, self.most, self.closed = number, min(_MOST_SPARES, _SPARE_BYTES // nbytes), False


class Shelf(dict[int, Spares]):
    """The spares of one stream by their size.

    Attributes:
        number, handle: the stream's.
    """

    __slots__ = ("handle", "number")

    def __init__(self, number: int, handle: StreamHandle) -> None:
        super().__init__()
        self.number, self.handle = number, handle

    def of_size(self, nbytes: int, driver: Driver) -> Spares:
        """The spares of so many bytes. Too many sizes are those of a program whose sizes do not repeat: then all of them go."""
        if len(self) >= _SIZES:
            self.close(driver)
        return self.setdefault(nbytes, Spares(self.number, nbytes))

    def close(self, driver: Driver) -> None:
        """Free all spares, and keep no more in these lists."""
        lists = list(self.values())
        self.clear()
        for spares in lists:  # a finalizer that appends to one looks again whether it is closed
            spares.closed = True
        self._free(driver, lists)

    def drain(self, driver: Driver) -> None:
        """Free all spares."""
        self._free(driver, list(self.values()))

    def _free(self, driver: Driver, lists: list[Spares]) -> None:
        for spares in lists:
            while spares:
                try:
                    memory = spares.pop()
                except IndexError:  # another thread was faster
                    break
                driver.free(memory, self.handle)

    def content(self) -> tuple[int, int]:
        """(blocks, bytes) that are kept."""
        counts = [(len(spares), nbytes) for nbytes, spares in list(self.items())]
        return sum(n for n, _ in counts), sum(n * nbytes for n, nbytes in counts)


class Garbage:
    """What a collected storage leaves: memory to free, or somebody else's to let go, once its users are done with it."""

    __slots__ = ("memory", "owner", "uses")

    def __init__(self, memory: Memory | None, uses: list[Use], owner: Any = None) -> None:
        self.memory, self.uses, self.owner = memory, uses, owner


class Order:
    """Who uses some memory, for those who come later.

    Attributes:
        last_write: the moment behind the last write, or None.
        reads: for each stream that has read since, the moment behind its last read.
    """

    __slots__ = ("__weakref__", "last_write", "reads")

    last_write: Use | None
    reads: dict[Stream, int]

    def __init__(self) -> None:
        self.last_write, self.reads = None, {}

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


class Storage(Order):
    """A block of device memory and its users. Tensors, partitions and views share it.

    Collecting it frees the memory in stream order, after all its users; nobody waits for that.

    Attributes:
        memory: the driver's.
        device, nbytes: where, and how much.
        owned: whether it is freed with the Storage.
        owner: what keeps memory alive that is not tilekit's; None for tilekit's own, and for borrowed addresses.
        borrowed: whether it is a bare address that nobody keeps alive: only work that its user waits for may use it.
        readonly: why nothing may be written to it; None if that is allowed.
        guarded: whether one of these two is so.
    """

    __slots__ = (
        "_leave",
        "_spares",
        "borrowed",
        "device",
        "guarded",
        "memory",
        "nbytes",
        "owned",
        "owner",
        "readonly",
    )

    def __init__(
        self,
        device: Device,
        memory: Memory,
        *,
        owned: bool = False,
        owner: Any = None,
        last_write: Use | None = None,
        readonly: str | None = None,
    ) -> None:
        self.device, self.memory, self.nbytes = device, memory, memory.nbytes
        self.owned, self.owner = owned, owner
        self.borrowed = not owned and owner is None and memory.nbytes > 0
        self.last_write, self.readonly = last_write, readonly
        self.guarded = self.borrowed or readonly is not None
        self.reads = _Guarded() if self.guarded else {}
        self._spares: Spares | None = None
        if self.borrowed:
            BORROWED[id(self)] = None
        self._leave: Callable[[Garbage], None] = device.garbage.append

    def leave_by(self, leave: Callable[[Garbage], None]) -> None:
        """Have `leave` take what the storage leaves when it is collected, instead of the device. It may call no driver."""
        self._leave, self._spares = leave, None

    def __del__(self) -> None:
        # No driver may be called while garbage is collected, so the device does the rest at the next occasion.
        spares = self._spares
        if spares is not None and not spares.closed and len(spares) < spares.most:
            last, reads = self.last_write, self.reads
            # Whatever was done elsewhere before the last write, its stream has waited for.
            if last is not None and last[0].number == spares.number and (not reads or (len(reads) == 1 and last[0] in reads)):
                spares.append(self.memory)
                if not spares.closed:
                    return
                try:
                    self.memory = spares.pop()  # closed meanwhile, and perhaps not emptied again
                except IndexError:
                    return
        if self.owned:
            self._leave(Garbage(self.memory, self.uses()))
        elif self.owner is not None:
            self._leave(Garbage(None, self.uses(), self.owner))
        elif self.borrowed:
            BORROWED.pop(id(self), None)

    def __repr__(self) -> str:
        return f"<tilekit.Storage of {self.nbytes:,} bytes on {self.device.label}>"


class Imported(Storage):
    """Memory of others'. It may be met in several storages, which overlap: these have one order, and one dict of reads.

    Attributes:
        order: theirs. Where others have memory of tilekit's, that is its Storage.
    """

    __slots__ = ("order",)

    if not TYPE_CHECKING:  # which would miss the two in the functions that Storage has
        last_write = property(attrgetter("order.last_write"), lambda self, use: setattr(self.order, "last_write", use))
        reads = property(attrgetter("order.reads"), lambda self, reads: setattr(self.order, "reads", reads))

    def __init__(self, device: Device, memory: Memory, order: Order, *, owner: Any = None, readonly: str | None = None) -> None:
        self.order = Order()  # for what Storage sets: the reads of others stay as they are
        super().__init__(device, memory, owner=owner, readonly=readonly)
        self.order = order

    def __del__(self) -> None:
        if self.owner is not None:  # whoever imports the memory anew waits for work on it that is not done
            self._leave(Garbage(None, self.uses(), (self.owner, self.order)))
        else:
            super().__del__()


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
    if device.garbage or device.retired or device.owners:
        device.collect()
    spares = None
    if nbytes <= device.largest_spare and (shelf := device.shelves.get(stream.number)) is not None:
        spares = shelf.get(nbytes)
        if spares is None:
            spares = shelf.of_size(nbytes, device.driver)
    try:
        memory = spares.pop() if spares else device.obtain(nbytes, stream)
    except IndexError:  # another thread was faster
        memory = device.obtain(nbytes, stream)
    storage: Storage = object.__new__(Storage)  # past __init__, which asks more
    storage.device, storage.memory, storage.nbytes, storage.owned = device, memory, nbytes, True
    storage.owner = storage.readonly = None
    storage.borrowed = storage.guarded = False
    storage.last_write, storage.reads = (stream, stream.pending), {}
    storage._leave, storage._spares = device.garbage.append, spares
    return storage
