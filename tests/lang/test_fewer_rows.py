"""Pipelined loops whose last tiles have fewer rows: what is not there is zeros, whatever lay in shared memory."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api

ROWS = [1, 3, 8, 33, 40, 63, 64, 127, 128]
STARTS = [0, 8]


@tk.kernel(num_warps=4)
def added(out: tk.Out, x: tk.In):
    """The sum of all tiles of `x`, with the rows that are not there."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for t in tk.pipelined(x.tiles(out.tile_shape)[tk.bid(0), :]):
        acc += t.astype(tk.float32)
    out.store(acc)


@tk.kernel(num_warps=4)
def added_below(out: tk.Out, x: tk.In, start: int):
    """The same of `x` from a row on."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for t in tk.pipelined(x.slice(0, start, x.shape[0]).tiles(out.tile_shape)[tk.bid(0), :]):
        acc += t.astype(tk.float32)
    out.store(acc)


@tk.kernel(num_warps=4)
def deep(out: tk.Out, x: tk.In):
    """The same of a tensor of three dimensions, whose tiles have several of the first two."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for t in tk.pipelined(x.tiles(out.tile_shape)[tk.bid(0), 0, :]):
        acc += t.astype(tk.float32)
    out.store(acc)


@tk.kernel(num_warps=4)
def product(out: tk.Out, a: tk.In, b: tk.In):
    """All of a tile of the product: what is not there of an operand is zeros, not what times zero is none."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for ta, tb in tk.pipelined(a.tiles((128, 64))[0, :], b.tiles((64, 128))[:, 0]):
        acc = tk.mma(ta, tb, acc)
    out.store(acc)


@tk.kernel(num_warps=4)
def visited(out: tk.Out, x: tk.In):
    """The sums of tiles along each row of them; blocks visit several, and what others left lies in the stages."""
    for tile in out.tiles():
        acc = tk.zeros(out.tile_shape, tk.float32)
        for t in tk.pipelined(x.tiles(out.tile_shape)[tile.index[0], :]):
            acc += t.astype(tk.float32)
        out.store(acc, tile)


@tk.kernel(num_warps=4)
def down(out: tk.Out, x: tk.In):
    """The sum of all tiles along the rows, of which the last may have fewer."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for t in tk.pipelined(x.tiles(out.tile_shape)[:, tk.bid(1)]):
        acc += t.astype(tk.float32)
    out.store(acc)


@tk.kernel(num_warps=4)
def in_turns(out: tk.Out, x: tk.In, y: tk.In, times: int):
    """Sums of tiles of both, in loops whose stages are the same."""
    acc = tk.zeros(out.tile_shape, tk.float32)
    for i in range(times):
        for t in tk.pipelined(x.tiles(out.tile_shape)[i, :]):
            acc += t.astype(tk.float32)
        for a, b in tk.pipelined(y.tiles(out.tile_shape)[i, :], x.tiles(out.tile_shape)[times - 1 - i, :]):
            acc += a.astype(tk.float32) + 2 * b.astype(tk.float32)
    out.store(acc)


@tk.kernel(num_warps=4)
def two_apart(out: tk.Out, x: tk.In):
    """Sums of tiles of 64 and of 32 rows behind each other, 96 in all; the second is the first one's of all, if there is none."""
    start = 96 * tk.bid(0)
    behind = start + 64 if start + 64 < x.shape[0] else 0
    first, second = tk.zeros((64, 64), tk.float32), tk.zeros((32, 64), tk.float32)
    for t, u in tk.pipelined(x.slice(0, start).tiles((64, 64))[0, :], x.slice(0, behind).tiles((32, 64))[0, :]):
        first, second = first + t.astype(tk.float32), second + u.astype(tk.float32)
    out.slice(0, start).tiled_view((64, 64)).store((0, 0), first)
    out.slice(0, start + 64).tiled_view((32, 64)).store((0, 0), second)


@pytest.fixture
def stained(device):
    """Has shared memory full of what no sum must meet."""

    def run(kernel, shape, *operands, more=()):
        nothing = [api.from_host(np.full(like, np.nan, np.float16)).sync() for like in operands]
        kernel(api.empty(shape).partition(shape), *nothing, *more).sync()

    return run


def result(kernel, tile, *arguments, shape=None):
    return kernel(api.empty(shape or tile).partition(tile), *arguments).first().unpartition().to_host().sync()


def numbers(shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


def behind(x, shape):
    """`x`, with zeros up to a shape."""
    return np.pad(x.astype(np.float32), [(0, n - m) for m, n in zip(x.shape, shape, strict=True)])


@pytest.mark.parametrize("rows", ROWS)
def test_rows(device, stained, rows):
    x = numbers((rows, 512))
    stained(added, (128, 64), (128, 512))
    expected = behind(x, (128, 512)).reshape(128, 8, 64).sum(1)
    np.testing.assert_array_equal(result(added, (128, 64), api.from_host(x).sync()), expected)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rows", [9, 40, 100])
def test_slices(device, stained, rows, start):
    x = numbers((rows, 512))
    stained(added_below, (128, 64), (128, 512), more=(0,))
    expected = behind(x[start:], (128, 512)).reshape(128, 8, 64).sum(1)
    np.testing.assert_array_equal(result(added_below, (128, 64), api.from_host(x).sync(), start), expected)


@pytest.mark.parametrize("shape", [(1, 16, 256), (3, 16, 256), (3, 9, 256), (4, 5, 256), (2, 20, 256)])
def test_three_dimensions(device, stained, shape):
    x = numbers(shape)
    stained(deep, (4, 16, 64), (4, 16, 256))
    expected = behind(x[:, :16], (4, 16, 256)).reshape(4, 16, 4, 64).sum(2)
    np.testing.assert_array_equal(result(deep, (4, 16, 64), api.from_host(x).sync()), expected)


@pytest.mark.parametrize("rows", [1, 40, 63, 64, 65, 80, 96, 97, 150, 176, 192, 200, 288])
def test_tiles_that_begin_further_apart(device, stained, rows):
    x, blocks = numbers((rows, 512)), -(-rows // 96)
    stained(added, (128, 64), (128, 512))
    out = api.empty((96 * blocks, 64)).sync()
    two_apart(out.scattered(), api.from_host(x).sync()).grid(blocks).sync()
    got = out.to_host().sync()
    expected = behind(x, (96 * blocks, 512)).reshape(96 * blocks, 8, 64).sum(1)
    if rows <= 96 * blocks - 32:  # there is no second tile in the last block
        expected[-32:] = behind(x, (max(rows, 32), 512))[:32].reshape(32, 8, 64).sum(1)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("rows", [64, 129, 200, 449, 448, 64 * 12 + 1])
def test_tiles_that_blocks_visit(device, stained, rows, blocks):
    """A stage has all of a tile, and then what there is of the last one."""
    x = numbers((rows, 320))
    height = -(-rows // 64) * 64
    stained(added, (64, 64), (64, 320))
    out = api.empty((height, 64)).sync().partition((64, 64)).map(num_blocks=blocks)
    got = visited(out, api.from_host(x).sync()).first().unpartition().to_host().sync()
    np.testing.assert_array_equal(got, behind(x, (height, 320)).reshape(height, 5, 64).sum(1))


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 300, 64 * 9 + 8, 64 * 12 + 63])
def test_along_the_rows(device, stained, rows):
    """It is the last tile alone that has fewer, of more than there are stages."""
    x = numbers((rows, 128))
    stained(added, (64, 64), (64, 512))
    height = -(-rows // 64) * 64
    expected = behind(x, (height, 128)).reshape(height // 64, 64, 128).sum(0)
    np.testing.assert_array_equal(result(down, (64, 64), api.from_host(x).sync(), shape=(64, 128)), expected)


@pytest.mark.parametrize(("rows", "others"), [(192, 192), (130, 191), (191, 130), (129, 129)])
def test_loops_that_share_stages(device, stained, rows, others):
    x, y = numbers((rows, 192), 1), numbers((others, 192), 2)
    stained(added, (64, 64), (64, 512))
    both = behind(x, (192, 192)).reshape(3, 64, 3, 64), behind(y, (192, 192)).reshape(3, 64, 3, 64)
    expected = 3 * both[0].sum((0, 2)) + both[1].sum((0, 2))
    np.testing.assert_array_equal(result(in_turns, (64, 64), *(api.from_host(each).sync() for each in (x, y)), 3), expected)


# Of the last two, threads copy one operand, or both.
@pytest.mark.parametrize(("m", "n"), [(1, 128), (128, 8), (40, 72), (128, 128), (300, 16), (40, 124), (36, 60)])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_products(device, stained, m, n, layout):
    k = 40 if m == 40 else 320
    a, b = numbers((m, k), 1), numbers((k, n), 2)
    stained(product, (128, 128), (128, 320), (320, 128))
    operands = [
        api.from_host(np.ascontiguousarray(x.T)).sync().T if lies == "T" else api.from_host(x).sync()
        for x, lies in zip((a, b), layout, strict=True)
    ]
    expected = behind(a[:128], (128, k)) @ behind(b, (k, 128))
    np.testing.assert_array_equal(result(product, (128, 128), *operands), expected)
