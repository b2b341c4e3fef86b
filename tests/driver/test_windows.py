"""Windows of GPUs where there is none: what is asked of the driver, and given back. `tests/groups` has those of CPU devices."""

from __future__ import annotations

import enum
import gc
from types import SimpleNamespace

import pytest

from tilekit._driver.cuda import windows
from tilekit._driver.windows import together
from tilekit.errors import DeviceError, OutOfMemoryError

GRAIN = 1 << 21


class Code(enum.IntEnum):
    SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_DEVICE = 101


class Properties:
    def __init__(self):
        self.type = self.requestedHandleTypes = None
        self.location = SimpleNamespace(type=None, id=None)


class Bindings:
    """As much of cuda.bindings.driver as a window asks; it notes what is there."""

    CUmemAllocationProp = CUmemAccessDesc = Properties
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR="file")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED="recommended")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="both")

    def __init__(self, *, peers=True, room=99, access=Code.SUCCESS):
        self.peers, self.room, self.access = peers, room, access
        self.handles, self.mapped, self.reserved, self.rights, self.filled = [], {}, {}, {}, []

    def CUstream(self, address):
        return address

    def cuDeviceCanAccessPeer(self, device, peer):
        return Code.SUCCESS, int(self.peers)

    def cuMemGetAllocationGranularity(self, properties, kind):
        return Code.SUCCESS, GRAIN

    def cuMemCreate(self, size, properties, flags):
        if len(self.handles) >= self.room:
            return Code.CUDA_ERROR_OUT_OF_MEMORY, None
        self.handles.append((properties.location.id, size, properties.requestedHandleTypes))
        return Code.SUCCESS, self.handles[-1]

    def cuMemRelease(self, handle):
        self.handles.remove(handle)
        return (Code.SUCCESS,)

    def cuMemAddressReserve(self, size, alignment, address, flags):
        self.reserved[1 << 40] = size
        return Code.SUCCESS, 1 << 40

    def cuMemAddressFree(self, address, size):
        assert self.reserved.pop(address) == size
        return (Code.SUCCESS,)

    def cuMemMap(self, address, size, offset, handle, flags):
        self.mapped[address] = (size, handle)
        return (Code.SUCCESS,)

    def cuMemUnmap(self, address, size):
        assert self.mapped.pop(address)[0] == size
        return (Code.SUCCESS,)

    def cuMemSetAccess(self, address, size, rights, count):
        self.rights[address] = (size, [(one.location.id, one.flags) for one in rights], count)
        return (self.access,)

    def cuMemsetD8(self, address, value, count):
        self.filled.append((address, value, count))
        return (Code.SUCCESS,)

    def cuStreamSynchronize(self, stream):
        return (Code.SUCCESS,)

    def cuGetErrorName(self, code):
        return Code.SUCCESS, code.name.encode()

    def cuGetErrorString(self, code):
        return Code.SUCCESS, b"as the driver explains it"


def drivers(cu, count=2):
    def exhausted(nbytes):
        return OutOfMemoryError("none", requested_bytes=nbytes, free_bytes=0, total_bytes=0, pooled_bytes=0)

    return [SimpleNamespace(_cu=cu, _device=n, ordinal=n, activate=lambda: None, exhausted=exhausted) for n in range(count)]


def test_each_members_memory_is_mapped_behind_the_one_before():
    cu = Bindings()
    window = windows.CudaWindow(drivers(cu), (0, 1), 2, 1000, None)
    assert (window.address, window.stride, window.nbytes, window.raw) == (1 << 40, GRAIN, 2 * GRAIN, None)
    parts = {window.address + n * GRAIN: (GRAIN, (n, GRAIN, None)) for n in range(2)}
    assert cu.mapped == parts
    assert cu.rights == {window.address: (2 * GRAIN, [(0, "both"), (1, "both")], 2)}
    assert cu.filled == [(address, 0, GRAIN) for address in parts]
    assert cu.handles == [], "what is mapped lasts"


def test_one_that_nobody_uses_goes_when_the_next_is_made():
    """Not when it is collected: no driver is called then."""
    cu = Bindings()
    window = windows.CudaWindow(drivers(cu), (0, 1), 2, 1000, None)
    del window
    gc.collect()
    assert cu.reserved
    windows.unmap_dropped()
    assert not cu.reserved and not cu.mapped


def test_what_went_wrong_leaves_nothing():
    cu = Bindings(room=1)
    with pytest.raises(OutOfMemoryError):
        windows.CudaWindow(drivers(cu), (0, 1), 2, 1000, None)
    assert not cu.handles and not cu.reserved
    cu = Bindings(access=Code.CUDA_ERROR_INVALID_DEVICE)
    with pytest.raises(DeviceError, match="letting cuda:0, cuda:1 use the memory of the other members' GPUs: CUDA_ERROR_INVALID"):
        windows.CudaWindow(drivers(cu), (0, 1), 2, 1000, None)
    assert not cu.handles and not cu.reserved and not cu.mapped


def test_gpus_that_cannot_use_each_others_memory():
    with pytest.raises(DeviceError, match="cuda:0 cannot use the memory of cuda:1: `nvidia-smi topo"):
        windows.CudaWindow(drivers(Bindings(peers=False)), (0, 1), 2, 1000, None)


def test_an_error_in_one_process_is_one_in_all():
    told = []
    with pytest.raises(OSError, match="full"), together(told.append):
        raise OSError("full")
    assert told == ["full"]
    said = "rank 1 could not have symmetric memory, which is of one machine: full"
    with pytest.raises(DeviceError, match=said), together(lambda mine: [mine, "full"]):
        pass
    with together(None):
        pass
