"""Sorts along every dimension, in registers, lanes and warps: exact, NaN and ties included."""

import itertools

import numpy as np
import pytest
from parity import FLOATS, NUMBERS, check, run, sample

import tilekit as tk
from tilekit import api, dtypes

CASES = [
    ((1,), 0), ((2,), 0), ((64,), 0), ((2048,), 0), ((1, 1024), 1), ((1, 1024), 0), ((8, 128), 1), ((8, 128), 0), ((256, 8), 0),
    ((32, 32), 0), ((4, 8, 32), 1), ((4, 8, 32), -1), ((2, 16, 4, 8), 1),
]  # fmt: skip


# A sort is thousands of instructions and takes a second to compile: every dtype on some shapes, every shape in some dtypes.
FEW = [((64,), 0), ((8, 128), 1), ((8, 128), 0), ((4, 8, 32), 1)]
VARIED = [(dtype, *case) for dtype in [tk.bool_, *NUMBERS] for case in FEW]
VARIED += [(dtype, *case) for dtype in (tk.float32, tk.int64) for case in CASES if case not in FEW]


@tk.kernel
def order(y: tk.Out, x: tk.In, which: tk.Const, axis: tk.Const, descending: tk.Const):
    t = tk.load_tile_like(x, y)
    if which == "sort":
        y.store(tk.sort(t, axis, descending=descending))
    if which == "argsort":
        y.store(tk.argsort(t, axis, descending=descending))


def values(dtype, shape, seed=0):
    """Samples with many ties; of floats with infinities, NaNs of both signs and -0.0."""
    x = sample(dtype, seed, shape)
    if not dtypes.is_float(dtype):
        return x
    rng = np.random.default_rng(seed)
    special = np.array([np.nan, np.copysign(np.nan, -1), np.inf, -np.inf, -0.0, 0.0, 1.5], dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(special, shape), x).astype(dtype)


def comparable(x):
    return x.astype(np.float32) if x.dtype == tk.bfloat16 else x


def places(x, axis, descending):
    x = comparable(x)
    if not descending:
        return np.argsort(x, axis, kind="stable").astype(np.int32)
    backwards = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis).astype(np.int32)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "axis"), VARIED, ids=str)
def test_sort(device, dtype, shape, axis, descending):
    x = values(dtype, shape)
    wanted = np.sort(comparable(x), axis).astype(dtype)
    found = run(order, dtype, x, "sort", axis, descending, n=shape, tile=shape)
    check(found, np.flip(wanted, axis) if descending else wanted)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "axis"), VARIED, ids=str)
def test_argsort(device, dtype, shape, axis, descending):
    x = values(dtype, shape)
    check(run(order, tk.int32, x, "argsort", axis, descending, n=shape, tile=shape), places(x, axis, descending))


@tk.kernel
def choose(y: tk.Out, at: tk.Out, x: tk.In, k: tk.Const, axis: tk.Const, largest: tk.Const, shape: tk.Const):
    found, where = tk.topk(tk.load(x, (0,) * len(shape), shape), k, axis, largest=largest)
    y.store(found)
    at.store(where)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 8, 64, None])
@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [(tk.float32, *case) for case in CASES] + [(dtype, *case) for dtype in (tk.int8, tk.int64, *FLOATS) for case in FEW[1:3]],
    ids=str,
)
def test_topk(device, dtype, shape, axis, k, largest):
    x, k = values(dtype, shape), min(k or shape[axis], shape[axis])
    wanted = np.take(places(x, axis, largest), np.arange(k), axis)
    small = wanted.shape
    y, at, *_ = choose(
        api.zeros(small, dtype).partition(small),
        api.zeros(small, tk.int32).partition(small),
        api.from_host(x),
        k,
        axis,
        largest,
        shape,
    ).sync()
    check(at.unpartition().to_host().sync(), wanted)
    check(y.unpartition().to_host().sync(), np.take_along_axis(x, wanted.astype(np.int64), axis))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_is_larger_than_infinity(device, dtype):
    special = [np.nan, 1.0, np.inf, -np.inf]
    x = np.array(list(itertools.product(special, repeat=4)), dtype)
    wide = x.astype(np.float64)
    check(run(order, dtype, x, "sort", 1, False, n=x.shape, tile=x.shape), np.sort(wide, 1).astype(dtype))
    check(run(order, dtype, x, "sort", 1, True, n=x.shape, tile=x.shape), np.flip(np.sort(wide, 1), 1).astype(dtype))


@pytest.mark.parametrize("warps", [1, 2, 8, 16])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_number_of_warps(device, axis, warps):
    @tk.kernel(num_warps=warps)
    def both(y: tk.Out, x: tk.In, axis: tk.Const):
        t = tk.transpose(tk.load(x, (0, 0), (64, 32)))
        y.store(tk.sort(t, axis) * 100 + tk.argsort(t, axis, descending=True))

    x = sample(tk.int32, n=(64, 32))
    check(run(both, tk.int32, x, axis, n=(32, 64), tile=(32, 64)), np.sort(x.T, axis) * 100 + places(x.T, axis, True))


def test_sorts_in_a_loop_do_not_overtake_each_other(device):
    @tk.kernel(num_warps=8)
    def merge(y: tk.Out, x: tk.In):
        best = tk.full(512, -10000, tk.int32)
        for i in range(16):
            best = tk.maximum(best, tk.sort(tk.load(x, i, 512), descending=True))  # the 512 largest: a bitonic step
            best = tk.sort(best)
        y.store(best)

    x = np.random.default_rng(5).permutation(16 * 512).astype(np.int32)
    check(run(merge, tk.int32, x, n=512, tile=512), np.sort(x)[-512:])


def test_the_median_of_three(device):
    """What a sort gives serves other operations, in whatever layout it is."""

    @tk.kernel
    def middle(y: tk.Out, x: tk.In):
        t = tk.sort(tk.load(x, (tk.bid(0), 0), (32, 4), padding_mode="inf"), 1)
        y.store(tk.sum(tk.where(tk.arange(4)[None, :] == 1, t, 0.0), 1))

    x = sample(tk.float32, n=(96, 3))
    check(run(middle, tk.float32, x, n=96, tile=32), np.median(x, 1).astype(np.float32))


def test_what_topk_refuses(device):
    def refused(k):
        with pytest.raises(tk.CompileError) as caught:
            run(first, tk.float32, sample(tk.float32, n=64), k, n=8, tile=8)
        return caught.value.reason

    @tk.kernel
    def first(y: tk.Out, x: tk.In, k: tk.Const):
        found, _ = tk.topk(tk.load(x, 0, 64), k)
        y.store(found)

    assert refused(128) == "topk: k is 128, of 64 elements along the axis"
    assert refused(12) == (
        "topk: k is a power of two, as every extent of a tile; 12 is not: take the next one, and of the result what you need"
    )
    assert refused("8") == "topk: k is an int that is known when the kernel is compiled, not '8'"
