"""Reductions along every dimension, in registers, lanes and warps; where NumPy's rounding cannot be expected, against float64."""

import itertools
import operator

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, NUMBERS, TOLERANCE, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

CASES = [
    ((64,), None), ((4096,), 0), ((1, 1), None), ((1, 2048), 1), ((8, 128), 1), ((8, 128), 0), ((256, 8), 0), ((64, 64), None),
    ((4, 8, 32), 1), ((4, 8, 32), (0, 2)), ((4, 8, 32), (1, -1)), ((2, 16, 4, 8), (0, 1, 2)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_numpy():
    with np.errstate(all="ignore"):
        yield


@tk.kernel
def reduce_all_ways(y: tk.Out, x: tk.In, which: tk.Const, axis: tk.Const, shape: tk.Const, numbers: tk.Const):
    t = tk.load(x, (0,) * len(shape), shape)
    if which == "sum":
        r = tk.sum(t, axis)
    if which == "prod":
        r = tk.prod(t, axis)
    if which == "max":
        r = tk.max(t, axis, propagate_nan=not numbers)
    if which == "min":
        r = tk.min(t, axis, propagate_nan=not numbers)
    if which == "any":
        r = tk.any(t, axis)
    if which == "all":
        r = tk.all(t, axis)
    if which == "argmax":
        r = tk.argmax(t, axis, propagate_nan=not numbers)
    if which == "argmin":
        r = tk.argmin(t, axis, propagate_nan=not numbers)
    y.store(r.reshape(y.tile_shape))


def reduced(which, dtype, x, axis, shape, numbers=False):
    """`which` of the whole of `x` by the device, as an array of NumPy's shape."""
    wanted = np.sum(x.astype(np.float64), axis).shape
    y = wanted or (1,)
    return run(reduce_all_ways, dtype, x, which, axis, shape, numbers, n=y, tile=y).reshape(wanted)


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [tk.bool_, *NUMBERS], ids=str)
def test_sums(device, dtype, shape, axis):
    x = sample(dtype, n=shape)
    result = tk.int32 if dtype == tk.bool_ or (dtype.itemsize < 4 and dtype.kind == "i") else dtype
    if dtype in (tk.uint8, tk.uint16):
        result = tk.uint32
    found = reduced("sum", result, x, axis, shape)
    if dtypes.is_float(dtype):
        exact, size = np.sum(x.astype(np.float64), axis), np.sum(np.abs(x.astype(np.float64)), axis)
        eps = {tk.float16: 2**-11, tk.bfloat16: 2**-8, tk.float32: 2**-24, tk.float64: 2**-53}[dtype]
        wide = 2**-24 if dtype.itemsize == 2 else eps
        # An element meets 16 additions at most: 10 in the chains and the tree of 64 registers, 6 in lanes and warps.
        assert np.all(np.abs(found.astype(np.float64) - exact) <= eps * np.abs(exact) * 1.01 + 18 * wide * size)
    else:
        check(found, np.asarray(np.sum(x, axis, dtype=result)))


@pytest.mark.parametrize("dtype", [*INTEGERS, tk.float32, tk.float64], ids=str)
def test_products(device, dtype):
    x = (sample(dtype, n=(8, 16)) % 3 + 1).astype(dtype)
    result = {True: tk.uint32, False: tk.int32}[dtype.kind == "u"] if not dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    found = reduced("prod", result, x, 1, (8, 16))
    check(found, np.prod(x, 1, dtype=result), dtype, tolerance=20 * TOLERANCE.get(dtype, 0))


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_extremes(device, dtype, shape, axis):
    x = sample(dtype, n=shape)
    for which in ("max", "min"):
        check(reduced(which, dtype, x, axis, shape), np.asarray(getattr(np, which)(x, axis)))


@pytest.mark.parametrize(("shape", "axis"), [case for case in CASES if not isinstance(case[1], tuple)], ids=str)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_positions_of_extremes(device, dtype, shape, axis):
    x = sample(dtype, n=shape)  # with many ties among the integers
    for which in ("argmax", "argmin"):
        check(reduced(which, tk.int32, x, axis, shape), np.asarray(getattr(np, which)(x, axis)).astype(np.int32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan(device, dtype):
    values = [np.nan, 1.0, np.inf, -np.inf]
    x = np.array(list(itertools.product(values, repeat=4)), dtype)
    wide = x.astype(np.float64)
    for which in ("max", "min"):
        check(reduced(which, dtype, x, 1, x.shape), getattr(np, which)(wide, 1).astype(dtype))
        check(reduced(which, dtype, x, 1, x.shape, True), getattr(np, "f" + which).reduce(wide, 1).astype(dtype))
    for which, worst in (("argmax", -np.inf), ("argmin", np.inf)):
        check(reduced(which, tk.int32, x, 1, x.shape), getattr(np, which)(wide, 1).astype(np.int32))
        best = getattr(np, "f" + which[3:]).reduce(wide, 1)[:, None]
        first = np.argmax((wide == best) | np.isnan(best), 1)
        check(reduced(which, tk.int32, x, 1, x.shape, True), first.astype(np.int32))
        assert worst


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.float16, tk.float32, tk.int64], ids=str)
def test_truth(device, dtype, shape, axis):
    rng = np.random.default_rng(7)
    for share in (0.02, 0.98):
        x = (rng.random(shape) < share).astype(dtype)
        check(reduced("any", tk.bool_, x, axis, shape), np.asarray(np.any(x != 0, axis)))
        check(reduced("all", tk.bool_, x, axis, shape), np.asarray(np.all(x != 0, axis)))


@pytest.mark.parametrize("axis", [0, 1, (0, 1), None], ids=str)
@pytest.mark.parametrize("warps", [1, 2, 8, 16])
def test_dimensions_that_stay_broadcast_back(device, axis, warps):
    @tk.kernel(num_warps=warps)
    def centre(y: tk.Out, x: tk.In, axis: tk.Const):
        t = tk.load(x, (0, 0), (32, 64))
        y.store(t - tk.max(t, axis, keepdims=True) + tk.sum(t - t, axis, keepdims=True))

    x = sample(tk.float32, n=(32, 64))
    check(run(centre, tk.float32, x, axis, n=x.shape, tile=x.shape), x - np.max(x, axis, keepdims=True))


def test_reductions_in_a_loop_do_not_overtake_each_other(device):
    @tk.kernel(num_warps=8)
    def walk(y: tk.Out, x: tk.In):
        best = tk.full((1,), -1e30)
        for i in range(64):
            t = tk.load(x, i, 1024)
            best = tk.maximum(best, tk.max(t, keepdims=True) - tk.min(t, keepdims=True))
        y.store(best)

    x = sample(tk.float32, n=64 * 1024)
    rows = x.reshape(64, 1024)
    check(run(walk, tk.float32, x, n=1, tile=1), np.max(rows.max(1) - rows.min(1), keepdims=True))


def test_a_whole_reduction_is_a_condition_and_an_index(device):
    @tk.kernel
    def pick(y: tk.Out, x: tk.In, places: tk.In):
        t = tk.load(places, 0, 4)
        if tk.any(t > 100):
            y.store(tk.full(8, -1.0))
        elif not tk.all(t >= 0):
            y.store(tk.full(8, -2.0))
        else:
            y.store(tk.load(x, tk.max(t), 8) * tk.sum(t).item())

    x = sample(tk.float32, n=64)
    for places, wanted in [([1, 2, 0, 3], 6 * x[24:32]), ([101, 0, 0, 0], np.full(8, -1)), ([-1, 0, 0, 0], np.full(8, -2))]:
        found = run(pick, tk.float32, x, np.array(places, np.int32), n=8, tile=8)
        check(found, np.asarray(wanted, np.float32), tk.float32)


# -------------------------------------------------------------------------------------------------- functions of the user's


@tk.function
def welford(n, mean, square, m, other, other_square):
    """Counts, means and sums of squared differences of two samples, as those of both."""
    total = n + m
    difference = other - mean
    return total, mean + difference * (m / total), square + other_square + difference * difference * (n * m / total)


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_a_fold_of_three_tiles(device, shape, axis):
    @tk.kernel
    def moments(y: tk.Out, z: tk.Out, x: tk.In, axis: tk.Const, shape: tk.Const):
        t = tk.load(x, (0,) * len(shape), shape)
        n, mean, square = tk.reduce((tk.ones(shape, tk.float32), t, tk.zeros(shape, tk.float32)), axis, welford)
        y.store(mean.reshape(y.tile_shape))
        z.store((square / n).reshape(y.tile_shape))

    x = sample(tk.float32, n=shape)
    wanted = np.mean(x.astype(np.float64), axis)
    small = wanted.shape or (1,)
    y, z, *_ = moments(api.zeros(small).partition(small), api.zeros(small).partition(small), api.from_host(x), axis, shape).sync()
    found = (part.unpartition().to_host().sync().reshape(wanted.shape) for part in (y, z))
    for part, exact in zip(found, (wanted, np.var(x.astype(np.float64), axis)), strict=True):
        np.testing.assert_allclose(part, exact, rtol=2e-5, atol=2e-5)


@tk.function
def first_and_best(x, i, y, j):
    """Of two elements the larger, with its place; of equal ones the first."""
    if x > y or (x == y and i < j):
        return x, i
    return y, j


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [case for case in CASES if isinstance(case[1], int)], ids=str)
@pytest.mark.parametrize("dtype", [tk.int8, tk.uint16, tk.float16, tk.bfloat16, tk.float32, tk.int64], ids=str)
def test_positions_by_a_fold_of_two_dtypes(device, dtype, shape, axis, keepdims):
    @tk.kernel(num_warps=4)
    def best(y: tk.Out, z: tk.Out, x: tk.In, axis: tk.Const, keepdims: tk.Const, shape: tk.Const, row: tk.Const):
        t = tk.load(x, (0,) * len(shape), shape)
        places = tk.arange(shape[axis], dtype=tk.int32).reshape(row)
        found, at = tk.reduce((t, places), axis, first_and_best, keepdims=keepdims)  # shapes that broadcast
        y.store(found.reshape(y.tile_shape))
        z.store(at.reshape(y.tile_shape))

    x = sample(dtype, n=shape)
    wanted = np.argmax(x.astype(np.float64), axis).astype(np.int32)
    small = wanted.shape or (1,)
    row = tuple(n if d == axis % len(shape) else 1 for d, n in enumerate(shape))
    y, z, *_ = best(
        api.zeros(small, dtype).partition(small),
        api.zeros(small, tk.int32).partition(small),
        api.from_host(x),
        axis,
        keepdims,
        shape,
        row,
    ).sync()
    check(z.unpartition().to_host().sync().reshape(wanted.shape), wanted)
    check(y.unpartition().to_host().sync().reshape(wanted.shape), np.asarray(np.max(x.astype(np.float64), axis).astype(dtype)))


def test_lambdas_and_operators_fold(device):
    @tk.kernel
    def folds(y: tk.Out, x: tk.In, which: tk.Const):
        t = tk.load(x, 0, 1024)
        if which == 0:
            y.store(tk.reduce(t, 0, lambda a, b: a ^ b, keepdims=True))
        if which == 1:
            y.store(tk.reduce(t, None, operator.add, 0, keepdims=True))
        if which == 2:
            y.store(tk.reduce(t, axis=0, func=lambda a, b: tk.where(abs(a) > abs(b), a, b), keepdims=True))

    x = np.random.default_rng(2).permutation(2048)[:1024].astype(np.int32) - 1500
    for which, wanted in enumerate([np.bitwise_xor.reduce(x), np.sum(x), x[np.argmax(np.abs(x))]]):
        check(run(folds, tk.int32, x, which, n=1, tile=1), np.array([wanted], np.int32))


def test_two_lambdas_in_one_kernel_are_two_functions(device):
    @tk.kernel
    def both(y: tk.Out, x: tk.In):
        t = tk.load(x, 0, 64)
        low = tk.reduce(t, 0, lambda a, b: tk.minimum(a, b), keepdims=True)
        y.store(tk.reduce(t, 0, lambda a, b: tk.maximum(a, b), keepdims=True) * 1000 + low)

    x = sample(tk.int32, n=64)
    check(run(both, tk.int32, x, n=1, tile=1), np.array([x.max() * 1000 + x.min()], np.int32))


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_a_signalling_nan_takes_nothing_away(device, dtype):
    @tk.kernel
    def largest(y: tk.Out, x: tk.In):
        y.store(tk.max(tk.load(x, 0, 8), propagate_nan=False, keepdims=True))

    x = np.array([15, -1.5, 0.25, 48, 0.5, 0, -6, 5], dtype)
    one = np.ones((), f"u{dtype.itemsize}")
    x.view(one.dtype)[5] = x.dtype.type(np.inf).view(one.dtype) | one  # the exponent of an infinity, and the quiet bit clear
    assert run(largest, dtype, x, n=1, tile=1).astype(np.float64).tolist() == [48]
