"""In which order the blocks of a grid are visited, and that each of them is, once."""

from __future__ import annotations

import ctypes
import itertools
import random

import numpy as np
import pytest
from llvmlite import ir
from numba import cuda
from on_host import engine_of
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.codegen import blocks
from tilekit.compiler.codegen.compilation import compiling
from tilekit.compiler.grids import Visits
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.optimize import PASSES
from tilekit.compiler.passes.visits import ORDER, order_visits

BEFORE = PASSES[: PASSES.index(order_visits)]


def visits_of(op):
    """The order, found where the passes ask for it."""
    return order_visits(ir_of(op, *BEFORE))


def product(make, tile=(64, 64), rank=2):
    c, a = api.meta((256,) * rank), api.meta((256,) * rank, tk.float16)
    return tk.kernel(make)(c.partition((1,) * (rank - 2) + tile), a, a)


def plain(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(c.tile_shape, tk.float32)
    for k in range(tk.cdiv(a.shape[1], 64)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (c.tile_shape[0], 64)), tk.load(b, (k, tk.bid(1)), (64, c.tile_shape[1])), acc)
    c.store(acc)


def batched(c: tk.Out, a: tk.In, b: tk.In):
    h, i, j = tk.bid(0), tk.bid(1), tk.bid(2)
    acc = tk.zeros((64, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((1, 64, 64))[h, i, :], b.tiles((1, 64, 64))[h, :, j]):
        acc = tk.mma(ta.reshape((64, 64)), tb.reshape((64, 64)), acc)
    c.store(acc.reshape((1, 64, 64)))


def in_two_batches(c: tk.Out, a: tk.In, b: tk.In):
    """Sums over the tiles up to the block's own, of the rows that a head has."""
    h, i = tk.bid(0), tk.bid(1)
    acc = tk.zeros((64, 64), tk.float32)
    for ta in tk.pipelined(a.tiles((64, 64))[h, 0 : i + 1]):
        acc = tk.mma(ta, tk.load(b, (h, i), (64, 64)), acc)
    c.store(acc)


def triangular(c: tk.Out, a: tk.In, b: tk.In):
    """A product with a matrix that has nothing above its diagonal."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(tk.bid(0) + 1):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def of_many_heads(c: tk.Out, a: tk.In, b: tk.In):
    h, i, n = tk.bid(0), tk.bid(1), tk.bid(2)
    acc, own = tk.zeros((64, 64), tk.float32), tk.load(b, (n, h, i), (1, 64, 64)).reshape((64, 64))
    for j in range(i + 1):
        acc = tk.mma(own, tk.load(a, (n, h, j), (1, 64, 64)).reshape((64, 64)), acc)
    c.store(acc.reshape((1, 64, 64)))


def shorter_later(c: tk.Out, a: tk.In, b: tk.In):
    h, i = tk.bid(0), tk.bid(1)
    acc, own = tk.zeros((64, 64), tk.float32), tk.load(b, (h, i), (64, 64))
    for j in range(i, tk.cdiv(a.shape[1], 64)):
        acc = tk.mma(tk.load(a, (h, j), (64, 64)), own, acc)
    c.store(acc)


def rows_alone(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, 0]):
        acc = tk.mma(ta, tb, acc)
    tk.store(c, (tk.bid(0), 0), acc)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (product(plain), Visits((0, 1), 16, frozenset())),  # 11 would be a square
        (product(plain, (64, 256)), Visits((0, 1), 16, frozenset())),
        (product(plain, (256, 64)), Visits((0, 1), 4, frozenset())),
        (product(batched, rank=3), Visits((1, 2, 0), 16, frozenset())),
        (product(in_two_batches), Visits((0, 1), 32, frozenset({1}))),
        (product(triangular), Visits((1, 0), 32, frozenset({0}))),
        (product(of_many_heads, rank=3), Visits((0, 1, 2), 32, frozenset({1}))),
    ],
    ids=["square", "wide", "tall", "batched", "longer later", "a triangle", "longer later, of three"],
)
def test_the_order(op, wanted):
    assert visits_of(op) == wanted


def with_atomics(c: tk.InOut, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    tk.atomic_add(c, (tk.bid(0), tk.bid(1)), tk.sum(acc))


def with_numbas(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    tk.store(c, (cuda.blockIdx.x, cuda.blockIdx.y), acc)


@pytest.mark.parametrize("make", [with_atomics, with_numbas, shorter_later, rows_alone])
def test_others_keep_theirs(make):
    assert visits_of(product(make)) is None


def test_explain_tells_it():
    c, a = api.meta((4096, 4096)), api.meta((4096, 4096), tk.float16)
    (one,) = (r for r in tk.kernel(plain)(c.partition((128, 256)), a, a).explain("sm_90a").remarks if r.transformation == ORDER)
    assert one.done
    assert one.text == "16 places of axis 0, by all of axis 1"
    assert str(Visits((1, 0), 0, frozenset({1}))) == "axis 1, from its end; then axis 0"


def test_it_costs_no_spills():
    """The places of a block are registers; with two blocks on a multiprocessor there are none left."""
    a = api.meta((4096, 4096), tk.bfloat16)
    op = tk.kernel(num_warps=8, occupancy=2)(plain)(api.meta((4096, 4096)).partition((128, 128)), a, a)
    explained = op.explain("sm_90a")
    (one,) = (r for r in explained.remarks if r.transformation == ORDER)
    assert explained.compiled.local_bytes == 0
    assert one.done or "no registers left" in one.text


# the code of it


class Machine:
    """What the compiler emits for an order, as a function for this machine: of the special registers."""

    def __init__(self, monkeypatch, visits):
        module, names = ir.Module(), [f"{name}.{axis}" for name in ("ctaid", "nctaid") for axis in "xyz"]
        wide = ir.IntType(32)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [wide] * 6 + [wide.as_pointer()]), "place")
        builder = ir.IRBuilder(function.append_basic_block())
        registers = dict(zip(names, function.args, strict=False))
        monkeypatch.setattr(blocks, "special_register", lambda builder, name: registers[name])
        with compiling(Config(1, 4), visits=visits):
            for n, value in enumerate(blocks.block_index(builder)):
                builder.store(value, builder.gep(function.args[-1], [ir.Constant(wide, n)]))
        builder.ret_void()
        self.engine = engine_of(module)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_uint32] * 6, ctypes.POINTER(ctypes.c_uint32))
        self.call = kind(self.engine.get_function_address("place"))

    def __call__(self, place, grid):
        out = (ctypes.c_uint32 * 3)()
        self.call(*place, *grid, out)
        return tuple(out)


def in_order(visits, grid):
    """All places of a grid, as they are to be visited."""
    rest = [axis for axis in range(3) if axis not in visits.axes]

    def number(place):
        at = [grid[d] - 1 - n if d in visits.backwards else n for d, n in enumerate(place)]
        keys = [at[axis] for axis in (*visits.axes, *rest)]
        if visits.group:
            keys[:2] = [keys[0] % visits.group, keys[1], keys[0] // visits.group]
        return keys[::-1]

    return sorted(itertools.product(*map(range, grid)), key=number)


DRAW = random.Random(3)


def drawn(number):
    """An order of two or three axes, and a grid."""
    used = 2 + number % 2
    backwards = frozenset({DRAW.randrange(used)} if number % 4 < 2 else ())
    visits = Visits(tuple(DRAW.sample(range(used), used)), DRAW.choice([0, 1, 2, 8, 16]), backwards)
    return visits, tuple(DRAW.choice([1, 2, 3, 5, 8, 17, 20]) for _ in range(3))


@pytest.mark.parametrize(("visits", "grid"), [drawn(number) for number in range(24)], ids=str)
def test_each_block_is_visited_once_and_in_that_order(monkeypatch, visits, grid):
    place = Machine(monkeypatch, visits)
    by_number = [place(started[::-1], grid) for started in itertools.product(*map(range, grid[::-1]))]
    assert by_number == in_order(visits, grid)


@pytest.mark.parametrize("grid", [(1, 65535, 60000), (2**31 - 1, 2, 1), (2**16, 65535, 1)], ids=str)
def test_large_grids(monkeypatch, grid):
    """A group may be larger than the axis; and what 32 bits do not number keeps its place."""
    place = Machine(monkeypatch, Visits((0, 1, 2), 16, frozenset({1})))
    last = tuple(n - 1 for n in grid)
    assert place((0, 0, 0), grid) == (0, grid[1] - 1, 0)
    assert place(last, grid) == (last[0], 0, last[2])
    large = Machine(monkeypatch, Visits((1, 0), 0, frozenset()))
    assert large((5, 65534, 0), (2**20, 65535, 1)) == (5, 65534, 0)


@pytest.mark.parametrize("shape", [(1500, 700, 200), (64, 1300, 64), (1300, 64, 64), (1090, 1090, 130)], ids=str)
def test_results(device, shape):
    """Of grids that groups do not divide."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((m, k), (k, n)))
    c = api.full((m, n), -1.0).sync()
    tk.kernel(plain)(c.partition((64, 64)), api.from_host(a), api.from_host(b)).sync()
    np.testing.assert_array_equal(c.to_host().sync(), a.astype(np.float32) @ b.astype(np.float32))


def test_results_of_a_batch(device):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 3, s).astype(np.float16) for s in ((5, 1300, 100), (5, 100, 200)))
    c = api.full((5, 1300, 200), -1.0).sync()
    tk.kernel(batched)(c.partition((1, 64, 64)), api.from_host(a), api.from_host(b)).sync()
    np.testing.assert_array_equal(c.to_host().sync(), a.astype(np.float32) @ b.astype(np.float32))
