"""Operations that are compiled give, bit by bit, what their references do: on each CPU that this one can be."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from parity import sample

import tilekit as tk
from tilekit import api, dtypes

FLOATS = [tk.float16, tk.bfloat16, tk.float32, tk.float64]


@pytest.fixture(autouse=True)
def _quiet_numpy():
    with np.errstate(all="ignore"):
        yield


def both(monkeypatch, kernel, results, *arguments):
    """The results of a kernel: compiled, and interpreted. `results` are arrays that show of what dtype and shape they are."""
    found = []
    for how in ("compiled", "interpreted"):
        monkeypatch.setenv("TILEKIT_CPU", how)
        outputs = [api.zeros(like.shape, like.dtype).partition(like.shape) for like in results]
        given = [api.from_host(a) if isinstance(a, np.ndarray) else a for a in arguments]
        found.append([one.unpartition().to_host().sync() for one in kernel(*outputs, *given).sync()[: len(results)]])
    return found


def check_bits(monkeypatch, kernel, results, *arguments):
    compiled, interpreted = both(monkeypatch, kernel, results, *arguments)
    for actual, expected in zip(compiled, interpreted, strict=True):
        if dtypes.is_float(actual.dtype):  # all NaNs are one
            nan = np.isnan(actual.astype(np.float64))
            np.testing.assert_array_equal(nan, np.isnan(expected.astype(np.float64)))
            actual, expected = (np.where(nan, v.dtype.type(0), v) for v in (actual, expected))
        np.testing.assert_array_equal(actual.view(np.uint8), expected.view(np.uint8))


def any_bits(dtype, n, seed=0):
    """Numbers of any magnitude, infinities, NaNs, zeros of both signs, and neighbours that are equal."""
    rng = np.random.default_rng([seed, dtypes.ALL.index(dtype)])
    if dtype == tk.bool_:
        return rng.integers(0, 2, n).astype(bool)
    x = rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)
    if dtypes.is_float(dtype):
        x[: n // 2] = rng.integers(-3, 4, n // 2).astype(dtype)
        x[3] = dtype.type(-0.0)
    return x


@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.uint16, tk.int32, tk.uint64, *FLOATS], ids=str)
def test_elements_in_order(machine, monkeypatch, dtype):
    """Zeros of both signs, equal elements and NaNs come where the reference has them."""

    @tk.kernel
    def ordered(y: tk.Out, z: tk.Out, v: tk.Out, w: tk.Out, x: tk.In, down: tk.Const):
        t = tk.load(x, (0, 0), (4, 128))
        y.store(tk.argsort(t, descending=down))
        z.store(tk.argsort(t, 0, descending=down))
        first, at = tk.topk(t, 8, largest=down)
        v.store(first)
        w.store(at)

    x = any_bits(dtype, 512).reshape(4, 128)
    places, few = np.zeros((4, 128), np.int32), np.zeros((4, 8), np.int32)
    for down in (False, True):
        check_bits(monkeypatch, ordered, [places, places, few.astype(dtype), few], x, down)


@pytest.mark.parametrize("extent", [1, 2, 8, 64, 1024])
def test_sorted_tiles_of_every_extent(machine, monkeypatch, extent):
    """Networks whose partners are lanes of one vector, vectors, or both."""

    @tk.kernel
    def ordered(y: tk.Out, x: tk.In):
        y.store(tk.sort(tk.load_tile_like(x, y)))

    for dtype in (tk.int8, tk.float32, tk.float64):
        x = any_bits(dtype, max(extent, 4))[:extent]
        (found,), _ = both(monkeypatch, ordered, [np.zeros(extent, dtype)], x)
        np.testing.assert_array_equal(found, np.sort(x))


def test_a_sorted_tile_keeps_the_signs_of_zeros(machine):
    @tk.kernel
    def ordered(y: tk.InOut):
        y.store(tk.sort(y.load()))

    y = api.from_host(np.array([0.0, -0.0, -0.0, 0.0, 1.0, -1.0, -0.0, 2.0], np.float32)).sync()
    found = ordered(y.partition(8)).first().unpartition().to_host().sync()
    assert found.tolist() == [-1, 0, 0, 0, 0, 0, 1, 2]
    assert np.signbit(found).sum() == 4


@pytest.mark.parametrize("propagate", [True, False])
@pytest.mark.parametrize("dtype", [tk.int8, tk.uint32, tk.int64, *FLOATS], ids=str)
def test_positions(machine, monkeypatch, dtype, propagate):
    """Of equal elements the first, in rows, in columns and among all; NaN wins or loses."""

    @tk.kernel
    def found(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, x: tk.In, propagate: tk.Const):
        t = tk.load(x, (0, 0), (16, 64))
        a.store(tk.argmax(t, 1, propagate_nan=propagate))
        b.store(tk.argmin(t, 0, propagate_nan=propagate))
        c.store(tk.argmax(t, keepdims=True, propagate_nan=propagate))
        d.store(tk.argmax(tk.expand_dims(tk.load(x, (0, 0), (16, 64)), 2), keepdims=True, propagate_nan=propagate))

    x = any_bits(dtype, 1024, 1).reshape(16, 64)
    shapes = [np.zeros(shape, np.int32) for shape in ((16,), (64,), (1, 1), (1, 1, 1))]
    check_bits(monkeypatch, found, shapes, x, propagate)


@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.uint16, tk.int64, *FLOATS], ids=str)
def test_prefixes(machine, monkeypatch, dtype):
    """Sums and products in the order of the reference, forwards and backwards."""

    @tk.kernel
    def prefixes(a: tk.Out, b: tk.Out, c: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (8, 32))
        a.store(tk.cumsum(t, 1))
        b.store(tk.cumsum(t, 0, reverse=True))
        c.store(tk.cumprod(t, 1, reverse=True))

    x = sample(dtype, n=(8, 32))
    like = np.zeros((8, 32), dtype if dtypes.is_float(dtype) or dtype.itemsize >= 4 else "u4" if dtype.kind == "u" else "i4")
    check_bits(monkeypatch, prefixes, [like] * 3, x)


@tk.function
def first_of(x0, i0, x1, i1):
    better = x0 > x1 or (x0 == x1 and i0 < i1)
    return (x0, i0) if better else (x1, i1)


def test_functions_of_the_user_s(machine, monkeypatch):
    """Functions that branch, lambdas, and operations themselves; floats are added in the reference's order."""

    @tk.kernel
    def folded(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (8, 32))
        numbers = tk.broadcast_to(tk.arange(32), (8, 32))
        best, at = tk.reduce((t, numbers), 1, first_of)
        a.store(best)
        b.store(at)
        c.store(tk.reduce(t, 0, lambda u, v: u + v * 0.5))
        d.store(tk.scan(t, 1, tk.maximum, reverse=True))

    shapes = [np.zeros(8, np.float32), np.zeros(8, np.int32), np.zeros(32, np.float32), np.zeros((8, 32), np.float32)]
    check_bits(monkeypatch, folded, shapes, sample(tk.float32, n=(8, 32)).round())


def plus_twice(a, b):
    return a + b * 2


def test_plain_functions_and_builtins_fold(machine, monkeypatch):
    """Python's `max` and `min` keep the first of two that are not ordered, such as NaN."""

    @tk.kernel
    def folded(a: tk.Out, b: tk.Out, c: tk.Out, x: tk.In):
        t = tk.load(x, 0, 64)
        a.store(tk.reduce(t, 0, max, keepdims=True))
        b.store(tk.reduce(t, 0, min, keepdims=True))
        c.store(tk.scan(t, 0, plus_twice))

    for dtype in (tk.float32, tk.bfloat16, tk.uint8):
        shapes = [np.zeros(1, dtype), np.zeros(1, dtype), np.zeros(64, dtype)]
        check_bits(monkeypatch, folded, shapes, any_bits(dtype, 64, 5))


@pytest.mark.parametrize("extent", [1, 2, 16, 32, 128, 2048])
def test_functions_of_vectors(machine, monkeypatch, extent):
    """One that does not branch takes vectors of neighbours, in the order in which it takes elements, and constants."""

    @tk.kernel
    def folded(a: tk.Out, b: tk.Out, c: tk.Out, x: tk.In, y: tk.In):
        t, u = tk.load(x, 0, extent), tk.load(y, 0, extent)
        a.store(tk.reduce(t, 0, lambda p, q: tk.where(p > 2.0, 1.0, p) * 0.75 - q, keepdims=True))
        v, w = tk.reduce((t, u), 0, lambda p, i, q, j: (p + q, tk.maximum(i, j) + 1), keepdims=True)
        b.store(v)
        c.store(w)

    shapes = [np.zeros(1, np.float64), np.zeros(1, np.float64), np.zeros(1, np.int8)]
    check_bits(monkeypatch, folded, shapes, sample(tk.float64, n=extent), sample(tk.int8, n=extent))


@pytest.mark.parametrize("dtype", dtypes.EIGHT_BIT_FLOATS, ids=str)
def test_casts_of_floats_of_8_bits(machine, monkeypatch, dtype):
    """Of all their numbers, and to them of all of 16 bits and those around what overflows or is subnormal."""

    @tk.kernel
    def widened(a: tk.Out, b: tk.Out, c: tk.Out, x: tk.In):
        t = tk.load(x, 0, 256)
        a.store(t.astype(tk.float16))
        b.store(t.astype(tk.bfloat16))
        c.store(t.astype(tk.float64))

    @tk.kernel
    def narrowed(y: tk.Out, x: tk.In):
        y.store(tk.load(x, 0, y.tile_shape).astype(y.dtype))

    every = np.arange(256, dtype=np.uint8).view(dtype)
    check_bits(monkeypatch, widened, [np.zeros(256, kind) for kind in (np.float16, ml_dtypes.bfloat16, np.float64)], every)
    halves = np.arange(1 << 16, dtype=np.uint16)
    finite = np.sort(every.astype(np.float64)[np.isfinite(every.astype(np.float64))])
    middles = np.concatenate([(finite[:-1] + finite[1:]) / 2, finite])[:256]
    near = np.concatenate([np.nextafter(middles, 1e9), np.nextafter(middles, -1e9), middles, middles * (1 + 2.0**-23)])
    for part in range(0, 1 << 16, 1 << 13):
        for kind in (np.float16, ml_dtypes.bfloat16):
            x = halves[part : part + (1 << 13)].view(kind)
            check_bits(monkeypatch, narrowed, [np.zeros(1 << 13, dtype)], x)
    for kind in (np.float32, np.float64):
        check_bits(monkeypatch, narrowed, [np.zeros(len(near), dtype)], near.astype(kind))


@pytest.mark.parametrize("mode", ["zero", "negative_inf", "positive_inf", "nearest_even"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_rounded_in_a_direction(machine, monkeypatch, dtype, mode):
    """What is added without a direction beside it is rounded to the nearest all the same."""

    @tk.kernel
    def calculated(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, e: tk.Out, x: tk.In, y: tk.In, mode: tk.Const):
        t, u = tk.load(x, 0, 128), tk.load(y, 0, 128)
        a.store(tk.add(t, u, rounding_mode=mode))
        b.store(t + u)
        c.store(tk.truediv(t, u, rounding_mode=mode))
        d.store(tk.fma(t, u, t, rounding_mode=mode))
        e.store(tk.mul(t, u, rounding_mode=mode) + u)

    x, y = (any_bits(dtype, 128, seed) for seed in (2, 3))
    check_bits(monkeypatch, calculated, [np.zeros(128, dtype)] * 5, x, y, mode)


@pytest.mark.parametrize("dtype", [tk.int8, tk.uint8, tk.int32, tk.uint32, tk.int64, tk.uint64], ids=str)
def test_integers(machine, monkeypatch, dtype):
    """Powers, high products, quotients by zero and counts of bits."""

    @tk.kernel
    def calculated(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, e: tk.Out, f: tk.Out, x: tk.In, y: tk.In):
        t, u = tk.load(x, 0, 64), tk.load(y, 0, 64)
        a.store(t**u)
        b.store(tk.mulhi(t, u))
        c.store(tk.cdiv(t, u))
        d.store(tk.divmod(t, u)[1])
        e.store(tk.popcount(t))
        f.store(tk.clz(u))

    x, y = any_bits(dtype, 64), sample(dtype, n=64) % 9
    x[:4], y[:4] = (0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min), np.array([0, -1, -1, -1]).astype(dtype)
    counts = np.zeros(64, np.int32)
    check_bits(monkeypatch, calculated, [np.zeros(64, dtype)] * 4 + [counts] * 2, x, y)


@pytest.mark.parametrize("start", [0, 5, 2**33 + 8, -8])
def test_random_numbers(machine, monkeypatch, start):
    """Of neighbours, which may share a counter, and of scattered offsets."""

    @tk.kernel
    def drawn(a: tk.Out, b: tk.Out, c: tk.Out, d: tk.Out, seed, start):
        at = tk.arange(256, start=start, dtype=tk.int64)
        a.store(tk.rand(seed, at))
        b.store(tk.randn(seed, at ^ 2) + tk.randn(seed, at))
        c.store(tk.randint(seed, at, -5, 2**31, tk.int64))
        d.store(tk.philox(seed, at, at >> 32)[2])

    shapes = [np.zeros(256, kind) for kind in (np.float32, np.float32, np.int64, np.uint32)]
    check_bits(monkeypatch, drawn, shapes, 2**63 + 12345, start)


def test_histograms(machine, monkeypatch):
    """Elements outside the bins, and those that a mask leaves out, count for nothing."""

    @tk.kernel
    def counted(y: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (8, 64))
        y.store(tk.histogram(t, 64, t != 7))

    for dtype in (tk.int8, tk.uint64):
        check_bits(monkeypatch, counted, [np.zeros(64, np.int32)], sample(dtype, n=(8, 64)))
