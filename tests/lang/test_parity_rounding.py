"""Rounding modes and flushing, against exact fractions."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from parity import FLOATS, check, run, sample

import tilekit as tk
from tilekit import api

N = 200


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """Overflow, NaN and division by zero are part of the tests."""
    with np.errstate(all="ignore"):
        yield


MODES = {
    "nearest_even": tk.RoundingMode.RN,
    "zero": tk.RoundingMode.RZ,
    "negative_inf": tk.RoundingMode.RM,
    "positive_inf": tk.RoundingMode.RP,
}


@tk.kernel
def rounded(z: tk.Out, x: tk.In, y: tk.In, w: tk.In, what: tk.Const, mode: tk.Const):
    a, b, c = tk.load_tile_like(x, z), tk.load_tile_like(y, z), tk.load_tile_like(w, z)
    if what == 0:
        z.store(tk.add(a, b, rounding_mode=mode))
    if what == 1:
        z.store(tk.sub(a, b, rounding_mode=mode))
    if what == 2:
        z.store(tk.mul(a, b, rounding_mode=mode))
    if what == 3:
        z.store(tk.truediv(a, b, rounding_mode=mode))
    if what == 4:
        z.store(tk.fma(a, b, c, rounding_mode=mode))
    if what == 5:
        z.store(tk.sqrt(a, rounding_mode=mode))


EXACT = {
    0: lambda x, y, w: x + y,
    1: lambda x, y, w: x - y,
    2: lambda x, y, w: x * y,
    3: lambda x, y, w: x / y,
    4: lambda x, y, w: x * y + w,
    5: lambda x, y, w: x,  # of which the root
}


def float_arguments(dtype, seed):
    """Numbers of any magnitude and ordinary ones."""
    rng = np.random.default_rng([seed, dtype.itemsize])
    any_bits = rng.integers(0, 256, (120, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    return np.concatenate([any_bits, rng.normal(0, 1, N - 120).astype(dtype)])


def neighbours(value):
    """The next numbers below and above, as floats."""
    kind = value.dtype
    if kind != tk.bfloat16:
        return float(np.nextafter(value, kind.type(-np.inf))), float(np.nextafter(value, kind.type(np.inf)))
    step = ml_dtypes.finfo(kind).smallest_subnormal
    if value == 0:
        return -float(step), float(step)
    bits = int(value.view(np.uint16))
    closer, away = (np.uint16(bits + d).view(kind) for d in (-1, 1))
    pair = (float(closer), float(away)) if value > 0 else (float(away), float(closer))
    if math.isinf(value):
        return (pair[0], math.inf) if value > 0 else (-math.inf, pair[1])
    return pair


def is_rounded(value, exact, mode, *, root):
    """Whether a number is `exact` (or its square root), rounded that way."""
    degree = 2 if root else 1

    def above(number):
        """How it lies to the exact one: 1 above, 0 at it, -1 below."""
        if math.isinf(number):
            return 1 if number > 0 else -1
        fraction = Fraction(number)
        signed = fraction**degree if number >= 0 or not root else -1
        return (signed > exact) - (signed < exact)

    lower, upper = neighbours(value)
    at = float(value)
    if above(at) == 0:
        return True
    if mode == "zero":
        mode = "negative_inf" if exact > 0 else "positive_inf"
    if mode == "negative_inf":
        return above(at) < 0 and (above(upper) > 0 or at == upper)
    if mode == "positive_inf":
        return above(at) > 0 and (above(lower) < 0 or at == lower)
    if math.isinf(at):
        largest = Fraction(lower if at > 0 else upper)
        middle = largest + (largest - Fraction(neighbours(value.dtype.type(float(largest)))[0 if at > 0 else 1])) / 2
        return abs(exact) >= abs(middle) ** degree
    low, high = ((Fraction(at) + Fraction(v)) / 2 if not math.isinf(v) else None for v in (lower, upper))
    return (low is None or (root and low < 0) or low**degree <= exact) and (high is None or exact <= high**degree)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", EXACT, ids=["add", "sub", "mul", "truediv", "fma", "sqrt"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_modes(device, dtype, what, mode):
    x, y, w = (float_arguments(dtype, seed) for seed in range(3))
    if what == 5:
        x = np.abs(x)
    if what < 2:
        y[:40] = x[:40] * dtype.type(1.01)  # so that digits cancel
    actual = run(rounded, dtype, x, y, w, what, str(MODES[mode]), n=N)
    assert actual.dtype == dtype
    for place in range(N):
        numbers = [float(v[place]) for v in (x, y, w)]
        used = numbers[: {4: 3, 5: 1}.get(what, 2)]
        if not all(map(math.isfinite, used)) or (what == 3 and numbers[1] == 0):
            continue
        exact = EXACT[what](*(Fraction(v) if math.isfinite(v) else None for v in numbers))
        assert is_rounded(actual[place], exact, mode, root=what == 5), f"{used}: {actual[place]!r}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_of_rounded_sums(device, dtype):
    """Rounded down, x - x is -0."""
    x = sample(dtype, n=N)
    for mode in MODES:
        actual = run(rounded, dtype, x, x, x, 1, mode, n=N)
        check(actual, np.zeros(N, dtype))
        assert np.all(np.signbit(actual) == (mode == "negative_inf"))


def test_fast_quotients(device):
    @tk.kernel
    def full(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.truediv(tk.load_tile_like(x, z), tk.load_tile_like(y, z), rounding_mode=tk.RoundingMode.FULL))

    @tk.kernel
    def approx(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.truediv(tk.load_tile_like(x, z), tk.load_tile_like(y, z), rounding_mode=tk.RoundingMode.APPROX))

    x, y = sample(tk.float32, n=N), sample(tk.float32, 1, n=N)
    for kernel in (full, approx):
        check(run(kernel, tk.float32, x, y, n=N), x / y, tk.float32, 2 * 2.0**-23)


def test_subnormal_numbers_flushed(device):
    @tk.kernel
    def flushed(z: tk.Out, x: tk.In, y: tk.In, what: tk.Const):
        a, b = tk.load_tile_like(x, z), tk.load_tile_like(y, z)
        if what == 0:
            z.store(tk.add(a, b, flush_to_zero=True))
        if what == 1:
            z.store(tk.sub(a, b, flush_to_zero=True))
        if what == 2:
            z.store(tk.mul(a, b, flush_to_zero=True))
        if what == 3:
            z.store(tk.truediv(a, b, flush_to_zero=True))
        if what == 4:
            z.store(tk.fma(a, b, 0.0, flush_to_zero=True))
        if what == 5:
            z.store(tk.minimum(a, b, flush_to_zero=True))
        if what == 6:
            z.store(tk.maximum(a, b, flush_to_zero=True, propagate_nan=False))

    tiny = float(np.finfo(np.float32).smallest_normal)
    values = np.array([0, 1, 2, 0.5, tiny, -tiny, tiny / 2, -tiny / 4, tiny * 1.5, 1e-45], np.float32)
    x, y = (np.array(v, np.float32) for v in zip(*itertools.product(values, values)))

    def flush(v):
        return np.where(np.abs(v) < tiny, np.copysign(np.float32(0), v), v)

    usual = (np.add, np.subtract, np.multiply, np.true_divide, np.multiply, np.minimum, np.maximum)
    for what, reference in enumerate(usual):
        actual, expected = run(flushed, tk.float32, x, y, what), flush(reference(flush(x), flush(y)))
        check(actual, expected)
        if what < 4:  # adding 0 makes -0 a 0
            numbers = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FLOATS, 2)), ids=str)
def test_rounded_conversions(device, source, target, mode):
    @tk.kernel
    def cast(z: tk.Out, x: tk.In, mode: tk.Const):
        z.store(tk.astype(tk.load_tile_like(x, z), z.dtype, rounding_mode=mode))

    @tk.kernel
    def method(z: tk.Out, x: tk.In, mode: tk.Const):
        z.store(tk.load_tile_like(x, z).astype(z.dtype, rounding_mode=mode))

    x = float_arguments(source, 7)
    actual = run(cast, target, x, mode, n=N)
    check(run(method, target, x, mode, n=N), actual)
    for before, after in zip(x, actual, strict=True):
        if math.isfinite(before):
            assert is_rounded(after, Fraction(float(before)), mode, root=False), f"{before!r}: {after!r}"
        else:
            assert float(after) == float(before) or math.isnan(before) == math.isnan(after)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_sum_too_small_for_its_dtype_is_rounded_down_to_zero(device, dtype):
    """It is above zero, and no cancellation, which would be -0."""

    @tk.kernel
    def compute(y: tk.Out, a: tk.In, c: tk.In):
        t = tk.load_tile_like(a, y)
        y.store(tk.fma(t, t, tk.load_tile_like(c, y), rounding_mode=tk.RoundingMode.RM))

    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    a, c = np.array([smallest, smallest, 1, 0], dtype), np.array([-0.0, 0.0, -1, -0.0], dtype)
    found = run(compute, dtype, a, c, n=4, tile=4).astype(np.float64)
    assert np.signbit(found).tolist() == [False, False, True, True]
    assert not found.any()


@pytest.mark.parametrize("mode", [None, tk.RoundingMode.RZ], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_product_beyond_the_largest_number_is_finite_before_it_is_added(device, dtype, mode):
    @tk.kernel
    def compute(y: tk.Out, a: tk.In, c: tk.In):
        t = tk.load_tile_like(a, y)
        y.store(tk.fma(t, -t, tk.load_tile_like(c, y), rounding_mode=mode))

    largest = float(ml_dtypes.finfo(dtype).max)
    a, c = np.full(4, largest, dtype), np.array([np.inf, -np.inf, np.nan, 0], dtype)
    found = run(compute, dtype, a, c, n=4, tile=4).astype(np.float64)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan, -np.inf if mode is None else -largest])


def test_a_tile_without_dimensions_is_rounded_in_a_direction(device):
    @tk.kernel
    def compute(y: tk.Out, x: tk.In):
        root = tk.sqrt(tk.load(x, (0,), (1,)).reshape(()), rounding_mode=tk.RoundingMode.RM)
        y.store(tk.full((1,), 0, tk.float64) + root)

    found = compute(api.zeros(1, tk.float64), api.full(1, 2.0, tk.float64)).tile(1).out().sync().numpy()
    assert Fraction(found[0]) ** 2 < 2 < Fraction(np.nextafter(found[0], 2.0)) ** 2
