"""`CudaWindow`: memory of several GPUs, or processes, mapped behind each other (CUDA's virtual memory management).

A process reserves addresses for all parts, maps its own memory and the others' there, and lets its GPUs read and write all of it.
Between processes memory travels as an open file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilekit._driver.cuda.errors import OUT_OF_MEMORY, check, failure, given_up
from tilekit._driver.windows import Exchange, close_all, swap, together
from tilekit.errors import DeviceError

if TYPE_CHECKING:
    from tilekit._driver.cuda.memory import CudaMemory

__all__ = ["CudaWindow"]

# Windows that nobody uses any more: the bindings, addresses, sizes and strides. No driver is called while garbage is collected.
_dropped: deque[tuple[Any, int, int, int]] = deque()


class CudaWindow:
    """A window of GPUs, filled with zeros.

    Args:
        drivers: this process's members'.
        ranks: theirs.
        size: how many parts there are.
        nbytes: of a part.
        exchange: what connects the processes; None where one has all parts.

    Raises:
        OutOfMemoryError: a GPU has not so much memory.
        DeviceError: two of the GPUs cannot use each other's memory, or a process is on another machine.
    """

    raw: Any = None

    def __init__(
        self, drivers: Sequence[CudaMemory], ranks: Sequence[int], size: int, nbytes: int, exchange: Exchange | None
    ) -> None:
        cu = self._cu = drivers[0]._cu
        with together(exchange):
            for driver in drivers:
                driver.activate()  # there has to be a context
            unmap_dropped()
            _check_peers(cu, drivers)
            grain = max(_granularity(cu, _properties(cu, driver, exchange)) for driver in drivers)
        if exchange is not None:
            grain = max(exchange(grain))
        self.stride = -(-max(nbytes, 1) // grain) * grain
        self.nbytes = size * self.stride
        handles: dict[int, Any] = {}
        try:
            with together(exchange):
                for rank, driver in zip(ranks, drivers, strict=True):
                    handles[rank] = self._created(cu, driver, exchange)
            if exchange is not None:
                handles |= _others(cu, ranks[0], size, handles[ranks[0]], exchange)
            with together(exchange):
                address = int(check(cu, cu.cuMemAddressReserve(self.nbytes, grain, 0, 0)))
                self._map(cu, drivers, address, handles)
                self.address = address
        finally:
            for handle in handles.values():
                given_up(cu, cu.cuMemRelease(handle))  # what is mapped lasts
        with together(exchange):  # nobody writes to another's part before it is filled
            for rank, driver in zip(ranks, drivers, strict=True):
                driver.activate()
                check(cu, cu.cuMemsetD8(self.address + rank * self.stride, 0, self.stride))
                check(cu, cu.cuStreamSynchronize(cu.CUstream(0)))

    def _created(self, cu: Any, driver: CudaMemory, exchange: Exchange | None) -> Any:
        driver.activate()
        result = cu.cuMemCreate(self.stride, _properties(cu, driver, exchange), 0)
        if int(result[0]) == OUT_OF_MEMORY:
            raise driver.exhausted(self.stride)
        return check(cu, result)

    def _map(self, cu: Any, drivers: Sequence[CudaMemory], address: int, handles: dict[int, Any]) -> None:
        mapped = 0
        try:
            for rank in sorted(handles):
                check(cu, cu.cuMemMap(address + rank * self.stride, self.stride, 0, handles[rank], 0))
                mapped += 1
            rights = [_access(cu, driver) for driver in drivers]
            (code,) = cu.cuMemSetAccess(address, self.nbytes, rights, len(rights))
            if code:
                names = ", ".join(f"cuda:{driver.ordinal}" for driver in drivers)
                raise failure(cu, code, f"letting {names} use the memory of the other members' GPUs")
        except BaseException:
            _unmap(cu, address, mapped * self.stride, self.stride)
            given_up(cu, cu.cuMemAddressFree(address, self.nbytes))
            raise

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _dropped.append((self._cu, self.address, self.nbytes, self.stride))


def unmap_dropped() -> None:
    """Give back the windows that nobody uses any more."""
    while _dropped:
        cu, address, nbytes, stride = _dropped.popleft()
        _unmap(cu, address, nbytes, stride)
        given_up(cu, cu.cuMemAddressFree(address, nbytes))


def _unmap(cu: Any, address: int, nbytes: int, stride: int) -> None:
    for at in range(0, nbytes, stride):
        given_up(cu, cu.cuMemUnmap(address + at, stride))


def _properties(cu: Any, driver: CudaMemory, exchange: Exchange | None) -> Any:
    """Of memory of a GPU, which other processes can map if they are to."""
    kinds, properties = cu.CUmemAllocationHandleType, cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = driver.ordinal
    if exchange is not None:
        properties.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def _granularity(cu: Any, properties: Any) -> int:
    kind = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    return int(check(cu, cu.cuMemGetAllocationGranularity(properties, kind)))


def _access(cu: Any, driver: CudaMemory) -> Any:
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = driver.ordinal
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _check_peers(cu: Any, drivers: Sequence[CudaMemory]) -> None:
    for one in drivers:
        for other in drivers:
            if one is not other and not int(check(cu, cu.cuDeviceCanAccessPeer(one._device, other._device))):
                raise DeviceError(
                    f"cuda:{one.ordinal} cannot use the memory of cuda:{other.ordinal}: `nvidia-smi topo -p2p r` says which can. "
                    "The group's own methods (group.all_reduce...) need no symmetric memory"
                )


def _others(cu: Any, rank: int, size: int, handle: Any, exchange: Exchange) -> dict[int, Any]:
    """The memory of the other processes' members, by rank."""
    kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    own = int(check(cu, cu.cuMemExportToShareableHandle(handle, kind, 0)))
    try:
        received = swap(rank, size, own, exchange)
    finally:
        os.close(own)
    handles: dict[int, Any] = {}
    try:
        with together(exchange):
            for other, descriptor in received.items():
                handles[other] = check(cu, cu.cuMemImportFromShareableHandle(descriptor, kind))
    except BaseException:
        for imported in handles.values():
            given_up(cu, cu.cuMemRelease(imported))
        raise
    finally:
        close_all(received.values())
    return handles
