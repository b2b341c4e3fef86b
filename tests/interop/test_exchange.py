"""Arrays that are described in place: the tensors are those that an export gives, and so is the order of their memory's users."""

import gc
import itertools
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from exchanger import exchanging
from exporter import Exporter
from fake_gpu import FakeBindings, first_gpu

import tilekit as tk
from tilekit import _native, api, kernels
from tilekit._driver.cuda.driver import CudaDriver
from tilekit._driver.discovery import Discovery
from tilekit._runtime import device as devices
from tilekit._runtime.ranges import ranges_of
from tilekit.interop import exchange

pytestmark = pytest.mark.skipif(_native.compiled is None, reason="tilekit was installed without a C compiler")


@pytest.fixture
def gpu(monkeypatch):
    pytest.importorskip("cuda.bindings.driver", reason="the stand-in is driven by cuda.bindings")
    with first_gpu(monkeypatch) as (device, driver):
        yield SimpleNamespace(device=device, driver=driver)
        driver.not_ready = 0


@pytest.fixture
def Array(gpu):
    return exchanging()


@tk.kernel
def add(z: tk.InOut, x: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(z, z))


def words(*shape):
    return np.zeros(shape, np.uint32)


@pytest.mark.parametrize(
    "array",
    [
        words(64),
        words(4, 8),
        words(4, 8).T,
        words(8, 8)[1:, ::2],
        words(8, 8)[:, 3],
        words(2, 3, 4, 5, 6),
        words(1),
        words(16, 1),
    ],
    ids=lambda array: "x".join(map(str, array.shape)),
)
@pytest.mark.parametrize("way", ["strides", "none where contiguous"])
def test_the_tensor_is_that_of_an_export(gpu, Array, array, way):
    theirs = Array(array)
    theirs.no_strides = way != "strides"
    ours = tk.as_tensor(theirs)
    assert (Array.described, theirs.asked) == (1, [])
    assert ours.device is gpu.device
    assert (ours.address, ours.shape, ours.dtype) == (array.ctypes.data, array.shape, np.float32)
    assert ours.strides == tuple(step // 4 for step in array.strides)
    asked = tk.Tensor(ours.storage, ours.shape, ours.dtype, ours.strides, ours.offset)
    assert ours.flat == asked.flat
    assert ours.traits is asked.traits
    low, high = ours.storage.memory.address, ours.storage.memory.address + ours.storage.nbytes
    assert low + ours.offset * 4 == ours.address
    assert low <= ours.address - ours.reach[0] and ours.address + ours.reach[1] <= high


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("float16", np.uint16), ("int64", np.uint64), ("uint8", np.uint8), ("bool", np.uint8), (tk.bfloat16, np.uint16)],
)
def test_dtypes(Array, dtype, words):
    ours = tk.as_tensor(Array(np.zeros((4, 4), words), dtype))
    assert ours.dtype == np.dtype(dtype)
    assert ours.strides == (4, 1)


def test_layouts_that_fall_together_are_told_apart(Array):
    """More than are kept."""
    memory = words(3000)
    for _ in range(2):
        for n in range(1, 2000):
            assert tk.as_tensor(Array(memory[:n])).shape == (n,)


def test_what_cannot_be_described_is_asked_in_full(gpu, Array):
    nested = words(*[1] * 9)
    cases = {
        "differentiable": (Array(), {"requires_grad": True}),
        "nine dimensions": (Array(nested), {}),
        "no elements": (Array(words(0, 4)), {}),
        "vectors": (Array(), {"lanes": 4}),
        "refused": (Array(), {"fails": True}),
    }
    for name, (theirs, attributes) in cases.items():
        for attribute, value in attributes.items():
            setattr(type(theirs) if attribute in ("lanes", "fails") else theirs, attribute, value)
        assert tk.as_tensor(theirs).shape == theirs.array.shape, name
        assert len(theirs.asked) == 1, name
        Array.lanes, Array.fails = 1, False
    with pytest.raises(ValueError, match="starts at multiples of 4 bytes|which start at multiples of 4 bytes"):
        tk.as_tensor(Array(np.zeros(68, np.uint8)[2:66].view(np.uint32)))
    assert tk.as_tensor(Array(device=(3, 0)), device="cpu").device.kind == "cpu"


def test_memory_of_the_host(gpu, Array):
    with tk.use_device("cpu"):
        host = Array(np.arange(8, dtype=np.float32).view(np.uint32), device=(1, 0))
        ours = tk.as_tensor(host)
        assert (ours.device.kind, ours.storage.theirs, host.asked) == ("cpu", None, [])
        add(ours.partition(8), ours.dup()).sync()
        np.testing.assert_array_equal(host.array.view(np.float32), 2 * np.arange(8))
        assert tk.as_tensor(host).storage is ours.storage
    with pytest.raises(ValueError, match="is in the host's memory, which cuda:0 cannot share"):
        tk.as_tensor(Array(device=(1, 0)))


def test_types_without_a_table(gpu):
    for make in (
        lambda: type("Derived", (exchanging(),), {"__dlpack__": Exporter.__dlpack__}),
        lambda: type("Dispatched", (type("Derived", (exchanging(),), {}),), {"__torch_dispatch__": None}),
        lambda: exchanging(major=2),
        lambda: exchanging(spelling="something_else"),
    ):
        theirs = make()()
        tk.as_tensor(theirs)
        assert (type(theirs).described, len(theirs.asked)) == (0, 1)
    for make in (
        exchanging,
        lambda: exchanging(spelling="__c_dlpack_exchange_api__", number=True),
        lambda: type("Derived", (exchanging(),), {"__torch_function__": None}),
    ):
        theirs = make()()
        tk.as_tensor(theirs)
        assert (type(theirs).described, theirs.asked) == (1, [])


def test_arrays_that_never_change_stay_read_only(gpu, Array):
    Array.__module__ = "jaxlib._jax"
    theirs = Array()
    assert tk.as_tensor(theirs).storage.readonly == "jaxlib._jax.exchanging.<locals>.Array says so"
    assert len(theirs.asked) == 1


def test_another_capsule_is_no_table(Array):
    theirs = type("Other", (), {})()
    capsule = np.zeros(4).__dlpack__()
    type(theirs).__dlpack_c_exchange_api__ = capsule
    assert _native.compiled.described(theirs) is None


def test_memory_that_is_met_again_is_the_same_storage(Array):
    memory = words(256)
    whole = tk.as_tensor(Array(memory))
    assert tk.as_tensor(Array(memory)) is whole
    assert tk.as_tensor(Array(memory, np.int32)).storage is whole.storage
    assert tk.as_tensor(Array(memory[64:128])).storage is whole.storage
    assert tk.as_tensor(Array(memory[64:128])).offset == 64
    beyond = words(512)
    part = tk.as_tensor(Array(beyond[100:200]))
    apart = tk.as_tensor(Array(beyond[300:400]))
    assert part.storage.reads is not apart.storage.reads
    across = tk.as_tensor(Array(beyond))
    assert across.storage.reads is part.storage.reads is apart.storage.reads
    ours = api.zeros(64).sync()
    ours.__dlpack__()
    again = Array(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint32 * 1).from_buffer(bytearray(4))))
    again.array = SimpleNamespace(
        ndim=1, shape=(64,), strides=(4,), itemsize=4, ctypes=SimpleNamespace(data=ours.address), flags=memory.flags
    )
    assert tk.as_tensor(again).storage is ours.storage, "tilekit's own memory, back from a library"


def test_work_waits_for_what_the_library_has_submitted(gpu, Array):
    z = api.zeros(64).sync()
    x = Array()
    add(z.partition(64), x).sync()
    gpu.driver.not_ready = 10**9
    for current in (0, 0, 77, 2):
        Array.current = current
        before = gpu.driver.calls["cuStreamWaitEvent"]
        add(z.partition(64), x).async_on(gpu.device.policy.next_stream())
        assert gpu.driver.calls["cuStreamWaitEvent"] > before, current


def test_the_array_is_kept_until_the_work_is_done(gpu, Array):
    z, theirs = api.zeros(64).sync(), Array()
    add(z.partition(64), theirs).sync()
    gone = weakref.ref(theirs)
    gpu.driver.not_ready = 10**9
    op = add(z.partition(64), theirs)
    future = op.async_on(gpu.device.policy.next_stream())
    del theirs, op, future
    gc.collect()
    assert gone() is not None
    gpu.driver.not_ready = 0
    gpu.device.collect()
    gc.collect()
    assert gone() is None


def test_arrays_are_let_go_in_the_order_of_the_work(gpu, Array):
    """However many wait, few are looked at."""
    z = api.zeros(64).sync()
    add(z.partition(64), Array()).sync()
    gpu.driver.not_ready = 10**9
    gone = []
    for _ in range(100):
        theirs = Array()
        gone.append(weakref.ref(theirs))
        add(z.partition(64), theirs).async_on(gpu.device.policy.next_stream())
        del theirs
    gpu.device.collect()
    assert sum(array() is not None for array in gone) == 100
    before = gpu.driver.calls["cuEventQuery"]
    gpu.device.collect()
    assert gpu.driver.calls["cuEventQuery"] - before <= len(gpu.device.streams)
    gpu.driver.not_ready = 0
    gpu.device.collect()
    assert sum(array() is not None for array in gone) == 0
    assert not gpu.device.owners


def test_arrays_are_let_go_in_whatever_order_they_were_dropped(gpu, Array):
    z = api.zeros(64).sync()
    add(z.partition(64), Array()).sync()
    gpu.driver.not_ready = 10**9
    stream, gone, kept = gpu.device.policy.next_stream(), [], []
    for _ in range(20):
        kept.append(tk.as_tensor(Array()))
        gone.append(weakref.ref(kept[-1].storage.owner))
        add(z.partition(64), kept[-1]).async_on(stream)
    while kept:
        kept.pop()  # the last first
    gpu.device.collect()
    assert all(array() is not None for array in gone)
    gpu.driver.not_ready = 0
    gpu.device.collect()
    assert not any(array() is not None for array in gone)
    assert not gpu.device.owners


def test_memory_that_work_uses_is_met_again(gpu, Array):
    """Its storage stays, and is let go of once neither work nor a tensor has it, whoever used it in between."""
    z, stream, other = api.zeros(64).sync(), gpu.device.stream(), gpu.device.stream()
    data = words(64)
    add(z.partition(64), Array(data)).sync()
    gpu.driver.not_ready = 10**9
    theirs = Array(data)
    gone = weakref.ref(theirs)
    add(z.partition(64), theirs).async_on(stream)
    del theirs
    assert gone() is not None
    ours = tk.as_tensor(Array(data))
    assert ours.storage.owner is gone()
    assert ours.try_partition(64) is not None
    assert ours[:32].try_partition(32) is None
    gpu.driver.not_ready = 0
    gpu.device.collect()
    assert gone() is not None, "a tensor has it"
    add(z.partition(64), ours).async_on(other)
    gpu.driver.not_ready = 10**9
    add(z.partition(64), ours).async_on(stream)
    del ours
    gpu.device.collect()
    assert gone() is not None, "work has it that was submitted after it had been collected once"
    assert gpu.device.owners
    gpu.driver.not_ready = 0
    gpu.device.collect()
    gc.collect()
    assert gone() is None
    assert not gpu.device.owners


def test_memory_that_work_on_many_streams_uses_is_let_go(gpu, Array):
    """More streams than are asked at a time."""
    z = api.zeros(64).sync()
    add(z.partition(64), Array()).sync()
    gone, streams = [], [(gpu.device.stream(), api.zeros(64).sync()) for _ in range(40)]
    gpu.driver.not_ready = 10**9
    for stream, own in streams:
        theirs = Array()
        gone.append(weakref.ref(theirs))
        add(own.partition(64), theirs).async_on(stream)
        del theirs
    gpu.device.collect()
    assert all(array() is not None for array in gone)
    gpu.driver.not_ready = 0
    for _ in range(2):
        gpu.device.collect()
    gc.collect()
    assert not any(array() is not None for array in gone)
    assert not gpu.device.owners


def test_an_array_that_nobody_used_is_let_go_at_once(gpu, Array):
    gpu.driver.not_ready = 10**9
    for stream in (0, 77):
        Array.current = stream
        theirs = Array()
        gone = weakref.ref(theirs)
        ours = tk.as_tensor(theirs)
        assert tk.as_tensor(theirs) is ours
        del theirs, ours
        assert gone() is None
    assert not gpu.device.garbage
    assert not gpu.device.owners


def test_nothing_is_left_of_many_arrays(gpu, Array):
    z = api.zeros(64).sync()
    memory = words(64)
    for n in range(300):
        add(z.partition(64), Array(memory if n % 2 else words(64))).sync()
    gpu.device.collect()
    assert len(ranges_of(gpu.device).entries) <= 2
    before = sys.getrefcount(Array), sys.getrefcount(z.storage)
    for _ in range(300):
        add(z.partition(64), Array(memory)).sync()
    assert abs(sys.getrefcount(Array) - before[0]) < 50
    assert abs(sys.getrefcount(z.storage) - before[1]) < 50


def only_native(monkeypatch):
    """From now on no array is looked at by Python."""
    for name in ("storage_of", "_stream"):
        monkeypatch.setattr(exchange, name, None)
    monkeypatch.setattr(tk.Kernel, "prepared", None)


def test_memory_that_is_known_is_found_without_python(gpu, Array, monkeypatch):
    memory, strided = words(64, 64), words(64, 64)[::2, 1::3]
    z = api.zeros((64, 64)).sync()
    arrays = [memory, strided, memory[8:16]]
    for array in arrays:
        tk.as_tensor(Array(array))
    held = tk.as_tensor(Array(memory))
    only_native(monkeypatch)
    for array in arrays:
        for _ in range(3):
            ours = tk.as_tensor(Array(array))
            asked = tk.Tensor(ours.storage, ours.shape, ours.dtype, ours.strides, ours.offset)
            assert (ours.address, ours.flat, ours.reach) == (array.ctypes.data, asked.flat, asked.reach)
            assert ours.traits is asked.traits
            assert ours.storage.memory.address <= array.ctypes.data
    whole = tk.as_tensor(Array(memory))
    assert tk.as_tensor(Array(memory)) is whole
    assert whole.storage is held.storage
    part = tk.as_tensor(Array(memory[8:16]))
    assert (part.storage, part.offset) == (held.storage, 8 * 64)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        tk.as_tensor(Array(words(9)))
    assert (z.storage.theirs, held.storage.theirs[1]) == (None, held.storage.theirs[0].pending)


def test_launches_take_arrays_without_python(gpu, Array, monkeypatch):
    z, x = Array(words(64)), Array(words(64))
    for _ in range(2):
        add(z, x).tile(64).sync()
    only_native(monkeypatch)
    launched = gpu.driver.calls["cuLaunchKernel"]
    op = add(z, x).tile(64)
    op.async_on(gpu.device.policy.next_stream()).result(60)
    assert [type(argument) for argument in op.arguments] == [tk.Partition, tk.Tensor]
    assert gpu.driver.calls["cuLaunchKernel"] == launched + 1


@tk.kernel
def cut(z: tk.Out[32], g: float, x: tk.In):
    z.store(tk.load_tile_like(x, z) * g)


def test_what_the_parameter_cuts_is_cut_and_what_is_no_tensors_place_is_refused(gpu, Array):
    z, x = Array(words(64)), Array(words(64))
    for _ in range(3):
        assert type(cut(z, 2.0, x).sync()[0]) is tk.Partition
        with pytest.raises(TypeError, match="argument g: .*Array"):
            cut(z, x, x)


def test_ready_made_kernels_are_recalled_for_arrays(gpu, Array, monkeypatch):
    x, out = Array(words(8, 64)), Array(words(8, 64))
    for _ in range(3):
        kernels.softmax(x, out=out).sync()
    only_native(monkeypatch)
    op = kernels.softmax(x, out=out)
    assert type(op).__name__ == "Recalled"
    assert [part.kernel.name for part in op.parts()] == ["_softmax"]
    future = op.async_on(gpu.device.policy.next_stream())
    assert (future.op, future.state, future.result(60).address) == (op, "complete", out.array.ctypes.data)
    with pytest.raises(ValueError, match="has already run"):
        op.sync()


def test_other_streams_wait_for_the_library_and_its_memory_is_free_again(gpu, Array):
    """A writer that has waited for it stands for it from then on."""
    z, x = Array(words(64)), Array(words(64))
    add(z, x).tile(64).sync()
    tensor, source = tk.as_tensor(z), tk.as_tensor(x)
    gpu.driver.not_ready = 10**9
    with gpu.device.stream() as stream, gpu.device.stream() as other:
        op = add(tensor, source).tile(64)
        theirs = tensor.storage.theirs
        assert theirs is not None
        op.async_on(stream)
        assert stream.follows(*theirs)
        assert (tensor.storage.theirs, tensor.storage.last_write[0]) == (None, stream)
        assert source.storage.theirs == theirs, "for those who come later"
        add(source, tensor).tile(64).async_on(other)
        assert other.follows(*theirs)
        assert source.storage.theirs is None


def test_what_lies_where_something_larger_was_is_its_own(gpu, Array):
    memory = words(1024)
    add(Array(memory), Array(words(1024))).tile(64).sync()
    parts = [tk.as_tensor(Array(memory[at : at + 64])) for at in (0, 512)]
    assert [part.storage.nbytes for part in parts] == [256, 256]
    assert parts[0].storage.reads is not parts[1].storage.reads
    gpu.driver.not_ready = 10**9
    add(*parts).tile(64).async_on(gpu.device.policy.next_stream())
    whole = tk.as_tensor(Array(memory))
    assert whole.storage.reads is parts[0].storage.reads is parts[1].storage.reads


def test_who_allocates_lets_go_of_arrays_by_and_by(gpu, Array):
    z, theirs = api.zeros(64).sync(), Array()
    gone = weakref.ref(theirs)
    add(z.partition(64), theirs).sync()
    gpu.driver.not_ready = 10**9
    add(z.partition(64), theirs).async_on(gpu.device.policy.next_stream())
    del theirs
    gpu.driver.not_ready = 0
    assert gone() is not None
    for _ in range(100):
        api.empty(64).sync()
    assert gone() is None


def test_many_threads_import_what_overlaps(gpu, Array):
    """In one order: what was written last is what everybody waits for."""
    memory, errors = words(4096), []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            with gpu.device.stream() as stream:
                for _ in range(300):
                    at, other = (int(n) * 64 for n in rng.choice(16, 2, replace=False))
                    count = 64 * int(rng.integers(1, 5))
                    z = tk.as_tensor(Array(memory[at : at + 64]))
                    add(z, Array(memory[1024 + other : 1024 + other + count][:64])).tile(64).async_on(stream)
                    whole = tk.as_tensor(Array(memory[at : at + count]))
                    assert whole.storage.reads is z.storage.reads
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = [(known.low, known.high) for known in ranges_of(gpu.device).entries]
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(found)), "ranges are disjoint"


@pytest.mark.parametrize("same", ["overlapping", "apart", "one storage"])
def test_branches_of_a_graph_that_overlap_come_one_after_the_other(gpu, Array, same):
    memory, other, third = words(256), api.zeros(256).sync(), api.zeros(128).sync()
    part = tk.as_tensor(Array(memory[:128]))
    whole = tk.as_tensor(Array(words(256) if same == "apart" else memory))
    if same == "one storage":
        del part
        part = tk.as_tensor(Array(memory[:128]))
        assert part.storage is whole.storage
    add(part.partition(64), third).sync()
    writes, reads = add(part.partition(64), third), add(other.partition(64), whole)
    with tk.zip(writes, reads, parallel=True).graph() as graph:
        assert [node.after for node in graph.nodes] == ([(), ()] if same == "apart" else [(), (0,)])


def test_threads_that_find_and_that_add_memory(gpu, Array):
    """One by the compiled part, which takes no lock, the other in Python."""
    memory, errors = words(1024), []
    kept = tk.as_tensor(Array(memory[:64]))  # the range is never over
    tk.as_tensor(Array(memory))

    def work(low, high):
        try:
            for _ in range(2000):
                tk.as_tensor(Array(memory[low:high]))
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        parts = ((0, 1024), (0, 1024), (128, 160), (192, 224))
        threads = [threading.Thread(target=work, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert kept.storage.reads is tk.as_tensor(Array(memory)).storage.reads


def test_arrays_of_each_device_are_let_go(monkeypatch):
    """Whatever other devices import, and however much."""
    pytest.importorskip("cuda.bindings.driver", reason="the stand-in is driven by cuda.bindings")
    fakes = [FakeBindings(), FakeBindings()]
    drivers = [CudaDriver(bindings, number, False) for number, bindings in enumerate(fakes)]
    for number, (bindings, driver) in enumerate(zip(fakes, drivers, strict=True)):
        bindings._handles = itertools.count((number + 1) << 20)
        driver.make_signals_ready = lambda driver=driver: setattr(driver, "_callback", SimpleNamespace())
    monkeypatch.setattr(devices, "_registry", devices._Registry(lambda: Discovery(drivers=drivers)))
    array, small, large = exchanging(), words(64), words(17 << 20)
    with tk.use_device("cuda:0") as first, first.stream() as stream:
        z, gone = array(words(64)), []
        for _ in range(3):
            add(z, array(small)).tile(64).sync()
        tk.as_tensor(array(large, device=(2, 1)))
        z = tk.as_tensor(z)
        for _ in range(200):
            theirs = array(small)
            gone.append(weakref.ref(theirs))
            add(z, theirs).tile(64).async_on(stream)
            tk.as_tensor(array(large, device=(2, 1)))
        del theirs
        assert sum(one() is not None for one in gone) <= 64


def test_without_the_compiled_part_arrays_are_exported(gpu, Array, monkeypatch):
    monkeypatch.setattr(exchange, "_described", lambda array: None)
    theirs = Array()
    assert tk.as_tensor(theirs).address == theirs.array.ctypes.data
    assert len(theirs.asked) == 1
