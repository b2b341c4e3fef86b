"""Views of every kind against NumPy's, on the device under test, and what uses them: copies, fills, casts, kernels.

TILEKIT_PROPERTY_CASES says how many cases each property is tried on (200 if it is not set); they are the same in every run.
"""

import functools
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tilekit as tk
from tilekit import api, dtypes
from tilekit.launch import copying

CASES = int(os.environ.get("TILEKIT_PROPERTY_CASES", "200"))
cases = settings(
    max_examples=CASES,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)

# On a GPU every combination of extents, strides and alignment (what divides them, that is) is a kernel to compile: odd numbers
# keep them few.
SHAPES = [(), (0,), (1,), (37,), (3, 0), (9, 7), (5, 1, 7), (3, 5, 7), (3, 5, 3, 7)]


@functools.cache
def numbers(shape, dtype=tk.int32):
    """Elements that all differ, where the dtype has as many."""
    return np.arange(np.prod(shape, dtype=int)).astype(np.uint8 if dtype.itemsize == 1 else dtype).view(dtype).reshape(shape)


def host(tensor):
    return tensor.to_host().sync()


def same(actual, expected):
    """The same bytes, shape and dtype."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def same_view(tensor, array, base):
    """All that can be asked of a view, and its elements, which the device reads."""
    assert (tensor.shape, tensor.dtype, tensor.ndim) == (array.shape, array.dtype, array.ndim)
    assert (tensor.size, tensor.nbytes, tensor.itemsize) == (array.size, array.nbytes, array.itemsize)
    assert tensor.is_contiguous == array.flags.c_contiguous
    if array.size:
        steps = zip(array.shape, tensor.strides, array.strides, strict=True)
        assert all(n == 1 or ours * array.itemsize == theirs for n, ours, theirs in steps)
        assert tensor.offset * array.itemsize == array.ctypes.data - base.ctypes.data
        low, high = np.lib.array_utils.byte_bounds(array)
        assert tensor.span() == (low - base.ctypes.data, high - base.ctypes.data)
    same(host(tensor), np.ascontiguousarray(array).reshape(array.shape))


# Steps, mostly odd, see SHAPES.
STEPS = st.sampled_from([None, None, 1, 3, -1, -3, 5, -7, 2, -2])


@st.composite
def keys(draw, shape):
    """An index that gives a view: with ints, slices of any step, None and an ellipsis, which may stand for any dimensions."""
    parts = []
    for n in shape:
        bound = st.none() | st.integers(-n - 2, n + 2)
        part = draw(st.builds(slice, bound, bound, STEPS) | (st.integers(-n, n - 1) if n else st.nothing()))
        parts.append(draw(st.sampled_from([part, part, part, slice(None)])))
        if draw(st.integers(0, 5)) == 0:
            parts.append(None)
    if draw(st.booleans()):
        while parts and parts[-1] == slice(None):
            parts.pop()
        return (*parts, ...)  # without one NumPy may read an element
    return (..., *parts)


@st.composite
def reshapes(draw, size):
    """A shape of so many elements, with a -1 now and then."""
    shape, left = [], size
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0] or [0]))
        shape.append(n)
        left //= max(n, 1)
    shape.append(left)
    if draw(st.booleans()) and 0 not in shape:
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return tuple(shape)


@st.composite
def views(draw, tensor, array, steps=2):
    """A view of `tensor`, and NumPy's of `array`, by one or two of indexing, permuting and reshaping."""
    for _ in range(draw(st.integers(1, steps))):
        kind = draw(st.sampled_from(["index", "permute", "reshape"]))
        if kind == "index":
            key = draw(keys(array.shape))
            tensor, array = tensor[key], array[key]
        elif kind == "permute":
            axes = draw(st.permutations(range(array.ndim)))
            tensor, array = tensor.permute(axes), array.transpose(axes)
        else:
            shape = draw(reshapes(array.size))
            try:
                array = array.reshape(shape, copy=False)
            except ValueError:
                with pytest.raises(ValueError, match=r"has no view of shape .*; make a dup\(\) first"):
                    tensor.reshape(shape)
                continue
            tensor = tensor.view(shape)
    return tensor, array


@st.composite
def embedded(draw, shape, dims=4):
    """A shape of a tensor, and a key that gives a view of `shape` in it, with gaps in the last `dims` dimensions."""
    outer, key = [], []
    for left, n in enumerate(shape, dims - len(shape)):
        step = draw(st.sampled_from([1, 1, 1, 3, -1])) if left >= 0 else 1
        before, after = draw(st.sampled_from([(0, 0), (0, 0), (2, 0), (0, 3), (2, 3)])) if left >= 0 else (0, 0)
        span = (n - 1) * abs(step) + 1 if n else 0
        outer.append(before + span + after)
        inside = slice(before, before + span, step)
        if step < 0:
            inside = slice(before + span - 1, before - 1 if before else None, step) if n else slice(0, 0)
        key.append(inside)
    return tuple(outer), (*key, ...)


@st.composite
def shapes(draw):
    return draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).filter(lambda s: np.prod(s) < 400))


@cases
@given(st.data())
def test_slices(device, data):
    base = numbers(data.draw(st.sampled_from(SHAPES)))
    key = data.draw(keys(base.shape))
    same_view(api.from_host(base).sync()[key], base[key], base)


@cases
@given(st.data())
def test_permutations(device, data):
    base = numbers(data.draw(st.sampled_from(SHAPES)))
    key = data.draw(keys(base.shape))
    tensor, array = api.from_host(base).sync()[key], base[key]
    axes = data.draw(st.permutations(range(array.ndim)))
    same_view(tensor.transpose(axes), array.transpose(axes), base)
    same_view(tensor.permute(*axes) if axes else tensor.T, array.transpose(axes), base)
    same_view(tensor.T, array.T, base)


@cases
@given(st.data())
def test_reshapes(device, data):
    base = numbers(data.draw(st.sampled_from(SHAPES)))
    shape = data.draw(reshapes(base.size))
    tensor = api.from_host(base).sync()
    same_view(tensor.reshape(shape), base.reshape(shape), base)
    if shape:
        same_view(tensor.reshape(*shape), base.reshape(shape), base)


@cases
@given(st.data())
def test_views_of_views(device, data):
    base = numbers(data.draw(st.sampled_from(SHAPES)))
    tensor, array = data.draw(views(api.from_host(base).sync(), base, steps=4))
    same_view(tensor, array, base)


@cases
@given(st.data())
def test_bits_as_another_dtype(device, data):
    kinds = st.sampled_from([tk.uint8, tk.float16, tk.int32, tk.float64, tk.bfloat16, tk.float8_e5m2, tk.bool_])
    source, target = data.draw(kinds), data.draw(kinds)
    base = np.arange(3 * 4 * 24, dtype=np.uint8).view(source).reshape(3, 4, -1)
    tensor, array = data.draw(views(api.from_host(base).sync(), base))
    try:
        expected = array.view(target)
    except ValueError:
        with pytest.raises(ValueError, match=f"as {target.name}: "):
            tensor.reinterpret(target)
        return
    aligned = all(n == 1 or s % target.itemsize == 0 for n, s in zip(expected.shape, expected.strides, strict=True))
    aligned = aligned and (array.ctypes.data - base.ctypes.data) % target.itemsize == 0
    if expected.size and not aligned:  # NumPy reads elements from anywhere, a GPU does not
        with pytest.raises(ValueError, match=f"as {target.name}: .*is no multiple of .*; make a dup"):
            tensor.reinterpret(target)
        return
    same_view(tensor.reinterpret(target), expected, base)


@cases
@given(st.data())
def test_dups_are_contiguous_and_new(device, data):
    base = numbers(data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from([tk.int32, tk.bool_])))
    tensor, array = data.draw(views(api.from_host(base).sync(), base))
    made = tensor.dup().sync()
    assert made.is_contiguous
    assert made.storage is not tensor.storage
    same(host(made), np.ascontiguousarray(array).reshape(array.shape))


@cases
@given(st.data())
def test_copies_from_view_to_view(device, data):
    shape = data.draw(shapes())
    (left, key), (right, other) = data.draw(embedded(shape)), data.draw(embedded(shape))
    axes = data.draw(st.permutations(range(len(shape))))
    back = np.argsort(axes).astype(int)
    source, expected = numbers(left)[key].transpose(axes), np.array(-1 - numbers(right))
    target = api.from_host(expected).sync()
    from_, to = api.from_host(numbers(left)).sync()[key].permute(axes), target[other].permute(axes)
    expected[other].transpose(axes)[...] = source
    assert from_.copy_into(to).sync() is to
    same(host(target), expected)
    assert to.permute(tuple(back)).shape == shape


@cases
@given(st.data())
def test_copies_within_one_tensor(device, data):
    base = numbers(data.draw(st.sampled_from([(37,), (9, 7)]))).copy()
    n = [data.draw(st.integers(0, extent)) for extent in base.shape]
    keys = []
    for _ in range(2):
        key = []
        for extent, count in zip(base.shape, n, strict=True):
            step = data.draw(st.sampled_from([1, 2, 3])) if count else 1
            step = step if (count - 1) * step < extent else 1
            first = data.draw(st.integers(0, extent - ((count - 1) * step + 1 if count else 0)))
            key.append(slice(first, first + count * step, step))
        keys.append(tuple(key))
    tensor = api.from_host(base).sync()
    base[keys[0]] = base[keys[1]].copy()
    tensor[keys[1]].copy_into(tensor[keys[0]]).sync()
    same(host(tensor), base)


@cases
@given(st.data())
def test_fills(device, data):
    values = [(tk.int32, -7), (tk.int32, 0), (tk.float64, 0.1), (tk.bool_, True), (tk.bfloat16, 1.5), (tk.float8_e4m3fn, -3)]
    dtype, value = data.draw(st.sampled_from(values))
    base = numbers(data.draw(st.sampled_from(SHAPES)), dtype).copy()
    whole = api.from_host(base).sync()
    tensor, array = data.draw(views(whole, base))
    array[...] = value
    assert tensor.fill(value).sync() is tensor
    same(host(whole), base)


def sample(dtype, n):
    """Numbers that every other dtype holds, up to rounding: what others become depends on the machine."""
    values = np.random.default_rng(5).integers(-400, 400, n) / 8
    if dtype == tk.bool_:
        return values > 0
    if dtype.kind == "u":
        values = np.abs(values)
    return values.astype(dtype)


@cases
@given(st.data())
def test_casts(device, data):
    source, target = (data.draw(st.sampled_from(dtypes.ALL)) for _ in "12")
    base = sample(source, 105)
    if target.kind == "u" and source.kind != "u":
        base = np.abs(base.astype(np.float32)).astype(source)
    tensor = api.from_host(base).sync()
    if source in (tk.float32, tk.int8) and target in (tk.bfloat16, tk.int32):
        tensor, base = data.draw(views(tensor.reshape(3, 5, 7), base.reshape(3, 5, 7)))
    made = tensor.astype(target).sync()
    assert made.is_contiguous
    assert made.storage is not tensor.storage
    with np.errstate(all="ignore"):
        same(host(made), np.ascontiguousarray(base).reshape(base.shape).astype(target))


@tk.kernel
def accumulate(y: tk.InOut, x: tk.In):
    y.store(2 * y.load() + tk.load_tile_like(x, y))


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@cases
@given(st.data())
def test_kernels_on_views(device, data):
    """What a kernel reads and writes of a view, and that it leaves the rest of the memory alone."""
    shape = data.draw(st.sampled_from([(0,), (5,), (30,), (1, 7), (6, 5), (3, 0), (3, 5, 7), (2, 3, 2, 5)]))
    (left, key), (right, other) = (data.draw(embedded(shape, 2 if len(shape) < 3 else 1)) for _ in "12")
    tile = {1: 8, 2: (4, 4), 3: (2, 2, 4), 4: (1, 2, 2, 4)}[len(shape)]
    x, y = numbers(left, tk.float32), numbers(right, tk.float32) + 1000
    target = api.from_host(y).sync()
    accumulate(target[other].partition(tile), api.from_host(x).sync()[key]).sync()
    y[other] = 2 * y[other] + x[key]
    same(host(target), y)


@cases
@given(st.data())
def test_overlap_with_what_is_written(device, data):
    """Refused if a byte is shared, unless the views are the same; run, and right, if none is."""
    base = numbers((37,), tk.int64).copy()
    tensor, n = api.from_host(base).sync(), data.draw(st.sampled_from([1, 3, 7, 8]))
    views = []
    for _ in "12":
        step = data.draw(st.sampled_from([1, 2, 3]))
        first = data.draw(st.integers(0, 37 - ((n - 1) * step + 1)))
        views.append(slice(first, first + (n - 1) * step + 1, step))
    (out, into), (read, of) = ((tensor[v], base[v]) for v in views)
    if np.shares_memory(into, of) and (out.offset, out.strides) != (read.offset, read.strides):
        assume(n > 1 or out.offset != read.offset)
        with pytest.raises(ValueError, match=r"arguments y and x overlap in memory, and y is written; .*dup\(\)"):
            copy(out.partition(8), read).sync()
    else:
        copy(out.partition(8), read).sync()
        into[...] = of
    same(host(tensor), base)


# Views with more elements than those for which one kernel serves all: these get tiles, vectors and alignment of their own.
LARGE = {
    "a row": lambda x: x[1:2],
    "rows": lambda x: x[1:, 3:],
    "aligned rows": lambda x: x[:, 8:504],
    "few columns": lambda x: x.reshape(-1, 7)[:, 2:5],
    "every third": lambda x: x.reshape(-1)[1::3],
    "backwards": lambda x: x[:, ::-1],
    "both backwards": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T,
    "transposed, few rows": lambda x: x.reshape(-1, 3).T,
    "transposed, few columns": lambda x: x.reshape(3, -1).T,
    "three dimensions": lambda x: x.reshape(-1, 7, 512)[1:, :, :500],
    "three, turned": lambda x: x.reshape(21, -1, 8).transpose(1, 2, 0)[3:],
    "four dimensions": lambda x: x.reshape(3, 7, -1, 8)[:, 1:, ::2, :7].transpose(2, 0, 3, 1),
}


@pytest.mark.parametrize("dtype", [tk.uint8, tk.float32, tk.float64], ids=str)
@pytest.mark.parametrize("view", LARGE)
@pytest.mark.parametrize("small", [1 << 15, 0], ids=["", "no size is small"])
def test_large_views(device, monkeypatch, view, dtype, small):
    monkeypatch.setattr("tilekit.launch.copying._SMALL", small)
    base = numbers((84, 512), dtype).copy()
    whole = api.from_host(base).sync()
    tensor, array = LARGE[view](whole), LARGE[view](base)
    same(host(tensor), np.ascontiguousarray(array))
    np.testing.assert_array_equal(host(tensor.astype(tk.int32)), array.astype(np.int32))
    target, expected = api.zeros(base.shape, dtype).sync(), np.zeros_like(base)
    tensor.copy_into(LARGE[view](target)).sync()
    LARGE[view](expected)[...] = array
    same(host(target), expected)
    dense = api.from_host(np.ascontiguousarray(array)).sync()
    LARGE[view](target).fill(3).sync()
    LARGE[view](expected)[...] = 3
    same(host(target), expected)
    assert host(tensor.fill(0)).max() == 0
    dense.copy_into(tensor).sync()
    same(host(whole), base)


def test_more_blocks_than_cuda_launches_along_an_axis():
    # Two rows, apart from each other, in 65,546 tiles each: they go along the first axis, where there may be as many.
    tile, (target,) = copying._joined(api.meta((2, 65546 * 1024 + 8), tk.uint8)[:, 4:-4])
    assert target.partition(tile).grid == (65546, 2)
    assert target.strides == (1, 65546 * 1024 + 8)


def test_a_copy_in_too_many_dimensions_is_refused():
    view = api.meta((2, 2, 2, 2, 4))[:, :, :, :, ::2]
    assert copying.fewest_dims([view])[0] == [(32, [2])]
    view = api.meta((3,) * 6)[::2, ::2, ::2, ::2, ::2]
    with pytest.raises(ValueError, match=r"lie in more than 4 dimensions that cannot be joined; take a part at a time"):
        copying.fill(view, np.zeros((), np.float32))


def test_strides_below_zero_reach_a_gpu_in_64_bits():
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    x, y = api.meta((64, 64)), api.meta((64, 64))
    made = copy(y[::-1, ::-1].partition((8, 8)), x[:, ::-1]).compile(target="sm_90a")
    # An address, two extents and two strides each, the strides signed: none is 1, and none is assumed to be.
    assert made.param_format == "<" + 2 * "Qi4xi4xqq"
    assert y[::-1, ::-1].flat[3:] == (-64, -1)
    assert x[::-1].flat[3:] == (-64,)
