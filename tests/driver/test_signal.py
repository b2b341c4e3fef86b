"""SignalBoard and Dispatcher: slots keep their addresses, rings are not missed, callbacks cannot kill the thread."""

from __future__ import annotations

import ctypes
import os
import select
import threading

import pytest

from tilekit._driver import signal
from tilekit._driver.signal import SignalBoard, dispatcher


def readable(board):
    return bool(select.select([board.fd], [], [], 0)[0])


def test_a_slot_is_empty_until_it_is_rung():
    board = SignalBoard()
    slot = board.arm()
    assert board.status(slot) is None
    assert not readable(board)
    board.ring(slot, 700)
    assert readable(board)
    assert board.filled() == [slot]
    board.drain()
    assert not readable(board)
    assert board.status(slot) == 700
    board.release(slot)
    assert board.filled() == []
    board.close()


def test_growing_moves_no_slot():
    board = SignalBoard()
    first = board.arm()
    address = board.slot_address(first)
    slots = [board.arm() for _ in range(2000)]
    assert board.slot_address(first) == address
    assert len({board.slot_address(slot) for slot in [first, *slots]}) == 2001
    # What a driver would do with the address: write the status plus one, and 8 bytes to the descriptor beside it.
    words = (ctypes.c_int32 * 2).from_address(board.slot_address(slots[-1]))
    words[0] = 1
    os.write(words[1], bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    assert readable(board)
    assert board.status(slots[-1]) == 0
    for slot in [first, *slots]:
        board.release(slot)
    board.close()


def test_a_released_slot_comes_back_empty():
    board = SignalBoard()
    slot = board.arm()
    board.ring(slot, 3)
    board.release(slot)
    assert board.arm() == slot
    assert board.status(slot) is None
    board.ring(slot, 0)
    board.close()


def test_closing_waits_for_what_is_with_the_driver():
    board = SignalBoard()
    slot = board.arm()
    board.close()
    board.close()
    os.fstat(board.fd)  # still open: a driver may write to it
    with pytest.raises(ValueError, match="closed"):
        board.arm()
    fd = board.fd
    board.ring(slot, 0)
    signal._reap()
    assert board not in signal._closing
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_many_rings_from_many_threads_all_arrive():
    board = SignalBoard()
    slots = [board.arm() for _ in range(400)]
    threads = [threading.Thread(target=lambda part=part: [board.ring(s, 0) for s in slots[part::4]]) for part in range(4)]
    for thread in threads:
        thread.start()
    seen: set[int] = set()
    while len(seen) < len(slots):
        select.select([board.fd], [], [])
        board.drain()
        seen.update(board.filled())
    for thread in threads:
        thread.join()
    assert seen == set(slots)


def test_the_pipe_does_what_the_eventfd_does(monkeypatch):
    monkeypatch.delattr(os, "eventfd", raising=False)
    board = SignalBoard()
    slots = [board.arm() for _ in range(20_000)]  # more rings than a pipe holds
    for slot in slots:
        board.ring(slot, 0)
    assert readable(board)
    board.drain()
    assert not readable(board)
    assert len(board.filled()) == len(slots)
    board.close()


def test_a_failing_callback_is_logged_and_the_next_one_runs(caplog):
    calls = dispatcher()
    assert dispatcher() is calls
    done = threading.Event()
    statuses = []

    def fail(status):
        raise RuntimeError("from a callback")

    def succeed(status):
        statuses.append((status, threading.current_thread().name))
        done.set()

    calls.board.ring(calls.arm(fail), 0)
    calls.board.ring(calls.arm(succeed), 7)
    assert done.wait(10)
    assert statuses == [(7, "tilekit-callbacks")]
    assert "from a callback" in caplog.text
