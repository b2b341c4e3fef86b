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


def add_tiles(y, x, shape, grid, num_warps=4):
    """What y is after each block added its tile of x to it."""
    rank = len(shape)

    @tk.kernel(num_warps=num_warps)
    def add_tile(y: tk.InOut, x: tk.In, shape: tk.Const):
        at = (tk.bid(0), tk.bid(1), tk.bid(2))[: len(shape)]
        tk.atomic_add_tile(y, at, tk.load(x, at, shape))

    @tk.kernel(num_warps=num_warps)
    def add_tile_of_four(y: tk.InOut, x: tk.In, shape: tk.Const):
        at = (0, tk.bid(0), tk.bid(1), tk.bid(2))
        tk.atomic_add_tile(y, at, tk.load(x, at, shape))

    kernel = add_tile if rank < 4 else add_tile_of_four
    launch = kernel(api.from_host(y).scattered(), api.from_host(x), shape).grid(grid)
    return launch.first().unpartition().to_host().sync()


@pytest.mark.parametrize("n", [256, 252, 250, 201], ids=str)
@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS], ids=str)
def test_tiles_are_added(device, dtype, n):
    """Whole vectors, vectors that the edge cuts, and rows that begin anywhere; tiles inside, and at either edge."""
    y, x = whole(dtype, n=(70, n)), whole(dtype, 1, n=(70, n))
    wanted = (y.astype(np.float64) + x.astype(np.float64)).astype(dtype)
    check(add_tiles(y, x, (16, 64), (5, 4)), wanted)


@pytest.mark.parametrize(
    ("shape", "tile", "grid"),
    [
        ((1000,), (256,), (4,)),
        ((3, 5, 70), (2, 4, 32), (2, 2, 3)),
        ((1, 3, 20, 33), (1, 2, 8, 16), (2, 3, 3)),
        ((5,), (1,), (5,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_warps", [1, 8])
@pytest.mark.parametrize("dtype", [tk.float32, tk.float16, tk.int64], ids=str)
def test_tiles_of_any_rank_are_added(device, dtype, shape, tile, grid, num_warps):
    y, x = whole(dtype, n=shape), whole(dtype, 1, n=shape)
    wanted = (y.astype(np.float64) + x.astype(np.float64)).astype(dtype)
    check(add_tiles(y, x, tile, grid, num_warps), wanted)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS], ids=str)
def test_many_blocks_add_to_one_tile(device, dtype, num_warps):
    """A tile of which threads hold copies, and one that is larger than the block; sums that are exact in every dtype."""

    @tk.kernel(num_warps=num_warps)
    def total(y: tk.InOut, z: tk.InOut, x: tk.In):
        t = tk.load(x, (tk.bid(0), 0), (16, 64))
        tk.atomic_add_tile(y, (0, 1), t)
        tk.atomic_add_tile(z, 1, tk.sum(t.astype(tk.float32), 0).astype(z.dtype))

    y, z, x = whole(dtype, n=(16, 128)), whole(dtype, 1, n=128), (whole(dtype, 2, n=(8 * 16, 64)) > 0).astype(dtype)
    found = total(*(api.from_host(a).scattered() for a in (y, z)), api.from_host(x)).grid(8).sync()
    y, z, x = (a.astype(np.float64) for a in (y, z, x))
    y[:, 64:] += x.reshape(8, 16, 64).sum(0)
    z[64:] += x.sum(0)
    for one, wanted in zip(found[:2], (y, z), strict=True):
        check(one.unpartition().to_host().sync(), wanted.astype(dtype))


def test_one_element_and_another_dtype(device):
    """A tile of shape (); a narrower tile; the same value everywhere; a partition, whose tiles are of another shape."""

    @tk.kernel
    def add_each(y: tk.InOut, x: tk.In):
        tk.atomic_add_tile(y, (1, tk.bid(1)), tk.load(x, tk.bid(1), ()))
        tk.atomic_add_tile(y, (1, 0), tk.ones((2, 4), tk.float16))

    y = add_each(api.zeros((4, 4)).partition((4, 2)), api.arange(2, dtype=tk.float32)).first().unpartition().to_host().sync()
    assert y.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [2, 2, 2, 2], [2, 2, 2, 2]]


def test_products_are_added_up(device):
    """Blocks share a sum over K; elements lie as matrix instructions leave them."""

    @tk.kernel
    def split(y: tk.InOut, a: tk.In, b: tk.In):
        k = tk.bid(2)
        t = tk.mma(tk.load(a, (tk.bid(0), k), (64, 32)), tk.load(b, (k, tk.bid(1)), (32, 64)), tk.zeros((64, 64)))
        tk.atomic_add_tile(y, (tk.bid(0), tk.bid(1)), t)

    a, b = whole(tk.float16, n=(100, 128)), whole(tk.float16, 1, n=(128, 130))
    given = [api.from_host(x) for x in (a, b)]
    y = split(api.zeros((100, 130)).scattered(), *given).grid((2, 3, 4)).first().unpartition().to_host().sync()
    check(y, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_product_behind_atomics(device, dtype):
    """Threads go round their loops as often as each must; a warp is whole again where its matrix instruction stands."""

    @tk.kernel
    def both(most: tk.InOut, values: tk.In, a: tk.In, b: tk.In, y: tk.Out):
        place = (tk.arange(128) * 5 + 139) % 256
        tk.atomic_max(most, tk.zeros(128, tk.int32), tk.gather(values, (place,)))
        y.store(tk.mma(tk.load(a, (tk.bid(0), 0), (16, 4)), tk.load(b, (0, 0), (4, 1)), tk.arange(16)[:, None] % 7))

    rng = np.random.default_rng(0)
    values = whole(dtype, n=256)
    a, b = rng.integers(-4, 5, (32, 8)).astype(np.int8), rng.integers(0, 5, (8, 1)).astype(np.uint8)
    most, y = api.zeros(3, dtype).sync(), api.zeros((32, 1), tk.int32).sync()
    given = [api.from_host(x) for x in (values, a, b)]
    most, *_, y = both(most.scattered(), *given, y.partition((16, 1))).sync()
    expected = a[:, :4].astype(np.int32) @ b[:4].astype(np.int32) + (np.arange(32) % 16 % 7)[:, None]
    assert (y.unpartition().to_host().sync() == expected).all()
    chosen = values[(np.arange(128) * 5 + 139) % 256].astype(np.float32).max()
    assert most.unpartition().to_host().sync().astype(np.float32).tolist() == [max(0.0, float(chosen)), 0.0, 0.0]


def test_columns_are_added(device):
    """Where neighbours in memory are those of a column, and where there are none."""

    @tk.kernel
    def add_tile(y: tk.InOut, x: tk.In):
        at = (tk.bid(0), tk.bid(1))
        tk.atomic_add_tile(y, at, tk.load(x, at, (32, 16)))

    y, x = whole(tk.float32, n=(60, 40)), whole(tk.float32, 1, n=(60, 40))
    columns = api.from_host(np.ascontiguousarray(y.T)).sync().T
    found = add_tile(columns.scattered(), api.from_host(x)).grid((2, 3)).first().unpartition().to_host().sync()
    check(found, y + x)
    wide = api.from_host(np.repeat(y, 2, axis=1)).sync()
    add_tile(wide[:, ::2].scattered(), api.from_host(x)).grid((2, 3)).sync()
    again = wide.to_host().sync()
    check(again[:, ::2], y + x)
    check(again[:, 1::2], y)


def test_a_tile_of_a_slice_is_added(device):
    @tk.kernel
    def add_tile(y: tk.InOut, start):
        tk.atomic_add_tile(y.slice(0, start, start + 6), 0, tk.ones(8))

    found = add_tile(api.zeros(20).scattered(), 3).grid(2).first().unpartition().to_host().sync()
    assert found.tolist() == [0] * 3 + [2] * 6 + [0] * 11


@tk.kernel
def add_at(y: tk.InOut, i):
    tk.atomic_add_tile(y, i, tk.ones(4))


def test_a_tile_outside_is_an_error_on_the_cpu_device(cpu):
    for i in (-1, 3):
        with pytest.raises(
            tk.DeviceError, match=rf"atomic_add_tile: tile index \({i},\) is outside y, a tensor of shape \(10,\)"
        ):
            add_at(api.zeros(10).scattered(), i).grid(1).sync()
    assert add_at(api.zeros(10).scattered(), 2).grid(1).first().unpartition().to_host().sync().tolist() == [0] * 8 + [1] * 2


def test_what_nobody_has_written_is_not_added_to(checked):
    y = api.empty(8).sync()
    with pytest.raises(tk.DeviceError, match=r"atomic_add_tile: reads what was never written: y\[4:8\]"):
        add_at(y.scattered(), 1).grid(1).sync()


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

    @tk.kernel
    def add_tile_of_bytes(y: tk.InOut):
        tk.atomic_add_tile(y, 0, tk.ones(4, tk.int8))

    with pytest.raises(tk.CompileError, match="atomic_add_tile: y holds int8; there are atomics of this kind for int32"):
        add_tile_of_bytes(api.zeros(4, tk.int8).scattered()).grid(1).sync()


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
