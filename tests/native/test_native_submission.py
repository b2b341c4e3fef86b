"""The compiled part of building and running launches does what Python does, or nothing: on a GPU that keeps what it is given."""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from counting import counted
from fake_gpu import fake_device, fake_gpu

import tilekit as tk
from tilekit import _native, api
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.policy import SingleStream
from tilekit._runtime.stream import Stream
from tilekit._tensor.partition import Traits
from tilekit._tensor.tensor import Tensor
from tilekit.errors import DeviceError
from tilekit.ops.execution import Done

pytest.importorskip("numba.cuda", reason="compiles kernels")
native = _native.compiled
compiled = pytest.mark.skipif(native is None, reason="tilekit was installed without a C compiler")
REPOSITORY = Path(tk.__file__).parent.parent


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@tk.kernel
def repeat(y: tk.Out, x: tk.In, n: int):
    y.store(tk.load_tile_like(x, y) * n)


@tk.kernel
def nothing():
    pass


@pytest.fixture
def gpu():
    with fake_device() as made:
        yield made


@pytest.fixture
def made(gpu):
    """A stream, a partition and a tensor; the kernels are there."""
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    tiles, stream = y.partition(1024), gpu[0].policy.next_stream()
    scale(tiles, x, 1.5).sync()
    repeat(tiles, x, 3).sync()
    return stream, tiles, x


def awaited(op):
    async def run():
        return await op

    return asyncio.run(run())


WAYS = {
    "sync": lambda op, stream: op.sync(),
    "sync_on": lambda op, stream: op.sync_on(stream),
    "by keyword": lambda op, stream: op.sync_on(stream=stream),
    "async_on": lambda op, stream: op.async_on(stream).result(),
    "await": lambda op, stream: awaited(op),
    "chain": lambda op, stream: op.apply(scale).then(lambda result: scale(*result)).apply(scale).sync_on(stream),
    "zip": lambda op, stream: tk.zip(op, tk.value(1), scale(*op.arguments), nothing().grid(2)).sync_on(stream)[0],
}


def trace(gpu, switch, way, monkeypatch):
    """What a launch leaves behind, run that way."""
    monkeypatch.setenv("TILEKIT_NATIVE", switch)
    device, driver = fake_gpu()
    with tk.use_device(device):
        stream = device.stream()
        device.policy = SingleStream(stream)
        x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
        tiles = y.partition(1024)
        driver.slots = 5 if way != "zip" else 0  # where there is a kernel without parameters
        for _ in range(3):  # at the first it is compiled
            driver.calls.clear()
            driver.launches.clear()
            result = WAYS[way](scale(tiles, x, 1.5), stream)
        driver.slots = 0
        assert result[0] is tiles
        assert result[1] is x
        launches = [launch[1:4] for launch in driver.launches]  # the addresses are another device's
        uses = [(t.storage.last_write[1], list(t.storage.reads.values())) for t in (x, y)]
        calls = {name: count for name, count in driver.calls.items() if name not in ("cuCtxGetCurrent", "cuEventCreate")}
        left = [mark.serial for mark in stream._marks]
        return launches, uses, calls, stream.pending, stream.completed, left, list(stream._names)


@compiled
@pytest.mark.parametrize("way", WAYS)
def test_it_leaves_behind_what_python_leaves(gpu, way, monkeypatch):
    ours, pythons = (trace(gpu, switch, way, monkeypatch) for switch in "10")
    assert ours == pythons


@compiled
@pytest.mark.parametrize("way", ["sync", "sync_on", "async_on", "await"])
def test_no_python_runs_on_the_way(gpu, made, way, monkeypatch):
    """That these tests test it, and not what takes its place."""
    from tilekit.ops import execution

    def refuse(*args):
        raise AssertionError("Python submits")

    stream, tiles, x = made
    monkeypatch.setattr(execution.Submission, "submit", refuse)
    WAYS[way](scale(tiles, x, 1.5), stream)


def test_an_op_knows_where_it_was_built(gpu, made):
    _, tiles, x = made
    op, line = scale(tiles, x, 1.5), sys._getframe().f_lineno
    assert op.where() == f"{__file__}:{line}"
    op.sync()
    seen = []
    tk.value((tiles, x, 1.5)).apply(lambda *given: seen.append(scale(*given)) or seen[0]).sync()
    assert Path(seen[0].where().rpartition(":")[0]) == Path(__file__)


def test_arguments_are_refused_as_ever(gpu, made):
    _, tiles, x = made
    with pytest.raises(ValueError, match=r"kernel repeat, argument n: 18446744073709551616 does not fit 64 bits"):
        repeat(tiles, x, 2**64)
    with pytest.raises(TypeError, match=r"kernel repeat\(y, x, n\): missing a required argument"):
        repeat(tiles, x)
    with pytest.raises(TypeError, match="declared In, so it takes a tensor, not a partition"):
        repeat(tiles, tiles, 3)
    assert repeat(tiles, n=4, x=x).sync()[2] == 4
    assert repeat(tiles, x, -(2**63)).sync()[2] == -(2**63)


@pytest.mark.parametrize("way", ["sync_on", "async_on", "await"])
def test_an_op_runs_once(gpu, made, way):
    stream, tiles, x = made
    op = scale(tiles, x, 1.5)
    WAYS[way](op, stream)
    for again in ("sync_on", "async_on", "await"):
        with pytest.raises(ValueError, match="has already run: an op runs at most once"):
            WAYS[again](op, stream)


def test_an_op_that_nobody_runs_is_warned_of(gpu, made):
    _, tiles, x = made
    with pytest.warns(tk.UnusedOpWarning, match="kernel scale, built at .*test_native_submission.py.*was never run"):
        scale(tiles, x, 1.5)


def test_a_closed_stream_is_refused(gpu, made):
    _, tiles, x = made
    stream = gpu[0].stream()
    stream.close()
    for way in ("sync_on", "async_on"):
        op = scale(tiles, x, 1.5)
        with pytest.raises(ValueError, match="no work can be submitted to it"):
            WAYS[way](op, stream)
        op.sync()  # it has not run


@pytest.mark.parametrize("way", ["sync", "sync_on", "async_on", "await", "chain", "zip"])
def test_what_the_driver_refuses_names_the_op(gpu, made, way):
    stream, tiles, x = made
    marks, pool = len(stream._marks), len(gpu[0].event_pool)
    op = scale(tiles, x, 1.5)
    gpu[1].refuse = 1
    with pytest.raises(DeviceError, match="launching") as caught:
        WAYS[way](op, stream)
    assert any(f"in kernel scale, built at {op.where()}" in note or "kernel scale" in note for note in caught.value.__notes__)
    gpu[1].refuse = 0
    assert (len(stream._marks), len(gpu[0].event_pool)) == (marks, pool)
    with pytest.raises(ValueError, match="has already run"):
        op.sync()
    scale(tiles, x, 1.5).sync()


def test_an_event_that_is_not_recorded_is_an_error(gpu, made, monkeypatch):
    stream, tiles, x = made
    pool = len(gpu[0].event_pool)
    monkeypatch.setattr(gpu[1], "cuEventRecord", lambda event, stream: (700,), raising=False)
    before = len(gpu[1].launches)
    for way in ("sync_on", "async_on", "await"):
        with pytest.raises(DeviceError) as caught:
            WAYS[way](scale(tiles, x, 1.5), stream)
        assert any("in kernel scale, built at" in note for note in caught.value.__notes__)
    assert len(gpu[1].launches) == before + 3, "each was launched, once"
    monkeypatch.undo()
    assert scale(tiles, x, 1.5).sync_on(stream)
    assert len(gpu[0].event_pool) >= pool - 1


@pytest.mark.parametrize("way", ["sync", "sync_on", "async_on"])
def test_not_from_a_closure(gpu, made, way):
    stream, tiles, x = made
    inner = []

    def nested(value):
        inner.append(scale(tiles, x, 1.5))
        return WAYS[way](inner[0], stream)

    with pytest.raises(RuntimeError, match=r"kernel scale.* cannot run while .* is being submitted by the same thread"):
        tk.value(1).map(nested).sync()
    inner[0]._spent = True


@compiled
def test_a_stream_that_somebody_records_in_is_waited_for(gpu, made):
    stream, tiles, x = made
    op = scale(tiles, x, 1.5)
    with stream._lock:
        assert native.submit(op, 0.0) == (stream, None)
    serial = stream.pending
    assert native.submit(op, 0.0) == (stream, serial)
    assert native.submit(op, 0.0) == (None, None), "it has run"
    assert native.submit(scale(tiles, x, 1.5), 1.0) is None
    assert stream.completed == serial + 1
    gpu[1].not_ready = 10**9
    assert native.submit(scale(tiles, x, 1.5), 1e-6) == (stream, serial + 2)
    for wrong in ((op,), (op, "long"), (op, -1.0)):
        with pytest.raises(TypeError):
            native.submit(*wrong)


@compiled
def test_a_device_that_is_not_ready_is_polled_then_waited_for(gpu, made):
    stream, tiles, x = made
    gpu[1].not_ready = 3
    gpu[1].calls.clear()
    scale(tiles, x, 1.5).sync_on(stream)
    assert gpu[1].calls["cuEventQuery"] == 4
    assert gpu[1].calls["cuEventSynchronize"] == 0
    gpu[1].not_ready = 10**9
    wait = threading.Thread(target=scale(tiles, x, 1.5).sync_on, args=(stream,))
    wait.start()
    wait.join(60)
    assert gpu[1].calls["cuEventSynchronize"] == 1, "the driver waits"
    assert stream.completed == stream.pending - 1


def test_marks_of_launches_are_trimmed(gpu, made):
    stream, tiles, x = made
    calls = gpu[1].calls
    calls.clear()
    for _ in range(1000):
        scale(tiles, x, 1.5).async_on(stream)
    assert len(stream._marks) <= 129
    assert stream.pending - 130 <= stream.completed < stream.pending
    assert 10 <= calls["cuEventQuery"] <= 1000 / 60
    assert calls["cuEventCreate"] <= 140
    assert [mark.serial for mark in stream._marks] == list(range(stream.completed + 1, stream.pending))
    calls.clear()
    gpu[1].not_ready = 10**9
    for _ in range(1000):
        scale(tiles, x, 1.5).async_on(stream)
    assert 1 <= calls["cuEventQuery"] <= 6, "while the device is behind, more rarely each time"
    gpu[1].not_ready = 0
    scale(tiles, x, 1.5).sync_on(stream)
    scale(tiles, x, 1.5).async_on(stream)
    assert len(stream._marks) == 1


def test_a_fault_that_trimming_finds_is_told_to_who_waits(gpu, made, monkeypatch):
    stream, tiles, x = made
    gpu[1].not_ready = 10**9
    future = scale(tiles, x, 1.5).async_on(stream)
    for _ in range(126):
        scale(tiles, x, 1.5).async_on(stream)
    gpu[1].not_ready = 0
    for name in ("cuEventQuery", "cuEventSynchronize"):
        monkeypatch.setattr(gpu[1], name, lambda event: (719,), raising=False)
    monkeypatch.setattr(gpu[0].driver, "_query", gpu[1].cuEventQuery)
    for _ in range(20):
        scale(tiles, x, 1.5).async_on(stream)
    with pytest.raises(DeviceError):
        future.result()


@compiled
def test_a_mark_says_what_it_knows(gpu, made):
    stream, tiles, x = made
    driver = gpu[1]
    driver.not_ready = 10**9
    scale(tiles, x, 1.5).async_on(stream)
    mark = stream._marks[-1]
    assert (mark.poll(0), stream.is_complete(mark.serial)) == (False, False)
    assert mark.poll(1e-6) is False
    start = time.monotonic()
    assert mark.poll(600) is False, "it ends early: no signal gets through meanwhile"
    assert time.monotonic() - start < 60
    driver.context = 8
    assert mark.poll(0) is None, "another device's context is current"
    driver.context, driver.not_ready = 7, 0
    assert mark.poll(0) is True
    assert stream.is_complete(mark.serial)
    with pytest.raises(TypeError):
        mark.poll("long")


def test_a_fault_is_told_by_every_way_to_wait(gpu, made, monkeypatch):
    stream, tiles, x = made
    future = scale(tiles, x, 1.5).async_on(stream)
    monkeypatch.setattr(gpu[1], "cuEventQuery", lambda event: (700,), raising=False)
    monkeypatch.setattr(gpu[0].driver, "_query", gpu[1].cuEventQuery)
    monkeypatch.setattr(gpu[1], "cuEventSynchronize", lambda event: (700,), raising=False)
    with pytest.raises(DeviceError) as caught:
        scale(tiles, x, 1.5).sync_on(stream)
    assert any("in kernel scale, built at" in note for note in caught.value.__notes__)
    with pytest.raises(DeviceError):
        awaited(scale(tiles, x, 1.5))
    with pytest.raises(DeviceError):
        future.result()
    assert future.done()


def test_a_future_that_was_made_lightly_is_one(gpu, made):
    stream, tiles, x = made
    future = scale(tiles, x, 1.5).async_on(stream)
    assert repr(future) == "<DeviceFuture of kernel scale, submitted>"
    assert (future.stream, future.op.kernel, future.state, future.exception()) == (stream, scale, "complete", None)
    with pytest.raises(ValueError, match="has been submitted already"):
        future.submit()
    told = []
    future.add_done_callback(told.append)
    assert told == [future]
    assert awaited(future) == future.result() == (tiles, x, 1.5)
    with pytest.raises(AttributeError, match="'DeviceFuture' object has no attribute 'results'"):
        _ = future.results
    gpu[1].not_ready = 10**9
    future = scale(tiles, x, 1.5).async_on(stream)
    assert (future.done(), future.state) == (False, "executing")
    with pytest.raises(TimeoutError, match="has not finished within 0 s"):
        future.result(0)
    gpu[1].not_ready = 0
    assert future.done()


def test_a_future_that_many_threads_ask_at_once(gpu, made):
    stream, tiles, x = made
    for _ in range(50):
        future, gate, found = scale(tiles, x, 1.5).async_on(stream), threading.Barrier(4), []

        def ask(future=future, gate=gate, found=found):
            gate.wait()
            found.append((future.done(), future.result()[2], id(future._lock)))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1


def test_many_threads_submit_to_one_stream(gpu, made):
    stream, _, x = made
    first, driver = stream.pending, gpu[1]
    driver.launches.clear()

    def work():
        tiles = api.empty(2048).sync_on(stream).partition(1024)
        for at in range(100):
            op = scale(tiles, x, 1.5)
            if at % 3 == 0:
                op.sync_on(stream)
            elif at % 3 == 1:
                op.async_on(stream)
            else:
                op.apply(scale).sync_on(stream)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 6 * 133
    assert stream.pending == first + 6 * 101
    serials = [mark.serial for mark in stream._marks]
    assert serials == list(range(stream.pending - len(serials), stream.pending))


RECORDERS = {
    "a launch": lambda op, stream: op().async_on(stream),
    "a mark": lambda op, stream: stream.mark(),
    "another stream": lambda op, stream: (op().start(on(stream)), op().sync_on(stream.device.stream())),
    "a chain": lambda op, stream: op().apply(scale).async_on(stream),
    "a prepared graph": lambda op, stream: op().apply(scale).prepare().sync_on(stream),
}


def on(stream):
    return ExecutionContext(stream.device, stream)


@pytest.mark.parametrize("way", RECORDERS)
def test_what_another_thread_submits_while_an_event_is_recorded_has_a_later_mark(gpu, made, monkeypatch, way):
    stream, tiles, x = made
    other, recorded = api.zeros(2048).sync_on(stream), []
    late = scale(other.partition(1024), x, 1.5)

    def record(event, where):
        """The event is in the stream, and somebody else gets Python's lock first."""
        if where == stream.handle and not recorded:
            recorded.append(event)
            thread = threading.Thread(target=late.start, args=(on(stream),))
            thread.start()
            thread.join()
        return (0,)

    monkeypatch.setattr(gpu[1], "cuEventRecord", record, raising=False)
    RECORDERS[way](lambda: scale(tiles, x, 1.5), stream)
    where, serial = other.storage.last_write
    assert recorded and where is stream
    assert stream.mark_at(serial).event != recorded[0]


@pytest.mark.parametrize("way", ["mark_at", "wait_for", "another op"])
def test_a_moment_whose_event_was_not_recorded_is_behind_the_next(gpu, made, monkeypatch, way):
    stream, tiles, x = made
    scale(tiles, x, 1.5).start(on(stream))
    serial, other, recorded = stream.pending, gpu[0].stream(), []
    monkeypatch.setattr(gpu[1], "cuEventRecord", lambda event, where: (1,), raising=False)
    with pytest.raises(DeviceError):
        stream.mark()
    monkeypatch.setattr(gpu[1], "cuEventRecord", lambda event, where: (recorded.append(where) or 0,), raising=False)
    if way == "mark_at":
        assert stream.mark_at(serial).serial > serial
    elif way == "wait_for":
        other.wait_for(stream, serial)
    else:
        scale(tiles, x, 1.5).sync_on(other)
    assert stream.handle in recorded


def test_a_chain_goes_on_where_it_is_unusual(gpu, made):
    stream, tiles, x = made
    gpu[1].launches.clear()
    op = scale(tiles, x, 1.5).apply(scale).apply(lambda y, x, g: scale(y, x, g).grid(2)).apply(scale).apply(repeat_as_int)
    assert op.then(lambda result: tk.value(result[2])).sync_on(stream) == 2
    assert len(gpu[1].launches) == 5
    with pytest.raises(TypeError, match="kernel repeat, argument y: writing needs a partition"):
        scale(tiles, x, 1.5).apply(scale).apply(lambda *_: tk.value((x, x, 1))).apply(repeat).sync()
    with pytest.raises(TypeError, match=r"apply: .* gave int, not a tuple; use .then"):
        scale(tiles, x, 1.5).apply(scale).map(lambda result: 3).apply(scale).sync()


def repeat_as_int(y, x, g):
    return repeat(y, x, int(g) + 1)


def test_an_op_is_in_two_places_of_a_zip(gpu, made):
    stream, tiles, x = made
    op = scale(tiles, x, 1.5)
    with pytest.raises(ValueError, match="has already run"):
        tk.join_all([op, op]).sync_on(stream)


def test_a_launch_without_tensors_runs_on_any_device(gpu):
    other, driver = fake_gpu()
    for device, calls in ((gpu[0], gpu[1].calls), (other, driver.calls)):
        with device.stream() as stream:
            for _ in range(3):
                nothing().grid(2).sync_on(stream)
        assert calls["cuLaunchKernel"] == 3


def test_memory_on_another_device_is_refused(gpu, made):
    _, tiles, x = made
    other, _ = fake_gpu()
    with other.stream() as stream:
        for way in ("sync_on", "async_on"):
            op = scale(tiles, x, 1.5)
            with pytest.raises(ValueError, match="is not on"):
                WAYS[way](op, stream)
            op.sync()


@compiled
def test_what_it_is_called_with_is_checked():
    for call in (native.links, native.row):
        with pytest.raises(TypeError, match=r"expected a (list|tuple) of ops"):
            call(1, 2)
    for wrong in ((), (3, (), {}, {}), (((Stream,),), (), {}, {}), (((Stream, ["_create"]),), (), {}, {})):
        with pytest.raises(TypeError):
            native.prepare(*wrong)


class Elsewhere(ExecutionContext):
    """Not the very class: somebody's who does something else with the work."""


def test_traits_that_the_argument_does_not_keep(gpu, made):
    """They live no longer than somebody holds them."""

    class Fresh(Tensor):
        __slots__ = ()
        traits = property(lambda self: Traits())

    stream, tiles, x = made
    fresh = Fresh(x.storage, x.shape, x.dtype)
    before = len(gpu[1].launches)
    for _ in range(20):
        scale(tiles, fresh, 1.5).sync_on(stream)
        tk.join_all([scale(tiles, fresh, 1.5), scale(tiles, fresh, 1.5).apply(scale)]).sync_on(stream)
    assert len(gpu[1].launches) == before + 80


def test_a_function_that_has_every_attribute(gpu, made):
    stream, tiles, x = made
    function = Mock(side_effect=scale)
    scale(tiles, x, 1.5).apply(function).sync_on(stream)
    function.assert_called_once_with(tiles, x, 1.5)


@compiled
def test_other_contexts_are_left_to_python(gpu, made):
    stream, tiles, x = made
    op = scale(tiles, x, 1.5)
    ctx, other = ExecutionContext(gpu[0], stream), Elsewhere(gpu[0], stream)
    results, link = [], op.apply(scale)
    link._spent = True
    assert native.row((op,), 0, results, other) == 0
    assert native.links([link], 0, op.arguments, other) == 0
    assert native.row((op,), 0, results, ctx) == 1
    assert results == [op.arguments]


@compiled
def test_a_context_with_memory_of_its_own_submits_all_the_same(gpu, made):
    """As that of PyTorch's operators."""
    stream, tiles, x = made

    class Lending(ExecutionContext):
        __slots__ = ()

    op, ctx = scale(tiles, x, 1.5), Lending(gpu[0], stream)
    before = len(gpu[1].launches)
    assert type(op.start(ctx)) is Done
    assert len(gpu[1].launches) == before + 1
    op = scale(tiles, x, 1.5)
    assert counted(lambda: op.start(ctx)) == 0, "Python takes five calls"


@compiled
def test_nothing_is_left_of_many_runs(gpu, made):
    """References that are forgotten, or given back twice, on any way through."""
    stream, tiles, x = made
    device, driver = gpu
    driver.meanwhile = driver.launches.clear
    other = device.stream()
    api.zeros(16).sync_on(other)

    def rounds(n):
        for _ in range(n):
            scale(tiles, x, 1.5).sync_on(stream)
            scale(tiles, x, 1.5).sync()
            scale(tiles, x, 1.5).async_on(stream)
            scale(tiles, x, 1.5).async_on(stream).done()
            scale(tiles, x, 1.5).apply(scale).apply(repeat_as_int).sync_on(stream)
            tk.join_all([scale(tiles, x, 1.5), repeat(tiles, x, 3), tk.value(1)]).sync_on(stream)
            scale(tiles, x, 1.5).sync_on(other)  # it must wait
            nothing().grid(2).sync_on(stream)
            driver.refuse = 1
            for run in (lambda op: op.sync_on(stream), lambda op: op.async_on(stream), lambda op: op.sync()):
                with contextlib.suppress(DeviceError):
                    run(scale(tiles, x, 1.5))
            driver.refuse = 0
        stream._names.clear()
        other._names.clear()
        stream.synchronize()
        other.synchronize()

    def counts():
        things = [stream, other, tiles, x, x.storage, scale, scale._options, scale.label, scale._form, scale._form.last[0]]
        things += [scale._form.last[0].native.__self__, device, stream._lock, stream._marks, None, False, True]
        gc.collect()
        return [sys.getrefcount(thing) for thing in things], len(device.event_pool) + len(stream._marks) + len(other._marks)

    rounds(20)
    before, events = counts()
    rounds(300)
    after, events_then = counts()
    # None and its like are everybody's; a leak would be of 300 at least.
    assert all(abs(now - then) < 60 for now, then in zip(after, before, strict=True)), (before, after)
    assert events_then < events + 40


WITHOUT = f"""
import sys
sys.modules["tilekit._native._launch"] = None
sys.path.insert(0, {str(REPOSITORY / "tests" / "compiler")!r})
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {__file__!r}, "--deselect", {__file__ + "::test_all_of_it_without"!r}]))
"""


@compiled
def test_all_of_it_without():
    """The same tests where there was no C compiler."""
    # Plugins of the run that this is a part of are told so by the environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=REPOSITORY, env=env, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
