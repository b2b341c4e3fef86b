"""Mapped partitions and the persistent kernels that visit them, on the device under test."""

import asyncio

import numpy as np
import pytest
from fake_gpu import fake_device, fake_gpu
from tiled import copy, expected_places, host, mark, numbers, order, places, refuse, scale

import tilekit as tk
from tilekit import api
from tilekit._tensor.partition import MappedPartition, PrefixPartition

CASES = [
    ((1,), (1,), (1,), 1),
    ((1000,), (16,), (1,), 7),
    ((1000,), (16,), (5,), 200),
    ((64, 64), (8, 8), (1, 1), 5),
    ((64, 64), (8, 8), (4, 1), 132),
    ((63, 50), (8, 4), (4, 1), 3),
    ((63, 50), (8, 4), (1, 3), 13),
    ((63, 50), (8, 4), (3, 5), 1),
    ((63, 50), (8, 4), (100, 100), 6),
    ((7, 9, 11), (2, 4, 4), (2, 1, 2), 5),
    ((7, 9, 11), (2, 4, 4), (3, 2, 2), 9),
    ((3, 4, 5, 6), (1, 2, 2, 4), (2, 1, 2, 1), 4),
    ((3, 4, 5, 6), (1, 2, 2, 4), (1, 2, 1, 2), 11),
]


def random_cases(n, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        rank = int(rng.integers(1, 5))
        draw = lambda low, high, rank=rank: tuple(map(int, rng.integers(low, high, rank)))  # noqa: E731
        yield draw(1, (200, 40, 14, 9)[rank - 1]), tuple(2**k for k in draw(0, 4)), draw(1, 6), int(rng.integers(1, 20))


@pytest.mark.parametrize(("shape", "tile", "group", "blocks"), [*CASES, *random_cases(20, 1)])
def test_each_tile_is_visited_once_and_in_order(device, shape, tile, group, blocks):
    y = api.zeros(shape, tk.int64).sync()
    mapped = y.partition(tile).map(group=group, num_blocks=blocks)
    assert places(mapped).sync() == (mapped,)
    np.testing.assert_array_equal(host(y), expected_places(shape, tile, group))
    assert mapped.order() == order(mapped.grid, group)


def test_each_tile_is_visited_once_in_many_more_cases(device):
    if device.kind == "cuda":
        pytest.skip("a kernel is compiled for each case: the cases above, and tests/compiler/test_mapped.py for the order")
    for shape, tile, group, blocks in random_cases(400, 2):
        y = api.zeros(shape, tk.int64).sync()
        places(y.partition(tile).map(group=group, num_blocks=blocks)).sync()
        np.testing.assert_array_equal(host(y), expected_places(shape, tile, group), err_msg=str((shape, tile, group, blocks)))


CLUSTERED = [
    ((1024,), (16,), (1,), 8, (4,)),
    ((1000,), (16,), (5,), 9, (3,)),
    ((64, 64), (8, 8), (1, 1), 6, (2, 1)),
    ((64, 64), (8, 8), (4, 1), 132, (1, 2)),
    ((64, 64), (8, 8), (3, 1), 4, (2, 1)),
    ((63, 50), (8, 4), (3, 5), 2, (2, 1)),
    ((48, 50), (8, 4), (2, 2), 12, (3, 1)),
    ((64, 64), (8, 8), (100, 100), 16, (4, 2)),
    ((7, 9, 16), (2, 4, 4), (2, 1, 2), 4, (2, 1, 2)),
    ((4, 4, 6, 8), (1, 2, 2, 4), (1, 2, 1, 2), 8, (2, 2, 1, 2)),
]


@pytest.mark.parametrize(("shape", "tile", "group", "blocks", "cluster"), CLUSTERED)
def test_each_tile_is_visited_once_and_cluster_by_cluster(device, shape, tile, group, blocks, cluster):
    y = api.zeros(shape, tk.int64).sync()
    mapped = y.partition(tile).map(group=group, num_blocks=blocks, cluster=cluster)
    if mapped.cluster is None:  # one of the cases does not divide
        assert any(n % c for n, c in zip(mapped.grid, cluster, strict=True))
        cluster = None
    assert places(mapped).sync() == (mapped,)
    np.testing.assert_array_equal(host(y), expected_places(shape, tile, group, cluster))
    assert mapped.order() == order(mapped.grid, group, cluster)
    assert sorted(mapped.order()) == list(np.ndindex(mapped.grid))


def test_blocks_of_a_cluster_visit_neighbours_at_the_same_time():
    mapped = api.meta((64, 96)).partition((8, 8)).map(group=(4, 1), num_blocks=4, cluster=(1, 2))
    assert mapped.order()[:6] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    by_block = [mapped.order()[block::4] for block in range(4)]
    for first, second in (by_block[:2], by_block[2:]):
        assert second == [(i, j + 1) for i, j in first]
        assert all(j % 2 == 0 for _, j in first)


@pytest.mark.parametrize(
    ("grid", "blocks", "cluster", "kept"),
    [
        ((8, 8), 132, (2, 1), (2, 1)),
        ((8, 8), 8, (2, 4), (2, 4)),
        ((9, 8), 132, (2, 1), None),  # tiles along the dimension
        ((9, 8), 132, (1, 2), (1, 2)),
        ((8, 8), 131, (2, 1), None),  # blocks
        ((8, 8), 6, (2, 2), None),
        ((8, 8), 132, (1, 1), None),
        ((8, 8), 132, None, None),
        ((0, 8), 132, (2, 1), (2, 1)),  # no tiles at all
    ],
)
def test_where_tiles_or_blocks_do_not_divide_there_are_no_clusters(grid, blocks, cluster, kept):
    tiles = api.meta(tuple(8 * n for n in grid)).partition((8, 8))
    mapped = tiles.map(group=(4, 1), num_blocks=blocks, cluster=cluster)
    assert mapped.cluster == kept
    shown = "" if kept is None else f", cluster={kept}"
    assert repr(mapped).endswith(f".map(group=(4, 1), num_blocks={blocks}{shown})")
    plain = tiles.map(group=(4, 1), num_blocks=blocks)
    assert (mapped.traits is plain.traits) == (kept is None), "a launch depends on whether there are clusters"
    if kept is None:
        assert mapped.order() == plain.order()


@pytest.mark.parametrize("shared", [2, 3, 8])
def test_tiles_that_several_blocks_visit_together_are_visited_once(device, shared):
    y = api.zeros((64, 50), tk.int64).sync()
    tiles = y.partition((16, 16))
    mapped = tiles.map(group=(2, 1), num_blocks=shared * 17, blocks_per_tile=shared)
    assert mapped.blocks_per_tile == shared
    places(mapped).sync()
    np.testing.assert_array_equal(host(y), expected_places((64, 50), (16, 16), (2, 1), None))


@pytest.mark.parametrize(("blocks", "shared", "kept"), [(64, 4, 4), (63, 4, 1), (60, 4, 1), (66, 4, 1), (128, 8, 8), (1, 1, 1)])
def test_where_blocks_are_too_few_none_share_a_tile(blocks, shared, kept):
    tiles = api.meta((64, 64)).partition((16, 16))
    mapped = tiles.map(num_blocks=blocks, blocks_per_tile=shared)
    assert mapped.blocks_per_tile == kept
    shown = "" if kept == 1 else f", blocks_per_tile={kept}"
    assert repr(mapped).endswith(f".map(group=(1, 1), num_blocks={blocks}{shown})")
    assert (mapped.traits is tiles.map(num_blocks=blocks).traits) == (kept == 1)


@pytest.mark.parametrize("wrong", [0, 9, -1, True, 2.0, "2"])
def test_how_many_blocks_visit_a_tile_is_from_1_to_8(wrong):
    with pytest.raises(ValueError, match=rf"^blocks_per_tile is an int from 1 to 8, not {wrong!r}$"):
        api.meta((64, 64)).partition((16, 16)).map(num_blocks=64, blocks_per_tile=wrong)


def test_blocks_share_a_tile_or_visit_several_together():
    tiles = api.meta((64, 64)).partition((16, 16))
    with pytest.raises(ValueError, match=r"blocks_per_tile is 4, and cluster \(2, 1\): blocks share a tile, or visit several"):
        tiles.map(num_blocks=64, cluster=(2, 1), blocks_per_tile=4)


@pytest.mark.parametrize("blocks", [1, 3, 132, None])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((1000,), (64,)), ((37, 61), (8, 16)), ((64, 64), (16, 16)), ((5, 6, 7), (2, 2, 4)), ((2, 3, 4, 5), (1, 2, 4, 4))],
)
def test_a_persistent_kernel_equals_numpy(device, shape, tile, blocks):
    x = numbers(shape)
    y = scale(api.zeros(shape).sync().partition(tile).map(num_blocks=blocks), api.from_host(x), 0.5).first().unpartition()
    np.testing.assert_array_equal(y.to_host().sync(), x * np.float32(0.5))


def test_strided_tensors_and_slices(device):
    x = numbers((40, 60))
    y, source = api.zeros((40, 60)).sync(), api.from_host(x).sync()
    scale(y[3:37:2, ::3].partition((4, 8)).map(group=(2, 1), num_blocks=5), source[3:37:2, ::3], 2.0).sync()
    wanted = np.zeros_like(x)
    wanted[3:37:2, ::3] = 2 * x[3:37:2, ::3]
    np.testing.assert_array_equal(host(y), wanted)
    turned = y.permute()
    scale(turned.partition((8, 4)).map(group=(1, 4)), source.permute(), 3.0).sync()
    np.testing.assert_array_equal(host(y), 3 * x)


def test_the_index_of_a_tile_is_for_loads_of_other_tensors(device):
    @tk.kernel
    def transposed(y: tk.Out, x: tk.In, rows: tk.In):
        for tile in y.tiles():
            i, j = tile.index
            y.store(tk.load(x, (i, j), y.tile_shape) + tk.full(y.tile_shape, i * 100 + j, tk.float32), tile)

    x = numbers((32, 24))
    y = api.zeros((32, 24)).sync()
    transposed(y.partition((8, 8)).map(group=(2, 1), num_blocks=3), api.from_host(x), api.zeros(3)).sync()
    i, j = np.indices((32, 24)) // 8
    np.testing.assert_array_equal(host(y), x + (i * 100 + j).astype(np.float32))


def test_blocks_keep_values_between_tiles_and_own_a_tile_of_a_plain_partition(device):
    @tk.kernel
    def totals(y: tk.InOut, partial: tk.Out):
        total = tk.zeros(8)
        for tile in y.tiles():
            total += y.load(tile)
            y.store(0.0, tile)
        partial.store(total)

    x = np.arange(100, dtype=np.float32)
    y, partial = api.from_host(x).sync(), api.zeros(8 * 3).sync()
    totals(y.partition(8).map(num_blocks=3), partial.partition(8)).sync()
    lanes = np.zeros((13, 8), np.float32)
    lanes.ravel()[:100] = x
    np.testing.assert_array_equal(host(partial).reshape(3, 8), [lanes[b::3].sum(0) for b in range(3)])
    assert not host(y).any()
    refuse(
        totals(y.partition(8).map(num_blocks=4), partial.partition(8)),
        ValueError,
        r"grids of its partitions disagree: y has \(4, 1, 1\), partial \(shape \(24,\) in tiles of \(8,\)\) has \(3, 1, 1\)",
    )


def test_two_maps_in_one_kernel(device):
    @tk.kernel
    def split(y: tk.Out, z: tk.Out, x: tk.In):
        for tile in y.tiles():
            y.store(tk.load_tile_like(x, tile), tile)
        for tile in z.tiles():
            z.store(tk.load(x, tile.index, 16) * 2.0, tile)

    x = numbers(100)
    y, z = api.zeros(100).sync(), api.zeros(80).sync()
    split(y.partition(8).map(num_blocks=3), z.partition(16).map(num_blocks=3), api.from_host(x)).sync()
    np.testing.assert_array_equal(host(y), x)
    np.testing.assert_array_equal(host(z), 2 * x[:80])
    refuse(
        split(y.partition(8).map(num_blocks=3), z.partition(16).map(num_blocks=2), x := api.zeros(100)),
        ValueError,
        r"y has \(3, 1, 1\), z \(mapped to as many blocks\) has \(2, 1, 1\)",
    )
    del x


@tk.kernel
def momentum(p: tk.InOut, m: tk.InOut, g: tk.In):
    for tile in p.tiles(m):
        t = 0.5 * m.load(tile) + tk.load_tile_like(g, tile)
        m.store(t, tile)
        p.store(p.load(tile) - t, tile)


def test_one_loop_over_partitions_that_are_cut_alike(device):
    start, before, g = numbers((50, 33), 1), numbers((50, 33), 2), numbers((50, 33), 3)
    p, m = api.from_host(start).sync(), api.from_host(before).sync()
    cut = {"group": (2, 1), "num_blocks": 3}
    momentum(p.partition((8, 8)).map(**cut), m.partition((8, 8)).map(**cut), api.from_host(g)).sync()
    wanted = np.float32(0.5) * before + g
    np.testing.assert_allclose(host(m), wanted, rtol=1e-6)
    np.testing.assert_allclose(host(p), start - wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "tile", "group"), [((16, 24), (8, 8), (2, 1)), ((16, 16), (8, 4), (2, 1)), ((16, 16), (8, 8), (1, 1))]
)
def test_partitions_that_are_cut_otherwise_have_loops_of_their_own(device, shape, tile, group):
    p = api.zeros((16, 16)).sync().partition((8, 8)).map(group=(2, 1), num_blocks=2)
    m = api.zeros(shape).sync().partition(tile).map(group=group, num_blocks=2)
    with pytest.raises(tk.CompileError) as caught:
        momentum(p, m, api.zeros((16, 16))).sync()
    assert caught.value.reason == (
        "tiles: m is cut or mapped otherwise than p: one loop visits partitions of the same shape, tiles and group"
    )
    with pytest.raises(tk.CompileError) as caught:
        momentum(
            api.zeros(4).partition(4).map(lambda tiles: tiles.map(num_blocks=1)), api.zeros(4).partition(4), api.zeros(4)
        ).sync()
    assert caught.value.reason.startswith("tiles: m is a partition of which each block owns one tile")


@pytest.mark.parametrize("clusters", [((2, 1), None), ((2, 1), (1, 2)), (None, (1, 2))])
def test_partitions_in_other_clusters_have_loops_of_their_own(device, clusters):
    p, m = (api.zeros((16, 16)).sync().partition((8, 8)).map(num_blocks=2, cluster=cluster) for cluster in clusters)
    with pytest.raises(tk.CompileError) as caught:
        momentum(p, m, api.zeros((16, 16))).sync()
    assert caught.value.reason.startswith("tiles: m is cut or mapped otherwise than p: one loop visits partitions of the same")


def test_one_loop_over_partitions_in_the_same_clusters(device):
    start, before, g = numbers((48, 33), 1), numbers((48, 33), 2), numbers((48, 33), 3)
    p, m = api.from_host(start).sync(), api.from_host(before).sync()
    cut = {"group": (2, 1), "num_blocks": 4, "cluster": (2, 1)}
    momentum(p.partition((8, 8)).map(**cut), m.partition((8, 8)).map(**cut), api.from_host(g)).sync()
    wanted = np.float32(0.5) * before + g
    np.testing.assert_allclose(host(m), wanted, rtol=1e-6)
    np.testing.assert_allclose(host(p), start - wanted, rtol=1e-5, atol=1e-6)


def test_no_tiles_at_all(device):
    y = api.zeros((0, 5)).sync()
    places(api.zeros((0, 5), tk.int64).sync().partition((1, 4)).map(num_blocks=3)).sync()
    scale(y.partition((2, 2)).map(group=(4, 1), num_blocks=2), y.dup(), 1.0).sync()
    assert y.partition((2, 2)).map().order() == []


def test_the_default_number_of_blocks_is_the_devices(device):
    y = api.zeros(4).sync().partition(2).map()
    assert y.num_blocks == device.driver.multiprocessors
    assert device.kind == "cuda" or y.num_blocks == 4
    assert api.meta(4).partition(2).map().num_blocks == 1
    gpu, _ = fake_gpu()
    assert gpu.driver.multiprocessors == 132


def test_maps_say_what_they_are():
    mapped = api.meta((64, 32)).partition((8, 8)).map(group=(4, 1), num_blocks=132)
    assert (mapped.grid, mapped.group, mapped.num_blocks) == ((8, 4), (4, 1), 132)
    assert repr(mapped).endswith(".partition((8, 8)).map(group=(4, 1), num_blocks=132)")
    assert mapped.order()[:6] == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_blocks": 0}, ValueError, "num_blocks is from 1 to 2\\^31 - 1, not 0"),
        ({"num_blocks": 2**31}, ValueError, "num_blocks is from 1"),
        ({"num_blocks": 1.5}, TypeError, "num_blocks is an int, not 1.5"),
        ({"num_blocks": True}, TypeError, "num_blocks is an int, not True"),
        ({"group": 4}, ValueError, r"a group of shape \(4,\) has 1 dimensions, the partition has 2"),
        ({"group": (0, 1)}, ValueError, r"a group has one tile at least along each dimension; \(0, 1\) has not"),
        ({"group": (2**40, 2**40)}, ValueError, "a map counts up to 2\\^62 tiles; take larger tiles, or smaller groups"),
        ({"group": "ab"}, TypeError, "a shape is an int or a tuple of ints"),
        ({"cluster": 2}, ValueError, r"a cluster of shape \(2,\) has 1 dimensions, the partition has 2"),
        ({"cluster": (1, 1, 2)}, ValueError, r"a cluster of shape \(1, 1, 2\) has 3 dimensions, the partition has 2"),
        ({"cluster": (0, 2)}, ValueError, r"a cluster has 1 to 8 tiles; \(0, 2\) has not"),
        ({"cluster": (3, 3)}, ValueError, r"a cluster has 1 to 8 tiles; \(3, 3\) has not"),
        ({"cluster": (16, 1)}, ValueError, r"a cluster has 1 to 8 tiles; \(16, 1\) has not"),
        ({"cluster": (-1, 2)}, ValueError, "a shape has no negative extents"),
        ({"cluster": (2.0, 1)}, TypeError, "a shape is an int or a tuple of ints"),
    ],
)
def test_maps_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        api.meta((64, 64)).partition((8, 8)).map(**arguments)


def test_maps_of_too_many_tiles_and_of_maps():
    with pytest.raises(ValueError, match=r"\(9223372036854775807,\) tiles in groups of \(1,\): a map counts up to 2\^62 tiles"):
        api.meta(2**63 - 1).partition(1).map()
    with pytest.raises(TypeError, match=r"\.map\(group=\(1,\), num_blocks=1\) has no map\(\) of its own: begin with"):
        api.meta(8).partition(4).map().map()


def test_misuse_in_the_kernel(device):
    """The same reason on the CPU device and on a GPU."""

    def reason(kernel, *arguments):
        with pytest.raises(tk.CompileError) as caught:
            kernel(*arguments).sync()
        return caught.value.reason

    def mapped():
        return api.zeros(8).sync().partition(4).map(num_blocks=1)

    ownerless = "y is a mapped partition, whose blocks visit many tiles: name one, in `for tile in y.tiles():`, with"
    assert reason(mark, mapped()).startswith(f"store: {ownerless}")
    assert reason(copy, mapped(), api.zeros(8)).startswith(f"load_tile_like: {ownerless}")

    @tk.kernel
    def read(y: tk.InOut):
        y.store(y.load())

    assert reason(read, mapped()).startswith(f"load: {ownerless}")

    @tk.kernel
    def anywhere(y: tk.Out):
        tk.store(y, tk.bid(0), 1.0)

    assert reason(anywhere, mapped()).startswith(f"store: {ownerless}")

    @tk.kernel
    def bare(y: tk.Out):
        y.store(1.0, 0)

    assert reason(bare, mapped()).startswith("store: the tile is one that y.tiles() gives, not ")
    assert reason(bare, api.zeros(4).partition(4)).startswith("store: the tile is one that y.tiles() gives, not ")

    @tk.kernel
    def other(y: tk.Out, z: tk.Out):
        for tile in z.tiles():
            y.store(1.0, tile)

    foreign = "store: the tile is one of z.tiles(); y takes tiles of its own, from y.tiles() or z.tiles(y)"
    assert reason(other, mapped(), mapped()) == foreign
    assert reason(other, api.zeros(4).partition(4), mapped()) == foreign

    @tk.kernel
    def as_index(y: tk.Out, x: tk.In):
        for tile in y.tiles():
            y.store(tk.load(x, tile, 4), tile)

    assert reason(as_index, mapped(), api.zeros(8)) == (
        "load: a tile index is an int or a tuple of ints: write tile.index for that of a tile, or tk.load_tile_like(x, tile)"
    )

    unmapped = "tiles: y is a partition of which each block owns one tile: use y.load() and y.store(value), or pass"
    assert reason(scale, api.zeros(4).partition(4), api.zeros(4), 1.0).startswith(unmapped)

    @tk.kernel
    def of_input(y: tk.Out, x: tk.In):
        for _ in x.tiles():
            y.store(1.0)

    assert reason(of_input, api.zeros(4).partition(4), api.zeros(4)).startswith("tiles: x is a tensor without tiles of its own")

    @tk.kernel
    def unreadable(y: tk.Out):
        for tile in y.tiles():
            y.store(y.load(tile), tile)

    assert reason(unreadable, mapped()) == "load: y is declared Out, which is written only; annotate it InOut to read it"


def test_a_prefix_of_a_persistent_kernel_is_a_slice(device):
    y = api.zeros((16, 8)).sync()
    scale(y[:8].partition((4, 4)).map(num_blocks=2), api.ones((8, 8)), 2.0).sync()
    np.testing.assert_array_equal(host(y)[:, 0], [2.0] * 8 + [0.0] * 8)


# ------------------------------------------------------------------------------------------------------------- input modes


def test_maps_come_back_as_they_went_in(device):
    mapped = api.ones(100).sync().partition(16).map(num_blocks=2)
    x = api.ones(100).sync()
    again, given, factor = scale(mapped, x, 2.0).apply(lambda y, x, a: scale(y, x, a * 2)).sync()
    assert again is mapped
    assert (given, factor) == (x, 4.0)
    np.testing.assert_array_equal(host(again.unpartition()), np.full(100, 4, np.float32))


def test_partitions_that_ops_produce(device):
    """`map` of an op calls a function of the host's with its result: that maps, or takes the prefix."""
    mapped = api.zeros(100).partition(16).map(lambda tiles: tiles.map(group=2, num_blocks=3))
    y, *_ = scale(mapped, api.ones(100), 2.0).sync()
    assert isinstance(y, MappedPartition)
    np.testing.assert_array_equal(host(y.unpartition()), np.full(100, 2, np.float32))
    (y,) = mark(api.zeros(100).partition(16).map(lambda tiles: tiles.prefix(2))).sync()
    assert isinstance(y, PrefixPartition)
    np.testing.assert_array_equal(host(y.unpartition()), [7.0] * 32 + [0.0] * 68)

    async def main():
        return (
            await scale(api.zeros(64).partition(16).map(lambda tiles: tiles.map()), api.ones(64), 3.0)
            .first()
            .unpartition()
            .to_host()
        )

    np.testing.assert_array_equal(asyncio.run(main()), np.full(64, 3, np.float32))


def test_a_value_that_is_mapped(device):
    mapped = api.zeros(64).sync().partition(16).map(num_blocks=2)
    y = scale(tk.value(mapped), api.ones(64), 3.0).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, np.full(64, 3, np.float32))
    with pytest.raises(TypeError, match="declared In, so it takes a tensor, not a partition"):
        copy(api.zeros(64).sync().partition(16), mapped)


@pytest.mark.parametrize("native", ["0", "1"])
def test_the_grid_that_a_gpu_gets(native, monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    monkeypatch.setenv("TILEKIT_NATIVE", native)
    with fake_device() as (_, driver):
        y, x = api.zeros((64, 64)).sync(), api.zeros((64, 64)).sync()
        mapped = y.partition((8, 8)).map(group=(4, 1))
        launch = lambda: scale(mapped, x, 2.0)  # noqa: E731
        launch().sync()
        driver.launches.clear()
        launch().sync()
        scale(y.partition((8, 8)).map(num_blocks=7), x, 2.0).sync()
        assert [grid for _, grid, *_ in driver.launches] == [(132, 1, 1), (7, 1, 1)]
        driver.launches.clear()
        tiles = y.partition((8, 8))
        for op in (copy(tiles, x), copy(tiles.prefix((3, 2)), x), copy(tiles.prefix(), x).grid((1, 2))):
            op.sync()
        assert [grid for _, grid, *_ in driver.launches] == [(8, 8, 1), (3, 2, 1), (1, 2, 1)]
