"""Slices that move are tiles of their tensors, also in kernels without rings, and what lies behind a slice stays padding."""

from __future__ import annotations

import numpy as np
import pytest
import through_ir
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.passes.slices import load_from_whole_tensors

F16, F32 = tk.float16, tk.float32


def by_tiles(y: tk.Out, x: tk.In):
    total, top = tk.zeros(64, F32), tk.full(64, float("-inf"), F32)
    for i in range(tk.cdiv(x.shape[0], 128)):
        t = tk.load(x, (i, tk.bid(0)), (128, 64)).astype(F32)
        total, top = total + tk.sum(t, 0), tk.maximum(top, tk.max(t, 0))
    y.store((total + top).astype(y.dtype))


def by_slices(y: tk.Out, x: tk.In):
    total, top = tk.zeros(64, F32), tk.full(64, float("-inf"), F32)
    for i in range(tk.cdiv(x.shape[0], 128)):
        t = tk.load(x.slice(0, i * 128), (0, tk.bid(0)), (128, 64)).astype(F32)
        total, top = total + tk.sum(t, 0), tk.maximum(top, tk.max(t, 0))
    y.store((total + top).astype(y.dtype))


def by_slices_backwards(y: tk.Out, x: tk.In):
    total, top = tk.zeros(64, F32), tk.full(64, float("-inf"), F32)
    for i in range(tk.cdiv(x.shape[0], 128) - 1, -1, -1):
        t = tk.load(x.slice(0, i * 128, i * 128 + 128), (0, tk.bid(0)), (128, 64)).astype(F32)
        total, top = total + tk.sum(t, 0), tk.maximum(top, tk.max(t, 0))
    y.store((total + top).astype(y.dtype))


def tail_of(y: tk.Out, x: tk.In):
    total = tk.zeros(64, F32)
    for j in range(tk.cdiv(x.shape[1], 64)):
        t = tk.load(x.slice(1, 64 * j), (tk.bid(0), 0), (64, 64), padding_mode="-inf").astype(F32)
        total = tk.maximum(total, tk.max(t, 1))
    y.store(total.astype(y.dtype))


def behind_the_slice(y: tk.Out, x: tk.In):
    """The second tile of a slice that has one: padding."""
    total = tk.zeros(64, F32)
    for i in range(4):
        t = tk.load(x.slice(0, i * 128, i * 128 + 128), (1, tk.bid(0)), (128, 64)).astype(F32)
        total = total + tk.sum(t, 0)
    y.store(total.astype(y.dtype))


def shorter_slices(y: tk.Out, x: tk.In):
    """Of half a tile: the rest is padding."""
    total = tk.zeros(64, F32)
    for i in range(4):
        t = tk.load(x.slice(0, i * 128, i * 128 + 64), (0, tk.bid(0)), (128, 64)).astype(F32)
        total = total + tk.sum(t, 0)
    y.store(total.astype(y.dtype))


def compiled(function, *shape, result=(1024,)):
    kernel = tk.kernel(num_warps=4)(function)
    return kernel(api.meta(result, F16).partition(64), api.meta(shape, F16)).explain("sm_90a")


@pytest.mark.parametrize("function", [by_slices, by_slices_backwards])
def test_sums_of_slices_are_added_up_by_parts(function):
    """As those of tiles: threads meet once, behind the loop, and load 16 bytes at a time."""
    one, like = compiled(function, 4096, 1024), compiled(by_tiles, 4096, 1024)
    for word in ("SHFL", "BAR.SYNC", "LDG.E.128"):
        assert one.compiled.sass.count(word) == like.compiled.sass.count(word), word
    assert "LDG.E.U16" not in one.compiled.sass
    assert [r.done for r in one.remarks if r.transformation == "partial sums"] == [True, True]


def test_slices_of_rows_are_read_as_widely_as_rows():
    """The end of a row, too, which is a multiple of 16 bytes, with a padding of its own."""
    assert "LDG.E.U16" not in compiled(tail_of, 1024, 50000).compiled.sass


@pytest.mark.parametrize(
    ("function", "moved"),
    [(by_slices, 1), (by_slices_backwards, 1), (tail_of, 1), (behind_the_slice, 0), (shorter_slices, 0)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_which_are_tiles_of_their_tensors(function, moved):
    kernel = tk.kernel(num_warps=4)(function)
    ir = ir_of(kernel(api.meta((1024,), F16).partition(64), api.meta((1024, 1024), F16)))
    assert load_from_whole_tensors(ir) == moved, printed(ir, "kernel")


def columns(x):
    return x.astype(np.float64)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_slices, lambda x: columns(x).sum(0) + columns(x).max(0)),
        (by_slices_backwards, lambda x: columns(x).sum(0) + columns(x).max(0)),
        (shorter_slices, lambda x: sum(columns(x)[i * 128 : i * 128 + 64].sum(0) for i in range(4))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_they_are_the_same_tiles(function, expected, device):
    x = np.random.default_rng(3).normal(size=(512, 128)).astype(np.float16)

    def run():
        y = api.full((128,), np.nan, F32).sync()
        tk.kernel(num_warps=4)(function)(y.partition(64), api.from_host(x).sync()).sync()
        return y.to_host().sync()

    results = [run()]
    if device.kind == "cpu":
        with through_ir.ringless():
            results.append(run())
    for result in results:
        np.testing.assert_allclose(result, expected(x), rtol=2e-3, atol=2e-2)
