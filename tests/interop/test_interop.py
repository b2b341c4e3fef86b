"""Memory shared with other libraries on a CPU device, where NumPy is one: in, out, and refused where it cannot be.

`test_interop_streams.py` has what a GPU's driver is asked for it, `tests/gpu/test_interop.py` the real libraries on a real GPU.
"""

import ctypes
import gc
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from exporter import Exporter
from sharing import TILE, N, copy, held, increment

import tilekit as tk
from tilekit import api, dtypes
from tilekit._driver.discovery import Discovery
from tilekit.interop import dlpack

# NumPy in


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_a_numpy_array_becomes_a_tensor_over_the_same_memory(cpu, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    tensor = tk.as_tensor(array)
    assert (tensor.shape, tensor.strides, tensor.dtype, tensor.device) == ((3, 4), (4, 1), dtype, cpu)
    assert tensor.address == array.ctypes.data
    np.testing.assert_array_equal(tensor.to_host().sync(), array)


def test_kernels_write_into_the_array(cpu):
    array = np.zeros(N, np.float32)
    increment(tk.as_tensor(array).partition(TILE)).sync()
    assert (array == 1).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[1:, 2:],
        lambda a: a.T,
        lambda a: a[::-1, ::2],
        lambda a: a[::2, ::-3],
        lambda a: a[1],
        lambda a: a[1, 2:3],
        lambda a: a[1, 2, None][0],
        lambda a: a[:0],
        lambda a: np.broadcast_to(a[0], (5, 8)),
        lambda a: a[..., None],
    ],
)
def test_views_keep_their_strides(cpu, view):
    array = view(np.arange(48, dtype=np.int32).reshape(6, 8))
    array = np.asarray(array)
    for obj in (array, Exporter(array.view(np.uint32), np.int32)):
        tensor = tk.as_tensor(obj)
        assert tensor.shape == array.shape
        if array.size > 1:
            assert tuple(4 * stride for stride in tensor.strides) == array.strides
            assert tensor.address == array.__array_interface__["data"][0]
        if array.ndim:
            np.testing.assert_array_equal(tensor.to_host().sync(), array)
        else:
            assert tensor.host_view() == array


def test_the_same_memory_is_the_same_storage(cpu):
    array = np.arange(N, dtype=np.float32)
    whole, part = tk.as_tensor(array), tk.as_tensor(array[10:20])
    assert part.storage is whole.storage
    assert (part.offset, part.shape) == (10, (10,))
    with pytest.raises(ValueError, match="y and x overlap in memory, and y is written"):
        copy(whole[:10].partition(16), tk.as_tensor(array[5:15])).sync()
    assert tk.as_tensor(array.copy()).storage is not whole.storage


def test_a_tensor_is_itself(cpu):
    x = api.ones(4).sync()
    assert tk.as_tensor(x) is x
    assert tk.as_tensor(x, device="cpu") is x
    with pytest.raises(TypeError, match="is an op that has not run; .sync\\(\\) or await gives the tensor"):
        tk.as_tensor(tk.value(x))


def test_the_owner_lives_until_the_device_is_done(cpu):
    class Array(np.ndarray):
        pass

    array = np.zeros(N, np.float32).view(Array)
    gone = weakref.ref(array)
    with cpu.stream() as stream:
        release = held(cpu, stream)
        future = increment(tk.as_tensor(array).partition(TILE)).async_on(stream)
        del array
        gc.collect()
        assert gone() is not None
        release()
        future.result(60)
        del future
    cpu.synchronize()
    gc.collect()
    cpu.collect()
    assert gone() is None


def test_imports_alone_let_go_of_what_was_imported_before(cpu):
    """A program that allocates nothing here has no other occasion."""
    gone = []
    for _ in range(10):
        array = np.zeros(N, np.float32)
        gone.append(weakref.ref(array))
        increment(tk.as_tensor(array).partition(TILE)).sync()
    assert [ref() is None for ref in gone[:8]] == [True] * 8


def test_a_capsule_is_released_once_the_device_is_done(cpu):
    array = np.arange(N, dtype=np.uint32)
    alive = np.asarray(memoryview(array))  # which the capsule keeps
    gone = weakref.ref(alive)
    tensor = tk.as_tensor(Exporter(alive))
    del alive
    gc.collect()
    assert gone() is not None
    assert tensor.to_host().sync()[-1] == N - 1
    del tensor
    cpu.synchronize()
    gc.collect()
    assert gone() is None


def test_old_exporters_are_asked_as_they_know_it(cpu):
    old, new = Exporter(np.zeros(4, np.uint32), versioned=False), Exporter(np.zeros(4, np.uint32))
    tk.as_tensor(old), tk.as_tensor(new)
    assert old.asked == [(None, {})]
    assert new.asked == [(None, {"max_version": (1, 0)})]


# read-only memory


def read_only():
    array = np.arange(N, dtype=np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("obj", [read_only(), Exporter(read_only().view(np.uint32), np.float32)], ids=["numpy", "dlpack"])
def test_read_only_memory_is_read_and_never_written(cpu, obj):
    tensor = tk.as_tensor(obj)
    result = copy(api.zeros(N).partition(TILE), tensor).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(result, np.arange(N, dtype=np.float32))
    for write in (
        lambda: increment(tensor.partition(TILE)).sync(),
        lambda: copy(tensor[:500].partition(TILE), tensor[500:]).sync(),
        lambda: api.memcpy(tensor, np.zeros(N, np.float32)).sync(),
        lambda: api.memcpy(tensor, api.zeros(N).sync()).sync(),
    ):
        with pytest.raises(ValueError, match=r"4,000 bytes on cpu:0> is read-only, since .*: write to a dup\(\)"):
            write()
    increment(tensor.dup().partition(TILE)).sync()
    np.testing.assert_array_equal(tensor.to_host().sync(), np.arange(N, dtype=np.float32))


def test_read_only_memory_is_passed_on_as_such(cpu):
    tensor = tk.as_tensor(read_only())
    assert not np.from_dlpack(tensor).flags.writeable
    with pytest.raises(BufferError, match="is read-only, since the NumPy array is; that can be told from version 1.0 of DLPack"):
        tensor.__dlpack__()


def test_elements_that_share_their_memory_are_not_written(cpu):
    array = np.broadcast_to(np.zeros(4, np.float32), (3, 4)).copy()
    shared = np.lib.stride_tricks.as_strided(array, (3, 4), (0, 4))
    tensor = tk.as_tensor(shared)
    with pytest.raises(ValueError, match=r"its elements overlap in memory: shape \(3, 4\), strides \(0, 1\)"):
        increment(tensor.partition((2, 4))).sync()


# NumPy out


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.isbuiltin == 1], ids=lambda d: d.name)
def test_numpy_gets_the_same_memory(cpu, dtype):
    x = api.from_host(np.arange(12).reshape(3, 4).astype(dtype)).sync()
    array = np.from_dlpack(x)
    assert (array.ctypes.data, array.dtype, array.shape) == (x.address, dtype, (3, 4))
    np.testing.assert_array_equal(array, x.to_host().sync())
    array[0, 0] = 1
    assert x.to_host().sync()[0, 0] == 1
    back = tk.as_tensor(array)
    assert back.storage is x.storage
    assert (back.address, back.shape, back.strides) == (x.address, x.shape, x.strides)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_what_numpy_has_no_name_for_makes_the_round_trip(cpu, name, version):
    x = api.from_host(np.arange(8).astype(getattr(ml_dtypes, name))).sync()
    back = tk.as_tensor(x.__dlpack__(max_version=version))
    assert (back.dtype, back.address, back.storage is x.storage) == (x.dtype, x.address, True)
    with pytest.raises((RuntimeError, BufferError, TypeError)):  # NumPy's own
        np.from_dlpack(x)


def test_views_go_out_with_their_strides(cpu):
    host = np.arange(48, dtype=np.int16).reshape(6, 8)
    x = api.from_host(host).sync()
    for view in (lambda a: a[1:, 2:], lambda a: a[::2, ::-1], lambda a: a[3], lambda a: a[:0], lambda a: a[2, 3]):
        np.testing.assert_array_equal(np.from_dlpack(view(x)), view(host))


def test_an_export_waits_for_the_writer(cpu):
    with cpu.stream() as stream:
        x = api.zeros(N).sync_on(stream)
        release = held(cpu, stream)
        future = increment(x.partition(TILE)).async_on(stream)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(np.from_dlpack(x).copy()))
        thread.start()
        thread.join(0.05)
        assert not seen, "the writer is held"
        release()
        thread.join(60)
        assert (seen[0] == 1).all()
        future.result()


def test_an_export_waits_for_readers_too(cpu):
    """The consumer may write."""
    with cpu.stream() as stream:
        x, y = api.zeros(N).sync(), api.zeros(N).sync()
        release = held(cpu, stream)
        future = copy(y.partition(TILE), x).async_on(stream)
        thread = threading.Thread(target=lambda: np.from_dlpack(x).fill(7))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        release()
        thread.join(60)
        future.result()
        assert not y.to_host().sync().any()
        assert (x.to_host().sync() == 7).all()


def test_a_consumer_keeps_the_memory_alive(cpu):
    x = api.full(N, 3).sync()
    array = np.from_dlpack(x)
    del x
    for _ in range(10):
        api.zeros(N).sync()
    assert (array == 3).all()


def test_what_others_write_counts_as_written(cpu):
    y = tk.with_context(lambda ctx: tk.value(tk.Tensor(ctx.allocate(4 * N), (N,), tk.float32))).sync()
    np.from_dlpack(y)[:] = 5
    assert (y.to_host().sync() == 5).all()


def test_capsules_that_nobody_takes_are_released(cpu):
    x = api.zeros(N).sync()
    gone = weakref.ref(x.storage)
    capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]
    del x
    gc.collect()
    assert gone() is not None
    capsules.clear()
    gc.collect()
    assert gone() is None


def test_exports_say_why_they_refuse(cpu):
    x = api.zeros(4).sync()
    assert x.__dlpack_device__() == (1, 0)
    cases = [
        (lambda: api.meta(4).__dlpack__(), BufferError, "has no memory that another library could use"),
        (lambda: api.meta(4).__dlpack_device__(), BufferError, "has no memory that another library could use"),
        (lambda: x.__dlpack__(copy=True), BufferError, r"is shared, not copied: pass a .dup\(\) of it"),
        (lambda: x.__dlpack__(dl_device=(2, 0)), BufferError, r"is on device \(1, 0\) of DLPack, not on \(2, 0\)"),
        (lambda: x.__dlpack__(stream=1), ValueError, "stream must be None, not 1"),
    ]
    for call, kind, match in cases:
        with pytest.raises(kind, match=match):
            call()
    assert not hasattr(x, "__cuda_array_interface__")
    assert not hasattr(api.meta(4), "__cuda_array_interface__")
    with pytest.raises(TypeError, match="lives on a device"):
        np.asarray(x)


def test_exports_from_any_cpu_device_are_the_hosts(cpu, monkeypatch):
    import tilekit._runtime.device as module

    monkeypatch.setenv("TILEKIT_CPU_DEVICES", "2")
    monkeypatch.setattr(module, "_registry", module._Registry(lambda: Discovery(reason="none")))
    second = tk.Device("cpu:1")
    with tk.use_device(second):
        x = api.full(8, 2).sync()
        assert (np.from_dlpack(x) == 2).all()
        assert tk.as_tensor(np.zeros(3)).device is second
    assert tk.as_tensor(np.zeros(3), device="cpu:1").device is second
    with pytest.raises(ValueError, match=r"the memory is on cpu:1, not on cpu:0: take it where it is, and copy it with .to\("):
        tk.as_tensor(x, device="cpu:0")


# bad input


def test_a_capsule_is_taken_once(cpu):
    capsule = np.zeros(4, np.float32).__dlpack__()
    tk.as_tensor(capsule)
    with pytest.raises(ValueError, match="this DLPack capsule was used already"):
        tk.as_tensor(capsule)

    class Once:
        """Gives the same capsule again and again."""

        def __init__(self, x):
            self.capsule, self.place = x.__dlpack__(max_version=(1, 0)), x.__dlpack_device__()

        def __dlpack_device__(self):
            return self.place

        def __dlpack__(self, **_):
            return self.capsule

    once = Once(api.zeros(4).sync())
    np.from_dlpack(once)
    with pytest.raises((ValueError, TypeError, BufferError)):  # NumPy's
        np.from_dlpack(once)
    with pytest.raises(ValueError, match="this DLPack capsule was used already"):
        tk.as_tensor(once)


def test_foreign_dtypes_are_named(cpu):
    array = np.zeros(4, np.complex64)
    with pytest.raises(TypeError, match="elements of complex64 are none of tilekit's dtypes, which are bool, int8"):
        tk.as_tensor(array.__dlpack__())
    with pytest.raises(TypeError, match="complex64.* is not a dtype of tilekit"):
        tk.as_tensor(array)
    with pytest.raises(TypeError, match=">f4.* is not a dtype of tilekit"):
        tk.as_tensor(np.zeros(4, ">f4"))


def test_a_refused_capsule_is_released(cpu):
    array = np.zeros(4, np.complex64)
    gone = weakref.ref(array)
    with pytest.raises(TypeError, match="complex64"):
        tk.as_tensor(array.__dlpack__())
    del array
    gc.collect()
    assert gone() is None


def test_capsules_of_another_kind_are_refused(cpu):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    with pytest.raises(ValueError, match="is no DLPack capsule"):
        tk.as_tensor(new(8, b"something else", None))
    capsule = np.zeros(4, np.float32).__dlpack__(max_version=(1, 0))
    address = dlpack._pointer(capsule, b"dltensor_versioned")
    dlpack._Versioned.from_address(address).major = 9
    with pytest.raises(ValueError, match="the capsule has version 9.0 of DLPack; tilekit knows version 1"):
        tk.as_tensor(capsule)


def test_what_shares_no_memory_is_refused(cpu):
    for obj in ([1, 2], 3.0, b"abc", None):
        with pytest.raises(TypeError, match=r"has neither __dlpack__ nor __cuda_array_interface__.*api.from_host"):
            tk.as_tensor(obj)


def test_addresses_and_strides_must_fit_the_elements(cpu):
    packed = np.zeros(4, [("a", np.int8), ("b", np.float32)])
    with pytest.raises(ValueError, match=r"strides of \(5,\) bytes are no multiples of the 4 bytes of a float32; make a copy"):
        tk.as_tensor(packed["b"])
    raw = np.zeros(17, np.uint8)
    skewed = raw[1 - raw.ctypes.data % 2 :][:16].view(np.float32)
    with pytest.raises(ValueError, match="is no address of float32 elements, which start at multiples of 4 bytes"):
        tk.as_tensor(skewed)


def test_other_kinds_of_devices_are_refused(cpu):
    obj = Exporter(np.zeros(4, np.uint32), device=(10, 0))
    with pytest.raises(ValueError, match=r"is on a device of DLPack's kind 10; tilekit knows CPUs \(1\) and CUDA \(2\)"):
        tk.as_tensor(obj)
    liar = Exporter(np.zeros(4, np.uint32))
    liar.__class__ = type("Liar", (Exporter,), {"__dlpack_device__": lambda self: (1, 0)})
    liar.device = (10, 0)
    with pytest.raises(ValueError, match=r"says that it is on device \(1, 0\) of DLPack, and exports \(10, 0\)"):
        tk.as_tensor(liar)
    pinned = Exporter(np.zeros(4, np.uint32), device=(3, 0))
    assert tk.as_tensor(pinned).device is cpu


# other libraries, where they are installed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_torch_and_back(cpu, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.arange(48).reshape(6, 8).to(getattr(torch, dtype))[1:, ::2]
    ours = tk.as_tensor(theirs)
    assert (ours.address, ours.shape, ours.strides) == (theirs.data_ptr(), tuple(theirs.shape), theirs.stride())
    np.testing.assert_array_equal(ours.to_host().sync().astype(np.float32), theirs.float().numpy())
    x = api.from_host(np.arange(48).reshape(6, 8).astype(dtypes.as_dtype(dtype))).sync()
    back = torch.from_dlpack(x[1:, ::2])
    assert back.data_ptr() == x[1:, ::2].address
    assert back.stride() == (8, 2)
    assert tk.as_tensor(back).storage is x.storage


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_jax_and_back(cpu, dtype):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    theirs = jax.numpy.arange(48).reshape(6, 8).astype(dtype)
    ours = tk.as_tensor(theirs)
    assert ours.address == theirs.unsafe_buffer_pointer()
    np.testing.assert_array_equal(ours.to_host().sync(), np.asarray(theirs))
    assert ours.storage.readonly == "jaxlib._jax.ArrayImpl says so", "JAX's arrays never change"
    x = api.from_host(np.arange(48).reshape(6, 8).astype(dtypes.as_dtype(dtype))).sync()
    back = jax.dlpack.from_dlpack(x)
    assert back.unsafe_buffer_pointer() == x.address
    np.testing.assert_array_equal(np.asarray(back), x.to_host().sync())
