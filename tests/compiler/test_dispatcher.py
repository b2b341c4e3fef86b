"""Arguments of numba dispatchers, flattened and checked. What needs a GPU is in tests/gpu."""

import pytest
from numba.cuda import types

from tilekit import api
from tilekit.compiler.codegen.types import TensorType
from tilekit.compiler.dispatcher import _Flatten
from tilekit.compiler.layouts.linear import Config


class DeviceArray:
    """An object with the CUDA array interface, version 3."""

    def __init__(self, shape, strides=None, typestr="<f4", address=4096, read_only=False):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (address, read_only),
            "version": 3,
        }


def flatten(facts, value):
    ty = TensorType("y", facts, Config(4, 4))
    return _Flatten().prepare_args(ty, value, stream=0, retr=[])


def test_a_tensor_becomes_its_address_extents_and_strides(tensor):
    facts = tensor.inout((64, 128), (16, 16))
    ty, flat = flatten(facts, DeviceArray((64, 128)))
    assert flat == (4096, 64, 128, 128)
    assert ty == types.Tuple([types.uint64, types.int32, types.int32, types.int64])
    assert flatten(facts, api.meta((64, 128)))[1] == (0, 64, 128, 128)
    assert flatten(facts, api.meta((64, 128)).partition((16, 16)))[1] == (0, 64, 128, 128)


def test_scalars_pass(tensor):
    assert _Flatten().prepare_args(types.float64, 2.0, stream=0, retr=[]) == (types.float64, 2.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "y: needs a tensor in GPU memory .* not list"),
        (DeviceArray((64, 128), typestr="<f8"), "y has elements of float64, not float32"),
        (DeviceArray((64,)), "y has 1 dimensions, not 2"),
        (DeviceArray((64, 128), address=4104), "y has an address that is no multiple of 16 bytes"),
        (DeviceArray((63, 128)), "y has extent 63 in dimension 0, no positive multiple of 64"),
        (DeviceArray((0, 128)), "y has extent 0 in dimension 0, no positive multiple of 64"),
        (DeviceArray((64, 128), strides=(520, 4)), "y has stride 130 in dimension 0, no multiple of 64"),
        (DeviceArray((64, 128), strides=(1024, 8)), "y has stride 2 in dimension 1, not 1"),
        (DeviceArray((64, 128), strides=(513, 4)), "y: strides of .* bytes are no multiples"),
        (DeviceArray((64, 128), read_only=True), "y has read-only memory, and the kernel writes it"),
        (DeviceArray((1 << 32, 128)), r"y has an extent of more than 2\^31 - 2\^24"),
        (DeviceArray(((1 << 31) - 64, 128)), r"y has an extent of more than 2\^31 - 2\^24"),
        (DeviceArray((1 << 24, 128)), r"y has 2\^31 elements or more"),
        (api.meta((64, 128)).partition((32, 32)), r"y has tiles of \(32, 32\), not \(16, 16\)"),
    ],
)
def test_what_the_specialisation_was_not_compiled_for_is_refused(tensor, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flatten(tensor.inout((64, 128), (16, 16)), value)
