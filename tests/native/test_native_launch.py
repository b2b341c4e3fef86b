"""The compiled part of launching does what Python does, or nothing: on a GPU that keeps what it is given."""

import contextlib
import gc
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from fake_gpu import fake_device

import tilekit as tk
from tilekit import _native, api
from tilekit.errors import DeviceError

pytestmark = pytest.mark.skipif(_native.compiled is None, reason="tilekit was installed without a C compiler")
pytest.importorskip("numba.cuda", reason="compiles kernels")


@tk.kernel
def scale(y: tk.Out, x: tk.In, g):
    y.store(tk.astype(tk.load_tile_like(x, y) * g, tk.float32))


@tk.kernel
def add(y: tk.InOut, x: tk.In):
    y.store(y.load() + tk.load_tile_like(x, y))


@tk.kernel
def repeat(y: tk.Out, n: tk.Const, x: tk.In):
    y.store(tk.load_tile_like(x, y) * n)


@tk.kernel
def both(y: tk.Out, z: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))
    z.store(tk.load_tile_like(x, z))


@pytest.fixture
def gpu():
    with fake_device() as made:
        yield made


@pytest.fixture
def python_only(monkeypatch):
    monkeypatch.setenv("TILEKIT_NATIVE", "0")


def plan_of(op):
    """The plan of a launch, which is not run."""
    op._spent = True
    return op._plan("compile")


def launched(gpu, op, slots):
    driver = gpu[1]
    driver.slots = slots
    driver.launches.clear()
    op.sync()
    driver.slots = 0
    (only,) = driver.launches
    return only[1:]  # the function is another for each executable


SCALARS = [
    1.5, -3, 2**63 - 1, -(2**63), True, np.float32(0.1), np.float64(0.1), np.float16(0.5), ml_dtypes.bfloat16(2.5),
    np.int8(-128), np.uint8(255), np.int16(-2), np.uint16(65535), np.int32(-7), np.uint32(2**32 - 1), np.int64(-9),
    np.uint64(2**64 - 1), np.bool_(True),
]  # fmt: skip


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{type(value).__name__}:{value}")
def test_parameters_are_those_that_python_packs(gpu, value):
    x, y = api.zeros((96, 40)).sync(), api.zeros((96, 40)).sync()
    x = x[:, 1:33]
    tiles = y[:, 2:34].partition((16, 32))
    op = lambda: scale(tiles, x, value)  # noqa: E731
    op().sync()
    slots = 4 + 4 + 1  # an address, two extents, one stride of each tensor
    plan = plan_of(op())
    assert plan.native is not None
    ours = launched(gpu, op(), slots)
    plan.native = None
    assert launched(gpu, op(), slots) == ours


def test_constants_are_not_passed(gpu):
    x, y = api.zeros(4096).sync(), api.zeros(4096).sync()
    for _ in range(2):
        grid, block, shared, stream, values = launched(gpu, repeat(y.partition(1024), 3, x), 4)
    assert (grid, shared, stream) == ((4, 1, 1), 0, gpu[0].policy.next_stream().address)
    assert block[0] % 32 == 0
    assert np.frombuffer(values, np.uint64).tolist() == [y.address, 4096, x.address, 4096]


def uses(tensor):
    storage = tensor.storage
    return storage.last_write, dict(storage.reads)


@pytest.mark.parametrize("switch", ["1", "0"])
def test_who_uses_the_memory_is_remembered(gpu, monkeypatch, switch):
    monkeypatch.setenv("TILEKIT_NATIVE", switch)
    stream = gpu[0].policy.next_stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    add(y.partition(512), x).sync()
    first = stream.pending
    op = add(y.partition(512), x)
    op.sync()
    assert (plan_of(op).native is not None) == (switch == "1")
    assert uses(y) == ((stream, first), {})
    assert uses(x)[1] == {stream: first}
    add(x.partition(512), y).sync()
    assert uses(x) == ((stream, first + 1), {})
    assert uses(y) == ((stream, first), {stream: first + 1})
    assert list(stream._names)[-2:] == [(first, "kernel add"), (first + 1, "kernel add")]


def declined(gpu, make, stream=None):
    """Whether the native launch leaves the op that `make` makes to Python; it has done nothing then."""
    op = make()
    before = len(gpu[1].launches)
    code = plan_of(op).native(stream or gpu[0].policy.next_stream(), op.arguments, "label")
    assert (code == -1) == (len(gpu[1].launches) == before)
    return code == -1


def waits_of(gpu, make, stream=None):
    """How often a native launch lets its stream wait; it leaves nothing to Python."""
    before = gpu[1].calls["cuStreamWaitEvent"]
    assert not declined(gpu, make, stream)
    return gpu[1].calls["cuStreamWaitEvent"] - before


def test_other_streams_are_waited_for(gpu):
    device, driver = gpu
    here, there = device.policy.next_stream(), device.stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    assert waits_of(gpu, make) == 0
    here.synchronize()
    assert waits_of(gpu, make, there) == 0, "all that was here has passed"
    there.synchronize()
    driver.not_ready = 10**9  # nothing is known to have passed
    api.memcpy(x, y).async_on(there)  # x was written there, y read
    assert waits_of(gpu, make, here) == 1, "the second is no later than the first"
    assert waits_of(gpu, make, here) == 0
    assert uses(y) == ((here, here.pending), {})
    assert uses(x) == ((there, there.pending - 1), {here: here.pending})
    # Behind these there is no mark yet: one is made.
    assert waits_of(gpu, lambda: add(x.partition(512), y), there) == 1
    assert uses(x) == ((there, there.pending), {})
    assert uses(y) == ((here, here.pending - 1), {there: there.pending})
    there.close()
    assert waits_of(gpu, make, here) == 1, "a stream that is closed has its last mark"


def test_streams_that_may_be_others_tomorrow_are_waited_for_each_time(gpu):
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    bare = device.adopt(1 << 30, None)
    driver.not_ready = 10**9
    x.storage.written_by((device.policy.next_stream(), device.policy.next_stream().pending))
    assert [waits_of(gpu, make, bare) for _ in range(3)] == [1, 1, 1]
    assert not bare._seen


def test_a_stream_remembers_so_many_others(gpu):
    device, driver = gpu
    stream = device.stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    driver.not_ready = 10**9
    for _ in range(600):
        with device.stream() as other:
            y.storage.last_write = (other, other.mark())
            assert waits_of(gpu, make, stream) == 1
    assert len(stream._seen) <= 256


def test_a_stream_in_which_somebody_records_is_left_to_python(gpu):
    device, driver = gpu
    there = device.stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    driver.not_ready = 10**9
    y.storage.last_write = (there, there.pending)
    with there._lock:
        assert declined(gpu, make)
    assert waits_of(gpu, make) == 1


def test_memory_that_two_arguments_share_is_left_to_python(gpu):
    x = api.zeros(4096).sync()
    make = lambda: add(x[:2048].partition(512), x[2048:])  # noqa: E731
    make().sync()
    assert declined(gpu, make)
    with pytest.raises(ValueError, match="overlap in memory"):
        add(x[:2048].partition(512), x[1024:3072]).sync()
    two = lambda: both(x[:1024].partition(512), x[1024:2048].partition(512), x[2048:3072])  # noqa: E731
    two().sync()
    assert declined(gpu, two)


def test_a_closed_stream_is_left_to_python(gpu):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    with gpu[0].stream() as stream:
        make().sync()
    assert declined(gpu, make, stream)


def test_another_context_is_left_to_python(gpu):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    gpu[1].context = 8
    assert declined(gpu, make)
    gpu[1].context = 7
    assert not declined(gpu, make)


def test_what_the_driver_refuses_is_an_error(gpu):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    gpu[1].refuse = 1
    before = uses(x), uses(y)
    with pytest.raises(DeviceError, match=r"launching .*add.* with grid \(4, 1, 1\)"):
        make().sync()
    assert (uses(x), uses(y)) == before


def test_it_is_called_with_what_it_takes(gpu):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    op = add(y.partition(512), x)
    op.sync()
    launch, stream = plan_of(add(y.partition(512), x)).native, gpu[0].policy.next_stream()
    with pytest.raises(TypeError, match="a stream, a tuple of the kernel's arguments, and a label"):
        launch(stream, (y.partition(512),), "label")
    assert launch(stream, (None, None), "label") == -1
    assert launch(None, (y.partition(512), x), "label") == -1


def test_more_arguments_than_it_has_room_for_are_launched_by_python(gpu):
    with pytest.raises(ValueError, match="64 arguments, 512 parameters and 8 maps"):
        _native.compiled.Launcher(
            launch=1, current=1, context=7, function=1, grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0,
            kinds=b"S" * 65, uses=b"\0" * 65, slots=b"d" * 65,
        )  # fmt: skip
    y = api.zeros(2048).sync()
    scale(y.partition(512), y.dup().sync(), 2.0).sync()
    plan = plan_of(scale(y.partition(512), y.dup().sync(), 2.0))
    plan.executable.facts = [*plan.executable.facts] * 22
    plan.count, plan.passed = 66, range(66)
    plan.keep(plan.executable)
    assert plan.native is None


def test_python_launches_alone(gpu, python_only):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    for _ in range(2):
        op = add(y.partition(512), x)
        op.sync()
    assert plan_of(add(y.partition(512), x)).native is None
    assert gpu[1].calls["cuLaunchKernel"] == 2


def test_many_threads_launch_the_same_kernel(gpu):
    device, driver = gpu
    x = api.zeros(2048).sync()
    outs = [api.zeros(2048).sync() for _ in range(8)]
    add(outs[0].partition(512), x).sync()
    driver.launches.clear()
    driver.slots = 1

    def work(y):
        with device.stream() as stream:
            for _ in range(200):
                add(y.partition(512), x).sync_on(stream)

    threads = [threading.Thread(target=work, args=(y,)) for y in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [np.frombuffer(values, np.uint64)[0] for *_, values in driver.launches]
    assert sorted(found) == sorted(y.address for y in outs for _ in range(200))


def test_what_other_threads_did_meanwhile_is_not_forgotten(gpu):
    """Their use must still be waited for before the memory is freed."""
    device, driver = gpu
    here, there = device.policy.next_stream(), device.stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    add(y.partition(512), x).sync()
    op = add(y.partition(512), x)
    launch = plan_of(op).native

    def others() -> None:
        y.storage.last_write = (there, 7)
        y.storage.reads[there] = 8

    driver.meanwhile = others
    assert launch(here, op.arguments, "label") == 0
    assert y.storage.last_write == (here, here.pending)
    assert y.storage.reads == {there: 8}


# memory of others


BASE = 1 << 40


def imported(gpu, start, n=2048, **more):
    """A tensor over `n` numbers of somebody's, from number `start` on."""
    if (BASE, 1 << 20) not in gpu[1].foreign:
        gpu[1].foreign.append((BASE, 1 << 20))
    said = {"shape": (n,), "typestr": "<f4", "data": (BASE + 4 * start, False), "version": 3, "stream": None}
    return tk.as_tensor(SimpleNamespace(__cuda_array_interface__=said | more))


def test_others_memory_is_launched_on_and_remembered(gpu):
    stream = gpu[0].policy.next_stream()
    x, y = imported(gpu, 0), imported(gpu, 4096)
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    assert not declined(gpu, make)
    assert uses(y) == ((stream, stream.pending), {})
    assert uses(x) == (None, {stream: stream.pending})
    assert (x.storage.history.reads, y.storage.history.last_write) == ({stream: stream.pending}, (stream, stream.pending))


@pytest.mark.parametrize("order", ["part first", "whole first"])
def test_overlapping_memory_of_others_is_left_to_python(gpu, order):
    device, driver = gpu
    if order == "part first":
        part, whole = imported(gpu, 1024), imported(gpu, 0, 8192)
    else:
        whole, part = imported(gpu, 0, 8192), imported(gpu, 1024)
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    apart = lambda: add(part.partition(512), whole[4096:6144])  # noqa: E731
    apart().sync()
    assert declined(gpu, apart)
    before = len(driver.launches)
    for target, source in ((part, whole[:2048]), (whole[:2048], part)):
        with pytest.raises(ValueError, match="arguments y and x overlap in memory, and y is written"):
            add(target.partition(512), source).sync()
    assert len(driver.launches) == before
    # Read alone, they are read; and whoever writes one of them on another stream is waited for by who reads the other.
    reads = lambda: both(x.partition(512), y.partition(512), part)  # noqa: E731
    reads().sync()
    assert not declined(gpu, reads)
    with device.stream() as there:
        make = lambda: add(y.partition(512), part)  # noqa: E731
        make().sync()
        assert not declined(gpu, make)
        driver.not_ready = 10**9
        waits = driver.calls["cuStreamWaitEvent"]
        api.memcpy(whole[6000:7000], x[:1000]).async_on(there)
        assert driver.calls["cuStreamWaitEvent"] > waits, "it was read here"
        assert waits_of(gpu, make, device.policy.next_stream()) == 1


def test_memory_that_is_joined_while_it_is_launched_on(gpu):
    here = gpu[0].policy.next_stream()
    read, written = imported(gpu, 0), imported(gpu, 4096)
    op = add(written.partition(512), read)
    op.sync()
    launch, met = plan_of(add(written.partition(512), read)).native, []
    gpu[1].meanwhile = lambda: met.append(imported(gpu, 0, 8192))
    before = here.pending
    assert launch(here, op.arguments, "label") == 0
    (whole,) = met
    assert whole.storage.history is read.storage.history is written.storage.history
    assert whole.storage.last_write == (here, before)
    assert launch(here, op.arguments, "label") == -1, "one range by now, and written"

    read, beside = imported(gpu, 20000), imported(gpu, 17000)
    arguments = api.zeros(2048).sync().partition(512), read
    gpu[1].meanwhile = lambda: met.append(imported(gpu, 16384, 8192))
    here.mark()
    assert launch(here, arguments, "label") == 0
    assert met[-1].storage.reads == {here: here.pending}
    assert met[-1].storage.reads is read.storage.reads is beside.storage.reads


# what goes wrong


class Hostile:
    """A stream whose hash fails from some moment on."""

    closed, address, pending = False, 5, 1
    broken = False

    def __init__(self):
        self._names = []

    def __hash__(self):
        if Hostile.broken:
            raise RuntimeError("no hash")
        return 5


def test_an_error_after_the_launch_is_raised_and_hides_no_use(gpu, monkeypatch):
    monkeypatch.setattr(Hostile, "broken", False)
    x, y, z = (api.zeros(2048).sync() for _ in range(3))
    op = both(y.partition(512), z.partition(512), x)
    op.sync()
    launch, stream = plan_of(both(y.partition(512), z.partition(512), x)).native, Hostile()
    for tensor in (x, y, z):
        tensor.storage.last_write, tensor.storage.reads = None, {}
    gpu[1].meanwhile = lambda: monkeypatch.setattr(Hostile, "broken", True)
    with pytest.raises(RuntimeError, match="no hash"):
        launch(stream, op.arguments, "label")
    assert len(gpu[1].launches) == 2
    assert y.storage.last_write == z.storage.last_write == (stream, 1)
    y.storage.last_write = z.storage.last_write = None


def test_an_error_of_python_code_behind_the_launch_is_raised(gpu):
    x, y = imported(gpu, 0), api.zeros(2048).sync()
    op = add(y.partition(512), x)
    op.sync()
    launch, stream = plan_of(add(y.partition(512), x)).native, gpu[0].policy.next_stream()
    history = x.storage.history
    gpu[1].meanwhile = lambda: setattr(x.storage, "history", None)
    with pytest.raises(TypeError, match="the memory of a launch has no history"):
        launch(stream, op.arguments, "label")
    assert y.storage.last_write == (stream, stream.pending), "the launch was made"
    x.storage.history = history


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_not_taken_for_what_python_finds_again(gpu, error):
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    op = add(y.partition(512), x)
    op.sync()
    launch = plan_of(add(y.partition(512), x)).native

    class Interrupted:
        storage = x.storage

        @property
        def flat(self):
            raise kind

    before = len(gpu[1].launches)
    kind = error
    with pytest.raises(error):
        launch(gpu[0].policy.next_stream(), (op.arguments[0], Interrupted()), "label")
    kind = ValueError
    assert launch(gpu[0].policy.next_stream(), (op.arguments[0], Interrupted()), "label") == -1
    assert len(gpu[1].launches) == before


def test_nothing_is_left_of_many_launches(gpu):
    """References that are forgotten, or given back twice, on any way through."""
    device, driver = gpu
    stream, label = device.policy.next_stream(), "a label of its own"
    x, y, theirs = api.zeros(2048).sync(), api.zeros(2048).sync(), imported(gpu, 0)
    other = device.stream()
    ops = [scale(y.partition(512), x, 2.5), scale(y.partition(512), theirs, 2.5), scale(theirs.partition(512), x, 2.5)]
    for op in ops:
        op.sync()
    arguments = [op.arguments for op in ops]
    launches = [plan_of(scale(*given)).native for given in arguments]
    launch, given = launches[0], arguments[0]
    driver.meanwhile = driver.launches.clear
    shared = (given[0], y, 2.5)

    def round_of(n):
        for one, values in zip(launches, arguments, strict=True):
            for _ in range(n):
                assert one(stream, values, label) == 0
        for _ in range(n // 10):  # each writes what was read and written on the other
            assert launch(other, given, label) == launch(stream, given, label) == 0
        for bad, where in (
            ((given[0], x, "2.5"), stream),  # no number
            ((given[0], None, 2.5), stream),  # no tensor
            ((given[0], api, 2.5), stream),
            (shared, stream),  # read and written
            (given, None),  # no stream
        ):
            for _ in range(n // 10):
                assert launch(where, bad, label) == -1
        for _ in range(n // 10):
            with contextlib.suppress(TypeError):
                launch(stream, values[:2], label)
        driver.refuse = 1
        for _ in range(n // 10):
            assert launch(stream, given, label) == 1
        driver.refuse = 0
        stream._names.clear()
        other._names.clear()

    def counts():
        objects = [x, y, theirs, stream, other, label, x.storage, y.storage, theirs.storage, *given, None, False]
        objects += [x.storage.reads, theirs.storage.history, launch.__self__, given]
        gc.collect()
        return [sys.getrefcount(thing) for thing in objects]

    round_of(100)
    before = counts()
    tracemalloc.start()
    try:
        round_of(2000)  # Python keeps up to 2,000 tuples for later
        low, _ = tracemalloc.get_traced_memory()
        round_of(30_000)
        high, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert high - low < 100_000, "bytes, of 100,000 launches: not one object of each; some marks are kept"
    after = counts()
    # None and False are everybody's, and marks have the launcher; a leak would be of 3,000 at least.
    assert all(abs(now - then) < 500 for now, then in zip(after, before, strict=True)), (before, after)


FACTOR = 2.0


class Config:
    OFFSET = 1.0


@tk.function
def term(t):
    return t * FACTOR + Config.OFFSET


def other_term(t):
    return t - FACTOR


@tk.kernel
def helped(y: tk.InOut):
    y.store(term(y.load()))


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (globals(), "FACTOR", 3.0),
        (globals(), "term", other_term),
        (globals(), "term", tk.function(other_term)),
        (Config, "OFFSET", 2.0),
    ],
    ids=["constant", "function", "helper", "attribute"],
)
def test_a_name_that_means_something_else_is_compiled_anew(gpu, monkeypatch, owner, name, value):
    tiles = api.zeros(64).sync().partition(64)
    helped(tiles).sync()
    before = plan_of(helped(tiles)).specialisation
    assert plan_of(helped(tiles)).specialisation is before
    set_in = monkeypatch.setattr if isinstance(owner, type) else monkeypatch.setitem
    set_in(owner, name, value)
    after = plan_of(helped(tiles)).specialisation
    assert after is not before
    assert after.bound.text != before.bound.text
    helped(tiles).sync()
    assert plan_of(helped(tiles)).specialisation is after
