"""Rows that are shorter than those of tiles: products leave out what is known to be zero, and nothing else."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit.compiler.facts import is_short

BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel(num_warps=8)
def by_rows(c: tk.Out, a: tk.In, b: tk.In):
    """`a @ b`, with rows of `b` along the columns of the result."""
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def by_columns(c: tk.Out, a: tk.In, b: tk.In):
    """`a @ b.T`, with rows of both along what is summed over."""
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BN, BK))[j, :]):
        acc = tk.mma(ta, tb.transpose(), acc)
    c.store(acc.astype(c.dtype))


def meta(*shape, dtype=tk.bfloat16):
    return api.meta(shape, dtype)


def instructions(op):
    """The extents of its products by warpgroups, each time that one is written down."""
    return re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\d+n\d+k\d+)", op.compile(target="sm_90a").ptx)


def rows(n, dtype=tk.bfloat16, depth=1024):
    c = meta(1024, n, dtype=tk.float32).partition((128, 128))
    return by_rows(c, meta(1024, depth, dtype=dtype), meta(depth, n, dtype=dtype)).generics(BM=128, BN=128, BK=64)


def columns(first, second, dtype=tk.bfloat16, size=64):
    c = meta(1024, 1024, dtype=tk.float32).partition((128, 128))
    return by_columns(c, meta(1024, first, dtype=dtype), meta(1024, second, dtype=dtype)).generics(BM=128, BN=128, BK=size)


@pytest.mark.parametrize("n", [8, 72, 96, 120])
def test_columns_that_no_row_has_are_not_computed(n):
    op = rows(n)
    assert set(instructions(op)) == {f"m64n{n}k16"}
    (product,) = op.explain("sm_90a").products
    assert product.present == f"{n} of 128 columns"
    assert f"m64n{n}k16.f32.bf16.bf16: {n} of 128 columns" in str(op.explain("sm_90a"))


def test_columns_that_no_row_has_are_not_stored():
    """Nothing stores them."""
    whole, short = (rows(n).compile(target="sm_90a") for n in (128, 40))
    assert (whole.ptx.count("st.global"), short.ptx.count("st.global")) == (16, 6)


@pytest.mark.parametrize(
    ("first", "second", "steps", "said"),
    [
        (40, 40, 3, "3 of 4 steps of k"),
        (16, 16, 1, "1 of 4 steps of k"),
        (24, 48, 3, "3 of 4 steps of k"),
        (24, 64, 4, ""),
        (64, 24, 4, ""),
        (24, 50, 4, ""),
        (50, 50, 4, ""),
        (1000, 1000, 4, ""),
    ],
)
def test_steps_in_which_both_operands_are_zeros_are_left_out(first, second, steps, said):
    """Zero times infinity is no number: what one operand has is multiplied, though it be by zeros."""
    op = columns(first, second)
    assert len(instructions(op)) % steps == 0 and len(instructions(op)) // steps in (1, 2)
    assert {product.present for product in op.explain("sm_90a").products} == {said}


@tk.kernel(num_warps=8)
def of_bytes(c: tk.Out, a: tk.In, b: tk.In, precision: tk.Const):
    i, j = tk.bid(0), tk.bid(1)
    acc = tk.zeros((BM, BN), c.dtype)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BN, BK))[j, :]):
        acc = tk.mma(ta, tb.transpose(), acc, precision=precision)
    c.store(acc)


@pytest.mark.parametrize(("dtype", "sums"), [(tk.int8, tk.int32), (tk.float8_e4m3fn, tk.float32)], ids=str)
@pytest.mark.parametrize(("n", "steps"), [(40, 2), (96, 3), (168, 6)])
def test_operands_of_bytes(dtype, sums, n, steps):
    """They are taken 32 at a time, and sums of 8-bit floats are added up after four steps, or at the end."""
    size = 128 if n < 128 else 256
    c, a = meta(1024, 1024, dtype=sums).partition((128, 64)), meta(1024, n, dtype=dtype)
    op = of_bytes(c, a, a, "ieee").generics(BM=128, BN=64, BK=size)
    assert {product.present for product in op.explain("sm_90a").products} == {f"{steps} of {size // 32} steps of k"}
    text = op.compile(target="sm_90a").ptx
    assert len(re.findall(r"wgmma\.mma_async", text)) % steps == 0
    assert text.count("wgmma.commit_group") % (1 + (dtype != tk.int8 and steps > 4)) == 0


@tk.kernel(num_warps=8)
def by_constants(c: tk.Out, a: tk.In, b: tk.In, size: tk.Const):
    acc = tk.zeros((128, size), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (128, 64)), tk.load(b, (k, tk.bid(1)), (64, size)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def by_literals(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        acc += tk.load(a, (tk.bid(0), k), (128, 64)) @ tk.load(b, (k, tk.bid(1)), (64, 128))
    tk.store(c, (tk.bid(0), tk.bid(1)), acc.astype(c.dtype))


def test_whatever_names_the_tiles_and_however_they_are_loaded():
    c, a, b = (meta(1024, n) for n in (96, 1024, 96))
    assert set(instructions(by_constants(c.partition((128, 128)), a, b, 128))) == {"m64n96k16"}
    assert set(instructions(by_literals(c.scattered(), a, b).grid((8, 1, 1)))) == {"m64n96k16"}


@tk.kernel(num_warps=8)
def of_part(c: tk.Out, a: tk.In, b: tk.In, stop: int):
    part, acc = b.slice(1, 0, stop), tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[0, :], part.tiles((BK, BN))[:, 0]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


@tk.kernel(num_warps=8)
def of_rows(c: tk.Out, a: tk.In, b: tk.In, start: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[0, :], b.slice(0, start).tiles((BK, BN))[:, 0]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


def test_slices():
    """Of columns, nobody knows how long rows are; of rows they are as long as before."""
    c, a, b = (meta(128, 96, dtype=tk.float32).partition((128, 128)), meta(128, 1024), meta(1024, 96))
    tiles = {"BM": 128, "BN": 128, "BK": 64}
    assert "m64n96k16" not in instructions(of_part(c, a, b, 40).generics(**tiles))
    assert set(instructions(of_rows(c, a, b, 64).generics(**tiles))) == {"m64n96k16"}


@tk.kernel(num_warps=8)
def padded(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(b.shape[0], BK)):
        acc = tk.mma(tk.load(a, (0, k), (BM, BK)), tk.load(b, (k, 0), (BK, BN), padding_mode="nan"), acc)
    tk.store(c, (0, 0), acc)


def test_other_padding_is_multiplied():
    op = padded(meta(128, 128, dtype=tk.float32).scattered(), meta(128, 1024), meta(1024, 96))
    op = op.generics(BM=128, BN=128, BK=64).grid((1, 1, 1))
    assert "n96" not in op.compile(target="sm_90a").ptx
    assert all(not product.present for product in op.explain("sm_90a").products)


def facts(op):
    op.consumed()
    return [fact.short for fact in op._plan("a test").specialisation.facts]


def test_which_extents_are_known():
    """Those of operands that tiles are longer than, of all matrices with such rows; a launch with others is another's."""
    assert facts(rows(96)) == [96, 0, 96]
    assert facts(rows(80)) == [80, 0, 80]
    for n in (0, 4, 100, 128, 136, 1024):
        assert not any(facts(rows(n)))
    assert not any(facts(rows(96, tk.float32))), "whose products take no part in this"
    assert sum(is_short(n, (64, 128, 1024)) for n in range(4096)) == 31 - 2
    assert sum(is_short(n, (), others=True) for n in range(4096)) == 31 - 5


@tk.kernel
def without(y: tk.Out, x: tk.In):
    y.store(x.shape[1] + tk.load_tile_like(x, y))


def test_kernels_without_products_have_no_use_for_it():
    x = meta(1024, 96, dtype=tk.float16)
    assert not any(facts(without(x.partition((16, 128)), x)))


def given(size):
    return meta(1, 32, 8192, size), *[meta(1, 8, 8192, size)] * 2


def launches(op):
    """The launches that it is made of."""
    op.consumed()
    waiting, kept = [op], []
    while waiting:
        op = waiting.pop()
        if isinstance(op, tk.KernelLaunch):
            kept.append(op)
        else:
            waiting += op.parts()
    return kept


@pytest.mark.parametrize("size", [32, 80, 96, 192])
def test_attention_leaves_out_what_heads_do_not_have(size):
    """The scores take as many steps as heads have 16 elements, and the sums as many columns."""
    (launch,) = launches(kernels.attention(*given(size)))
    scores, values = launch.explain("sm_90a").products
    depth = max(64, 1 << (size - 1).bit_length())
    assert scores.present == f"{size // 16} of {depth // 16} steps of k"
    assert values.present == f"{size} of {depth} columns"
    kernel = launch.compile(target="sm_90a")
    assert set(re.findall(r"HGMMA\.64x(\d+)x16", kernel.sass)) >= {str(size)}
    assert kernel.local_bytes == 0


@pytest.mark.parametrize("size", [80, 96])
def test_gradients_of_attention_leave_it_out(size):
    q, k, v = given(size)
    op = kernels.attention_backward(q, q, k, v, q, meta(1, 32, 8192, dtype=tk.float32))
    (launch,) = (each for each in launches(op) if each.kernel.name == "_backward_dkv")
    said = [product.present for product in launch.explain("sm_90a").products]
    assert said.count(f"{size // 16} of 8 steps of k") == 2
    assert said.count(f"{size} of 128 columns") == 2
    assert launch.compile(target="sm_90a").local_bytes == 0


# ------------------------------------------------------------------------------------------------------------------- results


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


def check(c, wanted):
    assert np.allclose(c.to_host().sync(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("n", [8, 40, 72, 96, 104])
def test_results(device, n):
    a, b, t = numbers(200, 300), numbers(300, n), numbers(200, n)
    x, y, z = (api.from_host(each).on(device).sync() for each in (a, b, t))
    tiles = {"BM": 128, "BN": 128, "BK": 64}
    c = api.full((200, n), 7.0, tk.float32).on(device).sync()
    check(by_rows(c.partition((128, 128)), x, y).generics(**tiles).first().unpartition().sync(), a.astype(np.float32) @ b)
    c = api.full((200, 200), 7.0, tk.float32).on(device).sync()
    wanted = t.astype(np.float32) @ t.T.astype(np.float32)
    check(by_columns(c.partition((128, 128)), z, z).generics(BM=128, BN=128, BK=128).first().unpartition().sync(), wanted)


@tk.kernel(num_warps=8)
def looked_at(c: tk.Out, most: tk.Out, a: tk.In, b: tk.In, column: int):
    """A product whose columns are all looked at, those that `b` does not have, too."""
    acc = tk.full((BM, BN), 1.0, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[0, :], b.tiles((BK, BN))[:, column]):
        acc = tk.mma(ta, tb, acc)
    tk.store(c, (0, 0), acc)
    tk.store(most, 0, tk.sum(acc, 1))


@pytest.mark.parametrize("column", [0, 1])
def test_columns_that_no_row_has_are_what_they_were(device, column):
    """A tile behind the last one is zeros, too."""
    a, b = numbers(128, 300), numbers(300, 96)
    x, y = (api.from_host(each).on(device).sync() for each in (a, b))
    c, most = (api.empty(shape, tk.float32).on(device).sync() for shape in ((128, 128), (128,)))
    if column and device.kind == "cpu":
        pytest.skip("there it is an error")
    op = looked_at(c.scattered(), most.scattered(), x, y, column).generics(BM=128, BN=128, BK=64).grid((1, 1, 1))
    op.sync()
    wanted = np.ones((128, 128), np.float32)
    if not column:
        wanted[:, :96] += a.astype(np.float32) @ b
    check(c, wanted)
    check(most, wanted.sum(1))


@tk.kernel(num_warps=8)
def narrow_then_wide(c: tk.Out, a: tk.In, b: tk.In, d: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb, td in tk.pipelined(a.tiles((BM, BK))[0, :], b.tiles((BK, BN))[:, 0], d.tiles((BK, BN))[:, 0]):
        acc = tk.mma(ta, td, tk.mma(ta, tb, acc))
    tk.store(c, (0, 0), acc)


@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_products_with_more_columns_and_fewer(device, turned):
    a, b, d = numbers(128, 300), numbers(300, 128 if turned else 72), numbers(300, 72 if turned else 128)
    x, y, z = (api.from_host(each).on(device).sync() for each in (a, b, d))
    c = api.empty((128, 128), tk.float32).on(device).sync()
    narrow_then_wide(c.scattered(), x, y, z).generics(BM=128, BN=128, BK=64).grid((1, 1, 1)).sync()
    wanted = np.zeros((128, 128), np.float32)
    for each in (b, d):
        wanted[:, : each.shape[1]] += a.astype(np.float32) @ each
    check(c, wanted)


def test_products_of_other_columns_wait():
    """Two under way that add to the same registers have as many columns: machine code in which they overlap is refused."""
    a, b, d = (api.meta(shape, tk.bfloat16) for shape in ((128, 512), (512, 72), (512, 128)))
    c = api.meta((128, 128), tk.float32)
    compiled = narrow_then_wide(c.scattered(), a, b, d).generics(BM=128, BN=128, BK=64).grid((1, 1, 1)).compile(target="sm_90a")
    first, second = (compiled.ptx.index(f"m64n{columns}k16") for columns in (72, 128))
    assert "wgmma.wait_group.sync.aligned 0;" in compiled.ptx[min(first, second) : max(first, second)]


def test_a_launch_with_other_rows_is_another_specialisation(device):
    a = numbers(128, 256)
    x = api.from_host(a).on(device).sync()
    for n in (96, 80, 100, 96, 128):
        b = numbers(256, n)
        c = api.full((128, n), 7.0, tk.float32).on(device).sync()
        y = api.from_host(b).on(device).sync()
        op = by_rows(c.partition((128, 128)), x, y).generics(BM=128, BN=128, BK=64)
        check(op.first().unpartition().sync(), a.astype(np.float32) @ b)
