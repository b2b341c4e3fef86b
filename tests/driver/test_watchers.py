"""Which private stream of the CUDA driver waits for which event, with a stand-in for the bindings."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tilekit._driver.cuda import context as cuda_context
from tilekit._driver.cuda import driver as cuda
from tilekit._driver.signal import SignalBoard
from tilekit.errors import DeviceError

NOT_READY = 600


class Bindings:
    """As much of cuda.bindings.driver as signals take. A stream is a number; `busy` holds those that are not empty."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self):
        self.made, self.busy, self.calls, self.fault = 0, set(), [], 0

    def cuCtxGetStreamPriorityRange(self):
        return 0, 0, -5

    def cuStreamCreateWithPriority(self, flags, priority):
        self.made += 1
        self.calls.append(("create", flags, priority))
        return self.fault, self.made

    def cuStreamQuery(self, stream):
        return (NOT_READY if stream in self.busy else 0,)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.busy.add(stream)
        self.calls.append(("wait", stream, event))
        return (self.fault,)

    def cuStreamAddCallback(self, stream, callback, data, flags):
        self.calls.append(("call", stream, data))
        return (self.fault,)

    def cuGetErrorName(self, code):
        return 0, b"CUDA_ERROR_ILLEGAL_ADDRESS"

    def cuGetErrorString(self, code):
        return 0, b"an illegal memory access was encountered"


@pytest.fixture
def driver(monkeypatch):
    made = object.__new__(cuda.CudaDriver)
    made._cu, made._alone, made.ordinal = Bindings(), True, 0
    made._watchers, made._watching, made._callback = [], threading.Lock(), "callback"
    monkeypatch.setattr(cuda_context.this_thread, "driver", made, raising=False)
    yield made
    cuda_context.this_thread.driver = None


@pytest.fixture
def board():
    made = SignalBoard()
    yield made
    for slot in list(made._armed):
        made.release(slot)
    made.close()


def signal(driver, board, line, event="event"):
    """Ask for a signal; the private stream that waits for it."""
    slot = board.arm()
    driver.event_signal(event, board, slot, line)
    kinds, streams = zip(*((call[0], call[1]) for call in driver._cu.calls[-2:]), strict=True)
    assert kinds == ("wait", "call")
    assert driver._cu.calls[-1][2] == board.slot_address(slot)
    assert streams[0] == streams[1]
    return streams[0]


def test_later_moments_of_one_stream_share_a_watcher(driver, board):
    assert [signal(driver, board, (7, serial)) for serial in (1, 2, 2, 9)] == [1, 1, 1, 1]


def test_an_earlier_moment_does_not_wait_behind_a_later_one(driver, board):
    assert signal(driver, board, (7, 5)) == 1
    assert signal(driver, board, (7, 4)) == 2
    assert signal(driver, board, (7, 6)) == 1


def test_streams_do_not_wait_for_each_other(driver, board):
    assert [signal(driver, board, (number, 1)) for number in (7, 8, 9)] == [1, 2, 3]


def test_watchers_that_wait_for_nothing_are_taken_again(driver, board):
    for number in range(3):
        signal(driver, board, (number, 1))
    driver._cu.busy.clear()
    assert [signal(driver, board, (number, 1)) for number in (10, 11, 12, 13)] == [1, 2, 3, 4]


def test_watchers_are_urgent_streams_that_do_not_block(driver, board):
    signal(driver, board, (1, 1))
    assert driver._cu.calls[0] == ("create", 1, -5)


def test_after_a_fault_the_request_raises(driver, board):
    signal(driver, board, (1, 1))
    driver._cu.fault = 700
    slot = board.arm()
    with pytest.raises(DeviceError, match="This process cannot use the GPU any more: restart it to go on") as caught:
        driver.event_signal("event", board, slot, (1, 2))
    assert caught.value.lost
    with pytest.raises(DeviceError):
        driver.event_signal("event", board, slot, (2, 1))
