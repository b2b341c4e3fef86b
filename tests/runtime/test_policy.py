"""Policies: which stream comes next."""

from __future__ import annotations

import threading

import pytest

from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, use_policies
from tilekit._runtime.policy import SchedulingPolicy, SingleStream, StreamPoolRoundRobin


def test_a_pool_takes_its_streams_in_turn(device):
    pool = StreamPoolRoundRobin(device, 3)
    first = [pool.next_stream() for _ in range(3)]
    assert len(set(first)) == 3
    assert [pool.next_stream() for _ in range(3)] == first
    assert isinstance(pool, SchedulingPolicy)
    assert repr(pool) == f'StreamPoolRoundRobin(Device("{device.label}"), streams=3)'


def test_a_pool_makes_its_streams_when_they_are_needed():
    device = Device.of_driver(CpuDriver())
    pool = StreamPoolRoundRobin(device, 8)
    assert device.streams == ()
    stream = pool.next_stream()
    assert device.streams == (stream,)


def test_a_pool_of_given_streams(device):
    streams = [device.stream(), device.stream()]
    pool = StreamPoolRoundRobin(device, streams)
    assert [pool.next_stream() for _ in range(4)] == streams * 2


def test_threads_share_a_pool(device):
    pool, taken = StreamPoolRoundRobin(device, 4), []
    threads = [threading.Thread(target=lambda: taken.extend(pool.next_stream() for _ in range(100))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken.count(stream) for stream in set(taken)) == [200] * 4


@pytest.mark.parametrize(
    ("streams", "error"), [(0, ValueError), ([], ValueError), (True, TypeError), (2.0, TypeError), (["x"], TypeError)]
)
def test_what_is_no_pool(device, streams, error):
    with pytest.raises(error, match=r"streams is|is no stream"):
        StreamPoolRoundRobin(device, streams)


def test_a_stream_of_another_device_is_refused(device):
    with pytest.raises(ValueError, match="is not on"):
        StreamPoolRoundRobin(Device.of_driver(CpuDriver()), [device.stream()])


def test_a_single_stream(device):
    own = SingleStream(device)
    assert own.next_stream() is own.next_stream()
    assert own.device is device
    stream = device.stream()
    given = SingleStream(stream)
    assert given.next_stream() is stream
    assert "SingleStream" in repr(given)
    with pytest.raises(TypeError, match="is no stream"):
        SingleStream("cpu:0")


def test_the_context_shows_where_it_is(device):
    stream = device.stream()
    assert repr(ExecutionContext(device, stream)) == f"<ExecutionContext on {stream!r}>"


def test_a_block_chooses_the_policies(device):
    stream, own = device.stream(), device.policy
    with use_policies(lambda asked: SingleStream(stream) if asked is device else None):
        assert device.policy.next_stream() is stream
        with use_policies(lambda asked: None):
            assert device.policy is own
        assert device.policy.next_stream() is stream
        seen = []
        thread = threading.Thread(target=lambda: seen.append(device.policy))
        thread.start()
        thread.join()
        assert seen == [own]  # another thread is not in the block
        assert api.ones(3).map(lambda x: x.storage.last_write[0]).sync() is stream
    assert device.policy is own
