"""CUDA graphs and prepared ops: what is recorded, what a launch does, what may change between two, and what is refused."""

import asyncio
import contextlib
import gc
import os
import random
import threading
import weakref

import numpy as np
import pytest
from held_up import held

import tilekit as tk
from tilekit import api, memory
from tilekit._driver.cpu import driver as cpu_driver

N, TILE = 1000, 256
COUNT = int(os.environ.get("TILEKIT_TEST_COUNT", "50"))


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


@tk.kernel
def add(y: tk.InOut, n: int):
    y.store(y.load() + n)


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def total(y: tk.Out, a: tk.In, b: tk.In):
    y.store(tk.load_tile_like(a, y) + tk.load_tile_like(b, y))


@pytest.fixture
def stream(device):
    with device.stream() as stream:
        yield stream


@pytest.fixture(params=["graph", "prepare"])
def record(request):
    """Both ways to record an op."""
    return lambda op: getattr(op, request.param)()


def host(tensor):
    return tensor.to_host().sync()


def new(value, n=N, dtype=tk.float32):
    return api.full(n, value, dtype).sync()


# what recording does


def test_recording_executes_nothing(device, record):
    x = new(1)
    recorded = record(scale(x.partition(TILE), 2.0))
    assert (host(x) == 1).all()
    for factor in (2, 4, 8):
        recorded.launch().sync()
        assert (host(x) == factor).all()


def test_an_op_is_spent_by_being_recorded(device, record):
    op = scale(new(1).partition(TILE), 2.0)
    record(op)
    with pytest.raises(ValueError, match="has already run"):
        op.sync()


def test_closures_are_called_once_when_it_is_recorded(device, record):
    called = []
    x = new(1)
    recorded = record(scale(x.partition(TILE), 2.0).inspect(called.append).then(lambda done: scale(done[0], 3.0)))
    assert len(called) == 1
    recorded.launch().sync()
    recorded.launch().sync()
    assert len(called) == 1
    assert (host(x) == 36).all()


def test_the_output_is_what_each_launch_writes(device, record):
    x = new(1)
    recorded = record(x.dup().then(lambda y: scale(y.partition(TILE), 5.0)).first().unpartition())
    out = recorded.output
    assert out.shape == (N,)
    recorded.launch().sync()
    assert (host(out) == 5).all()
    api.memcpy(x, np.full(N, 3, np.float32)).sync()
    assert recorded.launch().sync() is out
    assert (host(out) == 15).all()


def test_take_output_gives_it_once(device, record):
    recorded = record(new(1).dup())
    recorded.take_output()
    with pytest.raises(ValueError, match="has been taken already"):
        recorded.take_output()


def test_what_the_host_gets_is_new_at_each_launch(device, record):
    x = new(1)
    recorded = record(scale(x.partition(TILE), 2.0).then(lambda done: done[0].unpartition().to_host()))
    found = [recorded.launch().sync() for _ in range(3)]
    for array, expected in zip(found, (2, 4, 8), strict=True):
        assert (array == expected).all()
    assert (recorded.output == 8).all()
    last = recorded.sync_on(device.policy.next_stream())
    recorded.launch().sync()
    assert (last == 16).all()


def test_recording_submits_nothing_to_the_stream(device, stream):
    before = stream.pending
    x = new(1)
    scale(x.partition(TILE), 2.0).graph_on(stream)
    assert stream.pending == before


def test_nothing_recorded_is_nothing_launched(device, record):
    recorded = record(tk.value(3))
    assert len(recorded) == 0
    assert recorded.launch().sync() == 3


# launches


def test_a_launch_is_an_op(device, stream):
    x = new(1)
    graph = scale(x.partition(TILE), 2.0).graph_on(stream)
    assert graph.stream is stream
    graph.launch().sync_on(stream)
    graph.launch().async_on(stream).result(timeout_s=60)
    tk.zip(graph.launch(), graph.launch()).sync()

    async def awaited():
        await graph.launch()
        await asyncio.gather(graph.launch().run(), graph.launch().run())

    asyncio.run(awaited())
    found = graph.launch().then(lambda done: done[0].unpartition().to_host()).sync()
    assert (found == 2**8).all()


def test_a_launch_that_is_never_run_warns(device):
    graph = scale(new(1).partition(TILE), 2.0).graph()
    launch = [graph.launch()]
    with pytest.warns(tk.UnusedOpWarning, match="launch of kernel scale"):
        launch.clear()


def test_launches_on_several_streams_come_one_after_the_other(device, record):
    x = new(0, dtype=tk.int32)
    recorded = record(add(x.partition(TILE), 1).then(lambda done: add(done[0], 2)))
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(device.stream()) for _ in range(4)]
        futures = [recorded.launch().async_on(streams[i % 4]) for i in range(40)]
        for future in futures:
            future.result(timeout_s=60)
    assert (host(x) == 120).all()


def test_launches_are_in_order_with_other_work(device, record):
    x = new(0, dtype=tk.int32)
    recorded = record(add(x.partition(TILE), 1))
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(device.stream()) for _ in range(3)]
        expected = 0
        for i in range(60):
            if i % 3 == 0:
                recorded.launch().async_on(streams[i % 3])
                expected += 1
            else:
                op = add(x.partition(TILE), 3) if i % 2 else api.memcpy(x, new(expected, dtype=tk.int32))
                op.async_on(streams[i % 3])
                expected += 3 if i % 2 else 0
        device.synchronize()
    assert (host(x) == expected).all()


@pytest.fixture
def pair():
    """Two CPU devices."""
    found = [tk.Device.of_driver(driver) for driver in cpu_driver.discover(2)]
    yield found
    for used in found:
        used.synchronize()


def test_a_launch_on_another_device_is_refused(record, pair):
    with tk.use_device(pair[0]):
        recorded = record(scale(new(1).partition(TILE), 2.0))
    launch = recorded.launch()
    with pair[1].stream() as stream:
        with pytest.raises(ValueError, match=r"is not on Device\(.cpu:0.\)"):
            launch.sync_on(stream)
        with pytest.raises(ValueError, match="was recorded for .*cpu:0.*, and is launched on .*cpu:1"):
            tk.zip(recorded.launch(), api.ones(3)).with_policy(tk.SingleStream(stream)).sync()
    launch.sync()


# what goes in: update, pinned memory, slots


def test_update_before_a_replay(device, stream):
    source, target = new(0), new(0)
    graph = saxpy(target.partition(TILE), 1.0, source).graph_on(stream)
    for token in range(5):
        graph.update(api.memcpy(source, np.full(N, token, np.float32)))
        graph.launch().sync()  # on another stream
    assert (host(target) == 10).all()


def test_an_update_that_fails_says_so(device):
    graph = scale(new(1).partition(TILE), 2.0).graph()
    with pytest.raises(ZeroDivisionError):
        graph.update(tk.value(0).map(lambda n: 1 // n))


def test_double_buffered_copies_in_and_out(device, record):
    source, result = memory.pinned(N, np.float32), memory.pinned(N, np.float32)
    x = new(0)
    recorded = record(
        api.memcpy(x, source).then(lambda x: scale(x.partition(TILE), 2.0)).then(lambda d: d[0].unpartition().to_host(out=result))
    )
    for token in range(4):
        source[:] = token
        assert recorded.launch().sync() is result
        assert (result == 2 * token).all()


def test_ordinary_memory_of_the_hosts_is_refused(device, record):
    x = new(0)
    with pytest.raises(TypeError, match=r"memcpy cannot be recorded: each launch of it reads 4,000 bytes of the host's ordinary"):
        record(api.memcpy(x, np.ones(N, np.float32)))
    with pytest.raises(TypeError, match=r"each launch of it writes 4,000 bytes .* memory.pinned"):
        record(x.to_host(out=np.ones(N, np.float32)))


def test_bind_tensors_and_numbers(device, record):
    first, second, target = new(1), new(10), new(0)
    slots = tk.slot("x", first), tk.slot("a", 2.0)
    recorded = record(saxpy(target.partition(TILE), slots[1], slots[0]))
    recorded.launch().sync()
    assert (host(target) == 2).all()
    assert recorded.bind(x=second) is recorded
    recorded.launch().sync()
    assert (host(target) == 22).all()
    recorded.bind(a=-1.0, x=first)
    recorded.launch().sync()
    assert (host(target) == 21).all()


def test_bind_a_written_tensor_and_its_views(device, record):
    first, second = new(1), new(1)
    y = tk.slot("y", first)
    recorded = record(tk.zip(scale(y.partition(TILE), 2.0), scale(y[: N // 2].partition(TILE), 3.0), y[::2].fill(0.0)))
    recorded.launch().sync()
    recorded.bind(y=second).launch().sync()
    recorded.launch().sync()
    expected = np.full(N, 2, np.float32)
    expected[: N // 2] *= 3
    expected[::2] = 0
    np.testing.assert_array_equal(host(first), expected)
    np.testing.assert_array_equal(host(second), np.where(expected, expected**2, 0))


def test_bind_reaches_copies_and_fills(device, record):
    source, target = tk.slot("source", new(1)), tk.slot("target", new(0))
    recorded = record(api.memcpy(target, source).then(lambda t: t[:8].fill(7.0)))
    a, b = new(5), new(6)
    recorded.bind(source=a, target=b).launch().sync()
    assert (host(b)[:8] == 7).all()
    assert (host(b)[8:] == 5).all()
    assert (host(a) == 5).all()


def test_bind_part_of_a_larger_tensor(device, record):
    rows = api.arange(4 * N, dtype=tk.float32).sync().reshape(4, N)
    target = new(0)
    recorded = record(saxpy(target.partition(TILE), 1.0, tk.slot("row", rows[0])))
    for i in (1, 3):
        recorded.bind(row=rows[i]).launch().sync()
    np.testing.assert_array_equal(host(target), np.arange(N) * 2 + 4 * N)


def test_a_slot_is_its_value_elsewhere(device):
    x = new(1)
    named = tk.slot("x", x)
    scale(named.partition(TILE), tk.slot("a", 3.0)).sync()
    assert (host(x) == 3).all()
    assert named.address == x.address
    assert named.shares_memory(x)
    assert tk.slot("n", 4) + 1 == 5


def test_wrong_bindings_are_refused_and_change_nothing(device, record):
    first, target = new(1), new(0)
    recorded = record(saxpy(target.partition(TILE), tk.slot("a", 2.0), tk.slot("x", first)))
    wrong = [
        ({"y": first}, ValueError, r"has no slot 'y'; it has (a, x|x, a)"),
        ({"x": new(1, N + 1)}, ValueError, r"recorded for shape \(1000,\), and this tensor has \(1001,\)"),
        ({"x": new(1, dtype=tk.int32)}, ValueError, "recorded for dtype float32, and this tensor has int32"),
        ({"x": new(1, 2 * N)[::2]}, ValueError, r"recorded for strides \(1,\), and this tensor has \(2,\)"),
        ({"x": new(1, N + 1)[1:]}, ValueError, "recorded for memory at a multiple of 16 bytes, and this tensor is at one of 4"),
        ({"x": np.ones(N, np.float32)}, TypeError, r"bind\(x=...\) takes a tensor, not ndarray"),
        ({"x": api.meta(N, tk.float32)}, TypeError, "not a meta tensor"),
        ({"a": "3"}, TypeError, r"bind\(a=...\) takes a float, as the slot was made with 2.0, not str"),
        ({"x": new(9), "a": None}, TypeError, "takes a float"),
    ]
    for values, error, message in wrong:
        with pytest.raises(error, match=message):
            recorded.bind(**values)
    recorded.launch().sync()
    assert (host(target) == 2).all()


def test_a_binding_that_overlaps_what_is_written_is_refused(device, record):
    both = new(1, 2 * N)
    recorded = record(saxpy(both[:N].partition(TILE), 1.0, tk.slot("x", both[N:])))
    with pytest.raises(ValueError, match=r"bind\(x=...\) would let kernel saxpy use 4,000 bytes of which some .* by itself"):
        recorded.bind(x=both[16 : N + 16])
    recorded.launch().sync()
    assert (host(both) == np.repeat([2, 1], N)).all()


def test_a_binding_that_branches_would_share_is_refused(device, record):
    x, y = new(1), new(2)
    op = tk.zip(scale(tk.slot("x", x).partition(TILE), 2.0), scale(tk.slot("y", y).partition(TILE), 3.0), parallel=True)
    recorded = record(op)
    with pytest.raises(ValueError, match="by kernel scale, which may run at the same time as well"):
        recorded.bind(x=y)
    recorded.bind(x=y, y=x).launch().sync()
    assert (host(x)[0], host(y)[0]) == (3, 4)


def test_the_view_that_is_written_may_be_read_as_well(device, record):
    y = new(3)
    recorded = record(saxpy(y.partition(TILE), 1.0, tk.slot("x", new(1))))
    recorded.bind(x=y).launch().sync()
    assert (host(y) == 6).all()


def test_a_bound_tensor_is_kept_alive(device, record):
    target = new(0)
    recorded = record(saxpy(target.partition(TILE), 1.0, tk.slot("x", new(1))))
    recorded.bind(x=new(5))
    gc.collect()
    others = [new(-3) for _ in range(8)]
    recorded.launch().sync()
    assert (host(target) == 5).all()
    del others


def test_slots_are_checked(device):
    with pytest.raises(TypeError, match=r"tk.slot\('x', ...\) takes a tensor, an int or a float, not str"):
        tk.slot("x", "1")
    with pytest.raises(TypeError, match="a meta tensor, without memory"):
        tk.slot("x", api.meta(4, tk.float32))
    with pytest.raises(ValueError, match="a name is an identifier"):
        tk.slot("x y", 1)
    x, y = tk.slot("x", new(1)), tk.slot("x", new(2))
    with pytest.raises(ValueError, match="two slots are called 'x'"):
        total(new(0).partition(TILE), x, y).graph()


def test_bind_does_not_change_a_launch_under_way(cpu, gate):
    first, second, target = new(1), new(10), new(0)
    graph = saxpy(target.partition(TILE), tk.slot("a", 1.0), tk.slot("x", first)).graph()
    with cpu.stream() as stream:
        held(gate).async_on(stream)
        before = graph.launch().async_on(stream)
        graph.bind(x=second, a=100.0)
        gate.set()
        before.result(timeout_s=60)
    assert (host(target) == 1).all()


# scopes


def test_a_scope_records_several_ops(device, stream):
    x = new(1)
    with tk.CudaGraph.scope(stream) as scope:
        scope.record(scale(x.partition(TILE), 2.0))
        y = scope.record(x.dup())
        scope.record(scale(y.partition(TILE), 3.0))
    graph = scope.graph
    assert (host(x) == 1).all()
    graph.launch().sync_on(stream)
    graph.launch().sync()
    assert (host(x) == 4).all()
    assert (host(y) == 12).all()
    assert graph.output[1] is y


def test_an_exception_in_a_scope_leaves_no_graph_and_a_clean_stream(device, stream):
    x = new(1)
    scope = tk.CudaGraph.scope(stream)
    with pytest.raises(KeyError), scope:
        scope.record(scale(x.partition(TILE), 2.0).map(lambda _: {}["missing"]))
    with pytest.raises(ValueError, match="has no graph: nothing was recorded in it"):
        scope.graph  # noqa: B018
    scale(x.partition(TILE), 3.0).sync_on(stream)
    assert (host(x) == 3).all()
    with tk.CudaGraph.scope(stream) as again:
        again.record(scale(x.partition(TILE), 2.0))
    again.graph.launch().sync_on(stream)
    assert (host(x) == 6).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_ends_a_scope_the_thread_can_run_ops_again(device, stream, error):
    with pytest.raises(error), tk.CudaGraph.scope(stream):
        raise error
    assert (host(new(4)) == 4).all()


def test_running_in_a_scope_is_refused(device, stream):
    x = new(1)
    with tk.CudaGraph.scope(stream) as scope:
        scope.record(scale(x.partition(TILE), 2.0))
        with pytest.raises(RuntimeError, match=r"cannot run while <CudaGraph.scope on .*> records"):
            scale(x.partition(TILE), 2.0).sync()
        with pytest.raises(RuntimeError, match="cannot run while"):
            scale(x.partition(TILE), 2.0).async_on(stream)

        async def awaited():
            await scale(x.partition(TILE), 2.0)

        with pytest.raises(RuntimeError, match="cannot run while"):
            asyncio.run(awaited())
        with pytest.raises(RuntimeError, match="cannot be recorded while"):
            scale(x.partition(TILE), 2.0).graph()
        with pytest.raises(RuntimeError, match="cannot begin while"), tk.CudaGraph.scope(stream):
            pass
    scope.graph.launch().sync()
    assert (host(x) == 2).all()


def test_a_failure_that_a_scope_swallows_leaves_no_graph(device, stream):
    x = new(1)
    scope = tk.CudaGraph.scope(stream)

    def swallowed():
        with scope:
            with contextlib.suppress(ZeroDivisionError):
                scope.record(scale(x.partition(TILE), 2.0).map(lambda _: 1 // 0))
            scope.record(scale(x.partition(TILE), 2.0))

    with pytest.raises(RuntimeError, match="an op was not recorded, so there is no graph: .*division"):
        swallowed()
    assert (host(x) == 1).all()


def test_a_scope_is_for_one_thread_and_one_time(device, stream):
    x, told = new(1), []

    def other():
        try:
            scope.record(scale(x.partition(TILE), 2.0))
        except RuntimeError as error:
            told.append(str(error))

    with tk.CudaGraph.scope(stream) as scope:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another thread's" in told[0]
    with pytest.raises(RuntimeError, match="it has not begun, or is over"):
        scope.record(scale(x.partition(TILE), 2.0))
    with pytest.raises(RuntimeError, match="has been entered before"), scope:
        pass


# what is refused


def test_waiting_on_the_host_is_refused(device, record):
    x = new(1)
    waits = [
        lambda: tk.host_fn(print),
        lambda: x.to_host().then(lambda array: api.from_host(array + 1)),
        lambda: x.to_host().map(sum),
        lambda: scale(x.partition(TILE), 2.0).or_else(lambda error: tk.value(error)),
    ]
    for make in waits:
        with pytest.raises(TypeError, match="cannot be recorded: in the middle of it the host waits for the device"):
            record(make())
    assert (host(x) == 1).all()


def test_a_failing_op_leaves_nothing_behind(device, record, stream):
    x = new(1)
    device.synchronize()
    with pytest.raises(ZeroDivisionError) as caught:
        record(x.dup().then(lambda y: scale(y.partition(TILE), 2.0)).map(lambda _: 1 // 0))
    assert any("built at" in note for note in caught.value.__notes__)
    del caught
    gc.collect()
    scale(x.partition(TILE), 2.0).sync_on(stream)
    assert (host(x) == 2).all()


def test_recording_in_a_closure_is_refused(device):
    x = new(1)
    with pytest.raises(RuntimeError, match="cannot be recorded while"):
        x.dup().map(lambda y: scale(y.partition(TILE), 2.0).graph()).sync()


def test_running_in_a_closure_of_what_is_recorded_is_refused(device, record):
    x = new(1)
    with pytest.raises(RuntimeError, match="cannot run while"):
        record(x.dup().map(lambda y: y.to_host().sync()))


def test_the_stream_of_a_recording_cannot_be_waited_for(device, record):
    for ask in (lambda s: s.synchronize(), lambda s: s.query(), lambda s: s.add_callback(print)):
        with pytest.raises(TypeError, match="cannot be recorded: it (waits|asks|adds)"):
            record(tk.with_context(lambda ctx, ask=ask: tk.value(ask(ctx.stream))))


def test_borrowed_memory_is_refused(device, record):
    x = new(1)
    bare = tk.from_pointer(x.address, N, tk.float32)
    with pytest.raises(ValueError, match="uses borrowed memory"):
        record(scale(bare.partition(TILE), 2.0))


def test_another_devices_work_is_refused(record, pair):
    here, there = pair
    with tk.use_device(here):
        x = new(1)
        for op in (x.to(there), tk.zip(x.dup(), api.ones(4).on(there))):
            with pytest.raises(TypeError, match="cannot be recorded: (a part of it runs on|it copies from) "):
                record(tk.zip(x.dup(), op))


def test_closed_graphs_are_refused(device, record):
    recorded = record(scale(new(1).partition(TILE), 2.0))
    waiting = recorded.launch()
    recorded.close()
    recorded.close()
    for use in (recorded.launch, waiting.sync, lambda: recorded.bind(x=1)):
        with pytest.raises(ValueError, match="is closed"):
            use()
    assert "closed" in repr(recorded)


# memory


def test_recorded_tensors_are_kept_alive(device, record):
    """A hole of cuTile Rust's graphs: nothing there keeps what was recorded alive."""
    target = new(0)
    x = new(3)
    recorded = record(saxpy(target.partition(TILE), 1.0, x))
    storage = weakref.ref(x.storage)
    del x
    gc.collect()
    assert storage() is not None
    others = [new(-7) for _ in range(16)]
    recorded.launch().sync()
    assert (host(target) == 3).all()
    del others, recorded
    gc.collect()
    device.synchronize()
    assert storage() is None


def test_a_launch_keeps_the_graph_alive(device, record):
    x = new(1)
    launch = record(scale(x.partition(TILE), 2.0)).launch()
    gc.collect()
    launch.sync()
    assert (host(x) == 2).all()


def test_allocation_belongs_to_the_graph(device, record):
    """Another of its holes: memory that lazy arguments allocate in a capture."""
    target = new(0)
    recorded = record(saxpy(target.partition(TILE), 1.0, api.full(N, 2.0)))
    others = [new(-7) for _ in range(16)]
    for _ in range(3):
        recorded.launch().sync()
    assert (host(target) == 6).all()
    assert all((host(other) == -7).all() for other in others)


def used_bytes(device):
    device.synchronize()
    gc.collect()
    device.synchronize()
    return memory.stats(device).used_bytes


def test_memory_comes_back_when_the_graph_goes(device, record):
    x = new(1, 1 << 20)
    before = used_bytes(device)
    recorded = record(x.dup().then(lambda y: scale(y.partition(TILE), 2.0)).then(lambda done: done[0].unpartition().dup()))
    for _ in range(3):
        recorded.launch().sync()
    assert used_bytes(device) > before
    del recorded
    assert used_bytes(device) <= before


def test_what_is_given_up_on_the_way_is_used_again(device, record):
    """A chain of 20 copies needs two blocks, not 20; the result is one of them."""
    x = new(1, 1 << 20)
    before = used_bytes(device)
    op = x.dup()
    for _ in range(19):
        op = op.then(lambda y: y.dup())
    recorded = record(op)
    assert used_bytes(device) - before <= 3 * x.nbytes
    recorded.launch().sync()
    assert (host(recorded.output) == 1).all()


def test_the_output_outlives_the_graph(device, record):
    recorded = record(new(4).dup())
    recorded.launch().sync()
    out = recorded.output
    recorded.close()
    del recorded
    gc.collect()
    others = [new(-1) for _ in range(8)]
    assert (host(out) == 4).all()
    del others


def test_a_graph_that_goes_while_it_runs(device):
    """Closed, or dropped, behind its launch: the launch is done all the same."""
    x = new(0, dtype=tk.int32)
    with device.stream() as stream:
        for i in range(COUNT):
            graph = add(x.partition(TILE), 1).then(lambda done: api.dup(done[0].unpartition())).graph()
            graph.launch().async_on(stream)
            if i % 2:
                graph.close()
            del graph
        stream.synchronize()
    assert (host(x) == COUNT).all()


# what can be part of it


def test_parts_side_by_side_are_branches(device, record):
    x = new(1)

    def branch(n):
        return x.dup().then(lambda y: scale(y.partition(TILE), n)).first().unpartition()

    op = tk.zip(branch(2.0), branch(3.0), branch(5.0), parallel=True).apply(lambda a, b, c: total(a.partition(TILE), b, c))
    recorded = record(op)
    before = [node.after for node in recorded.nodes]
    assert sum(not after for after in before) == 3, "three begin"
    assert len(before[-1]) >= 2, "and the last waits for the others"
    for _ in range(3):
        recorded.launch().sync()
        assert (host(recorded.output[0].unpartition()) == 8).all()


def test_branches_that_share_memory_are_in_order(device, record):
    x = new(0, dtype=tk.int32)
    op = tk.zip(*(add(x.partition(TILE), 1) for _ in range(6)), parallel=True)
    recorded = record(op)
    recorded.launch().sync()
    recorded.launch().sync()
    assert (host(x) == 12).all()


def test_policies_give_way_to_the_launch(device, record):
    x = new(1)
    policy = tk.StreamPoolRoundRobin(device, 2)
    recorded = record(scale(x.partition(TILE), 2.0).with_policy(policy).then(lambda done: scale(done[0], 3.0).on(device)))
    recorded.launch().sync()
    assert (host(x) == 6).all()


def test_shared_parts_run_once_in_each_launch(device, record):
    x = new(0, dtype=tk.int32)
    once = add(x.partition(TILE), 1).shared()
    recorded = record(tk.zip(once, once, once.then(lambda done: add(done[0], 10))))
    recorded.launch().sync()
    assert (host(x) == 11).all()
    with pytest.raises(ValueError, match="has already run"):
        once.sync()


def test_a_shared_op_that_has_run_is_used_as_it_is(device, record):
    x = new(0, dtype=tk.int32)
    once = add(x.partition(TILE), 1).shared()
    once.sync()
    recorded = record(once.then(lambda done: add(done[0], 10)))
    recorded.launch().sync()
    assert (host(x) == 11).all()


def test_elements_of_a_result(device, record):
    a, b = total(api.empty(N).partition(TILE), api.full(N, 1.0), api.full(N, 2.0)).unzip()[:2]
    recorded = record(tk.zip(a, b))
    recorded.launch().sync()
    out, one = recorded.output
    assert (host(out.unpartition()) == 3).all()
    assert (host(one) == 1).all()


def test_a_graph_in_a_graph(device, record):
    x = new(0, dtype=tk.int32)
    inner = record(add(x.partition(TILE), 1).then(lambda done: add(done[0], 10)))
    outer = record(tk.zip(inner.launch(), add(x.partition(TILE), 100), inner.launch()))
    assert len(outer) == 3
    del inner
    gc.collect()
    outer.launch().sync()
    outer.launch().sync()
    assert (host(x) == 244).all()


def test_a_graph_that_is_a_part_cannot_be_bound(device, record):
    x, y = new(1), new(5)
    target = new(0)
    inner = record(saxpy(target.partition(TILE), 1.0, tk.slot("x", x)))
    inner.bind(x=y)
    outer = record(inner.launch())
    with pytest.raises(ValueError, match="is part of another recorded op"):
        inner.bind(x=x)
    outer.launch().sync()
    assert (host(target) == 5).all()


def test_random_numbers_are_the_same_at_each_launch(device, record):
    recorded = record(api.randn(0.0, 1.0, N, seed=3))
    expected = host(api.randn(0.0, 1.0, N, seed=3).sync())
    for _ in range(2):
        np.testing.assert_array_equal(host(recorded.launch().sync()), expected)


def test_ready_made_kernels_can_be_recorded(device, record):
    from tilekit import kernels

    x, w = api.randn(0.0, 1.0, (16, 64), seed=1).sync(), api.ones(64).sync()
    recorded = record(kernels.rms_norm(x, w).then(lambda y: kernels.softmax(y)))
    expected = host(kernels.softmax(kernels.rms_norm(x, w).sync()).sync())
    np.testing.assert_array_equal(host(recorded.launch().sync()), expected)


def random_op(pick, tensors):
    """Work on all tensors: chains, parts side by side, parts that are shared, copies, fills and new memory."""

    def part(depth):
        kind = pick(["saxpy", "scale", "copy", "fill", "dup", "zip", "parallel", "chain", "shared"][: 9 if depth else 5])
        y, x = pick(tensors), pick(tensors)
        if kind in ("zip", "parallel"):
            return tk.zip(*(part(depth - 1) for _ in range(3)), parallel=kind == "parallel")
        if kind == "chain":
            first, second = part(depth - 1), part(depth - 1)
            return first.then(lambda _: second)
        if kind == "shared":
            once = part(depth - 1).shared()
            return tk.zip(once, part(depth - 1), once)
        if kind == "saxpy" and x is not y:
            return saxpy(y.partition(TILE), pick([0.5, -1.0]), x)
        if kind == "copy":
            return api.memcpy(y, x)
        if kind == "fill":
            return y[:: pick([1, 2])].fill(pick([1.0, 2.0]))
        if kind == "dup":
            return x.dup().then(lambda t: saxpy(y.partition(TILE), 0.25, t))
        return scale(y.partition(TILE), pick([0.5, -1.0]))

    return tk.join_all([part(3) for _ in range(3)])


@pytest.mark.parametrize("seed", range(40))
def test_random_work_replays_to_what_it_is_when_it_is_run(device, record, seed):
    start = [np.arange(N, dtype=np.float32) % 7 + i for i in range(4)]
    compiling, ran, replayed = ([api.from_host(array).sync() for array in start] for _ in range(3))
    random_op(random.Random(seed).choice, compiling).sync()  # a part whose kernel is not compiled lets others go first
    for _ in range(3):
        random_op(random.Random(seed).choice, ran).sync()
    recorded = record(random_op(random.Random(seed).choice, replayed))
    for _ in range(3):
        recorded.launch().sync()
    for one, other in zip(ran, replayed, strict=True):
        np.testing.assert_array_equal(host(one), host(other))


# prepared ops


def test_what_is_recorded_runs_on_a_stream(device, stream, record):
    x = new(0, dtype=tk.int32)
    prepared = record(add(x.partition(TILE), tk.slot("n", 1)))
    for i in range(5):
        assert prepared.run(stream, n=i) is None
    prepared.run(stream)
    stream.synchronize()
    assert (host(x) == 14).all()
    prepared.run(stream.address if device.kind == "cuda" else stream)
    done, _ = prepared.sync_on(stream, n=3)
    assert (host(x) == 21).all()
    assert done.unpartition().address == x.address
    with pytest.raises(RuntimeError, match="cannot run while"):
        api.ones(3).map(lambda _: prepared.run(stream)).sync()


def test_a_prepared_op_on_a_closed_stream(device):
    prepared = add(new(0, dtype=tk.int32).partition(TILE), 1).prepare()
    stream = device.stream()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        prepared.run(stream)


def test_others_wait_for_a_prepared_run(device):
    x = new(0, dtype=tk.int32)
    with device.stream() as a, device.stream() as b:
        prepared = add(x.partition(TILE), 1).prepare()
        for i in range(20):
            prepared.run(a if i % 2 else b)
    assert (host(x) == 20).all()


# pictures


def test_graphviz(device):
    x = new(1)
    graph = tk.zip(scale(x.partition(TILE), 2.0), api.memcpy(new(0), x)).graph()
    assert graph.graphviz() == (
        'digraph graph_ {\n    node [shape=box];\n    n0 [label="kernel scale"];\n    n1 [label="copy"];\n    n0 -> n1;\n}\n'
    )
    assert repr(graph) == "<CUDA graph Zip: 2 nodes>"


# many threads


def test_replays_from_eight_threads(device):
    x = new(0, dtype=tk.int32)
    recorded = add(x.partition(TILE), tk.slot("n", 1)).then(lambda done: add(done[0], 1)).graph()
    failures = []

    def replay():
        try:
            with device.stream() as stream:
                for _ in range(COUNT):
                    recorded.launch().sync_on(stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replay) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (host(x) == 16 * COUNT).all()


def test_bindings_and_updates_during_replays(device):
    """Each launch sees all of one binding, never a half of two: a and b are always a pair."""
    pairs = [(i, 1000 - i) for i in range(50)]
    target, extra = new(0, dtype=tk.int32), new(0, dtype=tk.int32)
    graph = add(target.partition(TILE), tk.slot("a", 0)).then(lambda done: add(done[0], tk.slot("b", 1000))).graph()
    failures, launched = [], [0]

    def replay():
        try:
            for _ in range(COUNT):
                graph.launch().sync()
                launched[0] += 1
                graph.update(add(extra.partition(TILE), 1)).result(timeout_s=60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    at = 0
    while any(thread.is_alive() for thread in threads):
        a, b = pairs[at % len(pairs)]
        graph.bind(a=a, b=b)
        at += 1
    for thread in threads:
        thread.join()
    assert not failures
    assert (host(target) == 1000 * 2 * COUNT).all()
    assert (host(extra) == 2 * COUNT).all()
