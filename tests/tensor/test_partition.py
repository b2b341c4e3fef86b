"""Partitions: prefixes, slices that are written, and what overlaps; on the device under test."""

import gc
import re

import numpy as np
import pytest
from tiled import copy, host, mark, numbers, refuse, scale

import tilekit as tk
from tilekit import api
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor


@tk.kernel
def both(y: tk.Out, z: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y, padding_mode="zero"))
    z.store(tk.load_tile_like(x, z, padding_mode="zero") * 2.0)


# ---------------------------------------------------------------------------------------------------------------- prefixes


def inside(shape, tile, tiles):
    """Which elements are in the first tiles."""
    wanted = np.zeros(shape, bool)
    wanted[tuple(slice(0, n * t) for n, t in zip(tiles, tile, strict=True))] = True
    return wanted


@pytest.mark.parametrize(
    ("shape", "tile", "tiles"),
    [
        ((100,), (16,), (3,)),
        ((100,), (16,), (7,)),
        ((100,), (16,), (0,)),
        ((10, 13), (4, 4), (2, 3)),
        ((10, 13), (4, 4), (3, 1)),
        ((5, 6, 7), (2, 4, 2), (2, 1, 4)),
        ((3, 5, 6, 7), (1, 2, 4, 2), (2, 3, 2, 1)),
        ((3, 5, 6, 7), (1, 2, 4, 2), (1, 2, 1, 3)),
    ],
)
def test_a_prefix_writes_the_first_tiles_only(device, shape, tile, tiles):
    x = numbers(shape)
    y, source = api.zeros(shape).sync(), api.from_host(x).sync()
    prefix = y.partition(tile).prefix(tiles)
    assert prefix.grid == tiles
    (given, _) = copy(prefix, source).sync()
    assert given is prefix
    np.testing.assert_array_equal(host(y), np.where(inside(shape, tile, tiles), x, 0))


@pytest.mark.parametrize(
    ("shape", "tile", "grid", "tiles"),
    [
        ((100,), 16, (3, 1, 1), (3,)),
        ((100,), 16, 7, (7,)),
        ((10, 13), (4, 4), (2, 3), (2, 3)),
        ((10, 13), (4, 4), (0, 3), (0, 3)),
        ((5, 6, 7), (2, 4, 2), (3, 2, 1), (3, 2, 1)),
    ],
)
def test_the_launch_gives_the_grid_of_an_open_prefix(device, shape, tile, grid, tiles):
    x = numbers(shape)
    y, source = api.zeros(shape).sync(), api.from_host(x).sync()
    copy(y.partition(tile).prefix(), source).grid(grid).sync()
    cut = tile if isinstance(tile, tuple) else (tile,)
    np.testing.assert_array_equal(host(y), np.where(inside(shape, cut, tiles), x, 0))


def test_a_prefix_in_four_dimensions_counts_the_first_two_together(device):
    y = api.zeros((3, 5, 2, 2)).sync()
    mark(y.partition((1, 1, 2, 2)).prefix()).grid((7, 1, 1)).sync()
    np.testing.assert_array_equal(host(y)[:, :, 0, 0], 7.0 * (np.arange(15).reshape(3, 5) < 7))


def test_another_partition_gives_the_grid_of_an_open_prefix(device):
    x = numbers(40)
    y, z = api.zeros(40).sync(), api.zeros(100).sync()
    both(y.partition(16), z.partition(16).prefix(), api.from_host(x)).sync()
    np.testing.assert_array_equal(host(y), x)
    np.testing.assert_array_equal(host(z), np.concatenate([2 * x, np.zeros(60, np.float32)]))
    both(z.partition(16).prefix(), y.partition(16), api.from_host(x)).sync()  # in whatever order they come
    np.testing.assert_array_equal(host(z)[:40], x)


def test_a_scratch_tensor_that_is_larger_costs_no_mask():
    """The grid has no more blocks than either has tiles, so no tile index of a block is outside."""
    launch = both(api.meta(4096).partition(1024), api.meta(8192).partition(1024).prefix(), api.meta(4096))
    assert not re.search(r"@p (ld|st)", launch.compile(target="sm_90a").ptx)
    launch = both(api.meta(4096).partition(1024), api.meta(8192).partition(2048).prefix(), api.meta(4096))
    assert re.search(r"@p ld", launch.compile(target="sm_90a").ptx), "of tiles of another shape there may be fewer"


def test_grids_that_prefixes_do_not_take(device):
    y, z = api.zeros(40).sync(), api.zeros(100).sync()
    refuse(
        mark(y.partition(16).prefix()),
        ValueError,
        r"kernel mark: y is a prefix, which says how many blocks there may be, not how many there are: give the grid, "
        r"\.grid\(\(blocks, 1, 1\)\), or the number of tiles, \.prefix\(tiles\)",
    )
    refuse(
        mark(y.partition(16).prefix()).grid(4),
        ValueError,
        r"kernel mark: the grid \(4, 1, 1\) has more blocks along axis 0 than the prefix y has tiles: shape \(40,\) in tiles of "
        r"\(16,\) takes \(3, 1, 1\) at most",
    )
    # each axis counts, not the number of all blocks
    refuse(
        mark(api.zeros((64, 8)).sync().partition((8, 8)).prefix()).grid((1, 2)),
        ValueError,
        r"the grid \(1, 2, 1\) has more blocks along axis 1",
    )
    refuse(
        both(z.partition(16), y.partition(16).prefix(), z), ValueError, r"more blocks along axis 0 than the prefix z has tiles"
    )
    refuse(
        mark(y.partition(16).prefix(2)).grid(3), ValueError, r"the grid \(3, 1, 1\) is not the \(2, 1, 1\) that the partition y"
    )
    refuse(
        both(y.partition(16).prefix(2), z.partition(16), y.dup()), ValueError, r"the grids of its partitions disagree: y has \(2,"
    )


def test_prefixes_that_cannot_be():
    tiles = api.meta((10, 13)).partition((4, 4))
    with pytest.raises(ValueError, match=r"a prefix of \(2, 5\) tiles is more than the \(3, 4\) there are, in dimension 1"):
        tiles.prefix((2, 5))
    with pytest.raises(ValueError, match=r"a prefix of \(2,\) tiles has 1 dimensions, the partition has 2"):
        tiles.prefix(2)
    with pytest.raises(ValueError, match="negative"):
        tiles.prefix((-1, 2))
    with pytest.raises(
        TypeError, match=r"\.prefix\(\(1, 2\)\) has no map\(\) of its own: begin with the tensor's plain \.partition"
    ):
        tiles.prefix((1, 2)).map()
    with pytest.raises(TypeError, match=r"has no prefix\(\) of its own"):
        tiles.prefix().prefix((1, 2))
    with pytest.raises(
        ValueError,
        match=r"takes a part of the 3 along dimension 1, which shares an axis of the grid with dimension 0: take all 3",
    ):
        api.meta((4, 3, 2, 2)).partition((1, 1, 2, 2)).prefix((2, 2, 1, 1))


def test_prefixes_say_what_they_are():
    tiles = api.meta(64).partition(16)
    assert isinstance(tiles.prefix(), Partition)
    assert repr(tiles.prefix(2)) == "Tensor(shape=(64,), dtype=float32, device=meta).partition((16,)).prefix((2,))"
    assert repr(tiles.prefix()).endswith(".prefix()")
    assert tiles.prefix(2).unpartition() is tiles.tensor
    # what a launch depends on
    kinds = [tiles, tiles.prefix(), tiles.prefix(2), tiles.prefix(3), tiles.map(), tiles.map(group=2), tiles.map(num_blocks=2)]
    assert len({id(kind.traits) for kind in kinds}) == len(kinds)
    assert tiles.prefix(2).traits is api.meta(64).partition(16).prefix(2).traits


def test_prefixes_of_one_kind_share_a_compiled_kernel(device):
    @tk.kernel
    def fresh(y: tk.Out):
        y.store(1.0)

    y = api.zeros(64).sync()
    for op in (fresh(y.partition(16)), fresh(y.partition(16).prefix(2)), fresh(y.partition(16).prefix()).grid(3)):
        op.sync()
    assert len(fresh._specialisations) == 1


# ----------------------------------------------------------------------------------------------------------- try_partition


def test_try_partition_of_a_tensor_that_is_alone(device):
    y = api.zeros(64).sync()
    another_name = y
    tiles = y.try_partition(16)
    assert isinstance(tiles, Partition)
    assert tiles.tensor is another_name
    mark(tiles).sync()
    assert host(y)[0] == 7


def test_try_partition_of_memory_that_is_shared(device):
    y = api.zeros(64).sync()
    view = y[:16]
    assert y.try_partition(16) is None
    assert view.try_partition(16) is None
    del view
    gc.collect()
    tiles = y.try_partition(16)
    assert tiles is not None
    assert y.try_partition(16) is None, "the first partition is alive"
    del tiles
    assert y.try_partition(16) is not None


def test_try_partition_of_what_a_future_holds(device):
    y, x = api.zeros(64).sync(), api.ones(64).sync()
    with device.stream() as stream:
        future = copy(y.partition(16), x).async_on(stream)
        assert y.try_partition(16) is None
        future.result(timeout_s=60)
        assert y.try_partition(16) is None
        del future
    gc.collect()
    assert y.try_partition(16) is not None


def test_try_partition_refuses_what_partition_refuses(device):
    y = api.zeros(64).sync()
    with pytest.raises(ValueError, match="every extent of a tile is a power of two"):
        y.try_partition(3)
    assert isinstance(api.meta(64).try_partition(16), Partition)


# -------------------------------------------------------------------------------------------------------- slices, overlap


def test_slices_are_written_in_place(device):
    x = api.arange(40, dtype=tk.float32).sync()
    (given,) = mark(x[10:20].partition(4)).sync()
    assert given.unpartition().shape == (10,)
    wanted = np.arange(40, dtype=np.float32)
    wanted[10:20] = 7
    np.testing.assert_array_equal(host(x), wanted)
    copy(x[30:20:-1].partition(4), api.from_host(np.arange(10, dtype=np.float32))).sync()
    wanted[30:20:-1] = np.arange(10)
    np.testing.assert_array_equal(host(x), wanted)
    block = x.reshape(5, 8)
    copy(block[1:4, 2:7:2].partition((2, 2)), api.zeros((3, 3))).sync()
    wanted.reshape(5, 8)[1:4, 2:7:2] = 0
    np.testing.assert_array_equal(host(x), wanted)


def test_interleaved_views_do_not_overlap(device):
    x = api.arange(64, dtype=tk.float32).sync()
    even, odd = x[::2], x[1::2]
    copy(even.partition(8), odd).sync()
    np.testing.assert_array_equal(host(x), np.repeat(np.arange(1, 64, 2), 2).astype(np.float32))
    table = x.reshape(8, 8)
    copy(table[::2].partition((2, 8)), table[1::2]).sync()
    copy(table[:, :4].partition((2, 4)), table[:, 4:]).sync()
    copy(table[::2, 1::2].partition((2, 2)), table[1::2, ::2]).sync()
    refuse(
        copy(table[::2, 1:5].partition((2, 4)), table[:4, 3:7]),
        ValueError,
        "arguments y and x overlap in memory, and y is written",
    )
    refuse(copy(x[::2].partition(8), x[:32]), ValueError, "arguments y and x overlap in memory")
    refuse(copy(x[::3].partition(8), x[1::2][:22]), ValueError, "arguments y and x overlap in memory")


def viewed(tensor, dtype, shape, offset=0, strides=None):
    """Other elements in the same memory."""
    return Tensor(tensor.storage, shape, np.dtype(dtype), strides, offset)


def test_overlap_is_a_matter_of_bytes(device):
    """Offsets, strides and shapes count elements: equal ones of different sizes are other places."""
    x = api.zeros(64).sync()
    halves = viewed(x, tk.float16, (64,))
    assert (halves.offset, halves.shape, halves.strides) == (x.offset, x.shape, x.strides)

    @tk.kernel
    def widen(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y).astype(y.dtype))

    refuse(widen(x.partition(16), halves), ValueError, "arguments y and x overlap in memory, and y is written")
    refuse(widen(halves.partition(16), x), ValueError, "arguments y and x overlap in memory, and y is written")
    # the upper half of the bytes, by either measure
    widen(x[:32].partition(16), viewed(x, tk.float16, (32,), offset=64)).sync()
    refuse(widen(x[:33].partition(16), viewed(x, tk.float16, (33,), offset=64)), ValueError, "overlap in memory")
    # the halves of each element: the lower ones are another tensor's than the upper ones
    low, high = viewed(x, tk.float16, (64,), strides=(2,)), viewed(x, tk.float16, (64,), offset=1, strides=(2,))
    widen(low.partition(16), high).sync()
    refuse(widen(low.partition(16), x), ValueError, "overlap in memory")
    # as many bytes an element: the same view, whatever it is taken for
    widen(x.partition(16), viewed(x, tk.int32, (64,))).sync()


def test_a_tensor_that_overlaps_itself_is_not_written(device):
    x = api.zeros(64).sync()
    for shape, strides in (((4, 8), (0, 1)), ((8, 8), (4, 1)), ((5,), (0,)), ((3, 3), (1, 1))):
        target = viewed(x, tk.float32, shape, strides=strides)
        refuse(
            mark(target.partition((1,) * len(shape))),
            ValueError,
            rf"kernel mark: argument y is written, and its elements overlap in memory: shape {re.escape(str(shape))}, strides "
            rf"{re.escape(str(strides))}\. Write to a dup\(\) of it",
        )
    for shape, strides in (((4, 1), (8, 0)), ((2, 2), (2, 3)), ((8, 8), (1, 8)), ((1, 1), (0, 0))):
        mark(viewed(x, tk.float32, shape, strides=strides).partition((1,) * len(shape))).sync()
    y = api.zeros((4, 8)).sync()
    copy(y.partition((2, 4)), viewed(x, tk.float32, (4, 8), strides=(0, 1))).sync()  # reading one element many times is fine


def test_both_partitions_of_a_pair_are_checked(device):
    x = api.zeros(64).sync()
    source = api.ones(16).sync()
    both(x[:16].partition(8), x[16:32].partition(8), source).sync()
    refuse(
        both(x[:16].partition(8), x[8:24].partition(8), source),
        ValueError,
        "arguments y and z overlap in memory, and y is written",
    )
    refuse(
        both(x[:16].partition(8), x[16:32].partition(8).prefix(), x[20:36]),
        ValueError,
        "arguments z and x overlap in memory, and z",
    )
    mapped = x[:16].partition(8).map(num_blocks=2)
    refuse(scale(mapped, x[8:24], 1.0), ValueError, "arguments y and x overlap in memory, and y is written")
    scale(mapped, x[:16], 1.0).sync()  # the very same view: each tile is read before it is written
