"""Index arithmetic beyond 2^31 on the CPU device: views whose rows are all one, so that any number of them takes no memory."""

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.errors import CompileError, DeviceError

ROWS = 3_000_000_005
LINE = np.arange(16, dtype=np.int32) + 1


@pytest.fixture
def tall(cpu):
    return tk.as_tensor(np.lib.stride_tricks.as_strided(LINE, (ROWS, 16), (0, 4)))


@pytest.fixture
def numbers(cpu):
    """A partition of one tile, to write what a kernel found."""
    return api.zeros(8, tk.int64).sync().partition(8)


@pytest.fixture
def block(cpu):
    return api.zeros((4, 16), tk.int32).sync().partition((4, 16))


def written(op):
    return op.first().unpartition().to_host().sync()


def test_extents_and_numbers_of_tiles(tall, numbers):
    @tk.kernel
    def count(y: tk.Out, x: tk.In):
        view = x.tiled_view((4, 16), traversal_steps=(2, 16))
        found = (x.shape[0], tk.num_tiles(x, 0, (4, 16)), view.num_tiles(0), x.tiles((1, 16)).shape[0], 0, 0, 0, 0)
        y.store(tk.astile(found, dtype=tk.int64))

    assert written(count(numbers, tall))[:4].tolist() == [ROWS, -(-ROWS // 4), -(-ROWS // 2), ROWS]


def test_tiles_at_the_far_end_hang_over_the_edge(tall, block):
    @tk.kernel
    def last(y: tk.Out, x: tk.In):
        y.store(tk.load(x, (tk.num_tiles(x, 0, (4, 16)) - 1, 0), (4, 16), padding_value=-1))

    wanted = np.full((4, 16), -1, np.int32)
    wanted[: ROWS % 4] = LINE
    np.testing.assert_array_equal(written(last(block, tall)), wanted)


@pytest.mark.parametrize("at", [ROWS // 4 + 1, 2**31, 2**40, 2**62, -1, -(2**33)])
def test_a_tile_outside_is_told_by_its_whole_index(tall, block, at):
    @tk.kernel
    def far(y: tk.Out, x: tk.In, at: int):
        y.store(tk.load(x, (at, 0), (4, 16)))

    with pytest.raises(DeviceError, match=rf"tile index \({at}, 0\) is outside x, a tensor of shape \({ROWS}, 16\)"):
        far(block, tall, at).sync()


def test_views_grids_and_slices(tall, block):
    @tk.kernel
    def views(y: tk.Out, x: tk.In, at: int):
        rest = x.slice(0, at)
        total = x.tiles((4, 16))[700_000_000, 0] + rest.tiled_view((4, 16)).load((0, 0))
        for t in x.tiles((4, 16))[-3:-1, 0]:
            total = total + t
        for t in tk.pipelined(rest.tiles((4, 16))[:2, 0]):
            total = total + t
        y.store(total)

    np.testing.assert_array_equal(written(views(block, tall, 2_900_000_000)), np.tile(6 * LINE, (4, 1)))


def test_elements_by_index(tall, block):
    @tk.kernel
    def pick(y: tk.Out, x: tk.In, first: int):
        rows = tk.arange(4, dtype=tk.int64, start=first)[:, None]
        y.store(tk.gather(x, (rows, tk.arange(16)[None, :])))

    np.testing.assert_array_equal(written(pick(block, tall, ROWS - 4)), np.tile(LINE, (4, 1)))
    with pytest.raises(DeviceError, match=rf"gather: index \({ROWS}, 0\) is outside x"):
        pick(block, tall, ROWS - 3).sync()


def test_a_range_of_32_bits_does_not_wrap_into_place(tall, block):
    @tk.kernel
    def added(y: tk.Out, x: tk.In, first: int):
        y.store(tk.gather(x, ((tk.arange(4) + first)[:, None], tk.arange(16)[None, :])))

    @tk.kernel
    def started(y: tk.Out, x: tk.In, first: int):
        y.store(tk.gather(x, (tk.arange(4, start=first)[:, None], tk.arange(16)[None, :])))

    with pytest.raises(CompileError, match=r"\+: the scalar 2147483648 does not fit int32; cast the tile"):
        added(block, tall, 2**31).sync()
    with pytest.raises(CompileError, match="arange: start is 2147483648, which does not fit int32; give the range a dtype"):
        started(block, tall, 2**31).sync()


def test_blocks_of_a_large_grid_read_where_they_are(tall, cpu):
    """Some of 3e9 blocks, as a persistent kernel would visit them."""

    @tk.kernel
    def some(y: tk.Out, x: tk.In, step: int):
        i = tk.bid(0) * step
        y.store(tk.sum(tk.load(x, (i, 0), (1, 16)), 1) + tk.full(1, i % 1000, tk.int32))

    y = api.zeros(30, tk.int32).sync()
    wanted = LINE.sum() + np.arange(30) * 100_000_000 % 1000
    np.testing.assert_array_equal(written(some(y.partition(1), tall, 100_000_000)), wanted)


def test_many_tiles_of_a_prefix_and_of_a_map_are_counted(cpu):
    """Without memory: shapes alone."""
    meta = api.meta((2**20, 2**14), tk.int8)
    assert meta.partition((1, 1)).prefix((2**20, 2**13)).grid == (2**20, 2**13)
    mapped = meta.partition((1, 1)).map(group=(8, 1), num_blocks=132)
    assert mapped.many
    assert not api.meta((2**20, 2**10), tk.int8).partition((1, 1)).map(num_blocks=132).many
