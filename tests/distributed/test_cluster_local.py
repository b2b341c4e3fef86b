"""Clusters of this process's devices: workers, results that stay on them, and who may do what."""

from __future__ import annotations

import asyncio
import copy
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, distributed
from tilekit.distributed import Cluster, Remote, Worker, WorkerLostError, mapping
from tilekit.distributed.arguments import leaves, turned

LIMIT_S = 30


@tk.kernel
def scale(y: tk.InOut, factor: float):
    y.store(y.load() * factor)


def scaled(x, factor=2.0):
    return scale(x.dup().partition((4, 4)), factor).first().unpartition()


@pytest.fixture
def cluster(cpu_devices):
    with distributed.connect("local", cpu_devices(3)) as opened:
        yield opened


@pytest.fixture
def x():
    return np.arange(16, dtype=np.float32).reshape(4, 4)


def test_a_worker_for_each_device(cluster):
    assert [worker.device for worker in cluster.workers] == ["cpu:0", "cpu:1", "cpu:2"]
    assert [worker.rank for worker in cluster.workers] == [0, 1, 2]
    assert all(worker.cluster is cluster for worker in cluster.workers)
    assert repr(cluster) == "<Cluster local: cpu:0, cpu:1, cpu:2>"
    assert repr(cluster.workers[1]) == "<worker 1 of local, cpu:1>"


def test_by_default_all_devices_of_the_default_ones_kind(cpu_devices):
    cpu_devices(2)
    with distributed.connect() as cluster:
        assert [worker.device for worker in cluster.workers] == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("devices", "kind", "text"),
    [
        ([], ValueError, "at least one"),
        (["cpu:0", "cpu"], ValueError, r"differ.*'cpu:0', 'cpu:0'"),
        ("cpu", TypeError, r"write devices=\['cpu'\]"),
        (["cpu:9"], tk.DeviceUnavailableError, "TILEKIT_CPU_DEVICES=10"),
    ],
)
def test_devices_that_cannot_be(cpu_devices, devices, kind, text):
    cpu_devices(2)
    with pytest.raises(kind, match=text):
        distributed.connect("local", devices)


def test_there_are_two_engines():
    with pytest.raises(ValueError, match=r"no engine 'dask'.*\"ray\""):
        distributed.connect("dask")
    with pytest.raises(TypeError, match="takes devices=, not gpus"):
        distributed.connect("local", gpus=2)
    with pytest.raises(TypeError, match="not devices"):
        distributed.connect("ray", ["cpu"])


def test_without_ray_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tilekit.distributed._ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"needs Ray 2.55 or newer.*pip install \"tilekit-cuda\[ray\]"):
        distributed.connect("ray", workers=1)


def test_work_runs_on_the_workers_device_and_stays_there(cluster, x):
    worker = cluster.workers[1]
    result = worker.run(scaled, x, factor=3.0).sync()
    assert isinstance(result, Remote)
    assert result.worker is worker
    assert (result.shape, result.dtype) == ((4, 4), tk.float32)
    assert result.value.device.label == "cpu:1"
    assert repr(result) == "<Remote shape=(4, 4), dtype=float32, on <worker 1 of local, cpu:1>>"
    np.testing.assert_array_equal(result.to_host().sync(), 3 * x)


def test_building_does_nothing(cluster, x):
    calls = []
    op = cluster.workers[0].run(lambda: calls.append(1))
    assert not calls
    op.sync()
    assert calls == [1]
    with pytest.raises(ValueError, match="has already run"):
        op.sync()


def test_the_workers_device_is_the_default_one_in_the_function(cluster):
    assert cluster.workers[2].run(lambda: tk.default_device().label).to_host().sync() == "cpu:2"
    assert cluster.workers[2].run(lambda: api.zeros(3)).sync().value.device.label == "cpu:2"
    assert tk.default_device().label == "cpu:0"


def test_a_remote_arrives_as_its_tensor_and_elsewhere_as_a_copy(cluster, x):
    first, second, third = cluster.workers
    remote = first.put(x).sync()
    assert first.run(lambda t: t, remote).sync().value is remote.value
    for worker in (second, third):
        other = worker.run(scaled, remote).sync()
        assert other.value.device.label == worker.device
        np.testing.assert_array_equal(other.to_host().sync(), 2 * x)
    np.testing.assert_array_equal(remote.to_host().sync(), x)


def test_arguments_in_tuples_lists_and_dicts(cluster, x):
    first, second, _ = cluster.workers
    remote = first.put(x).sync()

    def add(tensors, more, plain):
        assert [type(t) for t in (*tensors, *more.values())] == [tk.Tensor] * 4
        assert {t.device.label for t in (*tensors, *more.values())} == {"cpu:1"}
        return tk.value((plain, tensors[0], more["b"]))

    result = second.run(add, [remote, x], {"a": api.from_host(x).sync(), "b": remote}, plain=(1, "two")).sync()
    assert result.shape is None
    assert result.dtype is None
    assert "of a value" in repr(result)
    plain, one, other = result.to_host().sync()
    assert plain == (1, "two")
    np.testing.assert_array_equal(one, x)
    np.testing.assert_array_equal(other, x)


def test_ops_among_the_arguments_run_before(cluster, x):
    first, second, _ = cluster.workers
    host = second.run(scaled, first.run(scaled, x)).to_host().sync()
    np.testing.assert_array_equal(host, 4 * x)
    np.testing.assert_array_equal(second.run(scaled, api.from_host(x)).to_host().sync(), 2 * x)
    np.testing.assert_array_equal(second.run(scaled, api.from_host(x).to_host()).to_host().sync(), 2 * x)


def test_an_op_that_is_an_argument_twice_runs_once(cluster, x):
    calls = []
    op = tk.host_fn(lambda: calls.append(1) or x)
    result = cluster.workers[0].run(lambda a, b: tk.value(a is b), op, op).to_host().sync()
    assert calls == [1]
    assert result


def test_results_of_any_kind(cluster):
    worker = cluster.workers[0]
    assert worker.run(lambda: None).to_host().sync() is None
    assert worker.run(lambda: "text").to_host().sync() == "text"
    numbers = worker.run(lambda: api.arange(3).to_host()).sync()
    np.testing.assert_array_equal(numbers.to_host().sync(), [0, 1, 2])
    launched = worker.run(lambda: scale(api.ones((4, 4)).partition((2, 2)), 3.0)).to_host().sync()
    np.testing.assert_array_equal(launched[0], np.full((4, 4), 3.0))
    assert launched[1] == 3.0
    held = worker.run(lambda: {"a": [api.ones(2).sync if False else 1]}).to_host().sync()
    assert held == {"a": [1]}


def test_views_go_to_the_host_and_to_others(cluster, x):
    first, second, _ = cluster.workers
    remote = first.run(lambda t: t.T[1:, ::2], x).sync()
    np.testing.assert_array_equal(remote.to_host().sync(), x.T[1:, ::2])
    np.testing.assert_array_equal(remote.to(second).to_host().sync(), x.T[1:, ::2])


def test_put_and_to_know_what_comes(cluster, x):
    op = cluster.workers[0].put(x)
    assert (op.shape, op.dtype) == ((4, 4), tk.float32)
    remote = op.sync()
    moving = remote.to(cluster.workers[1])
    assert moving.shape == (4, 4)
    assert moving.sync().worker is cluster.workers[1]
    assert remote.to(cluster.workers[0]).sync() is remote
    reading = remote.to_host()
    assert reading.dtype == tk.float32
    reading.sync()


def test_put_reads_when_it_runs(cluster, x):
    op = cluster.workers[0].put(x)
    x += 1
    np.testing.assert_array_equal(op.to_host().sync(), x)


def test_chains_with_other_ops(cluster, x):
    first, second, _ = cluster.workers
    op = first.put(x).then(lambda r: second.run(scaled, r)).then(lambda r: r.to_host()).map(np.sum)
    assert op.sync() == 2 * x.sum()
    here, there = tk.zip(api.ones(3).to_host(), second.run(scaled, x), parallel=True).sync()
    assert here.sum() == 3
    np.testing.assert_array_equal(there.to_host().sync(), 2 * x)


def test_awaited(cluster, x):
    async def main():
        remotes = await asyncio.gather(*(worker.run(scaled, x).run() for worker in cluster.workers))
        return [await remote.to_host() for remote in remotes]

    for host in asyncio.run(main()):
        np.testing.assert_array_equal(host, 2 * x)


def test_errors_of_the_user_arrive_as_themselves(cluster, x):
    class Mine(Exception):
        pass

    def bad(t):
        raise Mine("no")

    with pytest.raises(Mine, match="no") as caught:
        cluster.workers[1].run(bad, x).sync()
    assert any("run test_errors" in note and __file__ in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match="writing needs a partition"):
        cluster.workers[1].run(lambda t: scale(t, 2.0), x).sync()
    outside = api.ones(4).on("cpu:0").sync()
    with pytest.raises(ValueError, match=r"works on tensors of"):  # of a device that is not the worker's
        cluster.workers[1].run(lambda: outside.dup()).sync()


def test_the_function_describes_work(cluster):
    with pytest.raises(RuntimeError, match="while .* is being submitted"):
        cluster.workers[0].run(lambda: api.ones(3).sync()).sync()
    assert cluster.workers[0].run(lambda: tk.host_fn(lambda: api.ones(3).to_host().sync().sum())).to_host().sync() == 3


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda w, x: w.run(3), TypeError, "run takes a function"),
        (lambda w, x: w.run(api.ones(3)), TypeError, "run takes a function"),
        (lambda w, x: w.run(scaled, x, retries=-1), ValueError, "cannot be negative"),
        (lambda w, x: w.run(scaled, x, retries=True), TypeError, "retries is an int"),
        (lambda w, x: w.run(scaled, np.array(["a"])), TypeError, "arrive as tensors"),
        (lambda w, x: w.run(scaled, np.ma.array(x)), TypeError, "has a mask"),
        (lambda w, x: w.run(scaled, api.meta(3)), TypeError, "has no memory"),
        (lambda w, x: w.put(np.ma.array(x)), TypeError, "has a mask"),
        (lambda w, x: w.put("text"), TypeError, "dtype"),
        (lambda w, x: w.put([[1], [1, 2]]), TypeError, "makes no array"),
        (lambda w, x: w.put(x).sync().to("cpu:1"), TypeError, "to takes a worker"),
        (lambda w, x: w.cluster.map(3, []), TypeError, "map takes a function"),
        (lambda w, x: w.cluster.map(scaled, 3), TypeError, "items to iterate over"),
        (lambda w, x: w.cluster.map(scaled, [], progress=1), TypeError, "True or False"),
        (lambda w, x: w.cluster.map(scaled, [], retries=0.5), TypeError, "retries is an int"),
        (lambda w, x: w.cluster.group([3]), TypeError, "takes workers"),
        (lambda w, x: w.cluster.group([w, w]), ValueError, "that differ"),
        (lambda w, x: w.cluster.group([]), ValueError, "at least one"),
    ],
)
def test_wrong_arguments_are_refused_when_the_op_is_built(cluster, x, call, kind, text):
    with pytest.raises(kind, match=text):
        call(cluster.workers[0], x)


def test_other_clusters_remotes_are_refused(cluster, x):
    with distributed.connect("local", ["cpu:0"]) as other:
        theirs = other.workers[0].put(x).sync()
        with pytest.raises(ValueError, match="of another cluster"):
            cluster.workers[0].run(scaled, theirs)
        with pytest.raises(ValueError, match="of another cluster"):
            cluster.workers[0].run(scaled, other.workers[0].put(x)).sync()
        with pytest.raises(ValueError, match="of another cluster"):
            theirs.to(cluster.workers[0])
        with pytest.raises(ValueError, match="of another cluster"):
            cluster.group([other.workers[0]])


def test_a_closed_cluster_takes_no_work(cluster, x):
    remote = cluster.workers[0].put(x).sync()
    op = cluster.workers[0].run(scaled, x)
    cluster.close()
    cluster.close()
    assert cluster.closed
    assert repr(cluster).endswith("closed>")
    for late in (op, remote.to_host(), cluster.map(scaled, [x])):
        with pytest.raises(ValueError, match="is closed"):
            late.sync()
    with pytest.raises(ValueError, match="is closed"):
        cluster.group()


def test_errors_of_map_name_the_line_that_calls_map(cluster):
    def wrong(item):
        raise KeyError(item)

    with pytest.raises(KeyError) as caught:
        cluster.map(wrong, [1, 2]).sync()
    built = [note for note in caught.value.__notes__ if "built at" in note]
    assert built and all("test_cluster_local.py" in note for note in built)


def test_functions_have_their_own_names_for_arguments(cluster):
    assert cluster.workers[0].run(lambda x, build: x + build, 1, build=2).to_host().sync() == 3


def test_results_are_on_the_worker_s_device(cluster, x):
    """Also where the function has gone on elsewhere, or gives what it has from elsewhere."""
    first, second, _ = cluster.workers
    there = second.put(x).sync().value
    for build in (lambda: there, lambda: (there, 1), lambda: api.ones((4, 4)).then(lambda t: t.to(there.device))):
        remote = first.run(build).sync()
        result = remote.value if remote.shape else remote.value[0]
        assert result.device.label == "cpu:0"
    results = [worker.run(lambda: there).sync() for worker in cluster.workers]
    for remote in cluster.group().collective("all_reduce", results).sync():
        np.testing.assert_array_equal(remote.to_host().sync(), 3 * x)


def test_results_that_cannot_be(cluster):
    worker = cluster.workers[0]
    with pytest.raises(TypeError, match=r"gave zeros in a list: return one op, such as tk.join_all"):
        worker.run(lambda: [1, api.zeros(3), api.ones(3)]).sync()
    gc.collect()  # they need not run
    with pytest.raises(TypeError, match="has no memory, so there is nothing to keep"):
        worker.run(lambda: api.meta(3)).sync()


def test_put_takes_no_op_and_run_does(cluster):
    worker = cluster.workers[1]
    with pytest.raises(TypeError, match=r"put takes an array or a tensor, not an op: run\(lambda x: x, op\)"):
        worker.put(api.zeros(3))
    gc.collect()  # the op need not run
    assert worker.run(lambda x: x, api.zeros(3)).to_host().sync().tolist() == [0.0] * 3


def test_remotes_are_neither_pickled_nor_copied(cluster, x):
    remote = cluster.workers[0].put(x).sync()
    for function in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pass it as an argument"):
            function(remote)


def test_the_last_name_gone_frees_the_memory(cluster, x):
    remote = cluster.workers[0].put(x).sync()
    storage = weakref.ref(remote.value.storage)
    del remote
    gc.collect()
    assert storage() is None


def test_lost_workers_are_unavailable_devices():
    assert issubclass(WorkerLostError, tk.DeviceUnavailableError)
    assert WorkerLostError("gone").worker is None


# map


def test_map_uses_all_workers_and_keeps_the_order(cluster):
    entered = threading.Barrier(len(cluster.workers))

    def once(number):
        return tk.host_fn(entered.wait, LIMIT_S).then(lambda _: api.full(2, number))

    results = cluster.map(once, range(6)).sync()
    assert {result.worker for result in results} == set(cluster.workers)
    assert [result.to_host().sync()[0] for result in results] == [0, 1, 2, 3, 4, 5]


def test_map_takes_arrays_remotes_and_generators(cluster, x):
    remote = cluster.workers[0].put(x).sync()
    items = (item for item in (x, remote, api.from_host(x).sync()))
    for result in cluster.map(scaled, items).sync():
        np.testing.assert_array_equal(result.to_host().sync(), 2 * x)
    assert cluster.map(scaled, []).sync() == []


def test_map_raises_the_first_failure_and_sends_no_more(cluster):
    sent = []

    def endless():
        number = 0
        while True:
            sent.append(number)
            yield number
            number += 1

    def bad(number):
        if number == 7:
            raise KeyError("seven")
        return api.full(1, number)

    with pytest.raises(KeyError, match="seven") as caught:
        cluster.map(bad, endless()).sync()
    assert "item 7 of map" in str(caught.value.__notes__)
    assert len(sent) < 7 + 1 + 4 * len(cluster.workers) + 1000


def test_map_raises_what_its_items_raise(cluster):
    def items():
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        cluster.map(lambda number: api.full(1, number), items()).sync()


def test_map_awaited_and_cancelled_sends_no_more(cluster, gate):
    entered, sent = threading.Event(), []

    def items():
        for number in range(1000):
            sent.append(number)
            yield number

    def held(number):
        def wait():
            entered.set()
            assert gate.wait(LIMIT_S)

        return tk.host_fn(wait)

    async def main():
        task = asyncio.create_task(cluster.map(held, items()).run())
        assert await asyncio.to_thread(entered.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(main())
    assert len(sent) < 1000


def test_map_awaited(cluster):
    async def main():
        return [await remote.to_host() for remote in await cluster.map(lambda n: api.full(1, n), range(4))]

    assert [host[0] for host in asyncio.run(main())] == [0, 1, 2, 3]


def test_progress_is_shown_on_terminals_alone(monkeypatch, capsys):
    with mapping.shown("map", 3) as advance:
        advance()
    assert capsys.readouterr().err == ""
    pytest.importorskip("rich", reason="the bar is rich's, of the extra test")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with mapping.shown("map f", 3) as advance:
        advance()
    assert "map f" in capsys.readouterr().err


# groups


def test_collectives(cluster):
    group = cluster.group()
    parts = [worker.put(np.full(6, worker.rank + 1, np.float32)).sync() for worker in cluster.workers]
    sums = group.collective("all_reduce", parts, op="sum").sync()
    assert [remote.worker for remote in sums] == list(cluster.workers)
    for remote in sums:
        np.testing.assert_array_equal(remote.to_host().sync(), np.full(6, 6))
    gathered = group.collective("all_gather", parts).sync()
    np.testing.assert_array_equal(gathered[2].to_host().sync(), np.repeat([1, 2, 3], 6))
    assert group.collective("barrier", []).sync() == []
    group.close()


def test_collectives_that_cannot_be(cluster, x):
    group = cluster.group(cluster.workers[:2])
    first, second, third = (worker.put(x).sync() for worker in cluster.workers)
    value = cluster.workers[1].run(lambda: 3).sync()
    for name, parts, kind, text in (
        ("send", [first, second], ValueError, "no collective 'send'"),
        ("all_reduce", [first], ValueError, "1 parts for 2 workers"),
        ("all_reduce", [first, third], ValueError, "is not on"),
        ("all_reduce", [second, first], ValueError, "order of the group"),
        ("all_reduce", [first, x], TypeError, "not ndarray"),
        ("all_reduce", [first, value], TypeError, "is no tensor"),
        ("barrier", [first, second], ValueError, "2 parts for 0"),
    ):
        with pytest.raises(kind, match=text):
            group.collective(name, parts)
    group.close()


def test_values_in_values():
    nested = {"a": [1, (2, 3)], "b": {"c": 4}}
    assert list(leaves(nested)) == [1, 2, 3, 4]
    assert turned(nested, lambda leaf: leaf * 2) == {"a": [2, (4, 6)], "b": {"c": 8}}


def test_engines_define_what_they_must():
    cluster = Cluster()
    cluster.engine, cluster.workers = "none", ()
    with pytest.raises(NotImplementedError):
        cluster._group(())
    with pytest.raises(NotImplementedError):
        Worker(cluster, 0, "cpu")._steps(None, (), {}, None)
    with pytest.raises(NotImplementedError):
        Remote().to_host()
