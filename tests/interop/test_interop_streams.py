"""Memory shared with other libraries on a GPU, by a stand-in: what is asked of the driver, and what of the other library."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from exporter import Exporter
from fake_gpu import first_gpu
from sharing import TILE, N, copy

import tilekit as tk
from tilekit import api
from tilekit._runtime.bridges import bridge
from tilekit._runtime.context import ExecutionContext


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that does nothing, as the first one."""
    pytest.importorskip("cuda.bindings.driver", reason="the stand-in is driven by cuda.bindings")
    with first_gpu(monkeypatch) as made:
        yield made


def interface(address, shape, typestr="<f4", **more):
    said = {"shape": shape, "typestr": typestr, "data": (address, False), "version": 3, "stream": None}
    return SimpleNamespace(__cuda_array_interface__=said | more)


BASE = 1 << 40


def test_an_array_interface_becomes_a_tensor(gpu):
    device, driver = gpu
    driver.foreign.append((BASE, 4096))
    tensor = tk.as_tensor(interface(BASE + 64, (4, 8), strides=(64, 4)))
    assert (tensor.address, tensor.shape, tensor.strides, tensor.dtype) == (BASE + 64, (4, 8), (16, 1), tk.float32)
    assert tensor.device is device
    assert tensor.storage.theirs is None
    assert tk.as_tensor(interface(0, (0,))).shape == (0,)
    assert tk.as_tensor(interface(BASE, (8,), data=(BASE, True))).storage.readonly == "types.SimpleNamespace says so"


def test_an_array_interface_tells_the_stream(gpu):
    driver = gpu[1]
    driver.foreign.append((BASE, 1 << 20))
    for at, (given, stream) in enumerate([({"stream": 1}, 1), ({"stream": 2}, 2), ({"stream": 77}, 77), ({"version": 2}, 1)]):
        tensor = tk.as_tensor(interface(BASE + 4096 * at, (8,), **given))
        moment = tensor.storage.theirs
        assert moment[0].address == stream
        assert moment[0].pending == moment[1] + 1, "recorded now, not when somebody waits"


def test_a_bad_array_interface_is_refused(gpu):
    gpu[1].foreign.append((BASE, 4096))
    cases = [
        (interface(BASE, (1025,)), ValueError, r"needs the 4,100 bytes from 0x10000000000 on, and .* there ends after 4,096"),
        (interface(BASE + 4092, (2,)), ValueError, "ends after 4$"),
        (interface(BASE, (8,), strides=(-4,)), ValueError, "CUDA knows no device memory at 0xffffffffe4"),
        (interface(1 << 20, (8,)), ValueError, "CUDA knows no device memory at 0x100000. Memory of the host's is for a CPU"),
        (interface(BASE, (8,), strides=(2,)), ValueError, r"strides of \(2,\) bytes are no multiples of the 4 bytes"),
        (interface(BASE, (8,), strides=(4, 4)), ValueError, r"2 strides as \(4, 4\) for a shape of 1 dimensions"),
        (interface(BASE + 2, (8,)), ValueError, "is no address of float32 elements"),
        (interface(BASE, (8,), stream=0), ValueError, "names stream 0: 1, 2 or the address"),
        (interface(BASE, (8,), mask=object()), TypeError, "has a mask"),
        (interface(BASE, (8,), typestr="<c8"), TypeError, "is not a dtype of tilekit"),
        (interface(BASE, (-8,)), ValueError, "damaged __cuda_array_interface__.*negative"),
        (SimpleNamespace(__cuda_array_interface__={"shape": (3,)}), ValueError, "damaged __cuda_array_interface__.*'data'"),
        (SimpleNamespace(__cuda_array_interface__=5), ValueError, "damaged __cuda_array_interface__, 5"),
        (interface(BASE, (8,), strides=("x",)), ValueError, "damaged __cuda_array_interface__.*integer"),
        (interface(BASE, (8,), data=("x", False)), ValueError, "damaged __cuda_array_interface__.*integer"),
        (interface(BASE, (8,), version="x"), ValueError, "damaged __cuda_array_interface__.*integer"),
    ]
    for obj, kind, match in cases:
        with pytest.raises(kind, match=match):
            tk.as_tensor(obj)
    with pytest.raises(ValueError, match=r"the memory is on cuda:0, not on cpu:0: .* copy it with .to\(Device\(\"cpu:0\"\)\)"):
        tk.as_tensor(interface(BASE, (8,)), device="cpu")


def test_memory_of_the_hosts_is_no_gpus(gpu):
    for obj in (np.zeros(4, np.float32), Exporter(np.zeros(4, np.uint32)), np.zeros(4, np.float32).__dlpack__()):
        with pytest.raises(ValueError, match="in the host's memory, which cuda:0 cannot share: copy it there with api.from_host"):
            tk.as_tensor(obj)
    assert tk.as_tensor(np.zeros(4, np.float32), device="cpu").device.kind == "cpu"


def test_a_gpus_pointer_is_checked_with_the_driver(gpu):
    gpu[1].foreign.append((BASE, 4096))
    assert tk.from_pointer(BASE, 1024, tk.float32).storage.borrowed
    with pytest.raises(ValueError, match="needs the 4,100 bytes from 0x10000000000 on, and the memory there ends after 4,096"):
        tk.from_pointer(BASE, 1025, tk.float32)
    with pytest.raises(ValueError, match="CUDA knows no device memory at 0x1000"):
        tk.from_pointer(4096, 8, tk.float32)
    assert tk.from_pointer(4096, 8, tk.float32, nbytes=32).address == 4096, "who says how much there is, is believed"


@pytest.mark.parametrize("versioned", [True, False])
def test_a_producer_is_told_which_stream_must_wait(gpu, versioned):
    array = np.zeros(64, np.uint32)
    obj = Exporter(array, np.float32, device=(2, 0), versioned=versioned)
    tensor = tk.as_tensor(obj)
    ((stream, _),) = obj.asked
    moment = tensor.storage.theirs
    assert (moment[0].address, moment[0].pending) == (stream, moment[1] + 1)
    assert (tensor.address, tensor.dtype) == (array.ctypes.data, tk.float32)
    # A bare capsule was made for the legacy default stream.
    capsule = Exporter(np.zeros(64, np.uint32), device=(2, 0)).__dlpack__()
    assert tk.as_tensor(capsule).storage.theirs[0].address == 1
    with pytest.raises(ValueError, match="the memory is on cuda:0, not on cpu:0"):
        tk.as_tensor(obj, device="cpu")


def test_imports_do_not_wait_for_each_other(gpu):
    """Each goes through a stream that is idle; there are eight."""
    driver, bridges = gpu[1], set()
    arrays = [Exporter(np.zeros(64, np.uint32), device=(2, 0)) for _ in range(20)]
    driver.cuStreamQuery = lambda stream: (600,)
    tensors = [tk.as_tensor(array) for array in arrays]
    bridges = [tensor.storage.theirs[0] for tensor in tensors]
    assert len(set(bridges)) == 8
    assert len(set(bridges[:8])) == 8
    driver.cuStreamQuery = lambda stream: (0,)
    assert len({tk.as_tensor(array).storage.theirs[0] for array in arrays}) == 1


def test_who_is_behind_the_same_streams_has_one_bridge(gpu):
    """It waits for nothing else, and nobody asks whether it is idle."""
    device, driver = gpu
    driver.cuStreamQuery = lambda stream: pytest.fail("nobody asks")
    one, two, three = device.stream(), device.stream(), device.stream()
    first = bridge(device, [(one, 2), (two, 5)])
    assert bridge(device, [(two, 7), (one, 2)]) is first
    driver.cuStreamQuery = lambda stream: (600,)
    assert bridge(device, [(one, 1), (two, 6)]) is not first, "which waits for later work of the first stream's"
    assert bridge(device, [(one, 9), (three, 1)]) is not first
    assert bridge(device) not in (first, one, two, three)
    others = {bridge(device) for _ in range(30)}
    assert len(others) == 8
    driver.cuStreamQuery = lambda stream: (0,)
    assert bridge(device, [(one, 1)]) in others


def test_a_consumers_stream_waits_for_the_writer(gpu):
    device, driver = gpu
    with device.stream() as stream:
        for consumer, waits in ((None, 1), (1, 1), (2, 1), (12345, 1), (-1, 0), (stream.address, 0)):
            x = api.zeros(N).async_on(stream).result()
            x.storage.last_write = (stream, stream.pending)  # as if it was written just now
            driver.calls.clear()
            x.__dlpack__(stream=consumer)
            assert driver.calls["cuStreamWaitEvent"] == waits, consumer
    for consumer in (0, -2):
        with pytest.raises(ValueError, match=f"stream={consumer} is ambiguous"):
            x.__dlpack__(stream=consumer)
    for consumer in (True, "1", 2.0):
        with pytest.raises(TypeError, match="stream is None, 1, 2, -1 or the address of a CUDA stream"):
            x.__dlpack__(stream=consumer)
    assert x.__dlpack_device__() == (2, 0)
    with pytest.raises(BufferError, match=r"is on device \(2, 0\) of DLPack, not on \(1, 0\): bring it there with .to\(device\)"):
        x.__dlpack__(dl_device=(1, 0))


def test_a_round_trip_is_the_same_storage_written_by_the_consumer(gpu):
    x = api.zeros(N).sync()
    back = tk.as_tensor(x.__dlpack__(stream=-1, max_version=(1, 0)))
    assert back.storage is x.storage
    assert x.storage.theirs[0].address == 1
    assert (back.address, back.dtype, back.shape) == (x.address, x.dtype, x.shape)


def test_the_array_interface_of_a_tensor(gpu):
    device, driver = gpu
    x = api.zeros((4, 8)).sync()
    assert x.__cuda_array_interface__ == {
        "version": 3, "shape": (4, 8), "typestr": "<f4", "data": (x.address, False), "strides": None, "stream": None,
    }  # fmt: skip
    view = x[::2, 1:]
    found = view.__cuda_array_interface__
    assert (found["data"], found["strides"], found["shape"]) == ((x.address + 4, False), (64, 4), (2, 7))
    assert api.zeros(4, tk.bfloat16).sync().__cuda_array_interface__["typestr"] == "<V2"
    assert api.zeros(0).sync().__cuda_array_interface__["data"] == (0, False)
    driver.foreign.append((BASE, 4096))
    assert tk.as_tensor(interface(BASE, (8,), data=(BASE, True))).__cuda_array_interface__["data"] == (BASE, True)

    # Where work on it is not known to be done, a stream that waits for nothing else.
    with device.stream() as stream:
        x.storage.last_write = (stream, stream.pending)
        driver.not_ready, driver.calls["cuStreamWaitEvent"] = 1, 0
        told = x.__cuda_array_interface__["stream"]
        assert told not in (None, stream.address)
        assert driver.calls["cuStreamWaitEvent"] == 1


def test_lent_memory_is_freed_after_all_work_of_the_device(gpu):
    device, driver = gpu
    for lend in (lambda x: x.__dlpack__(stream=-1), lambda x: x.__cuda_array_interface__):
        x = api.zeros(N).sync()
        lent = lend(x)
        del x, lent
        gc.collect()
        driver.calls.clear()
        driver.not_ready = 1
        device.collect()  # records an event behind everything, which has not passed
        assert (driver.calls["cuCtxRecordEvent"], driver.calls["cuMemFreeAsync"]) == (1, 0)
        device.collect()  # it has
        device.collect()  # so the memory is freed, in the order of tilekit's own streams
        assert (driver.calls["cuCtxRecordEvent"], driver.calls["cuMemFreeAsync"]) == (1, 1)


def test_launches_that_are_native_otherwise_look_at_borrowed_and_read_only_memory(gpu):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    device, driver = gpu
    driver.foreign.append((BASE, 1 << 20))
    x, y = api.zeros(N).sync(), api.zeros(N).sync()
    for _ in range(3):
        copy(y.partition(TILE), x).sync()
    launches = driver.calls["cuLaunchKernel"]
    bare = tk.from_pointer(BASE, N, tk.float32)
    with device.stream() as stream:
        with pytest.raises(ValueError, match="uses borrowed memory"):
            tk.with_context(lambda ctx: copy(y.partition(TILE), bare)).async_on(stream)
        frozen = tk.as_tensor(interface(BASE + 4096, (N,), data=(BASE + 4096, True)))
        with pytest.raises(ValueError, match="is read-only, since types.SimpleNamespace says so"):
            copy(frozen.partition(TILE), x).sync()
    assert driver.calls["cuLaunchKernel"] == launches
    copy(y.partition(TILE), bare).sync()
    copy(y.partition(TILE), frozen).sync()
    assert driver.calls["cuLaunchKernel"] == launches + 2


# memory that is met again


def behind(stream, moment):
    """Whether all that comes later on `stream` runs after a moment."""
    return stream.follows(*moment)


def test_tilekits_own_work_is_not_forgotten_when_an_array_is_met_again(gpu):
    """Their library's stream has not waited for it."""
    device, driver = gpu
    driver.foreign.append((BASE, 4096))
    theirs = Exporter(np.zeros(64, np.uint32), device=(2, 0))
    for obj in (interface(BASE, (64,), stream=77), theirs):
        x = tk.as_tensor(obj)
        driver.not_ready = 10**9
        with device.stream() as writer, device.stream() as reader:
            written = x.storage.last_write = (writer, writer.pending)  # as if it was written just now
            again = tk.as_tensor(obj)
            assert again.storage is x.storage
            assert again.storage.last_write is written
            moment = again.storage.theirs
            assert moment[0] not in (writer, reader)
            ExecutionContext(device, reader).acquire((again.storage,), ())
            assert behind(reader, moment)
            assert behind(reader, written)
        driver.not_ready = 0


def test_parts_that_a_whole_joins_are_all_waited_for(gpu):
    device, driver = gpu
    driver.foreign.append((BASE, 4096))
    parts = [tk.as_tensor(interface(BASE + at, (64,))) for at in (0, 1024)]
    driver.not_ready = 10**9
    with device.stream() as a, device.stream() as b:
        moments = []
        for part, stream in zip(parts, (a, b), strict=True):
            part.storage.last_write = (stream, stream.pending)  # as if it was written just now
            moments.append(part.storage.last_write)
        whole = tk.as_tensor(interface(BASE, (1024,), stream=77))
        last = whole.storage.last_write
        assert [behind(last[0], moment) for moment in moments] == [True, True]
        assert parts[0].storage.last_write is parts[1].storage.last_write is last
        assert parts[0].storage.theirs[0].address == 77
    driver.not_ready = 0


def test_arrays_of_one_allocation_are_one_storage(gpu):
    """Where their library says so, as PyTorch and CuPy do."""
    gpu[1].foreign.append((BASE, 1 << 20))
    one = SimpleNamespace(data_ptr=lambda: BASE, nbytes=lambda: 4096)
    torch = [interface(BASE + at, (64,)) for at in (1024, 0)]
    for array in torch:
        array.untyped_storage = lambda: one
    cupy = [interface(BASE + 65536 + at, (64,)) for at in (1024, 0)]
    for array in cupy:
        array.data = SimpleNamespace(mem=SimpleNamespace(ptr=BASE + 65536, size=8192))
    for arrays, nbytes in ((torch, 4096), (cupy, 8192)):
        tensors = [tk.as_tensor(array) for array in arrays]
        assert tensors[0].storage is tensors[1].storage
        assert tensors[0].storage.nbytes == nbytes
        assert [tensor.offset for tensor in tensors] == [256, 0]
    assert tk.as_tensor(cupy[0]).storage.reads is not tk.as_tensor(torch[0]).storage.reads
