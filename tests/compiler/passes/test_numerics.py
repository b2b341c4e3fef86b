"""What passes do to sums, maxima and exponentials, and the exact forms, which they leave alone."""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest
import through_ir
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.remarks import collected
from tilekit.compiler.optimize import PASSES

C = 0.125


def softmax_sums(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """Scaled before the maximum, as FlashAttention's paper has it."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def vectors(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """With vectors, by a factor that is known when the kernel runs, and powers of two."""
    query, total, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64,), tk.float32), tk.full((64,), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * (n * 0.1)
        higher = tk.maximum(highest, tk.max(s, 1))
        total = total * tk.exp2(highest - higher) + tk.sum(tk.exp2(s - higher[:, None]), 1)
        highest = higher
    o.store(tk.broadcast_to(total[:, None], (64, 64)))


def masked(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """The last turns are masked."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        columns = j * 64 + tk.arange(64)[None, :]
        inside = (columns < n * 64 - 70) & (columns <= 500 + tk.arange(64)[:, None])
        s = tk.where(inside, s, float("-inf"))
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def masked_far_off(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """By a finite number, and for some rows in all columns of the first turns."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), float("-inf"), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
        s = tk.where(j * 64 + tk.arange(64)[None, :] >= 3 * tk.arange(64)[:, None], s * C, -1e30)
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def divided(o: tk.Out, q: tk.In, k: tk.In, n: int, by: float = 11.3):
    """By a number that is known, and one that is known at the launch, which masks stand before or behind."""
    query, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.full((64, 1), float("-inf"), tk.float32)
    total, other, most = tk.zeros((64, 1), tk.float32), tk.zeros((64, 1), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
        t = tk.where(j * 64 + tk.arange(64)[None, :] >= tk.arange(64)[:, None] // 2, s / by, float("-inf"))
        s = s / math.sqrt(61)
        higher, new = tk.maximum(highest, tk.max(s, 1, keepdims=True)), tk.maximum(most, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        other = other * tk.exp(most - new) + tk.sum(tk.exp(t - new), 1, keepdims=True)
        highest, most = higher, new
    o.store(tk.broadcast_to(total + other, (64, 64)))


def guarded(o: tk.Out, q: tk.In, k: tk.In, n: int, by: float = 0.3):
    """Rows without a score have another maximum; differences are multiplied by a number of the launch."""
    query, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.full((64, 1), float("-inf"), tk.float32)
    total, other, most = tk.zeros((64, 1), tk.float32), tk.zeros((64, 1), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
        t = tk.where(j * 64 + tk.arange(64)[None, :] >= 3 * tk.arange(64)[:, None], s * C, float("-inf"))
        higher, new = tk.maximum(highest, tk.max(t, 1, keepdims=True)), tk.maximum(most, tk.max(s, 1, keepdims=True))
        safe = tk.where(higher == float("-inf"), 0.0, higher)
        total = total * tk.exp(highest - safe) + tk.sum(tk.exp(t - safe), 1, keepdims=True)
        other = other * tk.exp((most - new) * by) + tk.sum(tk.exp((s - new) * by), 1, keepdims=True)
        highest, most = higher, new
    o.store(tk.broadcast_to(total + other, (64, 64)))


def slopes(o: tk.Out, q: tk.In, k: tk.In, n: int, by: float = 0.05):
    """A number of the launch times how far apart row and column are, which is no mask."""
    query, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.full((64, 1), -1e30, tk.float32)
    total, apart = tk.zeros((64, 1), tk.float32), tk.arange(64)[:, None] - tk.arange(64)[None, :]
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        s = s - by * (apart - 64 * (j - tk.bid(0))).astype(tk.float32)
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def penalties(o: tk.Out, q: tk.In, k: tk.In, n: int, by: float = 1e9):
    """Masks as zeros and ones, times a large number."""
    query, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.full((64, 1), -1e30, tk.float32)
    total, other, most = tk.zeros((64, 1), tk.float32), tk.zeros((64, 1), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        seen = (j * 64 + tk.arange(64)[None, :] >= 3 * tk.arange(64)[:, None]).astype(tk.float32)
        s, t = s + (1.0 - seen) * -1e9, s - by * (1.0 - seen)
        higher, new = tk.maximum(highest, tk.max(s, 1, keepdims=True)), tk.maximum(most, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        other = other * tk.exp(most - new) + tk.sum(tk.exp(t - new), 1, keepdims=True)
        highest, most = higher, new
    o.store(tk.broadcast_to(total + other, (64, 64)))


def masked_from_the_least(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """For some rows all columns of the first turns are hidden, and the maximum stays what it begins with."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), -3.4028235e38, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        s = tk.where(j * 64 + tk.arange(64)[None, :] >= 3 * tk.arange(64)[:, None], s, float("-inf"))
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def loaded_masks(o: tk.Out, q: tk.In, k: tk.In, masks: tk.In, n: int):
    """A tensor of masks is added to the scores, as other libraries have it."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), float("-inf"), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        s = s + tk.load(masks, (tk.bid(0), j), (64, 64))
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def masks_to_begin_with(o: tk.Out, q: tk.In, k: tk.In, masks: tk.In, n: int):
    """The same, with a tensor that products are added to, and columns that are hidden in all rows."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), float("-inf"), tk.float32)
    for key, mask in tk.pipelined(k.tiles((64, 64))[0:n, 0], masks.tiles((64, 64))[tk.bid(0), 0:n], stages=2):
        s = tk.mma(query, key.transpose(), mask)
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def softmax_of_what_is_loaded(o: tk.Out, q: tk.In, k: tk.In, masks: tk.In, n: int):
    s = tk.load(masks, (tk.bid(0), 0), (64, 64)) * 0.5
    e = tk.exp(s - tk.max(s, 1, keepdims=True))
    o.store(e / tk.sum(e, 1, keepdims=True))


def scales_that_are_loaded(o: tk.Out, q: tk.In, k: tk.In, masks: tk.In, n: int):
    s = tk.mma(tk.load(q, (tk.bid(0), 0), (64, 64)), tk.load(k, (0, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
    s = s * tk.load(masks, (tk.bid(0), 0), (64, 1))
    e = tk.exp(s - tk.max(s, 1, keepdims=True))
    o.store(e / tk.sum(e, 1, keepdims=True))


def windowed(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """The first turns and the last ones are masked."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    place = tk.bid(0) * 64 + 64 * n - 200
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        rows, columns = place + tk.arange(64)[:, None], j * 64 + tk.arange(64)[None, :]
        s = tk.where(columns <= rows + 30, s, float("-inf"))
        s = tk.where(columns >= rows - 250, s, float("-inf"))
        total += tk.sum(tk.exp(s), 1, keepdims=True)
    o.store(tk.broadcast_to(total, (64, 64)))


def from_a_turn_on(o: tk.Out, q: tk.In, k: tk.In, n: int):
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    for j in range(1, n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        s = tk.where(2 * j * 64 + tk.arange(64)[None, :] > 201 + tk.arange(64)[:, None], s, float("-inf"))
        total += tk.sum(tk.exp(s), 1, keepdims=True)
    o.store(tk.broadcast_to(total, (64, 64)))


def loops_in_a_row(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """A sum that goes on from one loop to the next, with a step ahead of them, one between, and a loop in a loop."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    s = tk.mma(query, tk.load(k, (0, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
    total += tk.sum(tk.exp(s), 1, keepdims=True)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        total = total * tk.max(tk.cos(s), 1, keepdims=True) + tk.sum(tk.exp(s), 1, keepdims=True)
    total += tk.sum(tk.exp(s), 1, keepdims=True)
    for i in range(n // 2):
        for j in range(i, n):
            s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
            total += tk.sum(tk.exp(s), 1, keepdims=True)
    o.store(tk.broadcast_to(total, (64, 64)))


def two_sums(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """Of the same zeros; between the loops, one of them is read by something else."""
    query = tk.load(q, (tk.bid(0), 0), (64, 64))
    zeros = tk.zeros((64, 1), tk.float32)
    one, other = zeros, zeros
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        one += tk.sum(s * s, 1, keepdims=True)
        other += tk.sum(tk.exp(s), 1, keepdims=True)
    between = tk.sqrt(one)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        one += tk.sum(s * s, 1, keepdims=True)
        other += tk.sum(tk.exp(s), 1, keepdims=True)
    o.store(tk.broadcast_to(one + other * between, (64, 64)))


def exact(o: tk.Out, q: tk.In, k: tk.In, n: int):
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        p = tk.exp(s - higher, rounding_mode="full")
        total = tk.add(total * tk.exp(highest - higher, rounding_mode="full"), tk.sum(p, 1, keepdims=True))
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def not_below(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """What is taken off is no maximum of the scores: powers may be large. What the sum begins with is added behind the loop."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.full((64, 1), float(n), tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        total = total + tk.sum(tk.exp(s - tk.max(s * 0.5, 1, keepdims=True)), 1, keepdims=True)
    o.store(tk.broadcast_to(total, (64, 64)))


def from_numbers(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """Sums that begin with one, as in Triton's tutorial, and with another number."""
    query, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64,), tk.float32) - float("inf")
    total, other = tk.zeros((64,), tk.float32) + 1.0, tk.full((64, 1), -2.5, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * C
        higher = tk.maximum(highest, tk.max(s, 1))
        p = tk.exp(s - higher[:, None])
        total = total * tk.exp(highest - higher) + tk.sum(p, 1)
        other, highest = other + tk.sum(p, 1, keepdims=True), higher
    o.store(tk.broadcast_to(total[:, None] + other, (64, 64)))


def negative(o: tk.Out, q: tk.In, k: tk.In, n: int):
    """The largest score is not that of the largest product."""
    query, total = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 1), tk.float32)
    highest = tk.full((64, 1), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * -C
        higher = tk.maximum(highest, tk.max(s, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher), 1, keepdims=True)
        highest = higher
    o.store(tk.broadcast_to(total, (64, 64)))


def text_of(make):
    o, q = api.meta((128, 64)).partition((64, 64)), api.meta((512, 64), tk.float16)
    masks = [api.meta((128, 512))] * ("masks" in inspect.signature(make).parameters)
    with collected() as remarks:
        kernel = ir_of(tk.kernel(make)(o, q, q, *masks, 3), *PASSES)
    lines = (line.partition("  #")[0].rstrip() for line in printed(kernel).splitlines())
    return "\n".join(lines), {remark.transformation for remark in remarks if remark.done}


def test_maxima_are_taken_before_the_factor_and_exponentials_are_fused():
    text, done = text_of(softmax_sums)
    assert {"exponential", "partial sums"} <= done
    assert "flush_to_zero=True" in text
    fused = next(line for line in text.splitlines() if "fma(" in line and "64, 64]" in line)
    assert f"{C * np.log2(np.e)}" in fused
    assert f"* {C}\n" not in text, "the maximum is one of powers of two"
    assert "float32[64, 1, 4, 1] = fma(" in text
    assert "tk.exp(" not in text, "that of the maximum's growth neither"
    assert f"* {np.log2(np.e)}" not in text


def of_units(start):
    """Vectors, in natural units, by a factor that is known when the kernel runs; what is left of a row is stored."""

    def kernel(o: tk.Out, q: tk.In, k: tk.In, n: int, factor: float = 0.25):
        query, total, highest = (
            tk.load(q, (tk.bid(0), 0), (64, 64)),
            tk.zeros((64,), tk.float32),
            tk.full((64,), start, tk.float32),
        )
        for j in range(n):
            s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * factor
            higher = tk.maximum(highest, tk.max(s, 1))
            total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher[:, None]), 1)
            highest = higher
        o.store(tk.broadcast_to((tk.log(total) + highest)[:, None], (64, 64)))

    return kernel


units, from_the_least = of_units(float("-inf")), of_units(float(np.finfo(np.float32).min))


def turning(o: tk.Out, q: tk.In, k: tk.In, n: int, factor: float = 0.25):
    """The factor is positive in the first turn alone."""
    query, total, highest = tk.load(q, (tk.bid(0), 0), (64, 64)), tk.zeros((64,), tk.float32), tk.full((64,), -1e30, tk.float32)
    for j in range(n):
        s = tk.mma(query, tk.load(k, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32)) * factor
        higher = tk.maximum(highest, tk.max(s, 1))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(s - higher[:, None]), 1)
        highest = higher
        factor = factor - 0.375
    o.store(tk.broadcast_to((tk.log(total) + highest)[:, None], (64, 64)))


def test_what_turns_hand_on_is_as_positive_as_it_comes():
    text, _ = text_of(turning)
    assert "tk.max(s, 1)" in text, "of the scores, not of the products"
    assert "positive float" in text, "the parameter is, though"


def test_a_maximum_that_is_stored_is_carried_twice():
    text, _ = text_of(units)
    assert text.count("maximum(") == 2
    assert text.count("float32[64, 64] = fma(") == 1
    assert text.count(f"* {np.log2(np.e)}") == 2, "of the factor, for the scores and for the maximum"


def test_a_first_maximum_without_room_for_the_factor_is_carried_alone():
    text, done = text_of(from_the_least)
    assert "exponential" in done
    assert text.count("tk.maximum(") == 1
    assert f", {-(2.0**104)})" in text, "it is given room"


def test_a_factor_of_unknown_sign_leaves_the_maximum_as_it_is():
    text, done = text_of(vectors)
    assert {"exponential", "partial sums"} <= done
    line = next(line for line in text.splitlines() if "tk.max(" in line)
    assert "s, 1)" in line
    assert "tk.exp2(" not in text
    assert "float32[64, 1, 4, 1] = fma(" in text


def test_turns_in_which_a_mask_holds_go_without_it():
    text, done = text_of(masked)
    assert {"exponential", "partial sums", "splitting"} <= done
    assert text.count("= stream ") + text.count("\n    stream") >= 2
    assert text.count("where(") == 1


@pytest.mark.parametrize(("make", "loops"), [(windowed, 3), (from_a_turn_on, 2)])
def test_a_mask_may_hold_from_some_turn_on(make, loops):
    text, done = text_of(make)
    assert "splitting" in done
    assert text.count("= stream ") == loops
    assert text.count("where(") == loops - 1


@pytest.mark.parametrize(("make", "added_up", "whole"), [(loops_in_a_row, 1, 0), (two_sums, 3, 0), (from_numbers, 2, 0)])
def test_sums_go_on_by_parts(make, added_up, whole):
    """Parts are added up where something else reads the sum; from there on there are others, which are added to it."""
    text, done = text_of(make)
    assert "partial sums" in done
    assert len(re.findall(r"= sum\(\S+, 2\)", text)) == added_up
    assert text.count("= tk.sum(") == whole


@pytest.mark.parametrize(("make", "parts"), [(exact, False), (not_below, True)])
def test_what_is_left_as_it_is_written(make, parts):
    text, done = text_of(make)
    assert "exponential" not in done
    assert ("partial sums" in done) == parts
    assert "fma(" not in text


def test_a_difference_is_taken_first_where_a_mask_is_far_off():
    text, done = text_of(masked_far_off)
    assert "exponential" in done
    assert "float32[64, 64] = fma(" not in text


@pytest.mark.parametrize("make", [loaded_masks, masks_to_begin_with, softmax_of_what_is_loaded])
def test_a_difference_is_taken_first_of_what_is_loaded(make):
    text, done = text_of(make)
    assert "exponential" in done
    assert "float32[64, 64] = fma(" not in text


def test_scales_that_are_loaded_are_no_masks():
    assert "float32[64, 64] = fma(" in text_of(scales_that_are_loaded)[0]


@pytest.mark.parametrize("make", [loaded_masks, masks_to_begin_with, softmax_of_what_is_loaded])
@pytest.mark.parametrize("low", [-1e9, -1e30, float(np.finfo(np.float32).min)])
def test_whole_rows_are_masked_by_what_is_loaded(make, low, cpu):
    """All their weights are the same then."""
    rng = np.random.default_rng(1)
    q, k = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (128, 192))
    masks = np.where(np.arange(192) > 2 * np.arange(128)[:, None] - 100, low, 0).astype(np.float32)
    tensors = [api.from_host(array).sync() for array in (q, k, masks)]

    def result():
        o = api.full((128, 64), -1.0).sync()
        tk.kernel(make)(o.partition((64, 64)), *tensors, 3).sync()
        return o.to_host().sync()

    expected = result()
    assert np.isfinite(expected).all()
    with through_ir.rewritten():
        np.testing.assert_allclose(result(), expected, rtol=3e-6)


def test_scores_that_are_divided_are_multiplied():
    text, _ = text_of(divided)
    assert text.count("float32[64, 64] = fma(") == 2
    assert not re.search(r"float32\[64, 64\] = \S+ / ", text)


def test_maxima_of_rows_without_a_score_and_differences_times_a_number():
    text, _ = text_of(guarded)
    assert text.count("float32[64, 64] = fma(") == text.count("float32[64, 64] = exp2(") == 4, (
        "in turns with the mask, and without"
    )
    assert not re.search(r"float32\[64, 64\] = tk.exp\(", text)


def test_slopes_are_no_masks():
    assert "float32[64, 64] = fma(" in text_of(slopes)[0]


def test_masks_times_a_large_number_are_far_off():
    assert "float32[64, 64] = fma(" not in text_of(penalties)[0]


def test_a_negative_factor_is_fused_alone():
    text, _ = text_of(negative)
    assert f"* {-C}" in text or f"* -{C}" in text


AGREEING = [
    softmax_sums, vectors, masked, masked_far_off, windowed, from_a_turn_on, loops_in_a_row, two_sums,
    exact, not_below, negative, units, from_the_least, masked_from_the_least, turning,
    divided, guarded, slopes, penalties, from_numbers,
]  # fmt: skip


@pytest.mark.parametrize("make", AGREEING)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 9, 13])
def test_results_agree(make, turns, cpu):
    rng = np.random.default_rng(turns)
    q, k = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (128, 64 * max(turns, 1)))
    tensors = [api.from_host(array).sync() for array in (q, k)]

    def result():
        o = api.full((128, 64), -1.0).sync()
        tk.kernel(make)(o.partition((64, 64)), *tensors, turns).sync()
        return o.to_host().sync()

    expected = result()
    with through_ir.rewritten():
        np.testing.assert_allclose(result(), expected, rtol=3e-6)
