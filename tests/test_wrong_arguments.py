"""Arguments that fuzzing found to fail from the inside: each is refused, with what was wrong, where it is passed."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels


@tk.kernel
def scale(y: tk.InOut, a: float):
    y.store(y.load() * a)


class Policy:
    def __init__(self, stream):
        self.stream = stream

    def next_stream(self):
        return self.stream


def launch():
    return scale(api.zeros(4).sync().partition(4), 2.0)


@pytest.mark.parametrize("method", ["then", "and_then", "apply", "map", "inspect", "or_else", "and_then_with_context"])
def test_what_is_no_function_is_refused_where_it_is_passed(device, method):
    with pytest.raises(TypeError, match="takes a function, not int"):
        getattr(api.ones(4), method)(5)


@pytest.mark.parametrize("make", [tk.with_context, tk.host_fn])
def test_what_is_no_function_is_no_op(make):
    with pytest.raises(TypeError, match="takes a function, not int"):
        make(5)


@pytest.mark.parametrize("method", ["to_host", "partition", "scattered", "reshape", "permute", "astype", "dup", "reinterpret"])
def test_methods_of_a_result_that_has_them_not(device, method):
    arguments = {"partition": (4,), "reshape": (4,), "astype": (tk.int32,), "reinterpret": (tk.int32,)}.get(method, ())
    with pytest.raises(TypeError, match=f"{method}: .* gave tuple"):
        getattr(tk.zip(api.ones(4), 5), method)(*arguments).sync()


def test_an_array_is_not_partitioned_as_numpy_does(device):
    with pytest.raises(TypeError, match="partition: .* gave ndarray"):
        api.ones(4).to_host().partition(2).sync()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda op: op.schedule("pool"), TypeError, "no scheduling policy"),
        (lambda op: op.with_policy("pool"), TypeError, "no scheduling policy"),
        (lambda op: op.schedule(Policy(7)), TypeError, r"the policy .* gave 7: its next_stream\(\) returns a stream"),
        (lambda op: op.with_policy(Policy(None)).sync(), TypeError, "the policy .* gave None"),
        (lambda op: op.named(3), TypeError, "a name is a str"),
        (lambda op: op.unzip(2**64), ValueError, "no number of results"),
        (lambda op: op.unzip("two"), TypeError, "is an int, not str"),
        (lambda op: tk.zip(op, parallel=np.ones(2)), TypeError, "parallel is True or False"),
        (lambda op: tk.CudaGraph.capture(op, 5), TypeError, "records an op, not int"),
    ],
)
def test_ops(device, call, error, text):
    op = api.ones(4)
    with pytest.raises(error, match=text):
        call(op)
    op.consumed()


@pytest.mark.parametrize("ops", [5, np.array(3.0)])
def test_what_cannot_be_joined(ops):
    with pytest.raises(TypeError, match="join_all takes one list of ops"):
        tk.join_all(ops)


@pytest.mark.parametrize("make", [lambda: tk.with_context(tk.value), lambda: tk.host_fn(print)])
def test_what_functions_of_the_package_build_knows_its_line(make):
    op = make()
    assert op.where().startswith(__file__)
    op.consumed()


def test_an_op_by_itself():
    with pytest.raises(TypeError, match="derive a class from it"):
        tk.DeviceOp(4)


def test_graphs(device):
    graph, op = launch().graph(), launch()
    with pytest.raises(TypeError, match="update takes an op, not ndarray"):
        graph.update(np.zeros(4))
    with tk.CudaGraph.scope() as scope:
        with pytest.raises(TypeError, match="record takes an op, not int"):
            scope.record(5)
        scope.record(op)


def test_events(device):
    with device.stream() as stream, device.event(timing=True) as event:
        with pytest.raises(TypeError, match="is no stream"):
            event.record("stream")
        event.record(stream)
        with pytest.raises(TypeError, match="is no stream"):
            event.wait(None)
        with pytest.raises(TypeError, match="the event at the end, not float"):
            event.elapsed_ms(1.0)


def test_callbacks(device):
    with device.stream() as stream:
        with pytest.raises(TypeError, match="takes a function, not int"):
            stream.add_callback(5)
        with pytest.raises(TypeError, match="takes a function, not int"):
            api.ones(4).async_on(stream).add_done_callback(5)


def test_devices_and_pools(device):
    with pytest.raises(TypeError, match="priority is an int, not str"):
        device.stream("high")
    with pytest.raises(ValueError, match="at most 4096"):
        tk.StreamPoolRoundRobin(device, 2**70)
    assert tk.StreamPoolRoundRobin("cpu", 1).next_stream().device is tk.Device("cpu")


def test_what_numpy_makes_no_array_of(device):
    with pytest.raises(TypeError, match="from_host: NumPy makes no array of this list"):
        api.from_host([[1, 2], [3]])


def test_tensors(device):
    x = api.zeros((4, 4)).sync()
    with pytest.raises(TypeError, match="shares_memory compares two tensors"):
        x.shares_memory(None)
    with pytest.raises(TypeError, match="dl_device"):
        x.__dlpack__(dl_device=5)
    with pytest.raises(TypeError):
        x.permute("ab")
    with pytest.raises(TypeError, match="not a dtype"):
        api.zeros(4, dtype="\ud800")


def test_launches(device):
    with pytest.raises(ValueError, match="num_warps is a power of two"):
        launch().num_warps(np.ones(2))
    with pytest.raises(TypeError, match="a target is a str"):
        launch().compile(target=["sm_80"])
    x = api.zeros((4, 4)).sync()
    with pytest.raises(TypeError, match="p is a number"):
        kernels.dropout(x, np.ones(4), 1)
    with pytest.raises(TypeError, match="operands is a tuple"):
        kernels.gemm(x, x, operands=5)
