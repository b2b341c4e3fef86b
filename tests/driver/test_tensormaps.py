"""Tensor maps: what cuTensorMapEncodeTiled is asked for, and what is refused before."""

import dataclasses
import pickle
import re
import struct

import pytest
from fake_gpu import fake_gpu

from tilekit import dtypes
from tilekit._driver.cuda.tensormaps import encode
from tilekit._driver.tensormaps import Last, TensorMap, tiled
from tilekit._runtime.device import Device
from tilekit.errors import DeviceError

ADDRESS = 1 << 32


def known(box=(64, 64), order=None, dtype="float16", swizzle=128, argument=1):
    order = tuple(reversed(range(len(box)))) if order is None else order
    return TensorMap(argument, dtype, box, order, swizzle)


def test_what_the_driver_is_asked():
    device, bindings = fake_gpu()
    made = device.driver.tensor_map(known((128, 64)), ADDRESS, (300, 1000), (1000, 1))
    assert bindings.encoded[made] == (
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
        2,
        ADDRESS,
        [1000, 300],
        [2000],
        [64, 128],
        [1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )
    assert made == struct.pack("=QQ", 1, ADDRESS) * 8, "the bytes that the driver gave"


def test_dimensions_go_from_the_fastest():
    told = tiled(known((16, 32, 8), order=(1, 2, 0), dtype="float32", swizzle=0), ADDRESS, (50, 64, 70), (4480, 1, 64))
    assert (told.extents, told.strides, told.box) == ((64, 70, 50), (256, 17920), (32, 8, 16))
    assert (told.type, told.swizzle) == ("FLOAT32", "NONE")


@pytest.mark.parametrize("rank", [1, 5])
def test_ranks(rank):
    device, bindings = fake_gpu()
    shape, strides = (*[2] * (rank - 1), 64), (1024, 512, 256, 128, 1)[-rank:]
    made = device.driver.tensor_map(known((*[1] * (rank - 1), 64)), ADDRESS, shape, strides)
    _, count, _, extents, steps, box, ones, *_ = bindings.encoded[made]
    assert (count, len(extents), len(box), len(ones)) == (rank,) * 4
    assert len(steps) == max(rank - 1, 1), "never an empty list, which the bindings make a null pointer of"


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_types_have_the_width_of_the_dtype(dtype):
    told = tiled(known((8, 16), dtype=dtype.name, swizzle=0), ADDRESS, (8, 16), (16, 1))
    bits = {"BFLOAT16": 16}.get(told.type) or int(told.type.lstrip("UINTFLOA"))
    assert bits == 8 * dtype.itemsize
    assert told.type.startswith("B") == (dtype == dtypes.bfloat16)


@pytest.mark.parametrize(("rows", "box"), [(1, 1), (40, 40), (64, 64), (65, 1), (128, 64), (1000, 40)])
def test_the_last_box_has_the_rows_that_are_there(rows, box):
    last = dataclasses.replace(known(), last=Last(0, 64, 0))
    assert tiled(last, ADDRESS, (rows, 32), (64, 1)).box == (64, box), "nor has it fewer columns"
    assert tiled(known(), ADDRESS, (rows, 32), (64, 1)).box == (64, 64)


@pytest.mark.parametrize("offset", [0, 8, 64])
@pytest.mark.parametrize("rows", [1, 8, 9, 40, 64, 65, 96, 100, 161, 1000])
def test_the_last_of_boxes_that_begin_further_apart(rows, offset):
    """Boxes of 64 rows, 96 behind each other; and a single one."""
    for period, begins in ((96, range(offset, max(rows, offset + 1), 96)), (0, [offset])):
        expected = max(1, min(64, rows - begins[-1]))
        last = dataclasses.replace(known(), last=Last(0, period, offset))
        assert tiled(last, ADDRESS, (rows, 32), (64, 1)).box == (64, expected)


def test_an_empty_tensor_has_a_last_box():
    assert tiled(dataclasses.replace(known(), last=Last(0, 64, 0)), ADDRESS, (0, 64), (64, 1)).box == (64, 1)


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_the_last_box_is_short_along_none_but_slower_dimensions(dim):
    with pytest.raises(ValueError, match="the last box is short along one of the dimensions 0"):
        dataclasses.replace(known(), last=Last(dim, 64, 0))


@pytest.mark.parametrize(("swizzle", "name"), [(0, "NONE"), (32, "32B"), (64, "64B"), (128, "128B")])
def test_swizzles(swizzle, name):
    assert tiled(known((8, 16), swizzle=swizzle), ADDRESS, (8, 16), (16, 1)).swizzle == name


@pytest.mark.parametrize("stride", [1, 7, -3, 1 << 60])
def test_a_dimension_of_one_element_has_any_stride(stride):
    told = tiled(known((1, 64, 64)), ADDRESS, (1, 64, 64), (stride, 64, 1))
    assert told.strides == (128, 16)
    assert tiled(known(), ADDRESS, (64, 1), (64, stride)).strides == (128,)


def test_a_broadcast_dimension_has_the_stride_zero():
    assert tiled(known(), ADDRESS, (64, 64), (0, 1)).strides == (0,)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0)])
def test_an_empty_tensor_has_a_map_of_no_memory(shape):
    told = tiled(known(), 3, shape, (5, 1))
    assert (told.address, told.extents, told.strides) == (16, (1, 1), (16,))


@pytest.mark.parametrize(
    ("address", "shape", "strides", "why"),
    [
        (ADDRESS + 8, (64, 64), (64, 1), "its address is 0x100000008, which is no multiple of 16 bytes"),
        (ADDRESS, (64, 60), (60, 1), "dimension 0 has a stride of 120 bytes, which is no multiple of 16"),
        (ADDRESS, (64, 64), (-64, 1), "dimension 0 has a stride of -128 bytes"),
        (ADDRESS, (64, 64), (1 << 39, 1), "dimension 0 has a stride of 1099511627776 bytes"),
        (ADDRESS, (64, 64), (128, 2), "the elements of dimension 1 are 4 bytes apart, not next to each other"),
        (ADDRESS, (64, 2**32 + 1), (64, 1), "dimension 1 has more than 2^32 elements"),
        (ADDRESS, (64,), (1,), "the map was made for 2 dimensions"),
    ],
)
def test_what_has_no_map(address, shape, strides, why):
    _, bindings = fake_gpu()
    told = f"argument 1 (counted from 0), float16 of shape {shape} and strides {strides}, has no tensor map: "
    with pytest.raises(ValueError, match=re.escape(told + why)):
        encode(bindings, known(), address, shape, strides)
    assert not bindings.encoded


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dtype": "complex64"}, "no dtype 'complex64'"),
        ({"box": (1,) * 5 + (64,)}, "1 to 5 dimensions"),
        ({"box": ()}, "1 to 5 dimensions"),
        ({"order": (0, 0)}, "each of them once"),
        ({"order": (0,)}, "each of them once"),
        ({"box": (512, 64)}, "1 to 256 elements"),
        ({"box": (0, 64)}, "1 to 256 elements"),
        ({"swizzle": 16}, "one of 0, 32, 64, 128 bytes"),
        ({"box": (64, 4)}, "has 8 bytes; that has to be a multiple of 16, and at most the 128"),
        ({"box": (64, 128)}, "has 256 bytes; that has to be a multiple of 16, and at most the 128 of the swizzle"),
    ],
)
def test_no_such_map(fields, why):
    with pytest.raises(ValueError, match=why):
        known(**fields)


def test_a_map_is_a_value():
    assert pickle.loads(pickle.dumps(known())) == known() != known(swizzle=0)


def test_a_cpu_device_has_none():
    with pytest.raises(TypeError, match="no compiled kernels, which take tensor maps"):
        Device("cpu").driver.tensor_map(known(), ADDRESS, (64, 64), (64, 1))


def test_what_the_driver_refuses():
    device, bindings = fake_gpu()
    bindings.cuTensorMapEncodeTiled = lambda *asked: (1, None)
    with pytest.raises(DeviceError, match=r"encoding the map Tiled\(type='FLOAT16'.*CUDA_ERROR_FAKE"):
        device.driver.tensor_map(known(), ADDRESS, (64, 64), (64, 1))
