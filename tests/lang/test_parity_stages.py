"""Vectors in the stages of `tk.pipelined`, and second operands of products that threads hold, against NumPy."""

import numpy as np
import pytest
from parity import check
from test_parity_pipelines import HALVES, whole

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")


# --------------------------------------------------------------------------------------------------------------------- vectors


@tk.kernel
def scaled(y: tk.Out, x: tk.In, rows: tk.In, columns: tk.In):
    """The sum of the tiles of a row, each with other factors for its columns and its rows."""
    acc = tk.zeros((BM, BN), tk.float32)
    for t, r, c in tk.pipelined(
        x.tiles((BM, BN))[tk.bid(0), :], rows.tiles((1, BM))[:, tk.bid(0)], columns.tiles((BN,))[:], stages=3
    ):
        acc += t.astype(tk.float32) * r.reshape((BM, 1)) * c[None, :]
    y.store(acc)


@pytest.mark.parametrize("extents", [(128, 512), (100, 500), (66, 70)], ids=str)
@pytest.mark.parametrize("tile", [(64, 64), (32, 128), (16, 32), (64, 256)], ids=str)
@pytest.mark.parametrize("dtype", [tk.float32, tk.float16, tk.bfloat16], ids=str)
def test_vectors(device, dtype, tile, extents):
    (m, n), (bm, bn) = extents, tile
    turns = -(-n // bn)
    x, rows, columns = whole((m, n), dtype), whole((turns, m), dtype, 1), whole((n,), dtype, 2)
    y = api.zeros((m, bn)).sync().partition(tile)
    made = scaled(y, *(api.from_host(a) for a in (x, rows, columns))).generics(BM=bm, BN=bn).num_warps(4)
    each = np.pad(x.astype(np.float64) * columns, ((0, 0), (0, turns * bn - n))).reshape(m, turns, bn)
    wanted = (each * rows.T.astype(np.float64)[:, :, None]).sum(1)
    check(made.first().unpartition().to_host().sync(), wanted.astype(np.float32))


@tk.kernel
def of_vectors(y: tk.Out, x: tk.In, w: tk.In):
    """What else vectors are good for: they are carried, reshaped, added up, chosen by a mask, and met with each other."""
    acc, before = tk.zeros((BN,), tk.float32), tk.zeros((BN,), tk.float32)
    for a, b in tk.pipelined(x.tiles((BN,))[:], w.tiles((1, 1, BN))[0, :, 0]):
        b = b.reshape((BN,))
        acc += tk.where(a < b, a, b * 2) + before + tk.sum(tk.sum(a.reshape((2, BN // 2)), 0), 0)
        before = a * 1
    y.store(acc + before)


@pytest.mark.parametrize("n", [64, 128, 256])
def test_what_else_vectors_are_good_for(device, n):
    turns = 5
    x, w = whole((n * turns,), tk.float32), whole((1, turns, n), tk.float32, 1)
    y = api.zeros(n).sync().partition(n)
    made = of_vectors(y, api.from_host(x), api.from_host(w)).generics(BN=n).first().unpartition().to_host().sync()
    parts, before, wanted = x.reshape(turns, n), np.zeros(n), np.zeros(n)
    for a, b in zip(parts, w[0], strict=True):
        wanted += np.where(a < b, a, b * 2) + before + a.sum()
        before = a * 1
    check(made, (wanted + before).astype(np.float32))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_vectors_that_meet_masks_compile(target):
    """Their elements are read together: they are no part of a formula."""
    op = of_vectors(api.meta(64).partition(64), api.meta(320), api.meta((1, 5, 64))).generics(BN=64)
    assert op.compile(target=target).local_bytes == 0


# ------------------------------------------------------------------------------------------- second operands that threads hold


@tk.kernel
def held(y: tk.Out, a: tk.In, b: tk.In, stages: tk.Const, twice: tk.Const, inner: tk.Const):
    """`a.T @ (b * 2)`, turn by turn; the second operand once, again as another, or in a loop of its own."""
    acc, other = tk.zeros((BM, BN), tk.float32), tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BK, BM))[:, 0], b.tiles((BK, BN))[:, 0], stages=stages):
        made = tb * 2
        if inner:
            for n in range(3):
                acc = tk.mma(ta.transpose(), made + n, acc)
        else:
            acc = tk.mma(ta.transpose(), made, acc)
        if twice:
            other = tk.mma(ta.transpose(), tb * 3, other)
    y.store(acc - other)


@tk.kernel
def held_by_two(y: tk.Out, a: tk.In, b: tk.In, stages: tk.Const):
    """Loops with one ring, that take turns in having such an operand; and one behind them."""
    acc = tk.zeros((BM, BN), tk.float32)
    half = tk.num_tiles(a, 0, (BK, BM)) // 2
    for _ in range(2):
        for ta, tb in tk.pipelined(a.tiles((BK, BM))[0:half, 0], b.tiles((BK, BN))[0:half, 0], stages=stages):
            acc = tk.mma(ta.transpose(), tb * 2, acc)
        for ta, tb in tk.pipelined(a.tiles((BK, BM))[half:, 0], b.tiles((BK, BN))[half:, 0], stages=stages):
            acc = tk.mma(ta.transpose(), tb, acc)
        for ta, tb in tk.pipelined(a.tiles((BK, BM))[half:, 0], b.tiles((BK, BN))[half:, 0], stages=stages):
            acc = tk.mma(ta.transpose(), tb * 2, acc)
        for ta in tk.pipelined(a.tiles((BK, BM))[0:1, 0], stages=1):
            acc = tk.mma(ta.transpose(), tk.full((BK, BN), 2, a.dtype), acc)
            acc = tk.mma(ta.transpose(), tk.load(b, (0, 0), (BK, BN)), acc)
    y.store(acc)


# With columns of which a warpgroup has 128, 64, 32 or 16, and rows of which one group has all.
HELD = [((64, 128, 64), 4), ((128, 64, 128), 8), ((64, 64, 128), 8), ((64, 64, 32), 8), ((64, 128, 128), 8), ((128, 128, 64), 8)]


def run_held(kernel, tile, warps, dtype, turns, *options):
    bm, bn, bk = tile
    a, b = whole((bk * turns, bm), dtype), whole((bk * turns, bn), dtype, 1)
    y = api.zeros((bm, bn)).sync().partition((bm, bn))
    op = kernel(y, api.from_host(a), api.from_host(b), *options).generics(BM=bm, BN=bn, BK=bk).num_warps(warps)
    return op.first().unpartition().to_host().sync(), a.astype(np.float64), b.astype(np.float64)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(("tile", "warps"), HELD, ids=str)
def test_second_operands_that_threads_hold(device, tile, warps, inner, twice):
    for dtype, stages, turns in zip(HALVES, (2, 3), (9, 1), strict=True):
        made, a, b = run_held(held, tile, warps, dtype, turns, stages, twice, inner)
        wanted = sum(a.T @ (b * 2 + n) for n in range(3)) if inner else a.T @ (b * 2)
        check(made, (wanted - twice * (a.T @ (b * 3))).astype(np.float32))


@pytest.mark.parametrize(("tile", "warps"), HELD[:4], ids=str)
def test_loops_that_share_a_ring_and_hold_second_operands(device, tile, warps):
    turns, bk = 6, tile[2]
    made, a, b = run_held(held_by_two, tile, warps, tk.bfloat16, turns, 2)
    half = bk * turns // 2
    wanted = a[:half].T @ b[:half] * 2 + a[half:].T @ b[half:] * 3 + a[:bk].T @ (b[:bk] + 2)
    check(made, (2 * wanted).astype(np.float32))
