"""A GPU that does nothing, at once: a stand-in for `cuda.bindings.driver` that counts what it is asked.

With it, tilekit's host path runs on any machine, down to the driver's calls: kernels are compiled, loaded, launched, and never
run. Events have passed as soon as they are recorded.
"""

from __future__ import annotations

import collections
import ctypes
import enum
import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fake_graphs import FakeGraphs

import tilekit._runtime.device
from tilekit import _native
from tilekit._driver.cuda import driver as cuda
from tilekit._driver.discovery import Discovery
from tilekit._runtime.device import Device, use_device
from tilekit._runtime.policy import SingleStream


class _Flag(enum.IntFlag):
    """Any of the driver's enumerations: what the values are does not matter here."""

    CU_STREAM_NON_BLOCKING = 1
    CU_EVENT_BLOCKING_SYNC = 1
    CU_EVENT_DISABLE_TIMING = 2
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97


class _Names:
    """Enumerations of which a test sees the names."""

    def __getattr__(self, name: str) -> str:
        return name


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
_RECORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_QUERY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
_CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_ATTRIBUTES = {16: 132, 38: 50 << 20, 75: 9, 76: 0, 115: 1, 97: 227 * 1024}


class FakeBindings(FakeGraphs):
    """As much of cuda.bindings.driver as tilekit's driver calls.

    Attributes:
        calls: how often each function was called.
        not_ready: how many of the next queries say that an event has not passed.
        foreign: (start, size) of the allocations of other libraries.
        slots, maps: how many parameters of 8 and of 128 bytes the kernels have that are launched; their values are kept.
        encoded: what was asked for as tensor maps, by the 128 bytes that were given for it.
        launches: of each launch the function, grid, block, shared bytes, the stream, and so many parameters.
        copies: of each copy and fill by native code the function, and what it was given.
        context: which one is current.
        refuse: the code that the next launches return.
        meanwhile: is called during each launch, as other threads may run then.
    """

    CUstream_flags = CUevent_flags = CUmemPool_attribute = CUfunction_attribute = _Flag
    CUpointer_attribute = CUdevice_attribute = _Flag
    CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = CUtensorMapL2promotion = CUtensorMapFloatOOBfill = _Names()
    CUstream = CUstreamCallback = CUresult = cuuint64_t = cuuint32_t = int

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()
        self.context = 7
        self.not_ready = self.slots = self.maps = self.refuse = 0
        self.encoded: dict[bytes, tuple[Any, ...]] = {}
        self.foreign: list[tuple[int, int]] = []
        self.launches: list[tuple[Any, ...]] = []
        self.copies: list[tuple[str, int, int, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._native = {
            b"cuLaunchKernel": _LAUNCH(self._launched),
            b"cuCtxGetCurrent": _CURRENT(self._current),
            b"cuEventRecord": _RECORD(lambda event, stream: self.cuEventRecord(event, stream)[0]),
            b"cuEventQuery": _QUERY(lambda event: self.cuEventQuery(event)[0]),
            b"cuStreamWaitEvent": _WAIT(lambda *asked: self.cuStreamWaitEvent(*asked)[0]),
            b"cuTensorMapReplaceAddress": _RECORD(self._replaced),
            b"cuGraphLaunch": _RECORD(lambda graph, stream: self.cuGraphLaunch(graph, stream)[0]),
            **{
                name: _COPY(lambda to, start, nbytes, stream, name=name: self._copied(name, to, start, nbytes))
                for name in (b"cuMemcpyAsync", b"cuMemsetD8Async", b"cuMemsetD16Async", b"cuMemsetD32Async")
            },
        }
        self._addresses = itertools.count(1 << 32, 1 << 20)
        self._handles = itertools.count(1)

    def _done(self, name: str, *values: Any) -> tuple[Any, ...]:
        self.calls[name] += 1
        return (0, *values)

    def __getattr__(self, name: str) -> Any:
        """The functions of which nothing is needed but that they succeed."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        values = {
            "cuDeviceGetCount": lambda: (1,),
            "cuDeviceGetName": lambda: (b"fake GPU\0",),
            "cuDeviceGet": lambda: (0,),
            "cuDeviceGetPCIBusId": lambda: (b"00000000:1B:00.0\0",),
            "cuDevicePrimaryCtxRetain": lambda: (7,),
            "cuDeviceGetDefaultMemPool": lambda: (0,),
            "cuCtxGetCurrent": lambda: (self.context,),
            "cuCtxGetStreamPriorityRange": lambda: (0, -5),
            "cuFuncGetAttribute": lambda: (0,),
            "cuEventElapsedTime": lambda: (0.25,),  # milliseconds
            "cuMemGetInfo": lambda: (1 << 37, 1 << 37),
            "cuMemPoolGetAttribute": lambda: (0,),
            "cuGetErrorName": lambda: (b"CUDA_ERROR_FAKE",),
            "cuGetErrorString": lambda: (b"as a driver would explain it",),
            "cuMemAllocAsync": lambda: (next(self._addresses),),
        }
        for made in ("cuStreamCreateWithPriority", "cuEventCreate", "cuLibraryLoadData", "cuLibraryGetKernel"):
            values[made] = lambda: (next(self._handles),)
        values["cuKernelGetFunction"] = values["cuEventCreate"]
        give = values.get(name, tuple)

        def function(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            return (0, *give())

        setattr(self, name, function)
        return function

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return 0, _ATTRIBUTES[int(attribute)]

    def cuPointerGetAttributes(self, count: int, attributes: list[int], address: int) -> tuple[int, list[int]]:
        for start, nbytes in self.foreign:
            if start <= address < start + nbytes:
                return 0, [{2: 2, 9: 0, 11: start, 12: nbytes}[int(attribute)] for attribute in attributes]
        return 0, [0] * count

    def cuEventQuery(self, event: Any) -> tuple[int]:
        self.calls["cuEventQuery"] += 1
        if self.not_ready:
            self.not_ready -= 1
            return (600,)
        return (0,)

    def cuLaunchKernel(self, function: int, *sizes: Any) -> tuple[int]:
        *sizes, stream, params, _ = sizes
        return (self._launched(function, *sizes, stream, ctypes.cast(params, ctypes.POINTER(ctypes.c_void_p)), None),)

    def _launched(self, function: Any, *rest: Any) -> int:
        self.calls["cuLaunchKernel"] += 1
        self.meanwhile()
        *sizes, stream, params, _ = rest
        values = self._values(params)
        self.launches.append((function, tuple(sizes[:3]), tuple(sizes[3:6]), sizes[6], stream, values))
        return self.refuse

    def _copied(self, name: bytes, to: int, start: int, count: int) -> int:
        self.calls[name.decode()] += 1
        self.copies.append((name.decode(), to, start, count))
        return 0

    def _current(self, context: Any) -> int:
        context[0] = self.context
        return 0

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[int, int, int]:
        return 0, ctypes.cast(self._native[name], ctypes.c_void_p).value or 0, 0

    def cuTensorMapEncodeTiled(self, *asked: Any) -> tuple[Any, ...]:
        made = self._map(asked)
        memory = ctypes.create_string_buffer(made, len(made))
        return self._done("cuTensorMapEncodeTiled", SimpleNamespace(getPtr=lambda: ctypes.addressof(memory)))

    def _replaced(self, tensor_map: int, address: int) -> int:
        self.calls["cuTensorMapReplaceAddress"] += 1
        asked = [*self.encoded[ctypes.string_at(tensor_map, 128)]]
        asked[2] = address
        made = self._map(tuple(asked))
        ctypes.memmove(tensor_map, made, len(made))
        return 0

    def _map(self, asked: tuple[Any, ...]) -> bytes:
        """The 128 bytes that stand for what was asked."""
        made = struct.pack("=QQ", len(self.encoded) + 1, asked[2]) * 8  # its number, and the address
        self.encoded[made] = asked
        return made

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[int]:
        return (2,)  # none to be had: copies go the plain way


def fake_gpu() -> tuple[Device, FakeBindings]:
    """A device of its own, and what stands behind it."""
    bindings = FakeBindings()
    driver = cuda.CudaDriver(bindings, 0, False)
    driver.make_signals_ready = lambda: setattr(driver, "_callback", SimpleNamespace())  # type: ignore[method-assign]
    device = Device.of_driver(driver)
    return device, bindings


@contextmanager
def fake_device(slots: int = 0) -> Iterator[tuple[Device, FakeBindings]]:
    """A `fake_gpu` that is the default device for the `with` block, and that has one stream for all ops.

    Args:
        slots: how many parameters the kernels have that are launched.
    """
    device, bindings = fake_gpu()
    bindings.slots = slots
    with use_device(device):
        device.policy = SingleStream(device)
        yield device, bindings


@contextmanager
def first_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Device, FakeBindings]]:
    """A `fake_gpu` that is found as `cuda:0`, and is the default device for the `with` block."""
    made, bindings = fake_gpu()
    bindings._handles = itertools.count(1 << 20)  # as real ones: 1 and 2 stand for the default streams
    monkeypatch.setattr(
        tilekit._runtime.device, "_registry", tilekit._runtime.device._Registry(lambda: Discovery(drivers=[made.driver]))
    )
    with use_device("cuda:0") as device:
        yield device, bindings


def launch_through(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launches go through the compiled part (`"native"`), which must be there, or through Python alone (`"python"`)."""
    if way == "native" and _native.compiled is None:
        pytest.skip("tilekit was installed without a C compiler")
    monkeypatch.setenv("TILEKIT_NATIVE", str(int(way == "native")))
