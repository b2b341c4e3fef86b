"""Staged copies, on a CPU device that is given chunks as a GPU has them: its copies run in stream order on other threads too."""

import asyncio
import gc
import threading

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver import staging as module
from tilekit._driver.staging import LARGE, SMALL, Staging

SIZES = [1, 100, SMALL, SMALL + 1, LARGE, 5 * LARGE + 17]


def chunks(nbytes):
    return np.empty(nbytes, np.uint8)


@pytest.fixture
def cpu(monkeypatch):
    device = tk.Device("cpu")
    with tk.use_device(device):
        yield device
    device.synchronize()


@pytest.fixture
def staged(cpu, monkeypatch):
    """The CPU device, as if it could not reach pageable memory."""
    made = Staging(cpu.driver, chunks, lambda array: False)
    monkeypatch.setattr(cpu.driver, "staging", made, raising=False)
    return made


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def hold(device, stream, gate):
    device.driver.submit(stream.handle, gate.wait)


def random(nbytes):
    return np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("nbytes", SIZES)
def test_there_and_back_blocking(cpu, nbytes):
    staging = Staging(cpu.driver, chunks, lambda array: False)
    with cpu.stream() as stream:
        memory = cpu.driver.allocate(nbytes + 16, stream.handle)
        source, target = random(nbytes), np.zeros(nbytes, np.uint8)
        kept = source.copy()
        staging.send_all(memory, 16, source, stream.handle)
        source[:] = 0  # it has been read
        staging.fetch_all(target, memory, 16, stream.handle)
        np.testing.assert_array_equal(target, kept)
        cpu.driver.free(memory, stream.handle)


def test_small_copies_do_not_block_and_take_chunks_again(cpu, gate):
    made = []

    def allocate(nbytes):
        made.append(nbytes)
        return chunks(nbytes)

    staging = Staging(cpu.driver, allocate, lambda array: False)
    with cpu.stream() as stream:
        memory = cpu.driver.allocate(SMALL, stream.handle)
        hold(cpu, stream, gate)
        sources = [np.full(8, k, np.uint8) for k in range(20)]
        targets = [np.zeros(8, np.uint8) for _ in range(20)]
        fetches = []
        for source, target in zip(sources, targets, strict=True):
            assert staging.send(memory, 0, source, stream.handle)
            source[:] = 99
            fetches.append(staging.fetch(target, memory, 0, stream.handle))
        assert not staging.send(memory, 0, np.zeros(SMALL + 1, np.uint8), stream.handle)
        assert staging.fetch(np.zeros(SMALL + 1, np.uint8), memory, 0, stream.handle) is None
        gate.set()
        stream.synchronize()
        for fetch in fetches:
            fetch.finish()
            fetch.finish()
        np.testing.assert_array_equal(targets, np.arange(20, dtype=np.uint8)[:, None].repeat(8, 1))
        count = len(made)
        for _ in range(1000):
            assert staging.send(memory, 0, sources[0], stream.handle)
            stream.synchronize()
        assert len(made) == count
        cpu.driver.free(memory, stream.handle)


def test_chunks_are_bounded(cpu, gate):
    staging = Staging(cpu.driver, chunks, lambda array: False)
    with cpu.stream() as stream:
        memory = cpu.driver.allocate(8, stream.handle)
        hold(cpu, stream, gate)
        sent = 0
        while staging.send(memory, 0, np.zeros(8, np.uint8), stream.handle):
            sent += 1
        assert sent == module._SMALL_MOST
        gate.set()
        stream.synchronize()
        assert staging.send(memory, 0, np.zeros(8, np.uint8), stream.handle)
        stream.synchronize()
        cpu.driver.free(memory, stream.handle)


def test_a_dropped_fetch_gives_its_chunk_back_when_the_copy_is_done(cpu, gate):
    staging = Staging(cpu.driver, chunks, lambda array: False)
    with cpu.stream() as stream:
        memory = cpu.driver.allocate(8, stream.handle)
        cpu.driver.fill(memory, 0, 8, b"x", stream.handle)
        hold(cpu, stream, gate)
        for _ in range(module._SMALL_MOST):
            assert staging.fetch(np.zeros(8, np.uint8), memory, 0, stream.handle) is not None
        gc.collect()
        assert staging.fetch(np.zeros(8, np.uint8), memory, 0, stream.handle) is None
        gate.set()
        stream.synchronize()
        assert staging.fetch(np.zeros(8, np.uint8), memory, 0, stream.handle) is not None
        stream.synchronize()
        cpu.driver.free(memory, stream.handle)


def test_many_threads_share_few_large_chunks(cpu):
    """More copies at once than there are chunks: none waits for chunks while it holds some."""
    staging = Staging(cpu.driver, chunks, lambda array: False)
    nbytes, wrong = 3 * LARGE + 5, []

    def work(k):
        with cpu.stream() as stream:
            memory = cpu.driver.allocate(nbytes, stream.handle)
            target = np.zeros(nbytes, np.uint8)
            staging.send_all(memory, 0, np.full(nbytes, k, np.uint8), stream.handle)
            staging.fetch_all(target, memory, 0, stream.handle)
            if not (target == k).all():
                wrong.append(k)
            cpu.driver.free(memory, stream.handle)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_without_page_locked_memory_copies_go_the_direct_way(cpu):
    staging = Staging(cpu.driver, lambda nbytes: np.empty(0, np.uint8), lambda array: False)
    with cpu.stream() as stream:
        memory = cpu.driver.allocate(100, stream.handle)
        source, target = random(100), np.zeros(100, np.uint8)
        assert not staging.send(memory, 0, source, stream.handle)
        assert staging.fetch(target, memory, 0, stream.handle) is None
        staging.send_all(memory, 0, source, stream.handle)
        staging.fetch_all(target, memory, 0, stream.handle)
        np.testing.assert_array_equal(target, source)
        cpu.driver.free(memory, stream.handle)


# through ops


def run_sync(op, device):
    return op.sync()


def run_future(op, device):
    with device.stream() as stream:
        return op.async_on(stream).result(60)


def run_await(op, device):
    return asyncio.run(op.run())


@pytest.mark.parametrize("run", [run_sync, run_future, run_await], ids=lambda run: run.__name__[4:])
@pytest.mark.parametrize("nbytes", [0, *SIZES])
def test_arrays_come_and_go(cpu, staged, run, nbytes):
    source = random(nbytes)
    expected = source.copy()
    x = run(api.from_host(source), cpu)
    np.testing.assert_array_equal(run(x.to_host(), cpu), expected)
    result = run(api.from_host(source).then(lambda t: tk.zip(t.to_host(), t.dup().to_host())), cpu)
    for array in result:
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("nbytes", [100, 3 * LARGE])
def test_the_loop_turns_while_a_copy_waits_for_the_device(cpu, staged, gate, nbytes):
    source = random(nbytes)

    async def main():
        gated = tk.with_context(lambda ctx: tk.value(hold(cpu, ctx.stream, gate)))
        task = asyncio.create_task(gated.then(lambda _: api.from_host(source)).to_host().run())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.set()
        return await task

    np.testing.assert_array_equal(asyncio.run(main()), source)


@pytest.mark.parametrize("nbytes", [100, 3 * LARGE])
def test_submitting_a_copy_to_the_host_returns_at_once(cpu, staged, gate, nbytes):
    x = api.from_host(random(nbytes)).sync()
    with cpu.stream() as stream:
        hold(cpu, stream, gate)
        future = x.to_host().async_on(stream)
        assert not future.done()
        gate.set()
        np.testing.assert_array_equal(future.result(60), random(nbytes))


def test_a_cancelled_copy_keeps_its_memory(cpu, staged, gate, monkeypatch):
    """It goes on in its thread, into memory that must not have been freed."""
    started, ended, alive = threading.Event(), threading.Event(), []
    original = staged.send_all

    def slow(memory, *rest):
        started.set()
        assert gate.wait(30)
        original(memory, *rest)
        alive.append(memory.buffer is not None)
        ended.set()

    monkeypatch.setattr(staged, "send_all", slow)

    async def main():
        task = asyncio.create_task(api.from_host(random(LARGE)).run())
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        cpu.synchronize()
        gate.set()

    before = cpu.driver.allocated_bytes
    asyncio.run(main())
    assert ended.wait(30)
    assert alive == [True]
    gc.collect()
    for _ in range(2):
        cpu.synchronize()
    assert cpu.driver.allocated_bytes <= before


def test_arrays_in_page_locked_memory_are_copied_from_directly(cpu, staged, gate, monkeypatch):
    """And kept alive until they have been."""
    import weakref

    monkeypatch.setattr(staged, "is_pinned", lambda array: True)
    monkeypatch.setattr(staged, "send_all", None)

    class Watched(np.ndarray):
        pass

    source = random(LARGE).view(Watched)
    watch, expected = weakref.ref(source), source.copy()
    with cpu.stream() as stream:
        hold(cpu, stream, gate)
        op = api.from_host(source)
        monkeypatch.setattr(np, "ascontiguousarray", lambda array: array)
        future = op.async_on(stream)
        del source, op
        future.op = None
        gate.set()
        x = future.result(60)
    np.testing.assert_array_equal(x.to_host().sync(), expected)
    assert watch is not None
