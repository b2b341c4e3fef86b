"""What a recorded op makes of the driver's graphs, on a GPU that does nothing."""

import gc
import struct

import pytest
from fake_gpu import fake_gpu

import tilekit as tk
from tilekit import api
from tilekit.schedule import SingleStream


@tk.kernel
def scale(y: tk.InOut, x: tk.In, a: float):
    y.store(tk.load_tile_like(x, y) * a)


@pytest.fixture
def gpu():
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    device, driver = fake_gpu()
    driver.slots = 5  # two addresses and extents, and the scalar
    with tk.use_device(device):
        device.policy = SingleStream(device)
        yield device, driver


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
