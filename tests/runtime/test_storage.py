"""Storages: who waits for whom, and when memory is freed. On a CPU device of the test's own, with latches."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from tilekit._driver.cpu.driver import CpuDriver, Stepper
from tilekit._driver.protocol import Memory
from tilekit._runtime.allocator import allocate
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.hazards import READERS_KEPT
from tilekit._runtime.storage import Storage
from tilekit.errors import DeviceError, OutOfMemoryError


class Watching(CpuDriver):
    """A CPU device that counts the waits between streams, and notes where memory is freed."""

    def __init__(self):
        super().__init__()
        self.waits, self.frees = 0, []

    def stream_wait(self, stream, event):
        self.waits += 1
        super().stream_wait(stream, event)

    def free(self, memory, stream, after=()):
        self.frees.append((stream, len(after)))
        super().free(memory, stream, after)


@pytest.fixture
def cpu():
    device = Device.of_driver(Watching())
    yield device
    device.synchronize()


def contexts(device, n):
    return [ExecutionContext(device, device.stream()) for _ in range(n)]


def use(ctx, work, reads=(), writes=()):
    ctx.acquire(reads, writes)
    ctx.device.driver.submit(ctx.stream.handle, work)
    ctx.note(reads, writes)


# both kinds of devices
def test_memory_makes_the_round_trip(device):
    (ctx,) = contexts(device, 1)
    storage = ctx.allocate(4000)
    assert (storage.nbytes, storage.owned, storage.borrowed) == (4000, True, False)
    source, target = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    device.driver.copy_from_host(storage.memory, 0, source, ctx.stream.handle)
    ctx.note((), (storage,))
    device.driver.copy_to_host(target, storage.memory, 0, ctx.stream.handle)
    ctx.note((storage,), ())
    ctx.stream.synchronize()
    np.testing.assert_array_equal(target, source)


def test_memory_is_used_again(device):
    (ctx,) = contexts(device, 1)
    free, total = device.memory_info()
    assert 0 < free <= total
    for _ in range(50):  # 50 times a 40th of what is free
        storage = ctx.allocate(free // 40 if device.kind == "cuda" else 1 << 20)
        ctx.note((), (storage,))
        del storage
    ctx.stream.synchronize()


def test_nothing_needs_no_memory(device):
    storage = allocate(device, 0, device.stream())
    assert (storage.nbytes, storage.memory.address, storage.borrowed) == (0, 0, False)
    del storage
    assert not device.garbage
    with pytest.raises(ValueError, match="-1 bytes"):
        allocate(device, -1, device.stream())


@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 63, 1 << 70])
def test_too_much_is_an_error_after_which_all_goes_on(device, nbytes):
    (ctx,) = contexts(device, 1)
    with pytest.raises(OutOfMemoryError, match=f"out of memory: {nbytes:,} bytes asked for") as caught:
        ctx.allocate(nbytes)
    assert caught.value.requested_bytes == nbytes
    assert ctx.allocate(1024).nbytes == 1024
    device.synchronize()


# order
def test_a_reader_waits_for_the_writer_and_a_writer_for_the_readers(cpu):
    (a, b, c), latch, seen = contexts(cpu, 3), threading.Event(), []
    storage = a.allocate(8)
    use(a, lambda: (latch.wait(), seen.append("write")), writes=(storage,))
    use(b, lambda: seen.append("read"), reads=(storage,))
    use(c, lambda: seen.append("overwrite"), writes=(storage,))
    use(a, lambda: seen.append("last"), reads=(storage,))
    assert seen == []
    latch.set()
    cpu.synchronize()
    assert seen == ["write", "read", "overwrite", "last"]


def test_readers_do_not_wait_for_each_other(cpu):
    (a, b, c), latch, seen = contexts(cpu, 3), threading.Event(), []
    storage = a.allocate(8)
    use(b, latch.wait, reads=(storage,))
    use(c, lambda: seen.append(1), reads=(storage,))
    c.stream.synchronize()
    assert seen == [1]
    latch.set()


def test_the_wait_covers_nothing_submitted_later(cpu):
    (a, b), latch, seen = contexts(cpu, 2), threading.Event(), []
    storage = a.allocate(8)
    use(a, lambda: seen.append(1), writes=(storage,))
    a.stream.mark()  # the end of a submission
    cpu.driver.submit(a.stream.handle, latch.wait)  # something else on that stream, which does not end
    use(b, lambda: seen.append(2), reads=(storage,), writes=(storage,))
    b.stream.synchronize()
    assert seen == [1, 2]
    latch.set()


def test_one_stream_waits_for_nothing(cpu):
    (a,) = contexts(cpu, 1)
    x, y = a.allocate(8), a.allocate(8)
    for _ in range(20):
        use(a, lambda: None, (x,), (y,))
        use(a, lambda: None, (x, y), (x,))
    assert cpu.driver.waits == 0
    assert a.stream.pending == 1  # not even an event was recorded
    assert (x.reads, y.reads) == ({}, {a.stream: 1})


def test_a_wait_is_not_repeated(cpu):
    a, b = contexts(cpu, 2)
    x, y, z = (a.allocate(8) for _ in range(3))
    latch = threading.Event()
    use(a, latch.wait, writes=(x, y, z))
    for _ in range(5):
        use(b, lambda: None, (x, y), (z,))
    assert cpu.driver.waits == 1
    latch.set()


def test_readers_that_are_done_are_forgotten(cpu):
    ctxs = contexts(cpu, 2 * READERS_KEPT)
    storage = ctxs[0].allocate(8)
    for ctx in ctxs:
        use(ctx, lambda: None, reads=(storage,))
        ctx.stream.synchronize()
    assert len(storage.reads) <= READERS_KEPT + 1
    use(ctxs[0], lambda: None, writes=(storage,))
    assert storage.reads == {}


def test_a_user_that_came_between_is_not_forgotten(cpu):
    # Two threads use a storage without any order between them: whatever the result, the memory must outlive both.
    (a, b), latch = contexts(cpu, 2), threading.Event()
    storage = a.allocate(8)
    b.acquire((), (storage,))
    use(a, latch.wait, writes=(storage,))
    cpu.driver.submit(b.stream.handle, lambda: None)
    b.note((), (storage,))
    assert {stream for stream, _ in storage.uses()} == {a.stream, b.stream}
    del storage
    cpu.collect()
    b.stream.synchronize()
    assert cpu.driver.allocated_bytes == 8
    latch.set()


# the end
def test_a_free_comes_after_every_user(cpu):
    (a, b, c), latches = contexts(cpu, 3), [threading.Event(), threading.Event()]
    storage = a.allocate(8)
    use(b, latches[0].wait, reads=(storage,))
    use(c, latches[1].wait, reads=(storage,))
    del storage
    assert cpu.driver.frees == []  # the collector calls no driver
    cpu.collect()
    assert len(cpu.driver.frees) == 1
    assert cpu.driver.allocated_bytes == 8
    latches[0].set()
    b.stream.synchronize()
    assert cpu.driver.allocated_bytes == 8
    latches[1].set()
    cpu.synchronize()
    assert cpu.driver.allocated_bytes == 0


def test_no_stream_is_held_up_by_a_free(cpu):
    (a, b, c), latch = contexts(cpu, 3), threading.Event()
    storage = a.allocate(8)
    use(b, latch.wait, reads=(storage,))
    use(c, lambda: None, reads=(storage,))
    del storage
    for ctx in (a, c):
        ctx.allocate(8)  # collects
        ctx.stream.synchronize()
    handles = {ctx.stream.handle for ctx in (a, b, c)}
    assert cpu.driver.frees[0][0] not in handles
    latch.set()


def test_a_free_behind_all_users_needs_no_event(cpu):
    a, b = contexts(cpu, 2)
    storage = a.allocate(8)
    use(a, lambda: None, writes=(storage,))
    del storage
    cpu.collect()
    storage = a.allocate(8)
    latch = threading.Event()
    use(a, latch.wait, writes=(storage,))
    use(b, lambda: None, reads=(storage,))  # b waits for a, so b is behind both
    del storage
    cpu.collect()
    assert cpu.driver.frees == [(a.stream.handle, 0), (b.stream.handle, 0)]
    latch.set()


def test_memory_outlives_a_closed_stream(cpu):
    (a,), latch = contexts(cpu, 1), threading.Event()
    storage = a.allocate(8)
    use(a, latch.wait, writes=(storage,))
    a.stream.close()
    del storage
    cpu.collect()
    assert cpu.driver.allocated_bytes == 8
    latch.set()
    cpu.synchronize()
    assert cpu.driver.allocated_bytes == 0


def test_memory_of_failed_work_is_freed_and_the_fault_raised_once(cpu):
    a, b, c = contexts(cpu, 3)
    storage = a.allocate(8)
    use(a, lambda: 1 // 0, writes=(storage,))
    use(b, lambda: None, reads=(storage,))
    use(c, lambda: None, reads=(storage,))
    del storage
    for ctx in (a, b, c):
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            ctx.stream.synchronize()
    cpu.synchronize()
    assert cpu.driver.allocated_bytes == 0


@pytest.mark.parametrize("seed", range(10))
def test_users_never_see_freed_memory(cpu, seed):
    # The stepper poisons memory when it is freed, so a free that is too early would be read.
    seen = []
    with Stepper(cpu, seed):
        a, b, c = contexts(cpu, 3)
        for i in range(20):
            storage = a.allocate(8)
            view = storage.memory.buffer
            use(a, lambda view=view, i=i: view.fill(i), writes=(storage,))
            use(b, lambda view=view, i=i: seen.append((i, view[0])), reads=(storage,))
            use(c, lambda view=view, i=i: seen.append((i, view[7])), reads=(storage,))
            del storage
        cpu.synchronize()
    assert len(seen) == 40
    assert all(i == value for i, value in seen)
    assert cpu.driver.allocated_bytes == 0


def test_somebody_elses_memory_keeps_its_owner_until_the_device_is_done(cpu):
    class Owner:
        pass

    owner, latch = Owner(), threading.Event()
    gone = weakref.ref(owner)
    (a,) = contexts(cpu, 1)
    storage = Storage(cpu, Memory(4096, 8), owner=owner)
    assert (storage.owned, storage.borrowed) == (False, False)
    use(a, latch.wait, reads=(storage,))
    del storage, owner
    cpu.collect()
    gc.collect()
    assert gone() is not None
    latch.set()
    a.stream.synchronize()
    cpu.collect()
    assert gone() is None
    assert cpu.driver.frees == []


def test_a_borrowed_address_is_nobodys():
    device = Device.of_driver(CpuDriver())
    storage = Storage(device, Memory(4096, 8))
    assert storage.borrowed
    del storage
    assert not device.garbage


def test_threads_allocate_use_and_drop(cpu):
    ctxs = contexts(cpu, 3)
    errors = []

    def work(k):
        try:
            for i in range(100):
                ctx, other = ctxs[(k + i) % 3], ctxs[(k + i + 1) % 3]
                storage = ctx.allocate(64)
                view = storage.memory.buffer
                use(ctx, lambda view=view: view.fill(1), writes=(storage,))
                use(other, lambda view=view: view.sum(), reads=(storage,), writes=(storage,))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    cpu.synchronize()
    cpu.synchronize()
    assert cpu.driver.allocated_bytes == 0


def test_the_process_ends_silently_with_storages_alive():
    program = """
from tilekit._runtime.device import Device
from tilekit._runtime.context import ExecutionContext
device = Device("cpu")
ctx = ExecutionContext(device, device.stream())
keep = [ctx.allocate(100) for _ in range(10)]
ctx.note(keep[:5], keep[5:])
class Cycle: pass
cycle = Cycle()
cycle.self, cycle.storage, cycle.stream = cycle, ctx.allocate(5), device.stream()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stream_in_a_cycle_with_a_storage_outlives_the_free(device):
    """The collector finalizes both in any order; the memory is freed on a stream that still exists."""

    class Knot:
        pass

    for _ in range(50):
        knot = Knot()
        knot.stream = device.stream()
        knot.storage = ExecutionContext(device, knot.stream).allocate(256)
        ExecutionContext(device, knot.stream).note((), (knot.storage,))
        knot.itself = knot
        del knot
        gc.collect()
        device.collect()
    gc.collect()
    device.collect()
    device.collect()
    assert not device.garbage
    assert not device.retired
