"""Atomic operations: what elements are in the end, and what they were before."""

import numpy as np
import pytest
from parity import check, sample

import tilekit as tk
from tilekit import api
from tilekit.lang import atomic

WORDS = [tk.int32, tk.uint32, tk.int64, tk.uint64]
FLOATS = [tk.float16, tk.bfloat16, tk.float32, tk.float64]


@tk.kernel
def add(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_add(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


@tk.kernel
def raise_to(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_max(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


@tk.kernel
def lower_to(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_min(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


@tk.kernel
def clear(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_and(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


@tk.kernel
def set_bits(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_or(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


@tk.kernel
def flip(y: tk.InOut, x: tk.In, where: tk.In):
    tk.atomic_xor(y, tk.load(where, tk.bid(0), 64), tk.load(x, tk.bid(0), 64))


def apply(kernel, y, x, where):
    given = [api.from_host(a) for a in (x, where)]
    return kernel(api.from_host(y).scattered(), *given).grid(len(where) // 64).first().unpartition().to_host().sync()


def whole(dtype, seed=0, n=100):
    """Small whole numbers, whose sums are exact in every dtype."""
    values = np.random.default_rng(seed).integers(0 if dtype.kind == "u" else -3, 4, n)
    return values.astype(np.float32).astype(dtype)


@pytest.mark.parametrize("places", [1, 3, 50, 1000])
@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS], ids=str)
def test_sums(device, dtype, places):
    y, x = whole(dtype, n=places), whole(dtype, 1, n=256)
    where = np.random.default_rng(2).integers(0, places, 256).astype(np.int32)
    wanted = y.astype(np.float64)
    np.add.at(wanted, where, x.astype(np.float64))
    if places == 1 and dtype == tk.bfloat16:
        assert abs(wanted).max() < 256, "or the sum would not be exact"
    check(apply(add, y, x, where), wanted.astype(dtype))


@pytest.mark.parametrize(("kernel", "function"), [(raise_to, np.maximum), (lower_to, np.minimum)], ids=["max", "min"])
@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS], ids=str)
def test_extremes(device, dtype, kernel, function):
    y, x = sample(dtype, n=20), sample(dtype, 1, n=256)
    where = np.random.default_rng(3).integers(0, 20, 256).astype(np.int64)
    wanted = y.astype(np.float64) if dtype == tk.bfloat16 else y.copy()
    function.at(wanted, where, x.astype(wanted.dtype))
    check(apply(kernel, y, x, where), wanted.astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_stays(device, dtype):
    y = np.array([1, np.nan, 1, 1]).astype(dtype)
    x, where = np.full(64, 2).astype(dtype), np.arange(64).astype(np.int32) % 4
    x[2] = np.asarray(np.nan).astype(dtype)
    assert np.isnan(apply(raise_to, y, x, where).astype(np.float32)).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("kernel", "function"),
    [(clear, np.bitwise_and), (set_bits, np.bitwise_or), (flip, np.bitwise_xor)],
    ids=["and", "or", "xor"],
)
@pytest.mark.parametrize("dtype", WORDS, ids=str)
def test_bits(device, dtype, kernel, function):
    rng = np.random.default_rng(4)
    y, x = (rng.integers(0, 1 << 31, n).astype(dtype) for n in (20, 256))
    where = rng.integers(0, 20, 256).astype(np.int32)
    wanted = y.copy()
    function.at(wanted, where, x)
    check(apply(kernel, y, x, where), wanted)


@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS], ids=str)
def test_what_was_there_before(device, dtype):
    @tk.kernel
    def take(y: tk.InOut, before: tk.Out, where: tk.In):
        before.store(tk.atomic_add(y, tk.load(where, tk.bid(0), 64), 1))

    where = np.random.default_rng(5).permutation(256).astype(np.int32)
    y = whole(dtype, n=256)
    launch = take(api.from_host(y).scattered(), api.zeros(256, dtype).partition(64), api.from_host(where))
    after, before, _ = launch.sync()
    check(before.unpartition().to_host().sync(), y[where])
    check(after.unpartition().to_host().sync(), (y.astype(np.float64) + 1).astype(dtype))


@pytest.mark.parametrize("n", [1, 2, 16, 64, 256])
@pytest.mark.parametrize("dtype", [tk.float16, tk.int32, tk.float64], ids=str)
def test_all_copies_see_what_was_there(device, dtype, n):
    """Tiles smaller than the block, whose elements several threads hold."""

    @tk.kernel(num_warps=4)
    def take(y: tk.InOut, seen: tk.Out, n: tk.Const):
        before = tk.atomic_add(y, tk.arange(n), 1)
        seen.store(tk.broadcast_to(tk.sum(before.reshape((1, n)), 1, keepdims=True), (1, 256)))

    y = whole(dtype, n=n)
    after, seen, _ = take(api.from_host(y).scattered(), api.zeros((1, 256), dtype).partition((1, 256)), n).sync()
    total = y.astype(np.float64).sum()
    assert (seen.unpartition().to_host().sync().astype(np.float64) == total).all()
    check(after.unpartition().to_host().sync(), (y.astype(np.float64) + 1).astype(dtype))


def test_tickets(device):
    @tk.kernel
    def draw(counter: tk.InOut, y: tk.InOut, where: tk.Const):
        mine = tk.atomic_add(counter, where, 1)
        tk.scatter(y, mine, tk.bid(0))

    counter, y, _ = draw(api.zeros(3, tk.int32).scattered(), api.zeros(500, tk.int32).scattered(), 1).grid(500).sync()
    assert counter.unpartition().to_host().sync().tolist() == [0, 500, 0]
    assert sorted(y.unpartition().to_host().sync().tolist()) == list(range(500))


@pytest.mark.parametrize("dtype", [tk.int32, tk.uint64, tk.float32, tk.float64], ids=str)
def test_exchange(device, dtype):
    @tk.kernel
    def swap(y: tk.InOut, before: tk.Out, x: tk.In):
        t = tk.load_tile_like(x, before)
        before.store(tk.atomic_xchg(y, (tk.arange(64) + 64 * tk.bid(0),), t, mask=t > 0))

    y, x = sample(dtype, n=128), sample(dtype, 1, n=128)
    after, before, _ = swap(api.from_host(y).scattered(), api.zeros(128, dtype).partition(64), api.from_host(x)).sync()
    check(before.unpartition().to_host().sync(), np.where(x > 0, y, 0).astype(dtype))
    check(after.unpartition().to_host().sync(), np.where(x > 0, x, y))


@pytest.mark.parametrize("dtype", [tk.int32, tk.uint64, tk.float32, tk.float64], ids=str)
def test_compare_and_swap(device, dtype):
    @tk.kernel
    def swap(y: tk.InOut, before: tk.Out, expected: tk.In, x: tk.In):
        at = tk.arange(64) + 64 * tk.bid(0)
        before.store(tk.atomic_cas(y, at, tk.load_tile_like(expected, before), tk.load_tile_like(x, before)))

    y, x = sample(dtype, n=128), sample(dtype, 1, n=128)
    expected = np.where(sample(tk.bool_, n=128), y, (y + 1).astype(dtype))
    given = [api.from_host(a) for a in (expected, x)]
    after, before, *_ = swap(api.from_host(y).scattered(), api.zeros(128, dtype).partition(64), *given).sync()
    check(before.unpartition().to_host().sync(), y)
    check(after.unpartition().to_host().sync(), np.where(expected == y, x, y))


def test_blocks_take_turns_at_a_lock(device):
    """What one block wrote under the lock is seen by the next."""

    @tk.kernel
    def count(lock: tk.InOut, y: tk.InOut):
        while tk.atomic_cas(lock, 0, 0, 1, memory_order="acquire") != 0:
            pass
        place = tk.arange(64)
        tk.atomic_xchg(y, place, tk.atomic_add(y, place, 0) + 1)
        tk.atomic_xchg(lock, 0, 0, memory_order="release")

    _, y = count(api.zeros(1, tk.int32).scattered(), api.zeros(64, tk.int32).scattered()).grid(40).sync()
    assert y.unpartition().to_host().sync().tolist() == [40] * 64


@pytest.mark.parametrize("order", atomic.ORDERS)
@pytest.mark.parametrize("scope", atomic.SCOPES)
def test_orders_and_scopes(device, order, scope):
    @tk.kernel
    def last_adds_up(y: tk.InOut, parts: tk.InOut, done: tk.InOut, order: tk.Const, scope: tk.Const):
        tk.atomic_add(parts, tk.arange(32), 1, memory_order=order, memory_scope=scope)
        before = tk.atomic_add(done, 0, 1, memory_order="acq_rel")
        if before == tk.num_blocks(0) - 1:
            tk.store(y, 0, tk.sum(tk.atomic_add(parts, tk.arange(32), 0)))

    given = [api.zeros(n, tk.int32).scattered() for n in (1, 32, 1)]
    blocks = 1 if scope == "block" else 20
    y, *_ = last_adds_up(*given, order, scope).grid(blocks).sync()
    assert y.unpartition().to_host().sync().tolist() == [32 * blocks]


@pytest.mark.parametrize("shape", [(1, 256), (16, 32), (4, 64)], ids=str)
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.int32], ids=str)
def test_rows_are_added_to_a_table(device, dtype, shape):
    @tk.kernel
    def add_rows(table: tk.InOut, x: tk.In, ids: tk.In, m: tk.Const, n: tk.Const):
        rows, columns = tk.load(ids, tk.bid(0), m), tk.bid(1) * n + tk.arange(n)
        inside = (tk.bid(0) * m + tk.arange(m) < ids.shape[0])[:, None] & (columns < table.shape[1])
        tk.atomic_add(table, (rows[:, None], columns), tk.load(x, (tk.bid(0), tk.bid(1)), (m, n)), mask=inside)

    for width in (256, 100):
        table, x = whole(dtype, n=(20, width)), whole(dtype, 1, n=(45, width))
        ids = np.random.default_rng(6).integers(0, 20, 45).astype(np.int32)
        wanted = table.astype(np.float64)
        np.add.at(wanted, ids, x.astype(np.float64))
        given = [api.from_host(a) for a in (x, ids)]
        grid = (-(-45 // shape[0]), -(-width // shape[1]))
        launch = add_rows(api.from_host(table).scattered(), *given, *shape).grid(grid)
        check(launch.first().unpartition().to_host().sync(), wanted.astype(dtype))


def test_a_histogram_by_a_partition_and_a_slice(device):
    @tk.kernel
    def count(y: tk.InOut, x: tk.In):
        t = tk.load(x, tk.bid(0), 128)
        tk.atomic_add(y.slice(0, 10, 20), t, 1, mask=(t >= 0) & (t < 10))

    x = np.random.default_rng(7).integers(-3, 14, 512).astype(np.int32)
    found = count(api.zeros(30, tk.int32).scattered(), api.from_host(x)).grid(4).first().unpartition().to_host().sync()
    assert found.tolist() == [0] * 10 + np.bincount(x[(x >= 0) & (x < 10)], minlength=10).tolist() + [0] * 10


def test_dtypes_that_have_none(device):
    @tk.kernel
    def flip_float(y: tk.InOut):
        tk.atomic_xor(y, 0, 1.0)

    with pytest.raises(tk.CompileError) as caught:
        flip_float(api.zeros(4).scattered()).grid(1).sync()
    assert caught.value.reason == ("atomic_xor: y holds float32; there are atomics of this kind for int32, uint32, int64, uint64")

    @tk.kernel
    def add_bytes(y: tk.InOut):
        tk.atomic_add(y, 0, 1)

    with pytest.raises(tk.CompileError, match="atomic_add: y holds int8; there are atomics of this kind for int32"):
        add_bytes(api.zeros(4, tk.int8).scattered()).grid(1).sync()


def test_misuse(device):
    @tk.kernel
    def order(y: tk.InOut):
        tk.atomic_add(y, 0, 1.0, memory_order="seq_cst")

    with pytest.raises(tk.CompileError, match="memory_order is one of 'relaxed', 'acquire', 'release', 'acq_rel', not 'seq_cst'"):
        order(api.zeros(4).scattered()).grid(1).sync()

    @tk.kernel
    def write_only(y: tk.Out):
        tk.atomic_add(y, 0, 1.0)

    with pytest.raises(tk.CompileError, match="atomic_add: y is declared Out, which is written only; annotate it InOut"):
        write_only(api.zeros(4).scattered()).grid(1).sync()

    @tk.kernel
    def read_only(y: tk.In):
        tk.atomic_add(y, 0, 1.0)

    with pytest.raises(tk.CompileError, match="atomic_add: y is a tensor that is only read: writing needs a partition"):
        read_only(api.zeros(4)).grid(1).sync()
