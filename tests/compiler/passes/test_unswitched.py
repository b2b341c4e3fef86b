"""Loops in which a condition that no turn decides says what is loaded."""

from __future__ import annotations

import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.unswitched import unswitch_loops

BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel(num_warps=8)
def plain(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc)


@tk.kernel(num_warps=8)
def one_of_two(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        tb = tk.load(b, (k, tk.bid(1)), (BK, BN)) if flag > 0 else tk.load(d, (k, tk.bid(1)), (BK, BN))
        acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tb
    c.store(acc)


@tk.kernel(num_warps=8)
def of_the_block(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        if (tk.bid(1) + flag) % 2 == 1:
            tb = tk.load(b, (k, tk.bid(1)), (BK, BN))
        else:
            tb = tk.load(d, (k, tk.bid(1)), (BK, BN))
        acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tb
    c.store(acc)


@tk.kernel(num_warps=8)
def all_or_nothing(c: tk.Out, a: tk.In, b: tk.In, d: tk.In, flag: int):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        if flag:
            acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc)


CHOOSING = (one_of_two, of_the_block, all_or_nothing)


def launch(kernel):
    a = api.meta((1024, 1024), tk.bfloat16)
    return kernel(api.meta((1024, 1024)).partition((128, 256)), a, a, a, 1).generics(BM=128, BN=256, BK=64)


@pytest.mark.parametrize("kernel", CHOOSING, ids=lambda kernel: kernel.name)
def test_they_are_as_fast(kernel):
    explained, expected = launch(kernel).explain("sm_90a"), launch(plain).explain("sm_90a")
    compiled, like = explained.compiled, expected.compiled
    loops = 1 if kernel is all_or_nothing else 2
    for text in ("HGMMA", "UTMALDG"):
        assert compiled.sass.count(text) == loops * like.sass.count(text)
    assert "LDG.E" not in compiled.sass
    assert (compiled.registers, compiled.local_bytes) == (like.registers, 0)
    assert [ring.stages for ring in explained.pipelines] == [4] * loops
    assert not explained.serialised


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("depth", [0, 32, 128])
@pytest.mark.parametrize("kernel", CHOOSING, ids=lambda kernel: kernel.name)
def test_they_compute_the_same(kernel, flag, depth, cpu):
    rng = np.random.default_rng(3)
    a = rng.integers(-3, 4, (128, depth)).astype(np.float16)
    b, d = (rng.integers(-3, 4, (depth, 128)).astype(np.float16) for _ in range(2))
    results = []
    for rewritten in (False, True):
        c = api.full((128, 128), np.nan, np.float32).sync()
        op = tk.kernel(kernel.__wrapped__)(c.partition((64, 64)), *map(api.from_host, (a, b, d)), flag)
        op = op.generics(BM=64, BN=64, BK=32)
        if rewritten:
            with through_ir.rewritten():
                op.sync()
        else:
            op.sync()
        results.append(c.to_host().sync())
    np.testing.assert_array_equal(*results)


def test_all_branches_by_one_condition_go():
    """Also where it is computed twice."""

    @tk.kernel
    def both(c: tk.Out, a: tk.In, b: tk.In, flag: int):
        acc = tk.zeros((64, 64), tk.float32)
        for k in range(4):
            ta = tk.load(a, (0, k), (64, 64)) if flag > 0 else tk.load(b, (0, k), (64, 64))
            tb = tk.load(b, (k, 0), (64, 64)) if flag > 0 else tk.load(a, (k, 0), (64, 64))
            acc = tk.mma(ta, tb, acc)
        c.store(acc)

    a = api.meta((512, 512), tk.float16)
    launch = both(api.meta((64, 64)).partition((64, 64)), a, a, 1)
    ir = through_ir.ir_of(launch, hoist_invariants, accumulate_products, unswitch_loops)
    loops = [operation for operation in ir.walk() if operation.kind == "for"]
    assert len(loops) == 2
    assert not any(operation.kind == "if" for loop in loops for operation in loop.regions[0].walk())


def turns_decide(c: tk.Out, a: tk.In, b: tk.In, flag: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        tb = tk.load(b, (k, 0), (64, 64)) if k % 2 == flag else tk.load(a, (0, k), (64, 64))
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tb, acc)
    c.store(acc)


def loads_no_operand(c: tk.Out, a: tk.In, b: tk.In, flag: int):
    acc, n = tk.zeros((64, 64), tk.float32), tk.bid(0) + flag
    for k in range(4):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 0), (64, 64)), acc)
        if n > 0:
            acc = acc * 2
    c.store(acc)


def leaves(c: tk.Out, a: tk.In, b: tk.In, flag: int):
    acc, n = tk.zeros((64, 64), tk.float32), tk.bid(0) + flag
    for k in range(4):
        if n > 0:
            acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 0), (64, 64)), acc)
            break
    c.store(acc)


@pytest.mark.parametrize("kernel", [turns_decide, loads_no_operand, leaves])
def test_other_loops_stay(kernel):
    c, a = api.meta((64, 64)), api.meta((512, 512), tk.float16)
    launch = tk.kernel(kernel)(c.partition((64, 64)), a, a, 1)
    ir = through_ir.ir_of(launch, hoist_invariants, accumulate_products, unswitch_loops)
    assert sum(operation.kind == "for" for operation in ir.walk()) == 1
