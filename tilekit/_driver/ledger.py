"""How much memory a driver has given out, how much it may, and what it says when there is no more."""

from __future__ import annotations

import threading

from tilekit._driver import forking
from tilekit.errors import OutOfMemoryError

__all__ = ["ADDRESSABLE", "Ledger", "has_no_more"]

ADDRESSABLE = 1 << 57  # bytes: more than any processor addresses; drivers and NumPy have errors of their own for such sizes

_lock = threading.Lock()  # of all ledgers: held for a few instructions, and taken by no finalizer
forking.in_child(lambda: _lock._at_fork_reinit())  # type: ignore[attr-defined]  # another thread may have held it


def has_no_more(error: BaseException) -> bool:
    """Whether an allocator's exception means that it has no more memory: torch's, cupy's and RMM's have no common class."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__


class Ledger:
    """The books of one device.

    Attributes:
        blocks, used: how many blocks are given out and not freed yet, and their bytes.
        limit: how many bytes may be; None for no limit.
    """

    __slots__ = ("_peak", "blocks", "limit", "used")

    def __init__(self) -> None:
        self.blocks = self.used = self._peak = 0
        self.limit: int | None = None

    @property
    def peak(self) -> int:
        """The most bytes that were given out at a time, since the start or since `reset_peak`."""
        return max(self._peak, self.used)

    def reset_peak(self) -> None:
        """Forget the peak."""
        with _lock:
            self._peak = self.used

    def take(self, nbytes: int) -> bool:
        """Note a block that is about to be given out. False, and nothing noted, if that would pass the limit."""
        with _lock:
            used = self.used + nbytes
            if self.limit is not None and used > self.limit:
                return False
            self.used = used
            self.blocks += 1
        return True

    def give(self, nbytes: int) -> None:
        """Note that a block has been freed."""
        with _lock:
            if self.used > self._peak:
                self._peak = self.used
            self.used -= nbytes
            self.blocks -= 1

    def cancel(self, nbytes: int) -> None:
        """Undo a `take`: there was no such block to be had."""
        with _lock:
            self.used -= nbytes
            self.blocks -= 1

    def exhausted(
        self, who: str, nbytes: int, memory: tuple[int, int], reserved: int, *, limited: bool, code: str | None = None
    ) -> OutOfMemoryError:
        """The error for an allocation that cannot be.

        Args:
            who: the device.
            nbytes: what was asked for.
            memory: what the device has, (free, total).
            reserved: what its pool holds.
            limited: whether it is the limit that forbids it.
            code: the driver's name for the failure.
        """
        free, total = memory
        pooled = max(0, reserved - self.used)
        text = f"{who} is out of memory: {nbytes:,} bytes asked for, {free:,} of {total:,} free"
        if pooled:
            text += f" ({pooled:,} of these in the pool)"
        if limited:
            assert self.limit is not None, "it was passed"
            text += f"; {self.used:,} of the {self.limit:,} bytes that memory.set_limit allows are in use"
            free = max(0, self.limit - self.used)
        return OutOfMemoryError(
            f"{text}. Everything allocated so far stays valid",
            requested_bytes=nbytes,
            free_bytes=free,
            total_bytes=total,
            pooled_bytes=pooled,
            code=code,
        )
