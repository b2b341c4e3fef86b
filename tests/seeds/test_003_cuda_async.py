"""The seeds' page on cuda-async, in its order: ops, how they combine, where they run, and graphs."""

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

N, TILE = 1000, 256


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


def host(tensor):
    return tensor.to_host().sync()


# The three pieces


def test_the_design_has_three_pieces(device, streams):
    """Ops describe, a policy maps them to streams, and something executes them."""
    op = api.ones(N).then(lambda t: scale(t.partition(TILE), 3.0)).first().unpartition().to_host()
    policy = tk.StreamPoolRoundRobin(device, streams)
    assert (op.schedule(policy).result(timeout_s=60) == 3).all()


def test_any_async_runtime(device):
    """Nothing ties an op to a runtime: a future can also be waited for with none at all."""
    future = api.ones(N).to_host().into_future()
    future.submit()
    assert (future.result(timeout_s=60) == 1).all()
    assert (asyncio.run(api.ones(N).to_host().run()) == 1).all()


# Device operations


def test_nothing_executes_until_it_is_run(device, turns):
    """A lazy op with a saxpy in it; then `sync_on` writes into the tensor that was passed."""
    with device.stream() as stream:
        z = api.zeros((16, 16)).sync_on(stream)
        x = api.ones((16, 16)).sync_on(stream)
        op = saxpy(z.partition((4, 4)), 2.0, x)
        assert turns.count == 0
        assert not host(z).any()
        op.sync_on(stream)
    assert (host(z) == 2).all()


# Kernel input modes


@pytest.mark.parametrize("mode", ["tensor", "op", "value", "device_operation", "shared"])
def test_kernel_input_modes(device, mode):
    """A tensor parameter takes a tensor or what will be one, and gives it back: the same tensor, or the one that was made."""
    x = api.ones(N).sync()
    given = {
        "tensor": lambda: x,
        "op": lambda: api.ones(N),
        "value": lambda: tk.value(x),
        "device_operation": x.device_operation,
        "shared": lambda: api.ones(N).shared(),
    }[mode]()
    y, a, back = saxpy(api.ones(N).partition(TILE), 2.0, given).sync()
    assert a == 2.0
    assert isinstance(back, tk.Tensor)
    assert (back is x) == (mode in ("tensor", "value", "device_operation"))
    assert (host(y.unpartition()) == 3).all()


@pytest.mark.parametrize("mode", ["partition", "op"])
def test_kernel_output_modes(device, mode):
    """A parameter that is written takes a partition, of a tensor that one has (written in place) or of one to be made."""
    tensor = api.ones(N).sync()
    given = tensor.partition(TILE) if mode == "partition" else api.ones(N).partition(TILE)
    y, _, _ = saxpy(given, 2.0, api.ones(N)).sync()
    assert isinstance(y, tk.Partition)
    assert (y is given) == (mode == "partition")
    assert (host(y.unpartition()) == 3).all()
    assert (host(tensor) == (3 if mode == "partition" else 1)).all()


def test_arguments_by_keyword(device):
    """Python's addition: the names of the signature."""
    y, _, _ = saxpy(x=api.ones(N), a=4.0, y=api.ones(N).partition(TILE)).sync()
    assert (host(y.unpartition()) == 5).all()


def test_all_owned_modes_can_be_spawned(device):
    """Whatever tilekit made may go into a task."""
    x = api.ones(N).sync()

    async def main():
        task = asyncio.create_task(saxpy(api.ones(N).partition(TILE), 2.0, x).run())
        y, _, _ = await task
        return await y.unpartition().to_host()

    assert (asyncio.run(main()) == 3).all()


# Combinators


def allocate_buffer():
    return api.ones(N)


def fill_kernel(buffer):
    return scale(buffer.partition(TILE), 4.0).first().unpartition()


def process_kernel(buffer):
    return scale(buffer.partition(TILE), 0.5).first().unpartition()


def test_then_chains_dependent_work_on_the_same_stream(device, turns):
    """Three ops, one stream."""
    result = allocate_buffer().then(lambda buf: fill_kernel(buf)).then(lambda buf: process_kernel(buf)).sync()
    assert turns.count == 1
    assert (host(result) == 2).all()


def test_zip_combines_independent_operations(device):
    """Two results."""
    a, b = tk.zip(api.ones(N), api.full(N, 2.0)).sync()
    assert (host(a) == 1).all() and (host(b) == 2).all()


def test_map_transforms_the_output_without_device_work(device):
    """Host code on the result."""
    assert tk.value(21).map(lambda x: x * 2).sync() == 42
    assert api.ones(N).map(lambda tensor: tensor.shape).sync() == (N,)


def test_shared_is_executed_once(device):
    """Used by many, made once."""
    made = []
    op = tk.with_context(lambda ctx: (made.append(1), api.ones(N))[1]).shared()
    results = [op.sync(), *tk.zip(op, op).sync()]
    assert made == [1]
    assert all(result is results[0] for result in results)


# Scheduling


def test_scheduling_policy_is_one_question(device, streams, where):
    """Anything that answers `next_stream()` is a policy."""

    class Always:
        def next_stream(self):
            return streams[2]

    assert isinstance(Always(), tk.SchedulingPolicy)
    assert not isinstance(object(), tk.SchedulingPolicy)
    assert where().schedule(Always()).result(timeout_s=60) is streams[2]


def test_default_is_a_round_robin_over_four_streams(device, where):
    """Without being asked."""
    assert isinstance(device.policy, tk.StreamPoolRoundRobin)
    used = [where().sync() for _ in range(8)]
    assert len(set(used)) == 4
    assert used[:4] == used[4:]


def test_implicit_scheduling(device, turns):
    """`sync` and `await` ask the device's policy."""
    api.ones(N).sync()
    asyncio.run(api.ones(N).run())
    assert turns.count == 2


def test_explicit_scheduling_pins_to_a_stream(device, turns, streams, where):
    """`sync_on` does not."""
    assert where().sync_on(streams[0]) is streams[0]
    assert turns.count == 0


def test_multi_device_scheduling(device, other, where):
    """On a given device's policy; or `on(device)`, for a part of an op."""
    future = where().schedule(tk.global_policy(other))
    assert future.result(timeout_s=60).device is other
    assert where().on(other).sync().device is other
    here, there = tk.zip(where().on(device), where().on(other)).sync()
    assert (here.device, there.device) == (device, other)


def test_operations_on_different_streams_may_overlap(device, latch, streams):
    """One is held; the other finishes."""
    latch.hold(streams[0])
    slow, quick = api.ones(N).async_on(streams[0]), api.ones(N).async_on(streams[1])
    quick.result(timeout_s=60)
    if latch.works:
        assert not slow.done()
    latch.open()
    slow.result(timeout_s=60)


# CUDA graphs


def test_graph_capture(device, streams):
    """`graph_on` records an op as a graph, and hands out what it will produce: defined after a launch, as nothing ran."""
    capture = tk.DeviceOp.graph_on
    x = api.ones(N).sync()
    graph = capture(scale(x.partition(TILE), 2.0), streams[0])
    buffers = graph.take_output()
    graph.launch().sync()
    assert (host(buffers[0].unpartition()) == 2).all()


def test_graph_replay_loop_with_update(device, streams):
    """Inputs change by copies into the buffers that were recorded; each replay is one call."""
    capture = tk.DeviceOp.graph_on
    source, target = api.zeros(N).sync(), api.zeros(N).sync()
    graph = capture(saxpy(target.partition(TILE), 1.0, source), streams[0])
    for token in range(4):
        graph.update(api.memcpy(source, np.full(N, token, np.float32)))
        graph.launch().sync()
    assert (host(target) == 6).all()


def test_graph_has_its_class():
    """`CudaGraph`."""
    assert tk.CudaGraph


def test_memcpy_into_a_preallocated_buffer(device):
    """The op that replays are fed with: from a tensor or an array into memory that is there already."""
    target = api.zeros(N).sync()
    assert api.memcpy(target, np.arange(N, dtype=np.float32)).sync() is target
    assert host(target)[-1] == N - 1
    api.memcpy(target, api.ones(N).sync()).sync()
    assert (host(target) == 1).all()


# API argument conventions


def test_api_functions_take_concrete_values_and_return_ops(device):
    """Shapes, numbers, tensors in; an op out."""
    x = api.ones(N).sync()
    for op in (api.zeros(N), api.full((2, 3), 7), api.arange(5), api.dup(x), api.randn(0.0, 1.0, N), api.from_host(np.ones(3))):
        assert isinstance(op, tk.DeviceOp)
        op.sync()


def test_methods_of_ops_take_concrete_values_and_return_ops(device):
    """`reshape`, `partition`, `to_host_vec`... on what is not there yet."""
    op = api.arange(12, dtype=tk.float32).reshape(3, 4).to_host_vec()
    np.testing.assert_array_equal(op.sync(), np.arange(12, dtype=np.float32).reshape(3, 4))
    part = api.zeros((4, 4)).partition((2, 2))
    assert isinstance(part, tk.DeviceOp)
    assert part.unpartition().sync().shape == (4, 4)


def test_kernel_functions_take_anything_that_becomes_an_argument(device):
    """Tensors, partitions, scalars, and ops of each of them."""
    y, a, _ = saxpy(api.ones(N).partition(TILE), tk.value(2.0), api.ones(N)).sync()
    assert a == 2.0
    assert (host(y.unpartition()) == 3).all()
