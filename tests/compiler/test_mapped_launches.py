"""Kernels with tensor maps behind their other parameters: launches of them, recorded ones, and other tensors for slots."""

import struct

import pytest
from fake_gpu import fake_device, launch_through

import tilekit as tk
from tilekit import _native, api
from tilekit._driver.tensormaps import TensorMap
from tilekit.compiler.kernel import CompiledKernel, param_format
from tilekit.launch import specialisation as load

# Of y one, of x two: 64 by 32 elements, and 32 by 32 in the other order.
MAPS = (
    TensorMap(1, "float32", (64, 32), (1, 0), 128),
    TensorMap(0, "float32", (32, 32), (1, 0), 128),
    TensorMap(1, "float32", (32, 32), (1, 0), 0),
)
SHAPE = (256, 64)
SLOTS = struct.Struct("=QqqqQqqqq")  # an address, two extents and one stride of each, and the scalar


@tk.kernel
def scale(y: tk.InOut, x: tk.In, a: int):
    y.store(tk.load_tile_like(x, y) * a)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU for which `scale` was compiled by hand, to a kernel with maps."""

    def compiled(specialisation, target):
        return CompiledKernel(
            entry="f",
            ptx="",
            cubin=b"",
            target=target,
            registers=32,
            shared_bytes=0,
            local_bytes=0,
            block=(128, 1, 1),
            param_format=param_format(specialisation.facts),
            maps=MAPS,
        )

    monkeypatch.setattr(load.Specialisation, "compiled", compiled)
    with fake_device(slots=9) as (device, driver):
        driver.maps = len(MAPS)
        yield device, driver


def tensors(count):
    made = [api.zeros(SHAPE).sync() for _ in range(count)]
    return made if count > 1 else made[0]


def check(driver, values, y, x, a):
    """That the driver was given these arguments, and maps of them as they are now."""
    assert len(values) == SLOTS.size + 3 * 128
    assert SLOTS.unpack_from(values) == (y.address, *SHAPE, SHAPE[1], x.address, *SHAPE, SHAPE[1], a)
    for at, (known, tensor) in enumerate(zip(MAPS, (x, y, x), strict=True)):
        made = values[SLOTS.size + 128 * at :][:128]
        _, rank, address, extents, strides, box, _, _, swizzle, *_ = driver.encoded[made]
        assert (rank, address, extents, strides) == (2, tensor.address, [64, 256], [256])
        assert (box, swizzle) == ([32, known.box[0]], f"CU_TENSOR_MAP_SWIZZLE_{'128B' if known.swizzle else 'NONE'}")


def test_maps_come_behind_the_slots(gpu):
    _, driver = gpu
    x, y = tensors(2)
    scale(y.partition((64, 32)), x, 3).sync()
    scale(x.partition((64, 32)), y, 4).sync()
    (*_, first), (*_, second) = driver.launches
    check(driver, first, y, x, 3)
    check(driver, second, x, y, 4)


def test_a_map_is_encoded_once_for_each_tensor(gpu):
    _, driver = gpu
    x, y = tensors(2)
    for a in range(5):
        scale(y.partition((64, 32)), x, a).sync()
    assert driver.calls["cuTensorMapEncodeTiled"] == 3
    assert len({values[SLOTS.size :] for *_, values in driver.launches}) == 1


@pytest.fixture
def by_python(monkeypatch):
    """The launches that Python makes, one by one."""
    made, launch = [], load.Loaded.launch
    monkeypatch.setattr(load.Loaded, "launch", lambda *given: made.append(given) or launch(*given))
    return made


def test_native_code_launches_with_the_maps_of_recent_tensors(gpu, by_python, monkeypatch):
    launch_through("native", monkeypatch)
    _, driver = gpu
    x, y, z = tensors(3)
    for a in range(1, 4):
        scale(y.partition((64, 32)), x, a).sync()
        check(driver, driver.launches[-1][-1], y, x, a)
    assert (len(by_python), driver.calls["cuTensorMapEncodeTiled"]) == (1, 3)
    for a in range(4, 6):  # a map of z is not there yet
        scale(y.partition((64, 32)), z, a).sync()
        check(driver, driver.launches[-1][-1], y, z, a)
    assert (len(by_python), driver.calls["cuTensorMapEncodeTiled"]) == (2, 5)
    scale(y.partition((64, 32)), x, 6).sync()
    check(driver, driver.launches[-1][-1], y, x, 6)
    assert (len(by_python), driver.calls["cuTensorMapEncodeTiled"]) == (2, 5)
    monkeypatch.setattr(load, "_MAPS_KEPT", 1)
    scale(z.partition((64, 32)), x, 7).sync()
    check(driver, driver.launches[-1][-1], z, x, 7)
    scale(y.partition((64, 32)), x, 8).sync()  # was forgotten
    check(driver, driver.launches[-1][-1], y, x, 8)
    assert len(by_python) == 4


def test_without_native_code_python_launches(gpu, by_python, monkeypatch):
    launch_through("python", monkeypatch)
    _, driver = gpu
    x, y = tensors(2)
    for a in range(3):
        scale(y.partition((64, 32)), x, a).sync()
        check(driver, driver.launches[-1][-1], y, x, a)
    assert len(by_python) == 3


@pytest.mark.skipif(_native.compiled is None, reason="tilekit was installed without a C compiler")
@pytest.mark.parametrize(
    ("maps", "error", "says"),
    [
        (((0, {}),) * 9, ValueError, "8 maps at most"),
        (((1, {}),), ValueError, "of one of the arguments"),
        (((0, []),), TypeError, "dict"),
        ([(0, {})], TypeError, "tuple"),
    ],
)
def test_what_is_no_map(maps, error, says):
    with pytest.raises(error, match=says):
        _native.compiled.Launcher(
            launch=1, current=1, context=7, function=1, grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0,
            kinds=b"S", uses=b"\0", slots=b"d", maps=maps,
        )  # fmt: skip


def test_a_view_of_another_shape_has_another_map(gpu):
    _, driver = gpu
    x, y = tensors(2)
    scale(y.partition((64, 32)), x, 3).sync()
    scale(y[:128].partition((64, 32)), x[128:], 3).sync()
    made = driver.launches[-1][-1][SLOTS.size :][:128]
    assert driver.encoded[made][2:5] == (x.address + 128 * 256, [64, 128], [256])


def test_what_has_no_map_is_not_launched(gpu):
    _, driver = gpu
    x, y = tensors(2)
    op = scale(y.partition((64, 32)), x[::-1], 3)
    with pytest.raises(ValueError, match=r"argument 1 \(counted from 0\).* dimension 0 has a stride of -256 bytes"):
        op.sync()
    assert not driver.launches


def test_a_graph_has_the_maps(gpu):
    _, driver = gpu
    x, y, z = tensors(3)
    graph = tk.zip(scale(y.partition((64, 32)), x, 3), scale(z.partition((64, 32)), y, 4)).graph()
    graph.launch().sync()
    (_, (*_, first)), (_, (*_, second)) = driver.graphs[-1]
    check(driver, first, y, x, 3)
    check(driver, second, z, y, 4)


def test_what_is_bound_to_a_graph_has_maps_of_its_own(gpu):
    _, driver = gpu
    x, y, other, another = tensors(4)
    graph = scale(tk.slot("y", y).partition((64, 32)), tk.slot("x", x), tk.slot("a", 3)).graph()
    for values, expected in (
        ({}, (y, x, 3)),
        ({"x": other}, (y, other, 3)),
        ({"y": another, "a": 5}, (another, other, 5)),
        ({"y": y, "x": x}, (y, x, 5)),
    ):
        graph.bind(**values).launch().sync()
        ((_, (*_, told)),) = driver.graphs[-1]
        check(driver, told, *expected)


@pytest.mark.parametrize("way", ["native", "python"])
def test_what_is_bound_to_a_prepared_op_has_maps_of_its_own(gpu, monkeypatch, way):
    launch_through(way, monkeypatch)
    device, driver = gpu
    x, y, other = tensors(3)
    stream = device.policy.next_stream()
    prepared = scale(y.partition((64, 32)), tk.slot("x", x), 3).prepare()
    for tensor in (x, other, x):
        prepared.run(stream, x=tensor)
        check(driver, driver.launches[-1][-1], y, tensor, 3)
    assert driver.calls["cuTensorMapEncodeTiled"] == 5, "of y once"
