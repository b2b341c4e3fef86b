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

__all__ = ["is_array", "tensor_of"]

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


def _device_of(arguments: Iterable[Any]) -> Device:
    for argument in arguments:
        if isinstance(argument, (Tensor, Partition)) and argument.device is not None:
            return argument.device
    return default_device()


def tensor_of(array: Any, arguments: Iterable[Any], who: str, what: str = "") -> Tensor:
    """An array as a tensor, where it is; see `as_tensor`, whose errors say `who` is meant.

    Args:
        array: what `is_array` says yes to.
        arguments: what it is used with: a NumPy array becomes a tensor on the device of the first of them that is on one, or on
            the default device.
        who, what: for messages: who takes it, and as which argument, if that has a name.

    Raises:
        TypeError, ValueError, BufferError: it is a NumPy array, and the device a GPU; what `as_tensor` raises.
    """
    device = None
    if isinstance(array, np.ndarray):
        device = _device_of(arguments)
    elif (described := DEVICE_CODE["described"](array)) is not None:
        return described  # type: ignore[no-any-return]
    who = f"{who}, argument {what}" if what else who
    if device is not None and device.kind != "cpu":
        raise TypeError(
            f"{who}: a NumPy array is in the host's memory, and this runs on {device!r}; api.from_host(array) copies it there"
        )
    try:
        tensor: Tensor = DEVICE_CODE["as_tensor"](array, device=device)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"{who}: {error}") from None
    return tensor
