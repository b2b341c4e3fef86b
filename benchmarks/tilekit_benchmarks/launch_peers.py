"""The peers of the benchmark `launch`. Each is imported when it is asked to take part, and works on tilekit's memory and stream.

A peer is a function of the tensors, the first of which is written, and the stream. It gives what launches once without waiting,
and what makes a context for that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor
from tilekit_benchmarks.saxpy_peers import DeviceArray, Missing, need

__all__ = ["PEERS", "Peer", "in_cupy", "in_torch"]

_THREADS = 256
_BLOCK = 1024
_INPUTS = "abcdefghijklmno"

Active = Callable[[], AbstractContextManager[object]]
Launch = tuple[Callable[[], object], Active]


class Peer(NamedTuple):
    """Who takes part.

    Attributes:
        variant: which way of the library's.
        distributions: what says its version, the first that is installed.
        build: see the module.
        places: for how many tensors there is such a way; None for any number.
    """

    variant: str
    distributions: tuple[str, ...]
    build: Callable[[Sequence[Tensor], Stream], Launch]
    places: tuple[int, ...] | None = None

    @property
    def version(self) -> str:
        """The library's, if it is installed."""
        return f"{next(filter(None, map(version_of, self.distributions)), None)}"


def in_torch(stream: Stream) -> tuple[Any, Active]:
    """PyTorch's device of `stream`, and what makes that PyTorch's current stream."""
    need(("torch", "torch"))
    import torch

    device = torch.device("cuda", stream.device.ordinal)
    external = torch.cuda.ExternalStream(stream.address, device=device)
    return device, lambda: torch.cuda.stream(external)


def in_cupy(stream: Stream) -> Active:
    """What makes `stream` CuPy's current stream."""
    need(("cupy", "cupy-cuda13x"))
    import cupy

    ordinal = stream.device.ordinal
    with warnings.catch_warnings():
        # Deprecated in 14 for Stream.from_external, whose streams destroy the other library's when they are collected.
        warnings.simplefilter("ignore", DeprecationWarning)
        external = cupy.cuda.ExternalStream(stream.address, ordinal)

    @contextmanager
    def active() -> Iterator[None]:
        with cupy.cuda.Device(ordinal), external:
            yield

    return active


def numba(tensors: Sequence[Tensor], stream: Stream) -> Launch:
    """numba: a kernel that was configured once, an element a thread."""
    need(("numba_cuda", "numba-cuda"))
    from numba import cuda

    from tilekit_benchmarks import _numba_host

    cuda.select_device(stream.device.ordinal)
    arrays = [cuda.as_cuda_array(DeviceArray(tensor)) for tensor in tensors]
    kernels: Mapping[int, Any] = _numba_host.launches()
    configured = kernels[len(tensors)][_blocks(tensors, _THREADS), _THREADS, cuda.external_stream(stream.address)]
    return lambda: configured(*arrays), nullcontext


def torch_add(tensors: Sequence[Tensor], stream: Stream) -> Launch:
    """PyTorch: its own addition of two tensors."""
    device, active = in_torch(stream)
    import torch

    y, a, b = (torch.as_tensor(DeviceArray(tensor), device=device) for tensor in tensors)
    return lambda: torch.add(a, b, out=y), active


def triton(tensors: Sequence[Tensor], stream: Stream) -> Launch:
    """Triton: its launcher, on PyTorch's tensors."""
    need(("triton", "triton"))
    device, active = in_torch(stream)
    import torch

    from tilekit_benchmarks._triton_launch import LAUNCHES

    arrays = [torch.as_tensor(DeviceArray(tensor), device=device) for tensor in tensors]
    launcher = LAUNCHES[len(tensors)][(_blocks(tensors, _BLOCK),)]
    if not arrays:
        return launcher, active
    n = tensors[0].size
    return lambda: launcher(*arrays, n, BLOCK=_BLOCK), active


def cupy(tensors: Sequence[Tensor], stream: Stream) -> Launch:
    """CuPy: a RawKernel of CUDA C++."""
    active = in_cupy(stream)
    import cupy as cp

    with active():
        arrays = tuple(cp.asarray(DeviceArray(tensor)) for tensor in tensors)
        kernel = cp.RawKernel(cuda_source(len(tensors)), "kernel")
    grid, block = (_blocks(tensors, _THREADS),), (_THREADS,)
    n = (tensors[0].size,) if tensors else ()
    return lambda: kernel(grid, block, (*arrays, *n)), active


def cuda_source(count: int) -> str:
    """The kernel for so many tensors in CUDA C++, called `kernel`."""
    if not count:
        return 'extern "C" __global__ void kernel() {}'
    inputs = _INPUTS[: count - 1]
    parameters = ", ".join(["int* y", *(f"const int* {name}" for name in inputs), "int size"])
    total = " + ".join(f"{name}[at]" for name in inputs) or "1"
    return (
        f'extern "C" __global__ void kernel({parameters}) {{ '
        f"int at = blockIdx.x * blockDim.x + threadIdx.x; if (at < size) y[at] = {total}; }}"
    )


def cutile(tensors: Sequence[Tensor], stream: Stream) -> Launch:
    """cuTile Python: `ct.launch`, on PyTorch's tensors."""
    try:
        import cuda.tile as ct
    except ImportError:
        raise Missing("not installed: pip install cuda-tile") from None
    device, active = in_torch(stream)
    import torch

    from tilekit_benchmarks._cutile_launch import LAUNCHES

    arrays = tuple(torch.as_tensor(DeviceArray(tensor), device=device) for tensor in tensors)
    kernel, grid = LAUNCHES[len(tensors)], (_blocks(tensors, _BLOCK), 1, 1)
    with active():
        external = torch.cuda.current_stream(device)
    arguments = (*arrays, _BLOCK) if arrays else ()
    return lambda: ct.launch(external, grid, kernel, arguments), active


def _blocks(tensors: Sequence[Tensor], elements: int) -> int:
    return -(-tensors[0].size // elements) if tensors else 1


PEERS: Mapping[str, Peer] = {
    "numba-cuda": Peer("configured before", ("numba-cuda",), numba),
    "triton": Peer("kernel[grid](...)", ("triton",), triton),
    "cupy": Peer("RawKernel", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), cupy),
    "torch": Peer("torch.add(out=)", ("torch",), torch_add, (3,)),
    "cutile": Peer("ct.launch", ("cuda-tile",), cutile),
}
"""The peers on a GPU, by name."""
