"""Masks as conditions: what is gathered, that it holds for the same elements, and what a thread does for it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from through_ir import both_ways, ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.nodes import Constant
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.optimize import PASSES
from tilekit.compiler.passes.canonical import canonicalize

FAR = 1 << 29


def nested(s, a, b, c):
    rows, columns = a + tk.arange(64)[:, None], b + tk.arange(64)[None, :]
    s = tk.where(columns < c, s, float("-inf"))
    s = tk.where(columns <= rows + 3, s, float("-inf"))
    return tk.where(rows - columns <= 40, s, float("-inf"))


def together(s, a, b, c):
    rows, columns = tk.arange(64)[:, None] - a, tk.arange(64)[None, :] + b
    return tk.where((rows + columns > c) & (columns < c + 50) & (rows >= columns - 20), s, 2.0)


def different_values(s, a, b, c):
    s = tk.where(tk.arange(64)[None, :] < a, s, 1.0)
    return tk.where(tk.arange(64)[:, None] > b, s, float(c))


def factors(s, a, b, c):
    rows, columns = tk.arange(64)[:, None], tk.arange(64)[None, :]
    return tk.where(rows + rows - columns < a, tk.where(columns + columns + columns >= b + rows, s, 0.0), 0.0)


def a_row_alone(s, a, b, c):
    return tk.where(tk.arange(64)[:, None] < a, tk.where(tk.arange(64)[None, :] <= b, s, 0.0), 0.0)


def zeros_of_either_sign(s, a, b, c):
    return tk.where(tk.arange(64)[:, None] < a, tk.where(tk.arange(64)[None, :] <= b, s, -0.0), 0.0)


def read_twice(s, a, b, c):
    """The tile that is masked first is read by another, too."""
    first = tk.where(tk.arange(64)[None, :] < a, s, 0.0)
    return tk.where(tk.arange(64)[:, None] < b, first, 0.0) + first * 2.0


def narrow_numbers(s, a, b, c):
    """Eight bits wrap: these are no conditions."""
    columns = tk.arange(64, dtype=tk.int8)[None, :] + 100
    return tk.where(columns > -100, s, 0.0)


def inverse(s, a, b, c):
    rows, columns = tk.arange(64)[:, None], tk.arange(64)[None, :] + b
    hidden = (columns > rows + a) | (columns >= c)
    return tk.where(~hidden, tk.where(~(columns < rows - 30), s, 0.0), 0.0)


def hidden_first(s, a, b, c):
    """The number stands where the tile is left out."""
    rows, columns = tk.arange(64)[:, None], tk.arange(64)[None, :] + b
    return tk.where((columns > rows + a) | (columns >= c), float("-inf"), s)


def distances(s, a, b, c):
    between = tk.arange(64)[:, None] + a - b - tk.arange(64)[None, :]
    return tk.where((tk.abs(between) <= 20) & ~(abs(-between) >= 18), s, 0.0)


def far_apart(s, a, b, c):
    """Either of two: no condition."""
    return tk.where(tk.abs(tk.arange(64)[:, None] - tk.arange(64)[None, :] - b) > 20, s, 0.0)


def vectors(s, a, b, c):
    """What is told of rows and columns alone becomes a mask of the tile."""
    rows, columns = tk.arange(64, start=a, step=2) < c, tk.arange(64) + b < 40
    return tk.where(rows[:, None] & columns.reshape((1, 64)), s, 0.0)


def in_other_words(s, a, b, c):
    rows, columns = tk.broadcast_to(tk.expand_dims(tk.arange(64) + a, 1), (64, 64)), (tk.arange(64) + b).astype(tk.int64)
    seen = tk.logical_and(
        tk.less_equal(columns.reshape((1, 64)), rows), tk.logical_not(tk.greater(rows, tk.arange(64)[None, :] * 3 + b))
    )
    return tk.where(seen, s, 0.0)


def multiples_of_numbers(s, a, b, c):
    """They may wrap: no conditions."""
    return tk.where((tk.arange(64) + a)[:, None] * 3 <= tk.arange(64)[None, :], s, 0.0)


MASKS = [
    nested, together, different_values, factors, a_row_alone, zeros_of_either_sign, read_twice, narrow_numbers, inverse,
    hidden_first, distances, far_apart, vectors, in_other_words, multiples_of_numbers,
]  # fmt: skip


def masking(mask):
    """A kernel that masks products: one ahead of the loop, those of the loop, and one behind it."""

    def kernel(o: tk.Out, x: tk.In, n: int, a: int, b: int, c: int):
        tile, zeros = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
        total = mask(tk.mma(tile, tile, zeros), a, b, c)
        for j in range(n):
            s = tk.mma(tile, tk.load(x, (j, 0), (64, 64)).transpose(), zeros)
            total += tk.exp(mask(s * 0.125, a, b + 64 * j, c))
        o.store(total + mask(tile.astype(tk.float32), a - 64, b, c))

    return kernel


KERNELS = {mask.__name__: masking(tk.function(mask)) for mask in MASKS}
NUMBERS = [(0, 0, 0), (70, -3, 40), (-5, 30, 64), (64, 64, 128), (13, 1, -200), (FAR, -FAR, FAR), (-FAR, FAR, 0)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_the_same_elements_are_seen(name, numbers, device):
    x = np.random.default_rng(7).standard_normal((192, 64)).astype(np.float16)

    def result():
        o = api.full((192, 64), -1.0).sync()
        tk.kernel(KERNELS[name])(o.partition((64, 64)), api.from_host(x).sync(), 3, *numbers).sync()
        return o.to_host().sync()

    np.testing.assert_allclose(*both_ways(result, device), rtol=1e-3, atol=1e-3)


def text_of(kernel, *numbers):
    o, x = api.meta((128, 64)).partition((64, 64)), api.meta((512, 64), tk.float16)
    return "\n".join(line.partition("  #")[0] for line in printed(ir_of(kernel(o, x, *numbers), *PASSES)).splitlines())


@pytest.mark.parametrize(
    ("name", "conditions"),
    [
        ("nested", 3), ("together", 3), ("different_values", 1), ("factors", 2), ("a_row_alone", 2), ("read_twice", 1),
        ("zeros_of_either_sign", 1),
        ("narrow_numbers", 0), ("inverse", 3), ("hidden_first", 2), ("distances", 4), ("far_apart", 0), ("vectors", 2),
        ("in_other_words", 2), ("multiples_of_numbers", 0),
    ],
)  # fmt: skip
def test_masks_of_one_tile_are_one(name, conditions):
    masks = re.findall(r"tilekit__within\(\(64, 64\), \(([^)]*)\)", text_of(tk.kernel(KERNELS[name]), 3, 1, 2, 3))
    assert max((mask.count(",") + 1) // 2 for mask in [*masks, ""] if mask or not masks) == conditions


def ahead(o: tk.Out, x: tk.In, least: int):
    """Rotated, so that the first product of a turn is asked for in the one before."""
    tile, acc, m = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(max(least, tk.cdiv(x.shape[0] - 64 * tk.bid(0), 64))):
        t = tk.load(x, (j, 0), (64, 64))
        s = tk.mma(tile, t.transpose(), tk.zeros((64, 64), tk.float32))
        s = tk.where(tk.arange(64)[None, :] + 64 * j <= tk.arange(64)[:, None] + 64 * tk.bid(0), s, float("-inf"))
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp2(s - higher), tk.exp2(m - higher)
        acc, m = tk.mma(p.astype(x.dtype), tk.load(x, (j, 0), (64, 64)), acc * shrink), higher
    o.store(acc)


def test_what_stands_ahead_of_the_loop_is_masked_in_a_branch():
    lines = text_of(tk.kernel(ahead), 1).splitlines()
    before = lines[: next(n for n, line in enumerate(lines) if "stream" in line and "acc" in line)]
    masked = [n for n, line in enumerate(before) if "where(within" in line]
    assert len(masked) == 1
    assert " = if " in before[masked[0] - 1]


def beside(o: tk.Out, x: tk.In, least: int):
    """As `ahead`, rotated by hand: the product of values is under way where the first scores are masked."""
    tile, zeros = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
    s = tk.mma(tile, tile.transpose(), zeros)
    acc = tk.mma(tile, tile, zeros)
    s = tk.where(tk.arange(64)[None, :] <= tk.arange(64)[:, None] + least, s, float("-inf"))
    total = tk.sum(tk.exp2(s), 1, keepdims=True)
    for j in range(tk.cdiv(x.shape[0], 64)):
        s = tk.mma(tile, tk.load(x, (j, 0), (64, 64)).transpose(), zeros)
        s = tk.where(tk.arange(64)[None, :] + 64 * j <= tk.arange(64)[:, None] + least, s, float("-inf"))
        total += tk.sum(tk.exp2(s), 1, keepdims=True)
    o.store(acc * total)


def test_there_is_no_branch_around_a_product_that_is_under_way():
    text = text_of(tk.kernel(beside), 1)
    assert text.count("= stream ") == 2
    assert text.count("where(within") == 2
    assert " = if " not in text


def of_bools(o: tk.Out, x: tk.In, least: int):
    """A tile of bool is masked ahead of the loop."""
    tile, acc = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32)
    large = tk.where(tk.arange(64)[None, :] < least, tile > 0.5, False)
    for j in range(tk.cdiv(x.shape[0], 64)):
        s = tk.mma(tile, tk.load(x, (j, 0), (64, 64)).transpose(), tk.zeros((64, 64), tk.float32))
        acc += tk.where(tk.arange(64)[None, :] + 64 * j < least, s, 0.0)
    o.store(tk.where(large, acc, -acc))


def test_tiles_of_bool_stay_in_their_place():
    text = text_of(tk.kernel(of_bools), 1)
    assert text.count("= stream ") == 2
    assert " = if " not in text


def of_one(o: tk.Out, x: tk.In, least: int):
    tile, acc, m = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(tk.cdiv(x.shape[0], 64)):
        t = tk.load(x, (j, 0), (64, 64))
        s = tk.mma(tile, t.transpose(), tk.zeros((64, 64), tk.float32))
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        shrink, p = tk.exp2(m - higher), tk.exp2(s - higher)
        acc, m = tk.mma(p.astype(x.dtype), tk.load(x, (j, 0), (64, 64)), acc * shrink), higher
    o.store(acc)


def of_one_in_another_order(o: tk.Out, x: tk.In, least: int):
    tile, acc, m = tk.load(x, (tk.bid(0), 0), (64, 64)), tk.zeros((64, 64), tk.float32), tk.full((64, 1), -1e30, tk.float32)
    for j in range(tk.cdiv(x.shape[0], 64)):
        t = tk.load(x, (j, 0), (64, 64))
        s = tk.mma(tile, t.transpose(), tk.zeros((64, 64), tk.float32))
        higher = tk.maximum(m, tk.max(s, 1, keepdims=True))
        p, shrink = tk.exp2(s - higher), tk.exp2(m - higher)
        acc, m = tk.mma(p.astype(x.dtype), tk.load(x, (j, 0), (64, 64)), acc * shrink), higher
    o.store(acc)


@pytest.mark.parametrize(("make", "branches"), [(ahead, 1), (of_one, 0)])
def test_a_loop_that_surely_has_a_turn_is_rotated_without_a_branch(make, branches):
    rotated = [line for line in text_of(tk.kernel(make), 1).splitlines() if " = if " in line and "acc" in line]
    assert len(rotated) == branches


@pytest.mark.parametrize("make", [of_one, of_one_in_another_order])
def test_rows_come_before_whole_tiles_whatever_the_order(make):
    exponentials = re.findall(r"float32\[64, (\d+)\] = exp2\(", text_of(tk.kernel(make), 1))
    assert exponentials == ["64", "1", "64"], "ahead of the loop nothing shrinks"


def where_it_holds(s, m):
    return s + tk.where(m, 0.0, -1e30)


def where_it_does_not(s, m):
    return tk.where(~m, -10000.0, 0.0) + s


def two_numbers(s, m):
    return s + tk.where(m, 1.0, -1e30)


def no_condition(s, m):
    return s + tk.where(s > 0, 0.0, -1e30)


ADDED = {
    where_it_holds: (0, -1e30, 1),
    where_it_does_not: (0, -10000, 1),
    two_numbers: (1, -1e30, 0),
    no_condition: (0, -1e30, 0),
}


@pytest.mark.parametrize("masked", ADDED)
def test_numbers_that_masks_add(masked, cpu):
    *numbers, count = ADDED[masked]

    @tk.kernel
    def kernel(y: tk.Out, x: tk.In, n: int):
        t = tk.load_tile_like(x, y)
        y.store(masked(t, tk.arange(64)[None, :] < n + tk.arange(64)[:, None]))

    x = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    y = api.zeros((64, 64)).sync()
    tensor = api.from_host(x).sync()
    ir = ir_of(tk.kernel(kernel.__wrapped__)(y.partition((64, 64)), tensor, 3), canonicalize)
    where = [one for one in ir.walk() if one.kind == "call" and one.what.value is tk.where]
    assert sum(all(not isinstance(operand, Constant) for operand in one.operands) for one in where) == count
    kernel(y.partition((64, 64)), tensor, 3).sync()
    inside = np.arange(64)[None, :] < 3 + np.arange(64)[:, None]
    expected = x + np.where(x > 0 if masked is no_condition else inside, *numbers).astype(np.float32)
    np.testing.assert_array_equal(y.to_host().sync(), expected)
