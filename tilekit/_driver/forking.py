"""What becomes of devices in a forked process: contexts and threads do not come along."""

from __future__ import annotations

import os
from collections.abc import Callable

from tilekit.errors import DeviceUnavailableError

__all__ = ["in_child", "lost"]


def in_child(reset: Callable[[], None]) -> None:
    """Have `reset()` called in every process that is forked from this one. It takes no lock that it does not make anew."""
    if hasattr(os, "register_at_fork"):  # Windows forks nothing
        os.register_at_fork(after_in_child=reset)


def lost(device: str) -> DeviceUnavailableError:
    """The error for the use of a device that the parent had used before it forked."""
    return DeviceUnavailableError(
        f"{device} was in use when this process was forked, and neither CUDA contexts nor the threads of a device survive that. "
        'Start processes with multiprocessing.get_context("spawn") (or "forkserver"), or fork before the first use of a device',
        lost=True,
    )
