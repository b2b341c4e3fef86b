"""Making tensors and copying them."""

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, dtypes


def host(op):
    return op.to_host().sync()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_zeros_ones_full(device, dtype):
    for made, expected in (
        (api.zeros((3, 5), dtype), np.zeros((3, 5), dtype)),
        (api.ones((3, 5), dtype), np.ones((3, 5), dtype)),
        (api.full((3, 5), 3, dtype), np.full((3, 5), 3, dtype)),
        (api.full(7, 1.5, dtype), np.full(7, 1.5).astype(dtype)),
    ):
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype), "known before it has run"
        actual = host(made)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


def test_float32_unless_said_otherwise(device):
    assert api.zeros(1).sync().dtype == tk.float32
    assert api.ones(1).sync().dtype == tk.float32
    assert api.full(1, 2).sync().dtype == tk.float32
    assert api.meta(1).dtype == tk.float32


@pytest.mark.parametrize(
    "arguments", [(5,), (2, 9), (9, 2, -3), (0,), (0.0, 1.0, 0.125), (3000,), (-5, 5000, 7), (2**40, 2**40 + 3)], ids=str
)
def test_arange(device, arguments):
    expected = np.arange(*arguments)
    actual = host(api.arange(*arguments))
    assert actual.dtype == (np.int64 if expected.dtype == np.int64 else np.float32)
    np.testing.assert_array_equal(actual, expected.astype(actual.dtype))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d != tk.bool_], ids=str)
def test_arange_in_a_dtype(device, dtype):
    np.testing.assert_array_equal(host(api.arange(100, dtype=dtype)), np.arange(100).astype(dtype))


@pytest.mark.parametrize("arguments", [(0.1, 0.9, 0.0003), (-1e3, 1e3, 0.7), (3.3, -2.0, -1e-3)], ids=str)
def test_arange_of_fractions_is_numpys_to_the_bit(device, arguments):
    np.testing.assert_array_equal(host(api.arange(*arguments, dtype=tk.float64)), np.arange(*arguments))


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 3, 50, 3000])
@pytest.mark.parametrize("ends", [(0, 1), (-1.7, 3.9), (5, -5), (2.5, 2.5), (1e-3, 1e30), (0.1, 99.9)], ids=str)
def test_linspace_is_numpys_to_the_bit(device, ends, num, endpoint):
    for dtype in (tk.float64, tk.float32, tk.float16):
        with np.errstate(over="ignore"):
            expected = np.linspace(*ends, num, endpoint=endpoint, dtype=dtype)
        made = api.linspace(*ends, num, endpoint, dtype)
        assert (made.shape, made.dtype) == (expected.shape, dtype), "known before it has run"
        np.testing.assert_array_equal(host(made), expected)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.kind in "iub" and not dtypes.is_float(d)], ids=str)
def test_linspace_of_integers_rounds_down(device, dtype):
    low = 0 if dtype.kind in "ub" else -9.5
    for num, endpoint in ((1, True), (20, True), (1500, False)):
        expected = np.linspace(low, 100.25, num, endpoint, dtype=dtype)
        np.testing.assert_array_equal(host(api.linspace(low, 100.25, num, endpoint, dtype)), expected)


def test_linspace_up_to_the_last_uint64(device):
    expected = np.linspace(0, 2.0**64, 8, endpoint=False, dtype=np.uint64)
    np.testing.assert_array_equal(host(api.linspace(0, 2**64, 8, endpoint=False, dtype=tk.uint64)), expected)


def test_linspace_is_float32_unless_said_otherwise(device):
    assert api.linspace(0, 1, 3).sync().dtype == tk.float32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1, -1), ValueError, "linspace: the number of samples, -1, must be non-negative"),
        ((0, 1, 2.5), TypeError, "linspace: num is an int, not 2.5"),
        ((0, 1j, 3), TypeError, "linspace: stop is a number, not complex"),
        (([0], 1, 3), TypeError, "linspace: start is a number, not list"),
        ((-0.5, 1, 3, True, tk.uint8), ValueError, "linspace: uint8 does not hold -0.5"),
        ((0, 300, 3, True, tk.uint8), ValueError, "linspace: uint8 does not hold 300.0"),
        ((0, float("nan"), 3, True, tk.int32), ValueError, "linspace: int32 does not hold nan"),
    ],
)  # fmt: skip
def test_linspace_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        api.linspace(*arguments)


DIAGONALS = [(3,), (0,), (4, 6), (6, 4), (5, 5, 2), (5, 3, -1), (3, 5, 4), (3, 5, 5), (5, 3, -5), (5, 3, -9), (40, 70, 3)]


@pytest.mark.parametrize("arguments", DIAGONALS, ids=str)
def test_eye(device, arguments):
    for dtype in (tk.float32, tk.int8, tk.bool_, tk.bfloat16):
        made = api.eye(*arguments, dtype=dtype)
        expected = np.eye(*arguments).astype(dtype)
        assert (made.shape, made.dtype) == (expected.shape, dtype), "known before it has run"
        np.testing.assert_array_equal(host(made), expected)


def test_eye_of_more_rows_than_a_tile_has_elements(device):
    np.testing.assert_array_equal(host(api.eye(3000, 5, -1000)), np.eye(3000, 5, -1000))
    np.testing.assert_array_equal(host(api.eye(1500, dtype=tk.int8)), np.eye(1500, dtype=np.int8))


def test_eye_refuses():
    with pytest.raises(ValueError, match=r"a shape has no negative extents, as -2 in \(3, -2\)"):
        api.eye(3, -2)
    with pytest.raises(TypeError, match="a shape is an int or a tuple of ints"):
        api.eye((2, 3))
    with pytest.raises(TypeError, match="eye: k is an int, not 0.5"):
        api.eye(3, k=0.5)


@pytest.mark.parametrize("shape", [(), (0,), 5, (3, 4), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_empty_has_a_shape_and_memory_to_write(device, shape, dtype):
    extents = shape if isinstance(shape, tuple) else (shape,)
    op = api.empty(shape, dtype)
    assert (op.shape, op.dtype) == (extents, dtype), "known before it has run"
    made = op.sync()
    assert (made.shape, made.dtype, made.is_meta) == (extents, dtype, False)
    written = api.memcpy(made, np.ones(extents, dtype)).sync()
    np.testing.assert_array_equal(host(written), np.ones(extents, dtype))


def test_each_empty_has_its_own_memory(device):
    first, second = api.empty(16).sync(), api.empty(16).sync()
    assert first.address != second.address


def test_empty_refuses():
    with pytest.raises(ValueError, match="a shape has no negative extents"):
        api.empty((2, -1))
    with pytest.raises(TypeError, match="is not a dtype of tilekit"):
        api.empty(2, "S5")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1, 0), ValueError, "arange: the step is zero"),
        (("a",), TypeError, "arange: stop is a number, not str"),
        ((None, 3), TypeError, "arange: start is a number, not NoneType"),
        ((0, 3, [1]), TypeError, "arange: step is a number, not list"),
        ((1j,), TypeError, "arange: stop is a number, not complex"),
        ((float("nan"),), ValueError, "arange: stop is nan, and must be finite"),
        ((float("inf"),), ValueError, "arange: stop is inf, and must be finite"),
        ((np.float32("-inf"), 3), ValueError, "arange: start is -inf, and must be finite"),
        ((0, 5, float("inf")), ValueError, "arange: step is inf, and must be finite"),
        ((-1e308, 1e308, 1e307), ValueError, r"arange: from -1e\+308 to 1e\+308 in steps of 1e\+307 there are too many numbers"),
        ((0, 10**400, 1.5), ValueError, "arange: stop is an int of 1329 bits, which float64 does not hold"),
        ((10**400,), ValueError, "arange: int64 does not hold an int of 1329 bits"),
        ((2**63, 2**63 + 5), ValueError, "arange: int64 does not hold 9223372036854775808"),
        ((-2, 3, 1, tk.uint64), ValueError, "arange: uint64 does not hold -2"),
        ((0, 300, 1, tk.uint8), ValueError, "arange: uint8 does not hold 299"),
        ((0, 1000.0, 300, tk.int8), ValueError, "arange: int8 does not hold 900.0"),
        ((3, None, 1, "S3"), TypeError, "'S3' is not a dtype of tilekit"),
    ],
)
def test_arange_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        api.arange(*arguments)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (2**63, 2**63 + 5, 1),
        (2**63 - 3000, 2**63 + 3000, 1),
        (2**64 - 3, 2**64, 1),
        (2**64 - 1, 2**63 - 1, -(2**61)),
        (2**63 + 2000, 2**63 - 2000, -1),
        (0, 2**64, 2**53 + 1),
        (5, 6, 2**70),
        (3, -1, -1),
    ],
)
def test_arange_of_all_of_uint64(device, start, stop, step):
    made = host(api.arange(start, stop, step, tk.uint64))
    assert made.dtype == np.uint64
    assert made.tolist() == list(range(start, stop, step))


@pytest.mark.parametrize("bounds", [(-(2**63), -(2**63) + 3), (2**63 - 2, 2**63), (-(2**63), 2**63, 2**61), (0, -3, -(2**70))])
def test_arange_of_all_of_int64(device, bounds):
    assert host(api.arange(*bounds)).tolist() == list(range(*bounds))


def test_arange_of_large_ints_as_floats(device):
    for bounds in ((2**63, 2**63 + 2**14, 2**12), (-(2**70), 2**70, 2**68)):
        np.testing.assert_array_equal(host(api.arange(*bounds, dtype=tk.float64)), [float(n) for n in range(*bounds)])


def test_arange_rounds_to_float32_once(device):
    """As its docstring says: computed in float64, converted at the end."""
    made = host(api.arange(0.0, 1000.0, 0.1))
    assert made.dtype == np.float32
    np.testing.assert_array_equal(made, np.arange(0.0, 1000.0, 0.1).astype(np.float32))
    exact = np.arange(10_000) / 10
    assert np.abs(made - exact).max() < np.abs(np.arange(0.0, 1000.0, 0.1, dtype=np.float32) - exact).max()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_from_host_and_back(device, dtype):
    array = np.random.default_rng(0).integers(0, 2, (4, 3, 5)).astype(dtype)
    for given in (array, array[::2, ::-1], np.asfortranarray(array), array[0, 0, 0], array[:0]):
        actual = host(api.from_host(given))
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, given)


def test_from_host_is_a_copy(device):
    array = np.ones(4, np.float32)
    tensor = api.from_host(array).sync()
    array[:] = 7
    np.testing.assert_array_equal(host(tensor), np.ones(4))


def test_from_host_refuses_what_it_cannot_store():
    with pytest.raises(TypeError, match=r"dtype\('complex64'\) is not a dtype of tilekit; there are bool, int8"):
        api.from_host(np.zeros(3, np.complex64))
    with pytest.raises(TypeError, match="is not a dtype of tilekit"):
        api.from_host(["a"])


def test_dup_is_a_copy(device):
    x = api.arange(12).sync().reshape(3, 4)
    for view in (x, x[:, 1:3], x.permute(), x[1]):
        copy = api.dup(view).sync()
        assert copy.is_contiguous
        assert copy.storage is not x.storage
        np.testing.assert_array_equal(host(copy), host(view))
    np.testing.assert_array_equal(host(api.dup(api.ones(3))), np.ones(3))
    with pytest.raises(TypeError, match="dup copies a tensor that has memory"):
        api.dup(api.meta(3))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"a shape has no negative extents, as -1 in \(2, -1\)"):
        api.zeros((2, -1))
    with pytest.raises(TypeError, match="a shape is an int or a tuple of ints, not 2.5"):
        api.zeros(2.5)


def test_every_creation_runs_in_all_four_ways(device):
    def ops():
        return (
            api.zeros(3),
            api.ones(3),
            api.full(3, 2),
            api.arange(3),
            api.linspace(0, 1, 3),
            api.eye(3).reshape(9).map(lambda made: made[:3]),
            api.empty(3),
            api.from_host(np.ones(3)),
            api.dup(tensor),
            tensor.to_host(),
        )

    tensor = api.ones(3).sync()

    async def awaited():
        return [await op for op in ops()]

    with device.stream() as stream:
        for results in (
            [op.sync() for op in ops()],
            [op.sync_on(stream) for op in ops()],
            [op.async_on(stream).result() for op in ops()],
            asyncio.run(awaited()),
        ):
            assert [r.shape for r in results] == [(3,)] * 10


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, tk.int8),
        (-1, tk.uint8),
        (float("nan"), tk.int32),
        (float("inf"), tk.uint64),
        (2**40, tk.int32),
        (2**64, tk.uint64),
        (10**400, tk.int64),
        (10**400, tk.float64),
        (-(10**5000), tk.bfloat16),
    ],
    ids=[
        "300 int8",
        "-1 uint8",
        "nan int32",
        "inf uint64",
        "2**40 int32",
        "2**64 uint64",
        "huge int64",
        "huge float64",
        "huge bfloat16",
    ],
)
def test_full_refuses_what_the_dtype_cannot_hold(value, dtype):
    with pytest.raises(ValueError, match=f"full: {dtype.name} does not hold"):
        api.full(3, value, dtype)


@pytest.mark.parametrize("value", [[1, 2], None, "1", 1j, np.ones(2)], ids=str)
def test_full_takes_a_scalar(value):
    with pytest.raises(TypeError, match="full: the value is a scalar, not"):
        api.full(3, value)


def test_an_int_of_many_digits_is_not_spelled_out():
    with pytest.raises(ValueError, match="^full: float64 does not hold an int of 1329 bits$"):
        api.full(3, 10**400, tk.float64)
    with pytest.raises(ValueError, match="^fill: int8 does not hold a negative int of 1329 bits$"):
        api.zeros(3, tk.int8).sync().fill(-(10**400))
    with pytest.raises(ValueError, match="^linspace: stop is an int of 1329 bits, which float64 does not hold$"):
        api.linspace(0, 10**400, 5)


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_full_of_ints_that_no_int64_holds(device, dtype):
    for number in (2**70, -(2**90)):
        with np.errstate(over="ignore"):
            wanted = np.full(3, float(number)).astype(dtype)
        np.testing.assert_array_equal(host(api.full(3, number, dtype)), wanted)
    assert host(api.full(3, 10**400, tk.bool_)).all()


def test_memcpy_of_a_numpy_scalar(device):
    x = api.zeros(4).sync()
    assert api.memcpy(x[1], np.float32(3)).sync().shape == ()
    assert host(x).tolist() == [0, 3, 0, 0]
    with pytest.raises(
        ValueError, match=r"float64 of shape \(\) into float32 of shape \(\); copy between views of one shape, of"
    ):
        api.memcpy(x[1], np.float64(3))
    with pytest.raises(TypeError, match=r"memcpy .* not float; target.fill\(value\) sets all elements to one value"):
        api.memcpy(x[1], 3.0)
    with pytest.raises(ValueError, match=r"memcpy: >f4 of shape \(4,\) into float32 of shape \(4,\)"):
        api.memcpy(x, np.zeros(4, ">f4"))
    with pytest.raises(ValueError, match=r"to_host: float32 of shape \(4,\) does not fit out, >f4 of shape \(4,\)"):
        x.to_host(np.zeros(4, ">f4"))
    with pytest.raises(TypeError, match="memcpy copies from a tensor or a NumPy array, not list$"):
        api.memcpy(x, [1.0] * 4)
