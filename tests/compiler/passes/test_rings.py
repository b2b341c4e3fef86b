"""Rings of stages: what the threads that load have of a kernel, what the others wait for, and which kernels have none."""

from __future__ import annotations

import re

import pytest
from through_ir import ir_of

import tilekit as tk
from tilekit import api
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.verify import verify
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.rings import Unfit, make_rings

TILE = (64, 64)


def ringed(make, *more):
    """The text of a kernel with rings: of all threads, of those that calculate, of those that load."""
    a = api.meta((256, 256), tk.float16)
    kernel = ir_of(tk.kernel(make)(api.meta((256, 256)).partition(TILE), a, a, *more), eliminate_dead_code)
    rings = make_rings(kernel)
    verify(kernel)
    text = "\n".join(line.partition("  #")[0].rstrip() for line in printed(kernel).splitlines())
    before, _, rest = text.partition("== 0")
    consumer, _, producer = rest.partition("== 1")
    assert before.count("tilekit__ring(") == rings
    return before, consumer, producer


def product(c: tk.Out, a: tk.In, b: tk.In):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(tk.exp(acc))


def test_threads_that_load_have_what_decides_which_tiles_come():
    before, consumer, producer = ringed(product)
    assert "tilekit__ring(0, 0, (0, 0), 0, (2,), (0, 0), (64, 0, 1, 0, 1, 0, 64, 0), tiles, tiles.1)" in before
    assert "consume ta, tb in (" in consumer
    assert "c.store(" in consumer
    assert "produce in (" in producer
    assert producer.count("tk.bid(") == 2
    assert not any(word in producer for word in ("acc", "mma", "store", "exp"))


def by_branches(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc, k = tk.zeros(TILE, tk.float32), 0
    while k < n:
        if k > 2:
            for ta in tk.pipelined(a.tiles(TILE)[k // 2, :]):
                acc += ta
        k += 1
    if n > 3:
        acc = acc * 2.0
    for t in range(n):
        acc += t
    c.store(acc)


def of_one_turn(c: tk.Out, a: tk.In, b: tk.In):
    for ta in tk.pipelined(a.tiles(TILE)[0:1, 0]):
        acc = tk.zeros(TILE, tk.float32)
        for tb in tk.pipelined(b.tiles(TILE)[:, 0]):
            acc = tk.mma(ta, tb, acc)
        c.store(tk.exp(acc))


def read_at_the_end(c: tk.Out, a: tk.In, b: tk.In):
    for ta in tk.pipelined(a.tiles(TILE)[0:1, 0]):
        acc = tk.zeros(TILE, tk.float32)
        for tb in tk.pipelined(b.tiles(TILE)[:, 0]):
            acc = tk.mma(ta, tb, acc)
        c.store(tk.exp(acc) + ta)


def computed_of_it(c: tk.Out, a: tk.In, b: tk.In):
    for ta in tk.pipelined(a.tiles(TILE)[0:1, 0]):
        acc, other = tk.zeros(TILE, tk.float32), ta.transpose() * 2.0
        for tb in tk.pipelined(b.tiles(TILE)[:, 0]):
            acc = tk.mma(ta, tb, acc)
        c.store(tk.exp(acc) + other)


def multiplied_at_the_end(c: tk.Out, a: tk.In, b: tk.In):
    for ta in tk.pipelined(a.tiles(TILE)[0:1, 0]):
        acc, other = tk.zeros(TILE, tk.float32), tk.load(b, (1, 1), TILE)
        for tb in tk.pipelined(b.tiles(TILE)[:, 0]):
            acc = tk.mma(ta, tb, acc)
        c.store(tk.mma(acc.astype(tk.float16), other, tk.zeros(TILE, tk.float32)))


@pytest.mark.parametrize("make", [of_one_turn, read_at_the_end, computed_of_it, multiplied_at_the_end], ids=lambda f: f.__name__)
def test_the_stage_of_an_only_turn_is_given_back_behind_what_reads_it(make):
    """Results that may be computed of a tile late count as the tile; products behind are the turn's."""
    consumer = ringed(make)[1]
    early = "tilekit__give(" in consumer
    assert early == (make in (of_one_turn, multiplied_at_the_end))
    assert not early or consumer.rindex("tk.mma(") < consumer.index("tilekit__give(") < consumer.index("c.store(")


def test_branches_and_loops_around_stay():
    _, consumer, producer = ringed(by_branches, 3)
    assert producer.count("while") == consumer.count("while") == 1
    assert producer.count("break") == 1
    assert producer.count(" if ") == 3, "the role, the end of the loop, the branch; not the one that doubles"
    assert consumer.count(" if ") == 4
    assert " for " not in producer


def shared(c: tk.Out, a: tk.In, b: tk.In):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    for ta in tk.pipelined(a.tiles(TILE)[i, 0:1], stages=1):
        acc += ta
    for ta in tk.pipelined(a.tiles(TILE)[i, 1:]):
        for inner in tk.pipelined(a.tiles(TILE)[i, :]):
            acc += ta * inner
    for ta in tk.pipelined(a.tiles(TILE)[0, 1:]):
        acc += ta
    c.store(acc)


def test_loops_over_the_same_tiles_share_a_ring_unless_they_stand_in_each_other():
    before, consumer, _ = ringed(shared)
    assert before.count("tilekit__ring(") == 3
    assert before.index("tilekit__ring(0, 1, ") < before.index("tilekit__ring(1, 0, "), "with a wanted number of stages: first"
    loops = [line for line in consumer.splitlines() if "consume" in line]
    assert ["ring=ring0" in loops[0], "once=True" in loops[0]] == [True, True]
    assert [line.partition("ring=")[2][:5] for line in loops] == ["ring0", "ring1", "ring2", "ring1"]
    assert all("once=False" in line for line in loops[1:])


def in_a_row(c: tk.Out, a: tk.In, b: tk.In):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, i]):
        acc = tk.mma(ta, tb, acc)
    for tb in tk.pipelined(b.tiles((32, 64))[i, :]):
        acc = tk.mma(tk.zeros((64, 32), tk.float16), tb, acc)
    for ta in tk.pipelined(a.tiles(TILE)[i, 1:2]):
        acc += ta
    for ta, tb in tk.pipelined(a.tiles(TILE)[0, :], b.tiles(TILE)[:, 0], stages=2):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


def test_loops_over_other_tiles_share_a_ring_if_they_have_many_turns():
    before, consumer, producer = ringed(in_a_row)
    assert before.count("tilekit__ring(") == 3
    assert "tilekit__ring(0, 0, (0, 0, 0), 0, (2, 1), " in before
    assert "tilekit__ring(1, 0, (0,), 0, (1,), " in before, "one turn: it needs a stage or two"
    assert "tilekit__ring(2, 2, (0, 0), 0, (2,), " in before, "another number of stages is wanted"
    (other,) = re.findall(r"(\S+): function = tilekit__variant\(ring0, 1\)", before)
    for part, word in ((consumer, "consume"), (producer, "produce")):
        assert re.findall(rf"{word} .*ring=([\w.]+)", part) == ["ring0", other, "ring1", "ring2"]


def two_products(c: tk.Out, a: tk.In, b: tk.In):
    first, second = tk.zeros(TILE, tk.float32), tk.zeros(TILE, tk.float32)
    query, p = tk.load(a, (0, 0), TILE), tk.load(b, (0, 0), TILE)
    for ta in tk.pipelined(a.tiles(TILE)[0, :]):
        s = tk.mma(query, ta, tk.zeros(TILE, tk.float32))
        second = tk.mma(p, ta, second)
        p = s.astype(tk.float16)
        first += s
    c.store(first + second)


def test_products_are_waited_for_where_they_are_read_and_operands_lie_ready():
    _, consumer, _ = ringed(two_products)
    lines = [line.strip() for line in consumer.splitlines()]
    at = {
        name: next(n for n, line in enumerate(lines) if f"{name}" in line) for name in ("astype", "tilekit__wait_product(s, sec")
    }
    assert at["tilekit__wait_product(s, sec"] == at["astype"] - 1, "and not for the other, which was asked for later"
    assert consumer.count("tilekit__wait_product(") == 1
    assert consumer.count("tilekit__operand(query, False)") == 1, "before the loop"
    assert consumer.count(", True)") == 2 + consumer.count("once=True)"), "p: before the loop, and where a turn ends"


def read_twice(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(TILE, tk.float32)
    for ta, tb in tk.pipelined(a.tiles(TILE)[0, :], b.tiles(TILE)[:, 0]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc * tk.sum(acc, 1, keepdims=True))


def read_in_some_cases(c: tk.Out, a: tk.In, b: tk.In, n: int):
    acc = tk.zeros(TILE, tk.float32)
    for ta, tb in tk.pipelined(a.tiles(TILE)[0, :], b.tiles(TILE)[:, 0]):
        acc = tk.mma(ta, tb, acc)
    if n > 3:
        acc = tk.exp(acc)
    c.store(acc)


def read_once(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(TILE, tk.float32)
    for ta, tb in tk.pipelined(a.tiles(TILE)[0, :], b.tiles(TILE)[:, 0]):
        acc = tk.mma(ta, tb, acc)
    for ta, tb in tk.pipelined(a.tiles(TILE)[1, :], b.tiles(TILE)[:, 1]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc * 2.0)


@pytest.mark.parametrize(
    ("make", "more", "reader"), [(read_twice, (), "sum("), (read_in_some_cases, (3,), ""), (read_once, (), "")]
)
def test_a_product_is_waited_for_once(make, more, reader):
    """Before the first of several that read it; who adds to it does not wait, and one reader waits by itself."""
    _, consumer, _ = ringed(make, *more)
    lines = [line.strip() for line in consumer.splitlines()]
    waits = [n for n, line in enumerate(lines) if "tilekit__wait_product(" in line]
    assert len(waits) == (reader != "")
    assert not waits or reader in lines[waits[0] + 1]


def leaves(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(TILE, tk.float32)
    for ta in tk.pipelined(a.tiles(TILE)[0, :]):
        if tk.bid(0) == 3:
            break
        acc += ta
    c.store(acc)


def kept(c: tk.Out, a: tk.In, b: tk.In):
    acc = before = tk.zeros(TILE, tk.float16)
    for ta in tk.pipelined(a.tiles(TILE)[0, :]):
        acc += before
        before = ta.transpose()
    c.store(acc.astype(tk.float32))


def by_a_tile(c: tk.Out, a: tk.In, b: tk.In):
    acc = tk.zeros(TILE, tk.float32)
    at = tk.sum(tk.load(b, (0, 0), TILE)).astype(tk.int32).item()
    for ta in tk.pipelined(a.tiles(TILE)[at, :]):
        acc += ta
    c.store(acc)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (leaves, "the loop has a break, continue or return"),
        (kept, "before, a tile of the pipeline, may be used in a later turn"),
        (by_a_tile, "which tiles come depends on tk.sum(tk.load(b, (0, 0), TILE)).astype(tk.int32)"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_why_there_is_none(make, reason):
    with pytest.raises(Unfit) as error:
        ringed(make)
    assert str(error.value) == reason


def waiting(c: tk.Out, a: tk.In, b: tk.In, flags: tk.InOut, n: int):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    while tk.atomic_add(flags, i // n, 0, memory_order="acquire", memory_scope="system") < n:
        pass
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


def test_who_loads_waits_for_the_words_that_the_block_waits_for():
    """The tiles of the loop behind it may come into being only then. It looks by itself: atomics are for all of a block."""
    _, consumer, producer = ringed(waiting, api.meta((4,), tk.int32).scattered(), 2)
    assert consumer.count("tk.atomic_add(") == 1 and "peek" not in consumer
    assert "tk.atomic_add" not in producer
    assert producer.index("while") < producer.index("tilekit__peek(flags, ") < producer.index("produce in (")


def until_it_is_there(c: tk.Out, a: tk.In, b: tk.In, flags: tk.InOut, n: int):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    while True:
        there = tk.atomic_add(flags, i, 0, memory_order="acq_rel", memory_scope="system")
        if there >= n:
            break
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


def orders_nothing(c: tk.Out, a: tk.In, b: tk.In, flags: tk.InOut, n: int):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    while tk.atomic_add(flags, 1, 0) < n:
        pass
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


FLAGS = (api.meta((4,), tk.int32).scattered(), 2)


def test_another_way_to_write_the_same_wait():
    _, consumer, producer = ringed(until_it_is_there, *FLAGS)
    assert "tk.atomic_add(" in consumer and "tk.atomic_add" not in producer
    assert producer.index("while") < producer.index("tilekit__peek(flags, ") < producer.index("produce in (")


def on_what_nobody_writes(c: tk.Out, a: tk.In, b: tk.In, flags: tk.InOut, n: int):
    acc, i = tk.zeros(TILE, tk.float32), tk.bid(0)
    while tk.atomic_add(flags, 0, 1, memory_order="acquire") < n:
        pass
    for ta, tb in tk.pipelined(a.tiles(TILE)[i, :], b.tiles(TILE)[:, tk.bid(1)]):
        acc = tk.mma(ta, tb, acc)
    c.store(acc)


@pytest.mark.parametrize("make", [orders_nothing, on_what_nobody_writes], ids=lambda make: make.__name__)
def test_waits_that_no_tile_depends_on_are_not_for_who_loads(make):
    _, consumer, producer = ringed(make, *FLAGS)
    assert consumer.count("tk.atomic_add(") == 1 and "while" not in producer
