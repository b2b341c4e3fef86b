"""Memory shared with PyTorch, CuPy, numba and JAX on a GPU: the same pointer, in order with what both sides submit.

Every producer here is slow on purpose, and what its consumer saw is checked by value. `TILEKIT_TEST_COUNT=1000` repeats each
test so often.
"""

import gc
import os
import weakref

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit_benchmarks import turning
from tilekit_benchmarks._tilekit_host import turn

COUNT = int(os.environ.get("TILEKIT_TEST_COUNT", "20"))
CLOCKS = 2_000_000  # about a millisecond: long enough that nobody gets there by chance
LOOPS = 100_000  # of `turn`, about the same
N = 1 << 14

pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids


@tk.kernel
def add(y: tk.InOut, n: int):
    y.store(y.load() + n)


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@pytest.fixture
def torch(device):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch was installed without CUDA")
    torch.zeros(1, device="cuda")
    return torch


@pytest.fixture
def cupy(device):
    return pytest.importorskip("cupy", reason="cupy is not installed")


@pytest.fixture
def numba_cuda(device):
    return pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")


def slow_tensor(stream, start, turned):
    """A tensor that work on `stream` has begun to write, and what it will hold."""
    x = api.from_host(start).sync()
    turn(x.partition(128), LOOPS, turning._A, turning._B).async_on(stream)
    return x, turning.advanced(start, LOOPS * turned)


START = np.random.default_rng(0).integers(-(2**31), 2**31, 128, dtype=np.int32)


class Library:
    """What the tests need of a library: slow writes of its own, and its ways in and out."""

    def __init__(self, module):
        self.module = module


class Torch(Library):
    def stream(self):
        return self.module.cuda.Stream()

    def use(self, stream):
        return self.module.cuda.stream(stream)

    def zeros(self, n):
        return self.module.zeros(n, dtype=self.module.int32, device="cuda")

    def slow_fill(self, array, value):
        self.module.cuda._sleep(CLOCKS)
        array.fill_(value)

    def slow_add(self, array, value):
        self.module.cuda._sleep(CLOCKS)
        array.add_(value)

    def take(self, tensor):
        return self.module.from_dlpack(tensor)

    def pointer(self, array):
        return array.data_ptr()

    def copy(self, array):
        return array.clone()

    def host(self, array):
        return array.cpu().numpy()


class Cupy(Library):
    def __init__(self, module):
        super().__init__(module)
        source = r"""extern "C" __global__ void spin(long long clocks) {
            long long start = clock64();
            while (clock64() - start < clocks) {}
        }"""
        self.spin = module.RawKernel(source, "spin")
        self.spin((1,), (1,), (np.int64(1),))
        module.cuda.Device().synchronize()

    def stream(self):
        return self.module.cuda.Stream(non_blocking=True)

    def use(self, stream):
        return stream

    def zeros(self, n):
        return self.module.zeros(n, self.module.int32)

    def slow_fill(self, array, value):
        self.spin((1,), (1,), (np.int64(CLOCKS),))
        array.fill(value)

    def slow_add(self, array, value):
        self.spin((1,), (1,), (np.int64(CLOCKS),))
        array += value

    def take(self, tensor):
        return self.module.from_dlpack(tensor)

    def pointer(self, array):
        return array.data.ptr

    def copy(self, array):
        return array.copy()

    def host(self, array):
        return array.get()


@pytest.fixture(params=["torch", "cupy"])
def library(request):
    kind = {"torch": Torch, "cupy": Cupy}[request.param]
    made = kind(request.getfixturevalue(request.param))
    made.copy(made.zeros(4))  # what happens once happens now
    return made


def test_what_they_write_slowly_is_waited_for(device, library):
    stream, theirs = library.stream(), library.zeros(N)
    device.synchronize()
    for i in range(1, COUNT + 1):
        with library.use(stream):
            library.slow_fill(theirs, i)
            ours = tk.as_tensor(theirs)
        assert (ours.address, ours.shape, ours.dtype) == (library.pointer(theirs), (N,), tk.int32)
        assert (ours.to_host().sync() == i).all()


def test_kernels_run_in_their_memory(device, library):
    stream, theirs = library.stream(), library.zeros(N)
    device.synchronize()
    for i in range(1, COUNT + 1):
        with library.use(stream):
            library.slow_fill(theirs, i)
            ours = tk.as_tensor(theirs)
            add(ours.partition(1024), 5).async_on(stream)  # so that what they do next comes behind
            seen = library.copy(theirs)
        stream.synchronize()
        assert (library.host(seen) == i + 5).all()


def test_what_is_written_slowly_they_wait_for(device, library):
    theirs_stream = library.stream()
    with device.stream() as stream:
        for _ in range(COUNT):
            x, expected = slow_tensor(stream, START, 1)
            with library.use(theirs_stream):
                theirs = library.take(x)
                seen = library.copy(theirs)
            assert library.pointer(theirs) == x.address
            theirs_stream.synchronize()
            np.testing.assert_array_equal(library.host(seen), expected)


def test_a_round_trip_orders_both(device, library):
    """They write slowly what was tilekit's, and give it back."""
    stream = library.stream()
    x = api.zeros(N, tk.int32).sync()
    total = 0
    for i in range(COUNT):
        with library.use(stream):
            theirs = library.take(x)
            library.slow_add(theirs, i)
            back = tk.as_tensor(theirs)
        total += i
        assert back.storage is x.storage
        assert back.address == x.address
        add(x.partition(1024), 1).sync()  # the same storage: whoever names it waits
        total += 1
        assert (x.to_host().sync() == total).all()


def test_memory_lives_as_long_as_they_use_it(device, library):
    """Dropped while their stream still reads it, and asked for at once by others."""
    stream = library.stream()
    for i in range(COUNT):
        x = api.full(N, i, tk.int32).sync()
        scratch = library.zeros(4)
        with library.use(stream):
            theirs = library.take(x)
            library.slow_fill(scratch, 1)
            seen = library.copy(theirs)
        del x, theirs
        gc.collect()
        others = [api.full(N, -1, tk.int32).sync() for _ in range(4)]
        stream.synchronize()
        assert (library.host(seen) == i).all()
        del others


def test_their_memory_lives_as_long_as_it_is_used(device, library):
    with device.stream() as stream:
        for i in range(COUNT):
            theirs = library.zeros(128)
            library.module.cuda.Stream.null.synchronize() if isinstance(library, Cupy) else library.module.cuda.synchronize()
            ours = tk.as_tensor(theirs)
            future = turn(ours.partition(128), LOOPS, turning._A, turning._B).async_on(stream)
            copied = ours.to_host().async_on(stream)
            del theirs, ours, future
            gc.collect()
            others = [library.zeros(128) for _ in range(4)]
            np.testing.assert_array_equal(copied.result(60), turning.advanced(np.zeros(128, np.int32), LOOPS), err_msg=str(i))
            del others


def test_lent_memory_comes_back(device, torch):
    """Two hundred gigabytes would not fit."""
    for _ in range(200):
        x = api.zeros(1 << 28).sync()
        torch.from_dlpack(x)


def test_borrowed_memory_goes_back(device, library):
    """It is remembered for arrays that are met again, and no longer than these live."""
    for _ in range(200):
        theirs = library.zeros(1 << 28)
        gone = weakref.ref(theirs)
        ours = tk.as_tensor(theirs)
        assert library.pointer(theirs) == ours.address
        assert tk.as_tensor(theirs) is ours
        del theirs, ours
        assert gone() is None


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_dtypes_of_torch(device, torch, dtype):
    theirs = torch.arange(48, device="cuda").reshape(6, 8).to(getattr(torch, dtype))
    torch.cuda.synchronize()
    ours = tk.as_tensor(theirs[1:, ::2])
    assert (ours.address, ours.shape, ours.strides) == (theirs[1:].data_ptr(), (5, 4), (8, 2))
    np.testing.assert_array_equal(ours.to_host().sync().astype(np.float64), theirs[1:, ::2].double().cpu().numpy())
    x = api.from_host(np.arange(48).reshape(6, 8).astype(ours.dtype)).sync()
    back = torch.from_dlpack(x[1:, ::2])
    assert (back.data_ptr(), back.dtype, back.stride()) == (x[1:].address, getattr(torch, dtype), (8, 2))
    np.testing.assert_array_equal(back.double().cpu().numpy(), x[1:, ::2].to_host().sync().astype(np.float64))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_of_torch(device, torch, dtype):
    x = api.from_host(np.arange(16).astype(getattr(tk, dtype))).sync()
    try:
        theirs = torch.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        pytest.skip(f"torch {torch.__version__} takes no {dtype} by DLPack: {error}")
    assert (theirs.data_ptr(), theirs.dtype) == (x.address, getattr(torch, dtype))
    assert tk.as_tensor(theirs).dtype == x.dtype


def test_a_tensor_that_requires_gradients_is_refused_by_torch(device, torch):
    with pytest.raises((BufferError, RuntimeError), match="detach"):
        tk.as_tensor(torch.zeros(4, device="cuda", requires_grad=True))


def test_cupy_takes_the_array_interface_too(device, cupy):
    with device.stream() as stream:
        for _ in range(COUNT):
            x, expected = slow_tensor(stream, START, 1)
            theirs = cupy.ndarray(
                x.shape, cupy.int32, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(x.address, x.nbytes, x), 0)
            )
            assert theirs.data.ptr == x.address
            seen = cupy.asarray(x)  # waits for the stream that the interface names
            assert seen.data.ptr == x.address
            np.testing.assert_array_equal(seen.get(), expected)


# memory that is met more than once


def test_views_of_one_allocation_have_one_order(device, library):
    """The part first and the whole later."""
    theirs = library.zeros(N)
    part, whole = tk.as_tensor(theirs[256:512]), tk.as_tensor(theirs)
    assert part.storage.reads is whole.storage.reads
    assert (part.address, whole.address) == (library.pointer(theirs) + 1024, library.pointer(theirs))
    with pytest.raises(ValueError, match="arguments y and x overlap in memory, and y is written"):
        copy(part.partition(256), whole[128:384]).sync()
    assert tk.as_tensor(library.zeros(N)).storage.reads is not whole.storage.reads


def test_parts_and_wholes_are_in_order(device, library):
    """Written slowly as the one, and read at once as the other, on another stream."""
    theirs = library.zeros(N)
    device.synchronize()
    part, whole = tk.as_tensor(theirs[:128]), tk.as_tensor(theirs)
    expected = np.zeros(128, np.int32)
    with device.stream() as one, device.stream() as other:
        for i in range(COUNT):
            turn(part.partition(128), LOOPS, turning._A, turning._B).async_on(one)
            expected = turning.advanced(expected, LOOPS)
            seen = whole.to_host().async_on(other)
            add(whole[:128].partition(128), 1).async_on(other)
            expected = expected + np.int32(1)
            np.testing.assert_array_equal(seen.result(60)[:128], expected - np.int32(1), err_msg=str(i))
        np.testing.assert_array_equal(part.to_host().sync(), expected)


def test_what_was_written_here_is_in_order_when_an_array_is_met_again(device, library):
    """Their stream has not waited for it, and the tensor that is made again must."""
    theirs = library.zeros(128)
    stream, expected = library.stream(), np.zeros(128, np.int32)
    device.synchronize()
    with device.stream() as one:
        for i in range(COUNT):
            with library.use(stream):
                turn(tk.as_tensor(theirs).partition(128), LOOPS, turning._A, turning._B).async_on(one)
                gc.collect()
                again = tk.as_tensor(theirs)
            expected = turning.advanced(expected, LOOPS)
            np.testing.assert_array_equal(again.to_host().sync(), expected, err_msg=str(i))


def test_numbas_parts_and_wholes_are_in_order(device, numba_cuda):
    """numba does not say what an array is a part of, so these are two storages."""
    theirs = numba_cuda.to_device(np.zeros(1024, np.int32))
    numba_cuda.synchronize()
    part, whole = tk.as_tensor(theirs[128:256]), tk.as_tensor(theirs)
    assert part.storage is not whole.storage
    for target, source in ((part, whole[64:192]), (whole[64:192], part)):
        with pytest.raises(ValueError, match="arguments y and x overlap in memory, and y is written"):
            copy(target.partition(128), source).sync()
    expected = np.zeros(128, np.int32)
    with device.stream() as one, device.stream() as other:
        for i in range(COUNT):
            turn(part.partition(128), LOOPS, turning._A, turning._B).async_on(one)
            expected = turning.advanced(expected, LOOPS)
            seen = whole.to_host().async_on(other)
            np.testing.assert_array_equal(seen.result(60)[128:256], expected, err_msg=str(i))


# numba, which knows the array interface alone


@pytest.fixture
def spinning(numba_cuda):
    """A numba kernel that takes its time, then adds to an array."""
    cuda = numba_cuda

    @cuda.jit
    def spin_and_add(array, value, loops):
        at = cuda.grid(1)
        for _ in range(loops):
            cuda.nanosleep(1000)
        if at < array.size:
            array[at] += value

    spin_and_add[1, 32](cuda.device_array(4, np.int32), 1, 1)
    cuda.synchronize()
    return spin_and_add


def test_numba_kernels_take_tensors(device, numba_cuda, spinning):
    stream = numba_cuda.stream()
    with device.stream() as ours:
        for _ in range(COUNT):
            x, expected = slow_tensor(ours, START, 1)
            assert numba_cuda.as_cuda_array(x).device_ctypes_pointer.value == x.address
            spinning[1, 128, stream](x, 7, 1)
            stream.synchronize()
            np.testing.assert_array_equal(x.to_host().sync(), expected + np.int32(7))


def test_numbas_arrays_tell_their_stream(device, numba_cuda, spinning):
    stream = numba_cuda.stream()
    theirs = numba_cuda.to_device(np.zeros(1024, np.int32), stream=stream)
    stream.synchronize()
    for i in range(1, COUNT + 1):
        spinning[8, 128, stream](theirs, 1, 500)
        ours = tk.as_tensor(theirs)
        assert ours.address == theirs.device_ctypes_pointer.value
        assert (ours.to_host().sync() == i).all()


def test_a_tensor_dropped_while_numba_uses_it(device, numba_cuda, spinning):
    stream = numba_cuda.stream()
    for i in range(COUNT):
        x = api.full(1024, i, tk.int32).sync()
        kept = numba_cuda.device_array(1024, np.int32)
        spinning[8, 128, stream](x, 1, 500)
        kept.copy_to_device(numba_cuda.as_cuda_array(x), stream=stream)
        del x
        gc.collect()
        others = [api.full(1024, -5, tk.int32).sync() for _ in range(4)]
        stream.synchronize()
        assert (kept.copy_to_host() == i + 1).all()
        del others


# addresses


def test_a_pointer_is_checked_by_what_the_driver_knows(device):
    x = api.arange(1024, dtype=tk.float32).sync()
    bare = tk.from_pointer(x.address, 1024, tk.float32)
    np.testing.assert_array_equal(bare.to_host().sync(), np.arange(1024, dtype=np.float32))
    with pytest.raises(ValueError, match=r"the memory there ends after [\d,]+"):
        tk.from_pointer(x.address, 1 << 40, tk.float32)
    host = np.zeros(1024, np.float32)
    with pytest.raises(ValueError, match="CUDA knows no device memory at"):
        tk.from_pointer(host.ctypes.data, 1024, tk.float32)
    with pytest.raises(ValueError, match="is in the host's memory, which cuda:0 cannot share"):
        tk.as_tensor(host)


def test_a_pointer_of_torchs(device, torch):
    stream = torch.cuda.Stream()
    theirs = torch.zeros(N, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    for i in range(1, COUNT + 1):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CLOCKS)
            theirs.fill_(i)
        ours = tk.from_pointer(theirs.data_ptr(), N, tk.int32, owner=theirs, stream=stream)
        assert (ours.to_host().sync() == i).all()


def test_jax_and_back(device):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("jax was installed without CUDA")
    for i in range(COUNT):
        theirs = jax.numpy.linalg.matrix_power(jax.numpy.eye(2048), 64)[:8] + i  # still being computed
        ours = tk.as_tensor(theirs)
        assert ours.address == theirs.unsafe_buffer_pointer()
        np.testing.assert_array_equal(ours.to_host().sync(), np.eye(8, 2048, dtype=np.float32) + i)
        with device.stream() as stream:
            x, expected = slow_tensor(stream, START, 1)
            back = jax.dlpack.from_dlpack(x)
            assert back.unsafe_buffer_pointer() == x.address
            np.testing.assert_array_equal(np.asarray(back), expected)
