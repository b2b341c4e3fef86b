"""`host_fn`: called when the work before it is done, in the thread that waits; it may run ops, closures may not."""

import asyncio
import threading

import numpy as np
import pytest
from held_up import held, split

import tilekit as tk
from tilekit import api
from tilekit._runtime.context import submitting
from tilekit.ops.execution import called_on_host


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


def read(tensor):
    """What is in it now, by an op of its own."""
    return tensor.to_host().sync().tolist()


def run_await(op, stream):
    async def main():
        return await op

    return asyncio.run(main())


WAYS = {
    "sync": lambda op, stream: op.sync(),
    "sync_on": lambda op, stream: op.sync_on(stream),
    "async_on": lambda op, stream: op.async_on(stream).result(60),
    "await": run_await,
    "run": lambda op, stream: asyncio.run(op.run()),
    "future": lambda op, stream: run_await(op.into_future(), stream),
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
def test_it_runs_ops_after_what_came_before_it(device, way):
    x = api.ones(64).sync()

    def look(tiles):
        before = read(x)
        double(tiles).sync()
        return before[0], read(x)[0]

    with device.stream() as stream:
        op = (
            double(x.partition(32))
            .then(lambda tiles: tk.host_fn(look, tiles[0]))
            .then(lambda seen: double(x.partition(32)).map(lambda _: seen))
        )
        assert WAYS[way](op, stream) == (2, 4)
    assert read(x) == [8] * 64


@every_way
def test_it_runs_ops_on_the_stream_that_it_is_in(device, way):
    with device.stream() as stream:
        inner = tk.with_context(
            lambda ctx: tk.host_fn(lambda: api.full(3, 2.0).to_host().map(lambda array: array.sum()).sync_on(ctx.stream))
        )
        assert WAYS[way](api.ones(3).then(lambda _: inner), stream) == 6
        assert stream.query()


@every_way
def test_it_runs_ops_that_run_host_functions(device, way):
    def count(n):
        return 0 if n == 0 else 1 + tk.zip(api.ones(1), tk.host_fn(count, n - 1), parallel=True).last().sync()

    with device.stream() as stream:
        assert WAYS[way](tk.host_fn(count, 5), stream) == 5


@every_way
def test_it_submits_without_waiting(device, way):
    with device.stream() as stream, device.stream() as other:
        future = WAYS[way](tk.host_fn(lambda: api.ones(3).async_on(other)), stream)
        assert read(future.result(60)) == [1, 1, 1]


def test_it_runs_an_event_loop(device):
    async def main():
        first, second = await asyncio.gather(api.ones(2).to_host(), api.full(2, 2.0).to_host())
        return (first + second).tolist()

    assert api.ones(1).then(lambda _: tk.host_fn(lambda: asyncio.run(main()))).sync() == [3, 3]


@every_way
def test_closures_still_run_none(device, way):
    """Neither those of the ops that a host function runs, nor those that come after it."""
    found = []

    def closure(value):
        with pytest.raises(RuntimeError, match=r"cannot run while .* is being submitted by the same thread: functions given to"):
            api.zeros(3).sync()
        with pytest.raises(RuntimeError, match=r"run it in a tk\.host_fn, which is called when the work before it is done"):
            found.append(api.zeros(3).async_on(device.policy.next_stream()))
        return tk.value(value + 1)

    def look(value):
        assert submitting.submission is None
        return tk.value(value).then(closure).sync()

    with device.stream() as stream:
        op = tk.value(1).then(closure).then(lambda value: tk.host_fn(look, value)).then(closure).map(lambda value: value + 1)
        assert WAYS[way](op, stream) == 5
    assert submitting.submission is None
    assert found == []


@every_way
def test_what_it_raises_is_the_ops_error(device, way):
    def fail():
        api.ones(3).map(lambda _: 1 / 0).sync()

    with device.stream() as stream:
        with pytest.raises(ZeroDivisionError) as caught:
            WAYS[way](tk.host_fn(fail).named("checkpoint"), stream)
        assert any("in checkpoint, built at" in note for note in caught.value.__notes__)
        assert submitting.submission is None
        mended = tk.host_fn(fail).or_else(lambda error: tk.host_fn(lambda: api.ones(3).map(lambda x: x.shape).sync()))
        assert WAYS[way](mended, stream) == (3,)


def test_it_may_not_run_what_it_is_in(device):
    def again():
        with pytest.raises(ValueError, match="has already run: an op runs at most once"):
            op.sync()
        with pytest.raises(ValueError, match="is part of itself: it would wait for its own result"):
            shared.sync()
        return "done"

    op = tk.host_fn(again)
    shared = op.shared()
    assert shared.sync() == "done"


def test_a_shared_one_that_waits_for_the_callback_thread(cpu, gate):
    """Another thread is in it, and waits for what the callback thread does; the callback thread needs its result meanwhile."""
    tried, inside, results = threading.Event(), threading.Event(), []
    with cpu.stream() as stream, cpu.stream() as other, cpu.stream() as third:

        def look():
            inside.set()
            assert tried.wait(30)
            return split(gate).async_on(third).result(60)

        shared = tk.host_fn(look).shared()
        thread = threading.Thread(target=lambda: results.append(shared.sync_on(stream)))
        thread.start()
        assert inside.wait(30)
        future = api.ones(1).to_host().then(lambda _: (tried.set(), shared)[1]).async_on(other)
        assert tried.wait(30)
        gate.set()
        assert future.result(60) == 6
        thread.join(60)
    assert results == [6]


def test_threads_that_need_the_same_shared_op_wait_for_it(device):
    may_end, calls, results = threading.Event(), [], []

    def look():
        calls.append(threading.get_ident())
        assert may_end.wait(30)
        return 7

    shared = tk.host_fn(look).shared()

    async def main():
        return await shared

    waiters = [shared.sync, lambda: asyncio.run(main()), lambda: shared.async_on(device.policy.next_stream()).result(60)] * 2
    threads = [threading.Thread(target=lambda wait=wait: results.append(wait())) for wait in waiters]
    for thread in threads:
        thread.start()
    while not calls:
        threading.Event().wait(0.001)
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert results == [7] * 6
    assert len(calls) == 1


def test_a_result_that_the_callback_thread_would_wait_for_itself_for_is_refused(cpu, gate):
    """The rest of a split op is submitted on that thread: waiting for it there would never end."""
    errors, told = [], threading.Event()
    with cpu.stream() as stream, cpu.stream() as other:

        def look(_):
            inner = split(gate).async_on(other)
            try:
                inner.result()
            except RuntimeError as error:
                errors.append(str(error))
            assert api.ones(3).to_host().map(sum).sync() == 3  # the way out
            inner.add_done_callback(lambda future: told.set())
            gate.set()
            return tk.value("went on")

        latch = threading.Event()
        future = held(latch).then(lambda _: tk.host_fn(look, None)).async_on(stream)
        latch.set()
        assert future.result(60).sync() == "went on"
        assert told.wait(30)
    (message,) = errors
    assert "its result cannot be waited for on tilekit's callback thread, which has to submit the rest of it" in message
    assert "run the op with .sync(), or add_done_callback(f) to the future" in message


def test_functions_that_steps_call_on_the_host(device):
    """For ops of other kinds that have such functions; afterwards the submission is what it was, whatever happens."""

    class Reporting(tk.DeviceOp):
        def steps(self, ctx):
            yield [(ctx.stream, ctx.stream.mark())]
            mine = submitting.submission
            total = called_on_host(lambda k: np.asarray(api.full(3, k).to_host().sync()).sum(), 2.0)
            with pytest.raises(LookupError):
                called_on_host({}.__getitem__, "missing")
            assert submitting.submission is mine is not None
            return total

    assert Reporting().sync() == 6
