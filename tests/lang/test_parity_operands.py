"""Products in pipelines whose operands threads compute: nothing is overwritten that a product under way still reads.

All values are small integers, so that each sum is exact; one that differs is wrong. Where there is no GPU, the kernels are
compiled for sm_90a besides, and their machine code is scanned (`hazards`), as that of all kernels in these tests.
"""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

F = tk.float32
TURNS, ROWS = 10, 256  # an even number of turns


@tk.kernel
def computed_first(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(tk.abs(ta), tb, acc)
    y.store(acc)


@tk.kernel
def of_blocks_that_stay(y: tk.Out, a: tk.In, b: tk.In):
    for tile in y.tiles():
        acc = tk.zeros((128, 128), F)
        for ta, tb in tk.pipelined(a.tiles((128, 64))[tile.index[0], :], b.tiles((64, 128))[:, tile.index[1]]):
            acc = tk.mma(tk.abs(ta), tb, acc)
        y.store(acc, tile)


@tk.kernel
def of_the_turn_before(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    p = tk.load(a, (tk.bid(0), 0), (128, 64))
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(p, tb, acc)
        p = tk.abs(ta)
    y.store(acc)


@tk.kernel
def carried_and_used_twice(y: tk.Out, a: tk.In, b: tk.In):
    acc, acc2 = tk.zeros((128, 128), F), tk.zeros((128, 128), F)
    p = tk.load(a, (tk.bid(0), 0), (128, 64))
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc2 = tk.mma(p, tb, acc2)
        p = tk.abs(ta)
        acc = tk.mma(p, tb, acc)
    y.store(acc - 3 * acc2)


@tk.kernel
def of_an_inner_loop(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        h = tk.abs(ta)
        for _ in range(3):
            acc = tk.mma(h * 2, tb, acc)
            h = h + 1
    y.store(acc)


@tk.kernel
def carried_round_an_inner_loop(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    p = tk.load(a, (tk.bid(0), 0), (128, 64))
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        for _ in range(3):
            acc = tk.mma(p, tb, acc)
            p = tk.minimum(p + ta, 8)
    y.store(acc)


@tk.kernel
def in_branches(y: tk.Out, a: tk.In, b: tk.In):
    acc, i = tk.zeros((128, 128), F), 0
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        if i % 2 == 0:
            acc = tk.mma(tk.abs(ta), tb, acc)
        else:
            acc = tk.mma(-ta, tb, acc)
        i += 1  # noqa: SIM113
    y.store(acc)


@tk.kernel
def sums_change_places(y: tk.Out, a: tk.In, b: tk.In):
    acc, other = tk.zeros((128, 128), F), tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
        acc, other = other, acc
    y.store(acc - 3 * other)


@tk.function
def by_function(t, tb, acc):
    return tk.mma(tk.abs(t), tb, acc)


@tk.kernel
def in_a_function(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = by_function(ta, tb, acc)
    y.store(acc)


@tk.kernel
def one_operand_of_two(y: tk.Out, a: tk.In, b: tk.In):
    acc, acc2 = tk.zeros((128, 128), F), tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        h = tk.abs(ta)
        acc = tk.mma(h, tb, acc)
        acc2 = tk.mma(h, tb, acc2)
    y.store(acc - 3 * acc2)


@tk.kernel
def computed_long_before(y: tk.Out, a: tk.In, b: tk.In):
    """The operand is ready before the wait for another product, behind which it is needed."""
    acc, most = tk.zeros((128, 128), F), tk.zeros((128, 1), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        h = tk.abs(ta)
        s = tk.mma(ta, tb, tk.zeros((128, 128), F))
        most = tk.maximum(most, tk.max(s, 1, keepdims=True))
        acc = tk.mma(h, tb, acc)
    y.store(acc + most)


@tk.kernel
def both_computed(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(ta, tk.abs(tb), acc)
        acc = tk.mma(tk.abs(ta), -tb, acc)
    y.store(acc)


@tk.kernel
def parked_now_and_then(y: tk.Out, a: tk.In, b: tk.In):
    acc, i = tk.zeros((128, 128), F), 0
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        if i > 2:
            acc = tk.mma(ta, tk.abs(tb), acc)
        acc = tk.mma(tk.abs(ta), -tb, acc)
        i += 1  # noqa: SIM113
    y.store(acc)


@tk.kernel
def several_of_a_turn(y: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((128, 128), F)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[tk.bid(0), :], b.tiles((64, 128))[:, tk.bid(1)]):
        acc = tk.mma(tk.abs(ta), tb, acc)
        acc = tk.mma(ta, tb, acc)
        acc = tk.mma(-ta + 1, tb, acc)
    y.store(acc)


def turns(a, b):
    return [(a[:, 64 * k : 64 * k + 64], b[64 * k : 64 * k + 64]) for k in range(TURNS)]


def carried(a, b):
    before = [a[:, :64], *(np.abs(ta) for ta, _ in turns(a, b))]
    return sum(p @ tb for p, (_, tb) in zip(before, turns(a, b), strict=False))


def round_an_inner_loop(a, b):
    p, acc = a[:, :64], 0
    for ta, tb in turns(a, b):
        for _ in range(3):
            acc, p = acc + p @ tb, np.minimum(p + ta, 8)
    return acc


def now_and_then(a, b):
    return sum(ta @ np.abs(tb) for ta, tb in turns(a, b)[3:]) - np.abs(a) @ b


def long_before(a, b):
    most = np.zeros((ROWS, ROWS // 128))
    for ta, tb in turns(a, b):
        most = np.maximum(most, (ta @ tb).reshape(ROWS, -1, 128).max(axis=2))
    return np.abs(a) @ b + np.repeat(most, 128, axis=1)


EXPECTED = {
    computed_first: lambda a, b: np.abs(a) @ b,
    of_blocks_that_stay: lambda a, b: np.abs(a) @ b,
    of_the_turn_before: carried,
    carried_and_used_twice: lambda a, b: np.abs(a) @ b - 3 * carried(a, b),
    of_an_inner_loop: lambda a, b: (6 * np.abs(a) + 6) @ b,
    carried_round_an_inner_loop: round_an_inner_loop,
    in_branches: lambda a, b: sum((-ta if k % 2 else np.abs(ta)) @ tb for k, (ta, tb) in enumerate(turns(a, b))),
    sums_change_places: lambda a, b: sum((-3 if k % 2 else 1) * (ta @ tb) for k, (ta, tb) in enumerate(turns(a, b))),
    in_a_function: lambda a, b: np.abs(a) @ b,
    one_operand_of_two: lambda a, b: -2 * (np.abs(a) @ b),
    computed_long_before: long_before,
    both_computed: lambda a, b: a @ np.abs(b) - np.abs(a) @ b,
    parked_now_and_then: now_and_then,
    several_of_a_turn: lambda a, b: (np.abs(a) + 1) @ b,
}


@pytest.mark.parametrize("warps", [8, 4])
@pytest.mark.parametrize("kernel", EXPECTED, ids=lambda kernel: kernel.name)
def test_computed_operands(device, kernel, warps):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((ROWS, 64 * TURNS), (64 * TURNS, ROWS)))
    want = EXPECTED[kernel](a.astype(np.float64), b.astype(np.float64))
    y = api.zeros((ROWS, ROWS)).sync().partition((128, 128))
    y = y.map(num_blocks=3) if kernel is of_blocks_that_stay else y
    given = api.from_host(a).sync(), api.from_host(b).sync()
    for _ in range(10 if device.kind == "cuda" else 1):
        launch = kernel(y, *given).num_warps(warps)
        got = launch.first().unpartition().to_host().sync()
        np.testing.assert_array_equal(got, want)
    if device.kind == "cpu":
        meta = [api.meta(t.shape, t.dtype) for t in given]
        out = api.meta((ROWS, ROWS), F).partition((128, 128))
        out = out.map(num_blocks=3) if kernel is of_blocks_that_stay else out
        compiled = kernel(out, *meta).num_warps(warps).compile(target="sm_90a")
        assert "wgmma.mma_async" in compiled.ptx or kernel is in_a_function
