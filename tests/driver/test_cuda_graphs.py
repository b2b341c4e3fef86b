"""What a recorded op makes of the driver's graphs, on a GPU that does nothing."""

import gc
import struct

import pytest
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api
from tilekit._native import compiled as native
from tilekit.compiler.kernel import CompiledKernel

compiled = pytest.mark.skipif(native is None, reason="tilekit was installed without a C compiler")


@tk.kernel
def scale(y: tk.InOut, x: tk.In, a: float):
    y.store(tk.load_tile_like(x, y) * a)


@pytest.fixture
def gpu():
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    with fake_device(slots=5) as made:  # two addresses and extents, and the scalar
        yield made


def test_one_call_launches_all(gpu):
    _device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    graph = tk.zip(scale(y.partition(1024), x, 2.0), api.memcpy(x, y), x.fill(1.5)).graph()
    driver.calls.clear()
    graph.launch().sync()
    assert driver.calls["cuGraphLaunch"] == 1
    assert driver.calls["cuLaunchKernel"] == 0
    (kernel, (_, grid, block, _, values)), copy, fill = driver.graphs[-1]
    assert (kernel, grid) == ("kernel", (2, 1, 1))
    assert block[0] % 32 == 0
    assert struct.unpack("=QqQqd", values) == (y.address, 2048, x.address, 2048, 2.0)
    assert copy == ("memcpy", (x.address, y.address, x.nbytes))
    assert fill == ("memset", (x.address, struct.unpack("=I", struct.pack("=f", 1.5))[0], 4, 2048))


def test_what_is_bound_is_told_before_the_next_launch(gpu):
    _device, driver = gpu
    x, other, y = (api.zeros(2048).sync() for _ in range(3))
    op = tk.zip(scale(y.partition(1024), tk.slot("x", x), tk.slot("a", 2.0)), api.memcpy(y, tk.slot("z", x)))
    graph = op.graph()
    graph.launch().sync()
    driver.calls.clear()
    graph.bind(x=other, a=4.0).bind(a=5.0)
    assert driver.calls["cuGraphExecNodeSetParams"] == 0
    graph.launch().sync()
    assert driver.calls["cuGraphExecNodeSetParams"] == 1, "for both, and the two bindings of one"
    (_, (*_, values)), copy = driver.graphs[-1]
    assert struct.unpack("=QqQqd", values)[2:] == (other.address, 2048, 5.0)
    assert copy[1][1] == x.address
    graph.bind(x=other, a=5.0).launch().sync()
    assert driver.calls["cuGraphExecNodeSetParams"] == 1, "nothing has changed"
    graph.bind(z=other).launch().sync()
    assert driver.graphs[-1][1][1][1] == other.address


def test_branches_wait_for_words(gpu):
    _device, driver = gpu
    words, x = api.zeros(4, tk.int64).sync(), api.zeros(2048).sync()

    def wait(ctx):
        ctx.driver.wait_for_word(words.storage.memory, 16, 7, ctx.stream.handle)
        return x.fill(1.5)

    tk.with_context(wait).sync()
    assert driver.calls["cuStreamWaitValue64"] == 1
    graph = tk.with_context(wait).graph()
    graph.launch().sync()
    assert driver.calls["cuStreamWaitValue64"] == 1
    assert [kind for kind, _ in driver.graphs[-1]] == ["wait", "memset"]
    assert driver.graphs[-1][0][1] == (4, words.address + 16, 7, 0)


def early(driver, op):
    """Which of a graph's nodes may begin before the one before them has ended, a letter each: `y` or `n`."""
    op.graph().launch().sync()
    nodes = list(driver._executables.values())[-1]["nodes"]
    return "".join("ny"[getattr(node, "early", False)] for node in nodes)


@pytest.mark.parametrize("waits", [True, False])
def test_launches_along_a_chain_begin_early_if_they_wait_by_themselves(gpu, monkeypatch, waits):
    _device, driver = gpu
    monkeypatch.setattr(CompiledKernel, "starts_early", waits)
    x, y, z = (api.zeros(2048).sync() for _ in range(3))

    def launch(to, of):
        return scale(to.partition(1024), of, 2.0)

    chain = tk.zip(launch(y, x), launch(x, y), launch(y, x))
    assert early(driver, chain) == ("nyy" if waits else "nnn")
    large = scale(x.partition(8), y, 2.0)  # 256 blocks
    assert early(driver, tk.zip(launch(y, x), large, launch(y, x))) == "nnn", "blocks would share multiprocessors"
    assert early(driver, tk.zip(launch(y, x), api.memcpy(z, y), launch(x, z))) == "nnn", "behind a copy"
    fork = launch(y, x).then(lambda done: tk.zip(launch(x, y), launch(z, y), parallel=True))
    assert early(driver, fork) == "nnn", "two wait for the first one"
    join = tk.zip(launch(y, x), launch(z, x), parallel=True).then(lambda done: launch(z, y))
    assert early(driver, join) == "nnn", "the last one waits for two"


def test_a_prepared_op_is_launched_node_by_node(gpu):
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    stream = device.policy.next_stream()
    prepared = tk.join_all([scale(y.partition(1024), x, float(i)) for i in range(3)]).prepare()
    driver.calls.clear()
    driver.launches.clear()
    prepared.run(stream)
    assert driver.calls["cuLaunchKernel"] == 3
    assert [struct.unpack("=d", values[-8:])[0] for *_, values in driver.launches] == [0.0, 1.0, 2.0]


@compiled
def test_copies_and_fills_are_prepared_too(gpu):
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    op = tk.zip(api.memcpy(tk.slot("y", y), x), x.fill(1.5), x[:8].fill(0.0), y.reinterpret(tk.int16).fill(7))
    prepared, stream = op.prepare(), device.policy.next_stream()
    prepared.run(stream)
    word = struct.unpack("=I", struct.pack("=f", 1.5))[0]
    assert driver.copies == [
        ("cuMemcpyAsync", y.address, x.address, x.nbytes),
        ("cuMemsetD32Async", x.address, word, 2048),
        ("cuMemsetD8Async", x.address, 0, 32),
        ("cuMemsetD16Async", y.address, 7, 4096),
    ]
    other = api.zeros(2048).sync()
    prepared.run(stream, y=other)
    assert driver.copies[4][1] == other.address


@compiled
def test_who_uses_the_memory_elsewhere_is_waited_for(gpu):
    """Native code does nothing then: Python waits, and remembers."""
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    prepared, stream, other = scale(y.partition(1024), x, 2.0).prepare(), device.policy.next_stream(), device.stream()
    prepared.run(stream)
    driver.not_ready = 100
    driver.calls.clear()
    prepared.run(other)
    assert driver.calls["cuStreamWaitEvent"] == 1
    assert y.storage.last_write[0] is other
    driver.calls.clear()
    prepared.run(other)
    assert driver.calls["cuStreamWaitEvent"] == 0
    driver.not_ready = 0


@compiled
def test_what_the_driver_refuses_is_raised(gpu):
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    prepared, stream = scale(y.partition(1024), x, 2.0).prepare(), device.policy.next_stream()
    driver.refuse = 1
    with pytest.raises(tk.DeviceError, match="running kernel scale: CUDA_ERROR_FAKE"):
        prepared.run(stream)
    driver.refuse = 0
    prepared.run(stream)
    assert y.storage.last_write == (stream, stream.pending)


def test_a_graph_is_destroyed_when_its_launches_are_done(gpu):
    device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    for close in (True, False):
        graph = scale(y.partition(1024), x, 2.0).graph()
        graph.launch().sync()
        driver.calls.clear()
        if close:
            graph.close()
        del graph
        gc.collect()
        device.collect()
        device.collect()
        assert driver.calls["cuGraphExecDestroy"] == driver.calls["cuGraphDestroy"] == 1


def test_a_graph_that_the_driver_refuses_leaves_nothing(gpu, monkeypatch):
    _device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    monkeypatch.setattr(driver, "cuGraphInstantiate", lambda *_: (801, None))
    driver.calls.clear()
    with pytest.raises(tk.DeviceError, match="as a driver would explain it"):
        scale(y.partition(1024), x, 2.0).graph()
    assert driver.calls["cuGraphDestroy"] == 1


def test_a_graph_in_a_graph_is_a_child(gpu):
    _device, driver = gpu
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    inner = scale(y.partition(1024), x, 2.0).graph()
    outer = tk.zip(inner.launch(), scale(y.partition(1024), x, 3.0)).graph()
    outer.launch().sync()
    (kind, inside), (kernel, _) = driver.graphs[-1]
    assert (kind, kernel, len(inside)) == ("child", "kernel", 1)
