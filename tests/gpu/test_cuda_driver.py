"""The CUDA driver on a GPU: what only hardware shows. Everything that both drivers share is in `tests/test_*.py`."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device, as_stream
from tilekit.errors import DeviceError, OutOfMemoryError

# y[i] += a, after spinning for `clocks` clock cycles; with n < 0, a write far out of bounds.
SOURCE = """
extern "C" __global__ void add(int* y, int a, int n, long long clocks) {
    extern __shared__ int scratch[];
    long long start = clock64();
    while (clock64() - start < clocks) {}
    if (n < 0) y[1ll << 40] = a;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a;
}
"""
LONG = 200_000_000  # clock cycles: about a tenth of a second


def compiled(target):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the kernel of these tests is compiled by NVRTC")
    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"add.cu", 0, [], [])
    options = [f"--gpu-architecture={target}".encode()]
    assert nvrtc.nvrtcCompileProgram(program, len(options), options)[0] == 0
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin


class Add:
    """The kernel, loaded."""

    def __init__(self, device):
        self.driver = device.driver
        self.function = self.driver.load(compiled(device.target), "add")

    def __call__(self, stream, storage, a, n, clocks=0, shared=0, grid=None):
        values = (ctypes.c_uint64(storage.memory.address), ctypes.c_int32(a), ctypes.c_int32(n), ctypes.c_int64(clocks))
        pointers = (ctypes.c_void_p * 4)(*[ctypes.addressof(value) for value in values])
        self.driver.launch(
            self.function, grid or (max(1, -(-n // 256)), 1, 1), (256, 1, 1), shared, stream.handle, ctypes.addressof(pointers)
        )


@pytest.fixture
def add(device):
    return Add(device)


def zeros(ctx, n):
    storage = ctx.allocate(4 * n)
    ctx.device.driver.fill(storage.memory, 0, n, bytes(4), ctx.stream.handle)
    ctx.note((), (storage,))
    return storage


def to_host(ctx, storage):
    host = np.empty(storage.nbytes // 4, np.int32)
    ctx.acquire((storage,), ())
    ctx.device.driver.copy_to_host(host, storage.memory, 0, ctx.stream.handle)
    ctx.note((storage,), ())
    ctx.stream.synchronize()
    return host


def test_what_the_device_is(device):
    assert device.compute_capability >= (8, 0)
    assert device.target.startswith("sm_")
    free, total = device.memory_info()
    assert 0 < free <= total
    assert device is Device(device.ordinal)


def test_a_launch(device, add):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        y = zeros(ctx, 1000)
        add(stream, y, 3, 1000)
        add(stream, y, 4, 1000)
        np.testing.assert_array_equal(to_host(ctx, y), 7)


def test_shared_memory_past_48_kb(device, add):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        y = zeros(ctx, 256)
        add(stream, y, 1, 256, shared=96 * 1024)
        np.testing.assert_array_equal(to_host(ctx, y), 1)
        with pytest.raises(DeviceError, match="add needs 1,048,576 bytes of dynamic shared memory"):
            add(stream, y, 1, 256, shared=1 << 20)


@pytest.mark.parametrize("pattern", [b"\x01", b"\x01\x02", b"\x01\x02\x03\x04"])
def test_fill(device, pattern):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        y = zeros(ctx, 100)
        device.driver.fill(y.memory, 8, 40 // len(pattern), pattern, stream.handle)
        host = to_host(ctx, y).view(np.uint8)
        assert host.tobytes() == bytes(8) + pattern * (40 // len(pattern)) + bytes(400 - 48)


def test_work_is_asynchronous_and_a_wait_covers_nothing_later(device, add):
    with device.stream() as one, device.stream() as two:
        first, second = ExecutionContext(device, one), ExecutionContext(device, two)
        y = zeros(first, 256)
        add(one, y, 1, 256)
        first.note((), (y,))
        serial = one.mark()
        one.synchronize()
        add(one, zeros(first, 1), 1, 1, clocks=LONG)
        end = one.mark()
        second.acquire((y,), (y,))
        add(two, y, 1, 256)
        second.note((y,), (y,))
        np.testing.assert_array_equal(to_host(second, y), 2)
        assert one.is_complete(serial)
        assert not one.is_complete(end)
        assert not one.query()
        assert not one.wait(end, 0.001)
        assert one.wait(end, 30.0)


def test_order_across_streams(device, add):
    streams = [device.stream() for _ in range(4)]
    contexts = [ExecutionContext(device, stream) for stream in streams]
    y = zeros(contexts[0], 4096)
    for i in range(200):
        ctx = contexts[i * 7 % 4]
        ctx.acquire((y,), (y,))
        add(ctx.stream, y, 1, 4096, clocks=2000)
        ctx.note((y,), (y,))
    np.testing.assert_array_equal(to_host(contexts[1], y), 200)


def test_memory_is_not_used_again_too_early(device, add):
    one, two = ExecutionContext(device, device.stream()), ExecutionContext(device, device.stream())
    results = []
    for i in range(50):
        y = zeros(one, 1 << 16)
        two.acquire((y,), (y,))
        add(two.stream, y, i, 1 << 16, clocks=100_000)
        two.note((y,), (y,))
        host = np.empty(1 << 16, np.int32)
        device.driver.copy_to_host(host, y.memory, 0, two.stream.handle)
        two.note((y,), ())
        del y
        zeros(one, 1 << 16)  # would overwrite it, had it been freed before `two` was done
        results.append((i, host))
    device.synchronize()
    for i, host in results:
        np.testing.assert_array_equal(host, i)


@pytest.mark.alone
def test_out_of_memory_leaves_all_usable(device):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        _, total = device.memory_info()
        with pytest.raises(OutOfMemoryError, match="out of memory") as caught:
            ctx.allocate(2 * total)
        assert (caught.value.requested_bytes, caught.value.total_bytes) == (2 * total, total)
        assert caught.value.code == "CUDA_ERROR_OUT_OF_MEMORY"
        np.testing.assert_array_equal(to_host(ctx, zeros(ctx, 10)), 0)
        assert nothing_is_hoarded(total)


def nothing_is_hoarded(total):
    """Whether other processes can have most of the device's memory."""
    from cuda.bindings import driver

    _, free, _ = driver.cuMemGetInfo()
    return int(free) > total // 2


def test_callbacks_come_after_the_work_and_may_use_the_device(device, add):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        y = zeros(ctx, 256)
        add(stream, y, 1, 256, clocks=LONG // 10)
        end, seen, done = stream.mark(), [], threading.Event()

        def called(stream, status, arg):
            seen.append((status, arg, stream.is_complete(end), to_host(ctx, y)[0]))
            done.set()

        stream.add_callback(called, "arg")
        assert done.wait(30)
        assert seen == [(0, "arg", True, 1)]


def test_ten_thousand_callbacks_on_four_streams(device):
    streams, done, count = [device.stream() for _ in range(4)], threading.Event(), [0]

    def called(stream, status, arg):
        count[0] += 1
        if count[0] == 10_000:
            done.set()

    for i in range(10_000):
        streams[i % 4].add_callback(called)
    assert done.wait(60)


def test_threads_submit_to_one_stream(device, add):
    with device.stream() as stream:
        ctx = ExecutionContext(device, stream)
        y = zeros(ctx, 256)
        threads = [threading.Thread(target=lambda: [add(stream, y, 1, 256) for _ in range(100)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(to_host(ctx, y), 800)


def test_time_between_events(device, add):
    with device.stream() as stream, device.event(timing=True) as start, device.event(timing=True) as end:
        y = zeros(ExecutionContext(device, stream), 1)
        start.record(stream)
        add(stream, y, 1, 1, clocks=LONG // 10)
        end.record(stream)
        end.synchronize()
        assert 1 < start.elapsed_ms(end) < 1000
        with device.event() as plain, pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_HANDLE"):
            plain.record(stream).elapsed_ms(end)


def test_streams_of_numba(device, add):
    numba_cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    foreign = numba_cuda.stream()
    stream = as_stream(foreign)
    ctx = ExecutionContext(device, stream)
    y = zeros(ctx, 256)
    add(stream, y, 5, 256)
    foreign.synchronize()
    np.testing.assert_array_equal(to_host(ctx, y), 5)
    assert as_stream(numba_cuda.external_stream(stream.address)) is stream
    assert as_stream(numba_cuda.default_stream()).address == 0


def test_streams_of_torch(device, add):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    foreign = torch.cuda.Stream()
    stream = as_stream(foreign)
    assert (stream.address, stream.device) == (foreign.cuda_stream, device)
    y = zeros(ExecutionContext(device, stream), 256)
    add(stream, y, 5, 256)
    foreign.synchronize()
    assert stream.query()


def test_streams_of_cupy(device, add):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    foreign = cupy.cuda.Stream(non_blocking=True)
    stream = as_stream(foreign)
    assert (stream.address, stream.device) == (foreign.ptr, device)
    with warnings.catch_warnings():
        # Deprecated, but what it is to be replaced by, Stream.from_external, destroys the foreign stream with itself (cupy 14.2).
        warnings.simplefilter("ignore", DeprecationWarning)
        assert as_stream(cupy.cuda.ExternalStream(stream.address)) is stream


def test_streams_of_cuda_core(device):
    core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    own = core.Device(device.ordinal)
    own.set_current()
    foreign = own.create_stream()
    stream = as_stream(foreign, device)
    assert stream.address == int(foreign.handle)
    assert as_stream(own.create_stream(stream), device) is stream  # it takes ours through __cuda_stream__


FAULT = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from test_cuda_driver import Add, ExecutionContext, zeros
from tilekit._runtime.device import Device
from tilekit.errors import DeviceError
device = Device("cuda")
stream, other = device.stream(), device.stream()
y = zeros(ExecutionContext(device, stream), 1)
add, statuses, done = Add(device), [], threading.Event()
device.synchronize()
stream.add_callback(lambda *_: done.set())
done.wait(60)
done.clear()
add(stream, y, 1, -1, grid=(1, 1, 1))
stream.add_callback(lambda _, status, __: (statuses.append(status), done.set()))
assert done.wait(60)
codes = []
for wait in (stream.synchronize, other.synchronize, device.synchronize, stream.query, lambda: stream.wait(1 << 40)):
    try:
        wait()
    except DeviceError as error:
        codes.append(error.code)
done.clear()
other.add_callback(lambda _, status, __: (statuses.append(status), done.set()))  # also once all is lost
assert done.wait(60)
del y
stream.close()
print(statuses, codes)
sys.stdout.flush()
os._exit(0)
"""


def test_a_fault_reaches_every_waiter():
    program = FAULT.format(tests=__file__.rsplit("/", 1)[0])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"[700, 700] {['CUDA_ERROR_ILLEGAL_ADDRESS'] * 5}\n", done.stderr


def test_the_process_ends_silently():
    program = """
from tilekit._runtime.device import Device
from tilekit._runtime.context import ExecutionContext
device = Device("cuda")
stream = device.stream()
keep = ExecutionContext(device, stream).allocate(1000)
stream.add_callback(lambda *_: None)
event = device.event().record(stream)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
