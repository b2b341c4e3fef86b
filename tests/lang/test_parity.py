"""Every operation against NumPy, on the device under test. Both devices passing means that they agree."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from parity import FLOATS, INTEGERS, NUMBERS, SIGNED, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

N = 100  # ragged against tiles of 64


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """Overflow, NaN and division by zero are part of the tests."""
    with np.errstate(all="ignore"):
        yield


@tk.kernel
def add(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(y, z))


@tk.kernel
def subtract(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) - tk.load_tile_like(y, z))


@tk.kernel
def multiply(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) * tk.load_tile_like(y, z))


@tk.kernel
def divide(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.load_tile_like(x, z) / tk.load_tile_like(y, z))


@tk.kernel
def smaller(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.minimum(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))


@tk.kernel
def larger(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.maximum(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "reference"),
    [(add, np.add), (subtract, np.subtract), (multiply, np.multiply), (smaller, np.minimum), (larger, np.maximum)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_arithmetic(device, kernel, reference, dtype):
    x, y = sample(dtype), sample(dtype, 1)
    check(run(kernel, dtype, x, y), reference(x, y).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_of_floats(device, dtype):
    x, y = sample(dtype), sample(dtype, 1)
    check(run(divide, dtype, x, y), (x / y).astype(dtype), dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quotients_of_integers_are_float32(device, dtype):
    x, y = sample(dtype), sample(dtype, 1) | 1
    check(run(divide, tk.float32, x, y), x.astype(np.float32) / y.astype(np.float32), tk.float32)


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations(NUMBERS, 2)), ids=str)
def test_two_dtypes_meet_in_the_wider_or_are_refused(device, left, right):
    x, y = sample(left), sample(right, 1)
    try:
        common = dtypes.common_dtype(left, right)
    except TypeError:
        with pytest.raises(tk.CompileError, match=f"no common dtype of {left.name} and {right.name}"):
            run(add, left, x, y)
        return
    check(run(add, common, x, y), x.astype(common) + y.astype(common), common)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity_in_minimum_and_maximum(device, dtype):
    values = np.array([np.nan, -np.inf, -0.0, 1, np.inf], dtype)
    x, y = (np.array(v, dtype) for v in zip(*itertools.product(values, values)))
    for kernel, reference in ((smaller, np.minimum), (larger, np.maximum)):
        check(run(kernel, dtype, x, y, n=25), reference(x, y))


@pytest.mark.parametrize("dtype", [*NUMBERS, tk.bool_], ids=str)
def test_comparisons(device, dtype):
    @tk.kernel
    def compare(z: tk.Out, x: tk.In, y: tk.In, which: tk.Const):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        if which == 0:
            z.store(a < b)
        if which == 1:
            z.store(a <= b)
        if which == 2:
            z.store(a > b)
        if which == 3:
            z.store(a >= b)
        if which == 4:
            z.store(a == b)
        if which == 5:
            z.store(a != b)

    x, y = sample(dtype), sample(dtype, 1)
    y[::3] = x[::3]
    if dtypes.is_float(dtype):
        x[::7] = np.nan
    for which, reference in enumerate((np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)):
        check(run(compare, tk.bool_, x, y, which), reference(x, y))


@pytest.mark.parametrize("dtype", [tk.bool_, *INTEGERS], ids=str)
def test_bits(device, dtype):
    @tk.kernel
    def mix(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store((a & b) | (~a ^ b))

    x, y = sample(dtype), sample(dtype, 1)
    check(run(mix, dtype, x, y), (x & y) | (~x ^ y))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(device, dtype):
    """By distances of the width and more too, where NumPy shifts everything out."""

    @tk.kernel
    def left(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.load_tile_like(x, z) << tk.load_tile_like(y, z))

    @tk.kernel
    def right(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.load_tile_like(x, z) >> tk.load_tile_like(y, z))

    @tk.kernel
    def by_constants(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        t <<= 3
        z.store((t >> 1) | (1 << (t & 7)) | (t >> 100))

    x = np.random.default_rng(0).integers(0, 256, (N, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    y = np.arange(N).astype(dtype)
    check(run(left, dtype, x, y), x << y)
    check(run(right, dtype, x, y), x >> y)
    t, one = x << dtype.type(3), dtype.type(1)
    check(run(by_constants, dtype, x), (t >> one) | (one << (t & dtype.type(7))) | (t >> dtype.type(100)))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_upper_halves_of_products(device, dtype):
    @tk.kernel
    def upper(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.mulhi(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))

    limits = np.iinfo(dtype)
    x, y = np.random.default_rng(1).integers(0, 256, (2, N, dtype.itemsize), np.uint8).view(dtype).reshape(2, N)
    x[:4], y[:4] = [limits.min, limits.min, limits.max, limits.max], [limits.min, limits.max, limits.max, 1]
    expected = [int(a) * int(b) >> limits.bits for a, b in zip(x, y, strict=True)]
    check(run(upper, dtype, x, y), np.array(expected, dtype))

    @tk.kernel
    def by_a_constant(z: tk.Out, x: tk.In):
        z.store(tk.mulhi(100, tk.load_tile_like(x, z)))

    check(run(by_a_constant, dtype, x), np.array([100 * int(a) >> limits.bits for a in x], dtype))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_products_that_are_rounded_before_they_are_added(device, dtype):
    @tk.kernel
    def line(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store(tk.mul(a, b) - tk.mul(b, 3))

    x, y = sample(dtype), sample(dtype, 1)
    check(run(line, dtype, x, y), x * y - y * dtype.type(3))


SAME_SIZE = [pair for pair in itertools.product(NUMBERS, NUMBERS) if pair[0].itemsize == pair[1].itemsize]


@pytest.mark.parametrize(("source", "target"), SAME_SIZE, ids=str)
def test_bits_of_another_type(device, source, target):
    @tk.kernel
    def look(z: tk.Out, x: tk.In):
        z.store(tk.bitcast(tk.load_tile_like(x, z), z.dtype))

    x = sample(source)
    unsigned = f"u{target.itemsize}"
    check(run(look, target, x).view(unsigned), x.view(unsigned))


@pytest.mark.parametrize("dtype", [*SIGNED, *FLOATS], ids=str)
def test_negative_and_absolute(device, dtype):
    @tk.kernel
    def signs(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(-t + abs(t))

    x = sample(dtype)
    check(run(signs, dtype, x), -x + np.abs(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_square_roots_are_correctly_rounded(device, dtype):
    @tk.kernel
    def root(z: tk.Out, x: tk.In):
        z.store(tk.sqrt(tk.load_tile_like(x, z)))

    check(run(root, dtype, sample(dtype)), np.sqrt(sample(dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exponentials(device, dtype):
    @tk.kernel
    def grow(z: tk.Out, x: tk.In):
        z.store(tk.exp(tk.load_tile_like(x, z)))

    x = sample(dtype)
    check(run(grow, dtype, x), np.exp(x), dtype)
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -200.0 if dtype != tk.float64 else -800.0], dtype)
    check(run(grow, dtype, ends, n=5), np.exp(ends), dtype)


# The four units in the last place that logarithms, sines and cosines may be off, and a rounding for 16 bits.
FOUR_UNITS = {tk.float16: 1e-3, tk.bfloat16: 8e-3, tk.float32: 4 * 2.0**-23, tk.float64: 4 * 2.0**-52}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_sines_and_cosines(device, dtype):
    @tk.kernel
    def logarithm(z: tk.Out, x: tk.In):
        z.store(tk.log(tk.load_tile_like(x, z)))

    @tk.kernel
    def sine(z: tk.Out, x: tk.In):
        z.store(tk.sin(tk.load_tile_like(x, z)))

    @tk.kernel
    def cosine(z: tk.Out, x: tk.In):
        z.store(tk.cos(tk.load_tile_like(x, z)))

    x = sample(dtype)
    ends = np.array([np.inf, -np.inf, np.nan, 0.0, -1.0], dtype)
    for kernel, reference in ((logarithm, np.log), (sine, np.sin), (cosine, np.cos)):
        given = np.abs(x) + dtype.type(0.01) if reference is np.log else x
        exact = reference(given.astype(np.float64))
        actual = run(kernel, dtype, given)
        assert actual.dtype == dtype
        np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=FOUR_UNITS[dtype], atol=1e-30)
        check(run(kernel, dtype, ends, n=5), reference(ends), dtype)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
@pytest.mark.parametrize("target", dtypes.ALL, ids=str)
def test_casts(device, source, target):
    @tk.kernel
    def cast(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z).astype(z.dtype))

    x = sample(source)
    if dtypes.is_float(source) and target.kind == "u":
        x = np.abs(x)  # what a negative float becomes as an unsigned integer is not defined
    check(run(cast, target, x), x.astype(target))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d not in dtypes.EIGHT_BIT_FLOATS], ids=str)
def test_choosing(device, dtype):
    @tk.kernel
    def choose(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store(tk.where(a > b, a, b))

    x, y = sample(dtype), sample(dtype, 1)
    check(run(choose, dtype, x, y), np.where(x > y, x, y))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scalars_take_the_dtype_of_the_tile(device, dtype):
    @tk.kernel
    def affine(z: tk.Out, x: tk.In, a, b):
        z.store(a * tk.load_tile_like(x, z) + b)

    x = sample(dtype)
    check(run(affine, dtype, x, 2, 3), x * dtype.type(2) + dtype.type(3), dtype)


def test_a_float_makes_an_integer_tile_float32(device):
    @tk.kernel
    def half(z: tk.Out, x: tk.In):
        z.store(0.5 * tk.load_tile_like(x, z))

    x = sample(tk.int32)
    check(run(half, tk.float32, x), np.float32(0.5) * x.astype(np.float32))


def test_made_of_nothing(device):
    @tk.kernel
    def make(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, value):
        a.store(tk.zeros(a.tile_shape))
        b.store(tk.ones(b.tile_shape, tk.int16))
        c.store(tk.full(c.tile_shape, value, dtype=tk.float64))
        d.store(tk.arange(8, dtype=tk.int64, start=8 * tk.bid(0), step=2))

    parts = [api.full(16, 9, dtype).partition(8) for dtype in (tk.float32, tk.int16, tk.float64, tk.int64)]
    a, b, c, d, _ = make(*parts, 2.5).sync()
    check(a.unpartition().to_host().sync(), np.zeros(16, np.float32))
    check(b.unpartition().to_host().sync(), np.ones(16, np.int16))
    check(c.unpartition().to_host().sync(), np.full(16, 2.5))
    check(d.unpartition().to_host().sync(), np.array([*range(0, 16, 2), *range(8, 24, 2)]))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_ranges(device, dtype):
    @tk.kernel
    def count(z: tk.Out, dtype: tk.Const):
        z.store(tk.arange(64, dtype=dtype, start=3, step=1))

    check(run(count, dtype, dtype, n=64), np.arange(3, 67).astype(dtype))


def test_where_a_block_is(device):
    @tk.kernel
    def place(z: tk.Out):
        z.store(tk.full(z.tile_shape, tk.bid(0) + 10 * tk.bid(1) + 100 * tk.bid(2) + 1000 * tk.num_blocks(1)))

    z = place(api.zeros((2, 3, 4), tk.int32).partition((1, 1, 1))).first().unpartition().to_host().sync()
    i, j, k = np.indices((2, 3, 4))
    np.testing.assert_array_equal(z, 3000 + i + 10 * j + 100 * k)


@pytest.mark.parametrize(
    ("mode", "value"), [("zero", 0.0), ("neg_zero", -0.0), ("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf)]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_padding(device, dtype, mode, value):
    @tk.kernel
    def pad(z: tk.Out, x: tk.In, mode: tk.Const):
        z.store(tk.load(x, tk.bid(0), 8, padding_mode=mode))

    x = sample(dtype, n=5)
    actual = run(pad, dtype, x, mode, n=8, tile=8)
    check(actual, np.concatenate([x, np.full(3, value, dtype)]))
    np.testing.assert_array_equal(np.signbit(actual[5:]), np.signbit(np.full(3, value, dtype)))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_tiles_by_index(device, dtype):
    @tk.kernel
    def reverse(z: tk.Out, x: tk.In):
        tk.store(z, tk.num_blocks(0) - 1 - tk.bid(0), tk.load(x, (tk.bid(0),), (16,)))

    x = sample(dtype, n=64)
    check(run(reverse, dtype, x, n=64, tile=16), x.reshape(4, 16)[::-1].reshape(-1))


def test_a_scalar_is_stored_everywhere(device):
    @tk.kernel
    def clear(z: tk.Out):
        z.store(7)

    check(run(clear, tk.float16, n=10, tile=4), np.full(10, 7, np.float16))


def test_what_a_kernel_knows_of_its_tiles(device):
    @tk.kernel
    def facts(z: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (2, 4))
        sizes = t.shape[0] * 1000 + t.shape[1] * 100 + t.ndim * 10 + x.ndim
        z.store(tk.full(z.tile_shape, sizes + 10000 * x.shape[0] + 100000 * x.shape[1], z.dtype))

    assert run(facts, tk.int32, np.zeros((3, 5), np.float32), n=1, tile=1)[0] == 532422


def test_printing_a_tile(device, capfd):
    @tk.kernel
    def show(x: tk.In):
        tk.print("x", tk.load(x, (0, 0), (1, 2)))

    show(api.from_host(np.array([[1.5, -2.0]], np.float32))).grid(1).sync()
    device.synchronize()
    assert sorted(capfd.readouterr().out.splitlines()) == ["x [0, 0] 1.5", "x [0, 1] -2"]


def test_bfloat16_is_the_dtype_of_ml_dtypes():
    assert tk.bfloat16 == np.dtype(ml_dtypes.bfloat16)


def test_astype_as_a_function(device):
    @tk.kernel
    def cut(z: tk.Out, x: tk.In):
        z.store(tk.astype(tk.load_tile_like(x, z), tk.int32))

    x = sample(tk.float32)
    check(run(cut, tk.int32, x), x.astype(np.int32))
