"""Tensors for other libraries: DLPack and `__cuda_array_interface__`, in order with the work that both sides submit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilekit._driver.protocol import EventHandle
from tilekit._runtime.bridges import bridge
from tilekit._runtime.device import Device
from tilekit._runtime.hazards import Use
from tilekit._runtime.ranges import remember
from tilekit._runtime.storage import Garbage, Storage
from tilekit._runtime.stream import Stream
from tilekit._tensor.tensor import Tensor
from tilekit.errors import DeviceError, TilekitError, check_flag
from tilekit.interop import dlpack

__all__ = ["array_interface", "dlpack_capsule", "dlpack_device"]


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """What `Tensor.__dlpack_device__` gives."""
    device = _storage(tensor).device
    # Whichever CPU device it is, its memory is the host's, which others know one of.
    return (dlpack.CUDA, device.ordinal) if device.kind == "cuda" else (dlpack.CPU, 0)


def _storage(tensor: Tensor) -> Storage:
    if tensor.storage is None:
        raise BufferError(f"{tensor!r} has no memory that another library could use")
    return tensor.storage


def _is_version(version: Any) -> bool:
    return isinstance(version, tuple) and len(version) == 2 and all(isinstance(part, int) for part in version)


def dlpack_capsule(
    tensor: Tensor,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """What `Tensor.__dlpack__` gives."""
    storage = _storage(tensor)
    device = dlpack_device(tensor)
    if dl_device is not None and not isinstance(dl_device, tuple):
        raise TypeError(f"__dlpack__: dl_device is DLPack's kind and number of a device, a tuple, not {type(dl_device).__name__}")
    if max_version is not None and not _is_version(max_version):
        raise TypeError(f"__dlpack__: max_version is a tuple of two ints, not {max_version!r}")
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError(
            f"{tensor!r} is on device {device} of DLPack, not on {tuple(dl_device)}: bring it there with .to(device)"
        )
    if copy is not None and check_flag("__dlpack__: copy", copy):
        raise BufferError(f"{tensor!r} is shared, not copied: pass a .dup() of it for a copy")
    if storage.readonly is not None and (max_version is None or max_version[0] < 1):
        raise BufferError(
            f"{storage!r} is read-only, since {storage.readonly}; that can be told from version 1.0 of DLPack on, which the "
            "consumer does not ask for: pass a .dup()"
        )
    if storage.device.kind == "cpu":
        if stream is not None:
            raise ValueError(
                f"__dlpack__: {tensor!r} has no stream of others to be ordered by; stream must be None, not {stream!r}"
            )
        for user, serial in storage.uses():
            user.wait(serial)
    else:
        consumer = _consumer_stream(storage.device, stream)
        if consumer is not None:
            for user, serial in storage.uses():
                consumer.wait_for(user, serial)
    lend(storage)
    return dlpack.capsule_of(np.asarray(_Memory(tensor)), tensor.dtype, device, max_version)


def _consumer_stream(device: Device, stream: Any) -> Stream | None:
    """The stream that a consumer names by DLPack's rules; None if it asks for no order at all (-1).

    Raises:
        TypeError, ValueError: it names none.
    """
    if stream is None:
        stream = 1  # CU_STREAM_LEGACY
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(f"__dlpack__: stream is None, 1, 2, -1 or the address of a CUDA stream, not {stream!r}")
    if stream == -1:
        return None
    if stream <= 0:
        raise ValueError(f"__dlpack__: stream={stream} is ambiguous: 1 is the legacy default stream, 2 that of the thread")
    return device.adopt(stream, None)


class _Memory:
    """A tensor's memory as NumPy understands it: unsigned integers somewhere. An array of it keeps the tensor alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.itemsize for stride in tensor.strides),
            "typestr": f"=u{tensor.itemsize}",
            "data": (tensor.address, _storage(tensor).readonly is not None),
        }


def array_interface(tensor: Tensor) -> dict[str, Any]:
    """What `Tensor.__cuda_array_interface__` is.

    Raises:
        AttributeError: the tensor is not in a GPU's memory.
    """
    storage = tensor.storage
    if storage is None or storage.device.kind != "cuda":
        raise AttributeError(f"{tensor!r} is not in the memory of a GPU")
    stream = None
    for user, serial in storage.uses():
        if not user.passed(serial):
            # Not the user's own stream: consumers wait for all that is in the one they are told, and that is the user's to close.
            stream = stream or bridge(storage.device)
            stream.wait_for(user, serial)
    lend(storage)
    return {
        "version": 3,
        "shape": tensor.shape,
        "typestr": tensor.dtype.str if tensor.dtype.isbuiltin == 1 else f"<V{tensor.itemsize}",  # ml_dtypes' have no name there
        "data": (tensor.address if tensor.size else 0, storage.readonly is not None),
        "strides": None if tensor.is_contiguous else tuple(stride * tensor.itemsize for stride in tensor.strides),
        "stream": None if stream is None else stream.address,
    }


def lend(storage: Storage) -> None:
    """Others use the memory, on streams of theirs: when tilekit lets it go, it waits for all work of the device first. What they
    write is not seen."""
    remember(storage)
    if storage.memory.shadow is not None:
        storage.memory.shadow.trust()
    if storage.device.kind == "cuda":
        lent = _Lent(storage.device)
        before = storage.leave_by(lent)
        lent.then = before.then if isinstance(before, _Lent) else before


class _Lent:
    """Takes what a lent storage leaves, and passes it on once whoever uses it is done.

    Attributes:
        then: takes it then.
    """

    then: Callable[[Any], None]

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, left: Any) -> None:
        everybody: Any = _Everybody(self._device)  # in the place of a stream
        use: Use = (everybody, 0)
        self._device.garbage.append(Garbage(None, [use], _Left(left, self.then)))


class _Left:
    """Holds what a lent storage left; passes it on when it is collected itself."""

    def __init__(self, left: Any, then: Callable[[Any], None]) -> None:
        self._left, self._then = left, then

    def __del__(self) -> None:
        self._then(self._left)


class _Everybody:
    """All streams of a device, those of other libraries included: as much of a Stream as `Device.collect` asks for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._event: EventHandle = None

    def passed(self, serial: int) -> bool:
        """Whether all work is done that was on the device when this was first asked, or the device has failed."""
        driver, pool = self._device.driver, self._device.event_pool
        try:
            if self._event is None:
                event = driver.event_create()
                driver.event_record_all(event)
                self._event = event
            if not driver.event_query(self._event):
                return False
        except TilekitError as error:
            return isinstance(error, DeviceError) and error.lost  # else it could not be asked just now
        pool.append(self._event)
        return True
