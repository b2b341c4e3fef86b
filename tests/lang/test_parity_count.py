"""How often values occur: exact, whatever the layout, however many threads hold copies."""

import re

import numpy as np
import pytest
from parity import INTEGERS, check, run, sample

import tilekit as tk
from tilekit import api
from tilekit.lang import counting

SHAPES = [(1,), (2,), (64,), (256,), (8192,), (1, 512), (16, 8), (64, 64), (2, 16, 4, 8)]


def counted(x, bins):
    x = x.astype(object).reshape(-1)  # the comparisons are those of Python's integers
    return np.bincount([int(v) for v in x if 0 <= v < bins], minlength=bins).astype(np.int32)


@tk.kernel
def count(y: tk.Out, x: tk.In, bins: tk.Const, shape: tk.Const):
    y.store(tk.histogram(tk.load(x, (0,) * len(shape), shape), bins))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_histogram(device, dtype, shape):
    x = sample(dtype, n=shape)
    for bins in (1, 64, 1024):
        check(run(count, tk.int32, x, bins, shape, n=bins, tile=bins), counted(x, bins))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numbers_that_are_no_bins(device, dtype):
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 7, 8, 7] * 2, dtype)
    if dtype.itemsize == 8:
        x[8:12] = 1 << 32  # its lower half is a bin
    check(run(count, tk.int32, x, 8, (16,), n=8, tile=8), counted(x, 8))


@pytest.mark.parametrize("bins", [1 << k for k in range(16)])
def test_every_number_of_bins(device, bins):
    x = np.random.default_rng(bins).integers(-2, bins + 2, 2048).astype(np.int32)
    check(run(count, tk.int32, x, bins, (2048,), n=bins, tile=bins), counted(x, bins))


def test_all_elements_in_one_bin(device):
    x = np.full(8192, 5, np.int16)
    check(run(count, tk.int32, x, 16, (8192,), n=16, tile=16), counted(x, 16))


@pytest.mark.parametrize("warps", [1, 2, 8, 32])
@pytest.mark.parametrize("shape", [(4, 16), (64, 32)], ids=str)
def test_masks(device, shape, warps):
    @tk.kernel(num_warps=warps)
    def count_some(y: tk.Out, x: tk.In, rows: tk.In, which: tk.Const, shape: tk.Const):
        t = tk.load(x, (0, 0), shape)
        if which == "tile":
            y.store(tk.histogram(t, 32, t % 2 == 0))
        if which == "rows":
            y.store(tk.histogram(t, 32, mask=(tk.load(rows, 0, shape[0]) > 0)[:, None]))
        if which == "scalar":
            y.store(tk.histogram(t, 32, mask=False))
        if which == "none":
            y.store(tk.histogram(t, 32, mask=None))

    x, rows = sample(tk.int32, n=shape), np.arange(shape[0], dtype=np.int32) % 3
    left = {"tile": x % 2 == 0, "rows": np.broadcast_to(rows[:, None] > 0, shape), "scalar": x < -1000, "none": x == x}
    for which, mask in left.items():
        check(run(count_some, tk.int32, x, rows, which, shape, n=32, tile=32), counted(x[mask], 32))


def test_tiles_that_are_not_loaded(device):
    """What is the same everywhere, what comes of a reduction and so lies in copies, what was transposed."""

    @tk.kernel(num_warps=4)
    def several(y: tk.Out, x: tk.In):
        t = tk.load(x, (0, 0), (64, 32))
        total = tk.histogram(tk.full(64, 3, tk.int8), 8) + tk.histogram(tk.arange(256) % 8, 8)
        total = total + tk.histogram(tk.sum(t, 1) % 8, 8) + tk.histogram(tk.max(t), 8)
        y.store(total + tk.histogram(tk.transpose(t), 8))

    x = np.random.default_rng(1).integers(0, 8, (64, 32)).astype(np.int32)
    wanted = 64 * (np.arange(8) == 3) + 32 + counted(x.sum(1) % 8, 8) + counted(x.max()[None], 8) + counted(x, 8)
    check(run(several, tk.int32, x, n=8, tile=8), wanted.astype(np.int32))


@pytest.mark.parametrize("bins", [64, 4096])
def test_counts_in_a_loop_do_not_overtake_each_other(device, bins):
    @tk.kernel(num_warps=8)
    def total(y: tk.Out, x: tk.In, bins: tk.Const):
        found = tk.zeros(bins, tk.int32)
        for i in range(50):
            t = tk.load(x, i, 512)
            found = found + tk.histogram(t, bins) * (i + 1) + tk.histogram(t + 1, bins)
        y.store(found)

    x = np.random.default_rng(2).integers(0, bins, 50 * 512).astype(np.int32)
    rows = x.reshape(50, 512)
    wanted = sum((i + 1) * counted(row, bins) + counted(row + 1, bins) for i, row in enumerate(rows))
    check(run(total, tk.int32, x, bins, n=bins, tile=bins), wanted.astype(np.int32))


@tk.kernel
def of_constants(y: tk.Out, x: tk.In, bins: tk.Const, mask: tk.Const):
    y.store(tk.histogram(tk.load(x, 0, 8), bins, mask))


def refuse(kernel, words, dtype=None, *constants):
    """On both devices the call of `tk.histogram` is refused, in the same words. With a `dtype` there is an input, too."""
    inputs = [] if dtype is None else [api.zeros(8, dtype)]
    for launch in (
        kernel(api.zeros(8, tk.int32).partition(8), *inputs, *constants).sync,
        lambda: refused_for_a_gpu(kernel, dtype, *constants),
    ):
        with pytest.raises(tk.CompileError, match=re.escape(words)) as caught:
            launch()
        assert caught.value.reason.startswith("histogram: ")
        assert "tk.histogram(" in caught.value.line


def refused_for_a_gpu(kernel, dtype, *constants):
    inputs = [] if dtype is None else [api.meta(8, dtype)]
    kernel(api.meta(8, tk.int32).partition(8), *inputs, *constants).compile(target="sm_90a")


@pytest.mark.parametrize("dtype", [tk.bool_, tk.float32, tk.bfloat16, tk.float8_e5m2], ids=str)
def test_elements_are_integers(device, dtype):
    words = f"the elements are numbers of bins, integers; this tile holds {dtype.name}: convert it with .astype(tk.int32)"
    refuse(of_constants, words, dtype, 8, None)


@pytest.mark.parametrize(
    ("bins", "words"),
    [
        (12, "bins is a power of two, as every extent of a tile; 12 is not: take the next one, and of the result what you need"),
        (0, "bins is a power of two, as every extent of a tile; 0 is not"),
        (-8, "bins is a power of two, as every extent of a tile; -8 is not"),
        (8.0, "known when the kernel is compiled"),
        (True, "bins is an int that is known when the kernel is compiled, not True"),
        (
            2 * counting.MOST_BINS,
            "65536 bins are more than the shared memory of a block has room for (32768); count in a tensor,",
        ),
    ],
)
def test_numbers_of_bins_that_there_are_not(device, bins, words):
    refuse(of_constants, words, tk.int32, bins, None)


def test_the_number_of_bins_is_known_when_compiling():
    @tk.kernel
    def computed(y: tk.Out, x: tk.In, n: int):
        y.store(tk.histogram(tk.load(x, 0, 8), n))

    with pytest.raises(tk.CompileError, match="histogram: bins must be known when the kernel is compiled; it is a scalar"):
        refused_for_a_gpu(computed, tk.int32, 8)


def test_masks_that_do_not_fit(device):
    refuse(of_constants, "the mask is a bool tile, not", tk.int32, 8, 1)

    @tk.kernel
    def of_ints(y: tk.Out, x: tk.In):
        t = tk.load(x, 0, 8)
        y.store(tk.histogram(t, 8, mask=t))

    refuse(of_ints, "the mask is a bool tile; this one holds int32", tk.int32)

    @tk.kernel
    def of_more(y: tk.Out, x: tk.In):
        y.store(tk.histogram(tk.load(x, 0, 8), 8, mask=tk.arange(8)[:, None] > tk.arange(8)))

    refuse(of_more, "a mask of shape (8, 8) for a tile of shape (8,)", tk.int32)

    @tk.kernel
    def of_a_scalar(y: tk.Out):
        y.store(tk.histogram(3, 8))

    refuse(of_a_scalar, "needs a tile, not ")
