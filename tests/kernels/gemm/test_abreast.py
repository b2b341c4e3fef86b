"""`kernels.gemm` with tiles of two powers of two of columns, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from closeness import normal

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import epilogues

f = api.from_host
BF = ml_dtypes.bfloat16
SHAPES = [(130, 200, 136), (300, 1000, 520), (1, 5, 7)]


def wide(x):
    return np.asarray(x).astype(np.float64)


def close(found, a, b, single=2**-22, **more):
    """Within what `tk.mma` states, and the rounding of the result; `more` was added."""
    wanted, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    for what in more.values():
        wanted, size = wanted + what, size + np.abs(what)
    assert found.shape == wanted.shape
    rounding = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}[found.dtype.name]
    allowed = (a.shape[1] + 4) * single * size + 1.01 * rounding * np.abs(wanted) + 1e-6
    assert np.all(np.abs(wide(found) - wanted) <= allowed)


def laid(array, turned):
    """A tensor of the same values, whose columns are contiguous if it is turned."""
    return f(np.ascontiguousarray(array.T)).then(lambda x: tk.value(x.T)) if turned else f(array)


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("tile", [(128, 192, 64), (64, 192, 64), (64, 96, 64), (128, 160, 64)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(device, shape, tile, layouts, splits):
    m, n, k = shape
    a, b = normal((m, k), BF), normal((k, n), BF, 1)
    options = {"tile": tile, "num_warps": 4 if tile[0] == 64 else 8, "splits": splits}
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), **options).to_host().sync()
    close(y, a, b)


DTYPES = [np.float16, np.float32, np.float64, np.int8, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtypes(device, dtype):
    if dtype == np.int8:
        a, b = (np.random.default_rng(seed).integers(-9, 9, shape, np.int8) for seed, shape in ((1, (200, 144)), (2, (144, 400))))
        y = kernels.gemm(f(a), f(b), tile=(64, 192, 64), num_warps=4).to_host().sync()
        assert np.array_equal(y, a.astype(np.int32) @ b.astype(np.int32))
    else:
        options = {"dtype": tk.float32, "single": 2**-10} if np.dtype(dtype).itemsize == 1 else {}
        single = options.pop("single", 2**-22)
        a, b = normal((200, 144), dtype), normal((144, 400), dtype, 1)
        y = kernels.gemm(f(a), f(b), tile=(64, 192, 32), num_warps=4, **options).to_host().sync()
        close(y, a, b, single)


@pytest.mark.parametrize("splits", [1, 2])
def test_what_else_is_done(device, splits):
    a, b, c, bias = (normal(shape, np.float16, seed) for seed, shape in enumerate([(200, 136), (136, 330), (200, 330), 330]))
    options = {
        "alpha": 0.5,
        "beta": 2,
        "epilogue": epilogues.bias,
        "operands": (f(bias),),
        "tile": (128, 192, 64),
        "num_warps": 8,
    }
    y = kernels.gemm(f(a), f(b), f(c), splits=splits, **options).to_host().sync()
    close(y, a * 0.5, b, c=2 * wide(c), bias=wide(bias))


@pytest.mark.parametrize("added", [False, True], ids=["alone", "added to c"])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
def test_one_that_is_chosen(device, layouts, added):
    """Whatever tile that is, and whichever way round; see `test_schedules`."""
    a, b, c = (normal(shape, BF, seed) for seed, shape in enumerate([(312, 1024), (1024, 3648), (312, 3648)]))
    y = kernels.gemm(laid(a, layouts[0] == "T"), laid(b, layouts[1] == "T"), f(c) if added else None).to_host().sync()
    close(y, a, b, c=wide(c) if added else 0.0)


def test_tiles_that_there_are_not():
    x = api.meta((192, 192), tk.float16)
    for tile in ((192, 64, 64), (64, 192, 96), (64, 224, 64), (64, 7, 64), (64, 0, 64), (64, 192.0, 64)):
        with pytest.raises(
            ValueError, match=r"tile is \(BM, BN, BK\), three powers of two, of which BN may be the sum of two, not"
        ):
            kernels.gemm(x, x, tile=tile)
    stack = x.reshape((1, 192, 192))
    with pytest.raises(ValueError, match=r"three powers of two, not \(64, 192, 64\)"):
        kernels.gemm(stack, stack, tile=(64, 192, 64))
    with pytest.raises(ValueError, match=r"three powers of two, not \(64, 192, 64\)"):
        kernels.gemm(x, x, tile=(64, 192, 64), splits="stream")
