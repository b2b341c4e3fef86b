"""First operands that each turn of a pipeline computes, in 65 configurations: ten launches each, in which every sum is exact.

With a product still under way when the next turn wrote its operand's registers, 32 of these gave wrong sums.
"""

import itertools

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

F = tk.float32


@tk.kernel
def by_abs(y: tk.Out, a: tk.In, b: tk.In, BM: tk.Const, BN: tk.Const, BK: tk.Const):
    acc = tk.zeros((BM, BN), F)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(tk.abs(ta), tb, acc)
    y.store(acc)


@tk.kernel
def by_relu(y: tk.Out, a: tk.In, b: tk.In, BM: tk.Const, BN: tk.Const, BK: tk.Const):
    acc = tk.zeros((BM, BN), F)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(tk.maximum(ta, 0.0), tb, acc)
    y.store(acc)


@tk.kernel
def by_cast(y: tk.Out, a: tk.In, b: tk.In, BM: tk.Const, BN: tk.Const, BK: tk.Const):
    acc = tk.zeros((BM, BN), F)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta.astype(tk.float16), tb, acc)
    y.store(acc)


@tk.kernel
def by_load(y: tk.Out, a: tk.In, b: tk.In, BM: tk.Const, BN: tk.Const, BK: tk.Const):
    acc, k = tk.zeros((BM, BN), F), 0
    for tb in tk.pipelined(b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tb, acc)
        k += 1  # noqa: SIM113
    y.store(acc)


WAYS = {
    "abs": (by_abs, np.float16, np.abs),
    "abs of the transposed": (by_abs, np.float16, np.abs),
    "relu": (by_relu, np.float16, lambda a: np.maximum(a, 0)),
    "cast": (by_cast, np.int8, lambda a: a),
    "load": (by_load, np.float16, lambda a: a),
}
TILES = [((128, 128, 64), None), ((128, 128, 64), 8), ((128, 256, 64), 8), ((64, 128, 64), 4), ((64, 64, 128), 4)]
SHAPES = [(128, 120, 124), (1024, 1024, 1024), (2048, 2048, 2048)]
CASES = [
    (way, shape, tile, warps)
    for way, shape, (tile, warps) in itertools.product(WAYS, SHAPES, TILES)
    if shape[0] < 2048 or tile[1] == 128
]


def test_there_are_as_many():
    assert len(CASES) == 65


@pytest.mark.parametrize(("way", "shape", "tile", "warps"), CASES, ids=str)
def test_every_launch_is_right(device, way, shape, tile, warps):
    (rows, columns, depth), (kernel, dtype, function) = shape, WAYS[way]
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (rows, depth)).astype(dtype), rng.integers(-3, 4, (depth, columns)).astype(np.float16)
    want = function(a).astype(np.float32) @ b.astype(np.float32)
    x = api.from_host(np.ascontiguousarray(a.T)).sync().permute(1, 0) if "transposed" in way else api.from_host(a).sync()
    z, y = api.from_host(b).sync(), api.zeros((rows, columns)).sync()
    for launch in range(10):
        op = kernel(y.partition(tile[:2]), x, z, *tile)
        (op if warps is None else op.num_warps(warps)).sync()
        got = y.to_host().sync()
        assert (got != want).sum() == 0, f"launch {launch}"
