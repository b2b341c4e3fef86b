"""`Storage`: device memory with its access history, from which follows when it can be freed.

`tilekit._runtime.hazards` has the history, `tilekit._runtime.allocator` where new storages come from.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Union

from tilekit._driver.protocol import Memory
from tilekit._runtime.hazards import AccessHistory, Use

if TYPE_CHECKING:
    from tilekit._runtime.allocator import FreeList
    from tilekit._runtime.device import Device
    from tilekit._runtime.stream import Stream

__all__ = ["BORROWED", "Garbage", "Imported", "Kept", "Storage"]

# The borrowed storages that are alive, by their ids. While there are none, nobody asks an op whether it uses one.
BORROWED: dict[int, None] = {}


class _Guarded(dict["Stream", int]):
    """The reads of a storage that not every use may have. Native launches take no dict but a plain one for a storage's reads, so
    those that use such a storage go through `ExecutionContext.acquire`, which looks at it."""


Kept = Union[tuple["Stream", int, Any, AccessHistory | None], "Imported"]
"""What a stream's work keeps alive: the moment behind that, somebody's memory, and its history. Or the storage that has it, which
is what the compiled part leaves: as long as work uses the memory, whoever imports it anew finds the same."""


class Garbage:
    """What a collected storage leaves: memory to free, or somebody else's to let go, once its users are done with it."""

    __slots__ = ("memory", "owner", "uses")

    def __init__(self, memory: Memory | None, uses: list[Use], owner: Any = None) -> None:
        self.memory, self.uses, self.owner = memory, uses, owner


class Storage(AccessHistory):
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
        "_free_list",
        "_leave",
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
        self.last_write, self.theirs, self.readonly = last_write, None, readonly
        self.guarded = self.borrowed or readonly is not None
        self.reads = _Guarded() if self.guarded else {}
        self._free_list: FreeList | None = None
        if self.borrowed:
            BORROWED[id(self)] = None
        self._leave: Callable[[Any], None] = device.garbage.append

    def leave_by(self, leave: Callable[[Any], None]) -> Callable[[Any], None]:
        """Have `leave` take what the storage leaves when it is collected, instead of the device, or what took it before, which is
        given back. It may call no driver."""
        before, self._leave, self._free_list = self._leave, leave, None
        return before

    def __del__(self) -> None:
        # No driver may be called while garbage is collected, so the device does the rest at the next occasion.
        blocks = self._free_list
        if blocks is not None and self.theirs is None and not blocks.closed and len(blocks) < blocks.capacity:
            last, reads = self.last_write, self.reads
            # Whatever was done elsewhere before the last write, its stream has waited for.
            if last is not None and last[0].number == blocks.number and (not reads or (len(reads) == 1 and last[0] in reads)):
                blocks.append(self.memory)
                if not blocks.closed:
                    return
                try:
                    self.memory = blocks.pop()  # closed meanwhile, and perhaps not emptied again
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
    """Memory of others'. It may be met in several storages, which overlap: these have one history.

    Attributes:
        history: theirs. Where others have memory of tilekit's, that is its Storage.
        kept: whether it was collected, and stays as long as work uses the memory: see `Kept`.
        view: a weak reference to the tensor that was made of it last, or None.
    """

    __slots__ = ("history", "kept", "view")

    if not TYPE_CHECKING:  # which would miss them in the functions that Storage has
        last_write = property(attrgetter("history.last_write"), lambda self, use: setattr(self.history, "last_write", use))
        reads = property(attrgetter("history.reads"), lambda self, reads: setattr(self.history, "reads", reads))
        theirs = property(attrgetter("history.theirs"), lambda self, use: setattr(self.history, "theirs", use))

    def __init__(
        self, device: Device, memory: Memory, history: AccessHistory, *, owner: Any = None, readonly: str | None = None
    ) -> None:
        # As Storage's, but that the reads of others stay as they are.
        self.device, self.memory, self.nbytes = device, memory, memory.nbytes
        self.owned, self.owner, self.readonly, self._free_list = False, owner, readonly, None
        self.borrowed = owner is None and memory.nbytes > 0
        self.guarded = self.borrowed or readonly is not None
        self.history, self._leave = history, device.imports.append
        self.view: Any = None
        self.kept = False
        if self.borrowed:
            BORROWED[id(self)] = None

    def __del__(self) -> None:
        if self.owner is None:
            super().__del__()
            return
        for stream, serial in self.history.own_uses():
            if serial > stream.completed:
                # Whoever imports the memory anew waits for that work, too; for what its library does it need not be kept.
                self._leave((stream, serial, self.owner, self.history))
