"""Scans along every dimension, in registers, lanes and warps, from both ends; where NumPy's rounding cannot be expected, against
float64."""

import operator

import numpy as np
import pytest
from parity import FLOATS, INTEGERS, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

CASES = [
    ((1,), 0), ((2,), 0), ((64,), 0), ((4096,), 0), ((1, 2048), 1), ((1, 2048), 0), ((8, 128), 1), ((8, 128), 0), ((256, 8), 0),
    ((64, 64), 0), ((64, 64), 1), ((4, 8, 32), 1), ((4, 8, 32), -1), ((4, 8, 32), 0), ((2, 16, 4, 8), 1),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet_numpy():
    with np.errstate(all="ignore"):
        yield


@tk.kernel
def accumulate(y: tk.Out, x: tk.In, which: tk.Const, axis: tk.Const, reverse: tk.Const):
    t = tk.load_tile_like(x, y)
    if which == "sum":
        y.store(tk.cumsum(t, axis, reverse=reverse))
    if which == "prod":
        y.store(tk.cumprod(t, axis, reverse=reverse))


def accumulated(which, dtype, x, axis, reverse=False):
    return run(accumulate, dtype, x, which, axis, reverse, n=x.shape, tile=x.shape)


def wide(dtype):
    """The dtype of sums of `dtype`."""
    if dtypes.is_float(dtype) or dtype.itemsize >= 4:
        return dtype
    return tk.uint32 if dtype.kind == "u" else tk.int32


def flipped(function, x, axis, reverse):
    return np.flip(function(np.flip(x, axis)), axis) if reverse else function(x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.uint16, tk.int32, tk.uint64], ids=str)
def test_sums_of_integers(device, dtype, shape, axis, reverse):
    x, result = sample(dtype, n=shape), wide(dtype)
    wanted = flipped(lambda v: np.cumsum(v, axis, dtype=result), x, axis, reverse)
    check(accumulated("sum", result, x, axis, reverse), wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_floats(device, dtype, shape, axis, reverse):
    x = sample(dtype, n=shape)
    exact = flipped(lambda v: np.cumsum(v.astype(np.float64), axis), x, axis, reverse)
    size = flipped(lambda v: np.cumsum(np.abs(v.astype(np.float64)), axis), x, axis, reverse)
    eps = {tk.float16: 2**-11, tk.bfloat16: 2**-8, tk.float32: 2**-24, tk.float64: 2**-53}[dtype]
    inside = 2**-24 if dtype.itemsize == 2 else eps
    found = accumulated("sum", dtype, x, axis, reverse).astype(np.float64)
    # NumPy's own reference adds one after the other: n roundings; a GPU's fewer.
    assert np.all(np.abs(found - exact) <= eps * np.abs(exact) * 1.01 + x.shape[axis] * inside * size)


@pytest.mark.parametrize("dtype", [*INTEGERS, tk.float32, tk.float64], ids=str)
def test_products(device, dtype):
    x = (sample(dtype, n=(8, 16)) % 3 + 1).astype(dtype)  # at most 3 ** 16: exact in float64, rounded in float32
    for reverse in (False, True):
        wanted = flipped(lambda v: np.cumprod(v, 1, dtype=wide(dtype)), x, 1, reverse)
        check(accumulated("prod", wide(dtype), x, 1, reverse), wanted, dtype, tolerance=3e-6)


@pytest.mark.parametrize("warps", [1, 2, 8, 16])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_number_of_warps(device, axis, warps):
    @tk.kernel(num_warps=warps)
    def both_ways(y: tk.Out, x: tk.In, axis: tk.Const):
        t = tk.transpose(tk.load(x, (0, 0), (64, 32)))  # in a layout that no load of this shape has
        y.store(tk.cumsum(t, axis) * 1000 + tk.cumsum(t, axis, reverse=True))

    x = sample(tk.int32, n=(64, 32))
    wanted = np.cumsum(x.T, axis) * 1000 + flipped(lambda v: np.cumsum(v, axis), x.T, axis, True)
    check(run(both_ways, tk.int32, x, axis, n=(32, 64), tile=(32, 64)), wanted.astype(np.int32))


def test_scans_in_a_loop_do_not_overtake_each_other(device):
    @tk.kernel(num_warps=8)
    def walk(y: tk.Out, x: tk.In):
        total = tk.zeros(1024, tk.int32)
        for i in range(64):
            total = tk.cumsum(tk.load(x, i, 1024) + total, 0)
        y.store(total)

    x = sample(tk.int32, n=64 * 1024)
    wanted = np.zeros(1024, np.int32)
    for row in x.reshape(64, 1024):
        wanted = np.cumsum(row + wanted, dtype=np.int32)
    check(run(walk, tk.int32, x, n=1024, tile=1024), wanted)


def test_long_rows_by_many_blocks(device):
    x = sample(tk.float32, n=(300, 1024)).round()
    found = accumulate(api.zeros(x.shape).partition((1, 1024)), api.from_host(x), "sum", 1, False)
    check(found.first().unpartition().to_host().sync(), np.cumsum(x, 1, dtype=np.float32))


# -------------------------------------------------------------------------------------------------- functions of the user's


@tk.function
def one_after_the_other(a, b, p, q):
    """The maps x -> a * x + b and x -> p * x + q, one after the other: associative, and not commutative."""
    return a * p, b * p + q


@tk.kernel
def maps(y: tk.Out, z: tk.Out, a: tk.In, b: tk.In, axis: tk.Const, reverse: tk.Const):
    factors, terms = tk.scan((tk.load_tile_like(a, y), tk.load_tile_like(b, y)), axis, one_after_the_other, reverse=reverse)
    y.store(factors)
    z.store(terms)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_scans_keep_the_order_of_operands(device, shape, axis, reverse):
    a, b = sample(tk.int32, n=shape) | 1, sample(tk.int32, 1, shape)
    y, z, *_ = maps(
        api.zeros(shape, tk.int32).partition(shape), api.zeros(shape, tk.int32).partition(shape), api.from_host(a),
        api.from_host(b), axis, reverse,
    ).sync()  # fmt: skip
    p, q = (np.moveaxis(np.flip(v, axis) if reverse else v, axis, 0).copy() for v in (a, b))
    for k in range(1, len(p)):
        q[k] += q[k - 1] * p[k]
        p[k] *= p[k - 1]
    for found, wanted in ((y, p), (z, q)):
        wanted = np.moveaxis(wanted, 0, axis)
        check(found.unpartition().to_host().sync(), np.flip(wanted, axis) if reverse else wanted)


@tk.function
def last_that_is_set(value, is_set, other, other_is_set):
    if other_is_set:  # a condition on elements
        return other, other_is_set
    return value, is_set


@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.bfloat16, tk.float64], ids=str)
def test_tiles_of_different_dtypes(device, dtype):
    @tk.kernel
    def fill(y: tk.Out, x: tk.In, known: tk.In):
        shape = y.tile_shape
        made, _ = tk.scan((tk.load(x, (0, 0), shape), tk.load(known, (0, 0), shape)), 1, last_that_is_set)
        y.store(made)

    x, known = sample(dtype, n=(8, 128)), np.random.default_rng(1).random((8, 128)) < 0.2
    wanted = x.copy()
    for at in range(1, 128):
        wanted[:, at] = np.where(known[:, at], x[:, at], wanted[:, at - 1])
    check(run(fill, dtype, x, known, n=x.shape, tile=x.shape), wanted)


def test_lambdas_and_operators(device):
    scale = 1

    @tk.kernel
    def sums(y: tk.Out, x: tk.In, which: tk.Const, unit: tk.Const):
        t = tk.load_tile_like(x, y)
        if which == 0:
            y.store(tk.scan(t, 0, lambda a, b: (a + b) * scale * unit))
        if which == 1:
            y.store(tk.scan(t, 0, operator.add, 0))
        if which == 2:
            y.store(tk.scan(t, axis=0, func=lambda t, u: tk.maximum(t, u), identity=-1000))

    x = sample(tk.int32, n=256)
    for which, wanted in enumerate([np.cumsum(x, dtype=np.int32), np.cumsum(x, dtype=np.int32), np.maximum.accumulate(x)]):
        check(run(sums, tk.int32, x, which, 1, n=256, tile=256), wanted)


def test_what_a_scan_refuses(device):
    def refused(kernel):
        with pytest.raises(tk.CompileError) as caught:
            run(kernel, tk.int32, sample(tk.int32, n=64), n=64)
        return caught.value.reason

    @tk.kernel
    def axis(y: tk.Out, x: tk.In):
        y.store(tk.cumsum(tk.load_tile_like(x, y), 1))

    assert refused(axis) == "cumsum: axis 1 of a tile with 1 dimensions; there are -1 to 0"

    @tk.kernel
    def other_dtype(y: tk.Out, x: tk.In):
        y.store(tk.scan(tk.load_tile_like(x, y), 0, lambda a, b: a * 0.5 + b))

    assert refused(other_dtype) == "scan: func gives float32 where it gets int32; cast its result with .astype(...)"

    @tk.kernel
    def count(y: tk.Out, x: tk.In):
        y.store(tk.scan(tk.load_tile_like(x, y), 0, one_after_the_other))

    assert refused(count) == "scan: func takes 4 values; for 1 tile it must take 2"

    @tk.kernel
    def no_function(y: tk.Out, x: tk.In):
        y.store(tk.scan(tk.load_tile_like(x, y), 0, 1))

    assert refused(no_function) == (
        "scan: func is a @tk.function, a lambda, or a function of the module operator, not a scalar (int)"
    )

    @tk.kernel
    def pair(y: tk.Out, x: tk.In):
        y.store(tk.scan(tk.load_tile_like(x, y), 0, lambda a, b: (a, b)))

    assert refused(pair) == "scan: func gives 2 values, and takes two times 1: it must give 1"

    @tk.kernel
    def scalar(y: tk.Out, x: tk.In):
        y.store(tk.scan(tk.load_tile_like(x, y), 0, lambda a, b: 1))

    assert refused(scalar) == "scan: func gives a scalar (int), and must give a tile of shape ()"
