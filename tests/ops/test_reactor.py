"""`await`: under every library, without hanging, without blocking the loop, without covering what it does not depend on."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from held_up import failing, held

import tilekit as tk
from tilekit import api
from tilekit._driver import signal
from tilekit.errors import DeviceError
from tilekit.ops.execution import HostJob
from tilekit.ops.reactor._running import running_reactor
from tilekit.ops.reactor._trio import in_trio

# How often the scenarios at the end are repeated; on a GPU: TILEKIT_TEST_COUNT=10000 pytest --device=cuda, this file
COUNT = int(os.environ.get("TILEKIT_TEST_COUNT", "20"))


def run_asyncio(main):
    return asyncio.run(main())


def run_uvloop(main):
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def run_trio(main):
    return pytest.importorskip("trio", reason="trio is not installed").run(main)


class BlindLoop(asyncio.SelectorEventLoop):
    """A loop that watches no descriptors, as the proactor of Windows."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError


def run_blind(main):
    with asyncio.Runner(loop_factory=BlindLoop) as runner:
        return runner.run(main())


RUNNERS = [run_asyncio, run_uvloop, run_trio, run_blind]
every_library = pytest.mark.parametrize("run", RUNNERS, ids=lambda run: run.__name__[4:])


async def sleep(seconds):
    """Of whichever library runs."""
    trio = sys.modules.get("trio")
    if trio is not None and in_trio(trio):
        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


async def together(*functions):
    """Run coroutine functions at once, under whichever library runs; their results."""
    trio = sys.modules.get("trio")
    results = [None] * len(functions)

    async def keep(at, function):
        results[at] = await function()

    if trio is not None and in_trio(trio):
        async with trio.open_nursery() as nursery:
            for at, function in enumerate(functions):
                nursery.start_soon(keep, at, function)
    else:
        await asyncio.gather(*(keep(at, function) for at, function in enumerate(functions)))
    return results


async def waited(future):
    """As coroutine, for what takes no awaitables."""
    return await future


def armed(board):
    return len(board._armed)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def flush_boards():
    """Close the boards of loops that are gone."""
    gc.collect()
    signal._reap()


# every library


@every_library
def test_await(device, run):
    async def main():
        x = await api.arange(1000)
        return await x.to_host(), await tk.value(3)

    array, three = run(main)
    np.testing.assert_array_equal(array, np.arange(1000))
    assert three == 3


@every_library
def test_a_chain_with_host_values_in_it(device, run):
    async def main():
        return await api.arange(10).to_host().then(lambda array: api.from_host(array * 2)).to_host().map(lambda a: int(a.sum()))

    assert run(main) == 90


@every_library
def test_many_tasks_at_once(device, run):
    async def worker(k):
        x = await api.full(100, float(k))
        for _ in range(5):
            x = await x.dup()
        return (await x.to_host())[0]

    async def main():
        return await together(*(lambda k=k: worker(k) for k in range(30)))

    assert run(main) == list(range(30))


@every_library
def test_a_future_that_somebody_else_submits(cpu, gate, run):
    """It is submitted in part, its rest follows from the callback thread."""

    def make():
        return held(gate).then(lambda _: api.ones(3)).to_host().map(lambda array: array.sum())

    async def main():
        with cpu.stream() as stream:
            future = make().async_on(stream)
            threading.Timer(0.02, gate.set).start()
            first, second = await together(lambda: waited(future), lambda: waited(future))
            return first, second, await future, future.result()

    assert run(main) == (3, 3, 3, 3)


@every_library
def test_errors_of_the_device_reach_every_task(cpu, run):
    caught = []

    async def main():
        with cpu.stream() as stream:
            futures = [failing(KeyError("lost")).named("first").async_on(stream)]
            futures += [api.zeros(3).async_on(stream) for _ in range(3)]

            async def wait(future):
                try:
                    await future
                except DeviceError as error:
                    caught.append(error)

            await together(*(lambda f=f: wait(f) for f in futures))

    run(main)
    assert len(caught) == 4
    assert all("KeyError: 'lost'" in str(error) for error in caught)
    assert all(error.unfinished for error in caught)


@every_library
def test_the_loop_turns_while_the_device_works(cpu, gate, run):
    async def main():
        done, turns = [], 0

        async def wait():
            done.append(await held(gate, "result"))

        async def spin():
            nonlocal turns
            while not done:
                await sleep(0)
                turns += 1
                if turns == 100:
                    gate.set()

        await together(wait, spin)
        return turns

    assert run(main) >= 100


@every_library
def test_an_await_covers_nothing_that_comes_behind(cpu, gate, run):
    """Neither marked nor unmarked work behind a future holds up who waits for it."""

    async def main():
        with cpu.stream() as stream:
            early, first = threading.Event(), []
            before = held(early, 1).async_on(stream)
            stuck = held(gate).async_on(stream)
            cpu.driver.submit(stream.handle, gate.wait)
            threading.Timer(0.02, early.set).start()
            first.append(await before)
            assert not gate.is_set()
            assert not stuck.done()
            gate.set()
            await stuck
            return first

    assert run(main) == [1]


@every_library
def test_an_await_lets_others_run_even_if_nothing_is_to_wait_for(cpu, run):
    async def main():
        turns = 0

        async def device():
            while turns < 5:
                await tk.value(1)

        async def other():
            nonlocal turns
            for _ in range(5):
                await sleep(0)
                turns += 1

        await together(device, other)

    run(main)


def test_nothing_runs(device):
    op = tk.value(1)
    coroutine = op.run()
    with pytest.raises(RuntimeError, match=r"asyncio \(or uvloop\) or trio runs, and neither runs here: call \.sync\(\)"):
        coroutine.send(None)


def test_trio_inside_asyncio(device):
    """As a guest: each task finds the library that runs it."""
    trio = pytest.importorskip("trio", reason="trio is not installed")

    async def trio_main():
        return await api.ones(3).to_host().map(sum)

    async def main():
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        trio.lowlevel.start_guest_run(
            trio_main, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result
        )
        mine = await api.ones(4).to_host().map(sum)
        return mine, (await done).unwrap()

    assert asyncio.run(main()) == (4, 3)


def test_several_loops_in_several_threads(device):
    async def main(k):
        async def worker(i):
            return (await api.full(10, float(100 * k + i)).to_host())[0]

        return await together(*(lambda i=i: worker(i) for i in range(20)))

    with ThreadPoolExecutor(8) as pool:
        runs = [RUNNERS[k % 4] for k in range(8)]
        results = list(pool.map(lambda k: runs[k](lambda: main(k)), range(8)))
    assert results == [[100.0 * k + i for i in range(20)] for k in range(8)]


# cancelling


def test_asyncio_cancels_in_every_way(cpu, gate):
    logged = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(held(gate), 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await held(gate)
        task = asyncio.create_task(held(gate, 5).run())
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.01)
        both = asyncio.gather(held(gate), held(gate))
        await asyncio.sleep(0.01)
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(held(gate).run())
                group.create_task(tk.value(1).map(lambda _: 1 / 0).run())
        assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
        assert waiting.cancelled()
        gate.set()
        return await task, (await api.ones(3).to_host()).sum()

    assert asyncio.run(main(), debug=True) == (5, 3)
    assert logged == []


def test_trio_cancels(cpu, gate):
    trio = pytest.importorskip("trio", reason="trio is not installed")

    async def main():
        with trio.move_on_after(0.01) as scope:
            await held(gate)
        assert scope.cancelled_caught
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with trio.open_nursery() as nursery:
                nursery.start_soon(held(gate).run)
                nursery.start_soon(tk.value(1).map(lambda _: 1 / 0).run)
        assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.01):
            await held(gate)
        gate.set()
        return (await api.ones(3).to_host()).sum()

    assert trio.run(main) == 3


@pytest.mark.parametrize("run", [run_asyncio, run_trio, run_blind], ids=lambda run: run.__name__[4:])
def test_the_device_finishes_what_was_cancelled(cpu, gate, run):
    """Its memory waits for it, and its slot is given out again when the device has filled it, not before."""
    finished, made = [], []

    def hold(tensor):
        made.append(tensor.storage.memory)
        held_up = held(gate)
        return held_up.then(lambda _: tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, after))))

    def after():
        finished.append(made[0].buffer is not None)

    async def main():
        cpu.synchronize()
        before = cpu.driver.allocated_bytes
        reactor = running_reactor()
        board = reactor._board if run is not run_blind else signal.dispatcher().board
        others = armed(board)  # the dispatcher's is everybody's: what tests before this one left is none of its business
        await give_up(api.zeros(1 << 20).then(hold))
        gc.collect()
        cpu.collect()
        assert cpu.driver.allocated_bytes > before
        assert armed(board) == others + 1
        assert await api.ones(10).to_host().map(sum) == 10  # other slots work meanwhile
        assert armed(board) == others + 1
        gate.set()
        while armed(board) > others:
            await sleep(0.001)
        cpu.synchronize()
        cpu.collect()
        cpu.synchronize()
        return before

    async def give_up(op):
        trio = sys.modules.get("trio")
        if trio is not None and in_trio(trio):
            with trio.move_on_after(0.02):
                await op
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(op, 0.02)

    before = run(main)
    assert finished == [True]
    assert cpu.driver.allocated_bytes <= before


def test_a_future_may_be_awaited_again_after_a_timeout(cpu, gate):
    async def main():
        with cpu.stream() as stream:
            future = held(gate, 7).async_on(stream)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future, 0.01)
            assert future.state == "executing"
            gate.set()
            return await future

    assert asyncio.run(main()) == 7


def test_a_future_whose_submission_was_cancelled_says_so(cpu, gate):
    from concurrent.futures import CancelledError

    async def main():
        future = held(gate).then(lambda _: api.ones(3)).to_host().map(sum).into_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        with pytest.raises(CancelledError, match="the task that submitted it ended before all of it was submitted"):
            await future
        assert future.state == "complete"
        assert isinstance(future.exception(), CancelledError)

    asyncio.run(main())


def test_a_dropped_future_leaves_nothing(cpu, gate):
    with cpu.stream() as stream:
        before = cpu.driver.allocated_bytes
        api.zeros(1 << 20).then(lambda t: held(gate).map(lambda _: t)).async_on(stream)
        gate.set()
        stream.synchronize()
        gc.collect()
        cpu.synchronize()
        cpu.synchronize()
        assert cpu.driver.allocated_bytes <= before


# loops that come and go


def test_a_loop_that_is_closed_before_the_device_is_done(cpu, gate, caplog, capfd):
    flush_boards()
    before = len(signal._closing)

    async def main():
        task = asyncio.create_task(held(gate).run())
        await asyncio.sleep(0.01)
        task.cancel()
        return running_reactor()._board

    board = asyncio.run(main())
    flush_boards()
    asyncio.run(tk.value(1).run())  # a new loop looks after the closed ones
    assert board in signal._closing
    os.fstat(board.fd)  # open: the device is going to write to it
    gate.set()
    cpu.synchronize()
    flush_boards()
    assert board not in signal._closing
    assert len(signal._closing) <= before
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_cancelled_wait_does_not_keep_its_loop(cpu, gate):
    """The slot stays the device's until that has filled it; the task's future, which knows its loop, does not."""

    async def main():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        submitted = []
        task = asyncio.create_task(held(gate).map(submitted.append).run())
        while not submitted:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    loops = []
    asyncio.run(main())
    gc.collect()
    assert loops[0]() is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
@pytest.mark.parametrize("run", [run_asyncio, run_uvloop, run_trio], ids=lambda run: run.__name__[4:])
def test_a_thousand_loops_leak_no_descriptors(cpu, run):
    async def main():
        await api.ones(3)

    def once():
        run(main)

    for _ in range(10):
        once()
    flush_boards()
    before = descriptors()
    for _ in range(1000 if run is run_asyncio else 200):
        once()
    flush_boards()
    assert descriptors() <= before + 4
    assert len(signal._closing) < 4


# jobs for the host


class Job(tk.DeviceOp):
    """An op with a job for the host in it."""

    def __init__(self, work, blocking=None, after=None):
        self.work, self.blocking, self.after = work, blocking, after

    def steps(self, ctx):
        after = [self.after(ctx)] if self.after else []
        job = HostJob(self.work, blocking=self.blocking, after=after)
        yield [job]
        return job.result()


@every_library
def test_a_job_runs_in_a_thread_while_the_loop_turns(device, run):
    async def main():
        here, turned, there = threading.get_ident(), threading.Event(), []

        def work():
            there.append(threading.get_ident())
            assert turned.wait(30)
            return "made"

        async def wait():
            return await Job(work)

        async def turn():
            while not there:
                await sleep(0.001)
            turned.set()

        results = await together(wait, turn)
        return results[0], there[0] != here

    assert run(main) == ("made", True)


def test_a_job_runs_at_once_where_nobody_minds(device):
    here = threading.get_ident()
    assert Job(threading.get_ident).sync() == here
    assert Job(lambda: "other", blocking=threading.get_ident).sync() == here
    with device.stream() as stream:
        assert Job(threading.get_ident, blocking=lambda: "blocks").async_on(stream).result(60) == here


@every_library
def test_an_error_in_a_job_is_the_ops(device, run):
    def work():
        raise KeyError("lost")

    async def main():
        with pytest.raises(KeyError, match="lost"):
            await Job(work)
        return await Job(work).or_else(lambda error: tk.value(str(error)))

    assert run(main) == "'lost'"


def test_a_job_that_comes_after_something_takes_no_thread_until_then(cpu, gate):
    ran = []

    def after(ctx):
        cpu.driver.submit(ctx.stream.handle, gate.wait)
        return (ctx.stream, ctx.stream.pending)

    async def main():
        task = asyncio.create_task(Job(lambda: ran.append(gate.is_set()), after=after).run())
        await asyncio.sleep(0.01)
        assert ran == []
        gate.set()
        await task

    asyncio.run(main())
    gate.clear()
    with cpu.stream() as stream:
        future = Job(lambda: ran.append(gate.is_set()), after=after).async_on(stream)
        assert ran == [True]
        gate.set()
        future.result(60)
    assert ran == [True, True]


def test_a_cancelled_job_goes_on(device):
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        started.set()
        assert may_end.wait(30)
        ended.set()

    async def main():
        task = asyncio.create_task(Job(work).run())
        while not started.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()

    asyncio.run(main())
    assert ended.wait(30)


def test_a_kernel_is_compiled_in_a_thread(cpu, monkeypatch):
    from tilekit.launch.specialisation import Specialisation

    threads = []
    original = Specialisation.executable

    def slow(self, device):
        threads.append(threading.current_thread() is threading.main_thread())
        return original(self, device)

    monkeypatch.setattr(Specialisation, "loaded", lambda self, device: None)
    monkeypatch.setattr(Specialisation, "executable", slow)

    @tk.kernel
    def double(y: tk.InOut):
        y.store(2 * y.load())

    async def main():
        x = await api.ones(64)
        await double(x.partition(32))
        return await x.to_host()

    assert asyncio.run(main()).sum() == 128
    assert threads == [False]
    assert double(api.ones(64).partition(16)).sync()
    assert threads == [False, True]


def test_the_first_signal_is_prepared_in_a_thread(cpu, gate, monkeypatch):
    """On a GPU that compiles the native callback, which takes a second."""
    threads, ready = [], []

    def prepare():
        threads.append(threading.current_thread() is threading.main_thread())
        ready.append(True)

    monkeypatch.setattr(cpu.driver, "signals_ready", lambda: bool(ready), raising=False)
    monkeypatch.setattr(cpu.driver, "make_signals_ready", prepare, raising=False)

    async def main():
        threading.Timer(0.02, gate.set).start()
        await held(gate)

    asyncio.run(main())
    assert threads == [False]


# errors of the device in what splits a chain


def test_or_else_sees_faults_of_the_device(cpu):
    def op():
        return failing(KeyError("lost")).or_else(lambda error: tk.value(type(error)))

    assert op().sync() is DeviceError

    async def main():
        return await op()

    assert asyncio.run(main()) is DeviceError
    with cpu.stream() as stream:
        assert op().async_on(stream).result(60) is DeviceError


# what numba has and disabled: its tests of callbacks and of async_done, here with other threads that use the device


@pytest.fixture
def traffic(device):
    """Other threads that submit work and wait for it, all the time: no callback may hold a lock that they need."""
    stop, counted = threading.Event(), [0] * 2

    def busy(k):
        with device.stream() as stream:
            while not stop.is_set():
                api.ones(100).sync_on(stream)
                counted[k] += 1

    threads = [threading.Thread(target=busy, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
        before, start = list(counted), time.monotonic()
        while any(now == then for now, then in zip(counted, before, strict=True)) and time.monotonic() < start + 30:
            time.sleep(0.001)
        assert all(now > then for now, then in zip(counted, before, strict=True)), "they got stuck"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("traffic")
def test_an_event_that_waits_to_be_used_again_holds_no_fault(cpu):
    """Which would hold the frames of those who were told, and so their tensors."""
    with cpu.stream() as stream, contextlib.suppress(DeviceError):
        failing(KeyError("lost")).sync_on(stream)
    del stream
    start = time.monotonic()
    while not (pooled := list(cpu.event_pool)) and time.monotonic() < start + 30:  # the traffic takes from it, too
        gc.collect()  # the fault, and the frames that it was raised through, once the thread that tells of it has let go of it
        time.sleep(0.001)
    assert pooled
    assert [event.point for event in pooled if event.point is not None] == []


def test_add_callback(device):
    with device.stream() as stream:
        for i in range(COUNT):
            done, seen = threading.Event(), []
            stream.add_callback(lambda *given, seen=seen, done=done: (seen.extend(given), done.set()), i)
            assert done.wait(30)
            assert seen == [stream, 0, i]


@pytest.mark.usefixtures("traffic")
def test_parallel_tasks(device):
    async def task():
        x = await api.from_host(np.arange(16, dtype=np.float32))
        return await x.dup().to_host()

    async def main():
        for _ in range(max(1, COUNT // 10)):
            for array in await asyncio.gather(*(task() for _ in range(10))):
                np.testing.assert_array_equal(array, np.arange(16))

    asyncio.run(main())


@pytest.mark.usefixtures("traffic")
def test_several_awaits_on_several_streams(device):
    async def main():
        streams = [device.stream() for _ in range(4)]
        for _ in range(COUNT):
            futures = [tk.value(stream).async_on(stream) for stream in streams]
            assert await asyncio.gather(*futures) == streams
        for stream in streams:
            stream.close()

    asyncio.run(main())


@pytest.mark.usefixtures("traffic")
def test_a_cancelled_await_among_others(device):
    """One of two that wait for the same stream is cancelled: the other goes on, and nothing is logged."""
    logged = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        with device.stream() as stream:
            for _ in range(COUNT):
                first, second = (asyncio.ensure_future(api.zeros(1000).async_on(stream)) for _ in range(2))
                await asyncio.sleep(0)
                first.cancel()
                assert (await second).shape == (1000,)
                with contextlib.suppress(asyncio.CancelledError):
                    await first

    asyncio.run(main())
    assert logged == []
