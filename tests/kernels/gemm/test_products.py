"""`kernels.gemm` against NumPy in float64: dtypes, sizes, strides, epilogues, batches, sums in parts, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from closeness import FLOATS, normal

import tilekit as tk
from tilekit import api, kernels
from tilekit.kernels import epilogues
from tilekit.kernels._gemm import model, products, schedules, stream_k
from tilekit.kernels._gemm.product_kernels import function_of, kernels_of

f = api.from_host
E4, E5, BF = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
named = {"ids": lambda d: np.dtype(d).name}
# Half of the distance between 1 and the next number: what rounding the result costs.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


def wide(x):
    return np.asarray(x).astype(np.float64)


def close(found, expected, size, k, single=2**-22):
    """Within what `tk.mma` states over `k` products, whose sizes add up to `size`, and the rounding of the result."""
    assert found.shape == expected.shape
    rounding = ROUNDING[found.dtype.name]
    each = 2**-52 if found.dtype == np.float64 else single
    allowed = (k + 4) * each * size + 1.01 * rounding * np.abs(expected) + 1e-6
    off = np.abs(wide(found) - expected)
    assert np.all(off <= allowed), f"off by up to {np.max(off - allowed):.3g} more than is allowed"


def check(a, b, **options):
    """Whether `gemm` of two arrays is right."""
    y = kernels.gemm(f(a), f(b), **options).to_host().sync()
    close(y, wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), a.shape[-1])
    return y


SHAPES = [(1, 1, 1), (5, 7, 3), (64, 64, 64), (130, 257, 100), (16, 300, 1000), (300, 16, 520), (512, 384, 256), (1, 512, 2000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, **named)
def test_floats(device, dtype, shape):
    m, n, k = shape
    assert check(normal((m, k), dtype), normal((k, n), dtype, 1)).dtype == dtype


# K is contiguous in both operands: on compute capability 9.0 warpgroups multiply them. Of 8 bits, the last two are copied by
# threads, since their rows are multiples of 4 and 8 bytes; others come by the tensor memory accelerator.
DEEP = [
    (64, 64, 128), (130, 257, 112), (16, 300, 1024), (300, 16, 528), (512, 384, 256), (1, 512, 2000), (200, 136, 4096),
    (130, 257, 108), (96, 300, 1000),
]  # fmt: skip


def turned(array):
    """A tensor that lies in memory as the transpose."""
    return f(np.ascontiguousarray(array.T)).sync().T


@pytest.mark.parametrize("shape", DEEP, ids=str)
def test_tf32_of_turned_operands(device, shape):
    m, n, k = shape
    a, b = normal((m, k), np.float32), normal((k, n), np.float32, 1)
    y = kernels.gemm(f(a), turned(b), precision="tf32").to_host().sync()
    close(y, wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), k, single=2**-22 + 2.01 * 2**-10 / k)
    cut = [x.view(np.uint32) & np.uint32(0xFFFFE000) for x in (a, b)]  # numbers that tf32 holds
    a, b = (x.view(np.float32) for x in cut)
    y = kernels.gemm(f(a), turned(b), precision="tf32").to_host().sync()
    close(y, wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), k)


@pytest.mark.parametrize("dtype", [np.float32, BF], **named)
@pytest.mark.parametrize("precision", ["ieee", "fast"])
@pytest.mark.parametrize("shape", DEEP, ids=str)
@pytest.mark.parametrize(("left", "right"), [(E4, E4), (E4, E5), (E5, E4)], **named)
def test_turned_floats_of_8_bits(device, left, right, shape, precision, dtype):
    m, n, k = shape
    a, b = normal((m, k), left), normal((k, n), right, 1)
    expected, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    y = kernels.gemm(f(a), turned(b), precision=precision, dtype=dtype).to_host().sync()
    chain = k if precision == "fast" else min(k, 128)
    close(y, expected, size, k, single=2**-22 + 2**-12 * chain / k)
    if precision == "ieee":  # what such sums lose of random numbers
        assert np.abs(wide(y) - expected).max() <= (1e-3 + ROUNDING[np.dtype(dtype).name]) * np.abs(expected).max()


def test_long_sums_of_floats_of_8_bits(device):
    """Of positive numbers, where the tensor cores' own sums drift: the model of them is off by 0.05, and 0.0006 by parts of K."""
    a, b = np.abs(normal((64, 8192), E4)), np.abs(normal((8192, 64), E4, 1))
    y = kernels.gemm(f(a), turned(b), splits=1).to_host().sync()
    np.testing.assert_allclose(y, wide(a) @ wide(b), rtol=2e-3)


@pytest.mark.parametrize(("left", "right"), [(E4, E5), (np.int8, np.uint8), (np.uint8, np.uint8), (np.int8, np.int8)], **named)
@pytest.mark.parametrize("shape", DEEP, ids=str)
def test_turned_whole_numbers_are_exact(device, left, right, shape):
    m, n, k = shape
    random = np.random.default_rng(0)
    ranges = {np.uint8: (0, 256), np.int8: (-128, 128)}  # floats are so small that sums of 4096 fit 14 bits
    a, b = (random.integers(*ranges.get(d, (-1, 2)), s).astype(d) for d, s in ((left, (m, k)), (right, (k, n))))
    y = kernels.gemm(f(a), turned(b)).to_host().sync()
    assert np.array_equal(y, (wide(a) @ wide(b)).astype(y.dtype))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tile", [(64, 64, 128), (128, 128, 128), (128, 256, 128), (64, 128, 256)], ids=str)
@pytest.mark.parametrize("dtype", [E4, np.int8], **named)
def test_tiles_of_turned_operands(device, dtype, tile, splits):
    random = np.random.default_rng(0)
    a, b, c = (random.integers(-3, 4, s) for s in ((200, 464), (464, 300), (200, 300)))
    into = np.int32 if dtype == np.int8 else np.float32
    y = kernels.gemm(f(a.astype(dtype)), turned(b.astype(dtype)), f(c.astype(into)), beta=2, tile=tile, splits=splits)
    assert np.array_equal(y.to_host().sync(), a @ b + 2 * c)


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("count", "m", "n"), [(1, 3, 5), (7, 130, 300), (59, 8, 8), (22, 64, 257)])
def test_parts_are_added_up_several_at_a_time(cpu, monkeypatch, count, m, n, turned):
    """As on a GPU, with fewer parts behind the last ones than are loaded at once, and results in rows or columns."""
    monkeypatch.setattr(products, "on_cpu", lambda _: False)
    monkeypatch.setattr(products, "multiprocessors", lambda _: 132)
    parts = np.random.default_rng(0).standard_normal((count, m, n)).astype(np.float32)
    out = api.from_host(np.full((n, m) if turned else (m, n), np.nan, np.float32)).sync()
    target = out.T if turned else out
    products.parts_added_up(target, api.from_host(parts).sync(), count).sync()
    y = out.to_host().sync()
    np.testing.assert_allclose(y.T if turned else y, parts.astype(np.float64).sum(0), atol=1e-4)


def test_batches_of_turned_operands(device):
    random = np.random.default_rng(0)
    a, b = random.integers(-8, 8, (3, 140, 160)).astype(np.int8), random.integers(-8, 8, (3, 160, 150)).astype(np.int8)
    each = f(np.ascontiguousarray(np.swapaxes(b, 1, 2))).sync().permute(0, 2, 1)
    assert np.array_equal(kernels.gemm(f(a), each).to_host().sync(), a.astype(np.int32) @ b.astype(np.int32))
    assert np.array_equal(kernels.gemm(f(a), turned(b[0])).to_host().sync(), a.astype(np.int32) @ b[0].astype(np.int32))


@pytest.mark.parametrize("shape", [(130, 257, 100), (256, 256, 256)], ids=str)
def test_tf32(device, shape):
    m, n, k = shape
    a, b = normal((m, k), np.float32), normal((k, n), np.float32, 1)
    y = kernels.gemm(f(a), f(b), precision="tf32").to_host().sync()
    size = np.abs(wide(a)) @ np.abs(wide(b))
    close(y, wide(a) @ wide(b), size, k, single=2**-22 + 2**-10 / k)
    assert np.abs(wide(y) - wide(a) @ wide(b)).max() > 1e-5 * size.max(), "the operands are rounded"


@pytest.mark.parametrize(("left", "right"), [(E4, E4), (E4, E5), (E5, E5)], **named)
def test_floats_of_8_bits(device, left, right):
    y = check(normal((100, 200), left), normal((200, 72), right, 1))
    assert y.dtype == np.float32


@pytest.mark.parametrize(("left", "right"), [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)], **named)
def test_integers(device, left, right):
    random = np.random.default_rng(0)
    a, b = (random.integers(np.iinfo(d).min, np.iinfo(d).max, s).astype(d) for d, s in ((left, (70, 300)), (right, (300, 90))))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    y = kernels.gemm(f(a), f(b)).to_host().sync()
    assert y.dtype == np.int32
    assert np.array_equal(y, exact)
    c = np.arange(90, dtype=np.int32)
    assert np.array_equal(kernels.gemm(f(a), f(b), f(c), alpha=3, beta=-2).to_host().sync(), 3 * exact - 2 * c)


@pytest.mark.parametrize("dtype", [np.float16, np.float32], **named)
def test_strides(device, dtype):
    """Transposed operands, slices, rows at addresses that are no multiples of 16 bytes, gaps between all elements."""
    host_a, host_b = normal((200, 160), dtype), normal((160, 136), dtype, 1)
    a, b = f(host_a).sync(), f(host_b).sync()
    turned_a, turned_b = f(np.ascontiguousarray(host_a.T)).sync().T, f(np.ascontiguousarray(host_b.T)).sync().T
    odd_a = f(np.pad(host_a, ((0, 0), (1, 2)))).sync()[:, 1:161]
    every = f(np.repeat(np.repeat(host_b, 2, 0), 3, 1)).sync()[::2, ::3]
    expected, size = wide(host_a) @ wide(host_b), np.abs(wide(host_a)) @ np.abs(wide(host_b))
    for left, right in [(turned_a, b), (a, turned_b), (turned_a, turned_b), (odd_a, b), (odd_a, turned_b), (turned_a, every)]:
        close(kernels.gemm(left, right).to_host().sync(), expected, size, 160)
    room = f(np.zeros((150, 220), dtype)).sync()
    into = room[3:139, 5:205].T
    assert kernels.gemm(a, b, out=into).sync() is into
    written = room.to_host().sync()
    close(written[3:139, 5:205].T, expected, size, 160)
    assert (written[:3] == 0).all()
    assert (written[:, 205:] == 0).all()


# A tile for each of the ways: that of one block, many of them, warps that share rows and columns.
TILES = [((64, 64, 64), 4), ((128, 128, 64), 8), ((16, 32, 16), 1), ((64, 256, 32), 4)]


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 100, "stream"])
@pytest.mark.parametrize(("tile", "warps"), TILES, ids=str)
@pytest.mark.parametrize("dtype", [BF, np.float32], **named)
def test_tiles_and_parts(device, dtype, tile, warps, splits):
    a, b = normal((200, 456), dtype), normal((456, 264), dtype, 1)
    first = check(a, b, tile=tile, num_warps=warps, splits=splits)
    again = check(a, b, tile=tile, num_warps=warps, splits=splits)
    assert first.tobytes() == again.tobytes()


def test_more_tiles_than_blocks(device):
    a, b = normal((1100, 96), np.float16), normal((96, 1300), np.float16, 1)
    check(a, b, tile=(32, 32, 32))
    if device.kind == "cuda":
        check(normal((4200, 200), BF), normal((200, 5000), BF, 1))


@pytest.mark.parametrize("splits", [1, 3, "stream"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], **named)
def test_factors_and_what_is_added(device, dtype, splits):
    a, b, c = normal((90, 200), dtype), normal((200, 70), dtype, 1), normal((90, 70), dtype, 2)
    product, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)) + 3

    def right(found, expected):
        close(found.to_host().sync(), expected, size, 200)

    right(kernels.gemm(f(a), f(b), f(c), splits=splits), product + wide(c))
    right(kernels.gemm(f(a), f(b), f(c), alpha=0.5, beta=-2.0, splits=splits), 0.5 * product - 2 * wide(c))
    right(kernels.gemm(f(a), f(b), alpha=-1, splits=splits), -product)
    right(kernels.gemm(f(a), f(b), f(c[0]), splits=splits), product + wide(c[0]))
    right(kernels.gemm(f(a), f(b), f(c[:, :1]), splits=splits), product + wide(c[:, :1]))
    nobody = np.full_like(c, np.nan)
    right(kernels.gemm(f(a), f(b), f(nobody), beta=0, splits=splits), product)
    target = f(c).sync()
    assert kernels.gemm(f(a), f(b), target, beta=2, out=target, splits=splits).sync() is target
    right(target, product + 2 * wide(c))


@pytest.mark.parametrize("splits", [None, "stream"])
@pytest.mark.parametrize("shape", [(90, 70), (3, 90, 70), (400, 330)], ids=str)
def test_in_place_of_what_is_added(device, shape, splits):
    """Blocks keep to tiles of their own, of what they add too: as `c`, and as an operand of the epilogue."""
    if splits and len(shape) == 3:
        pytest.skip("only products of matrices are split")
    a, b, c = (
        normal((*shape[:-1], 96), np.float16),
        normal((*shape[:-2], 96, shape[-1]), np.float16, 1),
        normal(shape, np.float16, 2),
    )
    product, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)) + 3
    for given in ({"beta": 2}, {"epilogue": epilogues.residual}):
        target = f(c).sync()
        more = {"operands": (target,)} if "epilogue" in given else {"c": target}
        kernels.gemm(f(a), f(b), out=target, tile=(32, 32, 32), splits=splits, **more, **given).sync()
        close(target.to_host().sync(), product + given.get("beta", 1) * wide(c), size, 96)


def erf(x):
    from math import erf

    return np.vectorize(erf)(x)


NUMPY = {
    "bias": lambda x, t: x + t,
    "residual": lambda x, t: x + t,
    "scale": lambda x, t: x * t,
    "bias_relu": lambda x, t: np.maximum(x + t, 0),
    "bias_gelu": lambda x, t: (x + t) * (1 + erf((x + t) / 2**0.5)) / 2,
    "bias_silu": lambda x, t: (x + t) / (1 + np.exp(-(x + t))),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / 2**0.5)) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def test_all_epilogues_are_here():
    assert set(NUMPY) == set(epilogues.__all__)


@pytest.mark.parametrize("splits", [1, 4, "stream"])
@pytest.mark.parametrize("name", NUMPY)
def test_ready_made_epilogues(device, name, splits):
    a, b = normal((60, 256), np.float32), normal((256, 130), np.float32, 1) / 16
    shape = {"residual": (60, 130), "scale": (60, 1)}.get(name, (130,))
    tensors = (normal(shape, np.float32, 2),) if name not in ("relu", "gelu", "silu") else ()
    y = kernels.gemm(f(a), f(b), epilogue=getattr(epilogues, name), operands=[f(t) for t in tensors], splits=splits)
    np.testing.assert_allclose(y.to_host().sync(), NUMPY[name](wide(a) @ wide(b), *map(wide, tensors)), rtol=2e-5, atol=2e-5)


def mixed(acc, row, column, matrix):
    return tk.maximum(acc * row + column, matrix) * 2.0


def test_epilogues_of_ones_own(device):
    a, b = normal((60, 256), np.float16), normal((256, 130), np.float16, 1)
    row, column, matrix = normal((60, 1), np.float32, 2), normal((130,), BF, 3), normal((60, 130), np.float16, 4)
    y = kernels.gemm(f(a), f(b), epilogue=mixed, operands=(f(row), f(column), f(matrix)), dtype=tk.float32)
    expected = np.maximum((wide(a) @ wide(b)) * wide(row) + wide(column), wide(matrix)) * 2
    np.testing.assert_allclose(y.to_host().sync(), expected, rtol=1e-4, atol=1e-3)
    cubed = kernels.gemm(f(a), f(b), epilogue=_cube)
    np.testing.assert_allclose(wide(cubed.to_host().sync()), np.clip((wide(a) @ wide(b)) ** 3, -65000, 65000), rtol=2e-2, atol=2)


def _cube(acc):
    return tk.minimum(tk.maximum(acc * acc * acc, -65000.0), 65000.0)


def test_numpy_numbers_are_numbers(device):
    a, b, c = normal((20, 30), np.float32), normal((30, 20), np.float32, 1), normal((20, 20), np.float32, 2)
    y = kernels.gemm(f(a), f(b), f(c), alpha=np.float64(0.5), beta=np.float64(-1)).to_host().sync()
    close(y, 0.5 * (wide(a) @ wide(b)) - wide(c), np.abs(wide(a)) @ np.abs(wide(b)) + 3, 30)


def test_one_kernel_for_each_epilogue():
    assert kernels_of(function_of(_cube)) is kernels_of(function_of(_cube))
    assert function_of(_cube) is not function_of(mixed)


@pytest.mark.parametrize("dtype", [tk.float32, tk.bfloat16, tk.float64], **named)
def test_the_dtype_of_the_result(device, dtype):
    a, b = normal((60, 256), np.float16), normal((256, 130), np.float16, 1)
    op = kernels.gemm(f(a), f(b), dtype=dtype)
    assert (op.shape, op.dtype) == ((60, 130), dtype)
    y = op.to_host().sync()
    size = np.abs(wide(a)) @ np.abs(wide(b))
    close(y.astype(np.float32) if dtype == tk.float64 else y, wide(a) @ wide(b), size, 256)


@pytest.mark.parametrize("dtype", [BF, np.float32], **named)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("which", ["both", "a", "b"])
def test_batches(device, which, splits, dtype):
    a = normal((3, 70, 100) if which != "b" else (70, 100), dtype)
    b = normal((3, 100, 90) if which != "a" else (100, 90), dtype, 1)
    c, column = normal((3, 70, 90), dtype, 2), normal((90,), dtype, 3)
    product, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)) + 3
    close(check(a, b, splits=splits), product, size, 100)
    y = kernels.gemm(f(a), f(b), f(c), alpha=2, epilogue=epilogues.bias, operands=(f(column),), splits=splits)
    close(y.to_host().sync(), 2 * product + wide(c) + wide(column), 2 * size, 100)
    close(kernels.gemm(f(a), f(b), f(c[0]), splits=splits).to_host().sync(), product + wide(c[0]), size, 100)
    close(kernels.gemm(f(a), f(b), f(c[:, :1, :1]), splits=splits).to_host().sync(), product + wide(c[:, :1, :1]), size, 100)
    if which == "both":
        turned = f(np.ascontiguousarray(np.swapaxes(a, 1, 2))).sync().permute(0, 2, 1)
        close(kernels.gemm(turned, f(b), splits=splits).to_host().sync(), product, size, 100)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8], **named)
def test_nothing(device, dtype):
    def zeros(*shape):
        return f(np.zeros(shape, dtype))

    for shape in ((0, 5, 4), (5, 0, 4), (0, 0, 0)):
        m, n, k = shape
        assert kernels.gemm(zeros(m, k), zeros(k, n)).sync().shape == (m, n)
    assert kernels.gemm(zeros(0, 5, 4), zeros(4, 3)).sync().shape == (0, 5, 3)
    out = np.dtype(np.int32 if dtype == np.int8 else dtype)
    c = np.arange(15).reshape(3, 5).astype(out)
    assert (kernels.gemm(zeros(3, 0), zeros(0, 5)).to_host().sync() == np.zeros((3, 5), out)).all()
    assert (kernels.gemm(zeros(3, 0), zeros(0, 5), f(c), beta=2).to_host().sync() == 2 * c).all()
    assert (kernels.gemm(zeros(2, 3, 0), zeros(0, 5), f(c)).to_host().sync() == np.stack([c, c])).all()


def test_infinities_and_nan(device):
    a, b = normal((40, 64), np.float16), normal((64, 48), np.float16, 1)
    a[3, 5], b[7, 9] = np.inf, np.nan
    y = kernels.gemm(f(a), f(b)).to_host().sync()
    assert np.isnan(y[:, 9]).all()
    assert np.isinf(np.delete(y[3], 9)).all()
    assert np.isfinite(np.delete(np.delete(y, 9, 1), 3, 0)).all()


def test_ops_in_every_place(device):
    op = kernels.gemm(api.ones((4, 8)), api.ones((8, 3)), api.ones(3), epilogue=epilogues.bias, operands=(api.ones((4, 3)),))
    assert (op.shape, op.dtype, op.label) == ((4, 3), tk.float32, "gemm")
    assert (op.to_host().sync() == 10).all()


def refuse(call, error, *parts):
    with pytest.raises(error) as info:
        call()
    for part in parts:
        assert part in str(info.value)


def test_mistakes(device):
    def x(*shape, dtype=tk.float32):
        return api.zeros(shape, dtype).sync()

    a, b = x(4, 8), x(8, 6)
    gemm = kernels.gemm
    refuse(lambda: gemm(x(4, 8), x(6, 8)), ValueError, "gemm: a has shape (4, 8), b (6, 8)", "columns of 6", "pass a.T or b.T?")
    refuse(lambda: gemm(x(4, 8), x(7, 6)), ValueError, "rows of 8 elements meet columns of 7")
    refuse(lambda: gemm(x(8), b), ValueError, "a has shape (8,)", "a matrix, or a batch of matrices")
    refuse(lambda: gemm(x(2, 4, 8), x(3, 8, 6)), ValueError, "batches of 2 and 3 matrices")
    refuse(lambda: gemm([[1.0]], b), TypeError, "gemm: a is a tensor", "not list")
    refuse(lambda: gemm(a, x(8, 6, dtype=tk.float16)), TypeError, "gemm: no product of float32 and float16", ".astype(...)")
    refuse(lambda: gemm(x(4, 8, dtype=tk.int32), x(8, 6, dtype=tk.int32)), TypeError, "no product of int32 and int32")
    refuse(lambda: gemm(a, b, x(4, 5)), ValueError, "c has shape (4, 5), which does not broadcast to (4, 6)")
    refuse(lambda: gemm(a, b, x(1, 4, 6)), ValueError, "c has shape (1, 4, 6), which does not broadcast")
    refuse(lambda: gemm(a, b, epilogue=epilogues.bias, operands=(x(4),)), ValueError, "operands[0] has shape (4,)", "(4, 6)")
    refuse(lambda: gemm(a, b, operands=(x(6),)), ValueError, "operands are for an epilogue", "epilogues.bias")
    refuse(lambda: gemm(a, b, epilogue=mixed, operands=[x(6)] * 4), ValueError, "4 operands", "up to 3")
    refuse(lambda: gemm(a, b, epilogue=lambda acc: acc), TypeError, "epilogue is a lambda", "with def, once")
    refuse(lambda: gemm(a, b, epilogue=3), TypeError, "epilogue is a function in the tile language")
    refuse(lambda: gemm(a, b, alpha="2"), TypeError, "alpha is a number, not '2'")
    refuse(lambda: gemm(x(4, 8, dtype=tk.int8), x(8, 6, dtype=tk.int8), alpha=0.5), TypeError, "alpha is an int, for integers")
    refuse(lambda: gemm(a, b, precision="tf16"), ValueError, '"ieee", "tf32" or "fast", not \'tf16\'')
    refuse(lambda: gemm(a, b, out=x(6, 4)), ValueError, "out is float32 of shape (6, 4), the result is float32 of shape (4, 6)")
    refuse(lambda: gemm(a, b, dtype=tk.float16, out=x(4, 6)), ValueError, "the result is float16")
    refuse(lambda: gemm(a, b, tile=(48, 64, 64)), ValueError, "tile is (BM, BN, BK), three powers of two, of which BN may be")
    refuse(lambda: gemm(a, b, splits=0), ValueError, 'splits is an int from 1 on, or "stream", not 0')
    refuse(lambda: gemm(a, b, splits="wave"), ValueError, "or \"stream\", not 'wave'")
    refuse(lambda: gemm(x(2, 4, 8), b, splits="stream"), ValueError, 'splits = "stream" is for matrices', "so many parts each")
    refuse(lambda: gemm(a, b, out=a.reshape(8, 4)[:4, :].reshape(4, 4)[:, :4]), ValueError, "out is float32")


# ---------------------------------------------------------------------------------------------------------------------- schedules


def schedule(m, n, k, batch=1, count=132, **options):
    facts = {name: options.pop(name) for name in model.Product._fields if name in options}
    product = model.Product((batch, m, n, k), count, **{"itemsize": 2, **facts})
    given = {"staged": True, "copied": False, "even": True, "cpu": False, "tf32": False}
    return schedules.schedule_of(product, **given | {"tile": None, "num_warps": None, "splits": None} | options)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((2048, 2048, 2048), (128, 256, 64)),
        ((4096, 4096, 4096), (128, 256, 64)),
        ((16384, 16384, 16384), (128, 256, 64)),
        ((8192, 8192, 1024), (128, 256, 64)),
        ((512, 8192, 8192), (128, 256, 64)),
        ((1024, 1024, 1024), (64, 128, 64)),
        ((16, 8192, 8192), (64, 64, 64)),
    ],
    ids=str,
)
def test_tiles_by_size(shape, tile):
    found = schedule(*shape)
    assert (found.rows, found.columns, found.depth) == tile


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_the_depth_of_a_tile_is_in_bytes(itemsize):
    for shape, nbytes in (((8192, 8192, 8192), 128), ((1024, 1024, 1024), 128), ((8192, 16, 8192), 512)):
        assert schedule(*shape, itemsize=itemsize).depth == nbytes // itemsize
    large = schedule(8192, 8192, 8192, itemsize=itemsize, summed=itemsize == 1)
    assert (large.rows, large.columns, large.num_warps) == (128, 256, 8)


def test_parts_cover_all_of_k_and_none_is_empty():
    for m, n, k in [(16, 4096, 4096), (64, 64, 100000), (1, 512, 5000), (256, 256, 65536), (64, 64, 65)]:
        for staged in (True, False):
            found = schedule(m, n, k, staged=staged)
            steps = -(-k // found.depth)
            assert found.splits * found.share >= steps > (found.splits - 1) * found.share
    assert schedule(64, 64, 100000).splits > 20
    assert schedule(4096, 4096, 4096).splits == 1
    assert 5 < schedule(64, 64, 100000, batch=4).splits < schedule(64, 64, 100000).splits
    assert schedule(64, 64, 100000, batch=264).splits == 1
    assert schedule(64, 64, 100, splits=7).splits == 2


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 7), (24, 12, 48), (38, 4, 128), (22, 12, 1), (12, 11, 9), (132, 2, 5)], ids=str
)
@pytest.mark.parametrize("blocks", [1, 4, 78, 132, 264])
def test_steps_are_dealt_out_evenly(shape, blocks):
    """All of them to somebody, each piece of a tile to a place of its own."""
    rows, columns, steps = shape
    stream = stream_k.stream_k(rows, columns, steps, blocks)
    if stream is None:
        assert rows * columns % blocks == 0
        return
    assert stream.top * columns + stream.tiles == rows * columns
    assert stream.blocks <= blocks
    assert (stream.blocks - 1) * stream.share < stream.tiles * steps <= stream.blocks * stream.share
    pieces = {(step // stream.share, step // steps) for step in range(stream.tiles * steps)}
    places = {block + tile for block, tile in pieces}
    assert len(places) == len(pieces)
    assert max(places) < stream.places


def test_where_steps_are_dealt_out():
    """Where somebody asks for it, and tiles are left that do not fill a round."""
    for shape in ((2048, 2048, 2048), (3072, 3072, 3072), (8192, 8192, 1024)):
        assert schedule(*shape).stream is None
        assert schedule(*shape, splits="stream").stream is not None
    assert schedule(128 * 12, 256 * 11, 512, splits="stream", tile=(128, 256, 64)).stream is None, "132 tiles"
    assert schedule(16, 16, 16, count=1, splits="stream")[3:5] == (1, 1)


def test_blocks_stay_where_operands_come_ahead():
    assert schedule(8192, 8192, 8192).blocks == 132
    assert schedule(8192, 8192, 8192, count=78).blocks == 78
    assert schedule(512, 512, 512).blocks == 128
    assert schedule(4096, 4096, 4096, staged=False).blocks == 4096 // 128 * 4096 // 64
    assert schedule(4096, 4096, 4096, staged=False, copied=True, count=108).blocks == 108
    assert schedule(8192, 8192, 8192, beside=2).columns == 256
    assert schedule(8192, 8192, 8192, beside=4).columns == 128
