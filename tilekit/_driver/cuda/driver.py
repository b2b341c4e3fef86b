"""A GPU, through cuda.bindings: kernels here; below them its graphs, its memory, its streams and its context, a class and a
module each.

`cuda_discovery` imports the bindings when somebody looks for GPUs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilekit._driver.cuda.context import this_thread
from tilekit._driver.cuda.errors import NOT_READY, check, failure
from tilekit._driver.cuda.graphs import CudaGraphs
from tilekit._driver.cuda.tensormaps import encode
from tilekit._driver.protocol import NativeCalls, NativeWork
from tilekit._driver.report import VARIABLE, WORDS, Report, Site
from tilekit._driver.staging import Staging
from tilekit._driver.tensormaps import TensorMap
from tilekit.errors import DeviceError

__all__ = ["CudaDriver", "CudaFunction"]

_reporting = threading.Lock()
_PORTABLE_CLUSTER = 8  # blocks; a larger one has to be allowed
_STATIC_SHARED_LIMIT = 48 * 1024  # of static and dynamic shared memory together, unless a kernel is allowed more


class CudaFunction:
    """A kernel on a device. What it was loaded from stays loaded for the life of the process: launches may be in flight.

    Attributes:
        handle: the CUfunction. The object is kept, since cuLaunchKernel takes longer over an int.
        entry: its name in the image.
        shared_limit: how many bytes of dynamic shared memory it may be launched with, as of now.
        starts_early: whether it may begin before the launches before it have ended, for which it waits by itself.
    """

    __slots__ = ("entry", "handle", "library", "shared_limit", "starts_early")

    def __init__(self, handle: Any, entry: str, library: Any, shared_limit: int, starts_early: bool = False) -> None:
        self.handle, self.entry, self.library, self.shared_limit = handle, entry, library, shared_limit
        self.starts_early = starts_early


class CudaDriver(CudaGraphs):
    """One GPU (`tilekit._driver.protocol.Driver`). Its handles are the objects of cuda.bindings.

    Args:
        bindings: the module `cuda.bindings.driver`.
        ordinal: CUDA's number of the device.
        alone: whether it is the only GPU.
    """

    def __init__(self, bindings: Any, ordinal: int, alone: bool) -> None:
        super().__init__(bindings, ordinal, alone)
        self._launch = bindings.cuLaunchKernel
        self._report: Report | None = None
        self.staging: Staging | None = Staging(self, self._staging_bytes, self._is_pinned)

    def load(self, image: bytes, entry: str, shared_bytes: int = 0, starts_early: bool = False) -> CudaFunction:
        self.activate()
        cu = self._cu
        library = check(cu, cu.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        handle = check(cu, cu.cuKernelGetFunction(check(cu, cu.cuLibraryGetKernel(library, entry.encode()))))
        static = check(cu, cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle))
        function = CudaFunction(handle, entry, library, _STATIC_SHARED_LIMIT - int(static), starts_early)
        if shared_bytes > function.shared_limit:
            self._allow_shared(function, shared_bytes)
        return function

    def function_of(self, kernel: int, entry: str) -> CudaFunction:
        """The kernel that somebody else loaded, a CUkernel, as one of this device's; what it was loaded from must stay loaded."""
        self.activate()
        cu = self._cu
        handle = check(cu, cu.cuKernelGetFunction(cu.CUkernel(kernel)))
        static = check(cu, cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle))
        return CudaFunction(handle, entry, None, _STATIC_SHARED_LIMIT - int(static))

    def failure(self, code: int, doing: str) -> DeviceError:
        """The error for a code that the driver gave to native code."""
        return failure(self._cu, self._cu.CUresult(code), doing)

    def watch(self, function: CudaFunction, sites: Sequence[Site]) -> None:
        self.activate()
        cu = self._cu
        with _reporting:
            if self._report is None:
                memory = self._staging_bytes(8 * WORDS)
                if not memory.size:  # there is none to be had: the kernel still stops, and nobody knows why
                    return
                self._report = Report(memory)
            contents = np.array(self._report.add(sites), np.int64)
        variable, _ = check(cu, cu.cuLibraryGetGlobal(function.library, VARIABLE.encode()))
        check(cu, cu.cuMemcpyHtoD(variable, contents.__array_interface__["data"][0], contents.nbytes))

    def launch(
        self,
        function: CudaFunction,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: Any,
        params: int,
    ) -> None:
        if this_thread.driver is not self:
            self.activate()
        if shared_bytes > function.shared_limit:
            self._allow_shared(function, shared_bytes)
        x, y, z = grid
        bx, by, bz = block
        result = self._launch(function.handle, x, y, z, bx, by, bz, shared_bytes, stream, params, 0)
        if result[0]:
            raise failure(self._cu, result[0], f"launching {function.entry} with grid {grid} and block {block}")

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
        self.allow(function, shared_bytes, cluster)
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
            raise failure(cu, result[0], doing)

    def tensor_map(self, known: TensorMap, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        self.activate()
        return encode(self._cu, known, address, shape, strides)

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
        addresses = self._addresses("cuLaunchKernel", "cuCtxGetCurrent", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent")
        if addresses is None:
            return None
        launch, current, record, query, wait = addresses
        return NativeCalls(launch, current, record, query, wait, self._context_address, NOT_READY, self._spin_s)

    @property
    def native_work(self) -> NativeWork | None:
        addresses = self._addresses(
            "cuGraphLaunch", "cuMemcpyAsync", "cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async",
            "cuTensorMapReplaceAddress",
        )  # fmt: skip
        return None if addresses is None else NativeWork(*addresses)

    def _addresses(self, *names: str) -> list[int] | None:
        """Of the driver's functions; None if one is missing."""
        self.activate()
        addresses = []
        for name in names:
            result = self._cu.cuGetProcAddress(name.encode(), 12000, 0)
            if result[0] or not result[1]:
                return None
            addresses.append(int(result[1]))
        return addresses

    def allow(self, function: CudaFunction, shared_bytes: int, cluster: tuple[int, int, int] | None = None) -> None:
        cu = self._cu
        if shared_bytes > function.shared_limit:
            self._allow_shared(function, shared_bytes)
        if cluster is not None and math.prod(cluster) > _PORTABLE_CLUSTER:
            allowed = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(cu, cu.cuFuncSetAttribute(function.handle, allowed, 1))

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
