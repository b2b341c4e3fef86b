"""What cuTile Rust's CUDA graphs do, in the order of its own description, and the holes that were found in them."""

import gc

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

N, TILE = 1000, 256


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


def host(tensor):
    return tensor.to_host().sync()


def test_cuda_graph_capture(device, streams):
    """`CudaGraph::capture(stream, op)` and `op.graph_on(stream)` are one."""
    x = api.ones(N).sync()
    for capture in (tk.CudaGraph.capture, lambda stream, op: op.graph_on(stream)):
        capture(streams[0], scale(x.partition(TILE), 2.0)).launch().sync_on(streams[0])
    assert (host(x) == 4).all()


def test_capture_does_not_execute(device, streams):
    """Its documentation says that a capture executes once. Its source does not, nor does this: a launch defines the output."""
    x = api.ones(N).sync()
    graph = scale(x.partition(TILE), 2.0).graph_on(streams[0])
    assert (host(x) == 1).all()
    graph.launch().sync()
    assert (host(graph.take_output()[0].unpartition()) == 2).all()


def test_capture_returns_the_error_of_the_op(device, streams):
    with pytest.raises(ZeroDivisionError):
        api.ones(N).map(lambda _: 1 // 0).graph_on(streams[0])
    assert (host(api.ones(N).sync_on(streams[0])) == 1).all()


def test_capture_accepts_any_op_also_one_that_allocates(device, streams):
    graph = api.zeros(N).then(lambda t: saxpy(t.partition(TILE), 1.0, api.ones(N))).graph_on(streams[0])
    for _ in range(2):
        assert (host(graph.launch().sync()[0].unpartition()) == 1).all()


def test_scope_records_step_by_step(device, streams):
    x = api.ones(N).sync()
    with tk.CudaGraph.scope(streams[0]) as s:
        s.record(scale(x.partition(TILE), 2.0))
        s.record(scale(x.partition(TILE), 3.0))
    s.graph.launch().sync()
    assert (host(x) == 6).all()


def test_scope_takes_the_execution_lock(device, streams):
    """One op at a time is executed by a thread: in a scope, sync and await are errors."""
    x = api.ones(N).sync()
    with tk.CudaGraph.scope(streams[0]) as s:
        s.record(scale(x.partition(TILE), 2.0))
        with pytest.raises(RuntimeError, match="cannot run while"):
            api.ones(N).sync()


def test_scope_survives_a_panic(device, streams):
    with pytest.raises(KeyboardInterrupt), tk.CudaGraph.scope(streams[0]):
        raise KeyboardInterrupt
    assert (host(api.ones(N).sync_on(streams[0])) == 1).all()


def test_record_consumes_the_op(device, streams):
    """And so the next one may use the same buffer."""
    x = api.ones(N).sync()
    op, zeros = scale(x.partition(TILE), 2.0), api.zeros(N).sync()
    with tk.CudaGraph.scope(streams[0]) as s:
        s.record(op)
        s.record(api.memcpy(x, zeros))
    with pytest.raises(ValueError, match="has already run"):
        op.sync()
    s.graph.launch().sync()
    assert (host(x) == 0).all()


def test_graph_nodes_are_launches_copies_and_values(device, streams):
    """There only these can be recorded, and lazy arguments slip through. Here these have memory of the graph's."""
    x = api.ones(N).sync()
    with tk.CudaGraph.scope(streams[0]) as s:
        s.record(saxpy(x.partition(TILE), 1.0, api.full(N, 2.0)))
        s.record(api.memcpy(x, x))
        assert s.record(tk.value(5)) == 5
    s.graph.launch().sync()
    assert (host(x) == 3).all()


def test_graph_launch_can_be_recorded(device, streams):
    """Child graphs, which cannot be recorded there."""
    x = api.ones(N).sync()
    inner = scale(x.partition(TILE), 2.0).graph_on(streams[0])
    with tk.CudaGraph.scope(streams[0]) as s:
        s.record(inner.launch())
        s.record(inner.launch())
    s.graph.launch().sync()
    assert (host(x) == 4).all()


def test_take_output_once(device, streams):
    graph = api.ones(N).graph_on(streams[0])
    graph.take_output()
    with pytest.raises(ValueError, match="taken already"):
        graph.take_output()


def test_update_executes_an_op_on_the_graphs_stream(device, streams, where):
    graph = api.ones(N).graph_on(streams[0])
    assert graph.update(where()).result(timeout_s=60) is graph.stream is streams[0]


def test_launch_is_an_op_on_any_stream(device, streams):
    x = api.ones(N).sync()
    graph = scale(x.partition(TILE), 2.0).graph_on(streams[0])
    for stream in streams:
        graph.launch().async_on(stream)
    device.synchronize()
    assert (host(x) == 16).all()


def test_module_forward(device):
    """`Module`: a model whose forward pass is recorded at the first call."""

    class Module:
        def __init__(self):
            self.weights = api.full(N, 3.0).sync()
            self.forward = tk.graphed(self.forward)

        def forward(self, x):
            return saxpy(x.dup().partition(TILE), 2.0, self.weights).first().unpartition()

    module = Module()
    for start in (1.0, 5.0):
        assert (host(module.forward(api.full(N, start)).sync()) == start + 6).all()


# holes


def test_recorded_tensors_stay_alive(device, streams):
    y = api.zeros(N).sync()
    graph = saxpy(y.partition(TILE), 1.0, api.full(N, 4.0).sync()).graph_on(streams[0])
    gc.collect()
    others = [api.full(N, -1.0).sync() for _ in range(8)]
    graph.launch().sync()
    assert (host(y) == 4).all()
    del others


def test_a_graph_launch_keeps_its_graph_alive(device, streams):
    x = api.ones(N).sync()
    launch = scale(x.partition(TILE), 2.0).graph_on(streams[0]).launch()
    gc.collect()
    launch.sync()
    assert (host(x) == 2).all()


def test_pointers_and_scalars_need_not_be_baked_in(device, streams):
    x, other, y = api.ones(N).sync(), api.full(N, 10.0).sync(), api.zeros(N).sync()
    graph = saxpy(y.partition(TILE), tk.slot("a", 1.0), tk.slot("x", x)).graph_on(streams[0])
    graph.launch().sync()
    graph.bind(a=2.0, x=other).launch().sync()
    np.testing.assert_array_equal(host(y), 21)
