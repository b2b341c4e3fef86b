"""The floor under a launch: cuLaunchKernel by cuda.bindings, the same machine code as tilekit's, everything prepared."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.launch import KernelLaunch
from tilekit_benchmarks.saxpy_peers import Missing

__all__ = ["NAME", "RawGraph", "RawLaunch", "version"]

NAME = "cuda-bindings"


def version() -> str:
    """The version of cuda.bindings."""
    return f"{version_of(NAME)}"


class RawLaunch:
    """A launch that was prepared once: nothing is checked, packed or remembered any more.

    tilekit does not know that these launches use the tensors: whoever waits for them waits for the stream.

    Args:
        op: what to launch, its arguments tensors and scalars; it is compiled, not run.
        stream: where, of a GPU.
    """

    def __init__(self, op: KernelLaunch, stream: Stream) -> None:
        from cuda.bindings import driver as bindings

        self._cu, self._stream = bindings, stream
        self._arguments = op.arguments  # their memory must stay
        compiled = op.compile(stream.device.target)
        self._function = stream.device.driver.load(compiled.cubin, compiled.entry)
        flat: list[Any] = []
        tiles: tuple[int, ...] = ()
        for argument in op.arguments:
            if isinstance(argument, Partition):
                tiles = argument.grid
            flat.extend(argument.flat if isinstance(argument, (Tensor, Partition)) else (argument,))
        self._grid: tuple[int, ...] = (*tiles, 1, 1, 1)[:3]
        self._block = compiled.block
        packer = struct.Struct(compiled.param_format)
        self._buffer = ctypes.create_string_buffer(packer.size)
        packer.pack_into(self._buffer, 0, *flat)
        base = ctypes.addressof(self._buffer)
        slots = [base + at for at in range(0, packer.size, 8)]
        self._pointers = (ctypes.c_void_p * len(slots))(*slots)
        self._params = ctypes.addressof(self._pointers)

    def launch(self, count: int = 1) -> None:
        """Launch so many times, without waiting."""
        call, function, stream, params = self._cu.cuLaunchKernel, self._function.handle, self._stream.handle, self._params
        x, y, z = self._grid
        bx, by, bz = self._block
        for _ in range(count):
            result = call(function, x, y, z, bx, by, bz, 0, stream, params, 0)
            if result[0]:
                self._failed(result[0])

    def once(self) -> Callable[[], None]:
        """A function that launches it one time, with as little of Python as there can be."""
        x, y, z = self._grid
        handles = self._function.handle, self._stream.handle
        call = functools.partial(self._cu.cuLaunchKernel, handles[0], x, y, z, *self._block, 0, handles[1], self._params, 0)
        failed = self._failed

        def launch(keep: RawLaunch = self) -> None:  # the parameters are its
            (code,) = call()
            if code:
                failed(code)

        return launch

    def wait(self) -> None:
        """Block until the stream is done."""
        result = self._cu.cuStreamSynchronize(self._stream.handle)
        if result[0]:
            self._failed(result[0])

    def launch_and_wait(self, count: int = 1) -> None:
        """Both."""
        self.launch(count)
        self.wait()

    def native_launches(self, count: int) -> None:
        """As `launch`, by a compiled loop.

        Raises:
            Missing: the driver's library cannot be opened.
        """
        from tilekit_benchmarks import _numba_host

        loop: Any = _numba_host.native_loop(_address_of_launch())
        code = loop(count, int(self._function.handle), self._grid, self._block, self._stream.address, self._params)
        if code:
            self._failed(code)

    @staticmethod
    def _failed(code: Any) -> None:
        raise RuntimeError(f"the driver returned {code!r}")


class RawGraph:
    """A CUDA graph of prepared launches, as the driver captures it from a stream. Needs `close`.

    Args:
        launch: what it consists of, `count` times in a row.
        stream: where it is captured, and replayed.
    """

    def __init__(self, launch: RawLaunch, count: int, stream: Stream) -> None:
        from cuda.bindings import driver as bindings

        self._cu, self._stream, self._launch = bindings, stream, launch  # the launch's parameters must stay
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call(bindings.cuStreamBeginCapture, stream.handle, mode)
        launch.launch(count)
        self._template = self._call(bindings.cuStreamEndCapture, stream.handle)
        self._executable = self._call(bindings.cuGraphInstantiate, self._template, 0)

    def _call(self, function: Any, *arguments: Any) -> Any:
        result = function(*arguments)
        if result[0]:
            RawLaunch._failed(result[0])
        return result[1] if len(result) > 1 else None

    def launch_and_wait(self) -> None:
        """Replay it, and block until the stream is done."""
        result = self._cu.cuGraphLaunch(self._executable, self._stream.handle)
        if result[0]:
            RawLaunch._failed(result[0])
        self._launch.wait()

    def close(self) -> None:
        """Give the graph up."""
        self._call(self._cu.cuGraphExecDestroy, self._executable)
        self._call(self._cu.cuGraphDestroy, self._template)


def _address_of_launch() -> int:
    try:
        function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    except (OSError, AttributeError) as error:
        raise Missing(f"the driver's library cannot be opened by name: {error}") from None
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
