"""What moves elements between tensors and tiles: exact, for every dtype, at edges, through views, slices and indices."""

import itertools

import numpy as np
import pytest
from parity import check, run, sample

import tilekit as tk
from tilekit import api, dtypes

M, N, S, T = tk.generics("M N S T")
MOVED = [tk.bool_, tk.int8, tk.uint16, tk.float16, tk.bfloat16, tk.float32, tk.int64, tk.float8_e5m2]
SHAPES = [(1, 1), (4, 64), (16, 16), (64, 32), (128, 2)]


def padded(x, shape, start, value=0):
    """The window of `x` of that shape from `start` on; `value` beyond the edge."""
    made = np.full(shape, np.asarray(value).astype(x.dtype), x.dtype)
    inside = x[tuple(slice(at, at + n) for at, n in zip(start, shape, strict=True))]
    made[tuple(map(slice, inside.shape))] = inside
    return made


# ---------------------------------------------------------------------------------------------------------- loads and stores


@tk.kernel
def turned_load(y: tk.Out[M, N], x: tk.In, order: tk.Const):
    y.store(tk.load(x, (tk.bid(0), tk.bid(1)), (M, N), order=order))


@pytest.mark.parametrize("order", ["C", "F", (1, 0), (0, -1)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_load_with_an_order(device, dtype, shape, order):
    ragged = tuple(n * 2 - n // 2 for n in shape)
    turns = order in ("F", (1, 0))
    x = sample(dtype, n=ragged[::-1] if turns else ragged)
    check(run(turned_load, dtype, x, order, n=ragged, tile=shape), x.T if turns else x)


@tk.kernel
def turned_store(y: tk.Out[M, N], x: tk.In):
    tk.store(y, (tk.bid(1), tk.bid(0)), tk.load(x, (tk.bid(1), tk.bid(0)), (N, M)), order="F")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.float32], ids=str)
def test_store_with_an_order(device, dtype, shape):
    x = sample(dtype, n=(shape[1] * 2 - 1, shape[0] * 2))
    check(run(turned_store, dtype, x, n=x.shape[::-1], tile=shape), x.T)


def test_orders_of_three_dimensions(device):
    @tk.kernel
    def turn(y: tk.Out, x: tk.In):
        t = tk.load(x, (tk.bid(0), tk.bid(1), tk.bid(2)), (4, 8, 16), order=(2, 0, 1))
        tk.store(y, (tk.bid(1), tk.bid(2), tk.bid(0)), tk.permute(t, (1, 2, 0)), order=(1, 2, 0))

    x = sample(tk.float32, n=(13, 20, 7))
    check(run(turn, tk.float32, x, n=(7, 13, 20), tile=(4, 8, 16)), x.transpose(2, 0, 1))


@tk.kernel
def hinted(y: tk.InOut, z: tk.Out, x: tk.In, policy: tk.Const):
    own = y.load(eviction_policy=policy) + tk.load_tile_like(x, y, eviction_policy=policy)
    other = tk.load(x, 0, 64, eviction_policy=policy) + x.tiled_view(64).load(tk.bid(0), eviction_policy=policy)
    place = tk.bid(0) * 64 + tk.arange(64)
    inside = place < x.shape[0]
    y.store(own + other + tk.gather(x, place, mask=inside, eviction_policy=policy), eviction_policy=policy)
    if policy == "evict_last":
        tk.scatter(z, place, tk.load_tile_like(x, y), mask=inside, eviction_policy=policy)
    elif policy == "evict_first":
        z.tiled_view(64).store(tk.bid(0), tk.load_tile_like(x, y), eviction_policy=policy)
    else:
        tk.store(z, tk.bid(0), tk.load_tile_like(x, y), mask=tk.arange(64) >= 0, eviction_policy=policy)


@pytest.mark.parametrize("policy", ["evict_normal", "evict_first", "evict_last", "no_allocate"])
@pytest.mark.parametrize("n", [256, 250, 201])
@pytest.mark.parametrize("dtype", [tk.float16, tk.int32, tk.float64], ids=str)
def test_hints_to_the_caches_change_nothing(device, dtype, n, policy):
    x, y = sample(dtype, n=n), sample(dtype, 1, n=n)
    z = api.zeros(n, dtype).partition(64)
    made, copied, *_ = hinted(api.from_host(y).sync().partition(64), z, api.from_host(x), policy).sync()
    first = np.resize(x[:64], n)
    wanted = ((y + x) + (first + x)) + x
    check(made.unpartition().to_host().sync(), wanted)
    check(copied.unpartition().to_host().sync(), x)


@tk.kernel
def first_tiles(y: tk.Out, x: tk.In):
    y.store(tk.load(x, 0, 64) + tk.load(x, 1, 64))


@pytest.mark.parametrize("n", [64, 65, 100, 128, 192, 256])
def test_an_index_that_is_a_constant(device, n):
    x = sample(tk.int32, n=n)
    if n == 64 and device.kind == "cpu":
        with pytest.raises(tk.DeviceError, match=r"load: tile index \(1,\) is outside x"):
            run(first_tiles, tk.int32, x, n=64)
        return
    second = np.zeros(64, np.int32)
    second[: min(n, 128) - 64] = x[64:128]
    check(run(first_tiles, tk.int32, x, n=64), x[:64] + second)


def test_a_tensor_without_elements_has_no_first_tile(device):
    """It gives padding, though its extent is a multiple of the tile's."""
    y = api.ones(64, tk.int32).partition(64)
    assert not first_of(y, api.zeros(0, tk.int32)).first().unpartition().to_host().sync().any()


@tk.kernel
def first_of(y: tk.Out, x: tk.In):
    y.store(tk.load(x, 0, 64))


@tk.kernel
def some(y: tk.Out, x: tk.In, keep: tk.In, value):
    t = tk.load(x, tk.bid(0), 64, mask=tk.load_tile_like(keep, y, padding_mode="zero"), padding_value=value)
    y.store(t)


@pytest.mark.parametrize("dtype", [tk.int8, tk.int32, tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=str)
def test_a_masked_load(device, dtype):
    x, keep = sample(dtype, n=101), sample(tk.bool_, n=150)
    wanted = np.where(keep[:101], x, np.asarray(7).astype(dtype))
    wanted = np.concatenate([wanted, np.full(27, np.asarray(7).astype(dtype))])
    check(run(some, dtype, x, keep, 7, n=128), wanted)


def test_a_masked_load_without_a_value(device):
    @tk.kernel
    def rows(y: tk.Out, x: tk.In):
        y.store(tk.load(x, (0, 0), (16, 32), mask=(tk.arange(16) < 5)[:, None]))

    x = sample(tk.float32, n=(16, 32))
    check(run(rows, tk.float32, x, n=(16, 32), tile=(16, 32)), np.where(np.arange(16)[:, None] < 5, x, np.float32(0)))


@tk.kernel
def keep_some(y: tk.InOut, x: tk.In, keep: tk.In):
    tk.store(y, tk.bid(0), tk.load_tile_like(x, y), mask=tk.load_tile_like(keep, y))


@pytest.mark.parametrize("chosen", ["some", "all", "none", "runs"])
@pytest.mark.parametrize("dtype", [tk.bool_, tk.int8, tk.float16, tk.float32, tk.float64], ids=str)
def test_a_masked_store(device, dtype, chosen):
    y, x = sample(dtype, n=250), sample(dtype, 1, n=250)
    keep = {
        "some": sample(tk.bool_, n=250),
        "all": np.ones(250, bool),
        "none": np.zeros(250, bool),
        "runs": np.arange(250) // 8 % 3 > 0,
    }[chosen]
    given = api.from_host(y).sync().partition(128)
    found = keep_some(given, api.from_host(x), api.from_host(keep)).first().unpartition().to_host().sync()
    check(found, np.where(keep, x, y))


def test_elements(device):
    @tk.kernel
    def pick(y: tk.Out, x: tk.In, i):
        t = tk.load(x, (i, tk.bid(0)), ())
        y.store(t + tk.load(x, (0, t.item() * 0), shape=()))

    x = sample(tk.int32, n=(3, 40))
    check(run(pick, tk.int32, x, 2, n=40, tile=1), x[2] + x[0, 0])


def test_a_tile_of_shape_nothing_fills_a_tile(device):
    @tk.kernel
    def totals(y: tk.Out, x: tk.In):
        y.store(tk.sum(tk.load(x, tk.bid(0), 64)))

    x = sample(tk.int32, n=192)
    check(run(totals, tk.int32, x, n=12, tile=4), np.repeat(x.reshape(3, 64).sum(axis=1, dtype=np.int32), 4))


@pytest.mark.parametrize("order", ["C", "F"])
def test_num_tiles(device, order):
    @tk.kernel
    def count(y: tk.Out, x: tk.In, order: tk.Const):
        tk.store(y, 0, tk.num_tiles(x, 0, (8, 32), order=order))
        tk.store(y, 1, tk.num_tiles(x, -1, (8, 32), order=order))
        tk.store(y, 2, x.tiled_view((8, 32), traversal_steps=(3, 64)).num_tiles(0))
        tk.store(y, 3, x.tiles((8, 32)).shape[1])

    y = api.zeros(4, tk.int32).sync()
    x = api.zeros((50, 100)).sync()
    made = count(y.scattered(), x, order).grid(1).first().unpartition().to_host().sync()
    assert made.tolist() == [*((7, 4) if order == "C" else (13, 2)), 17, 4]


@pytest.mark.parametrize("mode", list(tk.PaddingMode))
@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64, tk.float8_e4m3fn, tk.float8_e5m2], ids=str)
def test_padding_modes(device, dtype, mode):
    @tk.kernel
    def pad(y: tk.Out, x: tk.In, mode: tk.Const):
        y.store(tk.load(x, tk.bid(0), 64, padding_mode=mode))

    x = sample(dtype, n=37)
    if dtype == tk.float8_e4m3fn and mode in ("inf", "-inf"):
        with pytest.raises(tk.CompileError, match=f"load: padding_mode '{mode}' of x: float8_e4m3fn has no infinities"):
            run(pad, dtype, x, mode, n=64)
        return
    value = {"zero": 0.0, "neg_zero": -0.0, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}[mode]
    wanted = padded(x, (64,), (0,), value)
    found = run(pad, dtype, x, mode, n=64)
    as_bits = f"u{dtype.itemsize}"
    if mode == "nan":
        assert np.isnan(found[37:].astype(np.float32)).all()
        found, wanted = found[:37], wanted[:37]
    np.testing.assert_array_equal(found.view(as_bits), wanted.view(as_bits))


@pytest.mark.parametrize("dtype", [tk.bool_, tk.int32, tk.uint8], ids=str)
def test_padding_of_integers_is_zero(device, dtype):
    @tk.kernel
    def pad(y: tk.Out, x: tk.In):
        y.store(tk.load(x, tk.bid(0), 64, padding_mode="-inf"))

    with pytest.raises(tk.CompileError) as caught:
        run(pad, dtype, sample(dtype, n=37), n=64)
    assert caught.value.reason == f"load: padding_mode '-inf' needs a floating-point tensor; x is {dtype.name}"


# -------------------------------------------------------------------------------------------------------------------- views


@tk.kernel
def windows(y: tk.Out[M], x: tk.In, steps: tk.Const):
    view = x.tiled_view(M, "neg_zero", steps)
    y.store(view.load(tk.bid(0)))


@pytest.mark.parametrize(("tile", "step"), [(64, 64), (64, 16), (64, 100), (4, 3), (128, 8), (1, 5), (256, 2), (32, 1)])
@pytest.mark.parametrize("dtype", [tk.float16, tk.float32, tk.float64], ids=str)
def test_windows_overlap_and_leave_gaps(device, dtype, tile, step):
    x = sample(dtype, n=411)
    count = -(-411 // step)
    wanted = np.concatenate([padded(x, (tile,), (i * step,), -0.0) for i in range(count)])
    check(run(windows, dtype, x, step, n=tile * count, tile=tile), wanted)


def test_windows_of_two_dimensions(device):
    @tk.kernel
    def blur(y: tk.Out, x: tk.In):
        total = tk.zeros((8, 16), tk.int32)
        for i in range(3):
            for j in range(3):
                part = x.slice(0, i, x.shape[0]).slice(1, j, x.shape[1])
                total += part.tiled_view((8, 16)).load((tk.bid(0), tk.bid(1)))
        y.store(total)

    x = sample(tk.int32, n=(36, 55))
    wanted = sum(padded(x, (30, 50), (i, j)) for i in range(3) for j in range(3))
    check(run(blur, tk.int32, x, n=(30, 50), tile=(8, 16)), wanted)


@pytest.mark.parametrize("steps", [(4, 8), (6, 8), (8, 16)], ids=str)
def test_stores_through_a_view(device, steps):
    @tk.kernel
    def spread(y: tk.InOut, x: tk.In, steps: tk.Const):
        view = y.tiled_view((4, 8), traversal_steps=steps)
        i, j = tk.bid(0), tk.bid(1)
        view.store((i, j), tk.load(x, (i, j), view.tile_shape))

    x, y = sample(tk.float32, n=(40, 48)), np.zeros((37, 45), np.float32)
    counts = tuple(-(-n // step) for n, step in zip(y.shape, steps, strict=True))
    wanted = y.copy()
    for i in range(counts[0]):
        for j in range(counts[1]):
            place = slice(i * steps[0], i * steps[0] + 4), slice(j * steps[1], j * steps[1] + 8)
            there = wanted[place]
            wanted[place] = x[4 * i :, 8 * j :][: there.shape[0], : there.shape[1]]
    given = api.from_host(y).sync().scattered()
    check(spread(given, api.from_host(x), steps).grid(counts).first().unpartition().to_host().sync(), wanted)


def test_a_view_of_elements(device):
    @tk.kernel
    def pick(y: tk.Out, x: tk.In):
        view = x.tiled_view((), traversal_steps=(3, 5))
        y.store(view.load((tk.bid(0), tk.bid(1))).reshape((1, 1)))

    x = sample(tk.float16, n=(10, 21))
    check(run(pick, tk.float16, x, n=(4, 5), tile=(1, 1)), x[::3, ::5])


@tk.kernel
def multiply(c: tk.Out[M, N], a: tk.In, b: tk.In):
    i, j = tk.bid(0), tk.bid(1)
    total = tk.zeros((M, N), tk.int32)
    for row in a.tiles((M, S))[i, :]:
        total += tk.sum(row, 1)[:, None]
    for column in b.tiles((T, N))[:, j]:
        total += tk.sum(column, 0)[None, :]
    c.store(total + a.tiles((M, N))[i, j])


@pytest.mark.parametrize(("s", "t"), [(16, 8), (4, 64), (128, 2)])
def test_rows_and_columns_of_tiles(device, s, t):
    a, b = sample(tk.int32, n=(50, 70)), sample(tk.int32, 1, n=(33, 70))
    wanted = (a.sum(axis=1)[:, None] + b.sum(axis=0)[None, :] + a).astype(np.int32)
    given = [api.from_host(x) for x in (a, b)]
    launch = multiply(api.zeros(wanted.shape, tk.int32).partition((16, 32)), *given).generics(S=s, T=t)
    check(launch.first().unpartition().to_host().sync(), wanted)


def test_parts_of_a_grid_of_tiles(device):
    @tk.kernel
    def add(y: tk.Out, x: tk.In, low, high):
        total = tk.zeros((2, 4), tk.int32)
        tiles = x.tiles((2, 4))
        for t in tiles[low:high, 1:]:
            total += t
        for t in tiles[tk.bid(0), -2:]:
            total += 100 * t
        for t in tiles:
            total += 10000 * t
        y.store(total)

    x = sample(tk.int32, n=(8, 20))
    blocks = x.reshape(4, 2, 5, 4).transpose(0, 2, 1, 3)
    for low, high in [(0, 4), (1, 3), (2, 2), (3, 99), (-3, -1), (3, 1)]:
        whole = 10000 * blocks.sum(axis=(0, 1)) + blocks[low:high, 1:].sum(axis=(0, 1))
        wanted = np.concatenate([whole + 100 * blocks[i, -2:].sum(axis=0) for i in range(4)]).astype(np.int32)
        check(run(add, tk.int32, x, low, high, n=(8, 4), tile=(2, 4)), wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [tk.int8, tk.float32], ids=str)
def test_slices(device, dtype, axis):
    @tk.kernel
    def part(y: tk.Out, x: tk.In, axis: tk.Const, start, stop):
        y.store(tk.load(x.slice(axis, start, stop), (tk.bid(0), tk.bid(1)), (8, 16)))

    x = sample(dtype, n=(40, 60))
    for start, stop in [(0, 40), (3, 17), (8, 24), (16, 40), (11, 12)]:
        wanted = x[start:stop] if axis == 0 else x[:, start:stop]
        check(run(part, dtype, x, axis, start, stop, n=wanted.shape, tile=(8, 16)), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_slices_to_the_end(device, axis):
    @tk.kernel
    def rest(y: tk.Out, x: tk.In, axis: tk.Const, start):
        part = x.slice(axis, start).slice(1 - axis, 2, None).slice(axis, 1)
        tk.store(y.slice(axis, 3), (0, 0), tk.load(part, (0, 0), (32, 64)))

    x = sample(tk.int32, n=(29, 50))
    for start in (0, 5, 20):
        wanted, y = np.zeros((29, 50), np.int32), api.zeros((29, 50), tk.int32).sync()
        part = x[start + 1 :, 2:] if axis == 0 else x[2:, start + 1 :]
        room = wanted[3:] if axis == 0 else wanted[:, 3:]
        shape = tuple(min(pair) for pair in zip(part.shape, room.shape, strict=True))
        room[: shape[0], : shape[1]] = part[: shape[0], : shape[1]]
        rest(y.scattered(), api.from_host(x), axis, start).grid(1).sync()
        check(y.to_host().sync(), wanted)


def test_segments_of_a_length_of_their_own(device):
    @tk.kernel
    def sums(y: tk.Out, x: tk.In, starts: tk.In):
        i = tk.bid(0)
        segment = x.slice(0, tk.load(starts, i, ()), tk.load(starts, i + 1, ()))
        total = tk.zeros(16, tk.int32)
        for t in segment.tiles(16):
            total += t
        y.store(tk.sum(total))

    x, starts = sample(tk.int32, n=200), np.array([0, 7, 7, 50, 113, 200], np.int32)
    wanted = np.array([x[a:b].sum() for a, b in itertools.pairwise(starts)], np.int32)
    check(run(sums, tk.int32, x, starts, n=5, tile=1), wanted)


# ------------------------------------------------------------------------------------------------------- gather and scatter


@tk.kernel
def take(y: tk.Out, x: tk.In, where: tk.In):
    y.store(tk.gather(x, tk.load_tile_like(where, y)))


@pytest.mark.parametrize("kind", [tk.int8, tk.uint8, tk.int32, tk.uint32, tk.int64], ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_gather(device, dtype, kind):
    x, where = sample(dtype, n=120), np.random.default_rng(0).integers(0, 120, 128).astype(kind)
    check(run(take, dtype, x, where, n=128), x[where])


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 63, 100])
@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.float32, tk.float64], ids=str)
def test_gather_of_neighbours(device, dtype, shift):
    @tk.kernel
    def move(y: tk.Out, x: tk.In, shift):
        place = tk.bid(0) * 64 + tk.arange(64) + shift
        y.store(tk.gather(x, place, mask=place < x.shape[0], padding_value=3))

    x = sample(dtype, n=200)
    wanted = np.full(256, np.asarray(3).astype(dtype))
    wanted[: 200 - shift] = x[shift:]
    check(run(move, dtype, x, shift, n=256), wanted)


@pytest.mark.parametrize("shape", [(1, 64), (8, 16), (64, 4)], ids=str)
@pytest.mark.parametrize("dtype", [tk.float16, tk.float32, tk.int64], ids=str)
def test_rows_of_a_table(device, dtype, shape):
    @tk.kernel
    def embed(y: tk.Out[M, N], table: tk.In, ids: tk.In):
        rows, columns = tk.load(ids, tk.bid(0), M), tk.bid(1) * N + tk.arange(N)
        chosen = (rows >= 0)[:, None] & (columns < table.shape[1])
        y.store(tk.gather(table, (rows[:, None], columns[None, :]), mask=chosen, padding_value=-1))

    table, ids = sample(dtype, n=(77, 100)), np.random.default_rng(1).integers(-5, 77, 128).astype(np.int32)
    wanted = np.where(ids[:, None] >= 0, table[ids], np.asarray(-1).astype(dtype))
    check(run(embed, dtype, table, ids, n=(128, 100), tile=shape), wanted)


def test_gather_along_both_dimensions(device):
    @tk.kernel
    def pick(y: tk.Out, x: tk.In, rows: tk.In, columns: tk.In):
        t = tk.gather(x, (tk.load(rows, tk.bid(0), 16)[:, None], tk.load(columns, tk.bid(1), 8)))
        y.store(t + tk.gather(x, (1, tk.bid(1))))

    rng = np.random.default_rng(2)
    x, rows, columns = sample(tk.int32, n=(20, 30)), rng.integers(0, 20, 32), rng.integers(0, 30, 16)
    given = [a.astype(np.int32) for a in (rows, columns)]
    wanted = x[rows[:, None], columns] + np.repeat(x[1, :2], 8)
    check(run(pick, tk.int32, x, *given, n=(32, 16), tile=(16, 8)), wanted)


@pytest.mark.gpu
def test_indices_outside_are_padding_and_dropped(device):
    """An error on the CPU device; a GPU compares them with the extents."""

    @tk.kernel
    def move(y: tk.InOut, x: tk.In, where: tk.In):
        at = tk.load(where, tk.bid(0), 64)
        t = tk.gather(x, at, padding_value=9)
        tk.scatter(y, tk.arange(64) + 64 * tk.bid(0), t)
        tk.scatter(y, at + 1000000, t)
        tk.atomic_add(y, at - 1000000, t)

    rng = np.random.default_rng(3)
    x, where = sample(tk.int32, n=50), rng.integers(-60, 110, 128).astype(np.int32)
    wanted = np.where((where >= 0) & (where < 50), x[np.clip(where, 0, 49)], 9)
    found = move(api.zeros(128, tk.int32).scattered(), api.from_host(x), api.from_host(where)).grid(2)
    check(found.first().unpartition().to_host().sync(), wanted)


@tk.kernel
def place(y: tk.InOut, x: tk.In, where: tk.In, keep: tk.In):
    at = tk.load(where, tk.bid(0), 64)
    tk.scatter(y, at, tk.load(x, tk.bid(0), 64), mask=tk.load(keep, tk.bid(0), 64))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_scatter(device, dtype):
    y, x = sample(dtype, n=300), sample(dtype, 1, n=256)
    where, keep = np.random.default_rng(4).permutation(300)[:256].astype(np.int32), sample(tk.bool_, n=256)
    given = [api.from_host(a) for a in (x, where, keep)]
    found = place(api.from_host(y).scattered(), *given).grid(4).first().unpartition().to_host().sync()
    wanted = y.copy()
    wanted[where[keep]] = x[keep]
    check(found, wanted)


@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("dtype", [tk.int8, tk.float16, tk.float32, tk.float64], ids=str)
def test_scatter_of_neighbours(device, dtype, shift):
    @tk.kernel
    def move(y: tk.Out, x: tk.In, shift):
        place = tk.bid(0) * 64 + tk.arange(64) + shift
        tk.scatter(y, place, tk.load(x, tk.bid(0), 64), mask=place < y.shape[0])

    x = sample(dtype, n=192)
    found = move(api.zeros(180, dtype).scattered(), api.from_host(x), shift).grid(3).first().unpartition().to_host().sync()
    check(found, np.concatenate([np.zeros(shift, dtype), x])[:180])


def test_scatter_of_rows_and_of_one_value(device):
    @tk.kernel
    def put(y: tk.InOut, x: tk.In, ids: tk.In):
        rows = tk.load(ids, tk.bid(0), 8)
        tk.scatter(y, (rows[:, None], tk.arange(32)), tk.load(x, tk.bid(0), 8)[:, None])
        tk.scatter(y, (rows, 40), -1.0)
        tk.scatter(y, (tk.bid(0), 41), tk.bid(0) * 1.0)

    x, ids = sample(tk.float32, n=16), np.random.default_rng(5).permutation(20)[:16].astype(np.int32)
    found = put(api.zeros((20, 42)).scattered(), api.from_host(x), api.from_host(ids)).grid(2).first().unpartition()
    wanted = np.zeros((20, 42), np.float32)
    wanted[ids, :32], wanted[ids, 40], wanted[:2, 41] = x[:, None], -1, [0, 1]
    check(found.to_host().sync(), wanted)


@pytest.mark.parametrize("n", [256, 2048])
def test_a_block_sees_what_it_wrote(device, n):
    """Other threads of the block wrote what is read, or read what is written."""

    @tk.kernel(num_warps=8)
    def turn(y: tk.InOut, z: tk.Out, x: tk.In):
        place = tk.arange(z.tile_shape[0])
        back = z.tile_shape[0] - 1 - place
        tk.scatter(y, place, -1)
        tk.scatter(y, back, tk.load(x, 0, z.tile_shape))
        t = tk.gather(y, place ^ 63)
        tk.scatter(y, place, tk.gather(y, back) + t)
        tk.atomic_add(y, back, 1)
        z.store(tk.load(y, 0, z.tile_shape))

    x = sample(tk.int32, n=n)
    given = api.zeros(n, tk.int32).scattered(), api.zeros(n, tk.int32).partition(n), api.from_host(x)
    found = turn(*given).sync()[1].unpartition().to_host().sync()
    check(found, x + x[::-1][np.arange(n) ^ 63] + 1)


@pytest.mark.parametrize("shape", [(16, 16), (64, 64)], ids=str)
def test_a_tile_is_turned_in_place(device, shape):
    @tk.kernel(num_warps=8)
    def turn(y: tk.InOut):
        y.store(tk.transpose(y.load()))
        y.store(y.load() + 1)

    y = sample(tk.float32, n=shape)
    check(turn(api.from_host(y).partition(shape)).first().unpartition().to_host().sync(), y.T + 1)


def test_every_dtype_is_moved_by_these_tests():
    assert set(MOVED) <= set(dtypes.ALL)
    assert {d.itemsize for d in MOVED} == {1, 2, 4, 8}
