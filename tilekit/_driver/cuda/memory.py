"""Memory of a GPU: its pool, page-locked memory of the host, copies."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit._driver.cuda.context import this_thread
from tilekit._driver.cuda.errors import OUT_OF_MEMORY, PEER_ALREADY_ENABLED, check, failure, given_up
from tilekit._driver.cuda.lending import Lending
from tilekit._driver.cuda.streams import CudaStreams
from tilekit._driver.ledger import Ledger
from tilekit._driver.pinned import PinnedPool, PlainPool
from tilekit._driver.protocol import Allocator, Lent, Memory
from tilekit.errors import OutOfMemoryError

if TYPE_CHECKING:
    from tilekit._driver.cuda.windows import CudaWindow
    from tilekit._driver.windows import Exchange

__all__ = ["CudaMemory"]

_HOST_MEMORY, _DEVICE_MEMORY, _PORTABLE = 1, 2, 1  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, CU_MEMHOSTALLOC_PORTABLE


class CudaMemory(CudaStreams):
    """One GPU's memory. All but what is about sizes is in stream order."""

    keeps_free_lists = True  # the driver takes 0.9 us to allocate and free

    def __init__(self, bindings: Any, ordinal: int, alone: bool) -> None:
        super().__init__(bindings, ordinal, alone)
        self._peers: set[int] = set()  # the ordinals of devices from which copies were prepared
        self.pinned: PlainPool = PinnedPool(self._lock_pages, self._unlock_pages)
        self.ledger = Ledger()
        self.allocator: Allocator | None = None
        self._lending = Lending(self)

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
        given_up(self._cu, self._cu.cuMemPoolTrimTo(self._pool, 0))

    def wait_idle(self) -> None:
        super().wait_idle()
        self._lending.collect()

    def allocate(self, nbytes: int, stream: Any) -> Memory:
        if this_thread.driver is not self:
            self.activate()
        if not self.ledger.take(nbytes):
            raise self.exhausted(nbytes, limited=True)
        if self.allocator is not None:
            return self._lending.allocate(self.allocator, nbytes, stream)
        result = self._allocate(nbytes, stream)
        if result[0]:
            self.ledger.cancel(nbytes)
            if result[0] == OUT_OF_MEMORY:
                self.trim()  # before it gave up, the pool took all that the device had left
                raise self.exhausted(nbytes)
            raise failure(self._cu, result[0])
        return Memory(int(result[1]), nbytes)

    def exhausted(self, nbytes: int, *, limited: bool = False) -> OutOfMemoryError:
        who = f"cuda:{self.ordinal} ({self.name})"
        return self.ledger.exhausted(
            who, nbytes, self.memory_info(), self.reserved_bytes(), limited=limited, code="CUDA_ERROR_OUT_OF_MEMORY"
        )

    def free(self, memory: Memory, stream: Any, after: Sequence[Any] = ()) -> None:
        if this_thread.driver is not self:
            self.activate()
        for event in after:
            given_up(self._cu, self._cu.cuStreamWaitEvent(stream, event, 0))
        if type(memory) is Lent:
            self._lending.free(memory, stream, alone=not after)
            return
        result = self._free(memory.address, stream)
        if result[0]:
            given_up(self._cu, result)
        self.ledger.give(memory.nbytes)

    def _lock_pages(self, nbytes: int) -> int:
        """The address of so many bytes of page-locked memory of the host's; 0 if there is none to be had."""
        self.activate()
        result = self._cu.cuMemHostAlloc(nbytes, _PORTABLE)
        return 0 if result[0] == OUT_OF_MEMORY else int(check(self._cu, result))

    def _unlock_pages(self, address: int) -> None:
        self.activate()
        given_up(self._cu, self._cu.cuMemFreeHost(address))

    def _staging_bytes(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Page-locked memory that is kept for the life of the process; 0 bytes if there is none to be had."""
        address = self._lock_pages(nbytes)
        if not address:
            return np.empty(0, np.uint8)
        return np.ndarray(nbytes, np.uint8, memoryview((ctypes.c_uint8 * nbytes).from_address(address)))

    def _is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the array is in page-locked memory, so that a copy goes on while the host does."""
        self.activate()
        asked = [self._cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE]
        error, attributes = self._cu.cuPointerGetAttributes(1, asked, array.__array_interface__["data"][0])
        return not error and int(attributes[0]) == _HOST_MEMORY

    def extent(self, address: int) -> tuple[int, int, int] | None:
        self.activate()
        kinds = self._cu.CUpointer_attribute
        asked = [
            kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            kinds.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ]
        error, attributes = self._cu.cuPointerGetAttributes(len(asked), asked, address)
        if error or int(attributes[0]) != _DEVICE_MEMORY:
            return None
        return int(attributes[1]), int(attributes[2]), int(attributes[3])

    def window(
        self, members: Sequence[CudaMemory], ranks: Sequence[int], size: int, nbytes: int, exchange: Exchange | None
    ) -> CudaWindow:
        from tilekit._driver.cuda.windows import CudaWindow  # importing it takes some milliseconds

        return CudaWindow(members, ranks, size, nbytes, exchange)

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

    def wait_for_word(self, memory: Memory, offset: int, least: int, stream: Any) -> None:
        self.activate()
        at_least = self._cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        check(self._cu, self._cu.cuStreamWaitValue64(stream, memory.address + offset, least, at_least))

    def copy_from_peer(
        self, target: Memory, target_offset: int, peer: CudaMemory, source: Memory, source_offset: int, nbytes: int, stream: Any
    ) -> None:
        theirs = peer.context
        self.activate()
        self.open_way(peer)
        to, start = target.address + target_offset, source.address + source_offset
        check(self._cu, self._cu.cuMemcpyPeerAsync(to, self._context, start, theirs, nbytes, stream))

    def open_way(self, peer: CudaMemory) -> None:
        """Let copies from `peer` go straight from device to device where the hardware can; the driver stages others."""
        cu = self._cu
        with self._lock:
            if peer.ordinal in self._peers:
                return
            self._peers.add(peer.ordinal)
        if not int(check(cu, cu.cuDeviceCanAccessPeer(self._device, peer._device))):
            return
        enabled = cu.cuCtxEnablePeerAccess(peer._context, 0)
        if int(enabled[0]) != PEER_ALREADY_ENABLED:
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
