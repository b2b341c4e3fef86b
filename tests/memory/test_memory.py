"""`tilekit.memory`: statistics and limits, page-locked arrays, other pools, arrays in chunks, and memory nobody has written."""

from __future__ import annotations

import ctypes
import gc
import threading
import types

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, memory
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit.errors import DeviceError, OutOfMemoryError

MIB = 1 << 20


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@pytest.fixture
def cpu():
    """A CPU device of the test's own, the default one."""
    device = Device.of_driver(CpuDriver())
    with tk.use_device(device):
        yield device
    device.synchronize()


def quiet(device):
    """Nothing is left that other tests dropped."""
    gc.collect()
    device.synchronize()
    memory.release()
    device.synchronize()


# statistics


def test_statistics_follow_allocations(device):
    quiet(device)
    memory.reset_peak()
    before = memory.stats()
    x = api.zeros(MIB, tk.uint8).sync()
    y = api.zeros(2 * MIB, tk.uint8).sync()
    now = memory.stats(device)
    assert now.used_bytes - before.used_bytes == 3 * MIB
    assert now.allocations - before.allocations == 2
    assert now.reserved_bytes >= now.used_bytes
    assert 0 < now.free_bytes <= now.total_bytes
    assert now.limit_bytes is None
    del y
    quiet(device)
    later = memory.stats()
    assert later.used_bytes - before.used_bytes == MIB
    assert later.peak_used_bytes - before.used_bytes >= 3 * MIB
    memory.reset_peak()
    assert memory.stats().peak_used_bytes < later.peak_used_bytes
    assert x.nbytes == MIB


def test_statistics_are_keyword_only_and_frozen(device):
    found = memory.stats()
    with pytest.raises(AttributeError):
        found.used_bytes = 0
    with pytest.raises(TypeError):
        memory.MemoryStats(1, 2)


# limits


@pytest.fixture
def limited(device):
    quiet(device)
    room = memory.stats().used_bytes
    yield lambda nbytes: memory.set_limit(room + nbytes)
    memory.set_limit(None)


def test_a_limit_says_what_was_asked_and_what_is_free(device, limited):
    limited(10 * MIB)
    kept = api.zeros(6 * MIB, tk.uint8).sync()
    with pytest.raises(
        OutOfMemoryError, match="out of memory: 8,388,608 bytes asked for.* that memory.set_limit allows"
    ) as caught:
        api.zeros(8 * MIB, tk.uint8).sync()
    assert caught.value.requested_bytes == 8 * MIB
    assert caught.value.free_bytes == 4 * MIB
    np.testing.assert_array_equal(kept.to_host().sync(), np.zeros(6 * MIB, np.uint8))
    assert api.zeros(4 * MIB, tk.uint8).sync().nbytes == 4 * MIB


def test_under_a_limit_what_is_dropped_is_used_again(device, limited):
    limited(10 * MIB)
    for value in range(4):
        x = api.full(8 * MIB, value, tk.uint8).sync()  # the one before is freed behind its work
        del x
    knot = types.SimpleNamespace(x=api.zeros(8 * MIB, tk.uint8).sync())
    knot.itself = knot
    del knot
    assert api.zeros(8 * MIB, tk.uint8).sync().nbytes == 8 * MIB  # the collector is asked


def test_under_a_limit_small_blocks_that_are_kept_make_room(device, limited):
    limited(2 * MIB)
    held = [api.zeros(MIB // 2, tk.uint8).sync() for _ in range(3)]
    del held
    assert api.zeros(2 * MIB, tk.uint8).sync().nbytes == 2 * MIB


def test_a_limit_is_asked_for_set_and_lifted(device):
    memory.set_limit(1 << 40)
    assert memory.limit() == 1 << 40 == memory.stats().limit_bytes
    memory.set_limit(None)
    assert memory.limit() is None
    with pytest.raises(TypeError, match=r"set_limit: the limit is a number of bytes or None, not 1.5"):
        memory.set_limit(1.5)
    with pytest.raises(TypeError, match="not True"):
        memory.set_limit(True)
    with pytest.raises(ValueError, match="negative: -1"):
        memory.set_limit(-1)


def test_memory_that_work_in_flight_frees_is_waited_for(cpu):
    latch = threading.Event()
    memory.set_limit(10 * MIB)
    ctx = ExecutionContext(cpu, cpu.stream())
    first = ctx.allocate(8 * MIB)
    cpu.driver.submit(ctx.stream.handle, latch.wait)
    ctx.note((), (first,))
    del first
    timer = threading.Timer(0.05, latch.set)
    timer.start()
    assert ctx.allocate(8 * MIB).nbytes == 8 * MIB
    timer.join()


# page-locked memory


def test_pinned_arrays_are_arrays(device):
    array = memory.pinned((3, 5), tk.float16)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((3, 5), np.float16, True)
    assert memory.is_pinned(array)
    assert memory.is_pinned(array[1:, 2:])
    assert not memory.is_pinned(np.zeros(10_000))
    assert memory.pinned(0).shape == (0,)
    with pytest.raises(TypeError, match="is_pinned: expected a NumPy array, not list"):
        memory.is_pinned([1])


def test_pinned_memory_lives_as_long_as_a_view_of_it(device):
    quiet(device)
    before = memory.stats().pinned_bytes
    array = memory.pinned(MIB, tk.uint8)
    view = array[100:]
    del array
    gc.collect()
    assert memory.stats().pinned_bytes == before + MIB
    view[:] = 7
    del view
    gc.collect()
    assert memory.stats().pinned_bytes == before
    memory.release()


@pytest.mark.parametrize("nbytes", [64, 100_000, 9 * MIB])
def test_pinned_arrays_make_the_round_trip(device, nbytes):
    source, target = memory.pinned(nbytes, tk.uint8), memory.pinned(nbytes, tk.uint8)
    source[:] = np.random.default_rng(0).integers(0, 256, nbytes)
    expected = source.copy()
    x = api.from_host(source).sync()
    assert x.to_host(out=target).sync() is target
    np.testing.assert_array_equal(target, expected)
    source[:] = expected[::-1]
    api.memcpy(x, source).sync()
    np.testing.assert_array_equal(x.to_host().sync(), expected[::-1])


def test_a_pinned_array_that_is_dropped_lives_until_it_is_copied(device):
    futures = []
    for value in range(20):
        array = memory.pinned(MIB, tk.uint8)
        array[:] = value
        futures.append(api.from_host(array).async_on(device.policy.next_stream()))
        del array
    for value, future in enumerate(futures):
        assert (future.result(60).to_host().sync() == value).all()


def test_to_host_fills_what_it_is_given(device):
    x = api.arange(12, dtype=tk.float32).sync().reshape(3, 4)
    out = np.zeros((4, 3), np.float32)
    assert x.permute(1, 0).to_host(out=out).sync() is out
    np.testing.assert_array_equal(out, np.arange(12, dtype=np.float32).reshape(3, 4).T)
    with pytest.raises(ValueError, match=r"to_host: float32 of shape \(3, 4\) does not fit out, float32 of shape \(4, 3\)"):
        x.to_host(out=out)
    with pytest.raises(ValueError, match="out is not C-contiguous"):
        x.to_host(out=np.zeros((4, 3), np.float32).T)
    with pytest.raises(TypeError, match="out is a NumPy array, not list"):
        x.to_host(out=[])
    fixed = np.zeros((3, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        x.to_host(out=fixed)


def test_more_pinned_memory_than_there_is(device):
    for shape in (1 << 60, (1 << 40, 1 << 40), *((1 << 50,) if device.kind == "cpu" else ())):
        with pytest.raises(
            OutOfMemoryError, match=r"the host has no .*memory left for c.*: [\d,]+ bytes asked for, .* Drop"
        ) as caught:
            memory.pinned(shape, device=device)
        assert caught.value.requested_bytes == 4 * int(np.prod(shape, dtype=object))


# other pools


class Heap:
    """The C library's, as an allocator for a CPU device."""

    def __init__(self):
        self.blocks, self.calls = {}, []

    def allocate(self, nbytes, stream):
        if nbytes > 100 * MIB:
            raise MemoryError("no more")
        block = (ctypes.c_uint8 * nbytes)()
        self.blocks[ctypes.addressof(block)] = block
        self.calls.append(("allocate", nbytes, stream))
        return ctypes.addressof(block)

    def free(self, address, nbytes, stream):
        assert ctypes.sizeof(self.blocks.pop(address)) == nbytes
        self.calls.append(("free", nbytes, stream))


def test_memory_comes_from_another_pool_and_goes_back_there(cpu):
    heap = Heap()
    own = api.zeros(8).sync()
    memory.use_allocator(heap)
    x = api.full(1000, 3.0).sync()
    assert list(heap.blocks) == [x.address]
    assert double(x.partition(256)).first().unpartition().to_host().sync().tolist() == [6.0] * 1000
    memory.use_allocator(None)
    y = api.zeros(1000).sync()
    del x, own, y
    cpu.synchronize()
    cpu.synchronize()
    assert heap.blocks == {}
    assert [(what, nbytes) for what, nbytes, _ in heap.calls] == [("allocate", 4000), ("free", 4000)]
    assert heap.calls[0][2] == heap.calls[1][2] > 0
    assert memory.stats().used_bytes == 0


def test_a_pool_without_memory_is_out_of_memory(cpu):
    memory.use_allocator(Heap())
    with pytest.raises(OutOfMemoryError, match="out of memory: 209,715,200 bytes asked for") as caught:
        api.empty(200 * MIB, tk.uint8).sync()
    assert isinstance(caught.value.__cause__, MemoryError)
    assert memory.stats().used_bytes == 0
    assert api.zeros(4).sync().to_host().sync().tolist() == [0.0] * 4


def test_what_is_no_allocator_is_refused(cpu):
    with pytest.raises(TypeError, match="has no method allocate; see tilekit.memory.Allocator"):
        memory.use_allocator(object())
    with pytest.raises(ValueError, match="torch_allocator: that is memory of GPUs"):
        memory.torch_allocator(cpu)


# memory that nobody has written


def unwritten(shape, dtype=tk.float32):
    return api.empty(shape, dtype).sync()


def test_a_kernel_that_reads_what_was_never_written_is_told(checked):
    x = unwritten((8, 8))
    copy(x[2:4].partition((2, 8)), api.ones((2, 8))).sync()
    assert (x[2:4].to_host().sync() == 1).all()
    y = api.zeros((8, 8)).sync()
    with pytest.raises(DeviceError) as caught:
        copy(y.partition((4, 4)), x).sync()
    text = str(caught.value)
    assert "kernel copy, block (0, 0, 0): load_tile_like: reads what was never written: x[0:2, 0:4], of a tensor of shape" in text
    assert "y.store(tk.load_tile_like(x, y))" in text  # the line
    copy(y[2:4].partition((2, 8)), x[2:4]).sync()
    assert (y.to_host().sync()[2:4] == 1).all()


def test_a_partition_that_is_read_must_have_been_written(checked):
    with pytest.raises(DeviceError, match=r"kernel double, block \(0, 0, 0\): load: reads what was never written: y\[0:4\]"):
        double(unwritten(8).partition(4)).sync()


def test_copies_of_what_was_never_written_name_the_tensor(cpu):
    x = unwritten((4, 8))
    copy(x[:3].partition((1, 8)), api.ones((3, 8))).sync()
    with pytest.raises(
        DeviceError, match=r"to_host reads what was never written: \[3:4, 0:8\] of a float32 tensor of shape \(4, 8\)"
    ):
        x.to_host().sync()
    with pytest.raises(DeviceError, match="a copy on the device reads what was never written: bytes 96 to 128"):
        api.dup(x).sync()
    assert x[:3].to_host().sync().sum() == 24


def test_what_is_written_piece_by_piece_is_forgotten(cpu):
    x = unwritten(1000, tk.int16)
    shadow = x.storage.memory.shadow
    assert shadow.left == 2000
    copy(x[::2].partition(64), api.ones(500, tk.int16)).sync()
    assert shadow.left == 1000
    with pytest.raises(DeviceError, match=r"\[1:1000\] of a int16 tensor"):
        x.to_host().sync()
    copy(x[1::2].partition(64), api.zeros(500, tk.int16)).sync()
    assert (shadow.left, shadow._written) == (0, None)
    np.testing.assert_array_equal(x.to_host().sync(), np.arange(1, 1001) % 2)


@pytest.mark.parametrize("write", ["full", "from_host", "memcpy", "dup"])
def test_what_is_written_at_once_needs_no_account(cpu, write):
    if write == "full":
        x = api.full(100, 1.0).sync()
    elif write == "from_host":
        x = api.from_host(np.ones(100, np.float32)).sync()
    elif write == "dup":
        x = api.dup(api.ones(100)).sync()
    else:
        x = api.memcpy(unwritten(100), np.ones(100, np.float32)).sync()
    assert x.storage.memory.shadow.left == 0
    assert (x.to_host().sync() == 1).all()


def test_a_read_before_the_write_is_found_in_the_order_of_the_stream(cpu):
    x, latch = unwritten(4), threading.Event()
    with cpu.stream() as stream:
        cpu.driver.submit(stream.handle, latch.wait)
        early = x.to_host().async_on(stream)
        copy(x.partition(4), api.ones(4)).async_on(stream)
        latch.set()
        with pytest.raises(DeviceError, match="never written"):
            early.result(60)


def test_whoever_takes_the_buffer_is_trusted(cpu):
    x = unwritten(4)
    x.host_view()[:2] = 5
    assert x.to_host().sync()[:2].tolist() == [5.0, 5.0]


def test_a_kernel_may_pass_over_what_was_never_written(checked):
    """A store drops what hangs over the edge of its tensor, so it does not matter what was loaded there."""

    @tk.kernel
    def padded(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y, padding_mode="zero"))

    x = unwritten((10, 8))
    copy(x[:5, :6].partition((1, 8)), api.ones((5, 6))).sync()
    y = api.zeros((5, 6)).sync()
    padded(y.partition((4, 4)), x).sync()
    assert (y.to_host().sync() == 1).all()
    with pytest.raises(DeviceError, match=r"load_tile_like: reads what was never written: x\[5:6, 0:4\], of a tensor"):
        padded(api.zeros((6, 6)).partition((4, 4)), x).sync()


def test_a_load_of_its_own_index_is_given_the_part_that_is_written(checked):
    @tk.kernel
    def doubled(y: tk.Out, x: tk.In):
        y.store(2 * tk.load(x, tk.bid(0), 8))

    x = unwritten(16)
    copy(x[:10].partition(2), api.ones(10)).sync()
    with pytest.raises(DeviceError, match=r"x\[10:16\], of a tensor .*pass a view of the part that is written, such as x\[:n\]"):
        doubled(api.zeros(10).partition(8), x).sync()
    assert doubled(api.zeros(10).partition(8), x[:10]).first().unpartition().to_host().sync().tolist() == [2.0] * 10
