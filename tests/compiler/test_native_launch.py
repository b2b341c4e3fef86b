"""The compiled part of launching does what Python does, or nothing: on a GPU that keeps what it is given."""

import threading

import ml_dtypes
import numpy as np
import pytest
from fake_gpu import fake_gpu

import tilekit as tk
from tilekit import api
from tilekit.compiler import load
from tilekit.errors import DeviceError
from tilekit.schedule import SingleStream

pytestmark = pytest.mark.skipif(load._Launcher is None, reason="tilekit was installed without a C compiler")
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
    device, driver = fake_gpu()
    with tk.use_device(device):
        device.policy = SingleStream(device)
        yield device, driver


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


def test_what_must_wait_is_left_to_python(gpu):
    device, driver = gpu
    here, there = device.policy.next_stream(), device.stream()
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    make = lambda: add(y.partition(512), x)  # noqa: E731
    make().sync()
    assert not declined(gpu, make)
    assert declined(gpu, make, there)  # it was written here
    api.memcpy(x, y).sync_on(there)
    assert declined(gpu, make)  # x was written there, y read
    waits = driver.calls["cuStreamWaitEvent"]
    driver.not_ready = 10**9  # nothing is known to have passed
    api.memcpy(x, y).async_on(there)
    make().async_on(here)
    assert driver.calls["cuStreamWaitEvent"] > waits


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
    with pytest.raises(ValueError, match="64 arguments and 512 parameters"):
        load._Launcher(
            launch=1, current=1, context=7, function=1, grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0,
            kinds=b"S" * 65, uses=b"\0" * 65, slots=b"d" * 65,
        )  # fmt: skip
    y = api.zeros(2048).sync()
    scale(y.partition(512), y.dup().sync(), 2.0).sync()
    executable = plan_of(scale(y.partition(512), y.dup().sync(), 2.0)).executable
    executable._facts = [*executable._facts] * 22
    assert executable.native((1, 1, 1), range(66), [0] * 66) is None


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
