"""What an operator does under `torch.autocast`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["register_autocast"]

_libraries: dict[str, torch.library.Library] = {}  # which keep what was registered, by the operators' names


def register_autocast(op: Any, name: str, dtype: torch.dtype | str, devices: Sequence[str]) -> None:
    """Under autocast, let `op` have its arguments in another dtype: `dtype`, or "lower" for autocast's own at that time."""
    namespace, _, short = name.partition("::")
    _libraries.pop(name, None)
    library = _libraries[name] = torch.library.Library(namespace, "FRAGMENT")
    for device in devices:
        library.impl(short, partial(_cast, op, device, dtype), f"Autocast{device.upper()}")


def _cast(op: Any, device: str, dtype: torch.dtype | str, *args: Any, **kwargs: Any) -> Any:
    wanted = torch.get_autocast_dtype(device) if isinstance(dtype, str) else dtype

    def cast(value: Any) -> Any:
        is_cast = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(wanted) if is_cast and value.device.type == device else value

    with torch.autocast(device, enabled=False):
        return op(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})
