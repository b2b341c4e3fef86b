"""Arrays of other libraries as arguments, tensors that the launch cuts, and results without ceremony."""

from __future__ import annotations

import numpy as np
import pytest
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api, kernels

N = 100


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def twice_and_thrice(y: tk.Out[16], z: tk.Out[16], x: tk.In):
    t = tk.load_tile_like(x, y)
    y.store(2 * t)
    z.store(3 * t)


@tk.kernel
def rows(sums: tk.Out, copy: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, copy)
    copy.store(t)
    sums.store(tk.sum(t, 1))


@tk.kernel
def spread(outs: tk.Out, x: tk.In):
    t = tk.load_tile_like(x, outs[0])
    outs[0].store(t)
    outs[1].store(-t)


class Shared:
    """An array of a library that exports by DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def numbers(n=N, dtype=np.float32):
    return np.arange(n).astype(dtype)


def test_a_launch_cuts_what_it_writes(device):
    y, x = api.ones(N).sync(), api.from_host(numbers()).sync()
    result = saxpy(y, 2.0, x).tile(16).sync()
    assert isinstance(result[0], tk.Partition) and result[0].tensor is y
    np.testing.assert_array_equal(y.numpy(), 2 * numbers() + 1)


def test_one_line_from_arrays_to_an_array(device):
    """With ops among the arguments: each of them is run by the launch."""
    found = saxpy(api.ones(N), 2.0, api.from_host(numbers())).tile(16).out().sync().numpy()
    np.testing.assert_array_equal(found, 2 * numbers() + 1)


def test_numpy_arrays_are_read_and_written_in_place(cpu):
    y, x = np.ones(N, np.float32), numbers()
    saxpy(y, 2.0, x).tile(16).sync()
    np.testing.assert_array_equal(y, 2 * x + 1)
    backwards = np.ones(2 * N)[::-2]
    saxpy(backwards, 1.0, numbers(dtype=np.float64)).tile(y=16).sync()
    np.testing.assert_array_equal(backwards, numbers() + 1)
    saxpy(Shared(y), 1.0, Shared(x)).tile(16).sync()
    np.testing.assert_array_equal(y, 3 * x + 1)


def test_views_of_one_array_keep_their_order(cpu):
    """The storage is one, so a launch waits for what wrote the other view."""
    whole = np.zeros(2 * N, np.float32)
    first = saxpy(whole[:N], 1.0, np.ones(N, np.float32)).tile(16).async_on(cpu.stream())
    second = saxpy(whole[N:], 1.0, whole[:N]).tile(16).async_on(cpu.stream())
    first.result()
    second.result()
    np.testing.assert_array_equal(whole, 1)


def test_arrays_are_on_the_device_of_the_other_arguments(cpu):
    y = api.ones(N).sync()
    with fake_device() as (gpu, _):
        assert tk.default_device() is gpu
        saxpy(y.partition(16), 2.0, numbers()).sync()
    np.testing.assert_array_equal(y.numpy(), 2 * numbers() + 1)


def test_a_parameter_says_how_it_is_cut(device):
    x = api.from_host(numbers()).sync()
    y, z = twice_and_thrice(api.empty(N).sync(), api.empty(N), x).out().sync()
    np.testing.assert_array_equal(y.numpy(), 2 * numbers())
    np.testing.assert_array_equal(z.numpy(), 3 * numbers())


def test_each_parameter_may_be_cut_in_its_own_way(device):
    x = api.from_host(numbers(64).reshape(8, 8)).sync()
    sums, copy = rows(api.zeros(8), api.zeros((8, 8)), x).tile(sums=2, copy=(2, 8)).out().sync()
    np.testing.assert_array_equal(sums.numpy(), numbers(64).reshape(8, 8).sum(1))
    np.testing.assert_array_equal(copy.numpy(), numbers(64).reshape(8, 8))


def test_tensors_in_tuples_are_cut_too(device):
    x = api.from_host(numbers()).sync()
    same, negative = spread((api.empty(N).sync(), api.empty(N).sync()), x).tile(16).out().sync()
    np.testing.assert_array_equal(same.numpy(), -negative.numpy())


def test_what_a_launch_writes_is_known_before(device):
    op = saxpy(api.ones(N).sync(), 1.0, api.ones(N)).tile(16).out()
    assert (op.shape, op.dtype) == ((N,), np.float32)
    assert op.to_host().sync().tolist() == [2.0] * N


def test_a_chain_of_launches_has_what_its_last_wrote(device):
    x = api.ones(N).sync()
    chain = saxpy(api.zeros(N), 2.0, x).tile(16).apply(lambda y, a, x: saxpy(y, 3.0, x))
    assert chain.out().sync().numpy().tolist() == [5.0] * N


def test_what_is_cut_and_what_is_not(device):
    y = api.ones(N).sync()
    with pytest.raises(ValueError, match="kernel saxpy: tile: no argument is a tensor that is written and has no tiles yet"):
        saxpy(y.partition(16), 1.0, y).tile(16)
    with pytest.raises(TypeError, match="kernel saxpy: tile: y is a partition already"):
        saxpy(y.partition(16), 1.0, y).tile(y=16)
    with pytest.raises(TypeError, match="kernel saxpy: tile: no parameter is called z; it has y, a, x"):
        saxpy(y, 1.0, y).tile(z=16)
    with pytest.raises(TypeError, match=r"kernel saxpy: tile: a is no tensor but 1\.0"):
        saxpy(y, 1.0, y).tile(a=16)
    with pytest.raises(ValueError, match="every extent of a tile is a power of two; 100 in"):
        saxpy(y, 1.0, y).tile(100)
    with pytest.raises(ValueError, match=r"a tensor of shape \(100,\) has 1 dimensions; tiles of shape \(4, 4\) have 2"):
        saxpy(y, 1.0, y).tile((4, 4))

    @tk.kernel
    def nothing(x: tk.In):
        tk.static_assert(tk.load(x, (0,), (8,)).shape == (8,))

    with pytest.raises(TypeError, match="out: kernel nothing.* wrote nothing: its result has no partition, but is tuple"):
        nothing(y).grid(1).out().sync()


def test_arrays_that_no_kernel_takes_name_the_argument(cpu):
    y = np.ones(N, np.float32)
    y.flags.writeable = False
    with pytest.raises(Exception, match="read-only|is read only|cannot be written|the NumPy array is"):
        saxpy(y, 1.0, np.ones(N, np.float32)).tile(16).sync()
    with pytest.raises(TypeError, match="kernel saxpy, argument x: .*complex64.* is not a dtype of tilekit"):
        saxpy(api.ones(N), 1.0, np.ones(N, np.complex64))
    with pytest.raises(TypeError, match="kernel saxpy, argument x: .*mask"):
        saxpy(api.ones(N), 1.0, np.ma.masked_array(np.ones(N), np.ones(N) > 0))
    with pytest.raises(TypeError, match="argument x: declared In, so it takes a tensor, not list"):
        saxpy(api.ones(N), 1.0, [1.0] * N)


def test_a_numpy_array_is_no_argument_of_a_gpu():
    x, wrong = (
        np.ones(N, np.float32),
        r"a NumPy array is in the host's memory, and this runs on .*; api\.from_host\(array\) copies",
    )
    with fake_device():
        with pytest.raises(TypeError, match=f"kernel saxpy, argument x: {wrong}"):
            saxpy(api.ones(N), 1.0, x)
        with pytest.raises(TypeError, match=f"softmax: {wrong}"):
            kernels.softmax(x)


def test_ready_made_kernels_and_functions_take_arrays(cpu):
    x = np.random.default_rng(1).standard_normal((4, N)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    out = np.empty_like(x)
    np.testing.assert_allclose(kernels.softmax(x).sync().numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    kernels.softmax(x, out=out).sync()
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(api.dup(x).sync().numpy(), x)
    np.testing.assert_array_equal(api.convert(x, tk.int32).sync().numpy(), x.astype(np.int32))
    api.memcpy(out, api.from_host(x)).sync()
    np.testing.assert_array_equal(out, x)


def test_elements_as_an_array_of_their_own(device):
    x = api.from_host(numbers(64).reshape(8, 8)).sync()
    found = x.T.numpy()
    np.testing.assert_array_equal(found, numbers(64).reshape(8, 8).T)
    found[:] = 0
    np.testing.assert_array_equal(x.partition((4, 4)).numpy(), numbers(64).reshape(8, 8))
    np.testing.assert_array_equal(x.partition((4, 4)).to_host().sync(), numbers(64).reshape(8, 8))
    with pytest.raises(TypeError, match="has no memory, so there is nothing to copy"):
        api.meta(3).numpy()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (np.zeros(4), "argument a: declared a scalar, so it takes a number, not a NumPy array of shape \\(4,\\)$"),
        (np.zeros(1), "not a NumPy array of shape \\(1,\\); .item\\(\\) is its number"),
        ("2", "so it takes a number, not str"),
    ],
)
def test_what_is_no_number(cpu, number, says):
    @tk.kernel
    def scaled(y: tk.Out, a: float):
        y.store(tk.zeros(y.tile_shape, y.dtype) + a)

    with pytest.raises(TypeError, match=says):
        scaled(api.zeros(8).sync().partition(8), number)
