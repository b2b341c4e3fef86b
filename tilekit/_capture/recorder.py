"""Writing an op's work down instead of submitting it.

A recording runs an op in a context of its own, whose driver notes down what it is asked to do. Nothing is submitted, and the
storages learn nothing: what the work reads and writes is kept by the recording, and becomes known to them when it is launched.
Parts that run side by side are branches; nodes come behind those of their branch, and behind those of others that they wait for
or share memory with.

What the op allocates is the recording's: one block for each piece that is alive at the same time, which all launches use.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilekit._driver.nodes import Captured, Node, Recorder, SlotMemory
from tilekit._driver.protocol import Memory
from tilekit._runtime.context import ExecutionContext, submitting
from tilekit._runtime.device import Device
from tilekit._runtime.hazards import AccessHistory
from tilekit._runtime.storage import Garbage, Imported, Storage
from tilekit._runtime.stream import Stream
from tilekit._runtime.timeline import Timeline
from tilekit.ops.execution import NAP_S, Done, HostJob, Run

if TYPE_CHECKING:
    from tilekit.ops.launch import Executable
    from tilekit.ops.op import DeviceOp

__all__ = ["Arena", "Recording", "RecordingContext"]


class Arena(AccessHistory):
    """The memory that recorded work has to itself. Its launches come one after the other, and it is freed behind the last.

    To those who order work it is a storage that each launch writes.

    Attributes:
        device: where it is.
        blocks: the memory.
    """

    __slots__ = ("blocks", "device", "memory")

    guarded = False

    def __init__(self, device: Device, blocks: Sequence[Memory]) -> None:
        super().__init__()
        self.device, self.blocks, self.memory = device, tuple(blocks), Memory(0, 0)

    def __del__(self) -> None:
        for memory in self.blocks:
            self.device.garbage.append(Garbage(memory, self.uses()))


class _Users:
    """Which nodes use some memory: those that a later reader, and a later writer, comes behind."""

    __slots__ = ("readers", "writers")

    def __init__(self) -> None:
        self.writers: frozenset[int] = frozenset()
        self.readers: set[int] = set()


class _Block:
    """A block of the arena while the op is recorded.

    Attributes:
        branches: the streams whose work uses it.
        storage: who has it now, if anybody.
    """

    __slots__ = ("branches", "storage")

    def __init__(self) -> None:
        self.branches: set[RecordingStream] = set()
        self.storage: weakref.ref[Storage] | None = None


class Recording:
    """An op's work, written down.

    Args:
        device: where it will run.
        source: the stream in whose order memory is allocated.
        who: what is recorded, for messages.

    Attributes:
        nodes: the work.
        reads, writes: the storages that it uses and that are not its own; keeping them here keeps them alive.
        peers: storages of other devices, which it only reads.
        arena: its own memory, once it is finished.
        slots: what was recorded by name, see `tilekit.slot`.
        arrays: of the host's, that launches write and nobody gave.
        detached: nobody in whose place it runs keeps borrowed memory alive.
    """

    detached = True

    def __init__(self, device: Device, source: Stream, who: Any) -> None:
        self.device, self.op, self._source = device, who, source
        self.nodes: list[Node] = []
        self.reads: dict[Memory, Storage] = {}
        self.writes: dict[Memory, Storage] = {}
        self.peers: dict[Memory, Storage] = {}
        self.slots: dict[str, Any] = {}
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.arena = Arena(device, ())
        self._users: dict[Any, _Users] = {}
        self._blocks: dict[Memory, _Block] = {}
        self._returned: list[Memory] = []  # finalizers append
        self._allocated = 0
        self._shared: dict[Any, Any] = {}
        self._captured: list[tuple[RecordingStream, Any]] = []
        self._branches: list[RecordingStream] = []
        self.ctx = self.branch(frozenset())

    def branch(self, after: frozenset[int]) -> RecordingContext:
        """A branch of the work, behind the nodes `after`."""
        stream = RecordingStream(self, after)
        self._branches.append(stream)
        return RecordingContext(self, stream)

    # running an op

    def run(self, op: DeviceOp[Any]) -> Any:
        """Write down what `op` submits; its result.

        Raises:
            TypeError: something in it cannot be recorded.
            Whatever the op fails with.
        """
        outer, submitting.submission = submitting.submission, self
        asked, self.op = self.op, op
        try:
            run = Run(op, self.ctx)
            while not isinstance(progress := run.advance(), Done):
                for wait in progress:
                    if not isinstance(wait, HostJob):
                        run.close()  # no step is asked: what recovers from errors has none to recover from
                        self.refuse(
                            "in the middle of it the host waits for the device (a host_fn, an or_else, or a closure that is "
                            "given the host's copy of a result). Record what comes before it and what comes after it"
                        )
                    wait.run()
                if not progress:
                    time.sleep(NAP_S)  # another thread runs an op that they share
            self.end_captures()
            return progress.value
        except Exception as error:
            op.annotate(error)
            raise
        finally:
            submitting.submission, self.op = outer, asked

    def once(self, shared: Any, ctx: RecordingContext) -> Generator[Any, Any, Any]:
        """The result of the source of a `Shared` op, which runs once in each recording."""
        if shared not in self._shared:
            self._shared[shared] = yield shared.source.start(ctx)
        return self._shared[shared]

    # what cannot be recorded

    def refuse(self, why: str) -> NoReturn:
        """TypeError: the op that is being recorded cannot be."""
        raise TypeError(f"{self.op!r} cannot be recorded: {why}")

    def check_host_array(self, array: np.ndarray[Any, Any], *, written: bool) -> None:
        """Refuse an array of the host's that no launch could read, or write, by itself."""
        staging, address = self.device.driver.staging, array.__array_interface__["data"][0]
        pinned = self.device.driver.pinned.holds(address) if staging is None else staging.is_pinned(array)
        if array.nbytes and not pinned:
            does, cure = ("writes", "") if written else ("reads", ", or copy them to the device before")
            self.refuse(
                f"each launch of it {does} {array.nbytes:,} bytes of the host's ordinary memory. Keep them in page-locked "
                f"memory, memory.pinned(shape, dtype){cure}"
            )

    def host_target(self, target: np.ndarray[Any, Any], *, from_caller: bool) -> np.ndarray[Any, Any]:
        """Where the launches copy to: `target` if it is the caller's, else an array like it, in page-locked memory."""
        if from_caller:
            self.check_host_array(target, written=True)
            return target
        pinned = self.device.driver.pinned.array(target.nbytes)
        if pinned is None:
            self.refuse(f"there is no page-locked memory for the {target.nbytes:,} bytes that it copies to the host")
        array: np.ndarray[Any, Any] = pinned.view(target.dtype).reshape(target.shape)
        self.arrays.append(array)
        return array

    def read_peer(self, source: Storage) -> None:
        """Launches read memory of another device."""
        if source.device.kind != self.device.kind:
            self.refuse(f"it copies from {source.device!r}")
        self.device.driver.open_way(source.device.driver)
        self.peers[source.memory] = source

    # nodes

    def add(self, node: Node, stream: RecordingStream) -> None:
        """Append a node to a branch."""
        self.end_captures()
        self._append(node, stream)

    def _append(self, node: Node, stream: RecordingStream) -> None:
        node.after = tuple(sorted(stream.tail))
        stream.tail = frozenset((len(self.nodes),))
        self.nodes.append(node)
        for span in node.ranges():
            if isinstance(span.memory, SlotMemory):
                self._slot(span.memory.slot)
        for slot, *_ in getattr(node, "scalars", ()):
            self._slot(slot)

    def _slot(self, slot: Any) -> None:
        if self.slots.setdefault(slot.name, slot) is not slot:
            other = self.slots[slot.name]
            raise ValueError(f"two slots are called {slot.name!r}: {other!r} and {slot!r}. Name one of them otherwise")

    def capture(self, stream: RecordingStream) -> Any:
        """A stream of the driver's for somebody who submits work himself; what comes there becomes a node of the branch."""
        for branch, handle in self._captured:
            if branch is stream:
                return handle
        self.end_captures()
        handle = self.device.driver.capture_begin()
        self._captured.append((stream, handle))
        return handle

    def end_captures(self, memories: Sequence[Memory] = ()) -> None:
        """What was captured up to now becomes a node; `memories` is what it works on."""
        while self._captured:
            stream, handle = self._captured.pop()
            graph = self.device.driver.capture_end(handle)
            for memory in memories:
                if isinstance(memory, SlotMemory):
                    self._slot(memory.slot)
            if graph is not None:
                self._append(Captured("captured work", graph, memories), stream)

    # who uses what

    def acquire(self, stream: RecordingStream, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Let the branch's next node come behind those that use the memory."""
        after: set[int] = set()
        for storage in reads:
            if (users := self._users.get(self._known(storage, self.reads))) is not None:
                after |= users.writers
        for storage in writes:
            if (users := self._users.get(self._known(storage, self.writes))) is not None:
                after |= users.writers | users.readers
        if after and len(self._branches) > 1:  # else all of them are behind each other
            stream.tail |= after

    def note(self, stream: RecordingStream, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """The branch's last node uses the memory."""
        for storage in writes:
            users = self._users_of(self._known(storage, self.writes))
            users.writers, users.readers = stream.tail, set()
        for storage in reads:
            self._users_of(self._known(storage, self.reads)).readers |= stream.tail
        for storage in (*reads, *writes) if self._blocks else ():
            if (block := self._blocks.get(storage.memory)) is not None:
                block.branches.add(stream)

    def _users_of(self, known: Any) -> _Users:
        users = self._users.get(known)
        if users is None:
            users = self._users[known] = _Users()
        return users

    def _known(self, storage: Storage, kept: dict[Memory, Storage]) -> Any:
        """What stands for the memory; what is not the recording's own is kept."""
        if storage.memory in self._blocks:
            return storage.memory
        kept.setdefault(storage.memory, storage)
        return storage.history if isinstance(storage, Imported) else storage  # which may be met in several storages

    # memory

    def allocate(self, nbytes: int, stream: RecordingStream) -> Storage:
        """Memory of the recording's own. What was given up on the same branch is used again."""
        if nbytes <= 0:
            return Storage(self.device, self.device.no_memory)
        returned, self._returned = self._returned, []
        chosen: Memory | None = None
        for memory in returned:
            block = self._blocks[memory]
            if chosen is None and memory.nbytes == nbytes and block.branches <= {stream}:
                chosen = memory
            else:
                self._returned.append(memory)
        if chosen is None:
            if self.device.garbage:
                self.device.collect()
            chosen = self.device.obtain(nbytes, self._source)
            self._allocated = self._source.pending
            self._blocks[chosen] = _Block()
        storage = Storage(self.device, chosen, owned=True)
        storage.leave_by(lambda left: None if left.memory is None else self._returned.append(left.memory))
        self._blocks[chosen].storage = weakref.ref(storage)
        return storage

    def owns(self, memory: Memory) -> bool:
        """Whether it was allocated by what is recorded."""
        return memory in self._blocks

    def finish(self) -> None:
        """No more is recorded. What is alive of the recording's memory is used like other memory from now on."""
        self.end_captures()
        first = (self._source, self._allocated)
        own: list[Memory] = []
        for memory, block in self._blocks.items():
            storage = block.storage() if block.storage is not None else None
            if storage is None:
                own.append(memory)
                continue
            storage.leave_by(self.device.garbage.append)
            storage.last_write = first
            self.writes[memory] = storage
        self.arena = Arena(self.device, own)
        if own:
            self.arena.last_write = first
        self.ctx.stream.ended = True

    def forget(self) -> None:
        """Let go of all memory at once, and not when the garbage is collected: for who has taken what he wanted of the nodes."""
        for known in (self.reads, self.writes, self.peers, self._users, self._shared):
            known.clear()

    def discard(self) -> None:
        """Nothing will come of it."""
        while self._captured:
            self.device.driver.capture_end(self._captured.pop()[1])
        self.finish()


class RecordingStream(Stream):
    """The stream of work that is recorded. Its handle is for nobody but the recording's driver.

    Somebody who asks for its address submits work there himself: that is captured, on a GPU.

    Attributes:
        tail: the nodes that the next one comes behind.
    """

    __slots__ = ("_recording", "_tails", "ended", "tail")

    def __init__(self, recording: Recording, after: frozenset[int]) -> None:
        Timeline.__init__(self, recording.device, _Placeholder(self), stable=False)
        self.priority, self._owned, self._source = 0, False, None
        self.closed = True  # for those who would submit to it as to any other: they look for that
        self._recording, self.tail, self.ended = recording, after, False
        self._tails: list[frozenset[int]] = []

    @property
    def address(self) -> Any:  # type: ignore[override]
        """Of a stream that captures."""
        if self.ended:
            raise ValueError("this stream was for the time in which an op was recorded, which is over")
        return self.device.driver.stream_address(self._recording.capture(self))

    def mark(self) -> int:
        """The moment behind what has been recorded."""
        self._recording.end_captures()
        self._tails.append(self.tail)
        self.pending = len(self._tails) + 1
        return len(self._tails)

    def wait_for(self, other: Timeline, serial: int) -> None:
        """Come behind a moment of another branch."""
        if not isinstance(other, RecordingStream) or other._recording is not self._recording:
            self._recording.refuse(f"it waits for {other!r}")
        self.tail |= other._tails[serial - 1] if serial <= len(other._tails) else other.tail

    def submitted(self, name: str) -> None:
        """The last node is called `name`."""
        if self._recording.nodes:
            self._recording.nodes[-1].label = name

    def synchronize(self) -> None:
        """There is nothing to wait for."""
        self._recording.refuse("it waits for its stream")

    def query(self) -> bool:
        """There is nothing to ask for."""
        self._recording.refuse("it asks whether its stream is done")

    def add_callback(self, fn: Callable[[Stream, int, Any], object], arg: Any = None) -> None:
        """Nobody would be called."""
        self._recording.refuse("it adds a callback to its stream")

    def __cuda_stream__(self) -> tuple[int, int]:
        """See `Stream`."""
        if self.device.kind != "cuda":
            raise TypeError(f"{self!r} is no CUDA stream")
        return 0, self.address

    def __del__(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<the stream of what is recorded on {self.device.label}>"


class _Placeholder:
    """The handle of a `RecordingStream`. Whoever makes a CUstream of it submits work of his own."""

    def __init__(self, stream: RecordingStream) -> None:
        self._stream = weakref.ref(stream)

    def __index__(self) -> int:
        stream = self._stream()
        if stream is None:
            raise ValueError("this stream was for the time in which an op was recorded, which is over")
        return int(stream.address)

    __int__ = __index__


class RecordingContext(ExecutionContext):
    """Where an op is recorded: its `driver` writes down what it is asked to do."""

    __slots__ = ("_recorder", "recording")

    stream: RecordingStream
    recording: Recording

    def __init__(self, recording: Recording, stream: RecordingStream) -> None:
        super().__init__(recording.device, stream)
        self.recording = recording
        self._recorder = Recorder(lambda node: recording.add(node, stream))

    @property
    def driver(self) -> Any:
        """Takes the driver's calls."""
        return self._recorder

    def acquire(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """As of other contexts, for the branch's next node."""
        for storage in (*reads, *writes):
            if storage.device is not self.device:
                self._refuse(storage)
        for storage in (*reads, *writes):
            if storage.guarded:
                self._guard(storage, written=any(storage is w for w in writes))
        self.recording.acquire(self.stream, reads, writes)

    def note(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """As of other contexts, for the branch's last node."""
        self.recording.note(self.stream, reads, writes)

    def allocate(self, nbytes: int) -> Storage:
        """Memory that belongs to what is recorded, and is the same at each launch."""
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        return self.recording.allocate(nbytes, self.stream)

    def launch(self, executable: Executable, grid: tuple[int, int, int], arguments: Sequence[Any]) -> None:
        """Write down a launch; of kernels that others launch, capture it."""
        node = executable.as_node(grid, arguments)
        if node is not None:
            self.recording.add(node, self.stream)
            return
        executable.launch(self, grid, arguments)
        self.recording.end_captures([a.storage.memory for a in arguments if getattr(a, "storage", None) is not None])

    def beside(self) -> RecordingContext:
        """Another branch."""
        return self.recording.branch(frozenset())

    def on(self, stream: Stream) -> RecordingContext:
        """This context: where recorded work runs is for its launches to say. Another device's work cannot be recorded with it.

        Raises:
            TypeError: the stream is another device's.
        """
        if stream.device is not self.device:
            self.recording.refuse(f"a part of it runs on {stream.device!r}, and it on {self.device!r}")
        return self
