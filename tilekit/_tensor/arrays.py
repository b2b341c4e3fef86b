"""Arrays of other libraries where tensors go: each becomes a tensor over its memory, and nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tilekit._runtime.device import Device, default_device
from tilekit._tensor.operators import NoOperators
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import DEVICE_CODE, Tensor
from tilekit.ops import DeviceOp

__all__ = ["device_of", "is_array", "tensor_of"]

_kinds: dict[type, bool] = {}


def is_array(obj: Any) -> bool:
    """Whether it is an array of another library: NumPy's, or of a type with `__dlpack__` or `__cuda_array_interface__`."""
    kind = type(obj)
    known = _kinds.get(kind)
    if known is None:
        ours = issubclass(kind, (NoOperators, DeviceOp, np.generic))
        exports = hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")
        known = not ours and (issubclass(kind, np.ndarray) or exports or hasattr(kind, "__cuda_array_interface__"))
        _kinds[kind] = known
    return known


def device_of(arguments: Iterable[Any]) -> Device:
    """Where arguments are: on the device of the first that is on one, or on the default device."""
    for argument in arguments:
        if isinstance(argument, (Tensor, Partition)) and argument.device is not None:
            return argument.device
    return default_device()


def tensor_of(array: Any, device: Device, who: str) -> Tensor:
    """An array as a tensor, for something that runs on `device`; see `as_tensor`, whose errors say `who` is meant.

    Raises:
        TypeError, ValueError, BufferError: it is in the host's memory, and `device` a GPU; what `as_tensor` raises.
    """
    is_numpy = isinstance(array, np.ndarray)
    if is_numpy and device.kind != "cpu":
        raise TypeError(
            f"{who}: a NumPy array is in the host's memory, and this runs on {device!r}; api.from_host(array) copies it there"
        )
    try:
        tensor: Tensor = DEVICE_CODE["as_tensor"](array, device=device if is_numpy else None)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"{who}: {error}") from None
    return tensor
