"""Loops with several products a turn, of tiles that follow each other: as fast as with one."""

from __future__ import annotations

import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.counted import count_loops
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.rolled import roll_up_turns

BM, BN, BK = tk.generics("BM BN BK")


@tk.function
def product(a, b, k):
    return tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))


@tk.kernel(num_warps=8)
def plain(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc += product(a, b, k)
    c.store(acc)


@tk.kernel(num_warps=8)
def by_steps(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(0, tk.cdiv(a.shape[1], BK), 2):
        acc += product(a, b, k)
        acc += product(a, b, k + 1)
    c.store(acc)


@tk.kernel(num_warps=8)
def of_four(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], 4 * BK)):
        for step in tk.static_range(4):
            acc += product(a, b, 4 * k + step)
    c.store(acc)


@tk.kernel(num_warps=8)
def loaded_first(c: tk.Out, a: tk.In, b: tk.In):
    acc, k = tk.zeros((BM, BN), tk.float32), 0
    while k < tk.cdiv(a.shape[1], BK):
        ta, ua = tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(a, (tk.bid(0), k + 1), (BM, BK))
        tb, ub = tk.load(b, (k, tk.bid(1)), (BK, BN)), tk.load(b, (k + 1, tk.bid(1)), (BK, BN))
        acc = tk.mma(ta, tb, acc)
        acc = tk.mma(ua, ub, acc)
        k += 2
    c.store(acc)


SEVERAL = (by_steps, of_four, loaded_first)


def launch(kernel):
    a = api.meta((1024, 1024), tk.bfloat16)
    return kernel(api.meta((1024, 1024)).partition((128, 256)), a, a).generics(BM=128, BN=256, BK=64)


@pytest.fixture(scope="module")
def expected():
    return launch(plain).explain("sm_90a")


@pytest.mark.parametrize("kernel", SEVERAL, ids=lambda kernel: kernel.name)
def test_they_are_as_fast(kernel, expected):
    explained = launch(kernel).explain("sm_90a")
    for text in ("HGMMA", "UTMALDG", "DEPBAR"):
        assert explained.compiled.sass.count(text) == expected.compiled.sass.count(text)
    assert (explained.compiled.registers, explained.compiled.local_bytes) == (expected.compiled.registers, 0)
    assert explained.pipelines[0].stages == expected.pipelines[0].stages == 4


@pytest.mark.parametrize("kernel", [plain, *SEVERAL], ids=lambda kernel: kernel.name)
def test_they_compute_the_same(kernel, cpu):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (128, 256)).astype(np.float16), rng.integers(-3, 4, (256, 128)).astype(np.float16))
    c = api.full((128, 128), np.nan, np.float32).sync()
    with through_ir.rewritten():
        op = tk.kernel(kernel.__wrapped__)(c.partition((64, 64)), api.from_host(a), api.from_host(b))
        op.generics(BM=64, BN=64, BK=32).sync()
    np.testing.assert_array_equal(c.to_host().sync(), a.astype(np.float32) @ b.astype(np.float32))


def other_steps(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (0, 2 * k + 1), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
    c.store(acc)


def overlapping(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (0, k + 1), (64, 64)), tk.load(b, (k + 1, 0), (64, 64)), acc)
    c.store(acc)


def other_tensors(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(b, (0, 2 * k + 1), (64, 64)), tk.load(a, (2 * k + 1, 0), (64, 64)), acc)
    c.store(acc)


def scaled_once(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (0, 2 * k + 1), (64, 64)) * 2, tk.load(b, (2 * k + 1, 0), (64, 64)), acc)
    c.store(acc)


def summed_up(c: tk.Out, a: tk.In, b: tk.In):
    acc, other = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (0, 2 * k + 1), (64, 64)), tk.load(b, (2 * k + 1, 0), (64, 64)), acc)
        other = other + acc
    c.store(acc + other)


def stored(c: tk.InOut, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (2 * k, 0), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (0, 2 * k + 1), (64, 64)), tk.load(b, (2 * k + 1, 0), (64, 64)), acc)
        c.store(acc)


def of_pairs(c: tk.Out, a: tk.In, b: tk.In):
    """Two products of each tile of `a`, and scaled ones: a part has two products."""
    acc, other = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float32)
    for k in range(4):
        for step in tk.static_range(2):
            ta, tb = tk.load(a, (0, 2 * k + step), (64, 64)), tk.load(b, (2 * k + step, 0), (64, 64))
            acc = tk.mma(ta, tb, acc)
            acc = tk.mma(tb, ta, acc)
            other = tk.mma(ta * (2 * k + step), tb, other)
            other = tk.mma(ta, ta, other)
    c.store(acc + other)


def used_twice(c: tk.Out, a: tk.In, b: tk.In):
    """The third product is of the second's tiles, not of the next ones."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(2):
        ta, tb = tk.load(a, (0, 3 * k), (64, 64)), tk.load(b, (3 * k, 0), (64, 64))
        ua, ub = tk.load(a, (0, 3 * k + 1), (64, 64)), tk.load(b, (3 * k + 1, 0), (64, 64))
        acc = tk.mma(ta, tb, acc)
        acc = tk.mma(ua, ub, acc)
        acc = tk.mma(ua, ub, acc)
    c.store(acc)


def products(kernel):
    """Of a turn."""
    c, a = api.meta((64, 64)), api.meta((512, 512), tk.float16)
    passes = hoist_invariants, count_loops, accumulate_products, roll_up_turns
    ir = through_ir.ir_of(tk.kernel(kernel)(c.partition((64, 64)), a, a), *passes)
    (loop,) = [operation for operation in ir.operations if operation.kind == "for"]
    return sum(operation.kind == "call" and operation.what.value is tk.mma for operation in loop.regions[0].operations)


@pytest.mark.parametrize("kernel", [other_steps, overlapping, other_tensors, scaled_once, summed_up, stored])
def test_other_turns_stay(kernel):
    assert products(kernel) == 2


def test_tiles_that_come_twice_are_not_the_next_ones(cpu):
    assert products(used_twice) == 3
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 384), (384, 64)))
    c = api.full((64, 64), np.nan, np.float32).sync()
    with through_ir.rewritten():
        tk.kernel(used_twice)(c.partition((64, 64)), api.from_host(a), api.from_host(b)).sync()
    times = np.repeat([1, 2, 0, 1, 2, 0], 64).astype(np.float32)
    np.testing.assert_array_equal(c.to_host().sync(), a.astype(np.float32) * times @ b.astype(np.float32))


def test_a_part_of_a_turn_may_have_several_products():
    assert products(of_pairs) == 4
