"""Which loops become loops over streams, and which must not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.counted import count_loops
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.rotation import rotate_products


def launch(make, *, dtype=tk.float16, rank=2):
    c, a = api.meta((256, 256)).partition((64, 64)), api.meta((256,) * rank, dtype)
    return tk.kernel(make)(c, a, a, 3, *([api.meta(5, tk.int32)] if make is paged else []))


def text_of(make, *passes, **options):
    return "\n".join(line.partition("  #")[0].rstrip() for line in printed(ir_of(launch(make, **options), *passes)).splitlines())


def plain(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k + n, 1), (64, 64)), acc)
    c.store(acc)


def test_a_loop_becomes_one_over_streams():
    text = text_of(plain, *PASSES)
    assert " for " not in text
    assert "= stream " in text
    assert "tk.load" not in text
    assert "[(0, :t" in text.replace("None", ""), "as many as there are turns"
    assert "[(n:t" in text, "from where the other operand begins"


def scores_first(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, query = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64))
    for k in range(n):
        key, value = tk.load(a, (k, 1), (64, 64)), tk.load(b, (k, 1), (64, 64))
        p = tk.exp(tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32)))
        acc = tk.mma(p.astype(tk.float16), value, acc)
    c.store(acc)


def values_loaded_first(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, query = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64))
    for k in range(n):
        value = tk.load(b, (k, 1), (64, 64)).transpose().transpose()
        key = tk.load(a, (k, 1), (64, 64))
        p = tk.exp(tk.mma(query, key.transpose(), tk.zeros((64, 64), tk.float32)))
        acc = tk.mma(p.astype(tk.float16), value, acc)
    c.store(acc)


@pytest.mark.parametrize("make", [scores_first, values_loaded_first])
def test_tiles_come_in_the_order_in_which_a_turn_needs_them(make):
    """Keys before values, wherever they stand in the text."""
    text = text_of(make, *PASSES[: PASSES.index(rotate_products)])
    assert re.search(r"= stream key, .* in \(t\.4, t\.7\)", text)
    assert "t.3: TileGrid = a.tiles" in text


def turned(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.transpose(tk.load(a, (k, 0), (64, 64))), tk.load(b, (1, k), (64, 64)).permute((1, 0)), acc)
    c.store(acc)


def with_its_counter(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(2, n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc) * k
    c.store(acc)


def one_of_two(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, other = tk.zeros((64, 64), tk.float32), tk.load(b, (0, 0), (64, 64))
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), other, acc)
    c.store(acc)


def test_a_counter_that_is_read_is_carried():
    text = text_of(with_its_counter, *PASSES)
    assert "k = 2:" in text.replace("k = 2, ", "k = 2:")
    assert "= k + 1" in text


def by_two(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(0, n, 2):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def far_apart(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, 2 * k), (64, 64)), tk.load(b, (n - 1 - k, 1), (64, 64)), acc)
    c.store(acc)


def along_both(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (k, k), (64, 64)), tk.load(b, (k, k), (64, 64)), acc)
    c.store(acc)


def in_turns(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Beginning with another one, and behind the last with the first."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        at = (k + 2) % n
        acc = tk.mma(tk.load(a, (0, at), (64, 64)), tk.load(b, (at, 1), (64, 64)), acc)
    c.store(acc)


def from_either_end(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        at = k if n > 2 else n - 1 - k
        acc = tk.mma(tk.load(a, (0, at), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def paged(c: tk.Out, a: tk.In, b: tk.In, n: int, table: tk.In):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        page = tk.load(table, k, ()).item()
        acc = tk.mma(tk.load(a, (0, page), (64, 64)), tk.load(b, (page, n // 2), (64, 64)), acc)
    c.store(acc)


def with_its_number(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Which decides about what is multiplied, and comes from the end."""
    acc, cols = tk.zeros((64, 64), tk.float32), tk.arange(64)[None, :]
    for k in range(n - 1, -1, -1):
        first = tk.load(a, (k // 2, k), (64, 64))
        first = tk.where(64 * k + cols < 200, first, 0.0).astype(a.dtype)
        acc = tk.mma(first, tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def leaves(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
        if tk.any(acc > 100).item():
            break
    c.store(acc)


def goes_on(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        if k == 1:
            continue
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def sometimes(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        if k % 2 == 0:
            acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def looked_up(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, at = tk.zeros((64, 64), tk.float32), 0
    for k in range(n):
        acc = tk.mma(tk.load(a, (at, k), (64, 64)), tk.load(b, (k, at), (64, 64)), acc)
        at = k % 2
    c.store(acc)


def padded(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        first = tk.load(a, (0, k), (64, 64), padding_mode="nan")
        acc = tk.mma(first, tk.load(b, (k, 1), (64, 64), mask=tk.arange(64) < k), acc)
    c.store(acc)


def read_elsewhere(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        first, second = tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64))
        acc = tk.mma(first, second, acc + first + second)
    c.store(acc)


def handed_on(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, first, second = tk.zeros((64, 64), tk.float32), tk.zeros((64, 64), tk.float16), tk.zeros((64, 64), tk.float16)
    for k in range(n):
        acc = tk.mma(first, second, acc)
        first, second = tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64))
    c.store(acc)


def small(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((32, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (32, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(tk.cat((acc, acc), 0))


def two_turns(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(2):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def short(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(1):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def told_by_others(c: tk.InOut, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    while tk.atomic_add(c, (0, 0), 0.0).item() == 0.0:
        pass
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def told_to_others(c: tk.InOut, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)
    tk.atomic_max(c, (0, 0), tk.max(acc))


def from_a_column_on(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """Which may begin at any multiple of 2 bytes: no copy does."""
    acc, part = tk.zeros((64, 64), tk.float32), a.slice(1, n)
    for k in range(n):
        acc = tk.mma(tk.load(part, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def added_up(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = acc + tk.load(a, (0, k), (64, 64)) * tk.load(b, (k, 1), (64, 64))
    c.store(acc)


def masked(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, rows = tk.zeros((64, 64), tk.float32), tk.arange(64)
    for k in range(n):
        first = tk.load(a, (0, k), (64, 64), mask=(rows < n)[:, None])
        acc = tk.mma(first, tk.load(b, (k, 1), (64, 64), mask=rows + 64 * k < n, padding_value=0.0), acc)
    c.store(acc)


def padded_by_zeros(c: tk.Out, a: tk.In, b: tk.In, n: int):
    """By zeros, which stand there anyway."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        first = tk.load(a, (0, k), (64, 64), padding_value=0.0)
        acc = tk.mma(first, tk.load(b, (k, 1), (64, 64), padding_value=0), acc)
    c.store(acc)


def added_up_beside(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, sums = tk.zeros((64, 64), tk.float32), tk.zeros((64,), tk.float32)
    for k in range(n):
        first, second = tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64))
        acc = tk.mma(first, second, acc)
        sums += tk.sum(first.astype(tk.float32), 1) + tk.sum(second.astype(tk.float32), 0)
    c.store(acc + sums)


def normalised(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, squares = tk.zeros((64, 64), tk.float32), tk.zeros((64, 1), tk.float32)
    for k in range(n):
        first = tk.load(a, (0, k), (64, 64)).astype(tk.float32)
        squares += tk.sum(first * first, 1, keepdims=True)
        acc = tk.mma((first * 2).astype(a.dtype), tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc * tk.rsqrt(squares))


def chosen(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, rows = tk.zeros((64, 64), tk.float32), tk.arange(64)
    for k in range(n):
        first = tk.load(a, (0, k), (64, 64))
        if k > 1:
            first = tk.where(rows < n, first, 0.0)
        acc = tk.mma(first, tk.load(b, (k, 1), (64, 64)), acc)
    c.store(acc)


def in_halves(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        half = tk.load(b, (1, k), (64, 32))
        whole = tk.cat(((half * 2)[:, :, None], (half + 1)[:, :, None]), 2).reshape((64, 64))
        acc = tk.mma(tk.load(a, (0, k), (64, 64)), whole.transpose(), acc)
    c.store(acc)


DO = [
    turned, with_its_counter, one_of_two, two_turns, read_elsewhere, masked, padded_by_zeros, added_up_beside, normalised, chosen,
    in_halves,
]  # fmt: skip


@pytest.mark.parametrize("make", DO, ids=lambda make: make.__name__)
def test_other_loops_that_do(make):
    text = text_of(make, *PASSES)
    assert "= stream " in text
    assert " for " not in text
    assert "tk.load" not in text, "what comes ahead is all that a turn needs"


@pytest.mark.parametrize("make", DO, ids=lambda make: make.__name__)
def test_what_they_give_is_the_same(make, device):
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(-1, 1, (256, 256)).astype(np.float16) for _ in range(2)]

    def run():
        c, *operands = [api.zeros((64, 64)).sync(), *(api.from_host(x).sync() for x in arrays)]
        tk.kernel(make)(c.partition((64, 64)), *operands, 3).sync()
        return c.to_host().sync()

    plain, passed = both_ways(run, device)
    assert np.abs(plain).max() > 0.1
    np.testing.assert_allclose(passed, plain, atol=2e-2)


STAY = [
    leaves, padded, handed_on, small, short, told_by_others, from_a_column_on, added_up,
]  # fmt: skip


@pytest.mark.parametrize("make", STAY, ids=lambda make: make.__name__)
def test_loops_that_stay(make):
    assert "stream" not in text_of(make, *PASSES)


def test_what_is_told_to_others_holds_up_nothing():
    assert "= stream " in text_of(told_to_others, *PASSES)


GATHERED = [by_two, far_apart, along_both, in_turns, from_either_end, paged, with_its_number]


@pytest.mark.parametrize("make", GATHERED, ids=lambda make: make.__name__)
def test_other_orders_of_tiles_are_gathered(make):
    text = text_of(make, *PASSES)
    assert text.count(" gathered by ") == 2 * text.count("= stream ") > 0
    assert " for " not in text


@pytest.mark.parametrize("make", GATHERED, ids=lambda make: make.__name__)
def test_gathered_tiles_are_those_of_their_turns(make, device):
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-9, 10, (320, 320)).astype(np.float16) for _ in range(2)]
    pages = np.array([4, 0, 3, 3, 1], np.int32)

    def run(n):
        c, a, b, table = api.full((64, 64), -1.0).sync(), *(api.from_host(x).sync() for x in (*arrays, pages))
        tk.kernel(make)(c.partition((64, 64)), a, b, n, *([table] if make is paged else [])).sync()
        return c.to_host().sync()

    for n in range(6 if make is paged else 3):
        np.testing.assert_array_equal(*both_ways(lambda n=n: run(n), device))


@pytest.mark.parametrize("make", [looked_up, sometimes, goes_on], ids=lambda make: make.__name__)
def test_turns_that_find_out_their_tiles_are_loops_of_one(make):
    text = text_of(make, *PASSES)
    assert "for t" in text or "for k" in text
    assert text.count("stream ") == 1
    assert "rotate=False" in text


@pytest.mark.parametrize("dtype", [tk.float32, tk.float64])
def test_products_without_tensor_cores_stay(dtype):
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        acc = tk.zeros((64, 64), a.dtype)
        for k in range(n):
            acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(b, (k, 1), (64, 64)), acc)
        c.store(acc.astype(c.dtype))

    assert "stream" not in text_of(make, *PASSES, dtype=dtype)


def test_a_tensor_that_is_written_stays():
    def make(c: tk.InOut, a: tk.InOut):
        acc = c.load()
        for k in range(4):
            acc = tk.mma(tk.load(a, (0, k), (64, 64)), tk.load(a, (k, 0), (64, 64)), acc)
        c.store(acc)

    c, a = api.meta((256, 256)).partition((64, 64)), api.meta((256, 256), tk.float16).partition((64, 64))
    assert "stream" not in printed(ir_of(tk.kernel(make)(c, a), *PASSES))


# ------------------------------------------------------------------------------------------------------------ the other passes


def test_a_while_that_counts_is_a_range():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, k = tk.zeros((64, 64), tk.float32), 1
        while k < n:
            t = t + k
            k += 1
        c.store(t + k)

    text = text_of(make, hoist_invariants, count_loops)
    assert "for k in (1, n, 1) with" in text
    assert "max(1, n)" in text


def test_other_conditions_of_a_while_that_counts():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, i, j = tk.zeros((64, 64), tk.float32), 0, 0
        while n > i:
            t = t + i
            i += 1
        while True:
            if j >= n:
                break
            t = t + j
            j += 1
        k = 0
        while True:
            if n <= k:
                break
            t = t + k
            k = k + 1
        m = 0
        while n != m:
            t, m = t + m, m + 1
        u = 0
        while True:
            if u == n:
                break
            t, u = t + u, u + 1
        c.store(t)

    text = text_of(make, hoist_invariants, count_loops)
    assert "while" not in text
    assert text.count(" in (0, n, 1) with") == 5


def test_an_end_that_belongs_to_it():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, i, j, k = tk.zeros((64, 64), tk.float32), 0, 0, 0
        while i <= n:
            t, i = t + i, i + 1
        while True:
            if n < j:
                break
            t, j = t + j, j + 1
        while k <= 7:
            t, k = t + k, k + 1
        c.store(t + i + j + k)

    text = text_of(make, hoist_invariants, count_loops)
    assert "while" not in text
    assert text.count("= n + 1") == 2
    assert " in (0, 8, 1) with" in text


def test_an_end_that_is_no_int_stays():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, k = tk.zeros((64, 64), tk.float32), 0
        while k < 2.5:
            t, k = t + k, k + 1
        c.store(t)

    assert "while" in text_of(make, hoist_invariants, count_loops)


def test_a_while_that_may_end_otherwise_stays():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, k, i = tk.zeros((64, 64), tk.float32), 0, 0
        while k != n:
            t = t + k
            k += 2
        while i <= n + i:
            i += 1
        while i < n + k:
            i += 1
            if i == 5:
                break
        while True:
            if i < n:
                break
            i += 1
        while i > n:
            i += 1
        c.store(t + i)

    text = text_of(make, hoist_invariants, count_loops)
    assert text.count("while") == 5


def test_invariants_leave_loops_and_loads_stay():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t = tk.zeros((64, 64), tk.float32)
        for _ in range(n):
            i = tk.bid(0) * 2
            t = t + tk.load(a, (i, 0), (64, 64))
        c.store(t)

    before, _, loop = text_of(make, hoist_invariants).partition(" for ")
    assert "tk.bid(0)" in before
    assert "* 2" in before
    assert "tk.load" in loop


def test_dead_code_goes_and_effects_stay():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, unread, loaded = tk.zeros((64, 64), tk.float32), 0, tk.load(a, (0, 0), (64, 64))
        for i in range(n):
            unread = unread + i
            if i == 3:
                tk.print("three", i)
            loaded = loaded * 2
        c.store(t)

    text = text_of(make, eliminate_dead_code)
    assert "tk.load" not in text
    assert "+" not in text
    assert "tk.print" in text
    assert "for i in (0, n, 1):" in text


def test_a_product_that_is_added_begins_with_the_sum():
    def make(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, x, y = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64))
        t = t + n
        t += tk.mma(x, y, tk.zeros((64, 64), tk.float32))
        c.store(t)

    def exact(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, x, y = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64))
        c.store(tk.add(t + n, tk.mma(x, y, tk.zeros((64, 64), tk.float32))))

    def twice(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, x, y = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64))
        product = tk.mma(x, y, tk.zeros((64, 64), tk.float32))
        c.store(t + product + product)

    def by_operator(c: tk.Out, a: tk.In, b: tk.In, n: int):
        t, x, y = tk.zeros((64, 64), tk.float32), tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64))
        c.store(x @ y + (t + tk.matmul(x, y)))

    def rounded(c: tk.Out, a: tk.In, b: tk.In, n: int):
        x, y = tk.load(a, (0, 0), (64, 64)), tk.load(b, (0, 0), (64, 64))
        c.store((x + x @ y).astype(c.dtype))

    assert text_of(by_operator, accumulate_products).count("tk.mma(") == 2
    assert " @ " not in text_of(rounded, accumulate_products)
    assert ".astype(tk.float16)" in text_of(rounded, accumulate_products), "it is rounded, though"
    assert text_of(make, accumulate_products).count(" + ") == 1
    assert "tk.add(" in text_of(exact, accumulate_products)
    assert text_of(twice, accumulate_products).count(" + ") == 2


@pytest.mark.parametrize(
    ("a", "n"),
    [
        (lambda: api.meta((256, 255), tk.float16), 3),
        (lambda: api.meta((256, 257), tk.float16)[:, 1:], 3),
        (lambda: api.meta((256, 512), tk.float16)[:, ::2], 3),
    ],
    ids=["rows 510 bytes apart", "begins at 2 bytes", "no dimension without gaps"],
)
def test_what_cannot_be_copied_ahead_stays(a, n):
    op = tk.kernel(plain)(api.meta((256, 256)).partition((64, 64)), a(), a(), n)
    assert "stream" not in printed(ir_of(op, *PASSES))
