"""Memory of other libraries as tensors: `as_tensor`, `from_pointer`."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._runtime.bridges import bridge
from tilekit._runtime.device import Device, as_stream, default_device
from tilekit._runtime.hazards import Use
from tilekit._runtime.ranges import admit, known, memory_at, remember, used
from tilekit._runtime.storage import Storage
from tilekit._runtime.stream import Stream
from tilekit._tensor.shapes import as_shape, contiguous_strides
from tilekit._tensor.tensor import Tensor, refuse_mask
from tilekit.interop import dlpack
from tilekit.interop.again import exported, met_again, remember_array
from tilekit.interop.exchange import NEVER_WRITTEN, described_tensor
from tilekit.interop.owners import owner_range
from tilekit.ops import DeviceOp

__all__ = ["as_tensor", "from_pointer"]

_LEGACY = 1  # CU_STREAM_LEGACY: the default stream, as an address
_HOST = (dlpack.CPU, dlpack.CUDA_HOST)  # page-locked memory is called by either name
_ADDRESSES = 1 << 62  # no processor's reach further


def as_tensor(obj: Any, *, device: Device | str | None = None) -> Tensor:
    """A tensor over the memory of another library's array. Nothing is copied, and nobody waits.

    What the tensor is used for runs after the work that the array's library has submitted by now: on its current stream, where it
    exports by DLPack; on the stream that `__cuda_array_interface__` names. The memory is kept alive until tilekit's work on it is
    done. What the library submits later, tilekit cannot see: run ops on that library's stream, or call `as_tensor` again.

    Memory that is met again, and the memory of a part of it, is the same storage here; so are all views of one array of NumPy or
    CuPy. Where storages overlap all the same, they are used in one order.

    Args:
        obj: an array of PyTorch, CuPy, JAX, numba, NumPy; any object with `__dlpack__` or `__cuda_array_interface__`; a DLPack
            capsule. A NumPy array, and others in the host's memory, become tensors of a CPU device.
        device: where it must be. For memory of the host's, which CPU device shall have it; by default the default device.

    Raises:
        TypeError: `obj` has no memory that can be shared, elements of a type that tilekit does not have, or a mask.
        ValueError: it is on another device; the default device is a GPU, and the memory is the host's; strides are no multiples
            of the element's size, or the address is none; the capsule was used already.
        BufferError: the library refuses.
    """
    if device is None:
        tensor = described_tensor(obj)
        if tensor is None:
            tensor = met_again(obj)
        if tensor is not None:
            return tensor
    wanted = None if device is None else Device(device)
    if isinstance(obj, Tensor):
        if wanted is not None and obj.device is not None:
            _check_device(obj.device, wanted)
        return obj
    if isinstance(obj, DeviceOp):
        raise TypeError(f"{obj!r} is an op that has not run; .sync() or await gives the tensor")
    refuse_mask("as_tensor", obj)
    if isinstance(obj, np.ndarray):
        return _of_numpy(obj, wanted)
    if dlpack.is_capsule(obj):
        return _of_capsule(obj, wanted)
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        tensor = _of_exporter(obj, wanted)
        remember_array(obj, tensor)
        return tensor
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(obj, interface, wanted)
    raise TypeError(
        f"as_tensor: {_kind(obj)} has neither __dlpack__ nor __cuda_array_interface__, so it shares no memory; "
        "copy it to the device with api.from_host(numpy.asarray(...))"
    )


def from_pointer(
    address: int,
    shape: int | tuple[int, ...],
    dtype: Any,
    strides: Sequence[int] | None = None,
    *,
    owner: Any = None,
    device: Device | str | None = None,
    nbytes: int | None = None,
    stream: Any = None,
) -> Tensor:
    """A tensor over the memory at an address. Nothing is copied.

    With an `owner`, that is kept alive until tilekit's work on the memory is done. Without, the tensor is borrowed: only work
    that is waited for in place may use it. `sync`, `sync_on` and `await` take it; `run`, `schedule` and `async_on` refuse it.

    Args:
        address: of the first element: on a CPU device of the host's memory, else of the device's.
        shape, dtype: the tensor's.
        strides: in elements; by default C-contiguous.
        owner: what the memory belongs to; a tensor, where it is one's.
        device: where it is; by default the default device.
        nbytes: how much memory there is from `address` on. By default CUDA is asked on a GPU, and nobody on a CPU device.
        stream: where the memory was written last: a stream, as `as_stream` takes it. tilekit's work waits for what is in it now.
            By default it must be written already.

    Raises:
        TypeError: no address, shape, strides or dtype.
        ValueError: the elements lie outside of the memory; the address is 0, no multiple of the element's size, or not on the
            device.
    """
    where = default_device() if device is None else Device(device)
    extents, kind = as_shape(shape), dtypes.as_dtype(dtype)
    try:
        start = operator.index(address)
        steps = contiguous_strides(extents) if strides is None else tuple(map(operator.index, strides))
        room = None if nbytes is None else operator.index(nbytes)
    except TypeError as error:
        raise TypeError(f"from_pointer: the address, nbytes and each of the strides are ints: {error}") from None
    if len(steps) != len(extents):
        raise ValueError(f"from_pointer: {len(steps)} strides as {steps} for a shape of {len(extents)} dimensions as {extents}")
    what = f"from_pointer({start:#x})"
    if math.prod(extents) and start <= 0:
        raise ValueError(f"{what}: {start} is no address")
    low, high = _span(start, extents, steps, kind.itemsize)
    if low < 0 or high >= _ADDRESSES:
        raise ValueError(
            f"{what}: a {kind.name} tensor of shape {extents} and strides {steps} would lie from {low:#x} to {high:#x}, where no "
            "memory is"
        )
    if room is not None and not start <= low <= high <= start + room:
        raise ValueError(
            f"{what}: the memory has {room:,} bytes; a {kind.name} tensor of shape {extents} and strides {steps} needs those "
            f"from {low - start:,} to {high - start:,}"
        )
    if room is None and where.kind == "cuda" and high > low:
        _check_extent(what, where, low, high)
    last = None
    if stream is not None:
        user = as_stream(stream, where)
        last = (user, user.mark())
    if isinstance(owner, Tensor) and owner.storage is not None:
        remember(owner.storage)
    return _tensor(what, where, start, extents, kind, steps, owner, last, None, None)


# what is known of an array by each of the protocols


def _of_numpy(array: np.ndarray[Any, Any], wanted: Device | None) -> Tensor:
    device = _host_device(array, wanted)
    kind = dtypes.as_dtype(array.dtype)
    readonly = None if array.flags.writeable else "the NumPy array is"
    strides = _in_elements("as_tensor", array.strides, kind)
    address = array.__array_interface__["data"][0]
    return _tensor("as_tensor", device, address, array.shape, kind, strides, array, None, readonly, array)


def _dlpack_device(obj: Any) -> tuple[int, int]:
    """DLPack's kind and number of the device that an object says it is on."""
    device = obj.__dlpack_device__()
    try:
        kind, ordinal = map(operator.index, device)
    except (TypeError, ValueError):
        raise TypeError(f"as_tensor: __dlpack_device__() of a {type(obj).__name__} gives two ints, not {device!r}") from None
    return kind, ordinal


def _of_exporter(obj: Any, wanted: Device | None) -> Tensor:
    kind, ordinal = _dlpack_device(obj)
    stream = None
    if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        device = Device(ordinal)
        _check_device(device, wanted)
        stream = bridge(device)
    else:
        device = _device_of_kind(obj, kind, wanted)
    asked = None if stream is None else stream.address
    array = exported(obj)
    try:
        capsule = array.__dlpack__(stream=asked, max_version=(1, 0))
    except TypeError:  # those that know no versions
        capsule = array.__dlpack__(stream=asked)
    view = dlpack.taken(capsule)
    if (view.device[0] in _HOST) != (kind in _HOST):
        raise ValueError(
            f"as_tensor: {_kind(obj)} says that it is on device {(kind, ordinal)} of DLPack, and exports {view.device}"
        )
    never = type(obj).__module__.partition(".")[0] in NEVER_WRITTEN  # whatever its capsules say
    readonly = f"{_kind(obj)} says so" if view.readonly or never else None
    return _of_view(view, device, stream, readonly, obj)


def _of_capsule(capsule: Any, wanted: Device | None) -> Tensor:
    view = dlpack.taken(capsule)
    stream = None
    if view.device[0] in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        device = Device(view.device[1])
        _check_device(device, wanted)
        stream = device.adopt(_LEGACY, None)  # for which a capsule is made, unless another stream is asked for
    else:
        device = _device_of_kind(capsule, view.device[0], wanted)
    return _of_view(view, device, stream, "the DLPack capsule says so" if view.readonly else None, capsule)


def _of_view(view: dlpack.View, device: Device, stream: Stream | None, readonly: str | None, obj: Any) -> Tensor:
    last = None if stream is None else (stream, stream.mark())
    strides = contiguous_strides(view.shape) if view.strides is None else view.strides
    return _tensor("as_tensor", device, view.address, view.shape, view.dtype, strides, view.owner, last, readonly, obj)


def _of_interface(obj: Any, interface: dict[str, Any], wanted: Device | None) -> Tensor:
    what = f"as_tensor: {_kind(obj)}"
    if isinstance(interface, Mapping) and interface.get("mask") is not None:
        raise TypeError(f"{what} has a mask, which tensors have not")
    try:
        shape, steps = as_shape(tuple(interface["shape"])), interface.get("strides")
        steps = None if steps is None else tuple(map(operator.index, steps))
        pointer, is_readonly = interface["data"]
        address = 0 if pointer is None else operator.index(pointer)
        typestr, version = interface["typestr"], operator.index(interface.get("version", 0))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{what} has a damaged __cuda_array_interface__, {interface!r}: {error}") from None
    kind = dtypes.as_dtype(typestr)
    strides = contiguous_strides(shape) if steps is None else _in_elements(what, steps, kind)
    if len(strides) != len(shape):
        raise ValueError(f"{what} has {len(strides)} strides as {steps} for a shape of {len(shape)} dimensions as {shape}")
    asked = wanted if wanted is not None and wanted.kind == "cuda" else default_device()
    asked = asked if asked.kind == "cuda" else Device("cuda")
    low, high = _span(address, shape, strides, kind.itemsize)
    device = asked if low == high else _check_extent(what, asked, low, high, any_device=True)
    _check_device(device, wanted)
    last = None
    # Before version 3 an array was in order on the default stream; since then it says where it is, or None if that is no matter.
    number = interface.get("stream") if version >= 3 else _LEGACY
    if number is not None:
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            raise ValueError(f"{what} names stream {number!r}: 1, 2 or the address of a CUDA stream can be one")
        stream = device.adopt(number, None)
        last = (stream, stream.mark())
    readonly = f"{_kind(obj)} says so" if is_readonly else None
    return _tensor(what, device, address, shape, kind, strides, obj, last, readonly, obj)


# the tensor


def _tensor(
    what: str,
    device: Device,
    address: int,
    shape: tuple[int, ...],
    dtype: dtypes.DType,
    strides: tuple[int, ...],
    owner: Any,
    last: Use | None,
    readonly: str | None,
    obj: Any,
) -> Tensor:
    """The tensor over that memory, whose extent was checked.

    Where `obj` is given, the array, its storage is one that is known already and has the memory, or else a new one of all that
    the array is a view of.
    """
    size = dtype.itemsize
    low, high = _span(address, shape, strides, size)
    if low == high:
        return Tensor(Storage(device, device.no_memory), shape, dtype, strides)
    if address % size:
        raise ValueError(f"{what}: {address:#x} is no address of {dtype.name} elements, which start at multiples of {size} bytes")
    storage = None if obj is None else known(device, low, high, size, readonly is None)
    if storage is None:
        device.let_go(high - low)
        start, end = (low, high) if obj is None else owner_range(obj, low, high)
        if (low - start) % size:
            start, end = low, high  # a tensor's place in its storage counts elements
        storage = admit(device, memory_at(device, start, end), owner, last, readonly)
    else:
        used(storage, device, last)
    return Tensor(storage, shape, dtype, strides, (address - storage.memory.address) // size)


def _span(address: int, shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The addresses that the elements lie between."""
    if 0 in shape:
        return address, address
    ends = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    before, behind = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
    return address + before * itemsize, address + (behind + 1) * itemsize


def _in_elements(what: str, strides: Sequence[int], dtype: dtypes.DType) -> tuple[int, ...]:
    if any(step % dtype.itemsize for step in strides):
        raise ValueError(
            f"{what}: strides of {tuple(strides)} bytes are no multiples of the {dtype.itemsize} bytes of a {dtype.name}; make a "
            "copy"
        )
    return tuple(step // dtype.itemsize for step in strides)


def _check_extent(what: str, device: Device, low: int, high: int, any_device: bool = False) -> Device:
    """The GPU that has the memory between two addresses, by what CUDA knows of it.

    Raises:
        ValueError: none has; or another than `device`, unless `any_device`; or the memory ends before.
    """
    allocation = device.driver.extent(low)
    if allocation is None:
        raise ValueError(
            f"{what}: CUDA knows no device memory at {low:#x}. Memory of the host's is for a CPU device, device='cpu'"
        )
    start, nbytes, ordinal = allocation
    if high > start + nbytes:
        raise ValueError(
            f"{what}: the tensor needs the {high - low:,} bytes from {low:#x} on, and the memory there ends after "
            f"{start + nbytes - low:,}"
        )
    if ordinal != device.ordinal and not any_device:
        raise ValueError(f"{what}: that memory is on cuda:{ordinal}, not on {device.label}")
    return Device(ordinal) if ordinal != device.ordinal else device


# where it is


def _check_device(actual: Device, wanted: Device | None) -> None:
    if wanted is not None and actual is not wanted:
        raise ValueError(
            f"as_tensor: the memory is on {actual.label}, not on {wanted.label}: take it where it is, and copy it with "
            f".to({wanted!r})"
        )


def _device_of_kind(obj: Any, kind: int, wanted: Device | None) -> Device:
    if kind not in _HOST:
        raise ValueError(f"as_tensor: {_kind(obj)} is on a device of DLPack's kind {kind}; tilekit knows CPUs (1) and CUDA (2)")
    return _host_device(obj, wanted)


def _host_device(obj: Any, wanted: Device | None) -> Device:
    """The CPU device that gets memory of the host's."""
    device = default_device() if wanted is None else wanted
    if device.kind != "cpu":
        raise ValueError(
            f"as_tensor: {_kind(obj)} is in the host's memory, which {device.label} cannot share: copy it there with "
            "api.from_host(array), or take it where it is with as_tensor(array, device='cpu')"
        )
    return device


def _kind(obj: Any) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
