"""The peers of the saxpy benchmark. Each is imported when it is asked to take part, and works on tilekit's memory and stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilekit._environment import version_of
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor
from tilekit_benchmarks.harness import Contestant, Variant

__all__ = ["PEERS", "DeviceArray", "Missing", "Shared", "need"]

# Of the GPU's peers, what is tried; the best is measured.
_THREADS = (128, 256, 512)
_TRITON = ((512, 4), (1024, 4), (1024, 8), (2048, 8), (4096, 8))  # block size, warps


class Missing(Exception):
    """A peer is not installed; the text names the command that installs it."""


@dataclass(kw_only=True)
class Shared:
    """What the contestants work on.

    Attributes:
        n: the length of x and y.
        factor: a; float32 has the same value.
        x, y: the vectors.
        stream: where the work goes.
    """

    n: int
    factor: float
    x: Tensor
    y: Tensor
    stream: Stream


class DeviceArray:
    """A contiguous tensor on a GPU, as other libraries see it. It keeps the tensor alive; order is the user's task."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        tensor = self._tensor
        return {
            "shape": tensor.shape,
            "typestr": np.dtype(tensor.dtype).str,
            "data": (tensor.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }


def need(*modules: tuple[str, str]) -> None:
    """Raise `Missing` unless all of the (module, what pip calls it) are installed."""
    missing = [package for module, package in modules if find_spec(module) is None]
    if missing:
        raise Missing(f"not installed: pip install {' '.join(missing)}")


def numba_gpu(data: Shared) -> Contestant:
    """numba: the obvious kernel, one element a thread."""
    need(("numba_cuda", "numba-cuda"))
    from numba import cuda

    from tilekit_benchmarks import _numba_saxpy

    cuda.select_device(data.stream.device.ordinal)
    kernel: Any = _numba_saxpy.on_gpu()  # type: ignore[no-untyped-call]
    x, y = cuda.as_cuda_array(DeviceArray(data.x)), cuda.as_cuda_array(DeviceArray(data.y))
    stream = cuda.external_stream(data.stream.address)
    factor = np.float32(data.factor)  # a Python float would make numba compute in float64

    def variant(threads: int) -> Variant:
        configured = kernel[-(-data.n // threads), threads, stream]
        return Variant(label=f"{threads} threads", launch=lambda: configured(y, factor, x))

    return Contestant(name="numba-cuda", version=f"{version_of('numba-cuda')}", variants=tuple(map(variant, _THREADS)))


def torch_add(data: Shared) -> Contestant:
    """PyTorch: its own fused addition."""
    x, y, active = _in_torch(data)
    import torch

    return Contestant(
        name="torch",
        version=torch.__version__,
        variants=(Variant(launch=lambda: torch.add(y, x, alpha=data.factor, out=y)),),
        active=active,
    )


def triton_kernel(data: Shared) -> Contestant:
    """Triton: the kernel of its tutorials. It finds the stream, and checks its arguments, through PyTorch."""
    need(("triton", "triton"))
    x, y, active = _in_torch(data)
    import triton

    from tilekit_benchmarks._triton_saxpy import saxpy

    def variant(block: int, warps: int) -> Variant:
        grid = (-(-data.n // block),)
        return Variant(
            label=f"block {block}, {warps} warps",
            launch=lambda: saxpy[grid](y, data.factor, x, data.n, BLOCK=block, num_warps=warps),
        )

    return Contestant(
        name="triton", version=triton.__version__, variants=tuple(variant(*pair) for pair in _TRITON), active=active
    )


def _in_torch(data: Shared) -> tuple[Any, Any, Callable[[], Any]]:
    """x and y as PyTorch's tensors on the same memory, and what makes `data.stream` PyTorch's current stream."""
    need(("torch", "torch"))
    import torch

    device = torch.device("cuda", data.stream.device.ordinal)
    stream = torch.cuda.ExternalStream(data.stream.address, device=device)
    x, y = (torch.as_tensor(DeviceArray(tensor), device=device) for tensor in (data.x, data.y))
    if y.data_ptr() != data.y.address:
        raise RuntimeError(f"torch.as_tensor copied: {y.data_ptr():#x} is not {data.y.address:#x}")
    return x, y, lambda: torch.cuda.stream(stream)


def cupy_fused(data: Shared) -> Contestant:
    """CuPy: an elementwise kernel, fused."""
    need(("cupy", "cupy-cuda13x"))
    import cupy

    ordinal = data.stream.device.ordinal
    with warnings.catch_warnings():
        # Deprecated in 14 for Stream.from_external, whose streams destroy the other library's when they are collected.
        warnings.simplefilter("ignore", DeprecationWarning)
        stream = cupy.cuda.ExternalStream(data.stream.address, ordinal)
    with cupy.cuda.Device(ordinal):
        x, y = cupy.asarray(DeviceArray(data.x)), cupy.asarray(DeviceArray(data.y))
    if y.data.ptr != data.y.address:
        raise RuntimeError(f"cupy.asarray copied: {y.data.ptr:#x} is not {data.y.address:#x}")
    kernel = cupy.ElementwiseKernel("float32 a, float32 x", "float32 y", "y = a * x + y", "saxpy")
    factor = np.float32(data.factor)

    @contextmanager
    def active() -> Iterator[None]:
        with cupy.cuda.Device(ordinal), stream:
            yield

    return Contestant(
        name="cupy", version=cupy.__version__, variants=(Variant(launch=lambda: kernel(factor, x, y)),), active=active
    )


def numpy_passes(data: Shared) -> Contestant:
    """NumPy: two passes, the product in memory."""
    x, y = data.x.host_view(), data.y.host_view()
    product, factor = np.empty_like(x), np.float32(data.factor)

    def launch() -> None:
        np.multiply(x, factor, out=product)
        np.add(product, y, out=y)

    return Contestant(name="numpy", version=np.__version__, variants=(Variant(launch=launch),))


def numba_cpu(data: Shared) -> Contestant:
    """numba: a parallel loop."""
    need(("numba", "numba"))
    from tilekit_benchmarks import _numba_saxpy

    x, y, factor = data.x.host_view(), data.y.host_view(), np.float32(data.factor)
    return Contestant(
        name="numba",
        version=f"{version_of('numba')}",
        variants=(Variant(label="njit(parallel=True)", launch=lambda: _numba_saxpy.on_cpu(y, factor, x)),),
    )


PEERS: Mapping[str, Mapping[str, Callable[[Shared], Contestant]]] = {
    "cuda": {"numba-cuda": numba_gpu, "torch": torch_add, "triton": triton_kernel, "cupy": cupy_fused},
    "cpu": {"numpy": numpy_passes, "numba": numba_cpu},
}
"""The peers on each kind of device, by name."""
