"""What only a GPU shows of graphs: work of other libraries that is captured, machine code, and launches that take their time."""

import gc
import os

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, memory
from tilekit_benchmarks import turning
from tilekit_benchmarks._tilekit_host import turn

COUNT = int(os.environ.get("TILEKIT_TEST_COUNT", "20"))
LOOPS = 100_000  # of `turn`: about a millisecond
N = 1024
START = np.random.default_rng(0).integers(-(2**31), 2**31, 128, dtype=np.int32)

pytestmark = pytest.mark.filterwarnings("ignore:.*GPU under-utilization")  # numba's, of small grids

SOURCE = r"""
extern "C" __global__ void shift(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + a;
}
extern "C" __global__ void __cluster_dims__(1) plain(float* y) { y[threadIdx.x] += gridDim.x; }
"""


@tk.kernel
def scale(y: tk.InOut, a):
    y.store(a * y.load())


@tk.kernel
def add(y: tk.InOut, n: int):
    y.store(y.load() + n)


@pytest.fixture(params=["graph", "prepare"])
def record(request):
    return lambda op: getattr(op, request.param)()


def host(tensor):
    return tensor.to_host().sync()


def test_cuda_code_and_its_slots(device, record):
    shift = tk.cuda_source(SOURCE, "shift", "y: InOut[f32], x: In[f32], a: f32, n: i32")
    config = tk.LaunchConfig.for_num_elems(N)
    x, other, y = api.ones(N).sync(), api.full(N, 10.0).sync(), api.zeros(N).sync()
    op = shift[config](y, tk.slot("x", x), tk.slot("a", 2.0), N).then(lambda done: scale(done[0].partition(256), 2.0))
    recorded = record(op)
    assert (host(y) == 0).all()
    recorded.launch().sync()
    assert (host(y) == 6).all()
    recorded.bind(x=other, a=0.5).launch().sync()
    assert (host(y) == 21).all()


def test_clusters(device, record):
    if device.compute_capability < (9, 0):
        pytest.skip("clusters need sm_90")
    plain = tk.cuda_source(SOURCE.replace(" __cluster_dims__(1)", ""), "plain", "y: InOut[f32]")
    y = api.zeros(32).sync()
    recorded = record(plain[tk.LaunchConfig(grid=16, block=32, cluster=16)](y))
    for _ in range(2):
        recorded.launch().sync()
    assert host(y)[0] >= 16


def test_numba_kernels_and_their_slots(device, record):
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

    @cuda.jit
    def shift(y, x, a, n):
        i, j = cuda.grid(2)
        if i < y.shape[0] and j < y.shape[1] and i < n:
            y[i, j] = x[i, j] + a

    rows = api.arange(8 * N, dtype=tk.float32).sync().reshape(8, N)
    x, other = rows[::2], api.full((8, N), 100.0).sync()[::2]
    y = api.zeros((4, N)).sync()
    config = tk.LaunchConfig(grid=(1, 8), block=(4, 128))
    recorded = record(tk.wrap(shift)[config](y, tk.slot("x", x), tk.slot("a", 2.0), tk.slot("n", 4)))
    assert type(recorded.nodes[0]).__name__ == "Launch", "as a launch, not as captured work"
    recorded.launch().sync()
    np.testing.assert_array_equal(host(y), host(x) + 2)
    recorded.bind(x=other, a=5.0, n=2).launch().sync()
    np.testing.assert_array_equal(host(y)[:2], 105)
    np.testing.assert_array_equal(host(y)[2:], host(x)[2:] + 2)


def test_numba_kernels_that_only_numba_launches_are_captured(device, record):
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

    class Extension:
        def prepare_args(self, kind, value, stream, retr):
            return kind, value

    @cuda.jit(extensions=[Extension()])
    def double(y):
        i = cuda.grid(1)
        if i < y.size:
            y[i] *= 2

    y = api.ones(N).sync()
    op = tk.wrap(double)[tk.LaunchConfig(grid=8, block=128)](y).then(lambda done: scale(done[0].partition(256), 3.0))
    recorded = record(op)
    assert len(recorded) == 2
    assert (host(y) == 1).all()
    recorded.launch().sync()
    recorded.launch().sync()
    assert (host(y) == 36).all()
    named = tk.slot("y", y)
    captured = record(tk.wrap(double)[tk.LaunchConfig(grid=8, block=128)](named))
    with pytest.raises(ValueError, match=r"bind\(y=...\) cannot reach numba kernel double"):
        captured.bind(y=api.ones(N).sync())


def test_torch_in_a_closure_is_captured(device, record):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    y = api.ones(N).sync()
    theirs = torch.from_dlpack(y)

    def by_torch(ctx):
        with torch.cuda.stream(torch.cuda.ExternalStream(ctx.stream.address)):
            theirs.mul_(2).add_(1)
        return tk.value(None)

    recorded = record(
        scale(y.partition(256), 10.0).then(lambda _: tk.with_context(by_torch)).then(lambda _: add(y.partition(256), 5))
    )
    assert len(recorded) == 3
    assert (host(y) == 1).all()
    recorded.launch().sync()
    assert (host(y) == 26).all()


def test_other_libraries_that_wait_are_refused(device, record):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.ones(N, device="cuda")

    def by_torch(ctx):
        stream = torch.cuda.ExternalStream(ctx.stream.address)
        with torch.cuda.stream(stream):
            theirs.mul_(2)
            stream.synchronize()
        return tk.value(None)

    with pytest.raises(Exception, match=r"(?i)captur"):
        record(tk.with_context(by_torch))
    assert (host(api.ones(N).sync()) == 1).all(), "and the device works on"


def test_large_dynamic_shared_memory_is_allowed(device, record):
    source = r"""extern "C" __global__ void use(float* y) {
        extern __shared__ float room[];
        room[threadIdx.x * 500] = threadIdx.x;
        __syncthreads();
        y[threadIdx.x] = room[threadIdx.x * 500];
    }"""
    kernel = tk.cuda_source(source, "use", "y: Out[f32]")
    y = api.zeros(32).sync()
    record(kernel[tk.LaunchConfig(grid=1, block=32, shared_bytes=64 * 1024)](y)).launch().sync()
    np.testing.assert_array_equal(host(y), np.arange(32))


def test_launches_that_take_their_time_are_in_order(device, record):
    """Slow launches on several streams, and copies between them, by value."""
    x, y = api.from_host(START).sync(), api.zeros(128, tk.int32).sync()
    recorded = record(turn(x.partition(128), LOOPS, turning._A, turning._B))
    streams = [device.stream() for _ in range(3)]
    for i in range(1, COUNT + 1):
        recorded.launch().async_on(streams[i % 3])
        api.memcpy(y, x).async_on(streams[(i + 1) % 3])
        np.testing.assert_array_equal(host(y), turning.advanced(START, LOOPS * i))


def test_a_graph_that_goes_while_it_runs_slowly(device):
    """Its own memory is not given to others before it is done."""
    for i in range(COUNT):
        x = api.from_host(START).sync()
        op = x.dup().then(lambda y: turn(y.partition(128), LOOPS, turning._A, turning._B))
        graph = op.then(lambda done, x=x: api.memcpy(x, done[0].unpartition())).graph()
        graph.launch().async_on(device.policy.next_stream())
        if i % 2:
            graph.close()
        del graph
        gc.collect()
        others = [api.full(128, -1, tk.int32).sync() for _ in range(8)]
        np.testing.assert_array_equal(host(x), turning.advanced(START, LOOPS))
        del others


def test_bindings_while_a_launch_runs_slowly(device):
    """What is bound during a launch is for the next one."""
    a, b = (api.from_host(START + i).sync() for i in range(2))
    graph = turn(tk.slot("x", a).partition(128), LOOPS, turning._A, turning._B).graph()
    with device.stream() as stream:
        for _ in range(COUNT):
            graph.bind(x=a).launch().async_on(stream)
            graph.bind(x=b).launch().async_on(stream)
        stream.synchronize()
    for tensor, start in ((a, START), (b, START + 1)):
        np.testing.assert_array_equal(host(tensor), turning.advanced(start, LOOPS * COUNT))


def test_pipeline_of_two_streams_with_double_buffers(device):
    """Copies in and out and work on two streams, each with its graph and its page-locked buffers; results by value."""
    halves = []
    for _ in range(2):
        given, got = memory.pinned(128, np.int32), memory.pinned(128, np.int32)
        x = api.empty(128, tk.int32).sync()
        op = api.memcpy(x, given).then(lambda x: turn(x.partition(128), 1000, turning._A, turning._B))
        op = op.then(lambda done, got=got: done[0].unpartition().to_host(out=got))
        halves.append((given, got, op.graph(), device.stream()))
    pending = [None, None]
    for i in range(2 * COUNT):
        given, got, graph, stream = halves[i % 2]
        if pending[i % 2] is not None:
            future, start = pending[i % 2]
            np.testing.assert_array_equal(future.result(timeout_s=60), turning.advanced(start, 1000))
        start = START + i
        given[:] = start
        pending[i % 2] = (graph.launch().async_on(stream), start)
    for future, start in pending:
        np.testing.assert_array_equal(future.result(timeout_s=60), turning.advanced(start, 1000))
