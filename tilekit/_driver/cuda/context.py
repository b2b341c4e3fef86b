"""A GPU's context, and which one is current. It is the device's primary context, that numba, torch and cupy use too."""

from __future__ import annotations

import functools
import subprocess
import threading
import weakref
from typing import Any, Literal

from tilekit._driver import forking
from tilekit._driver.cuda.errors import check

__all__ = ["CudaContext", "target_for", "this_thread"]


class _Thread(threading.local):
    driver: CudaContext | None = None


# Whose context is current in this thread, as far as tilekit knows. Only trusted (and only set) where there is one GPU: with
# more, other libraries change the current device behind our back.
this_thread = _Thread()


class CudaContext:
    """One GPU: what it is, and its context, which is made when the first thing is asked of it.

    What takes every launch's time checks `this_thread.driver` by itself before it calls `activate`.

    Args:
        bindings: the module `cuda.bindings.driver`.
        ordinal: CUDA's number of the device.
        alone: whether it is the only GPU.
    """

    kind: Literal["cuda", "cpu"] = "cuda"

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
        self._lock = threading.Lock()
        self._context: Any = None
        self._context_address = 0
        self._pool: Any = None  # the device's memory; bound with the context, like the two calls below
        self._allocate: Any = None
        self._free: Any = None
        self._forked = False
        _contexts.add(self)

    def _attribute(self, attribute: Any) -> int:
        return int(check(self._cu, self._cu.cuDeviceGetAttribute(attribute, self._device)))

    def activate(self) -> None:
        """Make the device's context current in this thread, and make it if this is the first time."""
        if this_thread.driver is self:
            return
        cu = self._cu
        if self._context is None:
            self._open()
        if int(check(cu, cu.cuCtxGetCurrent())) != self._context_address:
            check(cu, cu.cuCtxSetCurrent(self._context))
        if self._alone:
            this_thread.driver = self

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
        self._lock = threading.Lock()

    @functools.cached_property
    def multiprocessors(self) -> int:
        return self._attribute(self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)

    @functools.cached_property
    def l2_bytes(self) -> int:
        return self._attribute(self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)

    def clocks_mhz(self) -> tuple[int, int] | None:
        address = check(self._cu, self._cu.cuDeviceGetPCIBusId(64, self._device)).split(b"\0")[0].decode()
        asked = ["nvidia-smi", f"--id={address}", "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
            multiprocessors, memory = map(int, answer.split(","))
        except (OSError, ValueError, subprocess.SubprocessError):  # not installed, or it knows no clocks
            return None
        return multiprocessors, memory

    @property
    def context(self) -> Any:
        self.activate()
        return self._context

    def synchronize(self) -> None:
        self.activate()
        check(self._cu, self._cu.cuCtxSynchronize())


def target_for(capability: tuple[int, int]) -> str:
    """What to compile for: `(9, 0)` -> `"sm_90a"`; the `a` gives Hopper and datacentre Blackwell their own instructions."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if 9 <= major < 12 else ''}"


_contexts: weakref.WeakSet[CudaContext] = weakref.WeakSet()


def _after_fork() -> None:
    this_thread.driver = None
    for context in tuple(_contexts):
        context.after_fork()


forking.in_child(_after_fork)
