"""`kernels.grouped_gemm` against NumPy in float64: groups of any size, dtypes, strides, offsets that make no sense, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from closeness import normal

import tilekit as tk
from tilekit import api, kernels

f = api.from_host
BF = ml_dtypes.bfloat16
named = {"ids": lambda d: np.dtype(d).name}
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}


def wide(x):
    return x.astype(np.float64)


def i32(values):
    return f(np.array(values, np.int32))


def product(a, b, offsets):
    """What is expected, and the sizes of what is added up."""
    y, size, first = np.zeros((a.shape[0], b.shape[2])), np.zeros((a.shape[0], b.shape[2])), 0
    for g, end in enumerate(offsets):
        last = min(max(first, end), a.shape[0])
        y[first:last] = wide(a[first:last]) @ wide(b[g])
        size[first:last] = np.abs(wide(a[first:last])) @ np.abs(wide(b[g]))
        first = last
    return y, size


def close(found, a, b, offsets, single=2**-22):
    """Within what `tk.mma` states over K products, and the rounding of the result."""
    expected, size = product(a, b, offsets)
    assert found.shape == expected.shape
    each = 2**-52 if found.dtype == np.float64 else single
    allowed = (a.shape[1] + 4) * each * size + 1.01 * ROUNDING[found.dtype.name] * np.abs(expected)
    off = np.abs(wide(found) - expected)
    assert np.all(off <= allowed), f"off by up to {np.max(off - allowed):.3g} more than is allowed"


def operands(total, groups, k, n, dtype):
    return normal((total, k), dtype), normal((groups, k, n), dtype, 1)


# Rows in all, where groups end, K, N: groups without rows, of one, that begin in the middle of a tile, and rows of no group.
SIZES = [
    (1, [1], 1, 1),
    (5, [5], 3, 7),
    (100, [10, 10, 60, 90], 40, 50),
    (300, [0, 0, 1, 129, 257, 257, 300], 136, 264),
    (64, [64, 64, 64], 64, 64),
    (700, [3, 300, 301, 650], 200, 72),
    (50, list(range(1, 51)), 24, 40),
    (513, [200] * 20 + [513], 64, 16),
]


@pytest.mark.parametrize(("total", "offsets", "k", "n"), SIZES, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, BF, np.float32, np.float64], **named)
def test_groups(device, dtype, total, offsets, k, n):
    a, b = operands(total, len(offsets), k, n, dtype)
    op = kernels.grouped_gemm(f(a), f(b), i32(offsets))
    assert (op.shape, op.dtype, op.label) == ((total, n), dtype, "grouped_gemm")
    found = op.to_host().sync()
    close(found, a, b, offsets)
    assert (found[offsets[-1] :] == 0).all()


@pytest.mark.parametrize(
    ("tile", "warps"), [((64, 64, 64), 4), ((128, 256, 64), 8), ((16, 32, 16), 1), ((128, 16, 64), 4)], ids=str
)
@pytest.mark.parametrize("dtype", [BF, np.float32], **named)
def test_tiles(device, dtype, tile, warps):
    offsets = [0, 70, 130, 131, 400, 530]
    a, b = operands(540, 6, 200, 264, dtype)
    options = {"tile": tile, "num_warps": warps}
    first, again = (kernels.grouped_gemm(f(a), f(b), i32(offsets), **options).to_host().sync() for _ in range(2))
    close(first, a, b, offsets)
    assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("splits", [2, 3, 50])
@pytest.mark.parametrize("dtype", [np.float16, np.float32], **named)
def test_sums_in_parts(device, dtype, splits):
    """Also more parts than there are tiles along K; rows behind the last group's are zeros, and nothing beside is written."""
    offsets = [0, 70, 130, 131, 131, 300]
    a, b = operands(310, 6, 200, 40, dtype)
    room = f(np.full((330, 40), 7, dtype)).sync()
    kernels.grouped_gemm(f(a), f(b), i32(offsets), splits=splits, out=room[10:320]).sync()
    y = room.to_host().sync()
    close(y[10:320], a, b, offsets)
    assert (y[310:320] == 0).all() and (y[:10] == 7).all() and (y[320:] == 7).all()


@pytest.mark.parametrize("columns", [1, 5])
def test_few_tiles_are_split(columns):
    """16 rows of 5 groups are a tile for each, and 132 multiprocessors."""
    x = [api.meta(shape, tk.bfloat16) for shape in ((16, 16384), (5, 16384, columns))]
    op = kernels.grouped_gemm(*x, api.meta((5,), tk.int32))
    op.consumed()
    *_, grouped, added = op.parts()
    assert (grouped.kernel.name, added.kernel.name) == ("_grouped", "sum_of_parts")
    if columns == 1:  # contiguous along K: how far apart a column's neighbours would be says nothing
        assert "UTMALDG" in grouped.compile(target="sm_90a").sass
    op = kernels.grouped_gemm(*x, api.meta((5,), tk.int32), splits=1)
    op.consumed()
    assert [each.kernel.name for each in op.parts()] == ["_grouped"]


def test_groups_without_rows_are_not_counted():
    """4 rows are of 4 groups at most, whose sums keep as many multiprocessors busy as there are."""
    x = [api.meta(shape, tk.bfloat16) for shape in ((4, 8192), (56, 8192, 64))]
    op = kernels.grouped_gemm(*x, api.meta((56,), tk.int32))
    op.consumed()
    grouped, added = op.parts()
    assert grouped._options.grid == (128, 1, 1) and added.kernel.name == "sum_of_parts"


@pytest.mark.parametrize("across", [False, True], ids=["rows", "columns"])
def test_rows_of_odd_widths_are_packed(device, across):
    """Rows that begin anywhere, and an `a` that is contiguous down its columns."""
    offsets = [0, 200, 777]
    a, b = operands(800, 3, 1031, 515, np.float16)
    op = kernels.grouped_gemm(f(np.ascontiguousarray(a.T)).sync().T if across else f(a), f(b), i32(offsets))
    close(op.to_host().sync(), a, b, offsets)


def test_what_is_packed():
    def names(a, b, turned=False):
        a = api.meta(a, tk.float16)
        op = kernels.grouped_gemm(a.T if turned else a, api.meta(b, tk.float16), api.meta(b[:1], tk.int32))
        op.consumed()
        return [each.kernel.name for each in op.parts()]

    assert names((4080, 4281), (2, 4281, 2741)) == ["_pack", "_grouped"]
    assert names((4096, 4080), (2, 4096, 2744), turned=True) == ["_pack", "_grouped"]
    assert names((4080, 4096), (2, 4096, 2744)) == ["_grouped"]


def test_more_tiles_than_blocks(device):
    """Blocks go on in the middle of a group, and leave groups out that have no tile for them."""
    rng = np.random.default_rng(3)
    offsets = np.cumsum(rng.integers(0, 60, 40) * (rng.random(40) < 0.7)).tolist()
    a, b = operands(offsets[-1] + 9, 40, 32, 520, np.float16)
    close(kernels.grouped_gemm(f(a), f(b), i32(offsets), tile=(16, 16, 16)).to_host().sync(), a, b, offsets)


@pytest.mark.parametrize(
    "offsets", [[-5, -1, 30], [40, 20, 50], [1000, 2000, 3000], [2**31 - 1, -(2**31), 90], [0, 0, 0]], ids=str
)
@pytest.mark.parametrize("dtype", [BF, np.float32], **named)
def test_offsets_that_make_no_sense(device, dtype, offsets):
    """No group begins before the one before it ends, none ends behind the rows, and nothing else is written."""
    a, b = operands(90, 3, 64, 72, dtype)
    room = f(np.full((120, 72), 7, dtype)).sync()
    kernels.grouped_gemm(f(a), f(b), i32(offsets), out=room[10:100]).sync()
    written = room.to_host().sync()
    close(written[10:100], a, b, offsets)
    assert (written[:10] == 7).all()
    assert (written[100:] == 7).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32], **named)
def test_strides(device, dtype):
    offsets = [33, 150]
    a, b = operands(200, 2, 160, 136, dtype)
    turned_a = f(np.ascontiguousarray(a.T)).sync().T
    turned_b = f(np.ascontiguousarray(b.transpose(0, 2, 1))).sync().permute(0, 2, 1)
    odd = f(np.pad(a, ((0, 0), (1, 2)))).sync()[:, 1:161]
    every = f(np.repeat(b, 2, 0)).sync()[::2]
    for left, right in [(turned_a, f(b)), (f(a), turned_b), (odd, turned_b), (f(a), every)]:
        close(kernels.grouped_gemm(left, right, i32(offsets)).to_host().sync(), a, b, offsets)
    ends = f(np.array([33, 0, 150, 0], np.int32)).sync()[::2]
    close(kernels.grouped_gemm(f(a), f(b), ends).to_host().sync(), a, b, offsets)


def test_dtypes_of_the_result(device):
    offsets = [33, 70]
    a, b = operands(70, 2, 64, 40, np.float16)
    close(kernels.grouped_gemm(f(a), f(b), i32(offsets), dtype=tk.float32).to_host().sync(), a, b, offsets)
    a, b = operands(70, 2, 64, 40, np.float32)
    y = kernels.grouped_gemm(f(a), f(b), i32(offsets), precision="tf32").to_host().sync()
    close(y, a, b, offsets, single=2**-22 + 2**-10 / 64)
    a, b = (np.random.default_rng(n).integers(-128, 128, s).astype(np.int8) for n, s in enumerate(((70, 64), (2, 64, 40))))
    y = kernels.grouped_gemm(f(a), f(b), i32(offsets)).to_host().sync()
    assert y.dtype == np.int32
    assert np.array_equal(y, product(a, b, offsets)[0].astype(np.int32))


@pytest.mark.parametrize("k", [128, 132, 131])
@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float32, BF], **named)
def test_k_contiguous_in_both(device, dtype, k):
    """What warpgroups of sm_90 multiply; small numbers, whose sums are exact in every way of adding them up."""
    offsets, rng = [0, 33, 150], np.random.default_rng(7)
    a, b = rng.integers(-2, 3, (190, k)).astype(dtype), rng.integers(-2, 3, (3, 136, k)).astype(dtype)
    y = kernels.grouped_gemm(f(a), f(b).sync().permute(0, 2, 1), i32(offsets), dtype=tk.float32, precision="tf32")
    assert np.array_equal(y.to_host().sync(), product(a, b.transpose(0, 2, 1), offsets)[0].astype(np.float32))


def test_nothing(device):
    def zeros(*shape):
        return f(np.zeros(shape, np.float16))

    assert kernels.grouped_gemm(zeros(0, 4), zeros(2, 4, 3), i32([0, 0])).sync().shape == (0, 3)
    assert kernels.grouped_gemm(zeros(5, 4), zeros(2, 4, 0), i32([1, 5])).sync().shape == (5, 0)
    for k, groups in ((0, 2), (4, 0)):
        y = kernels.grouped_gemm(f(np.ones((5, k), np.float16)), zeros(groups, k, 3), i32([1, 5][:groups]))
        assert (y.to_host().sync() == np.zeros((5, 3))).all()


def test_ops_in_every_place(device):
    ends = api.full(2, 3, tk.int32)
    y = kernels.grouped_gemm(api.ones((5, 8)), api.ones((2, 8, 3)), ends)
    assert (y.shape, y.dtype) == ((5, 3), tk.float32)
    assert y.to_host().sync()[:, 0].tolist() == [8, 8, 8, 0, 0]


def refuse(call, error, *parts):
    with pytest.raises(error) as info:
        call()
    for part in parts:
        assert part in str(info.value)


def test_mistakes(device):
    def x(*shape, dtype=tk.float32):
        return api.zeros(shape, dtype).sync()

    a, b, ends, grouped = x(4, 8), x(2, 8, 6), x(2, dtype=tk.int32), kernels.grouped_gemm
    refuse(lambda: grouped(a, b, x(2, dtype=tk.int64)), TypeError, "grouped_gemm: offsets holds int64", ".astype(tk.int32)")
    refuse(lambda: grouped(a, b, x(2)), TypeError, "offsets holds float32; it takes int32")
    refuse(lambda: grouped(a, b, x(3, dtype=tk.int32)), ValueError, "offsets has shape (3,); for 2 groups it is (2,)")
    refuse(lambda: grouped(a, b, x(2, 1, dtype=tk.int32)), ValueError, "offsets has shape (2, 1)", "where each ends")
    refuse(lambda: grouped(a, b, [2, 4]), TypeError, "offsets is a tensor or an op", "not list")
    refuse(lambda: grouped(a, x(2, 7, 6), ends), ValueError, "rows of 8 elements meet columns of 7")
    refuse(lambda: grouped(a, x(2, 6, 8), ends), ValueError, "meet columns of 6; pass b.permute(0, 2, 1)?")
    refuse(lambda: grouped(a, x(8, 6), ends), ValueError, "a has shape (4, 8), b (8, 6); a is a matrix, b a stack of them")
    refuse(lambda: grouped(x(2, 4, 8), b, ends), ValueError, "a has shape (2, 4, 8)")
    refuse(lambda: grouped(a, x(2, 8, 6, dtype=tk.float16), ends), TypeError, "grouped_gemm: no product of float32 and float16")
    refuse(lambda: grouped(a, b, ends, precision="half"), ValueError, "grouped_gemm: precision is")
    refuse(lambda: grouped(a, b, ends, splits=0), ValueError, "grouped_gemm: splits is an int from 1 on, not 0")
    refuse(lambda: grouped(a, b, ends, tile=(48, 64, 64)), ValueError, "grouped_gemm: tile is (BM, BN, BK)", "(48, 64, 64)")
    refuse(lambda: grouped(a, b, ends, out=x(6, 4)), ValueError, "out is float32 of shape (6, 4)", "(4, 6)")


def test_offsets_on_another_device(cpu, monkeypatch):
    import tilekit._runtime.device as module
    from tilekit._driver.discovery import Discovery

    monkeypatch.setenv("TILEKIT_CPU_DEVICES", "2")
    monkeypatch.setattr(module, "_registry", module._Registry(lambda: Discovery(reason="none")))
    with tk.use_device(tk.Device("cpu:1")):
        ends = api.zeros(2, tk.int32).sync()
    with tk.use_device(tk.Device("cpu:0")):
        op = kernels.grouped_gemm(api.ones((4, 8)).sync(), api.ones((2, 8, 6)).sync(), ends)
        refuse(op.sync, ValueError, "offsets are on", "cpu:1", "all must be on one device")
