"""Random numbers: what they are made of, bit by bit, and that they are as random as they should be."""

import math

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

SEEDS = [0, 1, 0xDEADBEEF, 2**40 + 17, 2**64 - 1]
UNIFORM, NORMAL, INTEGERS = 0, 1, 2
BITS = {tk.float16: 11, tk.bfloat16: 8, tk.float32: 24}


def philox(counter, key):
    """Philox4x32-10, written after the paper: the four words of each counter."""
    c = [np.asarray(word, np.uint64) for word in counter]
    k = [int(word) for word in key]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (second >> half) ^ c[1] ^ np.uint64(k[0]),
            second & low,
            (first >> half) ^ c[3] ^ np.uint64(k[1]),
            first & low,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return [word.astype(np.uint32) for word in c]


def words(n, per_element, seed, kind):
    """The words of elements 0 to n - 1: an array of shape (n, per_element)."""
    blocks = np.arange(-(-n * per_element // 4), dtype=np.uint64)
    zeros = np.zeros_like(blocks)
    made = philox(
        (blocks & np.uint64(0xFFFFFFFF), blocks >> np.uint64(32), zeros + np.uint64(kind), zeros), (seed % 2**32, seed >> 32)
    )
    return np.stack(made, axis=1).reshape(-1, per_element)[:n]


def together(upper, lower):
    """64 bits of two words."""
    return upper.astype(np.uint64) << np.uint64(32) | lower.astype(np.uint64)


def host(op):
    return op.to_host().sync()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_the_reference_gives_the_test_vectors_of_random123(counter, key, expected):
    assert tuple(int(word) for word in philox(counter, key)) == expected


def test_the_first_four_numbers_of_seed_0_are_the_first_test_vector(device):
    vector = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint32)
    np.testing.assert_array_equal(host(api.rand(4, seed=0)), (vector >> 8).astype(np.float32) / 2**24)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_rand_bit_by_bit(device, dtype, seed):
    n = 70_001  # several tiles on either device, and a ragged one
    bits = BITS[dtype]
    expected = ((words(n, 1, seed, UNIFORM)[:, 0] >> np.uint32(32 - bits)) / 2**bits).astype(dtype)
    actual = host(api.rand(n, seed=seed, dtype=dtype))
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual.view(f"u{dtype.itemsize}"), expected.view(f"u{dtype.itemsize}"))
    assert actual.min() >= 0
    assert actual.max() < 1


@pytest.mark.parametrize("seed", SEEDS)
def test_rand_of_float64_bit_by_bit(device, seed):
    n = 70_001
    drawn = words(n, 2, seed, UNIFORM)
    expected = (together(drawn[:, 0], drawn[:, 1]) >> np.uint64(11)).astype(np.float64) / 2**53
    np.testing.assert_array_equal(host(api.rand(n, seed=seed, dtype=tk.float64)), expected)


def box_muller(n, seed, per_element):
    """The normal numbers in exact enough arithmetic, from the words of each pair: element 2j the cosine, 2j + 1 the sine."""
    drawn = words(n + n % 2, per_element, seed, NORMAL).reshape(-1, 2 * per_element)
    if per_element == 1:
        radius, angle = (drawn[:, 0] | 1) / 2**32, drawn[:, 1] / 2**32
    else:
        radius = ((together(drawn[:, 0], drawn[:, 1]) >> np.uint64(11)) | np.uint64(1)).astype(np.float64) / 2**53
        angle = (together(drawn[:, 2], drawn[:, 3]) >> np.uint64(11)).astype(np.float64) / 2**53
    pair = np.sqrt(-2 * np.log(radius)) * np.stack([np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)])
    return pair.T.reshape(-1)[:n]


@pytest.mark.parametrize("seed", SEEDS)
def test_randn_is_the_method_of_box_and_muller(device, seed):
    n = 70_001
    actual, expected = host(api.randn(0, 1, n, seed=seed)), box_muller(n, seed, 1)
    # Where the radius is small its logarithm is that of a number near 1, which float32 cuts to 2**-24.
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-4 if device else 0)
    usual = np.abs(expected) > 0.05
    np.testing.assert_allclose(actual[usual], expected[usual], rtol=3e-5)
    np.testing.assert_allclose(
        host(api.randn(0, 1, n, seed=seed, dtype=tk.float64)), box_muller(n, seed, 2), rtol=1e-12, atol=1e-14
    )


def reference_normal(n, seed, mean, std):
    """randn of float32, operation by operation, each rounded to float32."""
    f = np.float32
    drawn = words(-(-n // 2) * 2, 1, seed, NORMAL).reshape(-1, 2)
    x = (drawn[:, 0] | np.uint32(1)).astype(f)
    pattern = x.view(np.int32)
    exponent = (pattern - np.int32(0x3F3504F3)) >> 23
    t = (pattern - (exponent << 23)).view(f) - f(1)
    scale = (exponent - 32).astype(f)
    p = np.full_like(t, 7.0376836292e-2)
    for c in (-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
              -2.4999993993e-1, 3.3333331174e-1):  # fmt: skip
        p = p * t + f(c)
    z = t * t
    logarithm = ((p * t * z - scale * f(2.12194440e-4) - z * f(0.5)) + t) + scale * f(0.693359375)
    radius = np.sqrt(logarithm * f(-2))
    turn = drawn[:, 1] + np.uint32(1 << 29)
    a = ((turn & np.uint32(2**30 - 1)).astype(np.int32) - np.int32(1 << 29)).astype(f) * f(math.pi / 2**31)
    z = a * a
    sine = ((z * f(-1.9515295891e-4) + f(8.3321608736e-3)) * z + f(-1.6666654611e-1)) * z * a + a
    cosine = ((z * f(2.443315711809948e-5) + f(-1.388731625493765e-3)) * z + f(4.166664568298827e-2)) * z * z - z * f(0.5) + f(1)
    quarter = turn >> np.uint32(30)
    cosines = np.choose(quarter, [cosine, -sine, -cosine, sine])
    sines = np.choose(quarter, [sine, cosine, -sine, -cosine])
    pair = np.stack([radius * cosines, radius * sines], axis=1).reshape(-1)[:n]
    return pair * f(std) + f(mean)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.0, 1.0), (-3.25, 0.1), (0.0, 0.0), (1e6, 1e-3)])
def test_randn_bit_by_bit(device, mean, std):
    """The reference rounds every operation, as both devices must: a fused multiply-add would show where the mean cancels."""
    n = 70_001
    expected = reference_normal(n, 5, mean, std)
    np.testing.assert_array_equal(host(api.randn(mean, std, n, seed=5)), expected)
    for narrow in (tk.float16, tk.bfloat16):
        with np.errstate(over="ignore"):
            wanted = expected.astype(narrow)
        np.testing.assert_array_equal(host(api.randn(mean, std, n, seed=5, dtype=narrow)).view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 10, tk.int32), (-7, 1000, tk.int16), (0, 256, tk.uint8), (0, 2**32, tk.uint32), (-(2**31), 2**31, tk.int32),
     (5, 6, tk.int64), (-(2**40), 2**62 + 3, tk.int64), (0, 2**64 - 1, tk.uint64), (0, 2, tk.bool_)],
    ids=str,
)  # fmt: skip
def test_randint_number_by_number(device, low, high, dtype):
    n, seed = 20_003, 2**33 + 1
    span = high - low
    per_element = 2 if span <= 2**32 else 4
    drawn = words(n, per_element, seed, INTEGERS)
    expected = []
    for row in drawn.tolist():
        number = 0
        for word in row:
            number = number << 32 | word
        expected.append(low + (number * span >> 32 * per_element))
    np.testing.assert_array_equal(host(api.randint(low, high, n, dtype, seed=seed)), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", [tk.int64, tk.uint64], ids=str)
def test_randint_over_all_64_bits(device, dtype):
    limits = np.iinfo(dtype)
    drawn = words(1000, 2, 3, INTEGERS)
    expected = together(drawn[:, 0], drawn[:, 1]) + np.array(int(limits.min) % 2**64, np.uint64)
    np.testing.assert_array_equal(host(api.randint(limits.min, int(limits.max) + 1, 1000, dtype, seed=3)), expected.astype(dtype))


def test_randint_with_one_bound_starts_at_0(device):
    np.testing.assert_array_equal(host(api.randint(6, None, 500, seed=1)), host(api.randint(0, 6, 500, seed=1)))


def draws(shape, seed):
    return [
        api.rand(shape, seed),
        api.rand(shape, seed, tk.float64),
        api.randn(0, 1, shape, seed),
        api.randn(0, 1, shape, seed, tk.float64),
        api.randint(0, 1000, shape, seed=seed),
    ]


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0, 2), (1,), (7,), (4, 5), (2, 3, 4), (2, 1, 3, 2, 2), 1024, (33, 1025)], ids=str
)
def test_any_shape_has_the_numbers_of_the_row_of_its_elements(device, shape):
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    extents = shape if isinstance(shape, tuple) else (shape,)
    for made, row in zip(draws(shape, 9), draws(40_000, 9), strict=True):
        assert (made.shape, made.dtype) == (extents, row.dtype), "known before it has run"
        actual = host(made)
        assert actual.shape == extents
        np.testing.assert_array_equal(actual.reshape(-1), host(row)[:size])


def test_a_tile_of_another_size_gives_the_same_numbers(device, monkeypatch):
    from tilekit import random

    before = [host(op) for op in draws(5000, 4)]
    for tile in (32, 256, 4096):
        monkeypatch.setattr(random, "_TILE", tile)
        monkeypatch.setattr(random, "_CPU_TILE", tile)
        for op, expected in zip(draws(5000, 4), before, strict=True):
            np.testing.assert_array_equal(host(op), expected)


def test_seeds_tell_numbers_apart(device):
    for one, other in zip(draws(1000, 1), draws(1000, 2), strict=True):
        a, b = host(one), host(other)
        assert (a == b).mean() < 0.01
    for low, high in zip(draws(1000, 1), draws(1000, 1 + 2**32), strict=True):  # the upper word of the seed matters too
        assert (host(low) == host(high)).mean() < 0.01
    uniform, normal = host(api.rand(1000, 1)), host(api.randn(0, 1, 1000, 1))
    assert abs(np.corrcoef(uniform, normal)[0, 1]) < 0.1


def test_without_a_seed_every_run_has_its_own(device):
    first, second = host(api.rand(100)), host(api.rand(100))
    assert (first == second).mean() < 0.1
    assert first.min() >= 0
    assert first.max() < 1


def test_numpys_integers_are_seeds(device):
    np.testing.assert_array_equal(host(api.rand(5, np.uint64(2**63 + 1))), host(api.rand(5, 2**63 + 1)))


def test_they_run_in_all_ways_and_in_chains(device):
    expected = host(api.rand(64, 3))
    with device.stream() as stream:
        for result in (
            api.rand(64, 3).sync_on(stream),
            api.rand(64, 3).async_on(stream).result(),
            api.rand((8, 8), 3).reshape(64).sync(),
        ):
            np.testing.assert_array_equal(host(result), expected)


# The distributions. The seeds are fixed, so that a test that passes, passes.

N = 200_000


def kolmogorov_smirnov(sample, distribution):
    """The largest distance of the sample's distribution function from `distribution`, times the square root of its size."""
    ordered = np.sort(sample.astype(np.float64))
    below = distribution(ordered)
    steps = np.arange(ordered.size + 1) / ordered.size
    return max((below - steps[:-1]).max(), (steps[1:] - below).max()) * math.sqrt(ordered.size)


KS_LIMIT = 1.95  # exceeded by one random sample in a thousand


def chi_square(counts):
    """How many standard deviations the chi-square statistic of equally likely bins is off its mean."""
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


def normal_distribution(x):
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
def test_rand_is_uniform(device, dtype, seed):
    sample = host(api.rand(N, seed, dtype)).astype(np.float64)
    assert abs(sample.mean() - 0.5) < 4 * math.sqrt(1 / 12 / N)
    assert abs(sample.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / N)
    assert kolmogorov_smirnov(sample, lambda x: x) < KS_LIMIT
    assert abs(chi_square(np.bincount((sample * 1000).astype(int), minlength=1000))) < 4
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 4 / math.sqrt(N)
    pairs = (sample[::2] * 32).astype(int) * 32 + (sample[1::2] * 32).astype(int)
    assert abs(chi_square(np.bincount(pairs, minlength=1024))) < 4


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", [tk.float32, tk.float64], ids=str)
def test_randn_is_normal(device, dtype, seed):
    sample = host(api.randn(2.0, 3.0, N, seed, dtype)).astype(np.float64)
    assert abs(sample.mean() - 2) < 4 * 3 / math.sqrt(N)
    standard = (sample - 2) / 3
    assert abs(standard.var() - 1) < 4 * math.sqrt(2 / N)
    assert abs((standard**3).mean()) < 4 * math.sqrt(15 / N)
    assert abs((standard**4).mean() - 3) < 4 * math.sqrt(96 / N)
    assert kolmogorov_smirnov(standard, normal_distribution) < KS_LIMIT
    likely = np.minimum((normal_distribution(standard) * 500).astype(int), 499)
    assert abs(chi_square(np.bincount(likely, minlength=500))) < 4
    assert abs(np.corrcoef(standard[::2], standard[1::2])[0, 1]) < 4 / math.sqrt(N / 2), "the two of a pair"


@pytest.mark.parametrize("span", [2, 7, 1000])
def test_randint_is_uniform(device, span):
    counts = np.bincount(host(api.randint(0, span, N, seed=11)), minlength=span)
    assert counts.size == span
    assert abs(chi_square(counts)) < 4


def test_randint_over_three_quarters_of_64_bits_is_uniform(device):
    """64 random bits alone would make two of three numbers half as likely as the third."""
    sample = host(api.randint(0, 3 << 62, N, tk.uint64, seed=12))
    assert abs(chi_square(np.bincount((sample >> np.uint64(56)).astype(int) // 2, minlength=96))) < 4
    assert abs(sample.astype(np.float64).mean() / (3 << 62) - 0.5) < 4 * math.sqrt(1 / 12 / N)


# What is refused.


@pytest.mark.parametrize("make", [lambda d: api.rand(3, dtype=d), lambda d: api.randn(0, 1, 3, dtype=d)], ids=["rand", "randn"])
@pytest.mark.parametrize("dtype", [tk.int32, tk.bool_, tk.float8_e5m2], ids=str)
def test_dtypes_that_have_no_random_numbers(make, dtype):
    with pytest.raises(TypeError, match=f"random numbers are float16, bfloat16, float32, float64, not {dtype.name}; cast them"):
        make(dtype)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: api.rand(3, seed=-1), ValueError, "rand: a seed is at least 0 and below 2.*64, not -1"),
        (lambda: api.rand(3, seed=10**400), ValueError, "rand: a seed is at least 0 and below .*, not an int of 1329 bits"),
        (lambda: api.randint(0, 10**400, 3), ValueError, "randint: high = an int of 1329 bits is out of bounds for int32"),
        (lambda: api.randint(10**400, 0, 3), ValueError, r"there is no integer in \[an int of 1329 bits, 0\)"),
        (lambda: api.rand(3, seed=2**64), ValueError, "rand: a seed is at least 0 and below"),
        (lambda: api.randn(0, 1, 3, seed=1.5), TypeError, "randn: a seed is an int or None, not 1.5"),
        (lambda: api.randn(0, 1, 3, seed=True), TypeError, "randn: a seed is an int or None, not True"),
        (lambda: api.rand((2, -1)), ValueError, "a shape has no negative extents, as -1"),
        (lambda: api.rand(3, dtype="complex64"), TypeError, "'complex64' is not a dtype of tilekit"),
        (lambda: api.randn(0, -1, 3), ValueError, "randn: the standard deviation -1 is negative"),
        (lambda: api.randn("0", 1, 3), TypeError, "randn: the mean is a number, not str"),
        (lambda: api.randn(10**400, 1, 3), ValueError, "randn: the mean is an int of 1329 bits, which float64 does not hold"),
        (lambda: api.randn(0, 10**400, 3), ValueError, "randn: the standard deviation is an int of 1329 bits, which"),
        (lambda: api.randn(0, [1], 3), TypeError, "randn: the standard deviation is a number, not list"),
        (lambda: api.randint(3, 3, 5), ValueError, r"randint: low >= high: there is no integer in \[3, 3\)"),
        (lambda: api.randint(0, None, 5), ValueError, r"randint: low >= high: there is no integer in \[0, 0\)"),
        (lambda: api.randint(0, 257, 5, tk.uint8), ValueError, "randint: high = 257 is out of bounds for uint8"),
        (lambda: api.randint(-1, 5, 5, tk.uint64), ValueError, "randint: low = -1 is out of bounds for uint64"),
        (lambda: api.randint(0, 3, 5, tk.bool_), ValueError, "randint: high = 3 is out of bounds for bool"),
        (lambda: api.randint(0, 1.5, 5), TypeError, "randint: high is an int, not 1.5"),
        (lambda: api.randint(0, 3, 5, tk.float32), TypeError, "randint: random integers are of an integer type or bool, not"),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


# The machine code.


def compiled(kind, dtype, n=1 << 20):
    from tilekit.random import _draw

    zero = np.uint64(0)
    return _draw(api.meta(n, dtype).partition(1024), zero, 0.0, 1.0, zero, zero, kind, 1024).compile(target="sm_90a")


@pytest.mark.parametrize(("kind", "dtype"), [("uniform", tk.float32), ("uniform", tk.float64), ("bits", tk.int64)], ids=str)
def test_elements_of_one_counter_share_its_computation(kind, dtype):
    """The elements of a thread (8, or 4 of 8 bytes) have 2 counters: 10 rounds of 2 products each, of which some are known."""
    kernel = compiled(kind, dtype)
    assert kernel.ptx.count("mul.wide.u32") <= 2 * 20
    assert kernel.sass.count("STG.E.128") == 2
    assert kernel.local_bytes == 0


def test_normal_numbers_share_their_pair_and_are_never_fused():
    kernel = compiled("normal", tk.float32)
    assert kernel.ptx.count("sqrt.rn.f32") == 4
    assert kernel.ptx.count("mul.wide.u32") <= 2 * 20
    assert "fma" not in kernel.ptx
    assert kernel.local_bytes == 0
