"""The CPU driver: in-order asynchronous streams, events, memory, faults. Latches decide who is first, never time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import tilekit
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver, discover
from tilekit._driver.ledger import ADDRESSABLE
from tilekit._driver.signal import SignalBoard
from tilekit._runtime.device import Device
from tilekit.errors import DeviceError, OutOfMemoryError


@pytest.fixture
def driver():
    return CpuDriver()


class Refused(DeviceError):
    pass


def fail():
    raise Refused("no", code="WHY")


def test_work_is_asynchronous_and_in_order(driver):
    stream, latch, seen = driver.stream_create(0), threading.Event(), []
    driver.submit(stream, latch.wait)
    for i in range(100):
        driver.submit(stream, lambda i=i: seen.append(i))
    assert seen == []
    assert not driver.stream_query(stream)
    latch.set()
    driver.stream_synchronize(stream)
    assert seen == list(range(100))
    assert driver.stream_query(stream)


def test_streams_overlap(driver):
    one, two = driver.stream_create(0), driver.stream_create(0)
    barrier = threading.Barrier(2)
    driver.submit(one, lambda: barrier.wait(30))
    driver.submit(two, lambda: barrier.wait(30))
    driver.synchronize()


def test_a_stream_waits_for_a_word_that_another_writes(driver):
    one, two, seen = driver.stream_create(0), driver.stream_create(0), []
    memory = driver.allocate(24, one)
    words = memory.buffer.view(np.int64)
    words[:] = 0
    driver.wait_for_word(memory, 8, 3, two)
    driver.submit(two, lambda: seen.append(int(words[1])))
    for value in range(1, 5):
        assert seen == []
        driver.submit(one, lambda value=value: words.__setitem__(1, value))
        driver.stream_synchronize(one)
        if value == 2:
            assert not driver.stream_query(two)
        if value == 3:
            break
    driver.stream_synchronize(two)
    assert seen == [3]


def test_an_event_orders_two_streams(driver):
    one, two, latch, seen = driver.stream_create(0), driver.stream_create(0), threading.Event(), []
    event = driver.event_create()
    driver.submit(one, latch.wait)
    driver.submit(one, lambda: seen.append("one"))
    driver.event_record(event, one)
    driver.stream_wait(two, event)
    driver.submit(two, lambda: seen.append("two"))
    assert not driver.event_query(event)
    assert not driver.event_synchronize(event, 0.0)
    latch.set()
    driver.stream_synchronize(two)
    assert seen == ["one", "two"]
    assert driver.event_query(event)


def test_a_wait_takes_the_event_as_it_is_recorded_then(driver):
    one, two, latch = driver.stream_create(0), driver.stream_create(0), threading.Event()
    event = driver.event_create()
    driver.event_record(event, one)
    driver.stream_wait(two, event)
    driver.submit(one, latch.wait)
    driver.event_record(event, one)
    driver.stream_synchronize(two)  # would hang if it waited for the second record
    latch.set()
    driver.synchronize()


def test_an_event_never_recorded_has_passed(driver):
    event = driver.event_create()
    assert driver.event_query(event)
    assert driver.event_synchronize(event)
    driver.stream_wait(driver.stream_create(0), event)
    driver.event_destroy(event)


def test_events_of_another_device_are_waited_for():
    here, there = discover(2)
    one, two, latch, seen = here.stream_create(0), there.stream_create(0), threading.Event(), []
    event = here.event_create()
    here.submit(one, latch.wait)
    here.event_record(event, one)
    there.stream_wait(two, event)
    there.submit(two, lambda: seen.append(latch.is_set()))
    latch.set()
    there.synchronize()
    assert seen == [True]


def test_time_between_events(driver):
    stream = driver.stream_create(0)
    start, end = driver.event_create(timing=True), driver.event_create(timing=True)
    with pytest.raises(DeviceError, match="two recorded events"):
        driver.event_elapsed_ms(start, end)
    latch = threading.Event()
    driver.event_record(start, stream)
    driver.submit(stream, latch.wait)
    driver.event_record(end, stream)
    with pytest.raises(DeviceError, match="synchronize first"):
        driver.event_elapsed_ms(start, end)
    latch.set()
    driver.event_synchronize(end)
    assert driver.event_elapsed_ms(start, end) >= 0


def test_memory_is_aligned_copied_and_filled(driver):
    stream = driver.stream_create(0)
    memory, other = driver.allocate(400, stream), driver.allocate(400, stream)
    assert memory.address % 64 == 0
    assert driver.allocated_bytes == 800
    source, target = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    driver.copy_from_host(memory, 0, source, stream)
    driver.copy(other, 40, memory, 0, 360, stream)
    driver.fill(other, 0, 10, np.float32(-1).tobytes(), stream)
    driver.copy_to_host(target, other, 0, stream)
    driver.stream_synchronize(stream)
    np.testing.assert_array_equal(target, np.concatenate([np.full(10, -1, np.float32), source[:90]]))
    for bad in (lambda: driver.fill(memory, 0, 101, b"1234", stream), lambda: driver.copy(other, 1, memory, 0, 400, stream)):
        with pytest.raises(ValueError, match="out of an allocation of 400"):
            bad()
    driver.free(memory, stream)
    driver.free(other, stream)
    driver.stream_synchronize(stream)
    assert driver.allocated_bytes == 0
    with pytest.raises(ValueError, match="has been freed"):
        driver.fill(memory, 0, 1, b"1", stream)


def test_a_free_waits_for_its_events(driver):
    one, two, latch = driver.stream_create(0), driver.stream_create(0), threading.Event()
    memory, event = driver.allocate(8, one), driver.event_create()
    driver.submit(two, latch.wait)
    driver.event_record(event, two)
    driver.free(memory, one, [event])
    assert driver.allocated_bytes == 8
    latch.set()
    driver.synchronize()
    assert driver.allocated_bytes == 0


def test_out_of_memory_says_how_much(driver):
    stream = driver.stream_create(0)
    for nbytes in (1 << 50, ADDRESSABLE - 1):
        with pytest.raises(OutOfMemoryError, match=f"{nbytes:,} bytes asked for") as caught:
            driver.allocate(nbytes, stream)
        assert caught.value.requested_bytes == nbytes
        assert caught.value.total_bytes == driver.memory_info()[1]
    assert driver.allocated_bytes == 0


def test_what_only_a_gpu_can_do_says_so(driver):
    stream = driver.stream_create(0)
    with pytest.raises(TypeError, match="no compiled kernels"):
        driver.load(b"", "k")
    with pytest.raises(TypeError, match="no compiled kernels"):
        driver.launch(None, (1, 1, 1), (1, 1, 1), 0, stream, 0)
    with pytest.raises(TypeError, match="no foreign stream"):
        driver.stream_adopt(5)


# faults
def test_a_fault_skips_the_rest_is_raised_once_and_then_over(driver):
    stream, ran, latch = driver.stream_create(0), [], threading.Event()
    driver.submit(stream, latch.wait)
    driver.submit(stream, fail)
    driver.submit(stream, lambda: ran.append(1))
    latch.set()
    with pytest.raises(Refused, match="no"):
        driver.stream_synchronize(stream)
    driver.submit(stream, lambda: ran.append(2))
    driver.stream_synchronize(stream)
    assert ran == [2]


def test_other_exceptions_become_the_cause_of_a_device_error(driver):
    stream = driver.stream_create(0)
    driver.submit(stream, lambda: 1 // 0)
    with pytest.raises(DeviceError, match="ZeroDivisionError: integer") as caught:
        driver.synchronize()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    driver.synchronize()


def test_events_behind_a_fault_carry_it_and_those_before_do_not(driver):
    stream, latch = driver.stream_create(0), threading.Event()
    before, behind = driver.event_create(), driver.event_create()
    driver.submit(stream, latch.wait)
    driver.event_record(before, stream)
    driver.submit(stream, fail)
    driver.event_record(behind, stream)
    latch.set()
    assert driver.event_synchronize(before)
    for _ in range(2):  # each waiter is told
        with pytest.raises(Refused):
            driver.event_synchronize(behind)
    with pytest.raises(Refused):
        driver.event_query(behind)


def test_a_query_tells_of_a_fault_without_clearing_it(driver):
    stream, event = driver.stream_create(0), driver.event_create()
    driver.submit(stream, fail)
    driver.event_record(event, stream)
    board = SignalBoard()
    slot = board.arm()
    driver.stream_signal(stream, board, slot)
    while board.status(slot) is None:
        pass
    for _ in range(2):
        with pytest.raises(Refused):
            driver.event_query(event)
        with pytest.raises(Refused):
            driver.stream_query(stream)
    assert board.status(slot) == 719
    with pytest.raises(Refused):
        driver.synchronize()


def test_a_fault_spreads_to_streams_that_wait_for_it(driver):
    one, two, ran, event = driver.stream_create(0), driver.stream_create(0), [], driver.event_create()
    driver.submit(one, fail)
    driver.event_record(event, one)
    driver.stream_wait(two, event)
    driver.submit(two, lambda: ran.append(1))
    with pytest.raises(Refused):
        driver.stream_synchronize(two)
    with pytest.raises(Refused):
        driver.stream_synchronize(one)
    driver.synchronize()
    assert ran == []


def test_memory_is_freed_behind_a_fault(driver):
    stream = driver.stream_create(0)
    memory = driver.allocate(8, stream)
    driver.submit(stream, fail)
    driver.free(memory, stream)
    with pytest.raises(Refused):
        driver.stream_synchronize(stream)
    assert driver.allocated_bytes == 0


# lives
def test_a_destroyed_stream_finishes_its_work_and_ends_its_worker(driver):
    stream, latch, seen = driver.stream_create(0), threading.Event(), []
    driver.submit(stream, latch.wait)
    driver.submit(stream, lambda: seen.append(1))
    worker = stream.worker
    driver.stream_destroy(stream)
    latch.set()
    worker.join(30)
    assert not worker.is_alive()
    assert seen == [1]


def test_a_stream_without_work_has_no_worker(driver):
    stream = driver.stream_create(0)
    driver.stream_synchronize(stream)
    assert stream.worker is None


def test_finished_work_is_let_go(driver):
    class Thing:
        pass

    thing = Thing()
    gone, stream = weakref.ref(thing), driver.stream_create(0)
    driver.submit(stream, lambda thing=thing: None, (thing,))
    del thing
    driver.stream_synchronize(stream)
    assert gone() is None


def test_many_threads_submit_to_one_stream(driver):
    stream, seen = driver.stream_create(0), []
    threads = [
        threading.Thread(target=lambda k=k: [driver.submit(stream, lambda i=i: seen.append((k, i))) for i in range(200)])
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    driver.stream_synchronize(stream)
    for k in range(8):
        assert [i for who, i in seen if who == k] == list(range(200))


def test_the_process_ends_silently_with_work_pending():
    program = """
import threading
from tilekit._runtime.device import Device
device = Device("cpu")
for _ in range(3):
    stream = device.stream()
    device.driver.submit(stream.handle, threading.Event().wait)
    device.driver.submit(stream.handle, lambda: 1 / 0)
    stream.add_callback(print)
    keep = device.event().record(stream)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("way", ["submit", "record", "free"])
def test_a_worker_that_cannot_start_is_started_later(driver, monkeypatch, way):
    stream, seen, memory = driver.stream_create(0), [], driver.allocate(64, driver.stream_create(0))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    put = {
        "submit": lambda: driver.submit(stream, lambda: seen.append(1)),
        "record": lambda: driver.event_record(driver.event_create(), stream),
        "free": lambda: driver.free(memory, stream),
    }[way]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(DeviceError, match="needs a thread to work in, and none can be started: can't start new thread"):
                put()
        assert driver.stream_query(stream), "what was refused is not in the queue"
    put()
    driver.submit(stream, lambda: seen.append(2))
    driver.stream_synchronize(stream)
    assert seen == ([1, 2] if way == "submit" else [2])


def test_memory_that_could_not_be_freed_is_freed_later(monkeypatch):
    driver = CpuDriver()
    device = Device.of_driver(driver)
    stream = device.stream()
    tensor = api.empty(1000).sync_on(stream)
    other = device.stream()
    stream.wait_for(other, other.mark())

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stream.handle.stop()
    stream.handle.worker.join(30)
    stream.handle.worker = None
    del tensor
    with pytest.raises(DeviceError, match="none can be started"):
        device.collect()
    assert driver.allocated_bytes == 4000
    monkeypatch.undo()
    device.collect()
    driver.synchronize()
    assert driver.allocated_bytes == 0


AT_EXIT = """
import faulthandler, sys, threading, types
faulthandler.dump_traceback_later(30, exit=True)
import tilekit as tk
from tilekit import api

@tk.kernel
def add(y: tk.InOut, a):
    y.store(y.load() + a)

class Saved:
    def __del__(self):
        assert self.sys.is_finalizing()
        self.work(self)

def idle(kept):
    add(kept.y.partition(4), 1.0).sync()
    beside = kept.device.stream()
    print(kept.y.to_host().sync_on(beside).tolist())
    print(kept.y.to_host().then(kept.api.from_host).async_on(kept.stream).result(20).shape)
    kept.stream.synchronize()
    kept.device.synchronize()
    print(kept.stream.query())

def cut_off(kept):
    try:
        kept.y.to_host().sync_on(kept.stream)
    except kept.tk.DeviceError as error:
        print("shut down while" in str(error), "at work" in str(error))
    try:
        print(kept.split.result())
    except kept.tk.DeviceError as error:
        print("shut down while" in str(error))

kept = Saved()
kept.sys, kept.tk, kept.api, kept.work = sys, tk, api, WORK
kept.device = tk.Device("cpu")
kept.stream = kept.device.stream()
kept.y = api.ones(4).sync_on(kept.stream)
add(kept.y.partition(4), 1.0).sync()
kept.y.to_host().then(api.from_host).sync()  # what is imported late is not to be had at exit
if WORK is cut_off:
    never, begun = threading.Event(), threading.Event()
    kept.device.driver.submit(kept.stream.handle, lambda: (begun.set(), never.wait()))
    kept.split = tk.with_context(lambda ctx: kept.y.to_host()).then(api.from_host).async_on(kept.stream)
    begun.wait()
sys.modules["keeper"] = types.ModuleType("keeper")
sys.modules["keeper"].kept = kept
del kept
"""


@pytest.mark.parametrize(("work", "expected"), [("idle", "[3.0, 3.0, 3.0, 3.0]\n(4,)\nTrue\n"), ("cut_off", "True True\nTrue\n")])
def test_ops_can_run_while_the_interpreter_shuts_down(tmp_path, work, expected):
    program = tmp_path / "at_exit.py"
    program.write_text(AT_EXIT.replace("WORK", work))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(tilekit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
