"""`await` on a GPU: what only hardware shows. `tests/ops/test_reactor.py` has what both devices do.

The scenarios at the end of that file are repeated with `TILEKIT_TEST_COUNT=10000`.
"""

import asyncio
import runpy
import time
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

shared = runpy.run_path(str(Path(__file__).with_name("test_faults.py")))
Faulty, Launch = shared["Faulty"], shared["Launch"]

pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids

LONG = 400_000_000  # clock cycles: about 0.2 s


@pytest.fixture
def faulty(device):
    device.driver.make_signals_ready()
    return Faulty(device)


async def ticking(stop):
    """How long the loop was kept from turning, at most, in seconds."""
    worst, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        worst, last = max(worst, now - last), now
    return worst


async def while_ticking(awaitable):
    """The result, the longest pause of the loop, and the time that it took, in seconds."""
    stop = asyncio.Event()
    ticker = asyncio.create_task(ticking(stop))
    await asyncio.sleep(0)
    start = time.perf_counter()
    result = await awaitable
    took = time.perf_counter() - start
    stop.set()
    return result, await ticker, took


def test_an_await_covers_nothing_that_comes_behind(device, faulty):
    async def main():
        with device.stream() as stream:
            before = Launch(faulty, "short", clocks=10_000_000).async_on(stream)  # longer than anybody polls
            behind = Launch(faulty, "long", clocks=LONG).async_on(stream)
            await before
            assert not behind.done()
            await behind

    asyncio.run(main())


def test_waits_of_many_streams_do_not_hold_each_other_up(device, faulty):
    """One private stream for all of them would: the first waits longest."""

    async def main():
        streams = [device.stream() for _ in range(4)]
        order = []

        async def wait(k):
            await Launch(faulty, f"{k}", clocks=LONG if k == 0 else 20_000_000).async_on(streams[k])
            order.append(k)

        await asyncio.gather(*(wait(k) for k in range(4)))
        return order

    assert asyncio.run(main())[-1] == 0


def test_what_comes_behind_starts_before_the_task_is_woken(device, faulty):
    """A callback in the stream itself would hold it up until it was called."""

    async def main():
        with device.stream() as stream:
            for _ in range(200):
                futures = [Launch(faulty, "step", clocks=100_000).async_on(stream) for _ in range(5)]
                await asyncio.gather(*futures)

    asyncio.run(main())


@pytest.mark.parametrize("nbytes", [100, 60_000, 1 << 20, 1 << 28])
def test_copies_there_and_back(device, nbytes):
    source = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)

    async def main():
        x = await api.from_host(source)
        return await x.to_host()

    np.testing.assert_array_equal(asyncio.run(main()), source)
    np.testing.assert_array_equal(api.from_host(source).to_host().sync(), source)
    with device.stream() as stream:
        np.testing.assert_array_equal(api.from_host(source).to_host().async_on(stream).result(60), source)


def test_arrays_in_page_locked_memory(device):
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    source = cuda.pinned_array(1 << 24, np.uint8)
    source[:] = np.arange(1 << 24, dtype=np.uint32).astype(np.uint8)
    assert device.driver.staging.is_pinned(source)
    assert not device.driver.staging.is_pinned(np.zeros(1 << 24, np.uint8))
    for _ in range(3):
        np.testing.assert_array_equal(api.from_host(source).to_host().sync(), source)


@pytest.mark.alone
def test_large_copies_do_not_block_the_loop(device):
    source = np.random.default_rng(0).integers(0, 256, 1 << 31, np.uint8)

    async def main():
        await api.from_host(source[: 1 << 24])  # page-locks the chunks
        x, pause, took = await while_ticking(api.from_host(source))
        assert pause < 0.03 < took, (pause, took)
        array, pause, took = await while_ticking(x.to_host())
        assert pause < 0.03 < took, (pause, took)
        np.testing.assert_array_equal(array, source)

    asyncio.run(main())


@pytest.mark.alone
def test_copies_behind_a_long_kernel_do_not_block_the_loop(device, faulty):
    source = np.zeros(1 << 20, np.uint8)

    async def main():
        await api.from_host(source).to_host()
        for nbytes in (100, 1 << 20):
            x = await api.from_host(source[:nbytes])
            slow = Launch(faulty, "long", clocks=LONG)
            _, pause, took = await while_ticking(slow.then(lambda _, x=x: x.to_host()))
            assert pause < 0.03 < took, (pause, took)
            slow = Launch(faulty, "long", clocks=LONG)
            _, pause, _ = await while_ticking(slow.then(lambda _, n=nbytes: api.from_host(source[:n])))
            assert pause < 0.03, pause

    asyncio.run(main())


def test_compiling_does_not_block_the_loop(device):
    @tk.kernel
    def unheard_of(y: tk.InOut):
        y.store(y.load() * 3.0 + 0.123)

    async def main():
        x = await api.ones(1000)

        @tk.kernel
        def warm(y: tk.InOut):
            y.store(y.load() + 7.25)

        await warm(x.partition(64))  # imports the compiler
        _, pause, took = await while_ticking(unheard_of(x.partition(64)))
        assert took > 0.02, "it was compiled"
        assert pause < max(0.1, took / 2), (pause, took)

    asyncio.run(main())


def test_ten_thousand_awaits_on_four_streams(device, faulty):
    """8 tasks, some of whose awaits are caught by polling and some by a signal."""

    async def main():
        streams = [device.stream() for _ in range(4)]

        async def worker(k):
            for i in range(1250):
                await Launch(faulty, "step", clocks=(i * k) % 100_000).async_on(streams[k % 4])

        await asyncio.gather(*(worker(k) for k in range(8)))

    asyncio.run(main())


def test_without_polling_every_await_takes_a_signal(device, faulty, monkeypatch):
    monkeypatch.setenv("TILEKIT_SPIN_US", "0")

    async def main():
        for _ in range(500):
            await Launch(faulty, "step", clocks=10_000)

    asyncio.run(main())
