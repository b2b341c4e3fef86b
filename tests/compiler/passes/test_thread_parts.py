"""Sums, maxima and softmax round loops without products: threads fold what they have, and meet behind the loops."""

import inspect
import math
import os
import random
import re

import numpy as np
import pytest
from through_ir import ir_of, run_through_ir

import tilekit as tk
from tilekit import api
from tilekit.compiler import build
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.remarks import collected
from tilekit.compiler.layouts.linear import Config
from tilekit.compiler.passes.canonical import canonicalize
from tilekit.compiler.passes.counted import count_loops
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.own_maxima import take_own_maxima
from tilekit.compiler.passes.partial_sums import add_up_by_parts

SEED = int(os.environ.get("TILEKIT_FUZZ_SEED", random.SystemRandom().randrange(1 << 30)))
COUNT = int(os.environ.get("TILEKIT_FUZZ", 12))
INF = float("inf")


def passes(config):
    """Those that rewrite such loops, for blocks of a configuration."""

    def for_blocks(kernel):
        kernel.config = config

    return for_blocks, canonicalize, hoist_invariants, count_loops, take_own_maxima, add_up_by_parts, eliminate_dead_code


def sums(axis, shape, dtype, start):
    kept = tuple(1 if axis is None or d == axis else n for d, n in enumerate(shape))

    def kernel(y: tk.Out, z: tk.Out, x: tk.In, n: int):
        total, largest = tk.full(kept, start, dtype), tk.max(tk.load(x, (0, 0), shape), axis, keepdims=True)
        for i in range(n):
            t = tk.load(x, (i, tk.bid(0)), shape)
            total = total + tk.sum(t * 3, axis, keepdims=True)
            largest = tk.maximum(tk.max(t, axis, keepdims=True), largest)
        y.store(total.reshape(y.tile_shape))
        z.store(largest.reshape(z.tile_shape))

    return kernel


def nested(axis, shape, dtype, start):
    """Two loops in one, and one behind it, without dimensions that are folded."""
    kept = (shape[1 - axis],)

    def kernel(y: tk.Out, z: tk.Out, x: tk.In, n: int):
        total, least, i = tk.zeros(kept, dtype), tk.full(kept, start, dtype), 0
        while i < n:
            for _ in range(2):
                total += tk.sum(tk.load(x, (i, tk.bid(0)), shape), axis)
            i += 1
        for i in range(n):
            t = tk.load(x, (i, tk.bid(0)), shape)
            total = tk.sum(t, axis) + total
            least = tk.minimum(least, tk.min(t, axis))
        y.store(total.reshape(y.tile_shape))
        z.store(least.reshape(z.tile_shape))

    return kernel


def rows_of_tiles(axis, shape, dtype, start):
    """Tiles that loops go over."""
    kept = tuple(1 if axis is None or d == axis else n for d, n in enumerate(shape))

    def kernel(y: tk.Out, z: tk.Out, x: tk.In, n: int):
        total, least = tk.zeros(kept, dtype), tk.full(kept, start, dtype)
        for t in x.tiles(shape)[:, tk.bid(0)]:
            total += tk.sum(t, axis, keepdims=True) * 2 + tk.sum(t, axis, keepdims=True)
        for t in tk.pipelined(x.tiles(shape)[:, tk.bid(0)]):
            least = tk.minimum(least, tk.min(t, axis, keepdims=True))
        y.store(total.reshape(y.tile_shape))
        z.store(least.reshape(z.tile_shape))

    return kernel


def expected_of(make, tiles, axis, start):
    """What the kernels give for tiles, of which the first dimension is the turns."""
    axes = None if axis is None else (0, axis + 1)
    total = tiles.sum(axes, dtype=tiles.dtype) * tiles.dtype.type(3)
    if make is sums:
        return total + tiles.dtype.type(start), tiles.max(axes)
    return total, np.minimum(tiles.min(axes), tiles.dtype.type(start))


def drawn(rng):
    shape = rng.choice([(1, 2048), (4, 256), (64, 64), (128, 8), (2, 32), (32, 1)])
    dtype = rng.choice(["float32", "float64", "int32", "int64", "uint32"])
    config = Config(rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4, 8]))
    make = rng.choice([sums, nested, rows_of_tiles])
    return make, rng.choice([0, 1] if make is nested else [None, 0, 1]), shape, dtype, rng.randrange(1, 5), config


@pytest.mark.parametrize("number", range(COUNT))
def test_sums_and_maxima_stay_what_they_are(cpu, number):
    """Of integers, which floats have exactly, too."""
    make, axis, shape, dtype, turns, config = drawn(random.Random(SEED + number))
    tiles = np.random.default_rng(SEED + number).integers(0, 50, (turns, *shape)).astype(dtype)
    right = expected_of(make, tiles, axis, 7)
    with run_through_ir(*passes(config)) as kernels:
        y, z = (api.zeros(each.shape or 1, dtype).sync() for each in right)
        x = api.from_host(tiles.reshape(turns * shape[0], shape[1]))
        tk.kernel(make(axis, shape, getattr(tk, dtype), 7))(*(t.partition(t.shape) for t in (y, z)), x, turns).sync()
    for found, each in zip((y, z), right, strict=True):
        said = f"TILEKIT_FUZZ=1 TILEKIT_FUZZ_SEED={SEED + number}\n{printed(kernels[0])}"
        np.testing.assert_array_equal(found.to_host().sync().reshape(each.shape), each, said)


def text_of(make, *arguments, config=Config(4, 4)):  # noqa: B008
    with collected() as remarks:
        text = printed(ir_of(tk.kernel(make)(*arguments), *passes(config)))
    done = {remark.transformation for remark in remarks if remark.done}
    return [line.partition("  #")[0].strip() for line in text.splitlines()], done


def test_each_thread_has_a_part():
    """Of rows in which 128 threads have 4 elements next to each other, twice."""
    one, x = api.meta((8, 1)).partition((1, 1)), api.meta((8, 4096))
    lines, done = text_of(sums(1, (1, 1024), tk.float32, 0), one, one, x, 4)
    assert done == {"partial sums"}
    assert sum("float32[1, 1, 128, 1] = sum(" in line and line.endswith("(1, 3), keepdims=True)") for line in lines) == 1
    loop = next(at for at, line in enumerate(lines) if " for " in line)
    (total,) = re.findall(r"(total\S*): float32\[1, 1, 128, 1\]", lines[loop])
    assert any(f"= sum({total}, 2)" in line for line in lines[loop:]), "behind the loop"


def refused(join, fold=tk.sum, dtype=tk.float32, order="C"):
    def kernel(y: tk.Out, x: tk.In, n: int):
        total = tk.zeros((1, 1), dtype)
        for i in range(n):
            total = join(total, fold(tk.load(x, (tk.bid(0), i), (1, 1024), order=order).astype(dtype), 1, keepdims=True))
        y.store(total)

    return kernel


def read_each_turn(y: tk.Out, x: tk.In, n: int):
    total = tk.zeros((1, 1), tk.float32)
    for i in range(n):
        total = total + tk.sum(tk.load(x, (tk.bid(0), i), (1, 1024)), 1, keepdims=True)
        tk.store(y, (tk.bid(0), i), total)


def left_early(y: tk.Out, x: tk.In, n: int):
    total = tk.zeros((1, 1), tk.float32)
    for i in range(n):
        t = tk.load(x, (tk.bid(0), i), (1, 1024))
        total = total + tk.sum(t, 1, keepdims=True)
        if tk.max(t) > 7.0:
            break
    y.store(total)


def flushed(total, each):
    return tk.maximum(total, each, flush_to_zero=True)


@pytest.mark.parametrize(
    "make",
    [
        refused(tk.add), refused(flushed, tk.max), refused(tk.maximum), refused(tk.minimum, tk.max), refused(tk.add, tk.max),
        read_each_turn, left_early,
    ],
)  # fmt: skip
def test_other_loops_stay_as_they_are(make):
    """Exact sums, folds of another kind, sums that a turn reads, loops that end early."""
    lines, done = text_of(make, api.meta((8, 1)).partition((1, 1)), api.meta((8, 4096)), 4)
    assert not done
    assert not any("[1, 1, 128, 1]" in line for line in lines)


def test_a_sum_whose_negative_is_subtracted_is_added():
    def kernel(y: tk.Out, x: tk.In, n: int):
        total, other = tk.zeros((1, 1), tk.float32), tk.zeros((1, 1), tk.float32)
        for i in range(n):
            row = tk.sum(tk.load(x, (tk.bid(0), i), (1, 1024)), 1, keepdims=True)
            total = total - -row
            less = -tk.sum(tk.load(x, (tk.bid(0), 2 * i), (1, 1024)), 1, keepdims=True)
            other = tk.maximum(other - less, less)
        y.store(total + other)

    lines, done = text_of(kernel, ROWS[0], api.meta((8, 4096)), 4)
    assert done == {"partial sums"}
    assert sum(" = -" in line for line in lines) == 1, "what something else reads stays"


def test_sums_that_each_turn_rounds_stay_as_they_are():
    def kernel(y: tk.Out, x: tk.In, n: int):
        total = tk.zeros((1, 1), tk.float16)
        for i in range(n):
            total = total + tk.sum(tk.load(x, (tk.bid(0), i), (1, 1024)), 1, keepdims=True)
        y.store(total)

    assert not text_of(kernel, api.meta((8, 1), tk.float16).partition((1, 1)), api.meta((8, 4096), tk.float16), 4)[1]


# ------------------------------------------------------------------------------------------------------------------- softmax


def softmax(shape, lowest, exp, scaled, weighed):
    """Of rows of tiles: the maximum, the sum below it, and one of more."""
    rows, columns = shape

    def kernel(top: tk.Out, total: tk.Out, other: tk.Out, x: tk.In, n: int, valid: int):
        highest, sum_, more = (
            tk.full((rows, 1), lowest, tk.float32),
            tk.zeros((rows, 1), tk.float32),
            tk.zeros((rows, 1), tk.float32),
        )
        for j in range(n):
            t = tk.load(x, (tk.bid(0), j), shape)
            inside = j * columns + tk.arange(columns) < valid
            t = tk.where(inside, t, -INF)
            higher = tk.maximum(highest, tk.max(t, 1, keepdims=True))
            if scaled:
                p, grown = exp((t - higher) * 0.75), exp((highest - higher) * 0.75)
            else:
                p, grown = exp(t - higher), exp(highest - higher)
            sum_ = sum_ * grown + tk.sum(p, 1, keepdims=True)
            if weighed:
                more = tk.sum(tk.where(inside, p * tk.arange(columns), 0.0), 1, keepdims=True) + grown * more
            highest = higher
        top.store(highest)
        total.store(sum_)
        other.store(more)

    return kernel


def vectors(shape, lowest, exp, scaled, weighed):
    """As `softmax`, of vectors, and by a `while`."""
    rows, columns = shape

    def kernel(top: tk.Out, total: tk.Out, other: tk.Out, x: tk.In, n: int, valid: int):
        highest, sum_, j = tk.full((rows,), lowest, tk.float32), tk.zeros((rows,), tk.float32), 0
        while j < n:
            t = tk.where(j * columns + tk.arange(columns) < valid, tk.load(x, (tk.bid(0), j), shape), -INF)
            higher = tk.maximum(tk.max(t, 1), highest)
            sum_ = sum_ * exp(highest - higher) + tk.sum(exp(t - higher[:, None]), 1)
            highest = higher
            j += 1
        top.store(highest.reshape((rows, 1)))
        total.store(sum_.reshape((rows, 1)))
        other.store(tk.zeros((rows, 1), tk.float32))

    return kernel


def plain(make, tiles, lowest, exp, scaled, weighed, valid):
    """What they give, by NumPy, in float64."""
    x = np.concatenate(tiles, 1).astype(np.float64)
    x[:, valid:] = -np.inf
    top = np.maximum(x.max(1, keepdims=True), lowest)
    below = (x - top) * (0.75 if scaled and make is softmax else 1.0)
    p = (np.exp2 if exp is tk.exp2 else np.exp)(below)
    weight = np.tile(np.arange(tiles.shape[2]), len(tiles)) * (weighed and make is softmax)
    return top, p.sum(1, keepdims=True), (p * weight).sum(1, keepdims=True)


@pytest.mark.parametrize("number", range(COUNT))
def test_softmax_stays_what_it_is(cpu, number):
    rng = random.Random(SEED + number)
    shape, turns = rng.choice([(1, 1024), (4, 128), (32, 32), (2, 512)]), rng.randrange(1, 5)
    make, lowest = rng.choice([softmax, softmax, vectors]), rng.choice([-1e30, -INF, -2.0])
    choices = rng.choice([tk.exp, tk.exp2]), rng.random() < 0.3, rng.random() < 0.5
    config = Config(rng.choice([1, 2, 4]), rng.choice([1, 2, 4]))
    valid = rng.randrange(1, turns * shape[1] + 1)  # many threads have nothing but -inf
    tiles = np.random.default_rng(SEED + number).normal(0, 20, (turns, *shape)).astype(np.float32)
    with run_through_ir(*passes(config)) as kernels:
        results = [api.zeros((shape[0], 1)).sync() for _ in range(3)]
        x = api.from_host(np.ascontiguousarray(np.concatenate(tiles, 1)))
        launch = tk.kernel(make(shape, lowest, *choices))(*(r.partition((shape[0], 1)) for r in results), x, turns, valid)
        launch.sync()
    said = f"TILEKIT_FUZZ=1 TILEKIT_FUZZ_SEED={SEED + number}\n{printed(kernels[0])}"
    for found, right in zip(results, plain(make, tiles, lowest, *choices, valid), strict=True):
        np.testing.assert_allclose(found.to_host().sync(), right, rtol=2e-5, atol=1e-30, err_msg=said)


ROWS = [api.meta((8, 1)).partition((1, 1))] * 3


@pytest.mark.parametrize("lowest", [-1e30, -INF])
@pytest.mark.parametrize("make", [softmax, vectors])
def test_maxima_of_threads_meet_behind_the_loop(make, lowest):
    lines, done = text_of(make((1, 1024), lowest, tk.exp, False, True), *ROWS, api.meta((8, 4096)), 4, 4000)
    assert done == {"own maxima"}
    loop = next(at for at, line in enumerate(lines) if " for " in line)
    end = next(at for at, line in enumerate(lines) if at > loop and line.startswith("yield"))
    whole = re.compile(r"= (?:tk\.)?(?:max|sum)\(")
    inside = [line for line in lines[loop:end] if whole.search(line)]
    assert inside
    assert all(line.endswith("(1, 3), keepdims=True)") for line in inside), "what each thread has"
    assert sum("2, keepdims=True)" in line or line.endswith(", 2)") for line in lines[end:]) >= 2


def test_a_row_of_nothing_but_minus_infinity_is_no_number(cpu):
    with run_through_ir(*passes(Config(1, 4))):
        top, total, other = (api.zeros((1, 1)).sync() for _ in range(3))
        launch = tk.kernel(softmax((1, 256), -INF, tk.exp, False, False))
        launch(*(r.partition((1, 1)) for r in (top, total, other)), api.full((1, 512), -INF), 2, 512).sync()
    assert top.to_host().sync().item() == -INF
    assert math.isnan(total.to_host().sync().item())


def other_base(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp2(t - higher), 1, keepdims=True)
        top = higher
    y.store(total)


def seen(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        tk.store(y, (tk.bid(0), j), higher)
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t - higher), 1, keepdims=True)
        top = higher
    y.store(total)


def not_scaled(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = total + tk.sum(tk.exp(t - higher), 1, keepdims=True)
        top = higher
    y.store(total)


def with_more(y: tk.Out, x: tk.In, n: int):
    """What is added is no power."""
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t - higher) + 1.0, 1, keepdims=True)
        top = higher
    y.store(total)


def below_the_old(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t - top), 1, keepdims=True)
        top = higher
    y.store(total)


def of_another_tile(y: tk.Out, x: tk.In, n: int):
    """What is larger than the maximum of a thread may be too large for its powers."""
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t * 0.5 - higher), 1, keepdims=True)
        top = higher
    y.store(total)


def scaled_each_turn(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher, by = tk.maximum(top, tk.max(t, 1, keepdims=True)), j * 0.5
        total = total * tk.exp((top - higher) * by) + tk.sum(tk.exp((t - higher) * by), 1, keepdims=True)
        top = higher
    y.store(total)


def along_columns(y: tk.Out, x: tk.In, n: int):
    """Maxima of rows are taken off columns."""
    top, total = tk.full((64,), -1e30, tk.float32), tk.zeros((64,), tk.float32)
    for j in range(n):
        t = tk.load(x, (0, j), (64, 64))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=False))
        total = total * tk.exp(top - higher) + tk.sum(tk.exp(t - higher), 1)
        top = higher
    y.store(tk.sum(total, keepdims=True)[:, None])


def by_name(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        t = tk.load(x, (tk.bid(0), j), (1, 1), padding_value=higher.item())
        total = total * tk.exp(top - higher) + t
        top = higher
    y.store(total)


def exactly(y: tk.Out, x: tk.In, n: int):
    top, total = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 1024))
        higher = tk.maximum(top, tk.max(t, 1, keepdims=True))
        total = tk.add(total * tk.exp(top - higher), tk.sum(tk.exp(t - higher), 1, keepdims=True))
        top = higher
    y.store(total)


MADE = [
    other_base, seen, not_scaled, with_more, below_the_old, of_another_tile, scaled_each_turn, along_columns, by_name, exactly
]  # fmt: skip


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_what_else_goes_by_the_maximum_leaves_it_whole(make):
    lines, done = text_of(make, ROWS[0], api.meta((64, 4096)), 4)
    assert "own maxima" not in done
    assert any(re.search(r"tk\.max\(\S+, 1(, keepdims=True)?\)$", line) for line in lines)


# ------------------------------------------------------------------------------------------------------------------ compiled


def by_hand(top: tk.Out, total: tk.Out, x: tk.In, n: int):
    """What threads have of a row by 4 warps, by their registers."""
    threads, highest, sum_ = (4, 128, 8), tk.full((1, 128, 1), -1e30, tk.float32), tk.zeros((1, 128, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 4096)).reshape(threads).astype(tk.float32)
        higher = tk.maximum(highest, tk.max(t, (0, 2), keepdims=True))
        p = tk.exp(t - higher)
        sum_ = sum_ * tk.exp(highest - higher) + tk.sum(p, (0, 2), keepdims=True)
        highest = higher
    peak = tk.max(highest, 1)
    top.store(peak)
    total.store(tk.sum(sum_ * tk.exp(highest - peak), 1))


def as_users_do(top: tk.Out, total: tk.Out, x: tk.In, n: int):
    highest, sum_ = tk.full((1, 1), -1e30, tk.float32), tk.zeros((1, 1), tk.float32)
    for j in range(n):
        t = tk.load(x, (tk.bid(0), j), (1, 4096)).astype(tk.float32)
        higher = tk.maximum(highest, tk.max(t, 1, keepdims=True))
        sum_ = sum_ * tk.exp(highest - higher) + tk.sum(tk.exp(t - higher), 1, keepdims=True)
        highest = higher
    top.store(highest)
    total.store(sum_)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_loop_has_no_shuffles_and_barriers(target):
    """As many in all as with the parts written by hand: those behind the loop."""
    x, counts = api.meta((8, 1 << 20), tk.float16), []
    for make in (by_hand, as_users_do):
        launch = tk.kernel(num_warps=4)(make)(*ROWS[:2], x, 256)
        launch.consumed()
        kernel = launch.compile(target=target)
        counts.append((kernel.sass.count("SHFL"), kernel.sass.count("BAR.SYNC")))
        assert not kernel.local_bytes
        assert kernel.registers < 104
    assert counts[0] == counts[1]
    assert counts[0] <= (11, 4)


def test_loads_that_are_checked_are_those_of_the_text(monkeypatch):
    """A pass may load what no turn comes to."""
    launch = tk.kernel(num_warps=4)(as_users_do)(*ROWS[:2], api.meta((8, 1 << 20), tk.float16), 256)
    launch.consumed()
    chosen = launch._plan("a test").specialisation
    monkeypatch.setattr(build, "ringless", lambda *_: pytest.fail("it was rewritten"))
    assert build.build(chosen.bound, chosen.facts, 4, "sm_90a", checks=True).sites


def streamed(y: tk.Out, x: tk.In):
    highest, total = tk.full((64, 1), -INF, tk.float32), tk.zeros((64, 1), tk.float32)
    for t in tk.pipelined(x.tiles((64, 64))[tk.bid(0), :], stages=3):
        t = t.astype(tk.float32)
        higher = tk.maximum(highest, tk.max(t, 1, keepdims=True))
        total = total * tk.exp(highest - higher) + tk.sum(tk.exp(t - higher), 1, keepdims=True)
        highest = higher
    y.store(highest + tk.log(total))


def test_tiles_that_come_ahead_are_folded_so_too():
    launch = tk.kernel(num_warps=4)(streamed)(api.meta((64, 1)).partition((64, 1)), api.meta((64, 1 << 20), tk.float16))
    launch.consumed()
    explanation = launch.explain(target="sm_90a")
    assert "UTMALDG" in explanation.compiled.sass
    assert [remark.transformation for remark in explanation.remarks if remark.done] == ["own maxima"]
    turn = explanation.ir[explanation.ir.index("= stream ") : explanation.ir.index("yield")]
    assert len(re.findall(r"(?:max|sum)\(.*, \(1, 3\), keepdims=True\)", turn)) == 2


def test_explain_says_it(monkeypatch, capfd):
    monkeypatch.setenv("TILEKIT_DUMP", "passes")
    launch = tk.kernel(num_warps=4)(as_users_do)(*ROWS[:2], api.meta((8, 1 << 20), tk.float16), 256)
    launch.consumed()
    said = {remark.transformation: remark for remark in launch.explain(target="sm_90a").remarks if remark.done}
    assert said["own maxima"].text == "each thread goes by the largest element of its own; maxima and sums meet behind the loop"
    assert said["own maxima"].line == inspect.getsourcelines(as_users_do)[1] + 2
    assert "# without rings\nkernel as_users_do" in capfd.readouterr().err
