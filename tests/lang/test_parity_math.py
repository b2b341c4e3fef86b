"""The mathematical functions against NumPy in more bits: how far off they may be is what their docstrings say."""

import math

import numpy as np
import pytest
from parity import FLOATS, check, run, sample

import tilekit as tk
from tilekit import api

N = 1000
TILE = 256


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """Overflow, NaN and division by zero are part of the tests."""
    with np.errstate(all="ignore"):
        yield


@tk.kernel
def run_exp(z: tk.Out, x: tk.In):
    z.store(tk.exp(tk.load_tile_like(x, z)))


@tk.kernel
def run_exp2(z: tk.Out, x: tk.In):
    z.store(tk.exp2(tk.load_tile_like(x, z)))


@tk.kernel
def run_expm1(z: tk.Out, x: tk.In):
    z.store(tk.expm1(tk.load_tile_like(x, z)))


@tk.kernel
def run_log(z: tk.Out, x: tk.In):
    z.store(tk.log(tk.load_tile_like(x, z)))


@tk.kernel
def run_log2(z: tk.Out, x: tk.In):
    z.store(tk.log2(tk.load_tile_like(x, z)))


@tk.kernel
def run_log10(z: tk.Out, x: tk.In):
    z.store(tk.log10(tk.load_tile_like(x, z)))


@tk.kernel
def run_log1p(z: tk.Out, x: tk.In):
    z.store(tk.log1p(tk.load_tile_like(x, z)))


@tk.kernel
def run_rsqrt(z: tk.Out, x: tk.In):
    z.store(tk.rsqrt(tk.load_tile_like(x, z)))


@tk.kernel
def run_cbrt(z: tk.Out, x: tk.In):
    z.store(tk.cbrt(tk.load_tile_like(x, z)))


@tk.kernel
def run_sigmoid(z: tk.Out, x: tk.In):
    z.store(tk.sigmoid(tk.load_tile_like(x, z)))


@tk.kernel
def run_softplus(z: tk.Out, x: tk.In):
    z.store(tk.softplus(tk.load_tile_like(x, z)))


@tk.kernel
def run_erf(z: tk.Out, x: tk.In):
    z.store(tk.erf(tk.load_tile_like(x, z)))


@tk.kernel
def run_erfc(z: tk.Out, x: tk.In):
    z.store(tk.erfc(tk.load_tile_like(x, z)))


@tk.kernel
def run_sin(z: tk.Out, x: tk.In):
    z.store(tk.sin(tk.load_tile_like(x, z)))


@tk.kernel
def run_cos(z: tk.Out, x: tk.In):
    z.store(tk.cos(tk.load_tile_like(x, z)))


@tk.kernel
def run_tan(z: tk.Out, x: tk.In):
    z.store(tk.tan(tk.load_tile_like(x, z)))


@tk.kernel
def run_asin(z: tk.Out, x: tk.In):
    z.store(tk.asin(tk.load_tile_like(x, z)))


@tk.kernel
def run_acos(z: tk.Out, x: tk.In):
    z.store(tk.acos(tk.load_tile_like(x, z)))


@tk.kernel
def run_atan(z: tk.Out, x: tk.In):
    z.store(tk.atan(tk.load_tile_like(x, z)))


@tk.kernel
def run_sinh(z: tk.Out, x: tk.In):
    z.store(tk.sinh(tk.load_tile_like(x, z)))


@tk.kernel
def run_cosh(z: tk.Out, x: tk.In):
    z.store(tk.cosh(tk.load_tile_like(x, z)))


@tk.kernel
def run_tanh(z: tk.Out, x: tk.In):
    z.store(tk.tanh(tk.load_tile_like(x, z)))


@tk.kernel
def run_asinh(z: tk.Out, x: tk.In):
    z.store(tk.asinh(tk.load_tile_like(x, z)))


@tk.kernel
def run_acosh(z: tk.Out, x: tk.In):
    z.store(tk.acosh(tk.load_tile_like(x, z)))


@tk.kernel
def run_atanh(z: tk.Out, x: tk.In):
    z.store(tk.atanh(tk.load_tile_like(x, z)))


def by_element(function):
    """A function of Python's floats, of an array."""
    mapped = np.frompyfunc(function, 1, 1)
    return lambda x: mapped(x.astype(np.float64)).astype(x.dtype)


error_function, complement = by_element(math.erf), by_element(math.erfc)


def reciprocal_root(x):
    return 1 / np.sqrt(x)


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def softplus(x):
    return np.logaddexp(0, x)


# The kernel, what it computes, and the units in the last place that float32 and float64 may be off. (Python has erf and erfc in
# 53 bits only, so that float64 is allowed one more there.)
FUNCTIONS = [
    (run_exp, np.exp, 2, 1),
    (run_exp2, np.exp2, 2, 1),
    (run_expm1, np.expm1, 2, 1),
    (run_log, np.log, 1, 1),
    (run_log2, np.log2, 1, 1),
    (run_log10, np.log10, 2, 1),
    (run_log1p, np.log1p, 1, 1),
    (run_rsqrt, reciprocal_root, 2, 2),
    (run_cbrt, np.cbrt, 1, 1),
    (run_sigmoid, logistic, 4, 4),
    (run_softplus, softplus, 5, 3),
    (run_erf, error_function, 2, 3),
    (run_erfc, complement, 4, 6),
    (run_sin, np.sin, 2, 2),
    (run_cos, np.cos, 2, 2),
    (run_tan, np.tan, 4, 2),
    (run_asin, np.arcsin, 2, 2),
    (run_acos, np.arccos, 2, 2),
    (run_atan, np.arctan, 2, 2),
    (run_sinh, np.sinh, 3, 2),
    (run_cosh, np.cosh, 2, 1),
    (run_tanh, np.tanh, 2, 1),
    (run_asinh, np.arcsinh, 3, 3),
    (run_acosh, np.arccosh, 4, 3),
    (run_atanh, np.arctanh, 3, 3),
]
BY_NAME = [pytest.param(*row, id=row[0].__name__.removeprefix("run_")) for row in FUNCTIONS]


def arguments(dtype, seed=0):
    """Ordinary numbers, numbers of any magnitude (subnormal ones too), and those that functions treat apart."""
    rng = np.random.default_rng([seed, dtype.itemsize])
    limits = tk_finfo(dtype)
    apart = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, *(s * v for v in limits for s in (1, -1))]
    any_bits = rng.integers(0, 256, (400, dtype.itemsize), np.uint8).view(dtype).reshape(-1)
    ordinary = [rng.normal(0, 4, 300), rng.uniform(-1, 1, N - 400 - 300 - len(apart)), apart]
    return np.concatenate([any_bits, *(part.astype(dtype) for part in map(np.asarray, ordinary))])


def tk_finfo(dtype):
    """The largest, the smallest normal and the smallest number."""
    if dtype == tk.bfloat16:
        return np.array([0x7F7F, 0x0080, 0x0001], np.uint16).view(dtype).astype(np.float64)
    info = np.finfo(dtype)
    return [float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)]


def distance(actual, exact):
    """How many numbers of the dtype lie between, at most: 0 if `exact`, in more bits, rounds to `actual`."""
    rounded = exact.astype(actual.dtype)
    width = f"i{actual.dtype.itemsize}"

    def rank(values):
        bits = values.view(width).astype(object)
        return np.where(bits < 0, -(bits & (2 ** (8 * values.dtype.itemsize - 1) - 1)), bits)

    nan = np.isnan(actual) & np.isnan(rounded)
    assert np.array_equal(np.isnan(actual), np.isnan(rounded))
    return np.where(nan, 0, np.abs(rank(actual) - rank(rounded)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("kernel", "reference", "single", "double"), BY_NAME)
def test_functions_are_as_near_as_they_say(device, kernel, reference, single, double, dtype):
    x = arguments(dtype)
    exact = reference(x.astype(np.longdouble if dtype == tk.float64 else np.float64))
    actual = run(kernel, dtype, x, n=N, tile=TILE)
    assert actual.dtype == dtype
    bound = {tk.float32: single, tk.float64: double}.get(dtype, 1)
    off = distance(actual, exact)
    worst = int(np.argmax(off))
    assert off[worst] <= bound, f"{off[worst]} off at {x[worst]!r}: {actual[worst]!r}, exactly {exact[worst]!r}"
    zeros = (x == 0) & (exact == 0)
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


@tk.kernel
def run_atan2(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.atan2(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))


@tk.kernel
def run_pow(z: tk.Out, x: tk.In, y: tk.In):
    z.store(tk.pow(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "reference", "single", "double"), [(run_atan2, np.arctan2, 3, 2), (run_pow, np.power, 4, 2)], ids=["atan2", "pow"]
)
def test_functions_of_two_are_as_near_as_they_say(device, kernel, reference, single, double, dtype):
    x, y = arguments(dtype), np.random.default_rng(3).permutation(arguments(dtype, 1))
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -3.0, 0.5]
    pairs = np.array([(a, b) for a in special for b in special], dtype)
    x[:100], y[:100] = pairs.T
    x[100:400:2] = np.abs(x[100:400:2])
    wide = np.longdouble if dtype == tk.float64 else np.float64
    exact = reference(x.astype(wide), y.astype(wide))
    bound = {tk.float32: single, tk.float64: double}.get(dtype, 1)
    off = distance(run(kernel, dtype, x, y, n=N, tile=TILE), exact)
    worst = int(np.argmax(off))
    assert off[worst] <= bound, f"{off[worst]} off at {x[worst]!r}, {y[worst]!r}: exactly {exact[worst]!r}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_roots_are_correctly_rounded(device, dtype):
    @tk.kernel
    def root(z: tk.Out, x: tk.In):
        z.store(tk.sqrt(tk.load_tile_like(x, z)))

    x = arguments(dtype)
    check(run(root, dtype, x, n=N, tile=TILE), np.sqrt(x))


@tk.kernel
def run_floor(z: tk.Out, x: tk.In):
    z.store(tk.floor(tk.load_tile_like(x, z)))


@tk.kernel
def run_ceil(z: tk.Out, x: tk.In):
    z.store(tk.ceil(tk.load_tile_like(x, z)))


@tk.kernel
def run_trunc(z: tk.Out, x: tk.In):
    z.store(tk.trunc(tk.load_tile_like(x, z)))


@tk.kernel
def run_round(z: tk.Out, x: tk.In):
    z.store(tk.round(tk.load_tile_like(x, z)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "reference"),
    [(run_floor, np.floor), (run_ceil, np.ceil), (run_trunc, np.trunc), (run_round, np.rint)],
    ids=["floor", "ceil", "trunc", "round"],
)
def test_whole_numbers(device, kernel, reference, dtype):
    x = arguments(dtype)
    x[:100] = np.arange(-50, 50).astype(dtype) / dtype.type(2)
    actual, expected = run(kernel, dtype, x, n=N, tile=TILE), reference(x)
    check(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kinds_of_numbers(device, dtype):
    @tk.kernel
    def nan(z: tk.Out, x: tk.In):
        z.store(tk.isnan(tk.load_tile_like(x, z)))

    @tk.kernel
    def infinite(z: tk.Out, x: tk.In):
        z.store(tk.isinf(tk.load_tile_like(x, z)))

    @tk.kernel
    def finite(z: tk.Out, x: tk.In):
        z.store(tk.isfinite(tk.load_tile_like(x, z)))

    x = arguments(dtype)
    for kernel, reference in ((nan, np.isnan), (infinite, np.isinf), (finite, np.isfinite)):
        check(run(kernel, tk.bool_, x, n=N, tile=TILE), reference(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_signs(device, dtype):
    @tk.kernel
    def copied(z: tk.Out, x: tk.In, y: tk.In):
        z.store(tk.copysign(tk.load_tile_like(x, z), tk.load_tile_like(y, z)))

    x, y = arguments(dtype), arguments(dtype, 1)
    expected = np.copysign(x, y)
    actual = run(copied, dtype, x, y, n=N, tile=TILE)
    check(actual, expected)
    numbers = ~np.isnan(x) & ~np.isnan(y)
    np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers])


def test_fast_exponentials(device):
    @tk.kernel
    def grow(z: tk.Out, x: tk.In):
        z.store(tk.exp(tk.load_tile_like(x, z), rounding_mode=tk.RoundingMode.APPROX))

    @tk.kernel
    def double(z: tk.Out, x: tk.In):
        z.store(tk.exp2(tk.load_tile_like(x, z), flush_to_zero=True))

    x = arguments(tk.float32)
    exact = np.exp(x.astype(np.float64))
    off = distance(run(grow, tk.float32, x, n=N, tile=TILE), exact)
    # Beyond -87 results are subnormal, where a unit is larger than the bound takes it for.
    assert np.all(np.isnan(x) | np.isinf(x) | (off <= 2 + 2 * np.abs(x)))
    ordinary = np.abs(x) < 126
    off = distance(run(double, tk.float32, x, n=N, tile=TILE), np.exp2(x.astype(np.float64)))
    assert off[ordinary].max() <= 2
    low = run(double, tk.float32, np.full(N, -130, np.float32), n=N, tile=TILE)
    np.testing.assert_array_equal(low, np.zeros(N, np.float32))


def test_a_fast_hyperbolic_tangent(device):
    @tk.kernel
    def squash(z: tk.Out, x: tk.In):
        z.store(tk.tanh(tk.load_tile_like(x, z), rounding_mode=tk.RoundingMode.APPROX))

    x = sample(tk.float32, n=N)
    np.testing.assert_allclose(run(squash, tk.float32, x, n=N, tile=TILE), np.tanh(x), rtol=2.0**-10.9)


def test_roots_that_flush(device):
    @tk.kernel
    def roots(z: tk.Out, w: tk.Out, v: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, z)
        z.store(tk.sqrt(t, flush_to_zero=True))
        w.store(tk.rsqrt(t, flush_to_zero=True))
        v.store(tk.sqrt(t, rounding_mode=tk.RoundingMode.APPROX))

    x = np.abs(arguments(tk.float32))
    parts = [api.zeros(N).partition(TILE) for _ in range(3)]
    results = roots(*parts, api.from_host(x)).sync()
    z, w, v = (part.unpartition().to_host().sync() for part in results[:3])
    flushed = np.where(x < np.finfo(np.float32).smallest_normal, np.float32(0), x)
    check(z, np.sqrt(flushed))
    assert distance(w, 1 / np.sqrt(flushed.astype(np.float64))).max() <= 2
    assert distance(v, np.sqrt(x.astype(np.float64))).max() <= 2
