"""A GPU, through cuda.bindings: streams, events, pooled memory, copies, launches.

The bindings are imported when somebody looks for GPUs; a context is made when the first thing is asked of one. It is the
device's primary context, the one that numba, torch and cupy use.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tilekit.driver import forking
from tilekit.driver.discovery import Discovery
from tilekit.driver.ledger import Ledger
from tilekit.driver.lending import Lending
from tilekit.driver.pinned import PinnedPool, PlainPool
from tilekit.driver.protocol import Allocator, Driver, Lent, Memory, NativeCalls
from tilekit.driver.signal import SignalBoard
from tilekit.driver.staging import Staging
from tilekit.errors import DeviceError
from tilekit.settings import load_settings

__all__ = ["CudaDriver", "CudaFunction", "check", "discover", "target_for"]

OLDEST = (8, 0)

_OUT_OF_MEMORY, _NOT_READY, _PEER_ALREADY_ENABLED = 2, 600, 704
# After these the context is lost: every later call fails alike. A signal then reports the code instead of raising it, since
# whoever asks for one waits for it.
_FAULTS = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 724})
_HOST_MEMORY, _DEVICE_MEMORY, _PORTABLE = 1, 2, 1  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMHOSTALLOC_PORTABLE
_PORTABLE_CLUSTER = 8  # blocks; a larger one has to be allowed
_STATIC_SHARED_LIMIT = 48 * 1024  # of static and dynamic shared memory together, unless a kernel is allowed more


class _Thread(threading.local):
    driver: CudaDriver | None = None


# Whose context is current in this thread, as far as tilekit knows. Only trusted (and only set) where there is one GPU: with
# more, other libraries change the current device behind our back.
_thread = _Thread()


class CudaFunction:
    """A kernel on a device. What it was loaded from stays loaded for the life of the process: launches may be in flight.

    Attributes:
        handle: the CUfunction. The object is kept, since cuLaunchKernel takes longer over an int.
        entry: its name in the image.
        shared_limit: how many bytes of dynamic shared memory it may be launched with, as of now.
    """

    __slots__ = ("entry", "handle", "library", "shared_limit")

    def __init__(self, handle: Any, entry: str, library: Any, shared_limit: int) -> None:
        self.handle, self.entry, self.library, self.shared_limit = handle, entry, library, shared_limit


class _Watcher:
    """A private stream that waits for places in another one: which, and the last place (`Driver.event_signal`)."""

    __slots__ = ("handle", "line")

    def __init__(self, handle: Any, line: tuple[int, int]) -> None:
        self.handle, self.line = handle, line


class CudaDriver:
    """One GPU (`tilekit.driver.protocol.Driver`). Its handles are the objects of cuda.bindings.

    Args:
        bindings: the module `cuda.bindings.driver`.
        ordinal: CUDA's number of the device.
        alone: whether it is the only GPU.
    """

    kind: Literal["cuda", "cpu"] = "cuda"
    keeps_spares = True  # the driver takes 0.9 us to allocate and free

    def __init__(self, bindings: Any, ordinal: int, alone: bool) -> None:
        self._cu, self.ordinal, self._alone = bindings, ordinal, alone
        self._device = check(bindings, bindings.cuDeviceGet(ordinal))
        self.name = check(bindings, bindings.cuDeviceGetName(256, self._device)).split(b"\0")[0].decode(errors="replace")
        attribute = bindings.CUdevice_attribute
        major = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.compute_capability: tuple[int, int] | None = (major, minor)
        self.target = target_for((major, minor))
        self.pools = bool(self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
        self._spin_s = load_settings().spin_us * 1e-6
        self._lock = threading.Lock()
        self._context: Any = None
        self._context_address = 0
        self._pool: Any = None
        self._callback: Any = None
        self._launch, self._query = bindings.cuLaunchKernel, bindings.cuEventQuery
        self._allocate: Any = None  # bound with the context
        self._free: Any = None
        self._sleepers: list[tuple[Any, Any]] = []  # a stream and an event, for a thread that waits long
        self._watchers: list[_Watcher] = []
        self._watching = threading.Lock()
        self._peers: set[int] = set()  # the ordinals of devices from which copies were prepared
        self._forked = False
        self.staging: Staging | None = Staging(self, self._staging_bytes, self._is_pinned)
        self.pinned: PlainPool = PinnedPool(self._lock_pages, self._unlock_pages)
        self.ledger = Ledger()
        self.allocator: Allocator | None = None
        self._lending = Lending(self)
        _drivers.add(self)

    def _attribute(self, attribute: Any) -> int:
        return int(check(self._cu, self._cu.cuDeviceGetAttribute(attribute, self._device)))

    def activate(self) -> None:
        """Make the device's context current in this thread, and make it if this is the first time."""
        if _thread.driver is self:
            return
        cu = self._cu
        if self._context is None:
            self._open()
        if int(check(cu, cu.cuCtxGetCurrent())) != self._context_address:
            check(cu, cu.cuCtxSetCurrent(self._context))
        if self._alone:
            _thread.driver = self

    def _open(self) -> None:
        cu = self._cu
        if self._forked:
            raise forking.lost(f"cuda:{self.ordinal}")
        with self._lock:
            if self._context is not None:
                return
            context = check(cu, cu.cuDevicePrimaryCtxRetain(self._device))
            self._pool = check(cu, cu.cuDeviceGetDefaultMemPool(self._device))
            # Freed memory stays with the process: by default the pool gives it back at every synchronization.
            keep = cu.cuuint64_t(2**64 - 1)
            check(cu, cu.cuMemPoolSetAttribute(self._pool, cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep))
            self._allocate, self._free = cu.cuMemAllocAsync, cu.cuMemFreeAsync
            self._context_address, self._context = int(context), context

    def after_fork(self) -> None:
        """In a forked process: from now on every call comes to `_open`, which refuses."""
        self._forked, self._context = True, None
        self._lock, self._watching = threading.Lock(), threading.Lock()

    @functools.cached_property
    def multiprocessors(self) -> int:
        return self._attribute(self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)

    def memory_info(self) -> tuple[int, int]:
        self.activate()
        cu, kinds = self._cu, self._cu.CUmemPool_attribute
        free, total = check(cu, cu.cuMemGetInfo())
        reserved = self.reserved_bytes()
        used = int(check(cu, cu.cuMemPoolGetAttribute(self._pool, kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))
        return int(free) + reserved - used, int(total)  # what the pool holds and nobody uses is free to us

    def reserved_bytes(self) -> int:
        self.activate()
        kind = self._cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        return int(check(self._cu, self._cu.cuMemPoolGetAttribute(self._pool, kind)))

    def trim(self) -> None:
        self.activate()
        self._given_up(self._cu.cuMemPoolTrimTo(self._pool, 0))

    def settle(self) -> None:
        self.activate()
        self._cu.cuCtxSynchronize()  # whatever it says
        self._lending.collect()

    @property
    def context(self) -> Any:
        self.activate()
        return self._context

    def synchronize(self) -> None:
        self.activate()
        check(self._cu, self._cu.cuCtxSynchronize())

    def priority_range(self) -> tuple[int, int]:
        self.activate()
        low, high = check(self._cu, self._cu.cuCtxGetStreamPriorityRange())
        return int(low), int(high)

    # streams
    def stream_create(self, priority: int) -> Any:
        self.activate()
        flags = int(self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return check(self._cu, self._cu.cuStreamCreateWithPriority(flags, priority))

    def stream_destroy(self, stream: Any) -> None:
        self.activate()
        self._given_up(self._cu.cuStreamDestroy(stream))

    def stream_synchronize(self, stream: Any) -> None:
        self.activate()
        check(self._cu, self._cu.cuStreamSynchronize(stream))

    def stream_query(self, stream: Any) -> bool:
        self.activate()
        return self._passed(self._cu.cuStreamQuery(stream))

    def stream_wait(self, stream: Any, event: Any) -> None:
        self.activate()
        check(self._cu, self._cu.cuStreamWaitEvent(stream, event, 0))

    def stream_address(self, stream: Any) -> int:
        return int(stream)

    def stream_adopt(self, address: int) -> Any:
        return self._cu.CUstream(address)

    def stream_signal(self, stream: Any, board: SignalBoard, slot: int) -> None:
        self.activate()
        if self._callback is None:
            self.make_signals_ready()
        # Not cuLaunchHostFunc: that is never called after a fault.
        result = self._cu.cuStreamAddCallback(stream, self._callback, board.slot_address(slot), 0)
        if int(result[0]) in _FAULTS:
            board.ring(slot, int(result[0]))
        else:
            check(self._cu, result)

    def signals_ready(self) -> bool:
        return self._callback is not None

    def make_signals_ready(self) -> None:
        from tilekit.driver._native import ring_address

        self._callback = self._cu.CUstreamCallback(ring_address())

    # events
    def event_create(self, timing: bool = False) -> Any:
        self.activate()
        return self._new_event(0 if timing else int(self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def _new_event(self, flags: int) -> Any:
        return check(self._cu, self._cu.cuEventCreate(flags))

    def event_destroy(self, event: Any) -> None:
        self.activate()
        self._given_up(self._cu.cuEventDestroy(event))

    def event_record(self, event: Any, stream: Any) -> None:
        if _thread.driver is not self:
            self.activate()
        result = self._cu.cuEventRecord(event, stream)
        if result[0]:
            check(self._cu, result)

    def event_record_all(self, event: Any) -> None:
        self.activate()
        cu = self._cu
        record = getattr(cu, "cuCtxRecordEvent", None)
        if record is None or record(self._context, event)[0]:  # before CUDA 12.8; while somebody's graph is being captured
            check(cu, cu.cuCtxSynchronize())

    def event_query(self, event: Any) -> bool:
        if _thread.driver is not self:
            self.activate()
        result = self._query(event)
        return True if not result[0] else self._passed(result)

    def event_synchronize(self, event: Any, timeout_s: float | None = None) -> bool:
        if _thread.driver is not self:
            self.activate()
        query, clock = self._query, time.perf_counter
        start = clock()
        spin_s = self._spin_s if timeout_s is None else min(self._spin_s, timeout_s)
        while True:
            result = query(event)
            if not result[0]:
                return True
            if result[0] != _NOT_READY:
                check(self._cu, result)
            if clock() - start >= spin_s:
                break
        if timeout_s is None:
            if self._spin_s:  # the driver polls on, without Python's lock: it notices at once
                check(self._cu, self._cu.cuEventSynchronize(event))
            else:
                self._sleep_until(event)
            return True
        pause_s = 20e-6  # the driver has no timed wait, and a signal would also wait for what comes behind the event
        while (left_s := start + timeout_s - clock()) > 0:
            time.sleep(min(pause_s, left_s))
            if self._passed(query(event)):
                return True
            pause_s = min(2 * pause_s, 1e-3)
        return False

    def _sleep_until(self, event: Any) -> None:
        """Block, and leave the processor to others meanwhile; on an H200 that notices 30 to 300 microseconds late.

        For that the driver wants an event of another kind, which passes a microsecond later. So it is not that kind that is
        recorded behind all work, but one behind the event, in a stream of the waiter's own.
        """
        cu, kinds = self._cu, self._cu.CUevent_flags
        try:
            stream, waker = self._sleepers.pop()
        except IndexError:
            flags = int(kinds.CU_EVENT_BLOCKING_SYNC) | int(kinds.CU_EVENT_DISABLE_TIMING)
            stream, waker = self._private_stream(), self._new_event(flags)
        try:
            check(cu, cu.cuStreamWaitEvent(stream, event, 0))
            check(cu, cu.cuEventRecord(waker, stream))
            check(cu, cu.cuEventSynchronize(waker))
        finally:
            self._sleepers.append((stream, waker))

    def event_elapsed_ms(self, start: Any, end: Any) -> float:
        self.activate()
        return float(check(self._cu, self._cu.cuEventElapsedTime(start, end)))

    def event_signal(self, event: Any, board: SignalBoard, slot: int, line: tuple[int, int]) -> None:
        self.activate()
        cu = self._cu
        # Not a callback in the stream of the event: that would come after all that is behind the event by now, and CUDA would
        # hold up what comes behind the callback until it has been called.
        with self._watching:
            watcher = self._watcher(line)
            check(cu, cu.cuStreamWaitEvent(watcher.handle, event, 0))
            self.stream_signal(watcher.handle, board, slot)

    def _watcher(self, line: tuple[int, int]) -> _Watcher:
        """One that has nothing to wait for, or waits for earlier places of the same stream; a new one if there is none."""
        number, serial = line
        for watcher in self._watchers:
            if watcher.line[0] == number and watcher.line[1] <= serial:
                watcher.line = line
                return watcher
        for watcher in self._watchers:
            if not self._cu.cuStreamQuery(watcher.handle)[0]:
                watcher.line = line
                return watcher
        watcher = _Watcher(self._private_stream(), line)
        self._watchers.append(watcher)
        return watcher

    def _private_stream(self) -> Any:
        """A stream that does nothing but wait for others."""
        # Streams of one priority share a few hardware queues, where a waiting one holds up the others: not the compute streams.
        return self.stream_create(self.priority_range()[1])

    def _passed(self, result: tuple[Any, ...]) -> bool:
        if result[0] == _NOT_READY:
            return False
        check(self._cu, result)
        return True

    def _given_up(self, result: tuple[Any, ...]) -> None:
        """Check the result of giving something up. After a fault it is gone already, with its context."""
        if int(result[0]) not in _FAULTS:
            check(self._cu, result)

    # memory
    def allocate(self, nbytes: int, stream: Any) -> Memory:
        if _thread.driver is not self:
            self.activate()
        if not self.ledger.take(nbytes):
            raise self.exhausted(nbytes, limited=True)
        if self.allocator is not None:
            return self._lending.allocate(self.allocator, nbytes, stream)
        result = self._allocate(nbytes, stream)
        if result[0]:
            self.ledger.cancel(nbytes)
            if result[0] == _OUT_OF_MEMORY:
                self.trim()  # before it gave up, the pool took all that the device had left
                raise self.exhausted(nbytes)
            raise _error(self._cu, result[0])
        return Memory(int(result[1]), nbytes)

    def exhausted(self, nbytes: int, *, limited: bool = False) -> DeviceError:
        """The error for an allocation that cannot be."""
        who = f"cuda:{self.ordinal} ({self.name})"
        return self.ledger.exhausted(
            who, nbytes, self.memory_info(), self.reserved_bytes(), limited=limited, code="CUDA_ERROR_OUT_OF_MEMORY"
        )

    def free(self, memory: Memory, stream: Any, after: Sequence[Any] = ()) -> None:
        if _thread.driver is not self:
            self.activate()
        for event in after:
            self._given_up(self._cu.cuStreamWaitEvent(stream, event, 0))
        if type(memory) is Lent:
            self._lending.free(memory, stream, alone=not after)
            return
        result = self._free(memory.address, stream)
        if result[0]:
            self._given_up(result)
        self.ledger.give(memory.nbytes)

    def _lock_pages(self, nbytes: int) -> int:
        """The address of so many bytes of page-locked memory of the host's; 0 if there is none to be had."""
        self.activate()
        result = self._cu.cuMemHostAlloc(nbytes, _PORTABLE)
        return 0 if result[0] == _OUT_OF_MEMORY else int(check(self._cu, result))

    def _unlock_pages(self, address: int) -> None:
        self.activate()
        self._given_up(self._cu.cuMemFreeHost(address))

    def _staging_bytes(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Page-locked memory that is kept for the life of the process; 0 bytes if there is none to be had."""
        address = self._lock_pages(nbytes)
        if not address:
            return np.empty(0, np.uint8)
        return np.ndarray(nbytes, np.uint8, memoryview((ctypes.c_uint8 * nbytes).from_address(address)))

    def _is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the array is in page-locked memory, so that a copy goes on while the host does."""
        self.activate()
        attribute = self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        result = self._cu.cuPointerGetAttribute(attribute, array.__array_interface__["data"][0])
        return not result[0] and int(result[1]) == _HOST_MEMORY  # of pageable memory CUDA knows nothing: an error

    def extent(self, address: int) -> tuple[int, int, int] | None:
        self.activate()
        kinds = self._cu.CUpointer_attribute
        asked = (
            kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        )
        told = [self._cu.cuPointerGetAttribute(attribute, address) for attribute in asked]
        if any(result[0] for result in told) or int(told[0][1]) != _DEVICE_MEMORY:
            return None
        return int(told[1][1]), int(told[2][1]), int(told[3][1])

    def copy_from_host(self, memory: Memory, offset: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        self.activate()
        start = source.__array_interface__["data"][0]
        check(self._cu, self._cu.cuMemcpyHtoDAsync(memory.address + offset, start, source.nbytes, stream))

    def copy_to_host(self, target: np.ndarray[Any, Any], memory: Memory, offset: int, stream: Any) -> None:
        self.activate()
        start = target.__array_interface__["data"][0]
        check(self._cu, self._cu.cuMemcpyDtoHAsync(start, memory.address + offset, target.nbytes, stream))

    def copy(self, target: Memory, target_offset: int, source: Memory, source_offset: int, nbytes: int, stream: Any) -> None:
        self.activate()
        to, start = target.address + target_offset, source.address + source_offset
        check(self._cu, self._cu.cuMemcpyDtoDAsync(to, start, nbytes, stream))

    def copy_from_peer(
        self, target: Memory, target_offset: int, peer: CudaDriver, source: Memory, source_offset: int, nbytes: int, stream: Any
    ) -> None:
        theirs = peer.context
        self.activate()
        self._open_way(peer)
        to, start = target.address + target_offset, source.address + source_offset
        check(self._cu, self._cu.cuMemcpyPeerAsync(to, self._context, start, theirs, nbytes, stream))

    def _open_way(self, peer: CudaDriver) -> None:
        """Let copies from `peer` go straight from device to device where the hardware can; the driver stages others."""
        cu = self._cu
        with self._lock:
            if peer.ordinal in self._peers:
                return
            self._peers.add(peer.ordinal)
        if not int(check(cu, cu.cuDeviceCanAccessPeer(self._device, peer._device))):
            return
        enabled = cu.cuCtxEnablePeerAccess(peer._context, 0)
        if int(enabled[0]) != _PEER_ALREADY_ENABLED:
            check(cu, enabled)
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self.ordinal
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(cu, cu.cuMemPoolSetAccess(peer._pool, [access], 1))

    def fill(self, memory: Memory, offset: int, count: int, pattern: bytes, stream: Any) -> None:
        self.activate()
        cu = self._cu
        setters = {1: cu.cuMemsetD8Async, 2: cu.cuMemsetD16Async, 4: cu.cuMemsetD32Async}
        if len(pattern) not in setters:
            raise ValueError(f"a pattern of {len(pattern)} bytes: CUDA fills with 1, 2 or 4")
        check(cu, setters[len(pattern)](memory.address + offset, int.from_bytes(pattern, "little"), count, stream))

    # code
    def load(self, image: bytes, entry: str) -> CudaFunction:
        self.activate()
        cu = self._cu
        library = check(cu, cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        handle = check(cu, cu.cuKernelGetFunction(check(cu, cu.cuLibraryGetKernel(library, entry.encode()))))
        static = check(cu, cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle))
        return CudaFunction(handle, entry, library, _STATIC_SHARED_LIMIT - int(static))

    def launch(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: Any,
        params: int,
    ) -> None:
        if _thread.driver is not self:
            self.activate()
        if shared_bytes > function.shared_limit:
            self._allow_shared(function, shared_bytes)
        x, y, z = grid
        bx, by, bz = block
        result = self._launch(function.handle, x, y, z, bx, by, bz, shared_bytes, stream, params, 0)
        if result[0]:
            raise _error(self._cu, result[0], f"launching {function.entry} with grid {grid} and block {block}")

    def launch_clusters(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        shared_bytes: int,
        stream: Any,
        params: int,
    ) -> None:
        """As `launch`, with the blocks in clusters; sm_90 and newer."""
        self.activate()
        cu = self._cu
        if shared_bytes > function.shared_limit:
            self._allow_shared(function, shared_bytes)
        x, y, z = cluster
        if x * y * z > _PORTABLE_CLUSTER:
            allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(cu, cu.cuFuncSetAttribute(function.handle, allowed, 1))
        config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_bytes, stream
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
        config.attrs, config.numAttrs = [attribute], 1
        result = cu.cuLaunchKernelEx(config, function.handle, params, 0)
        if result[0]:
            doing = f"launching {function.entry} with grid {grid} and block {block} in clusters of {cluster}"
            raise _error(cu, result[0], doing)

    def kernel_names(self, image: bytes) -> tuple[str, ...]:
        """The kernels in an image that `load` takes, by the names that they have there."""
        self.activate()
        cu = self._cu
        library = check(cu, cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        try:
            count = int(check(cu, cu.cuLibraryGetKernelCount(library)))
            kernels = check(cu, cu.cuLibraryEnumerateKernels(count, library)) if count else ()
            return tuple(check(cu, cu.cuKernelGetName(kernel)).decode() for kernel in kernels)
        finally:
            check(cu, cu.cuLibraryUnload(library))

    @property
    def native(self) -> NativeCalls | None:
        self.activate()
        cu = self._cu
        addresses = []
        for name in (b"cuLaunchKernel", b"cuCtxGetCurrent"):
            found = cu.cuGetProcAddress(name, 12000, 0)
            if found[0] or not found[1]:
                return None
            addresses.append(int(found[1]))
        launch, current = addresses
        return NativeCalls(launch, current, self._context_address)

    def _allow_shared(self, function: CudaFunction, nbytes: int) -> None:
        cu = self._cu
        limit = self._attribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        if nbytes > limit - (_STATIC_SHARED_LIMIT - function.shared_limit):
            raise DeviceError(
                f"{function.entry} needs {nbytes:,} bytes of dynamic shared memory; a block of {self.name} has {limit:,}. "
                "Smaller tiles or fewer pipeline stages need less",
                code="CUDA_ERROR_INVALID_VALUE",
            )
        kind = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu, cu.cuFuncSetAttribute(function.handle, kind, nbytes))
        function.shared_limit = nbytes

    def submit(self, stream: Any, work: Callable[[], None], keep: Sequence[Any] = ()) -> None:
        raise TypeError("a CUDA stream runs kernels, not Python functions; Stream.add_callback calls one when work is done")


def check(bindings: Any, result: tuple[Any, ...]) -> Any:
    """What a function of cuda.bindings returned, without its return code: None, the one value, or a tuple of several.

    Raises:
        DeviceError: the code is not CUDA_SUCCESS. The text has its name and the driver's explanation.
    """
    if result[0]:
        raise _error(bindings, result[0])
    return result[1] if len(result) == 2 else result[1:] or None


def _error(bindings: Any, code: Any, doing: str = "") -> DeviceError:
    name, text = (
        value.decode() if isinstance(value, bytes) else f"CUDA error {int(code)}"
        for value in (bindings.cuGetErrorName(code)[1], bindings.cuGetErrorString(code)[1])
    )
    message = f"{doing}: {name}: {text}" if doing else f"{name}: {text}"
    lost = int(code) in _FAULTS
    if lost:
        message += (
            ". A kernel launched earlier failed, perhaps another than the last. This process cannot use the GPU any more: "
            "restart it to go on"
        )
    return DeviceError(message, code=name, lost=lost)


def target_for(capability: tuple[int, int]) -> str:
    """What to compile for: `(9, 0)` -> `"sm_90a"`; the `a` gives Hopper and datacentre Blackwell their own instructions."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if 9 <= major < 12 else ''}"


def discover(bindings: Any = None) -> Discovery:
    """Look for GPUs. Makes no context.

    Args:
        bindings: the module `cuda.bindings.driver`, or what a test puts in its place; imported by default.
    """
    if bindings is None:
        try:
            bindings = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            return Discovery(
                reason=f'cuda-bindings is not installed ({error}); install it with: pip install "numba-cuda[cu13]" '
                "(numba-cuda[cu12] for drivers of CUDA 12)"
            )
    try:
        (code,) = bindings.cuInit(0)
    except Exception as error:  # what it raises where libcuda is missing differs between versions
        return Discovery(reason=f"the NVIDIA driver (libcuda) cannot be loaded; install it for your system. {_first_line(error)}")
    if code:
        return Discovery(
            reason=f"the NVIDIA driver finds no GPU to use ({_error(bindings, code)}); see what nvidia-smi says, and whether "
            "CUDA_VISIBLE_DEVICES hides it"
        )
    count = int(check(bindings, bindings.cuDeviceGetCount()))
    drivers: list[Driver] = []
    unusable: dict[int, str] = {}
    for ordinal in range(count):
        try:
            driver = CudaDriver(bindings, ordinal, count == 1)
        except DeviceError as error:
            unusable[ordinal] = str(error)
            continue
        capability = driver.compute_capability or (0, 0)
        if capability < OLDEST:
            unusable[ordinal] = f"{driver.name} is {driver.target}; tilekit needs sm_80 (Ampere) or newer"
        elif not driver.pools:
            unusable[ordinal] = f"{driver.name} has no stream-ordered memory pools here (cuMemAllocAsync); tilekit needs them"
        else:
            drivers.append(driver)
    if drivers:
        return Discovery(drivers=drivers, unusable=unusable)
    found = "; ".join(f"cuda:{ordinal}: {why}" for ordinal, why in unusable.items())
    return Discovery(reason=found or "the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it", unusable=unusable)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


_drivers: weakref.WeakSet[CudaDriver] = weakref.WeakSet()


def _after_fork() -> None:
    _thread.driver = None
    for driver in tuple(_drivers):
        driver.after_fork()


forking.in_child(_after_fork)
