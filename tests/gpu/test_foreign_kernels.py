"""Kernels that are not tilekit's, run by a GPU: that they calculate right, in order, on the stream of the op."""

import asyncio

import numpy as np
import pytest
from cuda_code import CODE, EVERY, EVERY_CODE, PTX, SAXPY, needs_headers, needs_nvrtc

import tilekit as tk
from tilekit import api

pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids

N = 100_003
SLOW = """
extern "C" __global__ void slow_add(int* y, const int* x, int n, long long clocks) {
    long long start = clock64();
    while (clock64() - start < clocks) {}
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

extern "C" __global__ void reversed(float* y, int n) {
    extern __shared__ float buffer[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = y[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = buffer[n - 1 - i];
}
"""
CLUSTER = """
extern "C" __global__ void ranks(unsigned* y) {
    unsigned blocks, rank;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) y[blockIdx.x] = blocks * 100 + rank;
}
"""


def host(tensor):
    return tensor.to_host().sync()


@needs_nvrtc
def test_cuda_source_calculates(device):
    kernel = tk.cuda_source(CODE, "saxpy", SAXPY)[tk.LaunchConfig.for_num_elems(N)]
    x, y = np.random.default_rng(0).normal(size=(2, N)).astype(np.float32)
    result = kernel(api.from_host(y), 2.0, api.from_host(x), N).first().sync()
    np.testing.assert_allclose(host(result), 2.0 * x + y, rtol=1e-6)
    scaled = tk.cuda_source(CODE, "scale<double>", "InOut[f64], f64")[tk.LaunchConfig(grid=1, block=8)]
    np.testing.assert_array_equal(host(scaled(api.ones(8, tk.float64), 0.1).first().sync()), 0.1)


@needs_headers
def test_scalars_of_every_type_arrive(device):
    given = (True, -2, -300, -70000, -(2**33), 200, 60000, 2**31, 2**40, 1.5, 2.5, 3.5, 0.25)
    y = api.zeros(1).sync()
    tk.cuda_source(EVERY_CODE, "every", EVERY)[tk.LaunchConfig(grid=1, block=1)](*given, y).sync()
    assert host(y)[0] == pytest.approx(sum(given), rel=1e-6)


@needs_nvrtc
def test_more_than_48_kb_of_shared_memory(device):
    n = 20_000
    y = api.arange(n, dtype=tk.float32).sync()
    kernel = tk.cuda_source(SLOW, "reversed", "InOut[f32], i32")
    kernel[tk.LaunchConfig(grid=1, block=256, shared_bytes=4 * n)](y, n).sync()
    np.testing.assert_array_equal(host(y), np.arange(n, dtype=np.float32)[::-1])
    with pytest.raises(tk.DeviceError, match="reversed needs 1,000,000 bytes of dynamic shared memory"):
        kernel[tk.LaunchConfig(grid=1, block=256, shared_bytes=1_000_000)](y, n).sync()


@needs_nvrtc
def test_order_across_streams(device):
    """A slow kernel of CUDA C++ and one of tilekit's, each on the next stream: right only if each waits for the one before."""

    @tk.kernel
    def double(y: tk.InOut):
        y.store(y.load() * 2)

    streams = [device.stream() for _ in range(4)]
    kernel = tk.cuda_source(SLOW, "slow_add", "InOut[i32], In[i32], i32, i64")[tk.LaunchConfig.for_num_elems(4096)]
    y, one = api.zeros(4096, tk.int32).sync(), api.full(4096, 1, tk.int32).sync()
    expected = 0
    for step in range(40):
        kernel(y, one, 4096, 20_000).async_on(streams[step % 4])
        expected += 1
        if step % 10 == 0:
            double(y.partition(1024)).async_on(streams[(step + 1) % 4])
            expected *= 2
    np.testing.assert_array_equal(host(y), expected)


@needs_nvrtc
def test_clusters(device):
    if device.compute_capability < (9, 0):
        pytest.skip("clusters need sm_90 or newer")
    y = api.zeros(32, tk.uint32).sync()
    kernel = tk.cuda_source(CLUSTER, "ranks", "Out[u32]")
    for cluster in (2, 8, 16):  # 16 is more than every GPU has, and has to be allowed
        kernel[tk.LaunchConfig(grid=32, block=32, cluster=cluster)](y).sync()
        np.testing.assert_array_equal(host(y), cluster * 100 + np.arange(32) % cluster)


@needs_nvrtc
def test_modules(device, tmp_path):
    made = tk.cuda_source(CODE, "saxpy", SAXPY).compile()
    cubin, ptx = tmp_path / "kernels.cubin", tmp_path / "kernels.ptx"
    cubin.write_bytes(made.cubin)
    ptx.write_text(made.ptx)
    x = api.arange(N, dtype=tk.float32).sync()
    for file in (cubin, ptx):
        module = tk.load_module(file)
        assert "saxpy" in module.names
        y = api.ones(N).sync()
        module.kernel("saxpy", SAXPY)[tk.LaunchConfig.for_num_elems(N)](y, 2.0, x, N).sync()
        np.testing.assert_array_equal(host(y), 2 * np.arange(N, dtype=np.float32) + 1)


@needs_nvrtc
def test_the_drivers_words_for_images_that_it_does_not_take(device, monkeypatch):
    from tilekit.compiler.foreign import image

    other = "sm_80" if device.compute_capability >= (9, 0) else "sm_90a"
    foreign = tk.load_module(tk.cuda_source(CODE, "saxpy", SAXPY).compile(other).cubin).kernel("saxpy", SAXPY)
    x, config = api.zeros(8).sync(), tk.LaunchConfig(grid=1, block=32)
    with pytest.raises(tk.DeviceError, match="cannot be loaded on cuda:.*compiled for another architecture"):
        foreign[config](api.zeros(8), 1.0, x, 8).sync()
    monkeypatch.setattr(image, "assemble", lambda *_: None)  # as where nvJitLink is not installed
    newer = tk.load_module(PTX.replace("7.0", "99.0").encode()).kernel("fill", "Out[f32], f32")
    with pytest.raises(tk.DeviceError, match="CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|INVALID_PTX)"):
        newer[config](api.zeros(8), 1.0).sync()
    assert set(device.driver.kernel_names(PTX.encode() + b"\0")) == {"fill", "_Z4other1Pf"}
    np.testing.assert_array_equal(host(x), 0)  # the context is as it was


def numba_kernels():
    cuda = pytest.importorskip("numba.cuda", reason="wraps kernels of numba's")

    @cuda.jit
    def add(c: tk.Out, a: tk.In, b: tk.In):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    @cuda.jit
    def transpose(y: tk.Out, x: tk.In, factor):
        i, j = cuda.grid(2)
        if i < y.shape[0] and j < y.shape[1]:
            y[i, j] = x[j, i] * factor

    return add, transpose


def test_numba_kernels_calculate(device):
    add, transpose = map(tk.wrap, numba_kernels())
    a, b = np.random.default_rng(0).normal(size=(2, N)).astype(np.float32)
    c = add[tk.LaunchConfig.for_num_elems(N)](api.zeros(N), api.from_host(a), api.from_host(b)).first().sync()
    np.testing.assert_array_equal(host(c), a + b)
    x = api.arange(6 * 40, dtype=tk.float32).reshape(6, 40).sync()
    y = api.zeros((20, 6)).sync()
    transpose[tk.LaunchConfig(grid=(2, 1), block=(16, 16))](y, x[:, ::2], 3.0).sync()  # strides are numba's affair
    np.testing.assert_array_equal(host(y), 3 * np.arange(240, dtype=np.float32).reshape(6, 40)[:, ::2].T)


def test_numba_gets_the_same_memory_and_views(device):
    cuda = pytest.importorskip("numba.cuda", reason="wraps kernels of numba's")

    @cuda.jit
    def mark(y):
        y[cuda.threadIdx.x] += 1

    for dtype in (tk.int8, tk.uint16, tk.int64, tk.float16, tk.float64):
        whole = api.zeros(64, dtype).sync()
        tk.wrap(mark, tk.LaunchConfig(grid=1, block=8))(whole[16:48:4]).sync()
        expected = np.zeros(64, dtype)
        expected[16:48:4] = 1
        np.testing.assert_array_equal(host(whole), expected)
    empty = api.zeros(0).sync()
    add = tk.wrap(numba_kernels()[0])
    assert add[tk.LaunchConfig(grid=1, block=32)](empty, empty, empty).sync()[0] is empty


def test_numba_kernels_are_in_order_with_tilekits(device):
    @tk.kernel
    def double(y: tk.Out, x: tk.In):
        y.store(tk.load_tile_like(x, y) * 2)

    add = tk.wrap(numba_kernels()[0])[tk.LaunchConfig.for_num_elems(1 << 20)]
    streams = [device.stream() for _ in range(4)]
    y, z = api.ones(1 << 20).sync(), api.zeros(1 << 20).sync()
    for step in range(15):  # 3 ** 15 is the last that a float32 holds exactly
        double(z.partition(1024), y).async_on(streams[step % 4])
        add(y, z, y.dup()).async_on(streams[(step + 1) % 4])
    np.testing.assert_array_equal(host(y), np.float32(3**15))


def test_numba_compiles_beside_the_event_loop(device):
    cuda = pytest.importorskip("numba.cuda", reason="wraps kernels of numba's")

    @cuda.jit
    def fresh(y, a):
        y[cuda.threadIdx.x] = a

    async def main():
        done = []

        async def tick():
            while not done:
                await asyncio.sleep(0)
                ticks.append(None)

        ticks = []
        ticking = asyncio.ensure_future(tick())
        y, _ = await tk.wrap(fresh, tk.LaunchConfig(grid=1, block=32), signature="Out[f32], f32")(api.zeros(32), 4)
        done.append(True)
        await ticking
        assert len(ticks) > 10
        return await y.to_host()

    np.testing.assert_array_equal(asyncio.run(main()), 4)


def test_numba_kernels_with_much_shared_memory(device):
    cuda = pytest.importorskip("numba.cuda", reason="wraps kernels of numba's")
    from numba import float32

    @cuda.jit
    def reverse(y):
        buffer = cuda.shared.array(0, dtype=float32)
        for i in range(cuda.threadIdx.x, y.size, cuda.blockDim.x):
            buffer[i] = y[i]
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, y.size, cuda.blockDim.x):
            y[i] = buffer[y.size - 1 - i]

    y = api.arange(20_000, dtype=tk.float32).sync()
    tk.wrap(reverse, tk.LaunchConfig(grid=1, block=256, shared_bytes=80_000))(y).sync()
    np.testing.assert_array_equal(host(y), np.arange(20_000, dtype=np.float32)[::-1])
    with pytest.raises(tk.DeviceError, match="numba kernel reverse needs 1,000,000 bytes of dynamic shared memory"):
        tk.wrap(reverse, tk.LaunchConfig(grid=1, block=256, shared_bytes=1_000_000))(y).sync()


def test_what_numba_cannot_compile(device):
    cuda = pytest.importorskip("numba.cuda", reason="wraps kernels of numba's")

    @cuda.jit
    def wrong(y):
        y[0] = y.no_such_thing

    with pytest.raises(tk.CompileError, match="(?s)numba kernel wrong does not compile: .*no_such_thing"):
        tk.wrap(wrong, tk.LaunchConfig(grid=1, block=1))(api.zeros(8)).sync()


def test_a_tile_kernel_as_numbas(device):
    """`op.dispatcher()` is a kernel of numba's, and so it can be wrapped."""

    @tk.kernel
    def scale(y: tk.Out, x: tk.In, a):
        y.store(tk.load_tile_like(x, y) * a)

    x, y = api.ones(4096).sync(), api.zeros(4096).sync()
    dispatcher = scale(y.partition(1024), x, 3.0).dispatcher()
    tk.wrap(dispatcher)[tk.LaunchConfig(grid=4, block=dispatcher.block)](y, x, 3.0).sync()
    np.testing.assert_array_equal(host(y), 3)
