"""Sums that the first turn begins, and products that are subtracted: the machine code of a sum that begins with zeros."""

from __future__ import annotations

import re

import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api
from tilekit.compiler.passes.first_turns import join_first_turns

BM, BN, BK = tk.generics("BM BN BK")


@tk.function
def product(a, b, k):
    zeros = tk.zeros((BM, BN), tk.float32)
    return tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), zeros)


@tk.kernel(num_warps=8)
def plain(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = acc + product(a, b, k)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def chosen(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        p = product(a, b, k)
        acc = p if k == 0 else acc + p
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def in_branches(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        if k > 0:
            acc += product(a, b, k)
        else:
            acc = product(a, b, k)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def by_a_flag(c: tk.Out, a: tk.In, b: tk.In):
    acc, first = tk.zeros((BM, BN), tk.float32), True
    for k in range(tk.cdiv(a.shape[1], BK)):
        p = product(a, b, k)
        if first:
            acc, first = p, False
        else:
            acc += p
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def set_to_zeros(c: tk.Out, a: tk.In, b: tk.In):
    acc, k, n = tk.zeros((BM, BN), tk.float32), 0, tk.cdiv(a.shape[1], BK)
    while k < n:
        if not k:
            acc = tk.zeros((BM, BN), tk.float32)
        acc += product(a, b, k)
        k += 1
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def over_streams(c: tk.Out, a: tk.In, b: tk.In):
    acc, k = tk.zeros((BM, BN), tk.float32), 0
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        p = tk.mma(ta, tb, tk.zeros((BM, BN), tk.float32))
        acc = p if k < 1 else acc + p
        k = k + 1
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def subtracted(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc -= tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def of_negatives(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(-tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def negatives_added(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = -product(a, b, k) - (-acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def negatives_subtracted(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc -= -product(a, b, k)
    c.store(acc.astype(c.dtype))


FIRST = (chosen, in_branches, by_a_flag, set_to_zeros, over_streams)
NEGATIVE = (subtracted, of_negatives, negatives_added)


def launch(kernel):
    a = api.meta((1024, 1024), tk.bfloat16)
    return kernel(a.partition((128, 256)), a, a).generics(BM=128, BN=256, BK=64)


@pytest.fixture(scope="module")
def expected():
    return launch(plain).explain("sm_90a")


@pytest.mark.parametrize("kernel", [*FIRST, *NEGATIVE, negatives_subtracted], ids=lambda kernel: kernel.name)
def test_they_are_as_fast(kernel, expected):
    explained = launch(kernel).explain("sm_90a")
    compiled, like = explained.compiled, expected.compiled
    for text in ("HGMMA", "UTMALDG", "DEPBAR"):
        assert compiled.sass.count(text) == like.sass.count(text)
    assert (compiled.registers, compiled.local_bytes) == (like.registers, 0)
    assert not explained.serialised
    assert explained.pipelines[0].stages == expected.pipelines[0].stages
    negated = 128 if kernel in NEGATIVE else 0  # elements of a thread
    count, other = (len(re.findall(r"/\*[0-9a-f]{4,}\*/ ", each.sass)) for each in (compiled, like))
    assert abs(count - other - negated) <= 16


@pytest.mark.parametrize("kernel", [*FIRST, *NEGATIVE, negatives_subtracted], ids=lambda kernel: kernel.name)
def test_they_compute_the_same(kernel, cpu):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (128, 128)).astype(np.float16) for _ in range(2))
    a[5], b[:, 7] = 0, 0
    results = []
    for rewritten in (False, True):
        c = api.full((128, 128), np.nan, np.float32).sync()
        op = tk.kernel(kernel.__wrapped__)(c.partition((64, 64)), api.from_host(a), api.from_host(b))
        op = op.generics(BM=64, BN=64, BK=32)
        if rewritten:
            with through_ir.rewritten():
                op.sync()
        else:
            op.sync()
        results.append(c.to_host().sync())
    wide = a.astype(np.float32) @ b.astype(np.float32)
    for result in results:
        np.testing.assert_array_equal(result, -wide if kernel in NEGATIVE else wide)
    np.testing.assert_array_equal(np.signbit(results[0]), np.signbit(results[1]))


@tk.kernel(num_warps=4)
def complement(c: tk.InOut, a: tk.In, b: tk.In):
    acc = c.load()
    for k in range(tk.cdiv(a.shape[1], 32)):
        acc -= tk.mma(tk.load(a, (0, k), (64, 32)), tk.load(b, (k, 0), (32, 64)), tk.zeros((64, 64), c.dtype))
    c.store(acc)


@tk.kernel(num_warps=4)
def mixed(c: tk.InOut, a: tk.In, b: tk.In):
    acc = c.load()
    for k in range(tk.cdiv(a.shape[1], 64)):
        acc += tk.mma(tk.load(a, (0, 2 * k), (64, 32)), tk.load(b, (2 * k, 0), (32, 64)), tk.zeros((64, 64), c.dtype))
        acc -= tk.mma(tk.load(a, (0, 2 * k + 1), (64, 32)), tk.load(b, (2 * k + 1, 0), (32, 64)), tk.zeros((64, 64), c.dtype))
    c.store(acc)


@pytest.mark.parametrize(("dtype", "sums"), [(np.float16, np.float32), (np.int8, np.int32)])
@pytest.mark.parametrize("kernel", [complement, mixed], ids=lambda kernel: kernel.name)
def test_what_they_are_subtracted_from(kernel, dtype, sums, cpu):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-128, 128, (64, 64)).astype(dtype) for _ in range(2))
    begun = rng.integers(-(2**31) if sums == np.int32 else -1000, 2**31 if sums == np.int32 else 1000, (64, 64)).astype(sums)
    c = api.from_host(begun).sync()
    with through_ir.rewritten():
        tk.kernel(kernel.__wrapped__)(c.partition((64, 64)), api.from_host(a), api.from_host(b)).sync()
    signs = np.repeat([1, -1] if kernel is mixed else [-1, -1], 32)
    wide = begun.astype(np.int64) + (a.astype(np.int64) * signs) @ b.astype(np.int64)
    np.testing.assert_array_equal(c.to_host().sync(), wide.astype(sums))


def test_floats_that_are_added_and_subtracted_are_added_up():
    a = api.meta((64, 1024), tk.float16)
    explained = mixed(api.meta((64, 64), tk.float32).partition((64, 64)), a, api.meta((1024, 64), tk.float16)).explain("sm_90a")
    assert explained.pipelines[0].stages >= 2
    assert explained.compiled.local_bytes == 0
    assert not re.search(r"\w - \w", explained.ir)


def branches(kernel):
    c, a = api.meta((64, 64)), api.meta((64, 64), tk.float16)
    ir = through_ir.ir_of(tk.kernel(kernel)(c.partition((64, 64)), a, a), join_first_turns)
    return sum(operation.kind == "if" for operation in ir.walk())


def no_product(c: tk.Out, a: tk.In, b: tk.In):
    """`0 + p` is no -0."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        p = tk.load(a, (0, 0), (64, 64)).astype(tk.float32)
        acc = p if k == 0 else acc + p
    c.store(acc)


def no_zeros(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.full((64, 64), 1, tk.float32)
    for k in range(4):
        p = tk.mma(tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32))
        acc = p if k == 0 else acc + p
    c.store(acc)


def second_turn(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        p = tk.mma(tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32))
        acc = p if k <= 1 else acc + p
    c.store(acc)


def another_product(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(4):
        ta, tb, zeros = tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32)
        acc = tk.mma(tb, ta, zeros) if k == 0 else tk.mma(ta, tb, acc)
    c.store(acc)


def flag_that_stays(c: tk.Out, a: tk.In, b: tk.In):
    acc, first = tk.zeros((64, 64), tk.float32), True
    for k in range(4):
        p = tk.mma(tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32))
        acc = p if first else acc + p
        first = k < 2
    c.store(acc)


def rounded(c: tk.Out, a: tk.In, b: tk.In):
    """What is rounded may be -0."""
    acc = tk.zeros((64, 64), tk.float16)
    for k in range(4):
        p = tk.load(a, (0, 0), (64, 64)) @ tk.load(b, (0, 0), (64, 64))
        acc = p if k == 0 else acc + p
    c.store(acc.astype(tk.float32))


@pytest.mark.parametrize("kernel", [no_product, no_zeros, second_turn, another_product, flag_that_stays, rounded])
def test_other_branches_stay(kernel):
    assert branches(kernel) == 1


def test_a_branch_of_the_first_turn_goes():
    def first(c: tk.Out, a: tk.In, b: tk.In):
        acc = tk.zeros((64, 64), tk.float32)
        for k in range(4):
            p = tk.mma(tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32))
            acc = p if k == 0 else acc + p
        c.store(acc)

    def numbered(c: tk.Out, a: tk.In, b: tk.In):
        acc, n = tk.zeros((64, 64), tk.float32), tk.bid(0)
        for k in range(n + 3, n + 7):
            p = tk.mma(tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64)), tk.zeros((64, 64), tk.float32))
            acc = acc + p if 2 * k - n > n + 6 else p
        c.store(acc)

    assert branches(first) == branches(numbered) == 0
