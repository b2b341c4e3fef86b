"""Page-locked memory and other libraries' pools, at the driver: what goes back, to whom, and when."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import types

import numpy as np
import pytest
from fake_gpu import fake_gpu

from tilekit import memory
from tilekit._driver.hostcopy import in_parallel
from tilekit._driver.pinned import KEPT, PinnedPool
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import use_device
from tilekit.errors import DeviceError, OutOfMemoryError


class Locked:
    """Stands in for the driver's page-locked memory, of which there is so much."""

    def __init__(self, limit=1 << 40):
        self.blocks, self.freed, self.limit = {}, [], limit
        self.pool = PinnedPool(self.allocate, self.free)

    def allocate(self, nbytes):
        if sum(ctypes.sizeof(block) for block in self.blocks.values()) + nbytes > self.limit:
            return 0
        block = (ctypes.c_uint8 * nbytes)()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address):
        del self.blocks[address]
        self.freed.append(address)


def test_a_block_is_used_again_when_its_last_view_is_gone():
    locked = Locked()
    array = locked.pool.array(5000)
    address = array.__array_interface__["data"][0]
    assert (array.nbytes, locked.pool.used_bytes) == (5000, 8192)
    assert locked.pool.holds(address + 4999)
    assert not locked.pool.holds(address - 1)
    view = array[1000:].view(np.uint16)
    del array
    other = locked.pool.array(5000)
    assert other.__array_interface__["data"][0] != address
    del view
    gc.collect()
    again = locked.pool.array(6000)
    assert again.__array_interface__["data"][0] == address
    assert len(locked.blocks) == 2
    assert locked.freed == []


def test_what_no_array_uses_is_bounded_and_given_back():
    locked = Locked()
    big = [locked.pool.array(KEPT // 2) for _ in range(3)]
    del big
    gc.collect()
    locked.pool.array(100)
    assert len(locked.freed) == 1
    locked.pool.release()
    assert locked.blocks == {}
    assert locked.pool.used_bytes == 0


def test_where_there_is_no_more_the_idle_blocks_go_first():
    locked = Locked(limit=10 * 4096)
    held = locked.pool.array(8 * 4096)
    assert locked.pool.array(4 * 4096) is None
    del held
    gc.collect()
    assert locked.pool.array(4 * 4096).nbytes == 4 * 4096


def test_pinned_says_when_there_is_none():
    device, _ = fake_gpu()  # which has none
    with pytest.raises(OutOfMemoryError, match="the host has no page-locked memory left for cuda:0: 4,000 bytes asked for"):
        memory.pinned(1000, device=device)


class Pool:
    """An allocator that notes what it is asked."""

    def __init__(self):
        self.calls, self.next, self.fail = [], 4096, None

    def allocate(self, nbytes, stream):
        if self.fail is not None:
            raise self.fail
        self.next += 4096
        self.calls.append(("allocate", self.next, stream))
        return self.next

    def free(self, address, nbytes, stream):
        self.calls.append(("free", address, stream))
        if self.fail is not None:
            raise self.fail


@pytest.fixture
def lent():
    device, bindings = fake_gpu()
    pool = Pool()
    with use_device(device):
        memory.use_allocator(pool)
        yield device, bindings, pool


def test_a_block_goes_back_at_once_on_the_stream_of_all_its_users(lent):
    device, bindings, pool = lent
    ctx = ExecutionContext(device, device.stream())
    storage = ctx.allocate(100)
    address = storage.memory.address
    assert memory.stats().used_bytes == 100
    del storage
    device.collect()
    assert pool.calls == [("allocate", address, ctx.stream.address), ("free", address, ctx.stream.address)]
    assert (memory.stats().used_bytes, bindings.calls["cuMemAllocAsync"], bindings.calls["cuMemFreeAsync"]) == (0, 0, 0)


def test_a_block_that_others_used_goes_back_when_they_are_done(lent):
    device, bindings, pool = lent
    here, there = ExecutionContext(device, device.stream()), ExecutionContext(device, device.stream())
    storage = here.allocate(100)
    there.acquire((), (storage,))
    there.note((), (storage,))
    del storage
    bindings.not_ready = 2
    device.collect()
    assert [call[0] for call in pool.calls] == ["allocate"]
    kept = [here.allocate(10) for _ in range(2)]  # each looks again
    (freed,) = (call for call in pool.calls if call[0] == "free")
    assert len(kept) == 2
    assert freed[2] not in (here.stream.address, there.stream.address)  # a stream with nothing in it


def test_a_pool_that_has_no_more(lent):
    device, _, pool = lent
    ctx = ExecutionContext(device, device.stream())

    class OutOfMemoryErrorOfTheirs(RuntimeError):
        pass

    pool.fail = OutOfMemoryErrorOfTheirs("theirs")
    with pytest.raises(OutOfMemoryError, match="out of memory: 100 bytes asked for") as caught:
        ctx.allocate(100)
    assert isinstance(caught.value.__cause__, OutOfMemoryErrorOfTheirs)
    pool.fail = ValueError("something else")
    with pytest.raises(ValueError, match="something else"):
        ctx.allocate(100)
    assert memory.stats().used_bytes == 0


def test_a_pool_that_takes_nothing_back_is_logged(lent, caplog):
    device, _, pool = lent
    ctx = ExecutionContext(device, device.stream())
    storage = ctx.allocate(100)
    pool.fail = ValueError("not mine")
    del storage
    with caplog.at_level(logging.ERROR, "tilekit"):
        device.collect()
    assert "did not take back 100 bytes" in caplog.text


def test_the_driver_is_asked_again_when_all_is_free():
    device, bindings = fake_gpu()
    ctx = ExecutionContext(device, device.stream())
    kept = ctx.allocate(64)
    del kept
    answers = iter([2, 2, 0])
    original = bindings.cuMemAllocAsync
    device.driver._allocate = lambda nbytes, stream: (code,) if (code := next(answers)) else original(nbytes, stream)
    bindings.calls.clear()
    assert ctx.allocate(1 << 20).nbytes == 1 << 20
    asked = bindings.calls
    assert (asked["cuMemFreeAsync"], asked["cuMemPoolTrimTo"], asked["cuCtxSynchronize"], asked["cuMemAllocAsync"]) == (
        1,
        4,
        1,
        1,
    )


def test_out_of_memory_after_everything_is_freed():
    device, bindings = fake_gpu()
    ctx = ExecutionContext(device, device.stream())
    device.memory_info()  # opens the device
    original, device.driver._allocate = bindings.cuMemAllocAsync, lambda nbytes, stream: (2,)
    with pytest.raises(OutOfMemoryError, match="1,000,000 bytes asked for, 137,438,953,472 of 137,438,953,472 free") as caught:
        ctx.allocate(1_000_000)
    assert (caught.value.code, device.driver.ledger.used) == ("CUDA_ERROR_OUT_OF_MEMORY", 0)
    device.driver._allocate = lambda nbytes, stream: (999,)
    with pytest.raises(DeviceError, match="CUDA_ERROR_FAKE"):
        ctx.allocate(1_000_000)
    device.driver._allocate = original
    assert ctx.allocate(1_000_000).nbytes == 1_000_000


# the adapters, with stand-ins for the libraries


class Block:
    ptr = 64


class Entered:
    def __init__(self, log, *what):
        self.log, self.what = log, what

    def __enter__(self):
        self.log.append(self.what)

    def __exit__(self, *_):
        pass


def test_torchs_allocator_is_asked(monkeypatch):
    device, _ = fake_gpu()
    log = []
    module = types.ModuleType("torch.cuda")
    module.caching_allocator_alloc = lambda *arguments: log.append(arguments) or 64
    module.caching_allocator_delete = log.append
    module.init = lambda: log.append("init")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.cuda", module)
    allocator = memory.torch_allocator(device)
    assert allocator.allocate(100, 7) == 64
    allocator.free(64, 100, 7)
    assert log == ["init", (100, 0, 7), 64]


@pytest.mark.parametrize("protocol", [True, False])
def test_cupys_allocator_is_asked(monkeypatch, protocol):
    device, _ = fake_gpu()
    log, module = [], types.ModuleType("cupy.cuda")
    module.Device = lambda ordinal: Entered(log, "device", ordinal)
    module.alloc = lambda nbytes: log.append(nbytes) or Block()
    module.Stream = types.SimpleNamespace()
    if protocol:
        module.Stream.from_external = lambda stream: Entered(log, "stream", stream.__cuda_stream__()[1])
    else:
        module.ExternalStream = lambda address: Entered(log, "stream", address)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)
    allocator = memory.cupy_allocator(device)
    assert allocator.allocate(100, 7) == 64
    assert log == [("device", 0), ("stream", 7), 100]
    assert list(allocator._blocks) == [64]
    allocator.free(64, 100, 7)
    assert allocator._blocks == {}


def test_rmms_resource_is_asked(monkeypatch):
    device, _ = fake_gpu()
    log = []
    resource = types.SimpleNamespace(
        allocate=lambda nbytes, stream: log.append((nbytes, stream)) or 64,
        deallocate=lambda address, nbytes, stream: log.append((address, nbytes, stream)),
    )
    for name in ("rmm", "rmm.mr", "rmm.pylibrmm", "rmm.pylibrmm.stream"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["rmm.mr"].get_per_device_resource = lambda ordinal: resource
    sys.modules["rmm.pylibrmm.stream"].Stream = lambda stream: stream.__cuda_stream__()[1]
    allocator = memory.rmm_allocator(device)
    assert allocator.allocate(100, 7) == 64
    allocator.free(64, 100, 7)
    assert log == [(100, 7), (64, 100, 7)]


# copies within the host's memory


def test_the_first_error_is_raised_when_nobody_is_at_work_any_more():
    done = []

    def work(item):
        if item == 3:
            raise ValueError("three")
        done.append(item)

    with pytest.raises(ValueError, match="three"):
        in_parallel(work, range(8))
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]

    def items():
        yield 8
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        in_parallel(work, items())
    assert done[-1] == 8
