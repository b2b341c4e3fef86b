"""Rotated loops: which there are, what they compute, and why others are left as they are."""

from __future__ import annotations

import numpy as np
import pytest
import through_ir
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.remarks import collected
from tilekit.compiler.optimize import PASSES

BM, BN = 64, 64


def attend(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma((s * s).astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc * 0.5)
    o.store(acc)


def of_sums(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """The second product begins with what the turn before added up."""
    query, acc, total = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32), tk.zeros((BM,), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), tk.zeros((BM, BN), tk.float32))
        total = total + tk.max(s, 1)
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc)
    o.store(acc + total[:, None])


def written(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for key, value in tk.pipelined(k.tiles((BN, 64))[1:n, 0], v.tiles((BN, 64))[1:n, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), value, acc)
    o.store(acc)


def of_two(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """Scores that are a sum of two products."""
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        key = tk.load(k, (j, 0), (BN, 64)).transpose()
        s = tk.mma(query, key, tk.zeros((BM, BN), tk.float32))
        s = tk.mma(query, key, s) * 0.25
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc)
    o.store(acc)


def kept(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for key, value in tk.pipelined(k.tiles((BN, 64))[:, 0], v.tiles((BN, 64))[:, 0], rotate=False):
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), value, acc)
    o.store(acc)


def single(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """Two products, neither made of the other."""
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), tk.zeros((BM, 64), tk.float32))
        acc = tk.maximum(tk.mma(query, tk.load(v, (j, 0), (BN, 64)), acc), s)
    o.store(acc)


def renewed(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """The first product is made of what the turn before handed on."""
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), acc)
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc)
    o.store(acc)


def same_stream(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for key in tk.pipelined(k.tiles((BN, 64))[:, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), key, acc)
    o.store(acc)


def weighted(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """The second half reads the number of the turn."""
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc) * j
    o.store(acc)


def stored(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (BN, 64)).transpose(), tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc)
        o.store(acc)


def apart(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """Another sum beside what attention adds up."""
    query, acc, other = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32), tk.zeros((BM, BN), tk.float32)
    for j in range(n):
        key = tk.load(k, (j, 0), (BN, 64)).transpose()
        other = tk.mma(query, key, other)
        s = tk.mma(query, key, tk.zeros((BM, BN), tk.float32))
        acc = tk.mma(s.astype(v.dtype), tk.load(v, (j, 0), (BN, 64)), acc)
    o.store(acc + tk.sum(other))


def normed(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
    """Keys are read by more than the product."""
    query, acc = tk.load(q, (tk.bid(0), 0), (BM, 64)), tk.zeros((BM, 64), tk.float32)
    for key, value in tk.pipelined(k.tiles((BN, 64))[:, 0], v.tiles((BN, 64))[:, 0]):
        s = tk.mma(query, key.transpose(), tk.zeros((BM, BN), tk.float32)) * tk.sum(key.astype(tk.float32))
        acc = tk.mma(s.astype(v.dtype), value, acc)
    o.store(acc)


ROTATED = [attend, of_sums, written, of_two]
REASONS = {
    kept: "rotate=False",
    single: "the second product is not made of the first",
    renewed: "the first product reads what the turn before hands on",
    same_stream: "both halves of a turn, with a product each, read the same stream",
    weighted: "what the second product makes depends on a number of its turn",
    stored: "a turn writes to memory, prints or asserts, or calls what may",
    apart: "a turn has 3 products, and not all but the last of them make what it multiplies",
    normed: "operands of the first product are read by more than it",
}


def remarks_of(make):
    o, q = api.meta((128, 64)).partition((BM, 64)), api.meta((256, 64), tk.float16)
    with collected() as remarks:
        kernel = ir_of(tk.kernel(make)(o, q, q, q, 3), *PASSES)
    return kernel, [remark for remark in remarks if remark.transformation == "rotation"]


@pytest.mark.parametrize("make", ROTATED)
def test_the_first_product_is_asked_for_a_turn_ahead(make):
    kernel, (remark,) = remarks_of(make)
    assert remark.done
    loops = [operation for operation in kernel.walk() if operation.kind == "stream" and operation.regions[0].parameters[1:]]
    products = [[op for op in loop.regions[0].operations if is_product(op)] for loop in loops]
    ahead = 2 if make is of_two else 1
    assert [len(each) for each in products] == [ahead, ahead + 1, 1]
    (turn,) = [each for each in products if len(each) == ahead + 1]
    assert turn[ahead - 1].results[0] not in turn[ahead].operands, "nor any of what it is made of: it is the next turn's"


@pytest.mark.parametrize("make", REASONS)
def test_why_a_loop_is_left_as_it_is(make):
    _, remarks = remarks_of(make)
    if make is stored:  # what stands in the way of streams does so first
        assert not any(remark.done for remark in remarks)
        return
    assert [(remark.done, remark.text) for remark in remarks] == [(False, REASONS[make])]


@pytest.mark.parametrize("make", [*ROTATED, *REASONS])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_results_are_the_same(make, turns, cpu):
    rng = np.random.default_rng(turns)
    arrays = [rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (128, 64 * max(turns, 1), 64 * max(turns, 1))]
    if turns == 0:
        arrays[1:] = [array[:0] for array in arrays[1:]]
    tensors = [api.from_host(array).sync() for array in arrays]

    def result():
        o = api.full((128, 64), -1.0).sync()
        tk.kernel(make)(o.partition((BM, 64)), *tensors, turns).sync()
        return o.to_host().sync()

    expected = result()
    with through_ir.rewritten():
        np.testing.assert_array_equal(result(), expected)


def test_rotate_is_a_flag():
    def wrong(o: tk.Out, q: tk.In, k: tk.In, v: tk.In, n: int):
        for key in tk.pipelined(k.tiles((BN, 64))[:, 0], rotate=1):
            o.store(key.astype(o.dtype))

    o, q = api.meta((128, 64)).partition((BM, 64)), api.meta((256, 64), tk.float16)
    with pytest.raises(tk.CompileError, match="rotate is True, False or None, not 1"):
        tk.kernel(wrong)(o, q, q, q, 3).compile(target="sm_90a")
