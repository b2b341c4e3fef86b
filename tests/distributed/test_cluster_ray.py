"""Clusters of Ray's actors with CPU devices: what comes back, what stays, and what becomes of lost workers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, distributed
from tilekit.distributed import WorkerLostError

ray = pytest.importorskip("ray", "2.55", reason="Ray is not installed: pip install 'tilekit-cuda[ray]'")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::ResourceWarning:ray")]

LIMIT_S = 60
LATE_S = 1.0  # a lost worker is reported before


@tk.kernel
def scale(y: tk.InOut, factor: float):
    y.store(y.load() * factor)


def scaled(x, factor=2.0):
    return scale(x.dup().partition((4, 4)), factor).first().unpartition()


class Odd(Exception):
    """One that pickle cannot build again from its `args`."""

    def __init__(self, message, *, code):
        super().__init__(message)
        self.code = code


class Sealed(Exception):
    """One that cannot be pickled at all."""

    def __init__(self):
        super().__init__("sealed")
        self.lock = threading.Lock()


def blocked(path):
    """An op that waits until somebody writes to a named pipe."""

    def wait():
        with open(path) as pipe:
            return pipe.read()

    return tk.host_fn(wait)


def dies_once(flag, result):
    """An op whose process is killed the first time."""

    def kill():
        if not os.path.exists(flag):
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return tk.host_fn(kill)


@pytest.fixture(scope="module")
def cluster():
    from ray import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # workers cannot import tests
    try:
        with distributed.connect("ray", workers=3, device="cpu", ray_options={"object_store_memory": 200_000_000}) as opened:
            yield opened
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert not ray.is_initialized()


@pytest.fixture
def x():
    return np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture(scope="module")
def large():
    """So large that it goes from worker to worker by the direct transport."""
    return np.arange(1 << 19, dtype=np.float64)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return str(path)


def kept(worker):
    """How many results a worker has, and their bytes."""
    return ray.get(worker.home.actor.memory.remote(), timeout=LIMIT_S)


def until_kept(worker, count):
    """Ask a worker until it has so many results."""
    deadline = time.monotonic() + LIMIT_S
    while (now := kept(worker))[0] != count:
        assert time.monotonic() < deadline, now
        gc.collect()  # tracebacks of errors are cycles, and hold on to handles of results


def kill(worker):
    os.kill(worker.home.about["pid"], signal.SIGKILL)


def test_workers_are_processes_with_a_device_each(cluster):
    assert [worker.device for worker in cluster.workers] == ["cpu:0"] * 3
    pids = {worker.run(os.getpid).to_host().sync() for worker in cluster.workers}
    assert len(pids | {os.getpid()}) == 4
    assert repr(cluster) == "<Cluster ray: cpu:0, cpu:0, cpu:0>"
    assert repr(cluster.workers[2]) == "<worker 2 of ray, cpu:0>"


def test_work_runs_there_and_its_result_stays(cluster, x):
    result = cluster.workers[1].run(scaled, x, factor=3.0).sync()
    assert (result.shape, result.dtype, result.worker) == ((4, 4), tk.float32, cluster.workers[1])
    host = result.to_host().sync()
    np.testing.assert_array_equal(host, 3 * x)
    host += 1  # it is the caller's own


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.float8_e4m3fn, tk.bool_, tk.int64])
def test_dtypes(cluster, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    remote = cluster.workers[0].put(array).sync()
    assert remote.dtype == dtype
    there = remote.to(cluster.workers[1]).sync()
    for host in (remote.to_host().sync(), there.to_host().sync()):
        assert host.dtype == dtype
        np.testing.assert_array_equal(host.astype(np.float32), array.astype(np.float32))


def test_tensors_of_this_process_large_arrays_and_empty_ones(cluster, x, large):
    worker = cluster.workers[0]
    np.testing.assert_array_equal(worker.run(scaled, api.from_host(x).sync()).to_host().sync(), 2 * x)
    remote = worker.put(large).sync()
    np.testing.assert_array_equal(remote.to(cluster.workers[1]).to_host().sync(), large)
    none = worker.put(np.zeros((0, 3), np.float32)).sync()
    assert none.to(cluster.workers[1]).to_host().sync().shape == (0, 3)


def test_tensors_go_from_worker_to_worker_and_to_a_third(cluster, x):
    first, second, third = cluster.workers
    remote = first.put(x).sync()
    results = tk.zip(*(worker.run(scaled, remote) for worker in (second, third, first)), parallel=True).sync()
    for result in results:
        np.testing.assert_array_equal(result.to_host().sync(), 2 * x)
    np.testing.assert_array_equal(remote.to_host().sync(), x)
    both = third.run(lambda a, b, c: tk.value(({"sum": (a, b)}, c)), remote, results[0], 5).sync()
    again = second.run(lambda value: value, both).to_host().sync()
    np.testing.assert_array_equal(again[0]["sum"][1], 2 * x)
    assert again[1] == 5


def test_views_go_to_the_host_and_to_others(cluster, x):
    remote = cluster.workers[0].run(lambda t: t.T[1:, ::2], x).sync()
    np.testing.assert_array_equal(remote.to_host().sync(), x.T[1:, ::2])
    np.testing.assert_array_equal(remote.to(cluster.workers[1]).to_host().sync(), x.T[1:, ::2])


def test_large_tensors_are_read_from_the_others_memory(cluster, x, large):
    first, second, _ = cluster.workers

    def note():
        from tilekit.distributed._ray import transport as _ray_transport

        read = _ray_transport.read_memory

        def read_memory(pid, source, target, nbytes, born):
            read(pid, source, target, nbytes, born)
            _ray_transport.noted.append(nbytes)

        _ray_transport.noted, _ray_transport.unnoted, _ray_transport.read_memory = [], read, read_memory

    def noted():
        from tilekit.distributed._ray import transport as _ray_transport

        _ray_transport.read_memory = _ray_transport.unnoted
        return _ray_transport.noted

    small, remote = first.put(x).sync(), first.put(large).sync()
    both = first.run(lambda a, b: tk.value((a, b)), small, remote).sync()
    second.run(note).sync()
    try:
        for one in (small, remote, both):
            second.run(lambda value: value, one).sync()
    finally:
        sizes = second.run(noted).to_host().sync()
    if second.may_read(remote.home):  # unless this system forbids it
        assert sizes == [large.nbytes, x.nbytes, large.nbytes]


def test_where_processes_may_not_be_read_tensors_go_through_the_store(cluster, large):
    first, second, _ = cluster.workers

    def forbid():
        from tilekit.distributed._ray import transport as _ray_transport

        def read_memory(*args):
            raise _ray_transport.Refused(1, "not permitted")

        allowed, _ray_transport.read_memory = _ray_transport.read_memory, read_memory
        _ray_transport.allowed = allowed

    def allow():
        from tilekit.distributed._ray import transport as _ray_transport

        _ray_transport.read_memory = _ray_transport.allowed

    remote = first.put(large).sync()
    second.run(forbid).sync()
    try:
        for _ in range(2):
            np.testing.assert_array_equal(remote.to(second).to_host().sync(), large)
        assert not second.may_read(remote.home)
    finally:
        second.run(allow).sync()
        second._refused.clear()


def test_chains_and_awaits(cluster, x):
    first, second, _ = cluster.workers

    async def main():
        op = first.put(x).then(lambda r: second.run(scaled, r)).then(lambda r: r.to_host()).map(np.sum)
        many = asyncio.gather(*(cluster.workers[n % 3].run(scaled, x, float(n)).to_host().run() for n in range(20)))
        return await op, await many

    total, many = asyncio.run(main())
    assert total == 2 * x.sum()
    for number, host in enumerate(many):
        np.testing.assert_array_equal(host, number * x)
    nested = second.run(scaled, first.run(scaled, x)).to_host().sync()
    np.testing.assert_array_equal(nested, 4 * x)


def test_errors_of_the_user_arrive_as_themselves(cluster, x):
    worker = cluster.workers[0]

    def odd(t):
        raise Odd("wrong", code=7)

    with pytest.raises(Odd, match="wrong") as caught:
        worker.run(odd, x).sync()
    assert caught.value.code == 7
    notes = "\n".join(caught.value.__notes__)
    assert "on <worker 0 of ray, cpu:0>:\nTraceback" in notes
    assert 'raise Odd("wrong", code=7)' in notes
    assert "execution.py" not in notes
    assert f"built at {__file__}" in notes
    with pytest.raises(TypeError, match="writing needs a partition"):
        worker.run(lambda t: scale(t, 2.0), x).sync()
    with pytest.raises(RuntimeError, match="while .* is being submitted"):
        worker.run(lambda: api.ones(3).sync()).sync()

    def sealed():
        raise Sealed

    with pytest.raises(RuntimeError, match="Sealed, which cannot be pickled: sealed"):
        worker.run(sealed).sync()


def test_errors_of_the_compiler_show_the_users_line(cluster):
    @tk.kernel
    def wrong(y: tk.Out):
        y.store(y.load() @ 3)

    with pytest.raises(tk.CompileError, match=r"y.store\(y.load\(\) @ 3\)"):
        cluster.workers[0].run(lambda: wrong(api.ones((4, 4)).partition((4, 4)))).sync()


def test_what_cannot_be_pickled_is_said_here(cluster):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle") as caught:
        cluster.workers[0].run(lambda: lock).sync()
    assert any("to be sent to <worker 0 of ray" in note for note in caught.value.__notes__)
    remote = cluster.workers[0].put([1.0]).sync()
    with pytest.raises(TypeError, match="pass it as an argument"):
        cluster.workers[0].run(lambda: remote).sync()


def test_a_result_that_cannot_be_pickled_stays(cluster):
    remote = cluster.workers[0].run(threading.Lock).sync()
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock'") as caught:
        remote.to_host().sync()
    assert type(caught.value) is TypeError
    assert any("<Remote of a value, on <worker 0 of ray, cpu:0>> is pickled" in note for note in caught.value.__notes__)
    assert cluster.workers[0].run(lambda lock: lock.locked(), remote).to_host().sync() is False


def test_functions_are_sent_as_they_are_now(cluster):
    factor = 2
    worker = cluster.workers[0]

    def times(number):
        return number * factor

    assert worker.run(times, 5).to_host().sync() == 10
    factor = 3
    assert worker.run(times, 5).to_host().sync() == 15
    held = [1]
    assert worker.run(lambda: held).to_host().sync() == [1]
    held.append(2)
    assert worker.run(lambda: held).to_host().sync() == [1, 2]


def test_a_kernel_that_comes_again_is_not_compiled_again(cluster, x):
    worker = cluster.workers[0]

    def known(t):
        return tk.value(id(scale))

    assert worker.run(known, x).to_host().sync() == worker.run(lambda: id(scale)).to_host().sync()


def test_the_last_name_gone_drops_the_result(cluster, x):
    worker = cluster.workers[2]
    gc.collect()
    until_kept(worker, 0)
    remote, other = worker.put(x).sync(), worker.put(x).sync()
    assert kept(worker) == (2, 2 * x.nbytes)
    del remote
    gc.collect()
    until_kept(worker, 1)
    np.testing.assert_array_equal(other.to_host().sync(), x)
    del other
    gc.collect()
    until_kept(worker, 0)


def test_cancelled_work_leaves_nothing(cluster, pipe, tmp_path):
    worker = cluster.workers[2]
    gc.collect()
    until_kept(worker, 0)
    flag = str(tmp_path / "flag")

    def mark():
        Path(flag).touch()

    async def main():
        running = asyncio.create_task(worker.run(blocked, pipe).run())
        waiting = asyncio.create_task(worker.run(mark).run())
        writer = await asyncio.to_thread(open, pipe, "w")  # the first has begun, and the second was sent behind it
        for task in (running, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        deadline = time.monotonic() + LIMIT_S
        while not await asyncio.to_thread(lambda: ray.get(worker.home.actor.unwanted.remote())):  # it knows
            assert time.monotonic() < deadline
        writer.close()  # the first goes on

    asyncio.run(main())
    assert worker.run(lambda: 5).to_host().sync() == 5  # it takes work again
    until_kept(worker, 0)
    assert not os.path.exists(flag)


def test_map(cluster, x):
    remote = cluster.workers[0].put(x).sync()
    results = cluster.map(scaled, [x, remote] * 5).sync()
    assert len({result.worker for result in results}) > 1
    for result in results:
        np.testing.assert_array_equal(result.to_host().sync(), 2 * x)


def test_a_killed_worker_is_reported_within_a_second_and_comes_back(cluster, x, pipe):
    worker, other, _ = cluster.workers
    remote = worker.put(x).sync()
    failed: list[tuple[float, Exception]] = []

    def wait():
        try:
            worker.run(blocked, pipe).sync()
        except Exception as error:
            failed.append((time.monotonic(), error))

    thread = threading.Thread(target=wait)
    thread.start()
    with open(pipe, "w"):  # it is running
        start = time.monotonic()
        kill(worker)
        thread.join(LIMIT_S)
    (end, error), *_ = failed
    assert isinstance(error, WorkerLostError)
    assert error.worker is worker
    assert "<worker 0 of ray, cpu:0>, process" in str(error)
    assert "was lost while it ran run blocked" in str(error)
    assert end - start < LATE_S
    for late in (remote.to_host(), other.run(scaled, remote), worker.run(scaled, remote, retries=3), remote.to(other)):
        with pytest.raises(WorkerLostError, match="<worker 0 of ray.*with"):
            late.sync()
    np.testing.assert_array_equal(worker.run(scaled, x).to_host().sync(), 2 * x)


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_worker_killed_at_rest_is_noticed_by_the_next_who_asks(cluster, x, large, size):
    worker, other, _ = cluster.workers
    worker.run(lambda: 5).sync()  # it is there, whatever the last test did to it
    remote = worker.put(x if size == "small" else large).sync()
    kill(worker)
    start = time.monotonic()
    with pytest.raises(WorkerLostError, match="with an argument of to that it had|with <Remote"):
        remote.to(other).sync()
    assert time.monotonic() - start < LATE_S
    assert other.run(lambda: 5).to_host().sync() == 5


def test_lost_work_is_retried_where_its_arguments_are_there(cluster, x, tmp_path):
    worker, other, _ = cluster.workers
    theirs = other.put(x).sync()
    flag = str(tmp_path / "flag")
    op = worker.run(lambda path, a, b: dies_once(path, None).then(lambda _: scaled(a)), flag, theirs, x, retries=1)
    np.testing.assert_array_equal(op.to_host().sync(), 2 * x)
    own = worker.put(x).sync()
    with pytest.raises(WorkerLostError, match="<worker 0"):  # its argument is lost with it
        worker.run(dies_once, str(tmp_path / "other"), own, retries=3).sync()
    with pytest.raises(WorkerLostError):
        worker.run(lambda: tk.host_fn(os.kill, os.getpid(), signal.SIGKILL), retries=1).sync()
    np.testing.assert_array_equal(worker.run(scaled, x, retries=1).to_host().sync(), 2 * x)


def test_map_retries(cluster, tmp_path):
    results = cluster.map(lambda n: dies_once(str(tmp_path / f"{n % 2}"), n), range(6), retries=4).sync()
    assert [result.to_host().sync() for result in results] == [0, 1, 2, 3, 4, 5]


def test_collectives(cluster):
    group = cluster.group()
    parts = [worker.put(np.full(6, worker.rank + 1, np.float32)).sync() for worker in cluster.workers]
    for remote in group.collective("all_reduce", parts, op="max").sync():
        np.testing.assert_array_equal(remote.to_host().sync(), np.full(6, 3))
    gathered = group.collective("all_gather", parts).sync()
    np.testing.assert_array_equal(gathered[1].to_host().sync(), np.repeat([1, 2, 3], 6))
    assert group.collective("barrier", []).sync() == []
    with pytest.raises(ValueError, match="no reduction"):
        group.collective("all_reduce", parts, op="median").sync()
    group.close()
    group.close()


def test_two_groups_of_the_same_workers_from_two_threads(cluster):
    """No worker begins with the one group's collective, and another with the other's."""
    interval = sys.getswitchinterval()
    workers = cluster.workers[:2]
    failed: list[Exception] = []

    def use(members):
        try:
            group = cluster.group(members)
            parts = [worker.put(np.ones(4, np.float32)).sync() for worker in members]
            for _ in range(60):
                group.collective("all_reduce", parts).sync()
            group.close()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(members,), daemon=True) for members in (workers, workers[::-1])]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert not failed and not any(thread.is_alive() for thread in threads)


def test_collectives_that_fail_leave_nothing(cluster):
    group = cluster.group()
    parts = [worker.put(np.ones(4, bool)).sync() for worker in cluster.workers]
    for _ in range(3):
        with pytest.raises(TypeError, match="bool cannot be reduced"):
            group.collective("all_reduce", parts).sync()
    group.collective("barrier", []).sync()
    group.close()
    gc.collect()
    for worker in cluster.workers:
        until_kept(worker, 1)
        assert ray.get(worker.home.actor.unwanted.remote()) == 0


def test_what_was_dropped_is_said_again_where_an_argument_does_not_come(cluster, x, monkeypatch):
    """The message that said so, first, was not read."""
    first, second, _ = cluster.workers
    until_kept(second, 0)
    remote = second.put(x).sync()
    stuck = first.run(threading.Lock).sync()
    monkeypatch.setattr(cluster.dropper, "_PATIENCE_S", 1e9)  # it goes with the next call
    monkeypatch.setattr(cluster.dropper._stopped, "wait", lambda seconds: time.sleep(min(seconds, 0.5)))
    remote.drop()
    second.home.files.clear()
    with pytest.raises(TypeError, match="pickle"):
        second.run(scaled, stuck).sync()
    assert not second.home.files
    del stuck
    until_kept(second, 0)


def test_a_member_killed_in_a_collective_leaves_no_other_hanging(cluster, x, pipe):
    first, second, _ = cluster.workers
    group = cluster.group([first, second])
    parts = [worker.put(x).sync() for worker in (first, second)]
    failed: list[Exception] = []

    def wait(op):
        try:
            op.sync()
        except Exception as error:
            failed.append(error)

    busy = threading.Thread(target=wait, args=(second.run(blocked, pipe),))
    busy.start()
    with open(pipe, "w"):  # it is busy, so that it takes no part yet
        waiting = threading.Thread(target=wait, args=(group.collective("all_reduce", parts),))
        waiting.start()
        kill(second)
        for thread in (busy, waiting):
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    assert any(isinstance(error, WorkerLostError) and error.worker is second for error in failed)
    with pytest.raises((WorkerLostError, tk.DeviceError)):
        group.collective("all_reduce", parts).sync()
    assert first.run(lambda: 5).to_host().sync() == 5


def test_a_second_cluster_leaves_ray_running(cluster, x):
    with distributed.connect("ray", workers=1) as other:
        theirs = other.workers[0].put(x).sync()
        with pytest.raises(ValueError, match="of another cluster"):
            cluster.workers[0].run(scaled, theirs)
    assert ray.is_initialized()
    assert cluster.workers[0].run(lambda: 5).to_host().sync() == 5
    with pytest.raises(ValueError, match="is closed"):
        theirs.to_host().sync()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, TypeError, "takes gpus=8.*or workers=2"),
        ({"gpus": 1, "workers": 1}, TypeError, "takes gpus=8.*or workers=2"),
        ({"workers": 2, "device": "cuda"}, ValueError, "does not go with workers="),
        ({"gpus": 2, "device": "cpu"}, ValueError, "does not go with gpus="),
        ({"workers": 0}, ValueError, "at least 1"),
        ({"workers": True}, TypeError, "is an int"),
        ({"workers": 1, "address": "ray://here"}, ValueError, "client protocol"),
        ({"workers": 1, "startup_timeout_s": 0}, ValueError, "must be positive"),
        ({"gpus": 1000}, tk.DeviceUnavailableError, "has no GPU|has .* GPUs"),
    ],
)
def test_clusters_that_cannot_be(cluster, options, kind, text):
    with pytest.raises(kind, match=text):
        distributed.connect("ray", **options)


SCRIPT = '''
import linecache, sys
import numpy as np
import tilekit as tk
from tilekit import api, distributed

BN = tk.generics("BN")
SHIFT = 1.0

@tk.function
def shifted(tile, by):
    return tile + by

def doubled(tile):
    return tile * 2.0

@tk.kernel
def work(y: "tk.Out[BN]", x: "tk.In"):
    y.store(shifted(doubled(tk.load_tile_like(x, y)), SHIFT))

def build(kernel, x):
    return kernel(api.empty(x.shape).partition(64), x).first().unpartition()

CELL = """@tk.kernel
def in_a_cell(y: tk.Out, x: tk.In):
    y.store(doubled(tk.load_tile_like(x, y)))
"""
linecache.cache["<cell 1>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell 1>")
exec(compile(CELL, "<cell 1>", "exec"), globals())

class Mine(Exception):
    pass

def bad():
    raise Mine("mine")

with distributed.connect("ray", workers=1, address=sys.argv[1]) as cluster:
    worker, = cluster.workers
    x = np.arange(64, dtype=np.float32)
    remote = worker.put(x).sync()
    for kernel, expected in ((work, 2 * x + 1), (in_a_cell, 2 * x)):
        for _ in range(2):
            assert np.array_equal(worker.run(build, kernel, remote).to_host().sync(), expected), kernel
    SHIFT = 5.0
    assert np.array_equal(worker.run(build, work, remote).to_host().sync(), 2 * x + 5)
    assert np.array_equal(worker.run(lambda t: build(work, t), remote).to_host().sync(), 2 * x + 5)
    try:
        worker.run(bad).sync()
    except Mine as error:
        print("right:", error)
'''


def test_kernels_of_a_script_and_of_a_notebook(cluster, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-W", "error", str(script), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right: mine"
