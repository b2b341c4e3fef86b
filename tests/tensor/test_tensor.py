"""Tensors as views: NumPy is the model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu.driver import CpuDriver
from tilekit._runtime.device import Device


def same_view(tensor, array):
    """Shape, strides and place agree with a NumPy view of `np.arange`: its elements are their own offsets."""
    assert tensor.shape == array.shape
    if array.size:
        assert tensor.offset == array.flat[0]
        steps = tuple(s // array.itemsize for s in array.strides)
        assert all(n == 1 or a == b for n, a, b in zip(array.shape, tensor.strides, steps))


@given(st.data())
def test_basic_indexing_is_numpys(data):
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=5))
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    array = np.arange(np.prod(shape)).reshape(shape)
    expected = array[key]
    same_view(api.meta(shape, tk.int64)[key], np.asarray(expected))


@given(st.data())
def test_permutations_are_numpys(data):
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=4))
    axes = data.draw(st.permutations(range(len(shape))))
    array = np.arange(np.prod(shape)).reshape(shape)
    same_view(api.meta(shape, tk.int64).permute(*axes), array.transpose(axes))


def test_metadata():
    tensor = api.meta((2, 3, 4), tk.float16)
    assert (tensor.ndim, tensor.size, tensor.itemsize, tensor.nbytes) == (3, 24, 2, 48)
    assert tensor.strides == (12, 4, 1)
    assert tensor.is_contiguous
    assert tensor.is_meta
    assert len(tensor) == 2
    assert repr(tensor) == "Tensor(shape=(2, 3, 4), dtype=float16, device=meta)"
    assert repr(tensor.permute()) == "Tensor(shape=(4, 3, 2), dtype=float16, strides=(1, 4, 12), device=meta)"


def test_reshape():
    tensor = api.meta((2, 6))
    assert tensor.reshape(3, -1).shape == (3, 4)
    assert tensor.reshape((12,)).shape == (12,)
    assert tensor[:, ::2].reshape(2, 3, 1).shape == (2, 3, 1)
    with pytest.raises(ValueError, match=r"has no view of shape \(12,\); make a dup\(\) first"):
        tensor.permute().reshape(12)
    with pytest.raises(ValueError, match="reshape"):
        tensor.reshape(5)


def test_indexing_errors_are_numpys():
    with pytest.raises(IndexError, match="out of bounds"):
        api.meta(3)[3]
    for index in (2**63, 2**70, -(2**70)):  # which NumPy takes for no index at all
        with pytest.raises(IndexError, match=rf"index {index} is out of bounds for a tensor of shape \(3,\)"):
            api.meta(3)[index]
    with pytest.raises(IndexError, match="too many indices"):
        api.meta(3)[0, 0]
    for copies in ([0], True, np.bool_(True), np.array([0])):  # NumPy makes copies of these
        with pytest.raises(TypeError, match=r"tensors are indexed by ints, slices, None and \.\.\., not "):
            api.meta(3)[copies]
    for nothing in (1.0, "a", 1j):
        with pytest.raises(IndexError, match="only integers"):
            np.zeros(3)[nothing]
        with pytest.raises(IndexError, match=r"tensors are indexed by ints, slices, None and \.\.\., not "):
            api.meta(3)[nothing]
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        api.meta(3)[::0]
    with pytest.raises(TypeError, match="slice indices must be integers"):
        api.meta(3)[1.5:]
    with pytest.raises(IndexError, match="single ellipsis"):
        api.meta(3)[..., ...]
    assert api.meta((3, 4))[np.int8(1), None].shape == (1, 4)


def test_errors_of_permutations_are_numpys():
    tensor = api.meta((2, 3))
    for axes, words in (((0,), "axes don't match"), ((0, 0), "repeated axis"), ((0, 2), "out of bounds"), (((),), "axes don't")):
        with pytest.raises(ValueError, match=words):
            np.zeros((2, 3)).transpose(*axes)
        with pytest.raises(ValueError, match=words):
            tensor.permute(*axes)
    assert tensor.transpose(None).shape == tensor.transpose().shape == tensor.T.shape == (3, 2)
    assert api.meta(()).T.shape == ()


def test_reshape_takes_what_numpys_takes():
    tensor = api.meta(6)
    assert tensor.reshape([2, 3]).shape == tensor.view((2, -1)).shape == (2, 3)
    assert tensor[:1].reshape(()).shape == ()
    assert api.meta((0, 3)).reshape(3, 0, 5).shape == (3, 0, 5)
    for shape, words in (((2, -1, -1), "one unknown dimension"), ((4, -1), "cannot reshape"), ((5,), "cannot reshape")):
        with pytest.raises(ValueError, match=words):
            np.zeros(6).reshape(shape)
        with pytest.raises(ValueError, match=words):
            tensor.reshape(shape)
    with pytest.raises(TypeError, match="reshape takes the new shape"):
        tensor.reshape()
    with pytest.raises(TypeError, match="reshape takes ints, not 2.0"):
        tensor.reshape(2.0, 3)
    with pytest.raises(TypeError, match=r"reshape takes ints, not array\(\[2, 3\]\)"):
        tensor.reshape(np.array([2, 3]))
    with pytest.raises(TypeError, match="reshape takes ints, not True"):
        tensor.reshape(True, 6)
    with pytest.raises(ValueError, match="reshape: -2 is no extent; -1 stands for what is left"):
        tensor.reshape(-2, 3)
    for dtype in (tk.int32, "int32", np.int32):
        with pytest.raises(TypeError, match=r"is no extent; reinterpret\(dtype\) gives the same memory another dtype"):
            tensor.view(dtype)


def test_a_view_of_memory_that_is_not_there():
    with pytest.raises(TypeError, match=r"Tensor\(shape=\(3,\), dtype=float32, device=meta\) has no memory to view"):
        api.meta(3).host_view()


def test_what_reinterpret_refuses():
    tensor = api.meta((4, 6), tk.float32)
    assert (tensor.reinterpret(tk.uint8).shape, tensor.reinterpret("float64").strides) == ((4, 24), (3, 1))
    assert tensor[:, ::2].reinterpret(tk.int32).strides == (6, 2)
    cases = {
        r"its last dimension must be contiguous for elements of another size, and the stride is 2; make a dup": tensor[:, ::2],
        ".*and the stride is -1": tensor[:, ::-1],
        r"the 12 bytes of its last dimension are no multiple of 8; slice it": tensor[:, :3],
        r"a stride is no multiple of 8 bytes, so not every row begins on an element; make a dup\(\)": api.meta((4, 7))[:, :6],
        r"it begins 4 bytes into its memory, at an address that is no multiple of 8; make a dup\(\) first": tensor[:, 1:3],
        r"without dimensions, elements of 4 bytes cannot become some of 8; reshape\(1\) first": tensor[0, 0],
    }
    for words, view in cases.items():
        with pytest.raises(ValueError, match=rf"Tensor\(.*\) as float64: {words}"):
            view.reinterpret(tk.float64)
    with pytest.raises(TypeError, match="is not a dtype of tilekit"):
        tensor.reinterpret(np.complex64)


def test_what_python_cannot_do_with_a_tensor():
    for attempt in (np.asarray, list):
        with pytest.raises(TypeError, match=r"lives on a device.*\.numpy\(\)"):
            attempt(api.meta(3))
    with pytest.raises(TypeError, match="has no memory, so there is nothing to copy"):
        api.meta(3).to_host()
    for attempt in (bool, lambda x: x and x):
        with pytest.raises(TypeError, match=r"lives on a device.*\.numpy\(\)"):
            attempt(api.meta(3))
    with pytest.raises(TypeError, match=r"not written by assignment.*use tensor\[\.\.\.\]\.fill\(value\)"):
        api.meta(3)[0] = 1
    with pytest.raises(TypeError, match="a tensor of rank 0 has no length"):
        len(api.meta(()))


def test_what_copies_casts_and_fills_refuse(device):
    tensor = api.zeros((2, 3)).sync()
    with pytest.raises(ValueError, match=r"memcpy: float32 of shape \(2, 3\) into float32 of shape \(3, 2\)"):
        tensor.copy_into(tensor.T)
    with pytest.raises(ValueError, match=r"memcpy: float32 of shape \(2, 3\) into int32 of shape \(2, 3\)"):
        tensor.copy_into(tensor.reinterpret(tk.int32))
    with pytest.raises(TypeError, match="memcpy copies into a tensor that has memory, not Tensor"):
        tensor.copy_into(api.meta((2, 3)))
    with pytest.raises(TypeError, match="memcpy copies from a tensor that has memory, not Tensor"):
        api.meta((2, 3)).copy_into(tensor)
    with pytest.raises(TypeError, match=r"memcpy copies into a tensor that has memory, not \[1\]"):
        tensor.copy_into([1])
    with pytest.raises(TypeError, match="is not a dtype of tilekit"):
        tensor.astype("complex64")
    with pytest.raises(TypeError, match="astype converts a tensor that has memory, not Tensor"):
        api.meta(3).astype(tk.int8)
    with pytest.raises(TypeError, match=r"astype converts a tensor that has memory, not \[1\]"):
        api.convert([1], tk.int8)
    with pytest.raises(TypeError, match="has no memory, so there is nothing to fill"):
        api.meta(3).fill(0)
    with pytest.raises(TypeError, match="fill: the value is a scalar, not list"):
        tensor.fill([1])
    with pytest.raises(ValueError, match="fill: int8 does not hold 300"):
        api.zeros(3, tk.int8).sync().fill(300)


def test_copies_between_devices_are_asked_for(device):
    other = Device.of_driver(CpuDriver(1))
    there = api.zeros(3).on(other).sync()
    with pytest.raises(ValueError, match=r"memcpy: from .*cpu:1.* to .*; bring it there first, with source.to\(device\)"):
        there.copy_into(api.zeros(3).sync())
    assert there.to(device).sync().device is device


def test_casts_are_numpys(device):
    whole = np.array([-1.75, -0.5, 0.0, 0.5, 1.75, 100.6], np.float32)
    tensor = api.from_host(whole).sync()
    for dtype in (tk.int8, tk.int64, tk.bool_, tk.float64, tk.bfloat16, tk.float8_e4m3fn, tk.float32):
        made = tensor.astype(dtype).sync()
        assert (made.dtype, made.shape) == (dtype, (6,))
        assert made.storage is not tensor.storage, "a copy, also where the dtype stays"
        np.testing.assert_array_equal(made.to_host().sync(), whole.astype(dtype))
    wrapped = api.from_host(np.array([-1, 255, 256, 300])).astype(tk.uint8).to_host().sync()
    np.testing.assert_array_equal(wrapped, np.array([255, 255, 0, 44], np.uint8))


def test_without_dimensions_and_without_elements(device):
    scalar, nothing = api.full((), 2.5).sync(), api.zeros((0, 3)).sync()
    assert scalar.astype(tk.int32).to_host().sync() == 2
    assert scalar.dup().to_host().sync().shape == ()
    assert scalar[None, ..., None].fill(4).reshape(1).to_host().sync() == [4]
    assert scalar.reinterpret(tk.int32).to_host().sync() == 0x40800000
    assert scalar.copy_into(api.zeros(3).sync()[1]).to_host().sync() == 4
    for op in (nothing.astype(tk.int8), nothing.dup(), nothing.fill(1), nothing.copy_into(api.zeros((0, 3)).sync())):
        assert op.to_host().sync().shape == (0, 3)
    assert nothing[:, ::2].dup().sync().shape == (0, 2)
    assert nothing.reinterpret(tk.uint8).shape == (0, 12)


def test_ops_have_the_methods_of_their_tensors(device):
    op = api.arange(6, dtype=tk.float32).view(2, 3).permute(1, 0).dup().astype(tk.int16)
    np.testing.assert_array_equal(op.to_host().sync(), [[0, 3], [1, 4], [2, 5]])
    op = api.ones(4).astype("int8")
    assert (op.shape, op.dtype, op.sync().dtype) == ((4,), tk.int8, tk.int8)
    assert api.convert(api.ones(4), tk.int8).to_host().sync().dtype == tk.int8
    np.testing.assert_array_equal(api.ones(2).reinterpret(tk.uint32).to_host().sync(), [0x3F800000] * 2)
    with pytest.raises(TypeError, match="is not a dtype of tilekit"):
        tk.value(api.ones(2).sync()).astype("no dtype")


def test_views_share_memory_with_kernels_that_write_them(device):
    x = api.zeros((4, 12)).sync()
    x[::2].fill(1).sync()
    x[:, 3:10].fill(2).sync()
    x.T[0].copy_into(x[3, 3:7]).sync()
    expected = np.zeros((4, 12), np.float32)
    expected[::2] = 1
    expected[:, 3:10] = 2
    expected[3, 3:7] = expected.T[0]
    np.testing.assert_array_equal(x.to_host().sync(), expected)


def test_partitions():
    partition = api.meta((5, 6)).partition((2, 4))
    assert partition.grid == (3, 2)
    assert (partition.shape, partition.dtype, partition.tile_shape) == ((5, 6), tk.float32, (2, 4))
    assert partition.unpartition() is partition.tensor
    assert repr(partition) == "Tensor(shape=(5, 6), dtype=float32, device=meta).partition((2, 4))"
    with pytest.raises(ValueError, match="partitions have 1 to 4 dimensions"):
        api.meta((1,) * 5).partition((1,) * 5)


def test_spans_are_the_bytes_of_the_elements():
    tensor = api.meta((4, 4))
    assert tensor.span() == (0, 64)
    assert tensor[1:3, 1:3].span() == (20, 44)
    assert tensor[::-1].span() == (0, 64)
    assert tensor[:0].span() == (0, 0)
