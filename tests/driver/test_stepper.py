"""The stepper: the same seed gives the same interleaving, any seed an allowed one, and nothing hangs."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from tilekit._driver.cpu import driver as cpu
from tilekit._driver.signal import SignalBoard
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit.errors import DeviceError


@pytest.fixture
def driver():
    return cpu.CpuDriver()


def interleaving(driver, seed):
    seen = []
    with cpu.Stepper(driver, seed) as stepper:
        for name in "abc":
            stream = driver.stream_create(0)
            for i in range(5):
                driver.submit(stream, lambda name=name, i=i: seen.append(f"{name}{i}"))
        assert seen == []
        driver.synchronize()
    return seen, stepper.trace


def test_the_seed_chooses(driver):
    assert interleaving(driver, 1) == interleaving(driver, 1)
    runs = [interleaving(driver, seed)[0] for seed in range(8)]
    assert len({tuple(run) for run in runs}) > 4
    for run in runs:
        for name in "abc":
            assert [item for item in run if item[0] == name] == [f"{name}{i}" for i in range(5)]


def test_one_step_runs_one_item_in_this_thread(driver):
    where = []
    with cpu.Stepper(driver, 0) as stepper:
        stream = driver.stream_create(0)
        driver.submit(stream, lambda: where.append(threading.get_ident()))
        driver.submit(stream, lambda: where.append(threading.get_ident()))
        assert stepper.step()
        assert where == [threading.get_ident()]
        assert not driver.stream_query(stream)
        stepper.run()
        assert driver.stream_query(stream)
        assert not stepper.step()
    assert len(where) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_word_holds_its_stream_back(driver, seed):
    one, two, seen = driver.stream_create(0), driver.stream_create(0), []
    memory = driver.allocate(8, one)
    driver.fill(memory, 0, 8, bytes(1), one)
    driver.synchronize()
    word = memory.buffer.view(np.int64)
    with cpu.Stepper(driver, seed):
        driver.wait_for_word(memory, 0, 2, two)
        driver.submit(two, lambda: seen.append("b"))
        for _ in range(2):
            driver.submit(one, lambda: (seen.append("a"), word.__iadd__(1)))
    assert seen == ["a", "a", "b"]


@pytest.mark.parametrize("seed", range(10))
def test_a_wait_holds_its_stream_back(driver, seed):
    seen = []
    with cpu.Stepper(driver, seed):
        one, two, event = driver.stream_create(0), driver.stream_create(0), driver.event_create()
        driver.submit(one, lambda: seen.append(1))
        driver.event_record(event, one)
        driver.stream_wait(two, event)
        driver.submit(two, lambda: seen.append(2))
    assert seen == [1, 2]


def test_a_signal_is_a_wait(driver):
    board = SignalBoard()
    slot = board.arm()
    with cpu.Stepper(driver, 0):
        stream = driver.stream_create(0)
        driver.stream_signal(stream, board, slot)
        assert board.status(slot) == 0
    board.close()


def test_a_wait_that_cannot_end_raises(driver):
    with cpu.Stepper(driver, 0):
        stream = driver.stream_create(0)
        driver.submit(stream, lambda: driver.stream_synchronize(stream))  # waits for itself
        with pytest.raises(DeviceError, match=r"the stepper cannot pass a point .* executed now"):
            driver.stream_synchronize(stream)


def test_work_may_wait_for_another_stream(driver):
    seen = []
    with cpu.Stepper(driver, 3):
        one, two = driver.stream_create(0), driver.stream_create(0)
        driver.submit(two, lambda: seen.append("two"))
        driver.submit(one, lambda: (driver.stream_synchronize(two), seen.append("one")))
        driver.stream_synchronize(one)
    assert seen == ["two", "one"]


def test_it_waits_for_a_device_that_is_not_stepped():
    stepped, free = cpu.discover(2)
    latch, seen = threading.Event(), []
    with cpu.Stepper(stepped, 0):
        there, here, event = free.stream_create(0), stepped.stream_create(0), free.event_create()
        free.submit(there, latch.wait)
        free.submit(there, lambda: seen.append("there"))
        free.event_record(event, there)
        stepped.stream_wait(here, event)
        stepped.submit(here, lambda: seen.append("here"))
        latch.set()
        stepped.synchronize()
    assert seen == ["there", "here"]


def test_devices_that_are_stepped_wait_for_each_other():
    """Streams of two that wait for each other's others, while what all wait for is a third's."""
    drivers, seen = cpu.discover(3), []
    with cpu.Stepper(drivers[0], 0), cpu.Stepper(drivers[1], 1), cpu.Stepper(drivers[2], 2):
        streams = {(at, k): drivers[at].stream_create(0) for at, k in ((0, "last"), (0, "second"), (1, "third"), (2, "first"))}
        drivers[0].submit(streams[0, "last"], lambda: seen.append("begun"))  # it is looked at before the other
        drivers[2].submit(streams[2, "first"], lambda: seen.append("first"))
        waits = ((0, "second"), (2, "first")), ((1, "third"), (0, "second")), ((0, "last"), (1, "third"))
        for (at, name), (where, before) in waits:
            event = drivers[where].event_create()
            drivers[where].event_record(event, streams[where, before])
            drivers[at].stream_wait(streams[at, name], event)
            drivers[at].submit(streams[at, name], lambda name=name: seen.append(name))
        drivers[1].synchronize()
    assert [name for name in seen if name != "begun"] == ["first", "second", "third", "last"]


def test_several_threads_may_wait(driver):
    seen = []
    with cpu.Stepper(driver, 5):
        streams = [driver.stream_create(0) for _ in range(4)]
        for k, stream in enumerate(streams):
            for i in range(50):
                driver.submit(stream, lambda k=k, i=i: seen.append((k, i)))
        threads = [threading.Thread(target=driver.stream_synchronize, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 200


def test_nesting_is_refused_and_the_workers_come_back(driver):
    with cpu.Stepper(driver, 0), pytest.raises(ValueError, match="stepped already"), cpu.Stepper(driver, 0):
        pass
    stream, latch = driver.stream_create(0), threading.Event()
    driver.submit(stream, latch.set)
    assert latch.wait(30)
    with pytest.raises(TypeError, match="only CPU devices"):
        cpu.Stepper(type("Gpu", (), {"kind": "cuda"})(), 0)


def random_dag(device, seed, waits=True):
    """Random additions between random buffers on random streams; the buffers at the end, and what they should be."""
    plan = random.Random(seed)
    n = 6
    want = [np.full(4, i, np.int64) for i in range(n)]
    streams = [device.stream() for _ in range(3)]
    contexts = [ExecutionContext(device, stream) for stream in streams]
    storages = [contexts[0].allocate(32) for _ in range(n)]
    view = [storage.memory.buffer.view(np.int64) for storage in storages]
    for i in range(n):
        device.driver.submit(streams[0].handle, lambda i=i: np.copyto(view[i], i))
        contexts[0].note((), (storages[i],))
    for _ in range(40):
        ctx, (a, b, c) = plan.choice(contexts), plan.sample(range(n), 3)
        if waits:
            ctx.acquire((storages[a], storages[b]), (storages[c],))
        device.driver.submit(ctx.stream.handle, lambda a=a, b=b, c=c: np.copyto(view[c], view[a] * 3 - view[b] + 1))
        ctx.note((storages[a], storages[b]), (storages[c],))
        if plan.random() < 0.3:
            ctx.stream.mark()
        want[c] = want[a] * 3 - want[b] + 1
    device.synchronize()
    return [v.copy() for v in view], want


@pytest.mark.parametrize("seed", range(25))
def test_a_random_graph_gives_the_result_of_its_submission_order(driver, seed):
    device = Device.of_driver(driver)
    with cpu.Stepper(device, seed):
        got, want = random_dag(device, seed)
    np.testing.assert_array_equal(got, want)


def test_and_without_the_waits_it_does_not(driver):
    device = Device.of_driver(driver)
    wrong = 0
    for seed in range(10):
        with cpu.Stepper(device, seed):
            got, want = random_dag(device, seed, waits=False)
        wrong += not np.array_equal(got, want)
    assert wrong > 5  # the stepper shows what the waits are for


def test_a_random_graph_on_real_workers(driver):
    device = Device.of_driver(driver)
    for seed in range(5):
        got, want = random_dag(device, seed)
        np.testing.assert_array_equal(got, want)


def test_freed_memory_is_poisoned(driver):
    with cpu.Stepper(driver, 0):
        stream = driver.stream_create(0)
        memory = driver.allocate(16, stream)
        late = memory.buffer
        assert (late == 0xDD).all()
        late[:] = 1
        driver.free(memory, stream)
        assert (late == 1).all()
        driver.stream_synchronize(stream)
        assert (late == 0xDD).all()
