"""Arrays of libraries that describe them in place, by DLPack's C exchange API, as PyTorch's: in a microsecond or two.

An export by `__dlpack__` takes 20 microseconds and more, a description by a C function none. What follows from a shape, strides
and a dtype is worked out once (`tilekit._tensor.layout`); how the memory is found again, and in which order it is used, is in
`tilekit._runtime.ranges`. The compiled part reads both, and makes the tensor of an array of a GPU's where nothing is unusual.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tilekit import _native
from tilekit._runtime import device as devices
from tilekit._runtime.device import Device
from tilekit._runtime.ranges import storage_of
from tilekit._runtime.storage import Imported
from tilekit._runtime.stream import Stream
from tilekit._tensor.layout import Layout
from tilekit._tensor.tensor import Tensor
from tilekit.interop import dlpack

__all__ = ["NEVER_WRITTEN", "described_tensor"]

NEVER_WRITTEN = ("jax", "jaxlib")
"""Libraries whose arrays never change: that is nothing that a description says, so they are asked in full."""


def _layout(shape: tuple[int, ...], strides: tuple[int, ...], code: int, bits: int) -> Layout | None:
    """None for a dtype that tilekit does not have."""
    dtype = dlpack.dtype_of(code, bits)
    return None if dtype is None else Layout(shape, strides, dtype)


def _stream(ordinal: int, address: int) -> Stream:
    """The stream that a library works in, by its address, on the GPU of that number."""
    return Device(ordinal).adopt(address, None)


def _describer() -> Callable[[Any], Any]:
    native = _native.compiled
    if native is None:
        return lambda array: None
    native.arrays(_layout, _stream, devices, NEVER_WRITTEN)
    described: Callable[[Any], Any] = native.described
    return described


_described = _describer()


def described_tensor(array: Any) -> Tensor | None:
    """The tensor over an array's memory, behind what its library has submitted by now; None where it must be asked in full."""
    description = _described(array)
    if description is None or type(description) is Tensor:
        return description
    layout: Layout | None
    kind, ordinal, handle, address, layout = description
    if layout is None or address % layout.itemsize:
        return None
    if kind == dlpack.CUDA:
        stream = _stream(ordinal, handle)
        device, use = stream.device, stream.moment()
    else:
        device, use = devices.default_device(), None
        if device.kind != "cpu":
            return None
    storage = storage_of(device, address - layout.before, address + layout.behind, layout.itemsize, array, use)
    if not isinstance(storage, Imported):
        return layout.tensor(storage, address)
    last: Tensor | None = None if storage.view is None else storage.view()
    if last is not None and last.flat[0] == address and (last.shape, last.strides, last.dtype) == layout.is_of:
        return last
    tensor = layout.tensor(storage, address)
    storage.view = weakref.ref(tensor)
    return tensor
