"""Divisions, powers, the operators as functions, bits and tables, against NumPy."""

import itertools

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, NUMBERS, SIGNED, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

N = 200


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """Overflow, NaN and division by zero are part of the tests."""
    with np.errstate(all="ignore"):
        yield


def dividends(dtype):
    """All pairs of what divisions treat apart, then random ones."""
    if dtypes.is_float(dtype):
        values = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -7.0, np.inf, -np.inf, np.nan, 0.1], np.float64).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.max, limits.max - 1, limits.min // 2, 0, 1, 2, 3, 7, 8], object)
        values = np.array([v if v else 0 for v in values], dtype)
        if dtype.kind == "i":
            values[5:8] = [-1, -2, -3]
    x, y = (np.array(v, dtype) for v in zip(*itertools.product(values, values)))
    return np.concatenate([x, sample(dtype, 2)]), np.concatenate([y, sample(dtype, 3)])


@tk.kernel
def quotients(z: tk.Out, w: tk.Out, x: tk.In, y: tk.In, how: tk.Const):
    a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    if how == 0:
        z.store(a // b)
        w.store(a % b)
    if how == 1:
        z.store(tk.floordiv(a, b))
        w.store(tk.mod(a, b))
    if how == 2:
        q, r = tk.divmod(a, b)
        z.store(q)
        w.store(r)
    if how == 3:
        q, r = divmod(a, b)
        z.store(q)
        w.store(r)


@pytest.mark.parametrize("how", range(4))
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_floor_division(device, dtype, how):
    x, y = dividends(dtype)
    parts = [api.zeros(N, dtype).partition(64) for _ in range(2)]
    z, w, *_ = quotients(*parts, api.from_host(x), api.from_host(y), how).sync()
    check(z.unpartition().to_host().sync(), np.floor_divide(x, y))
    check(w.unpartition().to_host().sync(), np.remainder(x, y))


@tk.kernel
def with_nothing(z: tk.Out, w: tk.Out, x: tk.In, y: tk.In):
    a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
    z.store(a * 0.0 + b)
    w.store(b - a * tk.zeros(a.shape, a.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zero_times_what_is_infinite_or_no_number(device, dtype):
    x, y = dividends(dtype)
    parts = [api.zeros(N, dtype).partition(64) for _ in range(2)]
    z, w, *_ = with_nothing(*parts, api.from_host(x), api.from_host(y)).sync()
    for made, wanted in ((z, x * dtype.type(0) + y), (w, y - x * dtype.type(0))):
        check(made.unpartition().to_host().sync(), wanted)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_by_zero_are_zero(device, dtype):
    @tk.kernel
    def by_zero(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        none = t ^ t
        z.store((t // none) | (t % none) | tk.cdiv(t, 0))

    check(run(by_zero, dtype, sample(dtype)), np.zeros(100, dtype))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_division_by_constants(device, dtype):
    @tk.kernel
    def quotient(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(t // 8 + t // 7 + 100 // (t | 1))

    @tk.kernel
    def whole(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        t //= 8
        z.store(t + 100 // tk.maximum(t, 1))

    @tk.kernel
    def rest(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(t % 8 + t % 7 + 100 % tk.maximum(t, 1))

    x = sample(dtype)
    one = dtype.type(1)
    if not dtypes.is_float(dtype):
        expected = x // dtype.type(8) + x // dtype.type(7) + dtype.type(100) // (x | one)
        check(run(quotient, dtype, x), expected)
    eighth = x // dtype.type(8)
    check(run(whole, dtype, x), eighth + dtype.type(100) // np.maximum(eighth, one))
    check(run(rest, dtype, x), x % dtype.type(8) + x % dtype.type(7) + dtype.type(100) % np.maximum(x, one))


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_division_by_negative_constants(device, dtype):
    @tk.kernel
    def negative(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store((t // -4) ^ (t % -4) ^ (t // -1) ^ (t % -1))

    x = dividends(dtype)[0]
    four, one = dtype.type(-4), dtype.type(-1)
    check(run(negative, dtype, x, n=N), (x // four) ^ (x % four) ^ (x // one) ^ (x % one))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quotients_rounded_up(device, dtype):
    @tk.kernel
    def up(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.cdiv(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))

    x, y = dividends(dtype)
    expected = [-(-int(a) // int(b)) if b else 0 for a, b in zip(x, y, strict=True)]
    wrapped = np.array([v if v <= np.iinfo(dtype).max else np.iinfo(dtype).min for v in expected], dtype)
    check(run(up, dtype, x, y, n=N), wrapped)


def test_quotients_of_scalars_rounded_up(device):
    @tk.kernel
    def up(z: tk.Out, n):
        z.store(tk.zeros(tk.cdiv(127, 2), tk.int32) + tk.cdiv(n, 3) + tk.cdiv(-7, 2))

    check(run(up, tk.int32, 7, n=64), np.zeros(64, np.int32))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_integers(device, dtype):
    @tk.kernel
    def power(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.load_tile_like(x, z) ** tk.load_tile_like(y, z))

    @tk.kernel
    def by_constants(z: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(t**2 + t**3 + t**4 + t**5 + t**0 + 3 ** (t & 7))

    x, y = sample(dtype, 4), np.arange(100).astype(dtype)
    x[:5], y[:5] = 1, 5
    expected = np.power(x, y)
    if dtype.kind == "i":
        x[:10] = [0, 1, -1, -1, 2, -2, 3, 5, 1, -1]
        y[:10] = [-1, -1, -1, -2, -1, -3, -2, -5, -6, -7]
        expected[:10] = [0, 1, -1, 1, 0, 0, 0, 0, 1, -1]
    check(run(power, dtype, x, y), expected)
    n = dtype.type
    t = sample(dtype, 5)
    expected = t ** n(2) + t ** n(3) + t ** n(4) + t ** n(5) + t ** n(0) + n(3) ** (t & n(7))
    check(run(by_constants, dtype, t), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_power_of_one_half_is_no_root(device, dtype):
    """Of -inf and -0 C's pow is inf and 0, where a square root is NaN and -0."""

    @tk.kernel
    def root(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 0.5)

    found = run(root, dtype, np.array([-np.inf, -0.0, np.inf, 0.0], dtype), n=4, tile=4).astype(np.float64)
    assert found.tolist() == [np.inf, 0.0, np.inf, 0.0]
    assert not np.signbit(found).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_square_is_a_product(device, dtype):
    @tk.kernel
    def square(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 2)

    x = sample(dtype, 3, 4096)
    check(run(square, dtype, x, n=4096, tile=256), (x.astype(np.float64) ** 2).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_of_floats_by_constants(device, dtype):
    @tk.kernel
    def square(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 2)

    @tk.kernel
    def cube(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 3)

    @tk.kernel
    def root(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 0.5)

    @tk.kernel
    def exponential(z: tk.Out, x: tk.In):
        z.store(2 ** tk.load_tile_like(x, z))

    x = sample(dtype)
    tolerance = {tk.float16: 2e-3, tk.bfloat16: 1.6e-2, tk.float32: 5 * 2.0**-23, tk.float64: 5 * 2.0**-52}[dtype]
    wide = x.astype(np.float64)
    check(run(square, dtype, x), np.square(x), dtype)
    for kernel, exact in ((cube, wide**3), (root, wide**0.5), (exponential, 2.0**wide)):
        check(run(kernel, dtype, x), exact.astype(dtype), dtype, tolerance)


def test_an_integer_to_a_float_is_float32(device):
    @tk.kernel
    def power(z: tk.Out, x: tk.In):
        z.store(tk.load_tile_like(x, z) ** 1.5)

    x = np.abs(sample(tk.int32))
    check(run(power, tk.float32, x), (x**1.5).astype(np.float32), tk.float32, 5 * 2.0**-23)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_basic_functions_of_integers_wrap(device, dtype):
    @tk.kernel
    def mix(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store(tk.add(a, b) ^ tk.sub(a, b) ^ tk.mul(a, b) ^ tk.fma(a, b, 3))

    x, y = dividends(dtype)
    check(run(mix, dtype, x, y, n=N), (x + y) ^ (x - y) ^ (x * y) ^ (x * y + dtype.type(3)))


def test_quotients_as_a_function(device):
    @tk.kernel
    def halves(z: tk.Out, x: tk.In):
        z.store(tk.truediv(tk.load_tile_like(x, z), 2))

    x = sample(tk.int32)
    check(run(halves, tk.float32, x), x.astype(np.float32) / np.float32(2))


@pytest.mark.parametrize("dtype", [*SIGNED, *FLOATS], ids=str)
def test_signs_and_magnitudes_as_functions(device, dtype):
    @tk.kernel
    def negated(z: tk.Out, x: tk.In):
        z.store(tk.negative(tk.load_tile_like(x, z)))

    @tk.kernel
    def size(z: tk.Out, x: tk.In):
        z.store(tk.abs(tk.load_tile_like(x, z)))

    @tk.kernel
    def same(z: tk.Out, x: tk.In):
        z.store(+tk.load_tile_like(x, z))

    @tk.kernel
    def sign(z: tk.Out, x: tk.In):
        z.store(tk.sign(tk.load_tile_like(x, z)))

    x = dividends(dtype)[0]
    for kernel, expected in ((negated, -x), (size, np.abs(x)), (same, x), (sign, np.sign(x))):
        check(run(kernel, dtype, x, n=N), expected)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_clipping(device, dtype):
    @tk.kernel
    def between(z: tk.Out, x: tk.In, y: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(tk.clip(t, 3, tk.load_tile_like(y, z)))

    x, y = dividends(dtype)
    check(run(between, dtype, x, y, n=N), np.minimum(np.maximum(x, dtype.type(3)), y))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_extrema_that_pass_over_nan(device, dtype):
    @tk.kernel
    def smaller(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.minimum(tk.load_tile_like(x, z), tk.load_tile_like(y, z), propagate_nan=False))

    @tk.kernel
    def larger(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.maximum(tk.load_tile_like(x, z), tk.load_tile_like(y, z), propagate_nan=False))

    x, y = dividends(dtype)
    check(run(smaller, dtype, x, y, n=N), np.fmin(x, y))
    check(run(larger, dtype, x, y, n=N), np.fmax(x, y))


@pytest.mark.parametrize("dtype", [*INTEGERS, tk.bool_], ids=str)
def test_bits_as_functions(device, dtype):
    @tk.kernel
    def mix(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store(tk.bitwise_or(tk.bitwise_and(a, b), tk.bitwise_xor(tk.bitwise_not(a), b)))

    @tk.kernel
    def moved(z: tk.Out, x: tk.In, y: tk.In):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        z.store(tk.bitwise_lshift(a, b) ^ tk.bitwise_rshift(a, 3))

    x, y = sample(dtype), sample(dtype, 1)
    check(run(mix, dtype, x, y), (x & y) | (~x ^ y))
    if dtype != tk.bool_:
        y = np.arange(100).astype(dtype)
        check(run(moved, dtype, x, y), (x << y) ^ (x >> dtype.type(3)))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_counts_of_bits(device, dtype):
    @tk.kernel
    def ones(z: tk.Out, x: tk.In):
        z.store(tk.popcount(tk.load_tile_like(x, z)))

    @tk.kernel
    def zeros(z: tk.Out, x: tk.In):
        z.store(tk.clz(tk.load_tile_like(x, z)))

    x = np.random.default_rng(0).integers(0, 256, (N, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    bits = 8 * dtype.itemsize
    x[:100] >>= np.arange(100).astype(dtype) % dtype.type(bits - 1)
    x[:3] = [0, 1, np.iinfo(dtype).min]
    patterns = [int(v) % 2**bits for v in x]
    check(run(ones, tk.int32, x, n=N), np.array([v.bit_count() for v in patterns], np.int32))
    check(run(zeros, tk.int32, x, n=N), np.array([bits - v.bit_length() for v in patterns], np.int32))


@pytest.mark.parametrize("dtype", [*NUMBERS, tk.bool_], ids=str)
def test_comparisons_as_functions(device, dtype):
    @tk.kernel
    def compare(z: tk.Out, x: tk.In, y: tk.In, which: tk.Const):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        if which == 0:
            z.store(tk.less(a, b))
        if which == 1:
            z.store(tk.less_equal(a, b))
        if which == 2:
            z.store(tk.greater(a, b))
        if which == 3:
            z.store(tk.greater_equal(a, b))
        if which == 4:
            z.store(tk.equal(a, b))
        if which == 5:
            z.store(tk.not_equal(a, b))

    x, y = sample(dtype), sample(dtype, 1)
    y[::3] = x[::3]
    if dtypes.is_float(dtype):
        x[::7] = np.nan
    for which, reference in enumerate((np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)):
        check(run(compare, tk.bool_, x, y, which), reference(x, y))


@pytest.mark.parametrize("dtype", [*NUMBERS, tk.bool_], ids=str)
def test_truth(device, dtype):
    @tk.kernel
    def truth(z: tk.Out, x: tk.In, y: tk.In, which: tk.Const):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        if which == 0:
            z.store(tk.logical_and(a, b))
        if which == 1:
            z.store(tk.logical_or(a, b))
        if which == 2:
            z.store(tk.logical_xor(a, b))
        if which == 3:
            z.store(tk.logical_and(tk.logical_not(a), True))

    x, y = sample(dtype), sample(tk.int32, 1)
    x[::3], y[::2] = 0, 0
    if dtypes.is_float(dtype):
        x[1::7] = np.nan
    left, right = x.astype(bool), y.astype(bool)
    for which, expected in enumerate((left & right, left | right, left ^ right, ~left)):
        check(run(truth, tk.bool_, x, y, which), expected)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_tables(device, dtype):
    @tk.kernel
    def table(z: tk.Out, v, dtype: tk.Const):
        t = tk.astile(((1, v, 3, 4), (5, 6, 7, 8)), dtype=dtype)
        z.store(t + tk.astile(2, dtype=dtype))

    expected = np.array([[1, 9, 3, 4], [5, 6, 7, 8]], dtype) + dtype.type(2)
    check(run(table, dtype, 9, dtype, n=(2, 4), tile=(2, 4)), expected)


def test_tables_larger_than_a_warp(device):
    @tk.kernel
    def table(z: tk.Out):
        row = (0, 3, 1, 4, 1, 5, 9, 2)
        z.store(tk.astile((row, (6, 5, 3, 5, 8, 9, 7, 9), row, row, row, row, row, (1, 2, 3, 4, 5, 6, 7, 8))))

    row = [0, 3, 1, 4, 1, 5, 9, 2]
    expected = np.array([row, [6, 5, 3, 5, 8, 9, 7, 9], row, row, row, row, row, [1, 2, 3, 4, 5, 6, 7, 8]], np.int32)
    check(run(table, tk.int32, n=(8, 8), tile=(8, 8)), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ranges_of_floats_are_rounded_twice(device, dtype):
    @tk.kernel
    def count(z: tk.Out, dtype: tk.Const):
        z.store(tk.arange(64, dtype=dtype, start=0.1, step=0.3))

    expected = dtype.type(0.1) + np.arange(64).astype(dtype) * dtype.type(0.3)
    check(run(count, dtype, dtype, n=64), expected)
