"""What only hardware shows of launches: streams of other libraries, numba's dispatcher, large tensors."""

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


@tk.kernel
def saxpy(y: tk.InOut, a, x: tk.In):
    y.store(a * tk.load_tile_like(x, y) + y.load())


@tk.kernel
def increment(y: tk.InOut):
    y.store(y.load() + 1.0)


pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids


def host(tensor):
    return tensor.to_host().sync()


def external_streams(device):
    """Streams of torch, cupy, numba, and tilekit's own; each library's where it is installed."""
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    from numba import cuda

    return {
        "torch": torch.cuda.Stream(),
        "cupy": cupy.cuda.Stream(non_blocking=True),
        "numba": cuda.stream(),
        "tilekit": device.stream(),
    }


def test_a_thousand_launches_on_streams_of_four_libraries(device):
    """Each adds one to the same tensor, on the next stream: right only if each waits for the one before."""
    streams = list(external_streams(device).values())
    y = api.zeros(1 << 20).sync()
    for i in range(1000):
        increment(y.partition(1024)).async_on(streams[i % 4])
    np.testing.assert_array_equal(host(y), np.full(1 << 20, 1000, np.float32))


@pytest.mark.parametrize("library", ["torch", "cupy", "numba", "tilekit"])
def test_a_stream_of_another_library(device, library):
    stream = external_streams(device)[library]
    y, x = api.ones(5000).sync_on(stream), api.arange(5000, dtype=tk.float32).sync_on(stream)
    saxpy(y.partition(1024), 2.0, x).sync_on(stream)
    np.testing.assert_array_equal(y.to_host().sync_on(stream), 2 * np.arange(5000, dtype=np.float32) + 1)


@pytest.mark.parametrize("n", [1 << 16, 50_000, 50_001])
def test_numbas_dispatcher_gives_the_same(device, n):
    from numba import cuda

    values = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    y, x = api.from_host(values[0]).sync(), api.from_host(values[1]).sync()
    dispatcher = saxpy(y.partition(1024), 2.0, x).dispatcher()
    stream = cuda.stream()
    blocks = -(-n // 1024)
    theirs, other = cuda.to_device(values[0]), cuda.to_device(values[1])
    dispatcher[blocks, dispatcher.block, stream](theirs, 2.0, other)
    dispatcher[blocks, dispatcher.block, stream](y, 2.0, x)
    stream.synchronize()
    expected = api.from_host(values[0]).sync()
    saxpy(expected.partition(1024), 2.0, x).sync()
    np.testing.assert_array_equal(host(y), host(expected))
    np.testing.assert_array_equal(theirs.copy_to_host(), host(expected))


def test_numbas_dispatcher_checks_what_was_assumed(device):
    from numba import cuda

    y, x = api.zeros(4096).sync(), api.zeros(4096).sync()
    dispatcher = saxpy(y.partition(1024), 2.0, x).dispatcher()
    with pytest.raises((TypeError, ValueError), match="float64"):
        dispatcher[4, dispatcher.block](cuda.to_device(np.zeros(4096)), 2.0, x)


def test_more_elements_than_32_bits_count(device):
    n = 2**31 + 5
    x = api.ones(n, tk.int8).sync()

    @tk.kernel
    def mark(y: tk.InOut):
        y.store(y.load() + tk.full(y.tile_shape, 1, tk.int8))

    mark(x.partition(4096)).sync()
    tail = host(x[n - 4100 :])
    np.testing.assert_array_equal(tail, np.full(4100, 2, np.int8))
    np.testing.assert_array_equal(host(x[:4100]), np.full(4100, 2, np.int8))


def test_awaits_on_many_streams_at_once(device):
    async def worker(k):
        y = await api.full(4096, float(k))
        for _ in range(50):
            await increment(y.partition(1024))
        return await y.to_host()

    async def main():
        return await asyncio.gather(*(worker(k) for k in range(16)))

    for k, result in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(result, np.full(4096, k + 50, np.float32))


def test_an_out_of_range_tile_index_is_masked(device):
    @tk.kernel
    def far(y: tk.Out, x: tk.In, by):
        y.store(tk.load(x, tk.bid(0) + by, 64, padding_mode="nan"))
        tk.store(y, tk.bid(0) + 1000 * by, 7.0)

    guard = api.zeros(64 * 4).sync()
    x = guard[64:192]
    for by in (5, -5, 2**26, -(2**26), 2**40, -(2**40)):
        y = api.zeros(128).sync()
        far(y.partition(64), x, by).sync()
        assert np.isnan(host(y)).all(), by
        np.testing.assert_array_equal(host(guard), np.zeros(256))
