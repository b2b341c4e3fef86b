"""`tk.graphed`: calls that replay a graph for arguments like those before, with results of their own."""

import gc
import threading

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels, memory

N, TILE = 1000, 256


@tk.kernel
def axpy(y: tk.Out, a, x: tk.In, z: tk.In):
    y.store(a * tk.load_tile_like(x, y) + tk.load_tile_like(z, y))


@tk.kernel
def add(y: tk.InOut, n: int):
    y.store(y.load() + n)


def host(tensor):
    return tensor.to_host().sync()


def new(value, n=N):
    return api.full(n, value).sync()


@pytest.fixture
def blend():
    calls = []

    @tk.graphed
    def blend(x, z, a=2.0):
        calls.append(x.shape)
        return axpy(api.empty(x.shape).partition(TILE), a, x, z).first().unpartition()

    blend.calls = calls
    return blend


def test_a_call_does_nothing_and_the_function_is_called_once(device, blend):
    ops = [blend(new(i), new(10)) for i in range(4)]
    assert blend.calls == []
    for i, op in enumerate(ops):
        assert (host(op.sync()) == 2 * i + 10).all()
    assert blend.calls == [(N,)]
    assert (blend.graphs, blend.recorded) == (1, 1)


def test_results_are_new_at_each_call(device, blend):
    results = [blend(new(i), new(0)).sync() for i in range(6)]
    gc.collect()
    for i, result in enumerate(results):
        assert (host(result) == 2 * i).all()
    assert len({result.address for result in results}) == 6


def test_other_arguments_take_another_graph(device, blend):
    a, b = new(1), new(2)
    for call in (lambda: blend(a, b), lambda: blend(a, b, 3.0), lambda: blend(new(1, 64), new(2, 64)), lambda: blend(a, a)):
        call().sync()
    assert blend.recorded == 4
    blend(b, a, 3.0).sync()
    blend(b, b).sync()
    assert blend.recorded == 4
    assert (host(blend(b, b).sync()) == 6).all()
    assert (host(blend(x=a, z=b).sync()) == 4).all()


def test_one_and_one_point_nought_and_true_are_different(device):
    seen = []

    @tk.graphed
    def f(x, a):
        seen.append(a)
        return x.dup()

    for a in (1, 1.0, True, 1):
        f(new(0), a).sync()
    assert list(map(type, seen)) == [int, float, bool]


def test_the_least_recently_used_graph_goes(device):
    @tk.graphed(most=2)
    def f(x):
        return x.dup()

    shapes = {n: new(n, n) for n in (16, 32, 64)}
    for n in (16, 32, 16, 64):
        f(shapes[n]).sync()
    assert (f.graphs, f.recorded) == (2, 3)
    f(shapes[16]).sync()
    assert f.recorded == 3
    f(shapes[32]).sync()
    assert f.recorded == 4
    f.clear()
    assert f.graphs == 0


def test_arguments_that_are_ops(device, blend):
    assert (host(blend(api.ones(N), api.full(N, 5.0)).sync()) == 7).all()
    assert (host(blend(blend(api.ones(N), new(1)), api.zeros(N)).sync()) == 6).all()
    assert blend.recorded == 1


def test_nested_arguments(device):
    @tk.graphed
    def model(x, layers):
        op = tk.value(x)
        for weights in layers:
            op = op.then(lambda h, w=weights: kernels.rms_norm(h, w["norm"]))
        return op

    x = api.randn(0.0, 1.0, (4, 64), seed=1).sync()
    for seed in (2, 3):
        layers = [{"norm": api.randn(0.0, 1.0, 64, seed=10 * seed + i).sync()} for i in range(3)]
        expected = x
        for weights in layers:
            expected = kernels.rms_norm(expected, weights["norm"]).sync()
        np.testing.assert_array_equal(host(model(x, layers).sync()), host(expected))
    assert model.recorded == 1


def test_arguments_may_lie_where_the_last_result_lay(device):
    """The memory of a result is its owner's: what lies there is no longer what the graph writes."""

    @tk.graphed
    def scaled(x, weight):
        return kernels.rms_norm(x, weight)

    x = api.randn(0.0, 1.0, (4, 64), seed=1).sync()
    weight = scaled(x, api.ones(64)).sync()[0]
    expected = host(kernels.rms_norm(x, weight).sync())
    np.testing.assert_array_equal(host(scaled(x, weight).sync()), expected)
    with pytest.raises(ValueError, match="weight has shape"):
        scaled(x, api.ones(32)).sync()
    np.testing.assert_array_equal(host(scaled(x, weight).sync()), expected)
    assert scaled.recorded == 1


def test_in_place_work_and_results_that_are_arguments(device):
    @tk.graphed
    def bump(x, n):
        return add(x.partition(TILE), n)

    x, y = api.zeros(N, tk.int32).sync(), api.zeros(N, tk.int32).sync()
    for target in (x, y, x):
        done, n = bump(target, 3).sync()
        assert done.unpartition().address == target.address
        assert n == 3
    assert (host(x) == 6).all()
    assert (host(y) == 3).all()
    assert bump.recorded == 1


def test_parts_of_one_tensor(device, blend):
    rows = api.arange(4 * 1024, dtype=tk.float32).sync().reshape(4, 1024)
    for i, j in ((0, 1), (2, 3), (3, 0)):
        np.testing.assert_array_equal(host(blend(rows[i], rows[j]).sync()), 2 * host(rows[i]) + host(rows[j]))
    assert blend.recorded == 1
    np.testing.assert_array_equal(host(blend(rows[1], rows[1]).sync()), 3 * host(rows[1]))
    assert blend.recorded == 2


def test_in_another_graph_it_is_a_part_of_that(device, blend):
    x = new(1)
    graph = blend(x, new(2)).then(lambda y: blend(y, x)).graph()
    assert (host(graph.launch().sync()) == 9).all()
    assert blend.graphs == 0


def test_streams_threads_and_order(device, blend):
    x, z = new(1), new(0)
    failures = []

    def call(i):
        try:
            with device.stream() as stream:
                for _ in range(25):
                    y = blend(x, z).async_on(stream).result(timeout_s=60)
                    y = blend(y, x).sync()
                    assert (host(y) == 5).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert blend.recorded == 1


def test_wrong_uses_are_refused(device, blend):
    with pytest.raises(TypeError, match="takes a function that builds an op, not 3"):
        tk.graphed(3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        tk.graphed(most=0)
    x = new(1)
    for wrong, message in [
        (np.ones(3), r"ndarray: copy it to the device: api.from_host\(array\)"),
        (x.partition(TILE), "Partition: pass the tensor, and cut it in the function"),
        (api.meta(3, tk.float32), "a meta tensor, without memory"),
        ({1, 2}, "set, which cannot be told from others: it has no hash"),
        ([api.ones(3).sync(), {"a": np.ones(3)}], "ndarray: copy it"),
    ]:
        with pytest.raises(TypeError, match=f"graphed blend: .*{message}"):
            blend(x, wrong)
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="graphed blend: an argument contains itself"):
        blend(x, endless).sync()
    pair = type("Pair", (tuple,), {"__new__": lambda cls, a, b: tuple.__new__(cls, (a, b))})(x, x)
    with pytest.raises(TypeError, match="Pair is no tuple or list that its elements make"):
        tk.graphed(named_f(lambda pair: pair[0].dup()))(pair).sync()
    with pytest.raises(TypeError, match="graphed f: the function returned Tensor, not an op"):
        tk.graphed(named_f(lambda x: x))(x).sync()
    with pytest.raises(TypeError, match=r"graphed f: its result is the host's, one array for all calls.*f\(...\).to_host\(\)"):
        tk.graphed(named_f(lambda x: x.to_host()))(x).sync()
    inner = x.dup().graph()
    with pytest.raises(TypeError, match="graphed f: its op has work of other libraries in it, or a graph"):
        tk.graphed(named_f(lambda x: inner.launch()))(x).sync()
    with pytest.raises(ZeroDivisionError):
        tk.graphed(named_f(lambda x: 1 // 0))(x).sync()


def named_f(function):
    function.__name__ = "f"
    return function


def test_memory_of_results_comes_back(device, blend):
    x, z = new(1, 1 << 20), new(2, 1 << 20)
    blend(x, z).sync()

    def used():
        gc.collect()
        device.synchronize()
        return memory.stats(device).used_bytes

    before = used()
    results = [blend(x, z).sync() for _ in range(4)]
    assert used() - before > 3.9 * x.nbytes
    del results
    assert used() <= before
