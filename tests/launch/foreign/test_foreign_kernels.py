"""Kernels that are not tilekit's, as ops: checked, launched, ordered, on a stand-in for a GPU.

That they calculate right on a GPU is shown in `tests/gpu/test_foreign_kernels.py`.
"""

import asyncio
import struct

import ml_dtypes
import numpy as np
import pytest
from cuda_code import CODE, CONFIG, EVERY, EVERY_CODE, SAXPY, needs_headers, needs_nvrtc, saxpy
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api, ops
from tilekit.compiler.foreign import image, nvrtc


@pytest.fixture
def gpu():
    """A GPU that does nothing, the default device; gives it and its driver's stand-in."""
    with fake_device(slots=4) as made:
        yield made


# calling


def test_building_a_launch_does_nothing(gpu):
    y, x = api.zeros(1000).sync(), api.zeros(1000).sync()
    before = gpu[1].calls.copy(), nvrtc.compile_source.cache_info()
    op = saxpy()(y, 2.0, x, 1000)
    assert isinstance(op, ops.AsyncKernelLaunch)
    assert (gpu[1].calls, nvrtc.compile_source.cache_info()) == before
    assert op.device is gpu[0]
    assert repr(op) == "CUDA kernel saxpy"
    assert [spec and spec.shape for spec in op.specs] == [(1000,), None, (1000,), None]
    op.consumed()


def refused(arguments, error, message, kernel=None):
    with pytest.raises(error, match=message):
        (kernel or saxpy())(*arguments)


def test_arguments_are_checked_where_the_launch_is_built(gpu):
    y, x = api.zeros(1000).sync(), api.zeros((10, 100)).sync()
    half = api.zeros(8, tk.float16).sync()
    who = "CUDA kernel saxpy"
    listed = r"y: InOut\[f32\], a: f32, x: In\[f32\], n: i32"
    refused((y, 2.0, x), TypeError, rf"{who} takes 4 arguments \({listed}\), not 3")
    refused((y, 2.0, half, 1), TypeError, rf"{who}, argument x: declared In\[f32\], not a tensor of float16")
    refused((2.0, 2.0, x, 1), TypeError, rf"{who}, argument y: declared InOut\[f32\], so it takes a tensor, not float")
    refused((np.zeros(3), 2.0, x, 1), TypeError, "a NumPy array; copy it to the device with api.from_host")
    refused((y, y, x, 1), TypeError, rf"{who}, argument a: declared f32, a scalar, not Tensor")
    refused((y, "2", x, 1), TypeError, "argument a: declared f32, not str")
    refused((y, True, x, 1), TypeError, "argument a: declared f32, not bool")
    refused((y, 2.0, x, 1.0), TypeError, "argument n: declared i32, not float")
    refused((y, 2.0, x, 2**31), ValueError, "argument n: 2147483648 does not fit i32")
    refused((y, 1e39, x, 1), ValueError, r"argument a: 1e\+39 does not fit f32")
    refused(
        (y, 2.0, x.permute(1, 0), 1), ValueError, "argument x: the kernel gets a bare pointer, so the tensor must be C-contig"
    )
    refused((y[::2], 2.0, x, 1), ValueError, r"unlike Tensor\(shape=\(500,\).*; pass its dup")
    unconfigured = tk.cuda_source(CODE, "saxpy", SAXPY)
    refused((y, 2.0, x, 1), TypeError, r"say how it is launched, with kernel\[tk.LaunchConfig", unconfigured)
    with pytest.raises(TypeError, match=r"launched with kernel\[tk.LaunchConfig\(grid=..., block=...\)\], not \(4, 128\)"):
        unconfigured[4, 128]
    for a in (np.inf, -np.inf, np.nan, 3, np.float64(3), np.float16(1), ml_dtypes.bfloat16(1), np.int8(3)):
        saxpy()(y, a, x, np.uint8(4)).consumed()


def test_numbers_have_a_range():
    kernel = tk.cuda_source(EVERY_CODE, "every", "u8, i8, bool, f16, bf16")[CONFIG]
    good = (255, -128, True, 65504.0, 3e38)
    kernel(*good).consumed()
    for at, value, message in [
        (0, 256, "u8"),
        (0, -1, "u8"),
        (1, 128, "i8"),
        (2, 1, "bool, not int"),
        (3, 7e4, "f16"),
        (4, 4e38, "bf16"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"argument {at}: .*{message}"):
            kernel(*good[:at], value, *good[at + 1 :])


def test_what_only_the_launch_can_see(gpu):
    y = api.zeros(1000).sync()
    meta, elsewhere = api.meta((1000,), tk.float32), api.zeros(1000).on("cpu").sync()
    with pytest.raises(TypeError, match="CUDA kernel saxpy: argument x is a meta tensor, without memory"):
        saxpy()(y, 2.0, meta, 1).sync()
    with pytest.raises(ValueError, match=r'argument x is on Device\("cpu:0"\), the launch on Device\("cuda:0"\)'):
        saxpy()(y, 2.0, elsewhere, 1).sync()
    with pytest.raises(TypeError, match="argument n: declared i32, not str"):
        saxpy()(y, 2.0, api.zeros(4), tk.value("four")).sync()


def test_memory_that_is_written_is_nobody_elses(gpu):
    y = api.zeros(1000).sync()
    with pytest.raises(ValueError, match="saxpy: arguments y and x overlap in memory, and y is written; pass a dup"):
        saxpy()(y[:600], 2.0, y[500:], 100).sync()
    in_and_in = tk.cuda_source(CODE, "copy", "Out[f32], Out[f32]")[CONFIG]
    with pytest.raises(ValueError, match="arguments 0 and 1 are the same memory, and both count as written; declare"):
        in_and_in(y, y).sync()


@needs_nvrtc
def test_memory_that_is_written_may_be_read_as_the_same_view(gpu):
    y = api.zeros(1000).sync()
    saxpy()(y, 2.0, y, 1000).sync()
    saxpy()(y[:500], 2.0, y[500:], 500).sync()
    assert gpu[1].calls["cuLaunchKernel"] == 2


# launching, as the driver sees it


@needs_nvrtc
def test_what_the_driver_is_given(gpu):
    device, driver = gpu
    y, x = api.zeros(1000).sync(), api.zeros(2000).sync()[1000:]
    stream = device.stream()
    result = saxpy(tk.LaunchConfig(grid=(4, 2, 3), block=(32, 4), shared_bytes=100))(y, 2.5, x, -7).sync_on(stream)
    assert result[0] is y
    assert result[1:] == (2.5, x, -7)
    ((_, grid, block, shared, on, values),) = driver.launches
    assert (grid, block, shared, on) == ((4, 2, 3), (32, 4, 1), 100, stream.handle)
    assert values == struct.pack("<QfxxxxQixxxx", y.address, 2.5, x.address, -7)


@needs_headers
def test_scalars_of_every_type_are_packed(gpu):
    driver = gpu[1]
    driver.slots = 14
    y = api.zeros(1).sync()
    given = (True, -128, -32768, -(2**31), -(2**63), 255, 65535, 2**32 - 1, 2**64 - 1, 1.5, 2.5, 3.5, 1 / 3)
    tk.cuda_source(EVERY_CODE, "every", EVERY)[CONFIG](*given, y).sync()
    expected = [np.array(value, dtype).tobytes().ljust(8, b"\0") for value, dtype in zip(given, tk_types())]
    assert driver.launches[-1][-1] == b"".join(expected) + struct.pack("<Q", y.address)


def tk_types():
    return [
        tk.bool_, tk.int8, tk.int16, tk.int32, tk.int64, tk.uint8, tk.uint16, tk.uint32, tk.uint64, tk.float16, tk.bfloat16,
        tk.float32, tk.float64,
    ]  # fmt: skip


@needs_nvrtc
def test_it_is_compiled_and_loaded_once(gpu):
    driver = gpu[1]
    y, x = api.zeros(8).sync(), api.zeros(8).sync()
    code = CODE + "// for this test alone\n"
    before = nvrtc.compile_source.cache_info().misses
    for kernel in (tk.cuda_source(code, "saxpy", SAXPY), tk.cuda_source(code, "saxpy", "InOut, f32, In, u32")):
        for grid in (1, 2):
            kernel[tk.LaunchConfig(grid=grid, block=32)](y, 1.0, x, 8).sync()
    assert nvrtc.compile_source.cache_info().misses == before + 1
    assert driver.calls["cuLibraryLoadData"] == 2  # once a kernel object
    assert [launch[1] for launch in driver.launches] == 2 * [(1, 1, 1), (2, 1, 1)]


@needs_nvrtc
def test_compiling_does_not_hold_up_an_event_loop(gpu, monkeypatch):
    import threading

    places = []
    compiled = image.SourceText.compiled
    monkeypatch.setattr(image.SourceText, "compiled", lambda *given: (places.append(threading.get_ident()), compiled(*given))[1])

    async def main():
        y = await api.zeros(8)
        return await saxpy()(y, 1.0, api.zeros(8), 8)

    asyncio.run(main())
    assert len(places) == 1
    assert places[0] != threading.get_ident()


@needs_nvrtc
def test_more_than_48_kb_of_shared_memory_is_asked_for(gpu):
    driver = gpu[1]
    y, x = api.zeros(8).sync(), api.zeros(8).sync()
    saxpy(tk.LaunchConfig(grid=1, block=32, shared_bytes=48 << 10))(y, 1.0, x, 8).sync()
    assert driver.calls["cuFuncSetAttribute"] == 0
    saxpy(tk.LaunchConfig(grid=1, block=32, shared_bytes=100_000))(y, 1.0, x, 8).sync()
    assert driver.calls["cuFuncSetAttribute"] == 1
    with pytest.raises(tk.DeviceError, match="saxpy needs 300,000 bytes of dynamic shared memory"):
        saxpy(tk.LaunchConfig(grid=1, block=32, shared_bytes=300_000))(y, 1.0, x, 8).sync()


@needs_nvrtc
def test_a_grid_without_blocks_launches_nothing(gpu):
    y, x = api.zeros(0).sync(), api.zeros(0).sync()
    assert saxpy(tk.LaunchConfig.for_num_elems(0))(y, 1.0, x, 0).sync() == (y, 1.0, x, 0)
    assert gpu[1].launches == []


@needs_nvrtc
@pytest.mark.parametrize("cluster", [(2, 1, 1), (4, 4, 1)])
def test_clusters(gpu, cluster):
    from cuda.bindings import driver as real

    device, driver = gpu
    launched = []
    driver.CUlaunchConfig, driver.CUlaunchAttribute = real.CUlaunchConfig, real.CUlaunchAttribute
    driver.CUlaunchAttributeID, driver.CUfunction_attribute = real.CUlaunchAttributeID, real.CUfunction_attribute
    driver.cuLaunchKernelEx = lambda config, function, params, extra: launched.append((config, function, params)) or (0,)
    y, x = api.zeros(8).sync(), api.zeros(8).sync()
    saxpy(tk.LaunchConfig(grid=(8, 4), block=(32, 2), shared_bytes=16, cluster=cluster))(y, 1.0, x, 8).sync()
    ((config, _, _),) = launched
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 4, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes) == (32, 2, 1, 16)
    found = config.attrs[0].value.clusterDim
    assert (config.numAttrs, found.x, found.y, found.z) == (1, *cluster)
    assert config.attrs[0].id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert driver.calls["cuFuncSetAttribute"] == (np.prod(cluster) > 8)
    driver.cuLaunchKernelEx = lambda *_: (1,)
    with pytest.raises(tk.DeviceError, match=r"launching saxpy with grid \(8, 4, 1\) .* in clusters of"):
        saxpy(tk.LaunchConfig(grid=(8, 4), block=32, cluster=cluster))(y, 1.0, x, 8).sync()
    device.compute_capability, device.target = (8, 0), "sm_80"
    with pytest.raises(tk.DeviceError, match=r"clusters need sm_90 or newer, and cuda:0 \(fake GPU\) is sm_80"):
        saxpy(tk.LaunchConfig(grid=8, block=32, cluster=2))(y, 1.0, x, 8).sync()


# order, and what ops can do


@needs_nvrtc
def test_a_reader_waits_for_the_writer_and_no_reader_for_another(gpu):
    device, driver = gpu
    one, two, three = (device.stream() for _ in range(3))
    copy = tk.cuda_source(CODE, "copy", "Out[f32], In[f32]")[CONFIG]
    x, y, z, w = (api.zeros(8).sync_on(one) for _ in range(4))
    for tensor in (x, y, z, w):
        assert tensor.storage.device is device
    driver.slots = 2
    copy(y, x).sync_on(one)
    driver.not_ready = 10**6  # from here on nothing is known to have passed
    copy(x, y).async_on(one)  # one writes x and reads y
    waits = driver.calls["cuStreamWaitEvent"]
    copy(z, y).async_on(two)  # reads y as well
    assert driver.calls["cuStreamWaitEvent"] == waits
    copy(w, x).async_on(three)  # reads what one wrote
    assert driver.calls["cuStreamWaitEvent"] == waits + 1
    copy(y, w).async_on(three)  # writes what one and two read; it has waited for one
    assert driver.calls["cuStreamWaitEvent"] == waits + 2
    assert set(y.storage.reads) <= {one, two}
    assert y.storage.last_write[0] is three
    driver.not_ready = 0


@needs_nvrtc
def test_it_composes_like_any_op(gpu):
    kernel = saxpy()
    y, a, x, n = (
        kernel(api.zeros(8).partition(8), tk.value(2.0), api.ones(8), 8)
        .apply(lambda y, a, x, n: kernel(y.unpartition(), a, x, n))
        .named("twice")
        .sync()
    )
    assert isinstance(y, tk.Tensor)
    assert (a, n, x.shape) == (2.0, 8, (8,))
    shared = kernel(api.zeros(8), 1.0, x, 8).unzip()
    assert len(shared) == kernel.result_count == 4
    assert shared[3].sync() == 8
    first = kernel(api.zeros(8), 1.0, x, 8).first()
    assert first.shape == (8,)
    first.consumed()

    async def main():
        return await kernel(y, 1.0, x, 8)

    assert asyncio.run(main())[0] is y
    op = kernel(y, 1.0, x, 8)
    op.sync()
    with pytest.raises(ValueError, match="has already run"):
        op.sync()
    assert repr(kernel) == "<CUDA kernel saxpy(y, a, x, n)>"
