"""Memory that is shared with other libraries, without copies: theirs as tensors here, tensors as arrays there."""

from __future__ import annotations

from tilekit._tensor.tensor import DEVICE_CODE
from tilekit.interop.exchange import described_tensor
from tilekit.interop.incoming import as_tensor, from_pointer
from tilekit.interop.outgoing import array_interface, dlpack_capsule, dlpack_device

__all__ = ["as_tensor", "from_pointer"]

DEVICE_CODE["as_tensor"] = as_tensor
DEVICE_CODE["described"] = described_tensor
DEVICE_CODE["dlpack"] = dlpack_capsule
DEVICE_CODE["dlpack_device"] = dlpack_device
DEVICE_CODE["array_interface"] = array_interface
