"""Tensors as views: NumPy is the model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilekit as tk
from tilekit import api


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
    with pytest.raises(IndexError, match="too many indices"):
        api.meta(3)[0, 0]
    with pytest.raises(TypeError, match=r"tensors are indexed by ints, slices, None and \.\.\., not \[0\]"):
        api.meta(3)[[0]]


def test_what_python_cannot_do_with_a_tensor():
    for attempt in (np.asarray, list):
        with pytest.raises(TypeError, match=r"lives on a device.*\.to_host\(\)\.sync\(\)"):
            attempt(api.meta(3))
    with pytest.raises(TypeError, match="has no memory, so there is nothing to copy"):
        api.meta(3).to_host()


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
