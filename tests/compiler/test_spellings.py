"""One product in many spellings: what the compiler makes of it does not depend on how it is written."""

from __future__ import annotations

import random
import re

import hazards
import numpy as np
import pytest
import through_ir

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")


@tk.kernel(num_warps=8)
def documented(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def ranged(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def counted(c: tk.Out, a: tk.In, b: tk.In):
    acc, k, n = tk.zeros((BM, BN), tk.float32), 0, tk.num_tiles(a, 1, (BM, BK))
    while k < n:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
        k += 1
    c.store(acc.astype(c.dtype))


@tk.function
def tiles_of(a, b, i, j, k):
    return tk.load(a, (i, k), (BM, BK)), tk.load(b, (k, j), (BK, BN))


@tk.function
def step(a, b, i, j, k, acc):
    ta, tb = tiles_of(a, b, i, j, k)
    return tk.mma(ta, tb, acc), k + 1


@tk.kernel(num_warps=8)
def in_tuples(c: tk.Out, a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    state = (tk.zeros((BM, BN), tk.float32), 0)
    for k in range(tk.cdiv(a.shape[1], BK)):
        state = step(a, b, i, j, k, state[0])
    c.store(state[0].astype(c.dtype))


@tk.function
def product_of(a, b, i, j):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        ta = tk.load(a, (i, k), (BM, BK))
        tb = tk.load(b, (k, j), (BK, BN))
        acc = tk.mma(ta, tb, acc)
    return acc


@tk.kernel(num_warps=8)
def helped(c: tk.Out, a: tk.In, b: tk.In):
    c.store(product_of(a, b, tk.bid(0), tk.bid(1)).astype(c.dtype))


@tk.kernel(num_warps=8)
def named(c: tk.Out, a: tk.In, b: tk.In):
    rows, columns = a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(rows, columns):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.function
def pipeline(rows, columns):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in tk.pipelined(rows, columns):
        acc = tk.mma(ta, tb, acc)
    return acc


@tk.kernel(num_warps=8)
def passed_on(c: tk.Out, a: tk.In, b: tk.In):
    c.store(pipeline(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]).astype(c.dtype))


@tk.kernel(num_warps=8)
def added(c: tk.Out, a: tk.In, b: tk.In):
    acc, zeros = tk.zeros((BM, BN), tk.float32), tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), zeros)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def by_operator(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc += tk.load(a, (tk.bid(0), k), (BM, BK)) @ tk.load(b, (k, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.function
def index_of(k, base):
    return base + k


@tk.kernel(num_warps=8)
def indexed(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK)):
        row, column = tk.bid(0), tk.bid(1) * 1
        at = index_of(k, 0)
        here, there = (row, at), (at, column)
        acc = tk.mma(tk.load(a, here, (BM, BK)), tk.load(b, there, (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def from_one(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(1, tk.cdiv(a.shape[1], BK) + 1):
        acc = tk.mma(tk.load(a, (tk.bid(0), k - 1), (BM, BK)), tk.load(b, (k - 1, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def in_halves(c: tk.Out, a: tk.In, b: tk.In):
    acc, n = tk.zeros((BM, BN), tk.float32), tk.cdiv(a.shape[1], BK)
    for k in range(n // 2):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    for k in range(n // 2, n):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def under_a_condition(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    if a.shape[1] > 0:
        for k in range(tk.cdiv(a.shape[1], BK)):
            acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def persistent(c: tk.Out, a: tk.In, b: tk.In):
    for tile in c.tiles():
        i, j = tile.index
        acc = tk.zeros((BM, BN), tk.float32)
        for k in range(tk.cdiv(a.shape[1], BK)):
            acc = tk.mma(tk.load(a, (i, k), (BM, BK)), tk.load(b, (k, j), (BK, BN)), acc)
        c.store(acc.astype(c.dtype), tile)


@tk.kernel(num_warps=8)
def backwards(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(tk.cdiv(a.shape[1], BK) - 1, -1, -1):
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def staggered(c: tk.Out, a: tk.In, b: tk.In):
    acc, n = tk.zeros((BM, BN), tk.float32), tk.cdiv(a.shape[1], BK)
    for k in range(n):
        at = (k + tk.bid(0)) % n
        acc += tk.load(a, (tk.bid(0), at), (BM, BK)) @ tk.load(b, (at, tk.bid(1)), (BK, BN))
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def by_elements(c: tk.Out, a: tk.In, b: tk.In):
    acc, first = tk.zeros((BM, BN), tk.float32), 0
    for k in range(tk.cdiv(a.shape[1], BK)):
        acc = tk.mma(tk.load(a, (tk.bid(0), first // BK), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
        first += BK
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def zipped(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for ta, tb in zip(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def enumerated(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k, ta in enumerate(a.tiles((BM, BK))[tk.bid(0), :]):
        acc = tk.mma(ta, tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def turns_counted(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for _, (ta, tb) in enumerate(tk.pipelined(a.tiles((BM, BK))[tk.bid(0), :], b.tiles((BK, BN))[:, tk.bid(1)])):
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def sliced(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros((BM, BN), tk.float32)
    for k in range(0, a.shape[1], BK):
        ta, tb = tk.load(a.slice(1, k), (tk.bid(0), 0), (BM, BK)), tk.load(b.slice(0, k), (0, tk.bid(1)), (BK, BN))
        acc = tk.mma(ta, tb, acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def left_behind_a_turn(c: tk.Out, a: tk.In, b: tk.In):
    acc, k, n = tk.zeros((BM, BN), tk.float32), 0, tk.cdiv(a.shape[1], BK)
    while True:
        acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
        k += 1
        if k == n:
            break
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def dealt_out(c: tk.Out, a: tk.In, b: tk.In):
    """Every so manyth tile after the other, by a number of the launch."""
    acc, n, step = tk.zeros((BM, BN), tk.float32), tk.cdiv(a.shape[1], BK), tk.num_blocks(0)
    for first in range(step):
        for k in range(first, n, step):
            acc = tk.mma(tk.load(a, (tk.bid(0), k), (BM, BK)), tk.load(b, (k, tk.bid(1)), (BK, BN)), acc)
    c.store(acc.astype(c.dtype))


@tk.kernel(num_warps=8)
def starred(c: tk.Out, a: tk.In, b: tk.In):
    acc, row, rest = tk.zeros((BM, BN), tk.float32), (tk.bid(0),), (tk.bid(1),)
    for k in range(tk.cdiv(a.shape[1], BK)):
        here = ((*row, k), (BM, BK))
        acc += tk.load(a, *here) @ b.tiles((BK, BN))[k, *rest]
    c.store(acc.astype(c.dtype))


GATHERED = (backwards, staggered)
SAME = (
    starred,
    turns_counted,
    zipped,
    enumerated,
    sliced,
    ranged,
    counted,
    by_elements,
    in_tuples,
    helped,
    named,
    passed_on,
    added,
    by_operator,
    indexed,
)
OTHER = (from_one, in_halves, under_a_condition, persistent, left_behind_a_turn, dealt_out, *GATHERED)


def launch(kernel, m=1024, n=1024, k=1024, dtype=tk.bfloat16, tile=(128, 256, 64)):
    c, a, b = api.meta((m, n), dtype), api.meta((m, k), dtype), api.meta((k, n), dtype)
    cut = c.partition(tile[:2])
    return kernel(cut.map(num_blocks=4) if kernel is persistent else cut, a, b).generics(BM=tile[0], BN=tile[1], BK=tile[2])


def instructions(sass):
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", sass)


@pytest.fixture(scope="module")
def expected():
    return {target: launch(documented).compile(target=target) for target in ("sm_80", "sm_90a")}


@pytest.mark.parametrize("kernel", SAME, ids=lambda kernel: kernel.name)
def test_spellings_are_the_same_machine_code(kernel, expected):
    compiled, like = launch(kernel).compile(target="sm_90a"), expected["sm_90a"]
    assert instructions(compiled.sass) == instructions(like.sass)
    assert (compiled.registers, compiled.local_bytes) == (like.registers, like.local_bytes)


@pytest.mark.parametrize("kernel", SAME, ids=lambda kernel: kernel.name)
def test_spellings_load_ahead_by_threads_too(kernel, expected):
    compiled, like = launch(kernel).compile(target="sm_80"), expected["sm_80"]
    for text in ("LDGSTS", "HMMA", "LDSM"):
        assert compiled.sass.count(text) == like.sass.count(text)
    assert (compiled.block, compiled.registers) == (like.block, like.registers)
    assert compiled.local_bytes <= like.local_bytes + 16


@pytest.mark.parametrize("kernel", OTHER, ids=lambda kernel: kernel.name)
def test_loops_of_another_kind_have_their_rings(kernel, expected):
    explained = launch(kernel).explain("sm_90a")
    compiled, like = explained.compiled, expected["sm_90a"]
    loops = 2 if kernel is in_halves else 1
    assert compiled.sass.count("HGMMA") == loops * like.sass.count("HGMMA")
    assert "LDG.E" not in compiled.sass
    assert compiled.local_bytes == 0
    assert abs(compiled.registers - like.registers) <= 8
    assert {ring.stages for ring in explained.pipelines} == {4}
    hazards.check(compiled)


def product_loop(compiled):
    """The instructions of the shortest loop with products."""
    return min((names for names in hazards.loops(compiled.sass) if any("HGMMA" in name for name in names)), key=len)


@pytest.mark.parametrize("kernel", GATHERED, ids=lambda kernel: kernel.name)
def test_the_order_of_tiles_costs_those_who_multiply_nothing(kernel, expected):
    assert len(product_loop(launch(kernel).compile(target="sm_90a"))) == len(product_loop(expected["sm_90a"]))


@pytest.mark.parametrize("kernel", [documented, ranged, persistent], ids=lambda kernel: kernel.name)
def test_no_thread_is_gone_while_its_copies_are_on_their_way(kernel):
    """Rows of `b` are 8 bytes times an odd number apart: threads copy its tiles."""
    ptx = launch(kernel, n=3708).compile(target="sm_90a").ptx
    assert ptx.count("cp.async.wait_all") == 1
    assert ptx.index("cp.async.wait_all") > ptx.rindex("wgmma.wait_group")


@pytest.mark.parametrize("kernel", [documented, *SAME, *OTHER], ids=lambda kernel: kernel.name)
def test_what_passes_make_of_them_is_right(kernel, cpu):
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-3, 4, (256, 256)).astype(np.float16) for _ in range(2))
    with through_ir.rewritten() as kernels:
        c = api.zeros((256, 256)).sync()
        cut = c.partition((64, 64))
        op = kernel(cut.map(num_blocks=3) if kernel is persistent else cut, api.from_host(a), api.from_host(b))
        op.generics(BM=64, BN=64, BK=32).sync()
    np.testing.assert_array_equal(c.to_host().sync(), a.astype(np.float32) @ b.astype(np.float32))
    assert any(operation.kind == "stream" for operation in kernels[0].walk())


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(8))
def test_so_it_is_for_any_shape(number, record_property):
    """Shapes, tiles and dtypes are drawn anew in each run."""
    seed = random.SystemRandom().randrange(1 << 32)
    record_property("seed", seed)
    draw = random.Random(seed)
    tile = draw.choice([64, 128]), draw.choice([64, 128, 256]), draw.choice([32, 64, 128])
    shape = [draw.choice([draw.randrange(1, 5000), 8 * draw.randrange(1, 500), 64 * draw.randrange(1, 64)]) for _ in range(3)]
    dtype = draw.choice([tk.float16, tk.bfloat16])
    kernel = draw.choice(SAME)
    like, compiled = (launch(one, *shape, dtype=dtype, tile=tile).explain("sm_90a") for one in (documented, kernel))
    said = f"{kernel.name}, {shape}, {tile}, {dtype}, seed {seed}"
    ringed = bool(like.pipelines[0].stages)
    for text in ("HGMMA", "UTMALDG", "DEPBAR", "LDGSTS", "LDG.E", "BAR."):
        both = compiled.compiled.sass.count(text), like.compiled.sass.count(text)
        # Without a ring each is compiled as it is written, and ptxas takes several turns of one loop at once, one of another.
        assert both[0] == both[1] or (all(both) and not ringed), f"{text}: {both}, {said}"
    if ringed:
        assert abs(compiled.compiled.registers - like.compiled.registers) <= 8, said
        assert compiled.compiled.local_bytes <= like.compiled.local_bytes, said
    stages = [[ring.stages for ring in explained.pipelines if ring.stages] for explained in (like, compiled)]
    assert stages[0] == stages[1], said
    if kernel in (named, passed_on):
        assert [ring.reason for ring in compiled.pipelines] == [ring.reason for ring in like.pipelines], said
