"""Ops: nothing happens until they run, they run once, and they combine."""

import asyncio
import gc
import threading
import time
import warnings

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


class Counted(tk.DeviceOp):
    """An op of one's own that counts its runs."""

    def __init__(self, result=None, error=None):
        self.runs, self.result, self.error = 0, result, error

    def execute(self, ctx):
        self.runs += 1
        if self.error:
            raise self.error
        return self.result


def test_building_does_nothing(device):
    op = Counted(1)
    made = tk.zip(op, tk.value(2)).apply(lambda a, b: tk.value(a + b))
    assert op.runs == 0
    assert made.sync() == 3
    assert op.runs == 1


def test_an_op_runs_at_most_once(device):
    op = Counted(1)
    assert op.sync() == 1
    with pytest.raises(ValueError, match=r"Counted has already run: an op runs at most once\. op\.shared\(\) makes one"):
        op.sync()
    assert op.runs == 1


def test_an_op_that_failed_is_spent(device):
    op = Counted(error=KeyError("lost"))
    with pytest.raises(KeyError):
        op.sync()
    with pytest.raises(ValueError, match="already run"):
        op.sync()


def test_shared_runs_once_for_all(device):
    op = Counted(5)
    shared = op.shared()
    assert tk.zip(shared, shared.map(lambda x: x + 1)).sync() == (5, 6)
    assert shared.sync() == 5
    assert op.runs == 1


def test_shared_keeps_the_error_too(device):
    op = Counted(error=KeyError("lost"))
    shared = op.shared()
    for _ in range(2):
        with pytest.raises(KeyError, match="lost"):
            shared.sync()
    assert op.runs == 1


def test_then_gets_one_value_and_apply_the_elements(device):
    pair = tk.zip(tk.value(1), tk.value(2))
    assert pair.then(lambda both: tk.value(both)).sync() == (1, 2)
    assert tk.zip(1, 2).apply(lambda a, b: tk.value(a - b)).sync() == -1
    with pytest.raises(TypeError, match="apply: Value gave int, not a tuple"):
        tk.value(1).apply(lambda a: a).sync()


def test_then_wants_an_op_and_map_does_not(device):
    with pytest.raises(TypeError, match=r"the function given to AndThen returned int, not an op; return tk\.value"):
        tk.value(1).then(lambda x: x).sync()
    with pytest.raises(TypeError, match=r"the function given to Map returned an op, Value; use \.then"):
        tk.value(1).map(tk.value).sync()


def test_errors_short_circuit_and_say_where(device):
    called = []
    op = Counted(error=KeyError("lost")).then(called.append)
    with pytest.raises(KeyError) as caught:
        op.sync()
    assert not called
    assert any("AndThen(Counted)" in note and __file__ in note for note in caught.value.__notes__)


def test_first_and_last(device):
    assert tk.zip(1, 2, 3).first().sync() == 1
    assert tk.zip(1, 2, 3).last().sync() == 3
    with pytest.raises(TypeError, match="first: Value gave int, not a tuple"):
        tk.value(1).first().sync()


def test_chained_ops_share_a_stream(device):
    streams = []

    def note(value):
        return tk.with_context(lambda ctx: (streams.append(ctx.stream), tk.value(value))[1])

    tk.zip(note(1), note(2)).then(note).then(note).sync()
    note(3).sync()
    assert len(set(streams[:4])) == 1
    assert streams[4] is not streams[0], "the pool goes round"


def test_with_context_knows_where_it_runs(device):
    with device.stream() as stream:
        ctx = tk.with_context(tk.value).sync_on(stream)
    assert ctx.device is device
    assert ctx.stream is stream


def test_a_closure_sees_a_host_value_only_when_it_is_there(device):
    """The chain is split after the copy; the same for every way to run it."""

    def chain():
        return (
            api.arange(1000).to_host().then(lambda array: api.from_host(array * 2)).to_host().map(lambda array: int(array.sum()))
        )

    expected = 999 * 1000
    assert chain().sync() == expected
    with device.stream() as stream:
        assert chain().async_on(stream).result(timeout_s=60) == expected

    async def main():
        return await asyncio.gather(chain(), chain(), chain().run())

    assert asyncio.run(main()) == [expected] * 3


def test_running_inside_a_closure_is_refused(device):
    with pytest.raises(RuntimeError, match="cannot run while .* is being submitted by the same thread"):
        tk.value(1).then(lambda x: tk.value(tk.value(2).sync())).sync()
    assert tk.value(1).sync() == 1, "and the rule is off again"


def test_dropping_an_op_warns_with_the_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api.zeros(3).map(str)
        gc.collect()
    messages = [str(w.message) for w in caught if w.category is tk.UnusedOpWarning]
    assert len(messages) == 1, "the parts of an op do not warn for themselves"
    assert "Map(zeros), built at" in messages[0]
    assert __file__ in messages[0]
    assert "was never run: use .sync(), .async_on(stream) or await" in messages[0]


def test_an_op_is_no_value():
    op = api.zeros(3)
    with pytest.raises(TypeError, match=r"has no truth value\. Run it with \.sync\(\) or await"):
        bool(op)
    with pytest.raises(TypeError, match="cannot be iterated over"):
        list(op)
    with pytest.raises(TypeError, match=r"it is no array\. Use \.to_host\(\)\.sync\(\)"):
        np.asarray(op)
    with pytest.raises(AttributeError, match="does not know the shape and dtype of its result before it has run"):
        _ = tk.value(1).shape
    op.sync()


def test_a_future_is_idle_executing_complete(device):
    with device.stream() as stream:
        gate = threading.Event()
        if device.kind == "cpu":
            device.driver.submit(stream.handle, gate.wait)
        future = api.zeros(3).async_on(stream)
        if device.kind == "cpu":
            assert future.state == "executing"
            assert not future.done()
            with pytest.raises(TimeoutError, match=r"zeros has not finished within 0\.01 s"):
                future.result(timeout_s=0.01)
            gate.set()
        assert future.result().shape == (3,)
        assert future.state == "complete"
        assert future.exception() is None


def test_done_callbacks(device):
    with device.stream() as stream:
        called = threading.Event()
        future = api.zeros(3).async_on(stream)
        future.add_done_callback(lambda f: called.set() if f is future else None)
        assert called.wait(60)


def test_schedule_asks_the_policy(device):
    policy = tk.SingleStream(device)
    assert api.zeros(3).schedule(policy).stream is policy.next_stream()


def test_the_device_of_an_op_is_that_of_its_tensors(device):
    x = api.zeros(3).sync()
    copy, pair = x.dup(), tk.zip(tk.value(1), x.dup().map(str))
    assert copy.device is device
    assert pair.device is device
    tk.zip(copy, pair).sync()
    other = tk.Device("cpu:0")
    if other is not device:
        op = x.dup()
        with pytest.raises(ValueError, match="is not on Device"):
            op.sync_on(other.stream())
        op.sync()


def test_gather(device):
    async def main():
        x = await api.ones(1000)
        return await asyncio.gather(*(x.dup().to_host() for _ in range(20)))

    assert all((r == 1).all() for r in asyncio.run(main()))


def test_a_cancelled_task_lets_the_work_finish():
    device, gate, made = tk.Device("cpu"), threading.Event(), []

    def hold(tensor):
        made.append(tensor)
        return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, gate.wait)))

    async def main():
        x = await api.ones(1000)
        task = asyncio.create_task(x.dup().then(hold).run())
        while not made:  # it was submitted
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        return await made[0].to_host()

    with tk.use_device(device):
        assert (asyncio.run(main()) == 1).all()


def test_a_chain_of_thousands(device):
    """Deeper than Python's stack, for every way to run it and for what is said about it."""

    def chain():
        op = tk.value(0)
        for _ in range(3000):
            op = op.then(lambda x: tk.value(x + 1))
        return op

    assert chain().sync() == 3000
    op = chain()
    assert repr(op).endswith("...)" + ")" * 12)
    assert op.device is None

    async def main():
        return await op

    assert asyncio.run(main()) == 3000


def split(gate_result):
    """An op that the host has to wait for in the middle."""
    return api.arange(10).to_host().map(lambda array: int(array.sum()) + gate_result)


def test_a_cancelled_waiter_of_a_shared_op_leaves_nobody_behind():
    device, gate = tk.Device("cpu"), threading.Event()
    held = []

    def hold(tensor):
        held.append(tensor)
        return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, gate.wait)))

    async def main():
        shared = api.zeros(2).then(hold).then(lambda _: split(1)).map(lambda total: total * 2).shared()
        task = asyncio.create_task(shared.run())
        while not held:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        return await asyncio.wait_for(shared.run(), 60), shared.sync()

    with tk.use_device(device):
        assert asyncio.run(main()) == (92, 92)


def test_a_shared_op_in_two_futures_that_split(device):
    shared = split(0).shared()
    with device.stream() as one, device.stream() as two:
        futures = [api.ones(2).to_host().then(lambda _: shared).async_on(stream) for stream in (one, two)]
        assert [future.result(timeout_s=60) for future in futures] == [45, 45]
        called = threading.Event()
        one.add_callback(lambda *_: called.set())
        assert called.wait(60), "the callback thread goes on"


def test_a_shared_op_that_is_part_of_itself(device):
    ring = []
    shared = tk.value(1).then(lambda _: ring[0]).shared()
    ring.append(shared)
    with pytest.raises(ValueError, match="is part of itself"):
        shared.sync()


def test_the_error_of_a_shared_op_is_everybodys(device):
    def lost(_):
        raise KeyError("lost")

    shared = split(0).then(lost).shared()
    for _ in range(3):
        with pytest.raises(KeyError, match="lost"):
            shared.sync()


def test_a_job_that_was_not_started_is_everybodys(device):
    """Whoever should have done it was cancelled before: the next who needs the result does it."""
    from tilekit.ops.execution import HostJob, Run

    class Compiled(tk.DeviceOp):
        def steps(self, ctx):
            job = HostJob(lambda: 5)
            yield [job]
            return job.result()

    shared = Compiled().shared()
    ctx = tk.ExecutionContext(device, device.policy.next_stream())
    first = Run(shared, ctx)
    (job,) = first.advance()
    first.close()  # as a cancelled task does
    assert not job.started
    assert shared.sync() == 5
    assert shared.sync() == 5


@pytest.mark.parametrize("nested", [False, True])
def test_parts_side_by_side_keep_their_order_while_one_is_compiled(device, nested):
    """The first time as ever after: else what they do to the same memory would depend on what was compiled already."""
    from tilekit.ops.execution import HostJob

    class Compiled(tk.DeviceOp):
        def __init__(self, op, fails=False):
            self.op, self.fails = op, fails
            op.consumed()

        def steps(self, ctx):
            def work():
                time.sleep(0.02)
                if self.fails:
                    raise KeyError("compiler")

            job = HostJob(work, prepares=True)
            yield [job]
            job.result()
            return (yield self.op.start(ctx))

    async def run(y, fails=False):
        first = Compiled(y.fill(2.0), fails).then(lambda y: Compiled(y.fill(3.0)))
        if nested:
            first = tk.zip(tk.value(1), first, parallel=True)
        return await tk.zip(first, y.to_host(), Compiled(y.fill(4.0)), parallel=True)

    y = api.ones(8).on(device).sync()
    assert asyncio.run(run(y))[1].tolist() == [3.0] * 8
    assert y.to_host().sync().tolist() == [4.0] * 8
    with pytest.raises(KeyError, match="compiler"):
        asyncio.run(run(y, fails=True))


def test_an_interrupted_op_does_not_run_again(device):
    class Interrupted(tk.DeviceOp):
        runs = 0

        def execute(self, ctx):
            type(self).runs += 1
            raise KeyboardInterrupt

    shared = Interrupted().shared()
    with pytest.raises(KeyboardInterrupt):
        shared.sync()
    with pytest.raises(RuntimeError, match="was interrupted, and cannot go on"):
        shared.sync()
    assert Interrupted.runs == 1


def test_enumerated_numbers_are_scalars(device):
    import enum

    class Factor(enum.IntEnum):
        THREE = 3

    @tk.kernel
    def scale(y: tk.InOut, g: int):
        y.store(y.load() * g)

    x = api.ones(64, tk.int32).sync()
    scale(x.partition(32), Factor.THREE).sync()
    assert x.to_host().sync().tolist() == [3] * 64


class Elsewhere:
    """An array of a library that has devices of its own."""

    device, shape, dtype = "cuda:0", (2,), np.dtype("float32")


@pytest.mark.parametrize("value", [np.arange(3.0), np.float32(2), Elsewhere()], ids=["array", "scalar", "guest"])
def test_values_of_other_libraries_are_values(device, value):
    """They may call something a device that is none of tilekit's: NumPy's arrays say "cpu"."""
    stream = device.stream()
    assert tk.value(value).device is None
    assert tk.value(value).sync() is value
    assert tk.value(value).sync_on(stream) is value
    assert tk.value(value).schedule(device.policy).result() is value
    assert asyncio.run(tk.value(value).run()) is value
    assert tk.zip(value, api.zeros(3)).sync()[0] is value
    assert tk.zip(api.zeros(3), value).sync()[1] is value
    assert tk.join_all([value, value]).sync()[1] is value
    assert api.zeros(3).then(lambda _: tk.value(value)).sync() is value
    assert tk.host_fn(lambda it: it, value).sync() is value


@pytest.mark.parametrize("ops", [5, None, api.meta], ids=["number", "None", "function"])
def test_join_all_takes_a_list(ops):
    with pytest.raises(TypeError, match=r"join_all takes one list of ops \(or any iterable\), not .*: join_all\(\[op, op\]\)"):
        tk.join_all(ops)
    gc.collect()  # nothing is left that complains


def test_join_all_of_one_op_asks_for_a_list():
    op = api.zeros(3)
    with pytest.raises(TypeError, match="join_all takes one list of ops"):
        tk.join_all(op)
    op.sync()
