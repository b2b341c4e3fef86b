"""What pictures of ops say of a launch: its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.ops import DeviceOp

__all__ = ["argument_lines"]


def argument_lines(parameters: Sequence[Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    """A line for each argument but for ops, which are in the picture themselves.

    Args:
        parameters: each has a `name`.
        arguments: one for each of them.
    """
    together = zip(parameters, arguments, strict=False)
    return tuple(f"{p.name}: {_shown(argument)}" for p, argument in together if not isinstance(argument, DeviceOp))


def _shown(argument: Any) -> str:
    if isinstance(argument, Partition):
        return f"{_shown(argument.tensor)} in tiles of {list(argument.tile_shape)}"
    return f"{argument.dtype}{list(argument.shape)}" if isinstance(argument, Tensor) else repr(argument)
