"""What a device can be asked to do: the one protocol that the CUDA driver and the CPU driver both implement.

A driver object stands for one physical device. Its handles (streams, events, memory, functions) are its own objects, opaque
to everyone else. Any thread may call anything. Nothing here blocks, except what is named `synchronize` or `*_synchronize`: these
let signals through in the main thread (`tilekit._driver.waiting`), and what they waited for goes on when one interrupts them.

After a fault (a kernel's illegal access; an exception in work on a CPU device) the work behind it is not done. What is named
`*_query` or `*_synchronize` raises it, and `stream_signal` reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from tilekit._driver.ledger import Ledger
from tilekit._driver.pinned import PlainPool
from tilekit._driver.report import Site
from tilekit._driver.shadow import Shadow
from tilekit._driver.signal import SignalBoard
from tilekit._driver.staging import Staging
from tilekit._driver.tensormaps import TensorMap
from tilekit.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:  # importing it takes some milliseconds
    from tilekit._driver.windows import Exchange, Window

__all__ = [
    "Allocator",
    "Driver",
    "EventHandle",
    "FunctionHandle",
    "GraphHandle",
    "Lent",
    "Memory",
    "NativeCalls",
    "NativeWork",
    "StreamHandle",
]

StreamHandle = Any
EventHandle = Any
FunctionHandle = Any
GraphHandle = Any


class Memory:
    """A block of device memory: its address and its size.

    Attributes:
        raw: on the CPU device the NumPy buffer (uint8) behind it, for those who note in `shadow` what they write.
        shadow: which bytes have been written; None where nobody keeps account: of a GPU's memory, and of somebody else's.
    """

    __slots__ = ("address", "nbytes", "raw", "shadow")

    def __init__(
        self, address: int, nbytes: int, buffer: np.ndarray[Any, Any] | None = None, shadow: Shadow | None = None
    ) -> None:
        self.address, self.nbytes, self.raw, self.shadow = address, nbytes, buffer, shadow

    @property
    def buffer(self) -> np.ndarray[Any, Any] | None:
        """The NumPy buffer, for anybody. Since nobody sees what is written through it, all counts as written from now on."""
        if self.shadow is not None:
            self.shadow.trust()
        return self.raw


class Allocator(Protocol):
    """Somebody else's pool of device memory. Any thread may call it; an allocator that has no more raises, say, MemoryError."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of a new block, which work submitted to `stream` (a CUstream) from now on may use."""
        ...

    def free(self, address: int, nbytes: int, stream: int) -> None:
        """Take a block back.

        Args:
            stream: all that used the block was submitted to this stream, or is done. It is the stream that the block was
                allocated for, or nothing uses the block any more.
        """
        ...


class Lent(Memory):
    """A block of an `Allocator`'s, and the stream that it was allocated for."""

    __slots__ = ("lender", "stream")

    def __init__(
        self, address: int, nbytes: int, lender: Allocator, stream: int, buffer: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__(address, nbytes, buffer)
        self.lender, self.stream = lender, stream


class NativeCalls(NamedTuple):
    """Addresses: of cuLaunchKernel, cuCtxGetCurrent, cuEventRecord, cuEventQuery and cuStreamWaitEvent, and of the context that
    must be current; what cuEventQuery says of an event that has not passed; and for how many seconds a waiter polls an event
    itself.
    """

    launch: int
    current: int
    record: int
    query: int
    wait: int
    context: int
    not_ready: int
    spin_s: float


class NativeWork(NamedTuple):
    """Addresses: of cuGraphLaunch, cuMemcpyAsync, cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async and
    cuTensorMapReplaceAddress.
    """

    graph: int
    copy: int
    fill8: int
    fill16: int
    fill32: int
    replace: int


class Driver(Protocol):
    """One device."""

    kind: Literal["cuda", "cpu"]
    ordinal: int
    name: str
    compute_capability: tuple[int, int] | None  # None on the CPU
    target: str  # what kernels are compiled for: "sm_90a", or "cpu"
    staging: Staging | None  # for copies that must not block; None where `copy_from_host` and `copy_to_host` never do
    pinned: PlainPool  # page-locked memory for users' arrays
    ledger: Ledger  # what is allocated, and how much may be
    allocator: Allocator | None  # where memory comes from, if not from the device's own pool
    keeps_free_lists: bool  # whether freed blocks are worth keeping, for those who allocate the same again

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at the same time at least: a GPU's multiprocessors; on the CPU a small number."""
        ...

    @property
    def l2_bytes(self) -> int:
        """The size of a GPU's L2 cache; 0 on the CPU, whose caches are its cores' own."""
        ...

    def clocks_mhz(self) -> tuple[int, int] | None:
        """The clocks at this moment, of the multiprocessors and of the memory; None where nobody tells. Takes a process."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        ...

    @property
    def context(self) -> Any:
        """What other libraries' calls are made in: a CUDA device's CUcontext, which is current in this thread from now on."""
        ...

    def synchronize(self) -> None:
        """Block until every stream of the device is empty. Raises DeviceError after a fault."""
        ...

    def priority_range(self) -> tuple[int, int]:
        """(lowest, highest) stream priority; a smaller number is a higher priority."""
        ...

    # streams
    def stream_create(self, priority: int) -> StreamHandle: ...
    def stream_destroy(self, stream: StreamHandle) -> None:
        """Give the stream up; what is in it still runs. Never called by a finalizer."""
        ...

    def stream_synchronize(self, stream: StreamHandle) -> None:
        """Block until the stream is empty. Raises DeviceError after a fault."""
        ...

    def stream_query(self, stream: StreamHandle) -> bool: ...
    def stream_wait(self, stream: StreamHandle, event: EventHandle) -> None: ...
    def stream_address(self, stream: StreamHandle) -> int: ...
    def stream_adopt(self, address: int) -> StreamHandle:
        """A handle for a stream that somebody else made (CUDA: a CUstream as an integer)."""
        ...

    def stream_signal(self, stream: StreamHandle, board: SignalBoard, slot: int) -> None:
        """Once all work now in the stream is done, put its status into `slot` and ring `board`; natively, without the GIL."""
        ...

    def signals_ready(self) -> bool:
        """Whether the first signal costs no more than any other: else `make_signals_ready` takes a second, once."""
        ...

    def make_signals_ready(self) -> None: ...

    # events
    def event_create(self, timing: bool = False) -> EventHandle: ...
    def event_destroy(self, event: EventHandle) -> None: ...
    def event_record(self, event: EventHandle, stream: StreamHandle) -> None: ...
    def event_record_all(self, event: EventHandle) -> None:
        """Move the event behind all work now on the device, whoever submitted it."""
        ...

    def event_query(self, event: EventHandle) -> bool: ...
    def event_synchronize(
        self, event: EventHandle, timeout_s: float | None = None, poll: Callable[[float], bool | None] | None = None
    ) -> bool:
        """Block until the event has passed, at most `timeout_s` seconds; whether it has.

        Args:
            poll: as `Mark.poll`, for this event.
        """
        ...

    def event_elapsed_ms(self, start: EventHandle, end: EventHandle) -> float: ...
    def event_signal(self, event: EventHandle, board: SignalBoard, slot: int, line: tuple[int, int]) -> None:
        """As `stream_signal`, once the event, as it is recorded now, has passed. Work behind it neither waits nor is waited for.

        Args:
            line: a number for the stream that the event was recorded in, and one that grows with each event recorded there.
        """
        ...

    # memory, all in stream order
    def allocate(self, nbytes: int, stream: StreamHandle) -> Memory:
        """New memory. Raises OutOfMemoryError if there is none, or the ledger's limit forbids it."""
        ...

    def exhausted(self, nbytes: int, *, limited: bool = False) -> OutOfMemoryError:
        """The error for an allocation that cannot be; `limited`: that it is the ledger's limit that forbids it."""
        ...

    def reserved_bytes(self) -> int:
        """How much memory the device's pool holds, used or not."""
        ...

    def trim(self) -> None:
        """Give what the pool holds and nobody uses back to the system."""
        ...

    def wait_idle(self) -> None:
        """Block until what is submitted has been done, so that what it frees is free. Raises nothing: faults are for others."""
        ...

    def free(self, memory: Memory, stream: StreamHandle, after: Sequence[EventHandle] = ()) -> None:
        """Free in stream order, once the events `after` have passed too, whether or not the work before them failed."""
        ...

    def extent(self, address: int) -> tuple[int, int, int] | None:
        """The start and size of the allocation, whosever it is, that has `address`, and its device's number; None if unknown."""
        ...

    def window(self, members: Sequence[Any], ranks: Sequence[int], size: int, nbytes: int, exchange: Exchange | None) -> Window:
        """New memory, filled with zeros, that several devices use: `size` parts of `nbytes`. Blocks; in other processes, too.

        Args:
            members: the drivers of this process's members, this one first, of one kind.
            ranks: theirs: which parts are their memory.
            exchange: what connects the processes of the others; None if they are all here.
        """
        ...

    def copy_from_host(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: StreamHandle) -> None:
        """Copy a C-contiguous host array to `offset` bytes into `memory`. The caller keeps `source` alive until it is done."""
        ...

    def copy_to_host(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: StreamHandle) -> None: ...
    def copy(
        self, target: Memory, target_offset: int, source: Memory, source_offset: int, nbytes: int, stream: StreamHandle
    ) -> None: ...
    def copy_from_peer(
        self, target: Memory, target_offset: int, peer: Any, source: Memory, source_offset: int, nbytes: int, stream: StreamHandle
    ) -> None:
        """As `copy`, from memory of `peer`, the driver of another device of the same kind; the stream is one of this device."""
        ...

    def open_way(self, peer: Any) -> None:
        """Let recorded copies read memory of `peer`, the driver of another device of the same kind, where the hardware can."""
        ...

    def fill(self, memory: Memory, offset: int, count: int, pattern: bytes, stream: StreamHandle) -> None:
        """Write `count` copies of `pattern` (1, 2 or 4 bytes long) from `offset` on."""
        ...

    def wait_for_word(self, memory: Memory, offset: int, least: int, stream: StreamHandle) -> None:
        """Let what comes behind in the stream wait until the int64 at `offset` bytes into `memory` is `least` or more: for what a
        kernel writes that was submitted before, on another stream. A wait for a word that nobody writes has no end.

        Args:
            memory: that of a `window`: in memory of their pools CUDA's streams wait for no words (CUDA_ERROR_INVALID_VALUE).
        """
        ...

    # code
    def load(self, image: bytes, entry: str, shared_bytes: int = 0, starts_early: bool = False) -> FunctionHandle:
        """Load a compiled kernel (CUDA: a cubin). The CPU device has no images and raises.

        Args:
            image, entry: what to load, and the name of the kernel in it.
            shared_bytes: dynamic shared memory that launches will ask for.
            starts_early: whether it waits by itself for the launches before it, of which it may begin before they have ended.
        """
        ...

    def watch(self, function: FunctionHandle, sites: Sequence[Site]) -> None:
        """Learn what a kernel checks while it runs: if it stops itself, DeviceErrors say why.

        Args:
            function: as `load` gave it.
            sites: the kernel's checks, by their numbers.
        """
        ...

    def launch(
        self,
        function: FunctionHandle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: StreamHandle,
        params: int,
    ) -> None:
        """Launch `function`; `params` is the address of the array of parameter addresses (cuLaunchKernel's kernelParams)."""
        ...

    def tensor_map(self, known: TensorMap, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        """A parameter of a kernel that says to the TMA where a tensor is; see `tilekit._driver.cuda.tensormaps.encode`.

        Args:
            known: the parameter.
            address: of the tensor's first element.
            shape, strides: the tensor's, in elements.

        Raises:
            ValueError: there is no map of such a tensor.
        """
        ...

    # recorded work: nodes are those of `tilekit._driver.nodes`
    def graph_create(self, nodes: Sequence[Any]) -> GraphHandle:
        """Make one thing to launch of nodes, each behind those that its `after` names, which come before it."""
        ...

    def graph_change(self, graph: GraphHandle, nodes: Sequence[Any], changed: Sequence[int], template: bool = False) -> None:
        """Nodes of the graph are not what they were: launches that follow shall know. Those under way are not changed.

        Args:
            graph, nodes: as given to `graph_create` and by it.
            changed: the numbers of these nodes.
            template: graphs that the graph becomes a part of shall know as well.
        """
        ...

    def graph_launch(self, graph: GraphHandle, stream: StreamHandle) -> None: ...
    def graph_destroy(self, graph: GraphHandle) -> None:
        """Give the graph up; no launch of it is under way."""
        ...

    def capture_begin(self) -> StreamHandle:
        """A stream in which others submit work that is to be recorded. Raises TypeError where there is none of others'."""
        ...

    def capture_end(self, stream: StreamHandle) -> GraphHandle | None:
        """What was submitted there, as a graph; None if nothing was. The stream is gone. DeviceError if it cannot be recorded."""
        ...

    def failure(self, code: int, doing: str) -> DeviceError:
        """The error for a code that native code was given by the driver; `doing` says what failed."""
        ...

    @property
    def native(self) -> NativeCalls | None:
        """What native code needs to launch by itself; None where it cannot."""
        ...

    @property
    def native_work(self) -> NativeWork | None:
        """What native code needs beside `native` to submit recorded work; None where it cannot."""
        ...

    def submit(self, stream: StreamHandle, work: Callable[[], None], keep: Sequence[Any] = ()) -> None:
        """Run `work` on the host in stream order (the CPU device; CUDA raises). An exception faults the stream."""
        ...
