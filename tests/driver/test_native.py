"""The native callback, called as the driver would call it, but from here."""

from __future__ import annotations

import ctypes
import select

import pytest

from tilekit._driver.signal import SignalBoard

pytest.importorskip("numba", reason="the native callback is compiled by numba")


def test_it_fills_the_slot_and_rings():
    from tilekit._driver.cuda.callbacks import ring_address

    assert ring_address() == ring_address()
    ring = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)(ring_address())
    board = SignalBoard()
    ok, bad = board.arm(), board.arm()
    ring(None, 0, board.slot_address(ok))
    ring(None, 700, board.slot_address(bad))
    assert select.select([board.fd], [], [], 0)[0] == [board.fd]
    assert (board.status(ok), board.status(bad)) == (0, 700)
    board.close()
