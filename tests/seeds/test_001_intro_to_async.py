"""The seeds' seventh tutorial, an introduction to async execution, in its order. docs/tutorials/07-async.md is ours."""

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

N, TILE = 1000, 256
S = tk.generics("*S")


@tk.kernel
def hello_world_kernel():
    tk.print("Hello from block", tk.bid(0), tk.bid(1))


@tk.kernel
def add(z: tk.Out[S], x: tk.In[-1, -1], y: tk.In[-1, -1]):
    tile_x = tk.load_tile_like(x, z)
    tile_y = tk.load_tile_like(y, z)
    z.store(tile_x + tile_y)


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


def prepare_batch(number):
    """An op that makes a batch."""
    return api.full(N, number)


def process_kernel(batch):
    """An op that works on one, in place."""
    return scale(batch.partition(TILE), 2.0).first().unpartition()


def host(tensor):
    return tensor.to_host().sync()


# Any runtime


def test_any_async_runtime_asyncio(device):
    """The tutorial uses one runtime and says that any will do. Python's own:"""
    assert (asyncio.run(prepare_batch(1).to_host().run()) == 1).all()


def test_any_async_runtime_uvloop(device):
    """A faster loop under asyncio."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    assert (uvloop.run(prepare_batch(1).to_host().run()) == 1).all()


def test_any_async_runtime_trio(device):
    """A library of its own, with nurseries."""
    trio = pytest.importorskip("trio", reason="trio is not installed")
    results = []

    async def one(number):
        results.append(await prepare_batch(number).to_host())

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)

    trio.run(main)
    assert sorted(result[0] for result in results) == [0, 1, 2, 3, 4]


# Why


def test_the_sync_api_blocks_until_the_device_is_done(device, printed):
    """`sync_on` comes back when everything has happened."""
    with device.stream() as stream:
        hello_world_kernel().grid((2, 2, 1)).sync_on(stream)
        assert stream.query()
    assert sorted(printed().splitlines()) == [f"Hello from block {i} {j}" for i in range(2) for j in range(2)]


def test_preparing_the_next_batch_while_the_current_one_computes(device, latch, streams):
    """The host makes the next batch meanwhile."""
    batch = prepare_batch(1).sync()
    latch.hold(streams[0])
    current = process_kernel(batch).async_on(streams[0])
    following = np.full(N, 2, np.float32)
    if latch.works:
        assert not current.done()
    latch.open()
    assert (host(current.result(timeout_s=60)) == 2).all()
    assert (host(process_kernel(api.from_host(following)).sync()) == 4).all()


def test_pipelining_multiple_operations(device):
    """Several chains of copies and launches in flight at once."""

    async def pipeline(number):
        return await api.from_host(np.full(N, number, np.float32)).then(process_kernel).to_host()

    async def main():
        return await asyncio.gather(*map(pipeline, range(6)))

    assert [result[0] for result in asyncio.run(main())] == [0, 2, 4, 6, 8, 10]


def test_overlapping_data_transfer_with_computation(device, latch):
    """A copy goes through while a launch is still waiting for its turn."""
    batch = prepare_batch(1).sync()

    async def main():
        compute = process_kernel(batch).into_future()
        latch.hold(compute.stream)
        computing = asyncio.ensure_future(compute)
        arrived = await api.from_host(np.arange(N, dtype=np.float32))
        if latch.works:
            assert not computing.done()
        latch.open()
        return await computing, arrived

    computed, arrived = asyncio.run(main())
    assert (host(computed) == 2).all()
    assert host(arrived)[-1] == N - 1


def test_multi_gpu_coordination(device, other):
    """One coroutine drives two devices, and moves what they made."""

    async def main():
        here, there = await asyncio.gather(prepare_batch(1).on(device), prepare_batch(2).on(other))
        assert (here.device, there.device) == (device, other)
        here, there = await asyncio.gather(process_kernel(here), process_kernel(there))
        return await here.to_host(), await (await there.to(device)).to_host()

    one, two = asyncio.run(main())
    assert (one == 2).all() and (two == 4).all()


# DeviceOp


def test_a_device_op_describes_the_work(device, turns):
    """`ones` gives an op, and nothing has happened."""
    op = api.ones((64, 64))
    assert isinstance(op, tk.DeviceOp)
    assert turns.count == 0
    op.sync()


def test_executed_by_sync_on_or_by_await(device, streams):
    """Two ways, one result."""

    async def main():
        return await api.ones((64, 64))

    assert (host(api.ones((64, 64)).sync_on(streams[0])) == 1).all()
    assert (host(asyncio.run(main())) == 1).all()


@pytest.mark.parametrize("spawned", ["into_future", "schedule", "run"])
def test_executed_by_a_spawned_task(device, spawned):
    """What a task can run: the future of `into_future()` or `.schedule(...)`, and Python's own, the coroutine of `.run()`."""

    async def main():
        op = api.ones(N).to_host()
        if spawned == "run":
            task = asyncio.create_task(op.run())
        elif spawned == "schedule":
            task = asyncio.ensure_future(op.schedule(device.policy))
        else:
            task = asyncio.ensure_future(op.into_future())
        return await task

    assert (asyncio.run(main()) == 1).all()


# Sync versus async APIs


def test_sync_on_api(device, streams, where):
    """Blocks; on the given stream."""
    assert where().sync_on(streams[1]) is streams[1]


def test_sync_api(device, turns, where):
    """Blocks; on a stream of the policy's."""
    assert where().sync() is not where().sync()
    assert turns.count == 2


def test_await_api(device, turns, where):
    """Suspends; on a stream of the policy's."""

    async def main():
        return await where(), await where()

    first, second = asyncio.run(main())
    assert first is not second
    assert turns.count == 2


def test_spawn_api(device, latch):
    """A task runs on its own; its handle can be awaited later. Making one needs a running loop."""

    async def main():
        tensor = await api.ones(N)
        future = tensor.to_host().into_future()
        latch.hold(future.stream)
        handle = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        if latch.works:
            assert not handle.done(), "not blocked"
        latch.open()
        return await handle

    assert (asyncio.run(main()) == 1).all()
    coroutine = api.ones(N).run()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.create_task(coroutine)  # noqa: RUF006 (none is made)
    coroutine.close()


# Async vector addition


def test_async_vector_addition(device):
    """The tutorial's program: two tensors made, added tile by tile, and brought back, without blocking."""

    async def main():
        x = await api.ones((32, 32))
        y = await api.ones((32, 32))
        return await add(api.zeros((32, 32)).partition((4, 4)), x, y).first().unpartition().to_host_vec()

    z_host = asyncio.run(main())
    assert f"z[0] = {z_host[0, 0]:g} (expected 2.0)" == "z[0] = 2 (expected 2.0)"
    assert (z_host == 2).all()


# Overlapping work with spawn


def test_overlapping_work_with_spawn(device):
    """The first batch is processed by a task while the second one is prepared."""

    async def main():
        batch1_op, batch2_op = prepare_batch(1), prepare_batch(2)
        batch1 = await batch1_op
        result1_handle = asyncio.create_task(process_kernel(batch1).run())
        batch2 = await batch2_op
        result2 = await process_kernel(batch2)
        result1 = await result1_handle
        return await asyncio.gather(result1.to_host(), result2.to_host())

    one, two = asyncio.run(main())
    assert (one == 2).all() and (two == 4).all()


def test_await_suspends_its_own_task_only(device, latch):
    """No other code of the task runs, but other tasks do."""
    steps = []

    async def other_task(handle):
        while not handle.done() and len(steps) < 5:
            steps.append(len(steps))
            await asyncio.sleep(0)
        latch.open()

    async def main():
        tensor = await api.ones(N)
        future = tensor.to_host().into_future()
        latch.hold(future.stream)
        handle = asyncio.ensure_future(future)
        await asyncio.gather(handle, other_task(handle))

    asyncio.run(main())
    if latch.works:
        assert steps == [0, 1, 2, 3, 4]


# Composing DeviceOps


def test_unified_kernel_launcher(device):
    """A launcher takes ops, tensors and plain values alike."""

    async def main():
        output, ready = api.zeros((32, 32)), await api.full((32, 32), 3.0)
        return await add(output.partition((4, 4)), api.ones((32, 32)), ready).first().unpartition().to_host()

    assert (asyncio.run(main()) == 4).all()


def test_zip_combines_operations_manually(device):
    """Several ops become one, whose result is a tuple."""

    async def main():
        a, b, c = await tk.zip(api.ones(N), tk.value("settings"), api.full(N, 2.0).to_host())
        return await a.to_host(), b, c

    a, b, c = asyncio.run(main())
    assert (a == 1).all() and b == "settings" and (c == 2).all()


# Choosing between sync and async


def test_choosing_between_sync_and_async(device):
    """A choice of how to wait, not of what is computed: the same recipe runs both ways."""

    def recipe():
        return api.from_host(np.arange(N, dtype=np.float32)).then(process_kernel).to_host()

    async def main():
        return await recipe()

    np.testing.assert_array_equal(recipe().sync(), asyncio.run(main()))


# Borrowed inputs and spawn safety


def test_spawned_inputs_live_as_long_as_they_are_needed(device, latch):
    """What Rust's compiler rejects, an input that may be gone before the task has run, cannot happen: the op holds its inputs."""

    async def main():
        weights, data = await tk.zip(api.full(N, 3.0), api.ones(N))
        future = saxpy(data.partition(TILE), 2.0, weights).first().unpartition().to_host().into_future()
        latch.hold(future.stream)
        handle = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        del weights, data
        await api.zeros(N)  # takes memory, if some had been freed
        latch.open()
        return await handle

    assert (asyncio.run(main()) == 7).all()


def test_borrowed_inputs_and_spawn_safety(device, streams):
    """Only a bare address without an owner is borrowed: what waits in place takes it, what runs on by itself refuses it."""
    from_pointer = tk.from_pointer
    weights = api.ones(N).sync()
    borrowed = from_pointer(weights.address, (N,), tk.float32)
    assert (borrowed.to_host().sync_on(streams[0]) == 1).all()

    async def main():
        return await borrowed.to_host()

    assert (asyncio.run(main()) == 1).all()
    for spawn in (lambda op: op.run(), lambda op: op.async_on(streams[0]), lambda op: op.schedule(device.policy)):
        with pytest.raises(ValueError, match="owner"):
            spawn(borrowed.to_host())


# Key takeaways


@pytest.mark.parametrize("name", ["__await__", "sync", "sync_on", "then", "first", "to_host_vec", "partition", "unpartition"])
def test_key_takeaways_have_their_names(name):
    """What the tutorial's table lists can be called."""
    assert callable(getattr(tk.DeviceOp, name))


# Exercises


def test_exercise_1_async_saxpy(device):
    """saxpy, awaited."""
    x, y = np.arange(N, dtype=np.float32), np.ones(N, np.float32)

    async def main():
        on_device_y = api.from_host(y).partition(TILE)
        return await saxpy(on_device_y, 2.0, api.from_host(x)).first().unpartition().to_host()

    np.testing.assert_array_equal(asyncio.run(main()), 2 * x + y)


def test_exercise_2_parallel_tensor_creation(device):
    """Four tensors with one `zip`."""

    async def main():
        return await tk.zip(
            api.ones((100, 100)), api.zeros((100, 100)), api.randn(0.0, 1.0, (100, 100), None), api.arange(10000), parallel=True
        )

    a, b, c, d = asyncio.run(main())
    assert (host(a) == 1).all() and not host(b).any()
    assert abs(host(c).mean()) < 0.1
    np.testing.assert_array_equal(host(d), np.arange(10000))


def test_exercise_3_measure_the_difference(device, latch, streams):
    """What the measurement shows, made certain: host work starts behind device work with `sync_on`, beside it with `async_on`."""
    x = api.ones(N).sync()
    process_kernel(x).sync_on(streams[0])
    assert streams[0].query(), "done, before the host goes on"
    latch.hold(streams[0])
    future = process_kernel(x).async_on(streams[0])
    host_work = np.arange(N).sum()
    if latch.works:
        assert not future.done(), "the host has worked, the device is still at it"
    latch.open()
    assert (host(future.result(timeout_s=60)) == 4).all()
    assert host_work == N * (N - 1) // 2
