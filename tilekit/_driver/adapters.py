"""Other libraries' pools as allocators (`tilekit._driver.protocol.Allocator`). Each library is imported when one is made."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["CupyAllocator", "RmmAllocator", "TorchAllocator"]


class TorchAllocator:
    """torch's caching allocator, for one GPU."""

    def __init__(self, ordinal: int) -> None:
        self._cuda, self._ordinal = importlib.import_module("torch.cuda"), ordinal
        self._cuda.init()  # torch does so by itself in its own functions, but not in this one

    def allocate(self, nbytes: int, stream: int) -> int:
        """A block for `stream`."""
        address: int = self._cuda.caching_allocator_alloc(nbytes, self._ordinal, stream)
        return address

    def free(self, address: int, nbytes: int, stream: int) -> None:
        """Give it back; torch knows for which stream it was."""
        self._cuda.caching_allocator_delete(address)


class CupyAllocator:
    """cupy's current allocator, for one GPU."""

    def __init__(self, ordinal: int) -> None:
        self._cuda, self._ordinal = importlib.import_module("cupy.cuda"), ordinal
        self._blocks: dict[int, Any] = {}  # cupy takes a block back when its object is gone

    def allocate(self, nbytes: int, stream: int) -> int:
        """A block for `stream`."""
        with self._cuda.Device(self._ordinal), _cupy_stream(self._cuda, stream):
            block = self._cuda.alloc(nbytes)
        self._blocks[block.ptr] = block
        address: int = block.ptr
        return address

    def free(self, address: int, nbytes: int, stream: int) -> None:
        """Give it back; cupy knows for which stream it was."""
        with self._cuda.Device(self._ordinal):
            del self._blocks[address]


class RmmAllocator:
    """The memory resource of RMM's that is current for one GPU now."""

    def __init__(self, ordinal: int) -> None:
        self._resource = importlib.import_module("rmm.mr").get_per_device_resource(ordinal)
        self._stream_type = importlib.import_module("rmm.pylibrmm.stream").Stream
        self._cupy: Any = None
        try:
            self._stream(0)
        except (TypeError, ImportError):  # a release that takes streams of known libraries only
            self._cupy = importlib.import_module("cupy.cuda")

    def _stream(self, address: int) -> Any:
        return self._stream_type(_CudaStream(address) if self._cupy is None else _cupy_stream(self._cupy, address))

    def allocate(self, nbytes: int, stream: int) -> int:
        """A block for `stream`."""
        address: int = self._resource.allocate(nbytes, self._stream(stream))
        return address

    def free(self, address: int, nbytes: int, stream: int) -> None:
        """Give it back in the order of `stream`."""
        self._resource.deallocate(address, nbytes, self._stream(stream))


class _CudaStream:
    """A CUstream for those who ask for `__cuda_stream__`."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def _cupy_stream(cuda: Any, address: int) -> Any:
    """A CUstream as cupy's. Releases that take any stream of the protocol have a method for that."""
    external = getattr(cuda.Stream, "from_external", None)
    return cuda.ExternalStream(address) if external is None else external(_CudaStream(address))
