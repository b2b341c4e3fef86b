"""Page-locked memory of the host's behind NumPy arrays, which a GPU reads and writes while the host does something else."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["PinnedPool", "PlainPool"]

_PAGE = 4096
KEPT = 256 * 1024 * 1024  # bytes that no array uses and are kept all the same: locking pages takes a millisecond for a few MiB


class PlainPool:
    """What a CPU device has instead: plain memory, since it reaches all of it. It remembers which arrays came from here."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}  # addresses and sizes; finalizers remove them

    def array(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """So many bytes; None if there are no more."""
        block = np.empty(max(nbytes, 1), np.uint8)
        address = block.__array_interface__["data"][0]
        self._used[address] = block.nbytes
        weakref.finalize(block, self._used.pop, address, None).atexit = False
        return block[:nbytes]

    def holds(self, address: int) -> bool:
        """Whether an address is in an array that was made here."""
        return any(start <= address < start + nbytes for start, nbytes in list(self._used.items()))

    @property
    def used_bytes(self) -> int:
        """How much the arrays hold."""
        return sum(list(self._used.values()))

    def release(self) -> None:
        """Give back what no array uses."""


class PinnedPool(PlainPool):
    """Page-locked memory. A block goes back here when its array and all views of it are gone, and is used again.

    Args:
        allocate: gives the address of so many bytes of page-locked memory; 0 if there are no more.
        free: frees such a block; it may wait for the device.
    """

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None]) -> None:
        super().__init__()
        self._allocate, self._free = allocate, free
        self._lock = threading.Lock()
        self._idle: deque[tuple[int, int]] = deque()  # (bytes, address): finalizers append, under no lock

    def array(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """So many bytes; None if there are no more."""
        size = -(-max(nbytes, 1) // _PAGE) * _PAGE
        with self._lock:
            address = self._again(size) or self._allocate(size)
            if not address:
                self._free_idle(0)
                address = self._allocate(size)
        if not address:
            return None
        block = (ctypes.c_uint8 * size).from_address(address)
        self._used[address] = size
        weakref.finalize(block, self._returned, size, address).atexit = False
        return np.ndarray(nbytes, np.uint8, memoryview(block))

    def _returned(self, size: int, address: int) -> None:
        """Called by a finalizer: the block is nobody's. No driver may be called here, and no lock taken."""
        self._used.pop(address, None)
        self._idle.append((size, address))

    def _again(self, size: int) -> int:
        for block in list(self._idle):
            if block[0] == size:
                self._idle.remove(block)
                return block[1]
        self._free_idle(KEPT)
        return 0

    def _free_idle(self, kept: int) -> None:
        """Free the oldest blocks until at most `kept` bytes are left."""
        left = sum(size for size, _ in list(self._idle))
        while left > kept:
            size, address = self._idle.popleft()
            left -= size
            self._free(address)

    def release(self) -> None:
        """Give back what no array uses."""
        with self._lock:
            self._free_idle(0)
