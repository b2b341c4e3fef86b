"""Ops for tests whose work on a CPU stream waits for an event, or fails."""

from __future__ import annotations

import threading
from typing import Any

import tilekit as tk
from tilekit import api

__all__ = ["failing", "held", "split"]


def held(gate: threading.Event, result: Any = None) -> tk.DeviceOp[Any]:
    """An op whose work on a CPU stream waits for `gate`."""
    return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, gate.wait) or result))


def failing(error: Exception) -> tk.DeviceOp[Any]:
    """An op whose work on a CPU stream fails."""

    def work() -> None:
        raise error

    return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, work)))


def split(gate: threading.Event) -> tk.DeviceOp[Any]:
    """A chain that goes on only when the host has a value, which `gate` holds up."""
    return held(gate).then(lambda _: api.ones(3)).to_host().then(lambda array: api.from_host(array + 1)).to_host().map(sum)
