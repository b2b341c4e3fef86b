"""`DeviceFuture`: its states, who may wait for it, and what it tells after a fault."""

import asyncio
import threading

import numpy as np
import pytest
from held_up import failing, held, split

import tilekit as tk
from tilekit import api
from tilekit.errors import DeviceError
from tilekit.ops.future import DeviceFuture


def test_idle_executing_complete(cpu, gate):
    with cpu.stream() as stream:
        future = DeviceFuture(held(gate, 1), stream)
        assert (future.state, future.done()) == ("idle", False)
        with pytest.raises(ValueError, match=r"is idle: submit\(\) it, or await it"):
            future.result()
        future.submit()
        assert (future.state, future.done()) == ("executing", False)
        with pytest.raises(ValueError, match="has been submitted already"):
            future.submit()
        gate.set()
        assert future.result(60) == 1
        assert (future.state, future.done()) == ("complete", True)


def test_a_split_chain_is_executing_until_its_end(cpu, gate):
    with cpu.stream() as stream:
        future = split(gate).async_on(stream)
        assert future.state == "executing"
        with pytest.raises(TimeoutError, match="has not finished within 0.01 s"):
            future.result(0.01)
        with pytest.raises(TimeoutError):
            future.exception(0.01)
        gate.set()
        assert future.result(60) == 6


def test_several_threads_wait_for_one(cpu, gate):
    with cpu.stream() as stream:
        future, results = split(gate).async_on(stream), []
        threads = [threading.Thread(target=lambda: results.append(future.result(60))) for _ in range(5)]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
    assert results == [6] * 5


def test_a_thread_waits_for_what_a_task_submits(cpu, gate):
    results = []

    async def main():
        future = split(gate).into_future()
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="has been submitted already"):
            future.submit()
        thread = threading.Thread(target=lambda: results.append(future.result(60)))
        thread.start()
        called = threading.Event()
        future.add_done_callback(lambda f: (results.append(f.result()), called.set()))
        gate.set()
        results.append(await task)
        results.append(await future)
        await asyncio.to_thread(thread.join)
        assert await asyncio.to_thread(called.wait, 30)

    asyncio.run(main())
    assert results == [6] * 4


@pytest.mark.parametrize("make", [held, split])
def test_done_callbacks_come_once_when_it_is_done(cpu, gate, make):
    with cpu.stream() as stream:
        calls, called = [], threading.Event()
        future = make(gate).async_on(stream)
        for _ in range(3):
            future.add_done_callback(lambda f: calls.append(f.done()))
        future.add_done_callback(lambda f: called.set())
        assert calls == []
        gate.set()
        assert called.wait(30)
        assert calls == [True] * 3
        future.add_done_callback(lambda f: calls.append("at once"))
        assert calls[-1] == "at once"


def test_a_done_callback_waits_for_nothing_behind_the_future(cpu, gate):
    with cpu.stream() as stream:
        early, called = threading.Event(), threading.Event()
        future = held(early).async_on(stream)
        held(gate).async_on(stream)
        future.add_done_callback(lambda f: called.set())
        early.set()
        assert called.wait(30)


def test_a_done_callback_that_fails_is_logged(cpu, gate, caplog):
    with cpu.stream() as stream:
        future, called = split(gate).async_on(stream), threading.Event()
        future.add_done_callback(lambda f: 1 / 0)
        future.add_done_callback(lambda f: called.set())
        gate.set()
        assert called.wait(30)
        assert future.result(60) == 6
    assert "ZeroDivisionError" in caplog.text


def test_an_error_while_it_is_submitted_is_raised_at_once(cpu):
    with cpu.stream() as stream:
        with pytest.raises(ZeroDivisionError):
            tk.value(1).map(lambda _: 1 / 0).async_on(stream)
        future = DeviceFuture(tk.value(1).map(lambda _: 1 / 0), stream)
        with pytest.raises(ZeroDivisionError):
            future.submit()
        assert future.state == "complete"
        assert isinstance(future.exception(), ZeroDivisionError)


async def _awaited(future):
    return await future


def test_an_error_in_the_rest_of_a_chain_is_kept(cpu, gate):
    with cpu.stream() as stream:
        future = split(gate).map(lambda _: 1 / 0).async_on(stream)
        gate.set()
        assert isinstance(future.exception(60), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            future.result()
        with pytest.raises(ZeroDivisionError):
            asyncio.run(_awaited(future))


def test_a_fault_names_the_op_and_what_is_unfinished(cpu, gate):
    @tk.kernel
    def add(y: tk.InOut):
        y.store(y.load() + 1)

    with cpu.stream() as stream:
        x = api.zeros(64).sync_on(stream)
        held(gate).named("gated").async_on(stream)
        first = add(x.partition(64)).async_on(stream)
        lost = failing(KeyError("lost")).named("loser").async_on(stream)
        for _ in range(3):
            add(x.partition(64)).async_on(stream)
        gate.set()
        with pytest.raises(DeviceError, match="KeyError: 'lost'") as caught:
            lost.result(60)
        assert caught.value.unfinished == ("loser", "kernel add (3 times)")
        notes = "\n".join(caught.value.__notes__)
        assert "oldest first: loser, kernel add" in notes
        assert "in loser, built at" in notes
        assert first.result(60)
        assert not caught.value.lost


def test_work_of_one_submission_is_counted(cpu, gate):
    with cpu.stream() as stream:
        stream.synchronize()

        def many(ctx):
            ctx.device.driver.submit(ctx.stream.handle, gate.wait)
            for _ in range(1000):
                ctx.stream.submitted("step")
            ctx.stream.submitted("end")
            return tk.value(None)

        future = tk.with_context(many).async_on(stream)
        assert stream.unfinished() == ("step (1000 times)", "end")
        for i in range(1000):
            stream.submitted(f"{i}")
        assert stream.unfinished()[:3] == ("step (23 times)", "end", "0")
        gate.set()
        future.result(60)
        stream.synchronize()
        assert stream.unfinished() == ()


def test_shared_ops_of_two_futures(cpu, gate):
    """One waits for what the other runs, both from the callback thread."""
    shared = split(gate).shared()
    with cpu.stream() as one, cpu.stream() as two:
        futures = [held(gate).then(lambda _: shared).async_on(stream) for stream in (one, two)]
        futures += [api.ones(1).to_host().then(lambda _: shared).async_on(stream) for stream in (one, two)]
        gate.set()
        assert [future.result(60) for future in futures] == [6] * 4


@pytest.mark.parametrize(
    "timeout_s", [float("inf"), 1e300, 10**400, np.float64("inf"), 9_223_372_037, 60, np.float32(60)], ids=lambda it: str(it)[:9]
)
def test_any_timeout_is_a_timeout(cpu, gate, timeout_s):
    with cpu.stream() as stream:
        whole, chain = held(gate, 1).async_on(stream), split(gate).async_on(stream)
        threading.Timer(0.02, gate.set).start()
        assert chain.result(timeout_s) == 6
        assert whole.result(timeout_s) == 1
        assert whole.exception(timeout_s) is None
        with cpu.event() as event:
            assert event.record(stream).synchronize(timeout_s)


@pytest.mark.parametrize("timeout_s", [-1, -(10**400), float("-inf"), 0], ids=lambda it: str(it)[:9])
def test_less_than_no_time_is_none(cpu, gate, timeout_s):
    with cpu.stream() as stream:
        future = held(gate, 1).async_on(stream)
        with pytest.raises(TimeoutError, match="has not finished within"):
            future.result(timeout_s)
        gate.set()
        assert future.result() == 1
        assert future.result(timeout_s) == 1


@pytest.mark.parametrize(
    ("timeout_s", "kind"), [(float("nan"), ValueError), ("1", TypeError), (True, TypeError), ([1], TypeError), (1j, TypeError)]
)
def test_what_is_no_timeout_leaves_the_future_as_it_was(cpu, gate, timeout_s, kind):
    with cpu.stream() as stream:
        future = held(gate, 1).async_on(stream)
        for wait in (future.result, future.exception, cpu.event().synchronize):
            with pytest.raises(kind, match="timeout_s is"):
                wait(timeout_s)
        assert future.state == "executing"
        gate.set()
        assert future.result() == 1
        assert future.exception() is None


def test_a_done_callback_of_a_finished_future_that_fails_is_logged(cpu, caplog):
    with cpu.stream() as stream:
        future = tk.value(1).async_on(stream)
        assert future.result() == 1
        future.add_done_callback(lambda future: 1 / 0)
    assert "a callback of <DeviceFuture of Value" in caplog.text
    assert "ZeroDivisionError" in caplog.text
