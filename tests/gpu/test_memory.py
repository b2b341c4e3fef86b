"""Memory of a GPU: the driver's pool and other libraries', page-locked copies, and kept blocks under real concurrency."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, memory
from tilekit._runtime.context import ExecutionContext
from tilekit.errors import OutOfMemoryError

MIB = 1 << 20


@tk.kernel
def fill(y: tk.Out, value: int):
    y.store(tk.full(y.tile_shape, value, y.dtype))


@tk.kernel
def double(y: tk.InOut):
    y.store(2 * y.load())


@pytest.mark.alone
def test_out_of_memory_says_how_much_and_leaves_all_usable(device):
    kept = api.full(1000, 7, tk.int32).sync()
    free, total = device.memory_info()
    with pytest.raises(OutOfMemoryError, match=f"out of memory: {2 * total:,} bytes asked for") as caught:
        api.empty(2 * total, tk.uint8).sync()
    assert caught.value.total_bytes == total
    with pytest.raises(OutOfMemoryError):
        api.empty(free + 512 * MIB, tk.uint8).sync()
    assert (kept.to_host().sync() == 7).all()
    assert api.ones(1000).sync().to_host().sync().sum() == 1000


@pytest.mark.alone
def test_almost_all_memory_is_allocated_again_and_again_on_other_streams(device):
    for index in range(6):
        free, _ = device.memory_info()
        x = api.empty(int(free * 0.8), tk.uint8).sync_on(device.policy.next_stream())
        fill(x[: 1 << 20].partition(1024), index).async_on(device.policy.next_stream())
        del x


def test_release_gives_the_pool_back(device):
    x = api.zeros(256 * MIB, tk.uint8).sync()
    assert memory.stats().reserved_bytes >= 256 * MIB
    del x
    device.synchronize()
    before = memory.stats().reserved_bytes
    memory.release()
    device.synchronize()
    memory.release()
    assert memory.stats().reserved_bytes <= before - 224 * MIB


def test_kept_blocks_never_mix_up_their_users(device):
    """Small tensors are made, used on several streams and dropped, far faster than the GPU follows."""
    streams = [device.policy.next_stream() for _ in range(4)]
    results = []
    for i in range(4000):
        here, there = streams[i % 4], streams[(i // 4) % 4]
        x = ExecutionContext(device, here).allocate(4096)
        tensor = tk.Tensor(x, (1024,), tk.int32)
        fill(tensor.partition(1024), i).async_on(here)
        results.append((i, tensor.to_host().async_on(there)))
        del x, tensor
        if len(results) == 200:
            for value, future in results:
                assert (future.result(60) == value).all()
            results.clear()


def test_pinned_memory_is_page_locked_and_used_again(device):
    array = memory.pinned(10 * MIB, tk.uint8)
    address = array.__array_interface__["data"][0]
    assert memory.is_pinned(array)
    assert device.driver.staging.is_pinned(array[5:])
    del array
    gc.collect()
    again = memory.pinned(10 * MIB, tk.uint8)
    assert again.__array_interface__["data"][0] == address
    del again
    gc.collect()
    memory.release()


def test_a_copy_from_pinned_memory_does_not_block(device):
    """Copies that take the GPU 100 ms are submitted before the first of them is over."""
    array = memory.pinned(1 << 28, tk.uint8)
    array[:] = 3
    x = api.from_host(array).sync()
    with device.stream() as stream:
        futures = [api.memcpy(x, array).async_on(stream) for _ in range(20)]
        assert not futures[-1].done()
        for future in futures:
            future.result(60)


@pytest.mark.parametrize("nbytes", [15 * MIB, 16 * MIB, 100 * MIB + 17])
def test_large_ordinary_arrays_make_the_round_trip(device, nbytes):
    source = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    x = api.from_host(source).sync()
    np.testing.assert_array_equal(x.to_host().sync(), source)
    out = np.zeros_like(source)
    assert x.to_host(out=out).sync() is out
    np.testing.assert_array_equal(out, source)


def test_a_file_larger_than_its_chunks_goes_through_a_kernel(device, tmp_path):
    np.save(tmp_path / "in.npy", np.random.default_rng(1).random((1 << 14, 1 << 10), np.float32))
    source = np.load(tmp_path / "in.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, source.shape)
    memory.stream_chunks(lambda x: double(x.partition((64, 64))).first().unpartition(), source, out, chunk_bytes=5 * MIB).sync()
    np.testing.assert_array_equal(np.asarray(out), 2 * np.asarray(source))


@pytest.mark.parametrize("library", ["torch", "cupy", "rmm"])
def test_another_librarys_pool(device, library):
    """Its statistics show tilekit's memory; results are right across streams; everything goes back."""
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    allocator = getattr(memory, f"{library}_allocator")()

    def used() -> int:
        if library == "torch":
            return module.cuda.memory_allocated()
        if library == "cupy":
            return module.get_default_memory_pool().used_bytes()
        return 0

    before = used()
    memory.use_allocator(allocator)
    try:
        x = api.zeros(8 * MIB, tk.uint8).sync()
        if library != "rmm":
            assert used() - before >= 8 * MIB
        streams = [device.policy.next_stream() for _ in range(4)]
        results = []
        for i in range(1000):
            y = api.full(1024, i, tk.int32).sync_on(streams[i % 4])
            results.append(y.to_host().async_on(streams[(i // 4) % 4]))
            del y
        for i, future in enumerate(results):
            assert (future.result(60) == i).all()
        with pytest.raises(OutOfMemoryError, match="out of memory"):
            api.empty(1 << 45, tk.uint8).sync()
    finally:
        memory.use_allocator(None)
    del x, results, future
    gc.collect()
    for _ in range(2):
        device.synchronize()
        memory.release()
        device.driver.wait_idle()
    assert used() == before
