"""Freed blocks that are kept for their stream: by whom they are used again, in which order, and when they go.

On a CPU device that keeps spares as a GPU does; a stepper interleaves its streams and poisons nothing that is only kept.
"""

from __future__ import annotations

import gc
import threading

import pytest
from fake_gpu import fake_gpu

from tilekit import memory
from tilekit._driver.cpu.driver import CpuDriver, Stepper
from tilekit._runtime.allocator import _SIZES, LARGEST_KEPT
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, use_device
from tilekit.errors import OutOfMemoryError


class Keeping(CpuDriver):
    """A CPU device that keeps spares, and counts what it is asked for."""

    keeps_free_lists = True

    def __init__(self):
        super().__init__()
        self.allocations = self.frees = 0

    def allocate(self, nbytes, stream):
        memory = super().allocate(nbytes, stream)
        self.allocations += 1
        return memory

    def free(self, memory, stream, after=()):
        self.frees += 1
        super().free(memory, stream, after)


@pytest.fixture
def cpu():
    device = Device.of_driver(Keeping())
    with use_device(device):
        yield device
    device.synchronize()


def contexts(device, n):
    return [ExecutionContext(device, device.stream()) for _ in range(n)]


def use(ctx, work, reads=(), writes=()):
    ctx.acquire(reads, writes)
    ctx.device.driver.submit(ctx.stream.handle, work)
    ctx.note(reads, writes)


def test_a_block_is_used_again_on_its_stream_without_the_driver(cpu):
    a, b = contexts(cpu, 2)
    addresses = {a.allocate(4096).memory.address for _ in range(100)}
    assert (len(addresses), cpu.driver.allocations, cpu.driver.frees) == (1, 1, 0)
    a.allocate(8192)  # another size
    b.allocate(4096)  # another stream
    assert cpu.driver.allocations == 3


def test_a_block_that_others_use_is_not_kept(cpu):
    (a, b), latch = contexts(cpu, 2), threading.Event()
    storage = a.allocate(64)
    use(b, latch.wait, reads=(storage,))
    address = storage.memory.address
    del storage
    other = a.allocate(64)
    assert other.memory.address != address
    assert cpu.driver.frees == 1
    storage = a.allocate(64)
    use(b, latch.wait, writes=(storage,))
    del storage
    a.allocate(64)
    assert cpu.driver.frees == 2
    latch.set()


def test_a_block_comes_back_when_its_stream_wrote_it_after_the_others(cpu):
    (a, b), latch = contexts(cpu, 2), threading.Event()
    storage = a.allocate(64)
    use(b, latch.wait, reads=(storage,), writes=(storage,))
    use(a, lambda: None, writes=(storage,))  # waits for b
    address = storage.memory.address
    del storage
    assert a.allocate(64).memory.address == address
    assert cpu.driver.frees == 0
    latch.set()


@pytest.mark.parametrize("seed", range(20))
def test_nobody_sees_the_bytes_of_the_next(cpu, seed):
    seen = []
    with Stepper(cpu, seed):
        streams = contexts(cpu, 3)
        for i in range(60):
            here, there = streams[i % 3], streams[(i // 3) % 3]
            storage = here.allocate(8)
            view = storage.memory.buffer
            use(here, lambda view=view, i=i: view.fill(i), writes=(storage,))
            use(there, lambda view=view, i=i: seen.append((i, int(view[0]), int(view[7]))), reads=(storage,))
            del storage
        cpu.synchronize()
    assert len(seen) == 60
    assert all(i == first == last for i, first, last in seen)
    assert cpu.driver.allocations < 60


def test_large_blocks_are_not_kept(cpu):
    (a,) = contexts(cpu, 1)
    for _ in range(3):
        a.allocate(LARGEST_KEPT + 1)
    cpu.collect()
    assert (cpu.driver.allocations, cpu.driver.frees) == (3, 3)


def test_what_is_kept_is_bounded(cpu):
    (a,) = contexts(cpu, 1)
    held = [a.allocate(LARGEST_KEPT) for _ in range(10)]
    del held
    assert memory.stats().kept_bytes == LARGEST_KEPT
    for nbytes in range(1, 20 * _SIZES):
        a.allocate(nbytes)
    assert len(cpu.free_lists[a.stream.number]) <= _SIZES


def test_statistics_know_what_is_kept(cpu):
    (a,) = contexts(cpu, 1)
    storage = a.allocate(4096)
    assert (memory.stats().used_bytes, memory.stats().allocations, memory.stats().kept_bytes) == (4096, 1, 0)
    del storage
    assert (memory.stats().used_bytes, memory.stats().allocations, memory.stats().kept_bytes) == (0, 0, 4096)
    memory.release()
    a.stream.synchronize()
    assert memory.stats().kept_bytes == cpu.driver.allocated_bytes == 0
    assert a.allocate(4096).nbytes == 4096


@pytest.mark.parametrize("how", ["close", "collect"])
def test_the_blocks_of_a_stream_go_with_it(cpu, how):
    (a,) = contexts(cpu, 1)
    late = a.allocate(128)
    a.allocate(64)
    assert cpu.driver.allocated_bytes == 192
    handle = a.stream.handle
    if how == "close":
        a.stream.close()
    del late, a
    gc.collect()
    for _ in range(2):
        cpu.synchronize()
    handle.worker.join(60)  # a stream that is destroyed finishes what is in it
    assert cpu.driver.allocated_bytes == 0
    assert cpu.free_lists == {}


def test_kept_blocks_are_freed_before_memory_runs_out(cpu):
    a, b = contexts(cpu, 2)
    memory.set_limit(1 << 20)
    held = [a.allocate(1 << 18) for _ in range(4)]
    with pytest.raises(OutOfMemoryError, match="1,048,576 of the 1,048,576 bytes that memory.set_limit allows are in use"):
        b.allocate(1 << 18)
    del held
    assert memory.stats().kept_bytes == 1 << 20
    assert b.allocate(1 << 20).nbytes == 1 << 20


def test_another_pool_gets_no_kept_blocks(cpu):
    (a,) = contexts(cpu, 1)
    kept = a.allocate(64)
    cpu.use_allocator(None)  # any change: the blocks of before are no longer looked for
    del kept
    a.allocate(64)
    assert cpu.driver.allocations == 2


def test_threads_share_the_spares_of_a_stream(cpu):
    (a,), errors = contexts(cpu, 1), []

    def work(value):
        try:
            for _ in range(300):
                storage = a.allocate(8)
                view = storage.memory.buffer
                use(a, lambda view=view: view.fill(value), writes=(storage,))

                def check(view=view):
                    assert (view == value).all()

                # Between the two, another thread may submit work on a block of its own only.
                use(a, check, reads=(storage,))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu.synchronize()
    assert errors == []
    assert cpu.driver.allocations <= 8


def test_a_gpus_driver_is_asked_once():
    device, driver = fake_gpu()
    ctx = ExecutionContext(device, device.stream())
    for _ in range(100):
        ctx.allocate(4096)
    assert driver.calls["cuMemAllocAsync"] == 1
    assert driver.calls["cuMemFreeAsync"] == 0
    with use_device(device):
        memory.release()
    assert (driver.calls["cuMemFreeAsync"], driver.calls["cuMemPoolTrimTo"]) == (1, 1)
