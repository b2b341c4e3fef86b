"""What only hardware shows of partitions: many blocks that visit tiles side by side, and numba's dispatcher."""

import numpy as np
import pytest
from tiled import expected_places, host, mark, places, scale

import tilekit as tk
from tilekit import api

pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids


@pytest.mark.parametrize("group", [(1, 1), (8, 1), (3, 5)])
@pytest.mark.parametrize("blocks", [None, 1, 1000, 100_000])
def test_a_large_tensor_is_covered_once(device, group, blocks):
    y = api.zeros((4001, 3003), tk.int64).sync()
    mapped = y.partition((16, 32)).map(group=group, num_blocks=blocks)
    places(mapped).sync()
    np.testing.assert_array_equal(host(y), expected_places((4001, 3003), (16, 32), group))


@pytest.mark.parametrize("n", [1 << 26, (1 << 26) + 5])
def test_a_persistent_copy_of_a_large_tensor(device, n):
    x = api.arange(n, dtype=tk.float32).sync()
    y = api.zeros(n).sync()
    scale(y.partition(4096).map(), x, 0.5).sync()
    np.testing.assert_array_equal(host(y), host(x) * np.float32(0.5))


def test_more_than_31_bits_of_elements(device):
    n = (1 << 31) + 77
    y = api.zeros(n, tk.int8).sync()

    @tk.kernel
    def ones(y: tk.Out):
        for tile in y.tiles():
            y.store(1, tile)

    ones(y.partition(4096).map(num_blocks=528)).sync()
    for part in (y[:100], y[(1 << 31) - 50 : (1 << 31) + 50], y[-100:]):
        np.testing.assert_array_equal(host(part), np.ones(100, np.int8))


@pytest.mark.parametrize("blocks", [1, 7, 500])
def test_numbas_dispatcher_visits_each_tile_on_any_grid(device, blocks):
    x = np.random.default_rng(0).normal(size=(100, 90)).astype(np.float32)
    y, source = api.zeros((100, 90)).sync(), api.from_host(x).sync()
    mapped = y.partition((8, 16)).map(group=(4, 1), num_blocks=3)
    dispatcher = scale(mapped, source, 2.0).dispatcher()
    dispatcher[blocks, dispatcher.block](mapped, source, 2.0)
    device.synchronize()
    np.testing.assert_array_equal(host(y), 2 * x)


def test_a_prefix_of_many_tiles(device):
    y = api.zeros((1000, 1000)).sync()
    mark(y.partition((8, 32)).prefix((100, 7))).sync()
    mark(y.partition((8, 32)).prefix()).grid((3, 20)).sync()
    wanted = np.zeros((1000, 1000), np.float32)
    wanted[:800, :224] = wanted[:24, :640] = 7
    np.testing.assert_array_equal(host(y), wanted)
