"""Kernels that are not tilekit's, on the devices where they run: numba's through its dispatcher, machine code through the driver.

numba is imported by nobody but whoever made the kernel: before that there is nothing to launch.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tilekit._capture.kernel_nodes import InterpretedLaunch, compiled_launch
from tilekit._driver.nodes import Node
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.foreign.image import Image
from tilekit.errors import CompileError, DeviceError, DeviceUnavailableError

__all__ = ["LoadedImage", "NumbaLaunch", "RawLaunch", "SimulatedLaunch", "kind_of_kernel", "no_simulator"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # with which numba emphasises

Triple = tuple[int, int, int]

_NUMBA_SCALARS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
    "float32": "f", "float64": "d",
}  # fmt: skip

_PLAIN_SHARED = 48 * 1024  # bytes of shared memory that a kernel gets without asking


# machine code


class LoadedImage:
    """A kernel of machine code on a GPU. What it was loaded from stays loaded for the life of the process.

    Args:
        image: what to load.
        slots: the `struct` format of its parameters, eight bytes each.
        device: where.
        what: what messages call it.

    Raises:
        DeviceError: the driver does not take it. ValueError: it has no such kernel.
    """

    def __init__(self, image: Image, slots: str, device: Device, what: str) -> None:
        self.driver: Any = device.driver
        try:
            self.function = self.driver.load(image.data, image.entry)
        except DeviceError as error:
            raise _explained(error, image, device, what) from error
        self.lock = threading.Lock()
        self.packer = struct.Struct(slots)
        self.buffer = ctypes.create_string_buffer(max(self.packer.size, 8))
        base = ctypes.addressof(self.buffer)
        self._pointers = (ctypes.c_void_p * max(1, self.packer.size // 8))(*range(base, base + max(self.packer.size, 8), 8))
        self.params = ctypes.addressof(self._pointers)


def _explained(error: DeviceError, image: Image, device: Device, what: str) -> Exception:
    """The driver's words for an image that it did not load, with what to do."""
    driver: Any = device.driver
    where = f"{device.label} ({device.name}, {device.target})"
    if error.code == "CUDA_ERROR_NOT_FOUND":
        names = driver.kernel_names(image.data)
        return ValueError(f"{what}: there is no kernel {image.entry!r} in it; it has {', '.join(names) or 'no kernels at all'}")
    hints = {
        "CUDA_ERROR_NO_BINARY_FOR_GPU": "It was compiled for another architecture: compile it for this one, or ship PTX",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "The PTX was made by a newer toolkit than the driver. With nvJitLink tilekit "
        'assembles it without the driver: pip install "numba-cuda[cu13]"; or ship a cubin',
        "CUDA_ERROR_INVALID_PTX": "The driver cannot assemble it",
    }
    hint = f". {hints[error.code]}" if error.code in hints else ""
    return DeviceError(f"{what} cannot be loaded on {where}: {error}{hint}", code=error.code, lost=error.lost)


class RawLaunch:
    """Launches a loaded kernel with one configuration.

    Args:
        loaded: the kernel.
        block, shared_bytes, cluster: as of `LaunchConfig`.
        values: the numbers to pack for arguments.
        written: for each argument, whether it is memory that may be written.
    """

    __slots__ = ("_block", "_cluster", "_loaded", "_shared_bytes", "_values", "_written")

    def __init__(
        self,
        loaded: LoadedImage,
        block: Triple,
        shared_bytes: int,
        cluster: Triple | None,
        values: Callable[[Sequence[Any]], Sequence[Any]],
        written: Sequence[bool],
    ) -> None:
        self._loaded, self._block, self._shared_bytes, self._cluster = loaded, block, shared_bytes, cluster
        self._values, self._written = values, written

    def as_node(self, grid: Triple, arguments: Sequence[Any]) -> Node:
        """The launch, to be written down."""
        loaded = self._loaded
        packed = loaded.packer.pack(*self._values(arguments))
        codes = re.sub("[^a-zA-Z?]|x", "", loaded.packer.format)
        placed = [(argument, at, written) for at, (argument, written) in enumerate(zip(arguments, self._written, strict=True))]
        return compiled_launch(loaded.function, grid, self._block, self._shared_bytes, packed, codes, placed, self._cluster)

    def launch(self, ctx: ExecutionContext, grid: Triple, arguments: Sequence[Any]) -> None:
        """Launch on the stream."""
        loaded, numbers = self._loaded, self._values(arguments)
        with loaded.lock:  # the driver has copied the parameters when the launch returns
            loaded.packer.pack_into(loaded.buffer, 0, *numbers)
            if self._cluster is None:
                loaded.driver.launch(loaded.function, grid, self._block, self._shared_bytes, ctx.stream.handle, loaded.params)
            else:
                loaded.driver.launch_clusters(
                    loaded.function, grid, self._block, self._cluster, self._shared_bytes, ctx.stream.handle, loaded.params
                )


# numba's


def kind_of_kernel(function: Any) -> Literal["compiled", "simulated", "device"] | None:
    """What `function` is to numba-cuda: a kernel to compile, one for its simulator, a device function; None if nothing."""
    simulator, dispatchers = sys.modules.get("numba.cuda.simulator.kernel"), sys.modules.get("numba.cuda.dispatcher")
    simulated, compiled = getattr(simulator, "FakeCUDAKernel", None), getattr(dispatchers, "CUDADispatcher", None)
    if simulated is not None and isinstance(function, simulated):
        return "device" if function._device else "simulated"
    if compiled is not None and isinstance(function, compiled):
        return "device" if function.targetoptions.get("device") else "compiled"
    return None


class NumbaLaunch:
    """One launch of a numba kernel on a GPU. Making it makes numba's views of the tensors; nothing is copied.

    Args:
        dispatcher: what `numba.cuda.jit` made.
        what: what messages call it.
        arguments: tensors of `device`, and scalars.
        block, shared_bytes: as of `LaunchConfig`.
        device: the GPU.

    Raises:
        TypeError: numba has no arrays of the dtype of one.
    """

    def __init__(
        self, dispatcher: Any, what: str, arguments: Sequence[Any], block: Triple, shared_bytes: int, device: Device
    ) -> None:
        self._dispatcher, self._what, self._device = dispatcher, what, device
        self._block, self._shared_bytes = block, shared_bytes
        _enter(device)
        self._arguments = tuple(_device_array(a) if isinstance(a, Tensor) else a for a in arguments)
        self._types = self._typed(arguments)

    def _typed(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        from numba.cuda.core.errors import NumbaError

        numba_types = []
        for argument, passed in zip(arguments, self._arguments, strict=True):
            try:
                numba_types.append(self._dispatcher.typeof_pyval(passed))
            except (NumbaError, ValueError) as error:
                raise TypeError(f"{self._what}: numba does not know what {argument!r} is: {error}") from error
        return tuple(numba_types)

    @property
    def ready(self) -> bool:
        """Whether it is compiled. One that was given its signatures by `numba.cuda.jit` is, and is never compiled again."""
        return not self._dispatcher._can_compile or self._types in self._dispatcher.overloads

    def compile(self) -> NumbaLaunch:
        """Compile it for the arguments. CompileError if numba cannot."""
        from numba.core.errors import NumbaError

        _enter(self._device)  # in this thread too
        try:
            self._dispatcher.compile(self._types)
        except NumbaError as error:  # numba-cuda's derive from numba's
            raise CompileError(f"{self._what} does not compile: {_COLOURS.sub('', str(error))}") from error
        return self

    def launch(self, ctx: ExecutionContext, grid: Triple, arguments: Sequence[Any]) -> None:
        """Launch on the stream, by numba."""
        _enter(self._device)
        if self._shared_bytes > _PLAIN_SHARED:
            self._allow_shared()
        stream = _external_stream(self._device.ordinal, ctx.stream.address)
        self._dispatcher[grid, self._block, stream, self._shared_bytes](*self._arguments)

    def as_node(self, grid: Triple, arguments: Sequence[Any]) -> Node | None:
        """The launch, to be written down: numba's kernels take the fields of an array one by one, eight bytes each.

        None for what only numba can pass: its extensions, kernels that report exceptions, scalars of other types.
        """
        overloads = self._dispatcher.overloads
        kernel = overloads.get(self._types)
        if kernel is None or self._dispatcher.extensions or kernel.debug:
            return None
        packed, codes, placed = bytearray(), "", []
        for argument, passed, kind in zip(arguments, self._arguments, self._types, strict=True):
            tensor = argument.tensor if isinstance(argument, Partition) else argument
            if isinstance(tensor, Tensor):
                fields = (0, 0, tensor.size, tensor.itemsize, tensor.address, *tensor.shape, *passed.strides)
                placed.append((argument, len(codes) + 4, True))
                packed += struct.pack(f"={len(fields)}q", *fields)
                codes += "q" * len(fields)
                continue
            code = _NUMBA_SCALARS.get(str(kind))
            if code is None:
                return None
            placed.append((argument, len(codes), False))
            packed += struct.pack(f"={code}", passed).ljust(8, b"\0")
            codes += code
        _enter(self._device)
        library: Any = kernel._codelibrary.get_cufunc()
        driver: Any = self._device.driver
        function = driver.function_of(int(library.handle), self._what)
        node = compiled_launch(function, grid, self._block, self._shared_bytes, bytes(packed), codes, placed)
        node.keep = (self._dispatcher, self._arguments)
        return node

    def _allow_shared(self) -> None:
        """Allow the kernel more dynamic shared memory, which numba-cuda 0.30.4 never does."""
        from numba.cuda.cudadrv import driver

        overloads = self._dispatcher.overloads
        kernel = overloads.get(self._types) or next(iter(overloads.values()))
        function = kernel._codelibrary.get_cufunc()
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            driver.driver.cuKernelSetAttribute(attribute, self._shared_bytes, function.handle, function.device.id)
        except driver.CudaAPIError as error:
            raise DeviceError(
                f"{self._what} needs {self._shared_bytes:,} bytes of dynamic shared memory, more than a block of "
                f"{self._device.name} has for it: {error}",
                code="CUDA_ERROR_INVALID_VALUE",
            ) from error


def _enter(device: Device) -> None:
    """Make the device's context current in this thread: numba works in that one."""
    _ = device.driver.context


@functools.lru_cache(maxsize=256)
def _external_stream(ordinal: int, address: int) -> Any:
    """numba's view of a stream. numba keeps configurations by the stream object, so that is made once."""
    from numba import cuda

    return cuda.external_stream(address)


def _device_array(tensor: Tensor) -> Any:
    """numba's view of a tensor: the same memory."""
    from numba.cuda.cudadrv import devicearray, devices, driver

    low, high = tensor.span()
    pointer = driver.binding.CUdeviceptr(tensor.address)
    data = driver.MemoryPointer(devices.get_context(), pointer, size=high - low, owner=tensor)
    strides = tuple(stride * tensor.itemsize for stride in tensor.strides)
    return devicearray.DeviceNDArray(tensor.shape, strides, tensor.dtype, gpu_data=data)


_simulating = threading.Lock()  # numba's simulator runs one kernel at a time


class SimulatedLaunch:
    """One launch of a numba kernel in numba's simulator, as work of a CPU stream.

    Args:
        kernel: what `numba.cuda.jit` made under NUMBA_ENABLE_CUDASIM=1.
        what: what messages call it.
        arguments: tensors of a CPU device, and scalars.
        read_only: for each, whether the kernel is declared not to write it.
        block, shared_bytes: as of `LaunchConfig`.
    """

    def __init__(
        self,
        kernel: Any,
        what: str,
        arguments: Sequence[Any],
        read_only: Sequence[bool],
        block: Triple,
        shared_bytes: int,
    ) -> None:
        self._kernel, self._what, self._block, self._shared_bytes = kernel, what, block, shared_bytes
        self._arguments = [_host_array(a, fixed) if isinstance(a, Tensor) else a for a, fixed in zip(arguments, read_only)]

    def launch(self, ctx: ExecutionContext, grid: Triple, arguments: Sequence[Any]) -> None:
        """Queue the launch on the stream's worker."""
        self._enqueue(ctx.device.driver, ctx.stream.handle, grid, arguments)

    def as_node(self, grid: Triple, arguments: Sequence[Any]) -> Node:
        """The launch, to be written down. What it works on stays the same."""
        return InterpretedLaunch(self._enqueue, grid, (), ())

    def _enqueue(self, driver: Any, stream: Any, grid: Triple, arguments: Sequence[Any]) -> None:
        driver.submit(stream, lambda: self._run(grid))

    def _run(self, grid: Triple) -> None:
        try:
            with _simulating:
                self._kernel[grid, self._block, 0, self._shared_bytes](*self._arguments)
        except Exception as error:
            raise DeviceError(f"{self._what}: {type(error).__name__}: {error}") from error


def _host_array(tensor: Tensor, fixed: bool) -> Any:
    """The simulator's view of a tensor: the same memory. (Given a NumPy array, it would copy it there and back.)"""
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    array = tensor.host_view()
    array.flags.writeable = not fixed
    return FakeCUDAArray(array)


def no_simulator(what: str, device: Device) -> DeviceUnavailableError:
    """Why a compiled numba kernel does not run on a CPU device."""
    return DeviceUnavailableError(
        f"{what} is compiled for GPUs, and {device.label} is none. On a CPU device it runs in numba's simulator, which must be "
        "chosen before numba is imported: set NUMBA_ENABLE_CUDASIM=1 (that switches numba's compiler off for the whole process)"
    )
