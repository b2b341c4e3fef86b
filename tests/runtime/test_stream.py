"""Streams and events: moments, waits across streams, callbacks, faults, foreign streams. Latches decide who is first."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from tilekit._driver.cpu.driver import CpuDriver, Stepper
from tilekit._runtime.device import Device, as_stream
from tilekit._runtime.stream import Stream
from tilekit.errors import DeviceError


class Counting(CpuDriver):
    """A CPU device that counts what it is asked, by name."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def event_create(self, timing=False):
        self.calls.append("create")
        return super().event_create(timing)

    def event_record(self, event, stream):
        self.calls.append("record")
        super().event_record(event, stream)

    def event_query(self, event):
        self.calls.append("query")
        return super().event_query(event)

    def stream_wait(self, stream, event):
        self.calls.append("wait")
        super().stream_wait(stream, event)


@pytest.fixture
def cpu():
    """A CPU device of the test's own."""
    device = Device.of_driver(Counting())
    yield device
    device.synchronize()


def submit(stream, work):
    stream.device.driver.submit(stream.handle, work)


def fail():
    raise DeviceError("broken", code="WHY")


# both kinds of devices
def test_a_stream_synchronizes_queries_and_closes(device):
    with device.stream() as stream:
        assert stream.device is device
        assert stream in device.streams
        stream.synchronize()
        assert stream.query()
    assert stream.closed
    assert stream not in device.streams
    stream.close()
    stream.synchronize()
    for use in (
        stream.mark,
        stream.query,
        stream.__enter__().mark,
        lambda: as_stream(stream),
        lambda: device.event().record(stream),
    ):
        with pytest.raises((ValueError, TypeError), match=r"closed|integer"):
            use()


def test_priorities_are_checked(device):
    low, high = device.driver.priority_range()
    for priority in {low, high}:
        with device.stream(priority) as stream:
            assert stream.priority == priority
    with pytest.raises(ValueError, match=f"priority 7 is out of range: {device.label} has {high}"):
        device.stream(7)


def test_marks_count_up_and_pass(device):
    with device.stream() as stream:
        assert (stream.pending, stream.completed) == (1, 0)
        assert [stream.mark() for _ in range(3)] == [1, 2, 3]
        assert stream.wait(2)
        assert stream.completed >= 2
        assert stream.wait(3, 10.0)
        assert stream.is_complete(3)
        assert stream.wait(4)  # not recorded yet: recorded now
        assert stream.pending == 5


def test_callbacks_run_on_their_own_thread_with_numbas_signature(device):
    calls, done = [], threading.Event()

    def called(stream, status, arg):
        stream.synchronize()  # it may use the device
        calls.append((stream, status, arg, threading.current_thread().name))
        if arg == 2:
            done.set()

    with device.stream() as stream:
        for arg in range(3):
            stream.add_callback(called, arg)
        assert done.wait(30)
    assert calls == [(stream, 0, arg, "tilekit-callbacks") for arg in range(3)]


def test_events_time_and_order(device):
    with device.stream() as one, device.stream() as two, device.event(timing=True) as start, device.event(timing=True) as end:
        assert start.query()
        start.record(one)
        start.wait(two)
        end.record(two)
        assert end.synchronize()
        assert end.synchronize(1.0)
        assert start.elapsed_ms(end) >= 0
    with pytest.raises(ValueError, match="closed"):
        start.query()
    start.close()


def test_the_cuda_protocol(device):
    with device.stream() as stream:
        if device.kind == "cuda":
            assert stream.__cuda_stream__() == (0, stream.address)
            assert as_stream(stream.address, device) is stream
        else:
            with pytest.raises(TypeError, match="no CUDA stream"):
                stream.__cuda_stream__()


# order
def test_a_wait_never_covers_later_work(cpu):
    one, two, latch, seen = cpu.stream(), cpu.stream(), threading.Event(), []
    submit(one, lambda: seen.append("needed"))
    serial = one.mark()
    submit(one, latch.wait)  # later work, which does not end by itself
    two.wait_for(one, serial)
    submit(two, lambda: seen.append("after"))
    two.synchronize()
    assert seen == ["needed", "after"]
    assert one.wait(serial)
    assert one.is_complete(serial)
    assert not one.is_complete(one.pending)
    assert not one.wait(one.pending, 0.001)
    latch.set()
    one.synchronize()


def test_an_unmarked_moment_is_recorded_by_whoever_waits(cpu):
    one, two, latch, seen = cpu.stream(), cpu.stream(), threading.Event(), []
    submit(one, latch.wait)
    submit(one, lambda: seen.append(1))
    two.wait_for(one, one.pending)
    assert one.pending == 2
    submit(two, lambda: seen.append(2))
    latch.set()
    two.synchronize()
    assert seen == [1, 2]


def test_waits_that_change_nothing_cost_nothing(cpu):
    one, two = cpu.stream(), cpu.stream()
    calls = cpu.driver.calls
    latch = threading.Event()
    submit(one, latch.wait)
    serial = one.mark()
    calls.clear()
    one.wait_for(one, serial)
    assert calls == []
    two.wait_for(one, serial)
    assert calls == ["wait"]
    two.wait_for(one, serial)  # it has been waited for
    assert calls == ["wait"]
    latch.set()
    one.wait(serial)
    calls.clear()
    three = cpu.stream()
    three.wait_for(one, serial)  # it is known to have passed
    assert one.is_complete(serial)
    assert one.wait(serial)
    assert calls == []


def test_marks_are_trimmed_and_their_events_recorded_again(cpu):
    stream = cpu.stream()
    for _ in range(2000):
        stream.mark()
        if stream.pending % 16 == 0:
            stream.device.driver.stream_synchronize(stream.handle)
    assert len(stream._marks) <= 136
    assert stream.completed > 1800
    assert cpu.driver.calls.count("create") < 256
    assert cpu.driver.calls.count("query") < 2000 / 32


def test_while_the_device_is_behind_trimming_stays_cheap(cpu):
    stream, latch = cpu.stream(), threading.Event()
    submit(stream, latch.wait)
    for _ in range(2000):
        stream.mark()
    assert cpu.driver.calls.count("query") < 10
    latch.set()
    stream.synchronize()
    assert stream.completed == 2001
    stream.mark()  # forgets what has passed
    assert len(stream._marks) == 1
    assert len(cpu.event_pool) == 2001


def test_a_held_mark_keeps_its_event(cpu):
    stream = cpu.stream()
    mark = stream.mark_at(stream.pending)
    stream.wait(mark.serial)
    assert mark.event not in cpu.event_pool
    event = mark.event
    stream.mark()  # the stream forgets it
    assert event not in cpu.event_pool
    del mark
    assert event in cpu.event_pool
    assert stream.mark_at(1) is None


def test_devices_of_two_kinds_cannot_wait_for_each_other(cpu):
    class Gpu(CpuDriver):
        kind = "cuda"

    other = Device.of_driver(Gpu()).stream()
    with pytest.raises(ValueError, match="no device orders"):
        cpu.stream().wait_for(other, other.mark())
    with pytest.raises(ValueError, match="no device orders"):
        cpu.event().wait(other)


def test_many_threads_mark_and_wait(cpu):
    streams = [cpu.stream() for _ in range(3)]
    seen = []

    def work(k):
        for i in range(100):
            stream = streams[(k + i) % 3]
            submit(stream, lambda: seen.append(1))
            serial = stream.mark()
            streams[(k + i + 1) % 3].wait_for(stream, serial)
            if i % 10 == 0:
                assert stream.wait(serial)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu.synchronize()
    assert len(seen) == 600


# faults
def test_every_waiter_of_failed_work_is_told_and_the_stream_goes_on(cpu):
    stream = cpu.stream()
    good = stream.mark()
    submit(stream, fail)
    first = stream.mark()
    second = stream.mark()
    for wait in (lambda: stream.wait(first), lambda: stream.is_complete(second), lambda: stream.wait(second, 1.0)):
        wait_for_done(stream)
        with pytest.raises(DeviceError, match="broken") as caught:
            wait()
        assert caught.value.code == "WHY"
    seen = []
    submit(stream, lambda: seen.append(1))
    assert stream.wait(stream.mark())
    assert seen == [1]
    assert stream.wait(good)
    for serial in (first, second):  # even now, after later marks have passed
        with pytest.raises(DeviceError, match="broken"):
            stream.wait(serial)
    stream.synchronize()


def wait_for_done(stream):
    """Block until the stream is empty, and tell nobody of a fault."""
    latch = threading.Event()
    stream.add_callback(lambda *_: latch.set())
    assert latch.wait(30)


def test_a_fault_nobody_was_told_of_is_not_trimmed_away(cpu):
    stream = cpu.stream()
    submit(stream, fail)
    serial = stream.mark()
    for _ in range(200):
        stream.mark()
    with pytest.raises(DeviceError, match="broken"):
        stream.wait(serial)
    with pytest.raises(DeviceError, match="broken"):
        stream.wait(serial + 100)
    for _ in range(1000):
        stream.mark()
        if stream.pending % 16 == 0:
            stream.synchronize()
    assert len(stream._marks) <= 136


def test_passed_tells_of_no_fault_and_clears_none(cpu):
    stream = cpu.stream()
    submit(stream, fail)
    serial = stream.mark()
    wait_for_done(stream)
    assert stream.passed(serial)
    with pytest.raises(DeviceError, match="broken"):
        stream.synchronize()


def test_a_callback_gets_the_status_of_a_fault(cpu):
    stream, statuses, done = cpu.stream(), [], threading.Event()
    submit(stream, fail)
    stream.add_callback(lambda _, status, __: (statuses.append(status), done.set()))
    assert done.wait(30)
    assert statuses == [719]
    with pytest.raises(DeviceError, match="broken"):
        stream.synchronize()


def test_a_failing_callback_is_logged(cpu, caplog):
    stream, done = cpu.stream(), threading.Event()
    stream.add_callback(lambda *_: 1 // 0)
    stream.add_callback(lambda *_: done.set())
    assert done.wait(30)
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_on_a_closed_stream_is_refused(cpu):
    stream = cpu.stream()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.add_callback(print)


def test_a_closed_stream_can_still_be_waited_for(cpu):
    one, two, latch, seen = cpu.stream(), cpu.stream(), threading.Event(), []
    submit(one, latch.wait)
    submit(one, lambda: seen.append(1))
    serial = one.pending
    one.close()
    two.wait_for(one, serial)
    two.wait_for(one, serial + 5)
    submit(two, lambda: seen.append(2))
    latch.set()
    two.synchronize()
    assert seen == [1, 2]
    assert one.wait(serial)
    one.synchronize()


# lives
def test_a_collected_stream_ends_its_worker_without_a_driver_call_in_the_collector(cpu):
    stream = cpu.stream()
    submit(stream, lambda: None)
    stream.synchronize()
    worker, gone = stream.handle.worker, weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None
    assert len(cpu.retired) == 1
    cpu.collect()
    worker.join(30)
    assert not worker.is_alive()


def test_events_under_a_stepper(cpu):
    with Stepper(cpu, 1):
        stream = cpu.stream()
        done = []
        submit(stream, lambda: done.append(1))
        serial = stream.mark()
        assert not stream.is_complete(serial)
        assert stream.wait(serial, 5.0)
        called = threading.Event()
        stream.add_callback(lambda *_: called.set())
        assert called.wait(30)
    assert done == [1]


# foreign streams
class FakeGpu(CpuDriver):
    """A CPU device that says it is a GPU and adopts any address."""

    kind = "cuda"

    def __init__(self):
        super().__init__()
        self.adopted = []

    def stream_adopt(self, address):
        handle = self.stream_create(0)
        self.adopted.append(address)
        self._addresses = {**getattr(self, "_addresses", {}), handle: address}
        return handle

    def stream_address(self, stream):
        return getattr(self, "_addresses", {}).get(stream, 0x1000 + stream.number)


@pytest.fixture
def gpu():
    return Device.of_driver(FakeGpu())


class Like:
    """An object with the given attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Protocol:
    def __cuda_stream__(self):
        return 0, 0x70


class ProtocolAttribute:
    __cuda_stream__ = (0, np.int64(0x71))


@pytest.mark.parametrize(
    ("foreign", "address"),
    [
        pytest.param(Protocol(), 0x70, id="cuda.core"),
        pytest.param(ProtocolAttribute(), 0x71, id="attribute"),
        pytest.param(Like(cuda_stream=0x72, device_index=0), 0x72, id="torch"),
        pytest.param(Like(ptr=0x73, device_id=0), 0x73, id="cupy"),
        pytest.param(Like(handle=Like(value=0x74)), 0x74, id="numba-ctypes"),
        pytest.param(Like(handle=Like(value=None)), 0, id="numba-ctypes-default"),
        pytest.param(Like(handle=type("CUstream", (), {"__int__": lambda self: 0x75})()), 0x75, id="numba-cuda"),
        pytest.param(0x76, 0x76, id="int"),
        pytest.param(0, 0, id="legacy-default"),
    ],
)
def test_streams_of_others_are_adopted(gpu, foreign, address):
    stream = as_stream(foreign, gpu)
    assert isinstance(stream, Stream)
    assert (stream.address, stream.device) == (address, gpu)
    assert as_stream(foreign, gpu) is stream
    assert as_stream(address, gpu) is stream
    assert as_stream(stream) is stream
    assert gpu.driver.adopted == [address]
    handle = stream.handle
    stream.close()  # not theirs
    assert handle in gpu.driver._streams


def test_the_device_of_a_foreign_stream(gpu, monkeypatch):
    import tilekit._runtime.device as module
    from tilekit._driver.discovery import Discovery

    monkeypatch.setattr(module, "_registry", module._Registry(lambda: Discovery(drivers=[gpu.driver])))
    assert as_stream(Like(cuda_stream=5, device_index=0)).device is Device(0)
    assert as_stream(Like(ptr=6, device_id=-1)).device is Device("cuda")
    assert as_stream(7).device is Device("cuda")


def test_the_foreign_object_lives_as_long_as_its_stream(gpu):
    foreign = Like(ptr=0x99)
    gone = weakref.ref(foreign)
    stream = as_stream(0x99, gpu)
    assert as_stream(foreign, gpu) is stream  # now it is known whose it is
    del foreign
    assert gone() is not None
    del stream
    gc.collect()
    assert gone() is None


def test_a_bare_address_is_waited_on_each_time(gpu):
    one, two = gpu.stream(), as_stream(0x44, gpu)
    latch = threading.Event()
    submit(one, latch.wait)
    serial = one.mark()
    two.wait_for(one, serial)
    assert not two.follows(one, serial)  # tomorrow another stream may have this address
    latch.set()
    assert one.wait(serial)
    assert two.follows(one, serial)


@pytest.mark.parametrize("obj", [None, "stream", 1.5, True, -1, object(), Like(handle=None), Like(ptr=-1), Like(handle="7")])
def test_what_is_no_stream(gpu, obj):
    with pytest.raises(TypeError, match=r"is no stream\. Accepted: .*numba, torch, cupy and cuda\.core.*int"):
        as_stream(obj, gpu)


def test_an_unknown_version_of_the_protocol(gpu):
    with pytest.raises(TypeError, match="version 3"):
        as_stream(Like(__cuda_stream__=(3, 5)), gpu)


@pytest.mark.parametrize("pair", [5, (), (0,), (0, "x"), (0, None), "xyz", lambda: None])
def test_a_damaged_form_of_the_protocol(gpu, pair):
    with pytest.raises(TypeError, match="for __cuda_stream__, not a version and an address"):
        as_stream(Like(__cuda_stream__=pair), gpu)


def test_a_stream_of_another_device(gpu, cpu):
    with pytest.raises(ValueError, match="is not on"):
        as_stream(cpu.stream(), gpu)
    with pytest.raises(TypeError, match="no foreign stream"):
        as_stream(5, cpu)
