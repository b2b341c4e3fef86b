"""How a call of an operator gets from PyTorch's dispatcher to tilekit: what is registered beside `torch.library.custom_op`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["register_autocast", "register_shortcuts", "registry_of"]

_registries: dict[str, torch.library.Library] = {}  # which keep what was registered, by the operators' names


def registry_of(name: str) -> torch.library.Library:
    """Where to register more for an operator, in the place of what was registered for one of that name before."""
    _registries.pop(name, None)
    registry = _registries[name] = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    return registry


def register_autocast(op: Any, registry: torch.library.Library, dtype: torch.dtype | str, devices: Sequence[str]) -> None:
    """Under autocast, let `op` have its arguments in another dtype: `dtype`, or "lower" for autocast's own at that time."""
    for device in devices:
        registry.impl(_short(op), partial(_cast, op, device, dtype), f"Autocast{device.upper()}")


def _short(op: Any) -> str:
    return op._qualname.partition("::")[2]  # type: ignore[no-any-return]


def _cast(op: Any, device: str, dtype: torch.dtype | str, *args: Any, **kwargs: Any) -> Any:
    wanted = torch.get_autocast_dtype(device) if isinstance(dtype, str) else dtype

    def cast(value: Any) -> Any:
        is_cast = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(wanted) if is_cast and value.device.type == device else value

    with torch.autocast(device, enabled=False):
        return op(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})


def register_shortcuts(op: Any, registry: torch.library.Library, call: Callable[..., Any], devices: Sequence[str]) -> None:
    """Let PyTorch call `call`, which does what `op` does, past the Python code that `torch.library.custom_op` puts between.

    It is most of what a small operator takes: that for autograd, where no gradient is asked for and nothing but the kernel comes
    behind it in the dispatcher; and what looks whether a result is an argument, as `call` does. Where PyTorch does not have what
    that takes, all is as it was.
    """
    try:
        from torch._library.autograd import make_autograd_impl

        with_gradient = make_autograd_impl(op._opoverload, op)
        keys = {getattr(torch._C.DispatchKey, device.upper()) for device in devices}
        behind = torch._C._after_ADInplaceOrView_keyset
        is_recorded, requires_grad = torch._C.is_grad_enabled, torch._C._any_requires_grad
    except (ImportError, AttributeError):
        return

    def shortcut(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if (is_recorded() and requires_grad(*args)) or (keyset & behind).highestPriorityTypeId() not in keys:
            return with_gradient(keyset, *args, **kwargs)
        return call(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        registry.impl(_short(op), shortcut, "Autograd", with_keyset=True, allow_override=True)
        for device in devices:
            registry.impl(_short(op), call, device.upper(), allow_override=True)
