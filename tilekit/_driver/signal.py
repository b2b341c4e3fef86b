"""How a device tells the host that a stream got somewhere, without running Python on the driver's thread."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import logging
import os
import select
import threading
import weakref
from collections.abc import Callable

import numpy as np

from tilekit._driver import forking

__all__ = ["Dispatcher", "SignalBoard", "dispatcher"]

_CHUNK = 512
_BELL = (1).to_bytes(8, "little")  # what an eventfd wants to be given: a 64-bit count
_log = logging.getLogger("tilekit")


class SignalBoard:
    """Slots that a device fills, and one file descriptor that becomes readable when it has filled any.

    A slot is four int32 in memory that never moves: the status plus one (0 while pending), the descriptor to write to, and how
    often the slot has been rung to the end. So the native callback needs nothing but a slot's address. Slots are handed out and
    taken back on the host; any thread may do so. The descriptor is for one reader: an event loop, or a thread that polls it.

    Attributes:
        fd: the readable descriptor, non-blocking.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._bell = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._bell, False)
        self._lock = threading.RLock()  # a finalizer may close one board while this thread is busy with another
        # Chunks are added, never moved or resized: addresses of slots are with the driver.
        self._chunks: list[np.ndarray[tuple[int, int], np.dtype[np.int32]]] = []
        self._lent: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []  # how often each slot was lent to a driver
        self._free: list[int] = []
        self._armed: dict[int, int] = {}  # in the order of arming, which the value counts
        self._order = itertools.count()
        self._closed = self._freed = False
        _boards.add(self)
        _reap()

    def arm(self) -> int:
        """Take a slot, empty it, and return its number. The board grows as needed.

        Raises:
            ValueError: the board is closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("this SignalBoard is closed")
            if not self._free:
                first = len(self._chunks) * _CHUNK
                chunk = np.zeros((_CHUNK, 4), np.int32)
                chunk[:, 1] = self._bell
                self._chunks.append(chunk)
                self._lent.append(np.zeros(_CHUNK, np.int32))
                self._free.extend(range(first + _CHUNK - 1, first - 1, -1))
            slot = self._free.pop()
            self._armed[slot] = next(self._order)
            self._lent[slot // _CHUNK][slot % _CHUNK] += 1
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back. It must have been filled, or never have been given to a driver."""
        with self._lock:
            chunk, at = self._chunks[slot // _CHUNK], slot % _CHUNK
            if not chunk[at, 0]:
                self._lent[slot // _CHUNK][at] -= 1  # no driver will ring it
            chunk[at, 0] = 0
            self._armed.pop(slot, None)
            self._free.append(slot)

    def slot_address(self, slot: int) -> int:
        """The address of the slot's int32: its status plus one, the descriptor to ring, how often it has been rung."""
        return int(self._chunks[slot // _CHUNK].__array_interface__["data"][0]) + 16 * (slot % _CHUNK)

    def ring(self, slot: int, status: int) -> None:
        """Fill a slot from Python and ring, as the native callback does from the driver's thread."""
        chunk, at = self._chunks[slot // _CHUNK], slot % _CHUNK
        chunk[at, 0] = status + 1
        with contextlib.suppress(BlockingIOError):  # the bell is full, hence readable: nobody will miss this ring
            os.write(self._bell, _BELL)
        # Last, since from here on the descriptor may be closed, and its number be another file's.
        chunk[at, 2] += 1

    def status(self, slot: int) -> int | None:
        """What the driver put into the slot (0: all went well), or None while it has not."""
        value = int(self._chunks[slot // _CHUNK][slot % _CHUNK, 0])
        return value - 1 if value else None

    def filled(self) -> list[int]:
        """The slots, among those taken and not given back, that the driver has filled; those taken first come first."""
        with self._lock:
            if len(self._armed) <= 16:
                return [slot for slot in self._armed if self._chunks[slot // _CHUNK][slot % _CHUNK, 0]]
            slots = [int(at) + _CHUNK * i for i, chunk in enumerate(self._chunks) for at in chunk[:, 0].copy().nonzero()[0]]
            return sorted(slots, key=self._armed.__getitem__)

    def drain(self) -> None:
        """Silence the bell. Look at the slots after this, not before, or a ring may be missed."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Let go of the descriptor and the slots, as soon as no driver can write to them any more. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _closing.append(self)
        _reap()

    def _try_free(self) -> None:
        """Close the descriptors if nobody is going to write to them."""
        with self._lock:
            if self._freed or any((chunk[:, 2] != lent).any() for chunk, lent in zip(self._chunks, self._lent)):
                return
            self._freed = True
            os.close(self.fd)
            if self._bell != self.fd:
                os.close(self._bell)
        with contextlib.suppress(ValueError):
            _closing.remove(self)


_boards: weakref.WeakSet[SignalBoard] = weakref.WeakSet()
# Closed boards that a driver may still write to. Looked through whenever a board is made or closed.
_closing: list[SignalBoard] = []


def _reap() -> None:
    for board in tuple(_closing):
        board._try_free()


@atexit.register
def _keep() -> None:
    """The driver may fill slots until the process is gone, later than the interpreter: their memory must outlive that."""
    for board in tuple(_boards):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(board))


class Dispatcher:
    """The thread on which tilekit calls Python back, one for the process, and the board that wakes it.

    An exception in a callback is logged (logger `tilekit`, level ERROR), and the thread goes on.
    """

    def __init__(self) -> None:
        self.board = SignalBoard()
        self._waiting: dict[int, Callable[[int], object]] = {}
        try:
            threading.Thread(target=self._serve, name="tilekit-callbacks", daemon=True).start()
        except RuntimeError:  # there is no thread to be had now; the next who asks tries again
            self.board.close()
            raise

    def arm(self, callback: Callable[[int], object]) -> int:
        """A slot of `board`; once it is filled, `callback(status)` runs on the thread."""
        slot = self.board.arm()
        self._waiting[slot] = callback
        return slot

    def disarm(self, slot: int) -> None:
        """Take back a slot that no driver was given."""
        del self._waiting[slot]
        self.board.release(slot)

    def _serve(self) -> None:
        board = self.board
        while True:
            select.select([board.fd], [], [])
            board.drain()
            for slot in board.filled():
                callback = self._waiting.pop(slot)
                status = board.status(slot)
                board.release(slot)
                try:
                    callback(status or 0)
                except BaseException:
                    _log.exception("a callback of a stream failed: %r", callback)
                del callback  # what it holds must not live until the next one comes


_dispatcher: Dispatcher | None = None
_dispatcher_lock = threading.Lock()


def dispatcher() -> Dispatcher:
    """The process's dispatcher, made when first needed."""
    global _dispatcher
    with _dispatcher_lock:
        if _dispatcher is None:
            _dispatcher = Dispatcher()
        return _dispatcher


def _after_fork() -> None:
    """The child has no callback thread, and shares the parent's descriptors: it starts anew."""
    global _dispatcher, _dispatcher_lock
    _dispatcher, _dispatcher_lock = None, threading.Lock()
    for board in tuple(_boards):
        board._lock = threading.RLock()


forking.in_child(_after_fork)
