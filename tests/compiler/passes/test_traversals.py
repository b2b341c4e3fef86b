"""Loops over rows of tiles, `zip` and `enumerate` of them: the tiles that come are those of Python's slices."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

TILES = 5
BOUNDS = [(0, 5), (1, 3), (-2, 5), (0, -1), (-3, -1), (3, 9), (4, 2), (7, 9), (-9, 2), (-1, -3)]


def a_row(y: tk.Out, x: tk.In, start: int, stop: int):
    acc = tk.zeros((64, 64), tk.float32)
    for t in x.tiles((64, 64))[0, start:stop]:
        acc = tk.mma(t, tk.full((64, 64), 1, x.dtype), acc) * 2
    y.store(acc)


def to_the_end(y: tk.Out, x: tk.In, start: int, stop: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k, t in enumerate(x.tiles((64, 64))[0, start:], stop):
        acc = tk.mma(t, tk.full((64, 64), 1, x.dtype), acc) + k
    y.store(acc)


def zipped(y: tk.Out, x: tk.In, start: int, stop: int):
    acc = tk.zeros((64, 64), tk.float32)
    for t, (k, u) in zip(x.tiles((64, 64))[0, start:stop], enumerate(x.tiles((64, 64))[1, :stop])):
        acc = tk.mma(t, u, acc) * 2 + k
    y.store(acc)


def ahead(y: tk.Out, x: tk.In, start: int, stop: int):
    acc = tk.zeros((64, 64), tk.float32)
    for t, u in tk.pipelined(x.tiles((64, 64))[0, start:stop], x.tiles((64, 64))[1, start:stop]):
        p = tk.mma(t, tk.full((64, 64), 1, x.dtype), tk.zeros((64, 64), tk.float32))
        acc = tk.mma(p.astype(x.dtype), u, acc * 2)
    y.store(acc)


def with_bounds(make, kind):
    made = FunctionType(make.__code__, make.__globals__, make.__name__)
    made.__annotations__ = make.__annotations__ | {"start": kind, "stop": kind}
    return made


def expected(make, x, start, stop):
    upper, lower = ([row[:, 64 * k : 64 * k + 64] for k in range(TILES)] for row in (x[:64], x[64:]))
    acc, ones = np.zeros((64, 64)), np.ones((64, 64))
    if make is a_row:
        for t in upper[start:stop]:
            acc = (acc + t @ ones) * 2
    elif make is to_the_end:
        for k, t in enumerate(upper[start:], stop):
            acc = acc + t @ ones + k
    elif make is ahead:
        for t, u in zip(upper[start:stop], lower[start:stop], strict=True):
            acc = acc * 2 + t @ ones @ u
    else:
        for t, (k, u) in zip(upper[start:stop], enumerate(lower[:stop]), strict=False):
            acc = (acc + t @ u) * 2 + k
    return acc


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("kind", ["int", "tk.Const"])
@pytest.mark.parametrize("make", [a_row, to_the_end, zipped, ahead], ids=lambda make: make.__name__)
def test_tiles_are_those_of_a_slice(make, bounds, kind, device):
    x = np.random.default_rng(1).integers(-1, 2, (128, 64 * TILES)).astype(np.float16)

    def run():
        y, tensor = api.full((64, 64), -1.0).sync(), api.from_host(x).sync()
        tk.kernel(num_warps=4)(with_bounds(make, kind))(y.partition((64, 64)), tensor, *bounds).sync()
        return y.to_host().sync()

    for result in both_ways(run, device):
        np.testing.assert_array_equal(result, expected(make, x.astype(float), *bounds))


@pytest.mark.parametrize("make", [a_row, to_the_end, zipped], ids=lambda make: make.__name__)
def test_they_have_streams(make):
    x = api.meta((128, 64 * TILES), tk.float16)
    text = printed(ir_of(tk.kernel(num_warps=4)(make)(api.meta((64, 64)).partition((64, 64)), x, 0, 3), *PASSES))
    assert " each " not in text
    assert "= stream " in text
