"""What the tests of memory that is shared with others have in common: two kernels, and a stream that is held back."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tilekit as tk

__all__ = ["TILE", "N", "copy", "held", "increment"]

N = 1000
TILE = 256


@tk.kernel
def increment(y: tk.InOut):
    y.store(y.load() + 1)


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y, padding_mode="zero"))


def held(device: tk.Device, stream: tk.Stream) -> Callable[[], None]:
    """Hold `stream`, a CPU device's, back; gives what lets it go on."""
    gate = threading.Event()
    device.driver.submit(stream.handle, lambda: gate.wait(60))
    return gate.set
