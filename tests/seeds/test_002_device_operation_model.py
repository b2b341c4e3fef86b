"""The seeds' chapter on the DeviceOperation model, in its order: recipes, kitchens, and how one hears that the meal is ready."""

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, ops
from tilekit.ops import combinators as nodes

N, TILE = 1000, 256


@tk.kernel
def vecadd(c: tk.Out, a: tk.In, b: tk.In):
    c.store(tk.load_tile_like(a, c) + tk.load_tile_like(b, c))


@tk.kernel
def relu(y: tk.InOut):
    y.store(tk.maximum(y.load(), 0.0))


def inputs():
    return api.arange(N, dtype=tk.float32).sync(), api.full(N, 2.0).sync(), api.zeros(N).sync()


# Why lazy operations?


RAW = """
import numpy as np
from numba import cuda

import tilekit as tk
from tilekit import api

@cuda.jit
def vecadd(c: tk.Out, a: tk.In, b: tk.In):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]

n = 1000
a, b, c = api.arange(n, dtype=tk.float32).sync(), api.full(n, 2.0).sync(), api.zeros(n).sync()
op = tk.wrap(vecadd, tk.LaunchConfig.for_num_elems(n))(c, a, b)
assert isinstance(op, tk.DeviceOperation)
"""


def run_raw(device, rest):
    """Launch a raw kernel, in a process of its own: on the CPU device numba's simulator runs it, which is chosen before numba
    is imported.
    """
    environment = os.environ | ({"NUMBA_ENABLE_CUDASIM": "1"} if device.kind == "cpu" else {})
    program = f"{RAW}{rest}\nnp.testing.assert_array_equal(c.to_host().sync(), np.arange(n, dtype=np.float32) + 2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_cuda_launch_takes_a_stream_at_once(device):
    """The eager form: a kernel, a configuration, arguments, and the stream, chosen where it is called."""
    run_raw(device, "stream = tk.default_device().stream(); op.async_on(stream); stream.synchronize()")


def test_cuda_launch_async_leaves_the_stream_open(device):
    """The lazy form: the same without a stream gives an op, which has done nothing yet."""
    run_raw(device, "assert not c.to_host().sync().any(); op.sync()")


def test_describing_work_is_apart_from_scheduling_it(device, turns, streams):
    """Ops go through functions and collections, and only whoever runs them says where."""

    def make(number):
        return api.full(N, number).to_host()

    recipes = {number: make(number) for number in range(4)}
    assert turns.count == 0
    results = [recipes[0].sync(), recipes[1].sync_on(streams[0]), *tk.zip(recipes[2], recipes[3]).sync()]
    assert [result[0] for result in results] == [0, 1, 2, 3]


def test_the_lifecycle_of_a_device_operation(device, latch, streams):
    """Recipe, choice of a stream, submission with a callback behind it, result: the four phases of the seeds' picture."""
    asked, called = [], threading.Event()

    class Policy:
        def next_stream(self):
            asked.append(streams[0])
            return streams[0]

    op = api.ones(N).to_host()  # 1: a recipe
    latch.hold(streams[0])
    future = op.schedule(Policy())  # 2: the policy picks a stream; 3: the work is submitted
    assert asked == [streams[0]]
    future.add_done_callback(lambda _: called.set())
    if latch.works:
        assert future.state == "executing"
        assert not called.is_set()
    latch.open()
    assert called.wait(60)  # 4: it calls back, and delivers
    assert (future.result() == 1).all()


# Recipes and kitchens


def test_a_recipe_can_be_stapled_to_another(device):
    """Two recipes make a longer one; neither knows its kitchen."""

    def upload(data):
        return api.from_host(data)

    def rectify(tensor):
        return relu(tensor.partition(TILE)).first().unpartition()

    data = np.linspace(-1, 1, N, dtype=np.float32)
    meal = upload(data).then(rectify).to_host()
    np.testing.assert_array_equal(meal.sync(), np.maximum(data, 0))


def test_a_function_that_returns_a_recipe_with_a_gemm(device):
    """Upload, matrix product, activation: one function makes the recipe, its caller runs it."""
    mma = tk.mma
    bm, bn, bk = tk.generics("bm bn bk")

    @tk.kernel
    def gemm(c: tk.Out[bm, bn], a: tk.In[-1, -1], b: tk.In[-1, -1]):
        acc = tk.zeros((bm, bn), tk.float32)
        for k in range(a.shape[1] // bk):
            acc = mma(tk.load(a, (tk.bid(0), k), (bm, bk)), tk.load(b, (k, tk.bid(1)), (bk, bn)), acc)
        c.store(acc)

    def recipe(a, b):
        product = gemm(api.zeros((64, 64)).partition((32, 32)), api.from_host(a), api.from_host(b)).generics(bk=32)
        return product.first().then(relu).first().unpartition().to_host()

    a, b = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    np.testing.assert_allclose(recipe(a, b).sync(), np.maximum(a @ b, 0), rtol=1e-2, atol=1e-2)


def test_the_chef_is_the_policy_and_the_kitchen_its_stream(device, streams, where):
    """The policy decides, once an op, which queue runs it."""

    class Chef:
        def next_stream(self):
            return streams[3]

    assert isinstance(Chef(), tk.SchedulingPolicy)
    assert where().schedule(Chef()).result(timeout_s=60) is streams[3]
    assert where().with_policy(Chef()).sync() is streams[3]


# The first async launch


def test_init_device_contexts(device):
    """The seeds' one-time set-up exists, and is not needed: it prepares devices and names the default one."""
    prepared = tk.init_device_contexts(0, 1)
    assert prepared == [tk.default_device()]
    assert isinstance(tk.global_policy(prepared[0]), tk.StreamPoolRoundRobin)
    with pytest.raises(ValueError, match="init_device_contexts"):
        tk.init_device_contexts(0, 1000)


def test_first_async_launch(device, turns):
    """A launch with its arguments is a recipe on the counter; `sync` cooks it."""
    a, b, c = inputs()
    before = turns.count
    op = vecadd(c.partition(TILE), a, b)
    assert turns.count == before
    op.sync()
    np.testing.assert_array_equal(c.to_host().sync(), np.arange(N, dtype=np.float32) + 2)


def test_a_launch_is_an_async_kernel_launch(device):
    """The op that a launch is has the seeds' name."""
    a, b, c = inputs()
    op = vecadd(c.partition(TILE), a, b)
    assert isinstance(op, ops.AsyncKernelLaunch)
    op.sync()


def test_launch_config_for_num_elems():
    """A configuration with enough blocks of threads for so many elements. (A tile kernel needs none.)"""
    config = tk.LaunchConfig.for_num_elems(1024)
    assert np.prod(config.grid) * np.prod(config.block) >= 1024


# What makes a DeviceOperation


class Answer(tk.DeviceOperation):
    """An op of one's own."""

    def __init__(self):
        self.ran_on = None

    def execute(self, ctx):
        self.ran_on = ctx
        return 42


def test_one_method_makes_a_device_operation(device):
    """`execute(ctx)` is all that an op of one's own must define; the rest of the algebra comes with it."""
    op = Answer()
    assert op.ran_on is None
    assert op.map(lambda x: x + 1).sync() == 43
    assert isinstance(op.ran_on, tk.ExecutionContext)

    async def main():
        return await Answer()

    assert asyncio.run(main()) == 42
    with pytest.raises(NotImplementedError, match=r"does not define execute\(ctx\)"):
        type("Empty", (tk.DeviceOperation,), {})().sync()


def test_output_is_what_the_operation_produces(device):
    """A launch gives back its arguments, a copy to the host an array, an allocation the tensor that owns the memory."""
    a, b, c = inputs()
    part = c.partition(TILE)
    assert vecadd(part, a, b).sync() == (part, a, b)
    assert isinstance(c.to_host().sync(), np.ndarray)
    assert isinstance(api.zeros(3).sync(), tk.Tensor)


def test_an_operation_moves_between_threads(device):
    """Built in one thread, run in another (the seeds' `Send`)."""
    op, results = api.ones(N).to_host(), []

    def run():
        with tk.use_device(device):
            results.append(op.sync())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert (results[0] == 1).all()


BUILDING_BLOCKS = {"AsyncKernelLaunch": ops, "Value": ops, "AndThen": nodes, "Zip": ops, "StreamOperation": ops}


@pytest.mark.parametrize("name", BUILDING_BLOCKS)
def test_building_blocks_have_their_names(name):
    """The types that pipelines are made of."""
    assert issubclass(getattr(BUILDING_BLOCKS[name], name), tk.DeviceOperation)


def test_building_blocks_come_from_their_functions():
    """And what makes them."""
    assert type(tk.value(1)) is ops.Value
    for op, kind in [
        (tk.value(1).and_then(tk.value), nodes.AndThen),
        (tk.zip(1, 2), ops.Zip),
        (tk.with_context(lambda ctx: tk.value(1)), ops.StreamOperation),
    ]:
        assert type(op) is kind
        op.consumed()  # not to be run


# The ExecutionContext


def test_execution_context_says_where(device, streams):
    """Device and stream, given to the op; the op makes neither."""
    ctx = tk.with_context(tk.value).sync_on(streams[1])
    assert (ctx.device, ctx.stream) == (device, streams[1])


def test_execution_context_has_the_driver_context(device):
    """The third thing it carries: the context that other libraries' calls need to be made in."""
    ctx = tk.with_context(tk.value).sync()
    if device.kind == "cuda":
        from cuda.bindings import driver

        found = []
        thread = threading.Thread(target=lambda: found.extend((ctx.context, driver.cuCtxGetCurrent()[1])))
        thread.start()
        thread.join()
        assert int(found[0]) == int(found[1]) != 0
    else:
        assert ctx.context is device.driver.context


def test_execution_context_allocates_in_stream_order(device, streams):
    """Memory taken in an op belongs to the stream that the op runs on."""
    storage = tk.with_context(lambda ctx: tk.value(ctx.allocate(4096))).sync_on(streams[0])
    assert storage.nbytes == 4096
    assert storage.device is device
    assert storage.last_write[0] is streams[0]


# Four ways to execute


def test_sync_blocks_and_waits_without_a_runtime(device):
    """No event loop is needed, and none is made."""
    assert (api.ones(N).to_host().sync() == 1).all()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_await_yields_and_resumes(device, latch):
    """The task is suspended while the device works; others go on."""

    async def main():
        tensor = await api.ones(N)
        future = tensor.to_host().into_future()
        latch.hold(future.stream)
        waiting = asyncio.ensure_future(future)
        for _ in range(3):
            await asyncio.sleep(0)
        if latch.works:
            assert not waiting.done()
        latch.open()
        return await waiting

    assert (asyncio.run(main()) == 1).all()


def test_sync_on_lets_you_choose_the_stream(device, streams, turns):
    """For order with other work on that stream. The policy is not asked."""
    a, b, c = inputs()
    before = turns.count
    vecadd(c.partition(TILE), a, b).sync_on(streams[2])
    assert turns.count == before
    assert streams[2].query()


def test_async_on_fires_and_forgets(device, streams):
    """Submitted to a stream and left alone; one wait at the end is enough. Not unsafe: memory and order are looked after."""
    a, b, c = inputs()
    d = api.zeros(N).sync()
    vecadd(c.partition(TILE), a, b).async_on(streams[0])
    vecadd(d.partition(TILE), c, b).async_on(streams[0])
    streams[0].synchronize()
    np.testing.assert_array_equal(d.to_host().sync(), np.arange(N, dtype=np.float32) + 4)


# Lifting host data with value()


@dataclass
class ModelConfig:
    dim: int
    layers: int


def test_value_lifts_host_data(device):
    """Any object becomes an op that does nothing and gives it back."""
    weights = [1.0] * 1024
    assert tk.value(weights).sync() is weights


def test_value_fits_a_configuration_into_a_zip(device):
    """Its use: both arms of a zip are ops."""
    data = np.arange(N, dtype=np.float32)
    device_buf, config = tk.zip(h2d(data), tk.value(ModelConfig(dim=64, layers=3))).sync()
    assert config == ModelConfig(64, 3)
    np.testing.assert_array_equal(device_buf.to_host().sync(), data)


# Talking to the stream with with_context


def h2d(host_data):
    """A copy to the device written by hand: allocate, copy, and give back what holds the memory."""

    def upload(ctx):
        storage = ctx.allocate(host_data.nbytes)
        ctx.device.driver.copy_from_host(storage.memory, 0, host_data, ctx.stream.handle)
        ctx.note((), (storage,))  # so that other streams wait for the copy
        return tk.value(tk.Tensor(storage, host_data.shape, host_data.dtype))

    return tk.with_context(upload)


def d2h(tensor):
    """A copy to the host by hand. What it gives can be read once the op is done."""

    def download(ctx):
        array = np.empty(tensor.shape, tensor.dtype)
        ctx.acquire((tensor.storage,), ())
        ctx.device.driver.copy_to_host(array, tensor.storage.memory, 0, ctx.stream.handle)
        ctx.note((tensor.storage,), ())
        return tk.value(array)

    return tk.with_context(download)


def zeros(shape):
    """Zeroed memory by hand."""

    def fill(ctx):
        tensor = tk.Tensor(ctx.allocate(4 * shape), (shape,), tk.float32)
        ctx.device.driver.fill(tensor.storage.memory, 0, tensor.nbytes, b"\0", ctx.stream.handle)
        ctx.note((), (tensor.storage,))
        return tk.value(tensor)

    return tk.with_context(fill)


def test_hand_written_h2d(device, streams):
    """`with_context` gives the stream to those who need it. The op is lazy like any other, and runs on either device."""
    data = np.arange(N, dtype=np.float32)
    np.testing.assert_array_equal(h2d(data).sync_on(streams[0]).to_host().sync(), data)


def test_hand_written_helpers_slot_into_chains(device):
    """h2d, d2h and zeros by hand, around a kernel."""
    data = np.arange(N, dtype=np.float32)
    chain = (
        tk.zip(h2d(data), zeros(N), h2d(data + 1))
        .apply(lambda a, c, b: vecadd(c.partition(TILE), a, b))
        .and_then(lambda arguments: d2h(arguments[0].unpartition()))
    )
    np.testing.assert_array_equal(chain.sync(), 2 * data + 1)


def test_hand_written_helpers_keep_the_order_across_streams(device, latch, streams):
    """What `acquire` and `note` are for: the kernel is late, and a copy elsewhere of what it writes waits."""
    data = np.arange(N, dtype=np.float32)
    tensor = h2d(data).sync_on(streams[0])
    latch.hold(streams[0])
    vecadd(tensor.partition(TILE), tensor, tensor).async_on(streams[0])
    copied = d2h(tensor).async_on(streams[1])
    latch.let_others_get_on()
    if latch.works:
        assert not copied.done()
    latch.open()
    np.testing.assert_array_equal(copied.result(timeout_s=60), 2 * data)


def test_the_inner_operation_runs_at_once_on_the_same_stream(device, streams, where):
    """What the closure returns runs where the closure was called."""
    outer, inner = tk.with_context(lambda ctx: where().map(lambda stream: (ctx.stream, stream))).sync_on(streams[0])
    assert outer is inner is streams[0]


def test_and_then_with_context(device, streams):
    """The same for the middle of a chain: result and context."""
    op = tk.value(20).and_then_with_context(lambda ctx, x: tk.value((x + 1, ctx.stream)))
    assert op.sync_on(streams[0]) == (21, streams[0])


# How the GPU tells Python that it is done


def test_a_device_future_has_three_states(device, latch, streams):
    """Idle until it is submitted, executing until the device has called back, then complete."""
    future = api.ones(N).to_host().with_policy(tk.SingleStream(streams[0])).into_future()
    assert future.state == "idle"
    latch.hold(streams[0])
    future.submit()
    if latch.works:
        assert future.state == "executing"
    latch.open()
    assert (future.result(timeout_s=60) == 1).all()
    assert future.state == "complete"


def test_the_first_step_submits_and_suspends(device, latch):
    """After its first step a task that awaits has submitted its work, and is not done."""

    async def main():
        tensor = await api.ones(N)
        future = tensor.to_host().into_future()
        latch.hold(future.stream)
        task = asyncio.ensure_future(future)
        assert future.state == "idle"
        while future.state == "idle":
            await asyncio.sleep(0)
        if latch.works:
            assert future.state == "executing"
            assert not task.done()
        latch.open()
        return await task

    assert (asyncio.run(main()) == 1).all()


def test_the_callback_comes_behind_the_work_and_not_behind_later_work(device, latch, streams):
    """Stream order: it fires when all that was submitted before has run, whatever is submitted after."""
    called = threading.Event()
    future = api.ones(N).async_on(streams[0])
    streams[0].add_callback(lambda stream, status, arg: called.set() if (stream, status) == (streams[0], 0) else None)
    latch.hold(streams[0])
    late = api.ones(N).async_on(streams[0])
    assert called.wait(60)
    future.result(timeout_s=60)
    if latch.works:
        assert not late.done()
    latch.open()
    late.result(timeout_s=60)


def test_no_thread_waits_for_each_operation(device, latch, monkeypatch, streams):
    """Forty ops in flight take no more threads than one: the loop is woken, it does not wait."""
    monkeypatch.setattr(device, "policy", tk.StreamPoolRoundRobin(device, streams))

    async def main():
        await asyncio.gather(*(api.ones(N) for _ in range(8)))  # what starts at the first use has started
        before = threading.active_count()
        for stream in streams:
            latch.hold(stream)
        tasks = [asyncio.create_task(api.ones(N).run()) for _ in range(40)]
        await asyncio.sleep(0)
        assert threading.active_count() <= before
        if latch.works:
            assert not any(task.done() for task in tasks)
        latch.open()
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(main())) == 40


def test_an_operation_is_a_future_in_waiting():
    """Python's `IntoFuture`: `__await__`, and `into_future()` for those who want the future itself."""
    op = tk.value(1)
    assert inspect.isawaitable(op)
    assert callable(op.into_future)
