"""Ways of writing loops and masks that a user may take: each has its ring, and gives what the plain one gives."""

from __future__ import annotations

import numpy as np
import pytest
import through_ir
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit._runtime.device import Device, use_device
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES

INF = float("inf")


def in_steps(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(0, a.shape[1], 64):
        acc = tk.mma(tk.load(a, (tk.bid(0), k // 64), (64, 64)), tk.load(b, (k // 64, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def from_the_middle(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """The first is no multiple of the step, and the place does not say which tile it is."""
    acc, k = tk.zeros((64, 64), tk.float32), 1
    while k < n:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k += 2
    c.store(acc * k)


def backwards_in_steps(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(64 * n, 64 * n + 128, 64):
        acc = tk.mma(tk.load(a, (tk.bid(0), k // 64 - n), (64, 64)), tk.load(b, (k // 64 - n, tk.bid(1)), (64, 64)), acc)
    for k in range(3, 3 - n, 64):  # none, or one
        acc = tk.mma(tk.load(a, (tk.bid(0), k // 64), (64, 64)), tk.load(b, (k // 64, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def two_in_a_turn(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(0, tk.cdiv(a.shape[1], 64), 2):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        acc = tk.mma(tk.load(a, (tk.bid(0), k + 1), (64, 64)), tk.load(b, (k + 1, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def by_a_table(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(table.shape[0]):
        page = tk.load(table, (k,), (1,)).item()
        acc = tk.mma(tk.load(a, (tk.bid(0), page), (64, 64)), tk.load(b, (page, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def to_a_length(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(tk.load(table, (tk.bid(0),), (1,)).item()):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def rounded_products(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.add(acc, tk.load(a, (tk.bid(0), k), (64, 64)) @ tk.load(b, (k, tk.bid(1)), (64, 64)))
    c.store(acc)


def mask_added(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    most = tk.full((64,), -INF, tk.float32)
    total = tk.zeros((64,), tk.float32)
    rows = tk.bid(0) * 64 + tk.arange(64)[:, None]
    for k in range(tk.bid(0) + 1):
        s = tk.mma(tk.load(a, (tk.bid(0), 0), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), tk.zeros((64, 64), tk.float32))
        s = s * 0.125 + tk.where(k * 64 + tk.arange(64)[None, :] > rows, -INF, 0.0)
        higher = tk.maximum(most, tk.max(s, axis=1))
        total = total * tk.exp(most - higher) + tk.sum(tk.exp(s - higher[:, None]), axis=1)
        most = higher
    c.store(tk.broadcast_to((most + tk.log(total))[:, None], (64, 64)))


def to_a_break(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Only what is left of the diagonal, in tiles of another size than the counter's."""
    acc, i = tk.zeros((64, 64), tk.float32), tk.bid(0)
    for k in range(n):
        if k * 64 >= (i + 1) * 64 - 32:
            break
        acc = tk.mma(tk.load(a, (i, k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def in_a_window(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Turns that do nothing before the first, and behind the last."""
    acc, i = tk.zeros((64, 64), tk.float32), tk.bid(0)
    for k in range(n):
        if k * 64 + 63 > i * 64 - 100:  # noqa: SIM102
            if k <= i:
                acc = tk.mma(tk.load(a, (i, k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def in_a_band(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, i = tk.zeros((64, 64), tk.float32), tk.bid(0)
    for k in range(0, a.shape[1], 64):
        if k + 64 <= i * 64 - 70:
            continue
        if k > (i + 1) * 64 or k > 64 * n:
            break
        acc = tk.mma(tk.load(a, (i, k // 64), (64, 64)), tk.load(b, (k // 64, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def from_one_number_to_another(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Of a narrower type than the counter."""
    acc, first = tk.zeros((64, 64), tk.float32), tk.load(table, tk.bid(0), ()).item()
    for k in range(n):
        if first <= k and k < first + 2:
            acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def while_two_hold(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, at = tk.zeros((64, 64), tk.float32), 0
    while at < a.shape[1] and at < (tk.bid(0) + 1) * 64:
        k = at // 64
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        at += 64
    c.store(acc)


def scaled_condition(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k = tk.zeros((64, 64), tk.float32), 0
    while not k * 64 + 10 >= a.shape[1]:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k = 1 + k
    c.store(acc * k)


def what_is_left(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k, left = tk.zeros((64, 64), tk.float32), 0, a.shape[1]
    while left > 0:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k, left = k + 1, left - 64
    c.store(acc * k + left)


def counted_down(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, left = tk.zeros((64, 64), tk.float32), n
    while left:
        acc = tk.mma(tk.load(a, (tk.bid(0), n - left), (64, 64)), tk.load(b, (n - left, tk.bid(1)), (64, 64)), acc)
        left -= 1
    c.store(acc)


def counted_ahead(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k = tk.zeros((64, 64), tk.float32), -1
    while True:
        k += 1
        if k >= n:
            break
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def by_another_number(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Of the counter and of two numbers beside it tiles are places of one, and all are read behind the loop."""
    acc, k, sum_ = tk.zeros((64, 64), tk.float32), 0, 7
    for turn in range(n - 3, n + 1):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k, sum_ = k + 1, sum_ + 3 * turn
    c.store(acc + k * sum_)


def fetched_ahead(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, shape = tk.zeros((64, 64), tk.float32), (64, 64)
    ta, tb = tk.load(a, (tk.bid(0), 0), shape), tk.load(b, (0, tk.bid(1)), shape)
    for k in range(n):
        following = ta, tb
        if k + 1 < n:
            following = tk.load(a, (tk.bid(0), k + 1), shape), tk.load(b, (k + 1, tk.bid(1)), shape)
        acc = tk.mma(ta, tb, acc)
        ta, tb = following
    c.store(acc)


def fetched_ahead_by_hand(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, shape, k = tk.zeros((64, 64), tk.float32), (64, 64), 1
    ta, tb = tk.load(a, (tk.bid(0), k), shape), tk.load(b, (k, tk.bid(1)), shape)
    while k < n:
        k += 1
        if k != n:
            ahead, beside = tk.load(a, (tk.bid(0), k), shape), tk.load(b, (k, tk.bid(1)), shape)
        else:
            ahead, beside = ta, tb
        acc, ta, tb = acc + tk.mma(ta, tb, tk.zeros(shape, tk.float32)), ahead, beside
    c.store(acc)


@tk.function
def fetched(a, b, k):
    return tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64), order="C")


def fetched_ahead_in_elements(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """What is left is counted in elements, and which tile it is beside that."""
    acc, left, k, pair = tk.zeros((64, 64), tk.float32), a.shape[1], 0, fetched(a, b, 0)
    while left > 0:
        left, now = left - 64, pair
        if left > 0:
            pair = fetched(a, b, k + 1)
        acc = tk.mma(now[0], now[1], acc)
        k += 1
    c.store(acc)


def fetched_ahead_and_kept(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Behind the loop the tile is the one that the last turn had, since it has fetched none."""
    acc, shape = tk.zeros((64, 64), tk.float32), (64, 64)
    ta = tk.load(a, (tk.bid(0), 0), shape)
    for k in range(n):
        tb, following = tk.load(b, (k, tk.bid(1)), shape), ta
        if k + 1 < n:
            following = tk.load(a, (tk.bid(0), k + 1), shape)
        acc = tk.mma(ta, tb, acc)
        ta = following
    c.store(acc + ta.astype(tk.float32))


def last_one_behind(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, shape = tk.zeros((64, 64), tk.float32), (64, 64)
    ta, tb = tk.load(a, (tk.bid(0), 0), shape), tk.load(b, (0, tk.bid(1)), shape)
    for k in range(1, n):
        ahead, beside = tk.load(a, (tk.bid(0), k), shape), tk.load(b, (k, tk.bid(1)), shape)
        acc, ta, tb = tk.mma(ta, tb, acc), ahead, beside
    c.store(tk.mma(ta, tb, acc))


def from_rows_on(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """As a convolution of three taps reads its rows; below the edge there are zeros."""
    acc = tk.zeros((64, 64), tk.float32)
    for tap in range(3):
        rows = a.slice(0, 5 * tap)
        for k in range(n):
            acc = tk.mma(tk.load(rows, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def with_options(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """All of which are what they are anyway, but for a hint."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        ta = tk.load(a, index=(tk.bid(0), k), shape=(64, 64), padding_mode="zero", eviction_policy="evict_first")
        acc = tk.mma(a=ta, b=tk.load(b, (k, tk.bid(1)), shape=(64, 64), order="C", mask=None), acc=acc)
    c.store(acc)


def in_other_orders(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        ta = tk.load(a, (k, tk.bid(0)), (64, 64), order="F")
        acc += ta @ tk.load(b, (tk.bid(1), k), (64, 64), order=(1, 0)).transpose()
    c.store(acc)


def of_windows(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, rows, columns = tk.zeros((64, 64), tk.float32), a.tiled_view((64, 64)), b.tiled_view((64, 64))
    for k in range(rows.num_tiles(1)):
        acc += rows.load((tk.bid(0), k)) @ columns.load((k, tk.bid(1)))
    c.store(acc)


def of_what_is_computed(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Neither operand is as it is loaded."""
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        ta, tb = tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64))
        acc = tk.mma(ta.astype(tk.bfloat16), (tb.astype(tk.float32) * 0.5).astype(tk.bfloat16), acc)
    c.store(acc)


def where_a_table_says(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        if tk.load(table, k, ()).item() % 2 == 1:
            acc += tk.load(a, (tk.bid(0), k), (64, 64)) @ tk.load(b, (k, tk.bid(1)), (64, 64))
    c.store(acc)


def batches_of_one(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, shape = tk.zeros((1, 64, 64), tk.float32), (1, 64, 64)
    for k in range(n):
        ta = tk.load(a, (tk.bid(0), k), (64, 64)).reshape(shape)
        acc = tk.mma(ta, tk.load(b, (k, tk.bid(1)), (64, 64))[None, :, :], acc)
    c.store(acc.reshape((64, 64)))


def skipped_by_a_table(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        if tk.load(table, (k,), ()).item() == 3:
            continue
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def not_doubled(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        if tk.sum(acc).item() > 0:
            continue
        acc = acc * 2
        if k == 1:
            continue
        acc = acc + 1
    c.store(acc)


def of_slices_with_an_end(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Whose last tiles go over it, or do not."""
    acc, middle = tk.zeros((64, 64), tk.float32), a.shape[0] // 2
    upper, lower, some = b.slice(0, 0, middle), b.slice(0, middle, 2 * middle), a.slice(1, 8, 8 * n + 76)
    for k in range(2):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(upper, (k, tk.bid(1)), (64, 64)), acc)
        acc = tk.mma(tk.load(some, (tk.bid(0), k), (64, 64)), tk.load(lower, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def with_masks(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, at = tk.zeros((64, 64), tk.float32), tk.arange(64)
    for k in range(n):
        x = tk.load(a, (tk.bid(0), k), (64, 64), mask=64 * k + at < 200)
        acc = tk.mma(x, tk.load(b, (k, tk.bid(1)), (64, 64), mask=(at > n)[:, None], padding_value=0.0), acc)
    c.store(acc)


def added_up_beside(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, sums = tk.zeros((64, 64), tk.float32), tk.zeros((64,), tk.float32)
    for k in range(n):
        x, y = tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64))
        acc = tk.mma(x, y, acc)
        sums += tk.sum(x.astype(tk.float32), 1) - tk.sum(y.astype(tk.float32), 0)
    c.store(acc + sums)


def made_of_halves(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k in range(n):
        half = tk.load(b, (tk.bid(1), k), (64, 32))
        whole = tk.cat(((half * 2)[:, :, None], (half + 1)[:, :, None]), 2).reshape((64, 64))
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), whole.transpose(), acc)
    c.store(acc)


def groups_of_two(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for group in range(n // 2):
        part = tk.zeros((64, 64), tk.float32)
        for k in range(2):
            at = 2 * group + k
            part = tk.mma(tk.load(a, (tk.bid(0), at), (64, 64)), tk.load(b, (at, tk.bid(1)), (64, 64)), part)
        acc += part * (group + 1)
    c.store(acc)


def while_a_length_lasts(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """The length is a tensor's own int32."""
    acc, k = tk.zeros((64, 64), tk.float32), 0
    length = 64 * tk.load(table, 2, ()).item() - 10
    while 64 * k < length:
        x = tk.load(a, (tk.bid(0), k), (64, 64)).astype(tk.float32)
        x = tk.where(64 * k + tk.arange(64)[None, :] < length, x, 0.0).astype(tk.float16)
        acc = tk.mma(x, tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k += 1
    c.store(acc)


def zipped_rows(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    """Of which one is shorter, and one begins later."""
    acc = tk.zeros((64, 64), tk.float32)
    for x, y in zip(a.tiles((64, 64))[tk.bid(0), 1:], b.tiles((64, 64))[: n - 1, tk.bid(1)]):
        acc = tk.mma(x, y, acc)
    c.store(acc)


def enumerated_from_one(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc = tk.zeros((64, 64), tk.float32)
    for k, (x, y) in enumerate(zip(a.tiles((64, 64))[tk.bid(0), :], b.tiles((64, 64))[:, tk.bid(1)]), 1):
        acc += (x @ y) * k
    c.store(acc)


def a_row(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k = tk.zeros((64, 64), tk.float32), n
    for x in a.tiles((64, 64))[tk.bid(0), 0:n]:
        k -= 1
        acc = tk.mma(x, tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


def left_behind_a_turn(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k = tk.zeros((64, 64), tk.float32), n - 1
    while True:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
        k -= 1
        if k <= tk.bid(1):  # at once, in the last column
            break
    c.store(acc + k)


def slices_that_move(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, k = tk.zeros((64, 64), tk.float32), 0
    while k < 64 * n:
        x = a.slice(0, 64 * tk.bid(0)).slice(1, k, k + 64)
        acc = tk.mma(tk.load(x, (0, 0), (64, 64)), tk.load(b.slice(0, k), (0, tk.bid(1)), (64, 64)), acc)
        k += 64
    c.store(acc)


def dealt_out(c: tk.Out, a: tk.In, b: tk.In, table: tk.In, n: int):
    acc, step = tk.zeros((64, 64), tk.float32), tk.bid(1) + 1
    for k in range(n - 1, tk.bid(0) - 1, -step):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    for k in range(tk.bid(0), n, step):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (64, 64)), tk.load(b, (k, tk.bid(1)), (64, 64)), acc)
    c.store(acc)


WAYS = [
    zipped_rows, enumerated_from_one, a_row, left_behind_a_turn, slices_that_move, dealt_out,
    while_a_length_lasts, skipped_by_a_table, not_doubled, of_slices_with_an_end, with_masks, added_up_beside, made_of_halves,
    groups_of_two,
    where_a_table_says, batches_of_one,
    with_options, in_other_orders, of_windows, of_what_is_computed, from_rows_on,
    scaled_condition, what_is_left, counted_down, counted_ahead, by_another_number, fetched_ahead, fetched_ahead_by_hand,
    last_one_behind, fetched_ahead_in_elements,
    to_a_break, in_a_window, in_a_band, from_one_number_to_another, while_two_hold,
    in_steps, from_the_middle, backwards_in_steps, two_in_a_turn, by_a_table, to_a_length, rounded_products, mask_added,
]  # fmt: skip
each = pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)


@each
def test_each_has_streams(make):
    a, table = api.meta((256, 256), tk.float16), api.meta(4, tk.int32)
    op = tk.kernel(make)(api.meta((256, 256)).partition((64, 64)), a, a, table, 4)
    text = printed(ir_of(op, *PASSES))
    assert " = stream " in text
    assert " @ " not in text
    if make is mask_added:
        assert text.count("where(") == 1, "in the turns that the mask cuts"


def _result(make):
    rng = np.random.default_rng(0)  # small whole numbers, whose sums are exact in whichever order; float16 rounds some of them
    a, b = (api.from_host(rng.integers(-30, 31, (256, 256)).astype(np.float16)).sync() for _ in range(2))
    table, c = api.from_host(np.array([2, 0, 3, 1], np.int32)).sync(), api.full((256, 256), -1.0).sync()
    tk.kernel(make)(c.partition((64, 64)), a, b, table, 4).sync()
    return c.to_host().sync()


@pytest.mark.parametrize("make", [*WAYS, fetched_ahead_and_kept], ids=lambda make: make.__name__)
def test_results_agree(make, cpu):
    expected = _result(make)
    with through_ir.rewritten():
        np.testing.assert_allclose(_result(make), expected, rtol=2e-5, atol=1e-4)


@pytest.mark.gpu
@each
def test_a_gpu_agrees(make, device):
    result = _result(make)
    with use_device(Device("cpu")):
        # What is rounded to 16 bits in each turn may be rounded the other way.
        np.testing.assert_allclose(result, _result(make), rtol=1e-3, atol=0.05 if make is rounded_products else 1e-2)


@each
def test_each_loads_ahead_on_a_gpu(make):
    a, table = api.meta((256, 256), tk.float16), api.meta(4, tk.int32)
    op = tk.kernel(num_warps=4)(make)(api.meta((256, 256)).partition((64, 64)), a, a, table, 4)
    explained = op.explain("sm_90a")
    assert any(ring.stages for ring in explained.pipelines), "a ring"
    assert {product.instruction.partition(".")[0] for product in explained.products} == {"wgmma"}


def with_a_bias(o: tk.Out, q: tk.In, k: tk.In, slopes: tk.In):
    """By how far keys are away, by head; and a mask that is added as a number."""
    acc, rows = tk.zeros((64, 64), tk.float32), tk.bid(0) * 64 + tk.arange(64)[:, None]
    for j in range(k.shape[0] // 64):
        columns = j * 64 + tk.arange(64)[None, :]
        s = tk.mma(tk.load(q, (tk.bid(0), 0), (64, 64)), tk.load(k, (j, 0), (64, 64)).transpose(), acc)
        bias = tk.load(slopes, (0,), (1,)) * abs(rows - columns).astype(tk.float32)
        acc = s - bias + tk.where(columns < rows, 1.0, -0.5)
    o.store(acc)


def test_numbers_that_follow_from_places_take_no_shared_memory(cpu):
    q, slopes = api.meta((512, 64), tk.float16), api.meta(1)
    compiled = tk.kernel(num_warps=4)(with_a_bias)(api.meta((512, 64)).partition((64, 64)), q, q, slopes).compile("sm_90a")
    assert "st.shared" not in compiled.ptx
    assert "wgmma" in compiled.ptx
