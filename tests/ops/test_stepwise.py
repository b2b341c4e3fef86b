"""`tk.operation`: ops written as generators."""

import asyncio
import gc
import warnings

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu import driver as cpu
from tilekit._runtime.device import Device
from tilekit.ops.stepwise import Stepwise


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


@tk.kernel
def add(y: tk.Out, a: tk.In, b: tk.In):
    y.store(tk.load_tile_like(a, y) + tk.load_tile_like(b, y))


@tk.operation
def total(*tensors):
    """The sum of some tensors of 64 elements."""
    result = yield api.zeros(64)
    for tensor in tensors:
        y, *_ = yield add(api.empty(64).partition(32), result, tensor)
        result = y.unpartition()
    return result


def test_each_step_has_the_results_of_those_before(device):
    a, b = api.full(64, 1.0).sync(), api.full(64, 2.5).sync()
    assert (total(a, b, a).to_host().sync() == 4.5).all()


def test_nothing_happens_before_it_is_run(device):
    begun = []

    @tk.operation
    def step():
        begun.append(True)
        return (yield tk.value(1))

    op = step()
    assert not begun
    assert op.sync() == 1 and begun == [True]
    with pytest.raises(ValueError, match="step.*has already run"):
        op.sync()
    assert begun == [True]


def test_a_call_that_is_never_run_warns_with_its_line(device):
    def forget():
        total()
        gc.collect()

    with pytest.warns(tk.UnusedOpWarning, match=r"total, built at .*test_stepwise\.py:\d+, was never run"):
        forget()


@pytest.mark.parametrize("way", ["sync", "sync_on", "async_on", "await", "run"])
def test_every_way_to_run_it(device, way):
    op = total(api.full(64, 3.0).sync())

    async def awaited():
        return await op

    with device.stream() as stream:
        ways = {
            "sync": op.sync,
            "sync_on": lambda: op.sync_on(stream),
            "async_on": lambda: op.async_on(stream).result(60),
            "await": lambda: asyncio.run(awaited()),
            "run": lambda: asyncio.run(op.run()),
        }
        made = ways[way]()
    assert (made.to_host().sync() == 3).all()


def test_its_steps_share_the_stream(device):
    @tk.operation
    def streams():
        seen = []
        for _ in range(3):
            stream = yield tk.with_context(lambda ctx: tk.value(ctx.stream))
            seen += [stream]
        return seen

    with device.stream() as stream:
        assert streams().sync_on(stream) == [stream] * 3


def test_host_values_have_arrived(device):
    @tk.operation
    def until_large(x):
        rounds = 0
        while (yield x.to_host())[0] < 100:
            yield double(x.partition(32))
            rounds += 1
        host, tensor = yield tk.zip(x.to_host(), tk.value(x))
        assert isinstance(host, np.ndarray) and tensor is x
        return rounds, host[0]

    assert until_large(api.ones(64).sync()).sync() == (7, 128)


def test_it_is_part_of_other_ops(device):
    @tk.operation
    def outer(x):
        one, two = yield tk.zip(total(x), total(x, x))
        return (yield total(one, two))

    op = outer(api.ones(64).sync()).then(lambda t: t.to_host()).map(lambda array: array[0])
    assert op.sync() == 3


def test_ops_as_arguments_are_for_the_function_to_yield(device):
    @tk.operation
    def both(a, *, b):
        return ((yield a), (yield b))

    op = both(tk.value(1), b=tk.value(2).named("two"))
    assert repr(op) == "both(Value, two)"
    assert op.sync() == (1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the op that it is part of answers for an argument
        both(tk.value(1), b=api.ones(1)).consumed()
        gc.collect()


def test_it_runs_where_its_arguments_are(device):
    other = Device.of_driver(cpu.discover(2)[1])
    x = api.ones(64).on(other).sync()
    assert total(x, x).sync().device is other
    of_op = total(api.ones(64).on(other))
    assert of_op.device is other
    of_op.consumed()
    other.synchronize()


def test_an_error_is_raised_at_the_yield(device):
    cleaned = []

    @tk.operation
    def recovering(x):
        try:
            yield x.partition(32).device_operation().map(lambda _: 1 / 0)
        except ZeroDivisionError:
            cleaned.append("caught")
        try:
            yield tk.value(None).then(lambda _: 3)
        except TypeError as error:
            cleaned.append("caught" if "returned int, not an op" in str(error) else error)
        try:
            yield double(x.partition(32)).map(lambda _: {}["missing"])
        finally:
            cleaned.append("cleaned")

    op = recovering(api.ones(64).sync())
    with pytest.raises(KeyError, match="missing") as info:
        op.sync()
    assert cleaned == ["caught", "caught", "cleaned"]
    assert any(note.startswith("in recovering, built at") and "test_stepwise.py" in note for note in info.value.__notes__)


def test_what_is_no_op_is_refused_at_the_yield(device):
    caught = []

    @tk.operation
    def wrong():
        try:
            yield 3
        except TypeError as error:
            caught.append(str(error))
        return (yield tk.value("went on"))

    assert wrong().sync() == "went on"
    assert caught == ["wrong yielded int, not an op: what is no op needs no yield, and is returned by return"]


def test_an_op_is_not_returned(device):
    @tk.operation
    def wrong():
        yield tk.value(1)
        return tk.value(2)

    with pytest.raises(TypeError, match=r"wrong returned an op, Value; return what it gives: return \(yield op\)"):
        wrong().sync()


def test_a_function_without_yield_is_refused():
    with pytest.raises(TypeError, match="makes ops of functions that yield some; plain has no yield"):

        @tk.operation
        def plain():
            return 1


def test_it_does_not_run_ops_itself(device):
    @tk.operation
    def wrong():
        yield tk.value(1)
        tk.value(2).sync()

    with pytest.raises(RuntimeError, match="Return the op from the closure"):
        wrong().sync()


def test_any_depth(device):
    @tk.operation
    def down(n):
        below = (yield down(n - 1).map(lambda x: x)) if n else 0
        return below + 1

    assert down(3000).sync() == 3001


def test_a_cancelled_task_ends_it(device):
    ended = []

    @tk.operation
    def waiting(x):
        try:
            while True:
                yield x.to_host()
        finally:
            ended.append(True)

    async def main():
        task = asyncio.create_task(waiting(api.ones(64).sync()).run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    assert ended == [True]


def test_a_class_of_ones_own_defines_begin(device):
    with pytest.raises(NotImplementedError, match=r"Stepwise does not define begin\(ctx\)"):
        Stepwise().sync()
