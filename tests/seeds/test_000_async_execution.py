"""The seeds' chapter on async execution, in its order: each pattern it shows, in Python's shape."""

import asyncio
import inspect

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

N, TILE = 1000, 256
BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel
def add(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(y, z))


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


@tk.kernel
def relu(y: tk.InOut):
    y.store(tk.maximum(y.load(), 0.0))


@tk.kernel
def gemm(c: tk.Out[BM, BN], a: tk.In[-1, -1], b: tk.In[-1, -1]):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


def host(tensor):
    return tensor.to_host().sync()


# Two worlds: host and device


def test_host_schedules_and_device_executes(device, latch, streams):
    """The host hands work over and goes on; the device does it in its own time."""
    latch.hold(streams[0])
    future = api.ones(N).to_host().async_on(streams[0])
    if latch.works:
        assert not future.done(), "the host is here, the work is not done"
    latch.open()
    assert (future.result(timeout_s=60) == 1).all()


# Streams: queues for GPU work


def test_new_stream(device):
    """From a device one gets a work queue: `CudaContext::new(0)` and `new_stream()` are `tk.Device(0)` and `.stream()`."""
    assert tk.Device(device) is device
    with device.stream() as stream:
        assert isinstance(stream, tk.Stream)
        assert stream.device is device


def test_same_stream_executes_in_order(device, streams):
    """What is put into one stream runs in the order in which it was put there."""
    x = api.ones(N).sync_on(streams[0])
    scale(x.partition(TILE), 3.0).async_on(streams[0])
    before = x.to_host().async_on(streams[0])
    scale(x.partition(TILE), 5.0).async_on(streams[0])
    after = x.to_host().async_on(streams[0])
    assert before.result(timeout_s=60)[0] == 3
    assert after.result(timeout_s=60)[0] == 15


def test_different_streams_may_execute_concurrently(device, latch, streams):
    """Work on another stream does not stand in the same queue: it may finish first."""
    latch.hold(streams[0])
    slow = api.ones(N).async_on(streams[0])
    assert api.ones(N).async_on(streams[1]).result(timeout_s=60).shape == (N,)
    if latch.works:
        assert not slow.done()
    latch.open()
    slow.result(timeout_s=60)


def test_synchronization_points_wait_for_the_stream(device, streams):
    """Waiting for a stream waits for all that was put into it."""
    futures = [api.full(N, i).async_on(streams[0]) for i in range(5)]
    streams[0].synchronize()
    assert all(future.done() for future in futures)


# DeviceOperations: lazy computation graphs


def test_a_device_operation_is_a_recipe(device, turns):
    """Making an op describes work. It takes no stream and no memory until it is run."""
    z = api.zeros((64, 64))
    assert isinstance(z, tk.DeviceOperation)
    assert turns.count == 0
    assert (z.shape, z.dtype) == ((64, 64), tk.float32), "known beforehand"

    async def main():
        return await z

    tensor = asyncio.run(main())
    assert turns.count == 1
    assert not host(tensor).any()


def test_every_device_operation_is_awaitable(device):
    """An op of any kind can stand behind `await`."""
    ops = [
        tk.value(1),
        api.zeros(N),
        tk.zip(1, 2),
        tk.value(1).then(tk.value),
        tk.with_context(lambda ctx: tk.value(1)),
        scale(api.ones(N).partition(TILE), 2.0),
    ]
    assert all(inspect.isawaitable(op) for op in ops)

    async def main():
        for op in ops:
            await op

    asyncio.run(main())


# The execution flow


class Logged(tk.DeviceOp):
    def __init__(self, log):
        self.log = log

    def execute(self, ctx):
        self.log.append("execute")
        return ctx.stream


def test_execution_flow(device, monkeypatch):
    """A future is made on a stream that the policy chose; the first step of awaiting it submits; then it completes."""
    log, pool = [], tk.StreamPoolRoundRobin(device, streams=4)

    class Policy:
        def next_stream(self):
            log.append("schedule")
            return pool.next_stream()

    monkeypatch.setattr(device, "policy", Policy())

    async def main():
        future = Logged(log).into_future()
        assert log == ["schedule"]
        assert future.state == "idle"
        assert await future is future.stream
        assert future.state == "complete"

    asyncio.run(main())
    assert log == ["schedule", "execute"]


def test_work_starts_at_the_first_step_not_at_the_await(device):
    """A task that has not taken its first step has submitted nothing."""
    log = []

    async def main():
        task = asyncio.create_task(Logged(log).run())
        assert not log
        await task
        assert log == ["execute"]

    asyncio.run(main())


def test_when_does_gpu_work_happen(device, turns):
    """`randn`, then `arc`, then a future: each still does nothing. Awaiting it does the work; the tensor can then be shared."""
    op = api.randn(0.0, 1.0, (60, 50), seed=1)
    shared = op.arc()
    assert turns.count == 0
    future = shared.into_future()
    assert turns.count == 1
    assert future.state == "idle"

    async def main():
        return await future

    x = asyncio.run(main())
    assert future.state == "complete"
    values = host(x)
    assert values.shape == (60, 50)
    assert values.dtype == np.float32
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1) < 0.1
    assert shared.sync() is x, "made once"


# Synchronous versus asynchronous execution


def test_synchronous_pattern(device, streams):
    """`sync_on` launches, blocks, and gives the result; the grid may be given, and must be the one of the partitions."""
    y = api.ones(4 * TILE).sync()
    (part, factor) = scale(y.partition(TILE), 2.0).grid((4, 1, 1)).sync_on(streams[0])
    assert part.unpartition() is y
    assert factor == 2.0
    assert (host(y) == 2).all()
    with pytest.raises(ValueError, match="grid"):
        scale(y.partition(TILE), 2.0).grid((3, 1, 1)).sync_on(streams[0])


def test_asynchronous_pattern(device):
    """An op becomes a future, and awaiting the future does not block the loop."""

    async def main():
        future = api.full(N, 3.0).into_future()
        tensor = await future
        return await tensor.to_host()

    assert (asyncio.run(main()) == 3).all()


def test_asynchronous_pattern_with_grouped_inputs(device):
    """Ops grouped by `zip` go to a kernel with `apply`."""

    async def main():
        args = tk.zip(api.zeros(N).partition(TILE), api.ones(N), api.full(N, 2.0))
        z, x, y = await args.apply(add)
        return await asyncio.gather(z.unpartition().to_host(), x.to_host(), y.to_host())

    z, x, y = asyncio.run(main())
    assert (z == 3).all() and (x == 1).all() and (y == 2).all()


# Building computation graphs


def test_building_computation_graphs_with_a_matrix_product(device):
    """A product, an activation, a normalisation: one lazy graph, executed as a whole."""
    a, b = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    product = gemm(api.zeros((64, 64)).partition((32, 32)), api.from_host(a), api.from_host(b)).generics(BK=32)
    result = product.first().then(relu).first().then(lambda z: scale(z, 0.5)).first().unpartition().to_host()
    np.testing.assert_allclose(result.sync(), 0.5 * np.maximum(a @ b, 0), rtol=1e-2, atol=1e-2)


def test_building_computation_graphs(device, turns):
    """Several launches chained into one lazy graph, which runs as a whole, on one stream."""
    x, y = api.randn(0.0, 1.0, (64, 64), seed=1).shared(), api.randn(0.0, 1.0, (64, 64), seed=2).shared()
    z = api.zeros((64, 64)).partition((16, 16))
    graph = (
        add(z, x, y)
        .and_then(lambda out: relu(out[0]))
        .and_then(lambda out: scale(out[0], 0.5))
        .map(lambda out: out[0].unpartition())
    )
    assert turns.count == 0
    output = graph.sync()
    assert turns.count == 1
    expected = 0.5 * np.maximum(host(x.sync()) + host(y.sync()), 0)
    np.testing.assert_allclose(host(output), expected, rtol=1e-6)


def test_operations_are_composed_not_fused(device):
    """The seeds say that ops can be fused. Here each launch stays one launch; docs/concepts/why-no-fusion.md says why."""
    x = api.ones(N).sync()
    with device.stream() as stream:
        relu(x.partition(TILE)).apply(lambda z: scale(z, 2.0)).apply(lambda z, a: scale(z, a)).sync_on(stream)
        assert [name for _, name in stream._names] == ["kernel relu", "kernel scale", "kernel scale"]
    assert (host(x) == 4).all()


def test_memory_can_be_reused(device):
    """Launches that are chained on one tensor work in its memory: none of them makes a new one."""
    storages = []

    def note(out):
        storages.append(out[0].storage)
        return scale(out[0], 2.0)

    add(api.zeros(N).partition(TILE), api.ones(N), api.ones(N)).then(note).then(note).then(note).sync()
    assert len(storages) == 3
    assert len(set(map(id, storages))) == 1


def test_scheduling_can_be_chosen_late(device, streams):
    """One and the same description goes to whatever stream or policy is chosen when it runs."""

    def recipe():
        return api.ones(N).partition(TILE).then(lambda y: scale(y, 4.0)).first().unpartition().to_host()

    policy = tk.StreamPoolRoundRobin(device, streams)
    results = [recipe().sync(), recipe().sync_on(streams[0]), recipe().schedule(policy).result(timeout_s=60)]
    assert all((result == 4).all() for result in results)


# Sync points and memory management


def test_reading_without_waiting_is_refused(device, streams):
    """The seeds' bad example reads a result that may be incomplete. Here what one has is an op, and an op is no data."""
    z = api.ones(N).sync_on(streams[0])
    data = z.to_host_vec()
    with pytest.raises(TypeError, match=r"\.to_host\(\)\.sync\(\)"):
        np.asarray(data)
    with pytest.raises(TypeError, match=r"\.numpy\(\)"):
        np.asarray(z)
    assert (data.sync_on(streams[0]) == 1).all()


def test_reading_after_waiting(device, streams):
    """The good example: the copy to the host is waited for."""
    z = api.ones(N).sync_on(streams[0])
    assert (z.to_host_vec().sync_on(streams[0]) == 1).all()


def test_modifying_data_that_is_still_being_read(device, latch, streams):
    """A writer on another stream waits for the readers by itself; nobody has to synchronise in between."""
    x = api.ones(N).sync()
    latch.hold(streams[0])
    reading = x.to_host().async_on(streams[0])
    writing = scale(x.partition(TILE), 9.0).async_on(streams[1])
    latch.let_others_get_on()
    if latch.works:
        assert not writing.done()
    latch.open()
    assert (reading.result(timeout_s=60) == 1).all()
    writing.result(timeout_s=60)
    assert (host(x) == 9).all()


def test_arc_for_shared_data(device, streams):
    """One tensor is an input of many ops. Python counts references, so the tensor itself is what is shared."""
    x = api.ones((32, 32)).sync_on(streams[0])
    z1, *_ = add(api.zeros((32, 32)).partition((16, 16)), x, x).sync_on(streams[0])
    z2, *_ = add(api.zeros((32, 32)).partition((16, 16)), x, x).sync_on(streams[0])
    assert (host(z1.unpartition()) == 2).all() and (host(z2.unpartition()) == 2).all()


def test_arc_of_an_op(device):
    """What does not exist yet is shared with `arc`, of which `shared` is the other name: it is made once for all."""
    x = api.randn(0.0, 1.0, N, seed=3).arc()
    twice = add(api.zeros(N).partition(TILE), x, x).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(twice, 2 * host(x.sync()))


# Streams and scheduling


def test_the_one_rule_of_streams(device, latch, streams):
    """Same stream: in order of submission. Different streams: no order, unless one needs what the other makes."""
    latch.hold(streams[0])
    first, second = api.ones(N).async_on(streams[0]), api.ones(N).async_on(streams[0])
    elsewhere = api.ones(N).async_on(streams[1])
    elsewhere.result(timeout_s=60)
    if latch.works:
        assert not first.done() and not second.done()
    latch.open()
    second.result(timeout_s=60)
    assert first.done()


def test_default_round_robin_pool(device, where, monkeypatch):
    """By default ops take four streams in turn."""
    monkeypatch.setattr(device, "policy", tk.StreamPoolRoundRobin(device))
    used = [where().sync() for _ in range(6)]
    assert len(set(used[:4])) == 4
    assert used[4:] == used[:2]

    async def main():
        return [await where() for _ in range(4)]

    assert asyncio.run(main()) == [*used[2:4], *used[:2]], "and await takes its turn like sync"


def test_serialize_on_the_same_stream_by_wrap_around(device, latch, streams):
    """Of five ops on four streams the fifth queues behind the first; the others do not wait for it."""
    pool = tk.StreamPoolRoundRobin(device, streams)
    latch.hold(streams[0])
    a, b, c, d, e = (api.full(N, i).schedule(pool) for i in range(5))
    assert e.stream is a.stream is streams[0]
    for future in (b, c, d):
        future.result(timeout_s=60)
    if latch.works:
        assert not a.done() and not e.done()
    latch.open()
    assert (host(e.result(timeout_s=60)) == 4).all()
    assert a.done()


def test_serialize_by_and_then(device, where):
    """A chain stays on one stream, so that each op sees what the one before it made."""
    used = []

    def note(tensor):
        return where().then(lambda stream: (used.append(stream), tk.value(tensor))[1])

    allocate = api.zeros(N).and_then(note)
    filled = allocate.and_then(lambda t: add(t.partition(TILE), api.ones(N), api.ones(N))).first().unpartition().and_then(note)
    result = filled.and_then(lambda t: scale(t.partition(TILE), 4.0)).first().unpartition().and_then(note).sync()
    assert (host(result) == 8).all()
    assert len(used) == 3
    assert len(set(used)) == 1


def test_serialize_by_an_explicit_stream(device, streams, where):
    """Ops that are given one stream run on it, in order; no policy is asked."""
    assert [where().sync_on(streams[2]) for _ in range(3)] == [streams[2]] * 3


def test_serialize_by_awaiting_sequentially(device):
    """What is awaited is done before the next line runs, on whichever stream each was."""

    async def main():
        first = api.ones(N).into_future()
        x = await first
        assert first.state == "complete"
        second = scale(x.partition(TILE), 2.0).into_future()
        assert second.state == "idle"
        assert second.stream is not first.stream
        y, _ = await second
        return await y.unpartition().to_host()

    assert (asyncio.run(main()) == 2).all()


def test_overlap_in_a_lazy_graph_with_zip_and_apply(device):
    """Three inputs and a launch become one op; `unzip` gives its results back one by one."""
    x, y = api.ones((64, 64)).sync(), api.full((64, 64), 2.0).sync()
    args = tk.zip(api.zeros((64, 64)).partition((16, 16)), x.device_operation(), y.device_operation())
    z, _x, _y = args.apply(add).unzip(3)

    async def main():
        return await z.unpartition()

    assert (host(asyncio.run(main())) == 3).all()


def test_overlap_of_the_parts_of_a_zip(device, where):
    """The parts of a zip share a stream; `parallel=True` spreads them over the pool and joins them."""
    assert len(set(tk.zip(where(), where(), where()).sync())) == 1
    assert len(set(tk.zip(where(), where(), where(), parallel=True).sync())) > 1


def test_overlap_with_gather(device, latch, where):
    """`asyncio.gather` is `tokio::join!`: both are submitted before either is waited for, on streams of their own."""
    x, y = api.ones(N).sync(), api.full(N, 2.0).sync()

    async def main():
        streams = await asyncio.gather(where(), where())
        assert streams[0] is not streams[1]
        slow = x.to_host().into_future()
        latch.hold(slow.stream)
        waiting = asyncio.ensure_future(slow)
        quick = await y.to_host()
        if latch.works:
            assert not waiting.done()
        latch.open()
        return await waiting, quick

    slow, quick = asyncio.run(main())
    assert (slow == 1).all() and (quick == 2).all()

    async def both():
        return await asyncio.gather(x.to_host(), y.to_host())

    a, b = asyncio.run(both())
    assert (a == 1).all() and (b == 2).all()


# Data dependencies: the user's in the seeds, tilekit's here


def create_tensor():
    return api.ones(N)


def process(tensor):
    return scale(tensor.partition(TILE), 2.0).first().unpartition()


def test_safe_pattern_1_chain(device):
    """Dependent ops in one chain share a stream."""

    async def main():
        return await create_tensor().and_then(process)

    assert (host(asyncio.run(main())) == 2).all()


def test_safe_pattern_2_await_sequentially(device):
    """The second op is made from a result that is there."""

    async def main():
        tensor = await create_tensor()
        return await process(tensor)

    assert (host(asyncio.run(main())) == 2).all()


def test_safe_pattern_3_pin_to_the_same_stream(device, streams):
    """Both on one stream: the queue keeps them in order."""
    tensor = create_tensor().sync_on(streams[0])
    assert (host(process(tensor).sync_on(streams[0])) == 2).all()


def test_unsafe_pattern_to_avoid_is_safe_here(device, latch):
    """Two futures on different streams, one reading what the other writes, awaited together. The reader waits for the writer."""
    x = api.ones(N).sync()
    process(x).sync()  # has been compiled, so that nothing but the device decides when it runs

    async def main():
        future_a = process(x).into_future()
        future_b = x.to_host().into_future()
        assert future_a.stream is not future_b.stream
        latch.hold(future_a.stream)  # A is as late as can be
        both = asyncio.gather(future_a, future_b)
        if latch.works:
            while future_b.state == "idle":  # until both have taken their first step
                await asyncio.sleep(0)
            latch.let_others_get_on()
            assert not future_a.done() and not future_b.done()
        latch.open()
        return await both

    _, data = asyncio.run(main())
    assert (data == 4).all()


def test_unsafe_pattern_is_safe_between_any_two_streams(device, latch, streams):
    """The same without an event loop: written on one stream, read on three others, written again on the first."""
    x = api.ones(N).sync()
    latch.hold(streams[0])
    process(x).async_on(streams[0])
    readers = [x.to_host().async_on(stream) for stream in streams[1:]]
    process(x).async_on(streams[0])
    latch.let_others_get_on()
    latch.open()
    assert all((reader.result(timeout_s=60) == 2).all() for reader in readers)
    assert (host(x) == 4).all()


# Choosing the right execution method


METHODS = {
    "and_then": lambda op, stream: op.and_then(tk.value).sync(),
    "sync_on": lambda op, stream: op.sync_on(stream),
    "sync": lambda op, stream: op.sync(),
    "await": lambda op, stream: asyncio.run(_await(op)),
    "zip and apply": lambda op, stream: tk.zip(op, 1).apply(lambda data, one: tk.value(data)).sync(),
    "async_on": lambda op, stream: op.async_on(stream).result(timeout_s=60),
    "schedule": lambda op, stream: op.schedule(tk.SingleStream(stream)).result(timeout_s=60),
    "run": lambda op, stream: asyncio.run(op.run()),
}


async def _await(op):
    return await op


@pytest.mark.parametrize("method", METHODS)
def test_choosing_the_right_execution_method(device, streams, method):
    """Every row of the seeds' table, and the ways that tilekit adds: they differ in stream and waiting, not in the result."""
    op = add(api.zeros(N).partition(TILE), api.ones(N), api.ones(N)).first().unpartition().to_host()
    assert (METHODS[method](op, streams[0]) == 2).all()


# Performance tips


def test_batch_operations_into_a_graph(device, turns, where):
    """Instead of waiting for each of many small ops: join them and wait once. They take one stream, in order."""
    data = [api.full(N, float(i)).sync() for i in range(20)]
    one_by_one = [x.dup().to_host().sync() for x in data]
    before = turns.count
    results = tk.join_all([x.dup().to_host() for x in data]).sync()
    assert turns.count == before + 1
    assert isinstance(results, list)
    for i, (result, single) in enumerate(zip(results, one_by_one, strict=True)):
        assert (result == i).all() and (single == i).all()
    assert len(set(tk.join_all(where() for _ in range(5)).sync())) == 1


def test_batch_operations_awaited(device):
    """The same in a coroutine."""

    async def main():
        return await tk.join_all([api.full(N, i).to_host() for i in range(20)])

    assert [result[0] for result in asyncio.run(main())] == list(range(20))


def test_overlap_computation_and_transfers(device):
    """Submit both before waiting for either."""
    x = api.ones(N).sync()

    async def main():
        compute = process(x)
        transfer = api.zeros((4, N))
        return await asyncio.gather(compute, transfer)

    result, next_buffer = asyncio.run(main())
    assert (host(result) == 2).all()
    assert next_buffer.shape == (4, N)


def test_overlap_on_dedicated_streams(device, latch):
    """A stream for computing and one for copies. (`sync_on` waits, also in the seeds' example; `async_on` is what overlaps.)"""
    x = api.ones(N).sync()
    with device.stream() as compute_stream, device.stream() as transfer_stream:
        latch.hold(compute_stream)
        result = process(x).async_on(compute_stream)
        next_batch = api.from_host(np.arange(N, dtype=np.float32)).async_on(transfer_stream).result(timeout_s=60)
        if latch.works:
            assert not result.done()
        latch.open()
        assert (host(result.result(timeout_s=60)) == 2).all()
        assert host(next_batch)[-1] == N - 1


def test_use_appropriate_grid_sizes(device, streams):
    """One block a tile. The seeds compute the grid; here it follows from the partition, and a computed one is checked."""
    y = api.ones(4096).sync()
    num_tiles = len(y) // TILE
    assert y.partition(TILE).grid == (num_tiles,)
    scale(y.partition(TILE), 2.0).grid((num_tiles, 1, 1)).sync_on(streams[0])
    scale(y.partition(TILE), 2.0).sync_on(streams[0])
    assert (host(y) == 4).all()


# Summary


@pytest.mark.parametrize(
    "name", ["DeviceOperation", "Stream", "SchedulingPolicy", "StreamPoolRoundRobin", "SingleStream", "ExecutionContext"]
)
def test_summary_concepts_have_their_names(name):
    """What the chapter's table lists is in `tilekit`."""
    assert inspect.isclass(getattr(tk, name))


@pytest.mark.parametrize("name", ["sync_on", "sync", "__await__", "and_then", "arc", "into_future", "apply", "unzip"])
def test_summary_methods_have_their_names(name):
    """And what it lists of ops is a method of `DeviceOperation`."""
    assert callable(getattr(tk.DeviceOperation, name))


def test_summary_single_stream_is_strict_ordering(device, where):
    """A policy with one stream runs everything in the order of submission."""
    policy = tk.SingleStream(device)
    assert isinstance(policy, tk.SchedulingPolicy)
    futures = [where().schedule(policy) for _ in range(3)]
    assert len({future.result(timeout_s=60) for future in futures}) == 1
