"""Work of a device's that was written down instead of being submitted: what graphs and prepared ops are made of.

A node says everything that a call of the driver is given, except for the stream. `enqueue` makes that call; a driver that has
graphs of its own (`Driver.graph_create`) reads the same fields.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilekit._driver.protocol import FunctionHandle, Memory, StreamHandle
from tilekit._driver.tensormaps import MAP_BYTES

__all__ = [
    "Captured",
    "Copy",
    "CopyIn",
    "CopyOut",
    "Fill",
    "HostWork",
    "Launch",
    "MemoryRange",
    "Node",
    "Parameters",
    "Recorder",
    "SlotMemory",
]

Triple = tuple[int, int, int]

_pack_address = struct.Struct("=Q").pack_into


class SlotMemory(Memory):
    """Memory under a name of its own: what was recorded with it can be given other memory (`tilekit.slot`).

    Attributes:
        slot: whose it is.
    """

    __slots__ = ("slot",)

    slot: Any


class MemoryRange:
    """A piece of memory that a node works on. It can be moved: then `Node.refresh`.

    Attributes:
        memory, offset: where the first element is, in bytes from the start of the memory; `address` is that of both.
        nbytes: how many bytes it spans; `below` of them lie before the first element.
        written: whether the node writes them.
        beside: the ranges of its node that may be this very one, though one of the two is written; None for any.
    """

    __slots__ = ("address", "below", "beside", "memory", "nbytes", "offset", "written")

    def __init__(self, memory: Memory, offset: int, nbytes: int, written: bool, below: int = 0) -> None:
        self.memory, self.offset, self.address = memory, offset, memory.address + offset
        self.nbytes, self.written, self.below = nbytes, written, below
        self.beside: tuple[MemoryRange, ...] | None = None

    def move(self, memory: Memory, offset: int) -> None:
        """Be elsewhere."""
        self.memory, self.offset, self.address = memory, offset, memory.address + offset

    def overlaps(self, other: MemoryRange) -> bool:
        """Whether they may have bytes in common."""
        mine, theirs = self.address - self.below, other.address - other.below
        return mine < theirs + other.nbytes and theirs < mine + self.nbytes


class Node:
    """One piece of work.

    Attributes:
        label: what messages and pictures call it.
        after: the numbers of the nodes that it comes behind.
        keep: what has to live as long as the node.
    """

    __slots__ = ("after", "keep", "label")

    def __init__(self, label: str) -> None:
        self.label = label
        self.after: tuple[int, ...] = ()
        self.keep: Any = None

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        """Submit it."""
        raise NotImplementedError

    def ranges(self) -> Sequence[MemoryRange]:
        """What it works on."""
        return ()

    def details(self) -> tuple[str, ...]:
        """What a picture says of it below its label, a line each: by default how many bytes it writes, or else reads."""
        spans = sorted(self.ranges(), key=lambda span: not span.written)
        return (f"{spans[0].nbytes:,} bytes",) if spans else ()

    def refresh(self, span: MemoryRange) -> None:
        """One of its ranges has been changed."""

    def set(self, slot: Any, number: Any) -> None:
        """Give the scalar that came from `slot` another value. Only launches have any."""


class Parameters:
    """Room for a kernel's parameters: slots of eight bytes each, and tensor maps behind them.

    Attributes:
        slots: how many there are.
        values: the slots; what is behind them is written by `put_map`.
        address: of the array of the parameters' addresses.
    """

    __slots__ = ("_maps", "address", "slots", "values")

    def __init__(self, slots: int, maps: int = 0) -> None:
        self.slots = slots
        room, count = 8 * slots + MAP_BYTES * maps, slots + maps
        self.values = ctypes.create_string_buffer(room + 8 * max(count, 1))  # the addresses are behind all
        base = ctypes.addressof(self.values)
        self._maps, self.address = base + 8 * slots, base + room
        every = (*range(base, self._maps, 8), *range(self._maps, base + room, MAP_BYTES))
        struct.pack_into(f"={count}Q", self.values, room, *every)

    def put_map(self, at: int, encoded: bytes) -> None:
        """Let `encoded`, of 128 bytes, be the tensor map `at`."""
        ctypes.memmove(self._maps + MAP_BYTES * at, encoded, MAP_BYTES)


class Launch(Node):
    """A launch of compiled code. Its parameters are its own: slots of eight bytes each, and tensor maps behind them.

    Args:
        values: the slots.
        maps: for each tensor map the range of its tensor, one of those in `pointers`, and what makes it for an address.

    Attributes:
        function, grid, block, cluster, shared_bytes: as of `Driver.launch`; no cluster is None.
        params: the address of the array of the parameters' addresses.
        pointers: for each parameter that is the address of memory, where it is among the parameters, and what it points to.
        scalars: for each one that came from a slot, that; where it is, and its code in the module struct.
    """

    __slots__ = (
        "_maps", "_parameters", "_values", "block", "cluster", "function", "grid", "params", "pointers", "scalars",
        "shared_bytes",
    )  # fmt: skip

    def __init__(
        self,
        label: str,
        function: FunctionHandle,
        grid: Triple,
        block: Triple,
        shared_bytes: int,
        values: bytes,
        pointers: Sequence[tuple[int, MemoryRange]],
        scalars: Sequence[tuple[Any, int, str]],
        cluster: Triple | None = None,
        maps: Sequence[tuple[MemoryRange, Callable[[int], bytes]]] = (),
    ) -> None:
        super().__init__(label)
        self.function, self.grid, self.block, self.shared_bytes, self.cluster = function, grid, block, shared_bytes, cluster
        self.pointers, self.scalars = tuple(pointers), tuple(scalars)
        self._parameters, self._maps = Parameters(len(values) // 8, len(maps)), tuple(maps)
        self._values, self.params = self._parameters.values, self._parameters.address
        ctypes.memmove(self._values, values, len(values))
        for at, (span, encode) in enumerate(self._maps):
            self._parameters.put_map(at, encode(span.address))

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        if self.cluster is None:
            driver.launch(self.function, self.grid, self.block, self.shared_bytes, stream, self.params)
        else:
            driver.launch_clusters(self.function, self.grid, self.block, self.cluster, self.shared_bytes, stream, self.params)

    def ranges(self) -> Sequence[MemoryRange]:
        return [span for _, span in self.pointers]

    def details(self) -> tuple[str, ...]:
        """How many blocks it has along each axis."""
        return (f"grid {self.grid[0]} x {self.grid[1]} x {self.grid[2]}",)

    @property
    def contents(self) -> tuple[bytes, tuple[tuple[MemoryRange, bytes], ...]]:
        """The slots, and of each tensor map the range of its tensor and the map."""
        slots = self._parameters.slots
        return self._values.raw[: 8 * slots], tuple((span, encode(span.address)) for span, encode in self._maps)

    def refresh(self, span: MemoryRange) -> None:
        for at, known in self.pointers:
            if known is span:
                _pack_address(self._values, 8 * at, span.address)
        for at, (mapped, encode) in enumerate(self._maps):
            if mapped is span:
                self._parameters.put_map(at, encode(span.address))

    def set(self, slot: Any, number: Any) -> None:
        for from_slot, at, code in self.scalars:
            if from_slot is slot:
                struct.pack_into("=8x", self._values, 8 * at)
                struct.pack_into(f"={code}", self._values, 8 * at, number)


class Fill(Node):
    """`Driver.fill`."""

    __slots__ = ("count", "pattern", "target")

    def __init__(self, label: str, memory: Memory, offset: int, count: int, pattern: bytes) -> None:
        super().__init__(label)
        self.target, self.count, self.pattern = MemoryRange(memory, offset, count * len(pattern), True), count, pattern

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.fill(self.target.memory, self.target.offset, self.count, self.pattern, stream)

    def ranges(self) -> Sequence[MemoryRange]:
        return (self.target,)


class Copy(Node):
    """`Driver.copy`."""

    __slots__ = ("nbytes", "source", "target")

    def __init__(self, label: str, target: MemoryRange, source: MemoryRange, nbytes: int) -> None:
        super().__init__(label)
        self.target, self.source, self.nbytes = target, source, nbytes

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        to, start = self.target, self.source
        driver.copy(to.memory, to.offset, start.memory, start.offset, self.nbytes, stream)

    def ranges(self) -> Sequence[MemoryRange]:
        return (self.target, self.source)


class WaitForWord(Node):
    """`Driver.wait_for_word`."""

    __slots__ = ("least", "word")

    def __init__(self, label: str, memory: Memory, offset: int, least: int) -> None:
        super().__init__(label)
        self.word, self.least = MemoryRange(memory, offset, 8, False), least

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.wait_for_word(self.word.memory, self.word.offset, self.least, stream)

    def ranges(self) -> Sequence[MemoryRange]:
        return (self.word,)


class CopyIn(Node):
    """`Driver.copy_from_host`: what the array holds then."""

    __slots__ = ("source", "target")

    def __init__(self, label: str, memory: Memory, offset: int, source: np.ndarray[Any, Any]) -> None:
        super().__init__(label)
        self.target, self.source = MemoryRange(memory, offset, source.nbytes, True), source

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.copy_from_host(self.target.memory, self.target.offset, self.source, stream)

    def ranges(self) -> Sequence[MemoryRange]:
        return (self.target,)


class CopyOut(Node):
    """`Driver.copy_to_host`."""

    __slots__ = ("source", "target")

    def __init__(self, label: str, target: np.ndarray[Any, Any], memory: Memory, offset: int) -> None:
        super().__init__(label)
        self.target, self.source = target, MemoryRange(memory, offset, target.nbytes, False)

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.copy_to_host(self.target, self.source.memory, self.source.offset, stream)

    def ranges(self) -> Sequence[MemoryRange]:
        return (self.source,)


class HostWork(Node):
    """`Driver.submit`, of a CPU device. What it works on cannot be given other memory."""

    __slots__ = ("work",)

    def __init__(self, label: str, work: Callable[[], None], keep: Any) -> None:
        super().__init__(label)
        self.work, self.keep = work, keep

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.submit(stream, self.work, (self.keep,))


class Captured(Node):
    """What somebody else submitted, as the driver captured it; or another graph's work.

    Attributes:
        graph: the driver's, see `Driver.capture_end` and `Driver.graph_create`.
        memories: what it works on, as far as that is known. It cannot be given other memory.
        owned: whether the graph is nobody else's, and goes with the node.
    """

    __slots__ = ("graph", "memories", "owned")

    def __init__(self, label: str, graph: Any, memories: Sequence[Memory] = (), *, owned: bool = True) -> None:
        super().__init__(label)
        self.graph, self.memories, self.owned = graph, tuple(memories), owned

    def enqueue(self, driver: Any, stream: StreamHandle) -> None:
        driver.graph_launch(self.graph, stream)


class Recorder:
    """A driver's calls, written down: whoever submits by `ctx.driver` does not see the difference. Streams are not looked at.

    Args:
        add: takes each node.
    """

    staging = None  # copies are from and to where the array is

    def __init__(self, add: Callable[[Node], None]) -> None:
        self._add = add

    def fill(self, memory: Memory, offset: int, count: int, pattern: bytes, stream: StreamHandle) -> None:
        """See `Driver`."""
        self._add(Fill("fill", memory, offset, count, pattern))

    def copy(
        self, target: Memory, target_offset: int, source: Memory, source_offset: int, nbytes: int, stream: StreamHandle
    ) -> None:
        """See `Driver`."""
        to, start = MemoryRange(target, target_offset, nbytes, True), MemoryRange(source, source_offset, nbytes, False)
        self._add(Copy("copy", to, start, nbytes))

    def wait_for_word(self, memory: Memory, offset: int, least: int, stream: StreamHandle) -> None:
        """See `Driver`."""
        self._add(WaitForWord("wait for a word", memory, offset, least))

    def copy_from_host(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: StreamHandle) -> None:
        """See `Driver`."""
        self._add(CopyIn("copy to device", memory, offset, source))

    def copy_to_host(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: StreamHandle) -> None:
        """See `Driver`."""
        self._add(CopyOut("copy to host", target, memory, offset))

    def submit(self, stream: StreamHandle, work: Callable[[], None], keep: Sequence[Any] = ()) -> None:
        """See `Driver`."""
        self._add(HostWork("host work", work, keep))
