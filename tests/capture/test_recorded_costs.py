"""What a launch of recorded work costs the host, counted as in `test_host_path.py`: all was looked at when it was recorded."""

import pytest
from counting import counted
from fake_gpu import fake_device, launch_through

import tilekit as tk
from tilekit import api


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@pytest.fixture(params=["native", "python"])
def gpu(request, monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    launch_through(request.param, monkeypatch)
    with fake_device() as made:
        yield made


@pytest.fixture
def ways(gpu):
    x, other, y = (api.zeros(2048).sync() for _ in range(3))
    tiles, stream = y.partition(1024), gpu[0].policy.next_stream()
    named = tk.slot("x", x)
    one, ten = (tk.join_all([scale(tiles, named, 1.5) for _ in range(count)]) for count in (1, 10))
    prepared, chain = one.prepare(), ten.prepare()
    one, ten = (tk.join_all([scale(tiles, named, 1.5) for _ in range(count)]) for count in (1, 10))
    graph, long = one.graph(), ten.graph()
    pair = [x, other]

    def bound():
        pair.reverse()
        prepared.bind(x=pair[0])

    def told():
        pair.reverse()
        graph.bind(x=pair[0]).run(stream)

    found = {
        "prepared": lambda: prepared.run(stream),
        "ten prepared": lambda: chain.run(stream),
        "graph": lambda: graph.run(stream),
        "graph of ten": lambda: long.run(stream),
        "graph, waited for": lambda: graph.sync_on(stream),
        "graph as an op": lambda: graph.launch().sync_on(stream),
        "bound": bound,
        "bound and launched": told,
    }
    for way in found.values():
        way()
        way()
    return found


LAUNCH, GRAPH, WAIT = {"cuLaunchKernel": 1}, {"cuGraphLaunch": 1}, {"cuEventRecord": 1, "cuEventQuery": 1}


# The numbers are the budgets of Python calls with and without the compiled part. The function itself is one call.
@pytest.mark.parametrize(
    ("way", "native", "python", "driver"),
    [
        ("prepared", 4, 21, LAUNCH),
        ("ten prepared", 4, 57, LAUNCH | {"cuLaunchKernel": 10}),
        ("graph", 4, 20, GRAPH),
        ("graph of ten", 4, 20, GRAPH),
        ("graph, waited for", 6, 29, GRAPH | WAIT),
        ("graph as an op", 38, 48, GRAPH | WAIT),
        ("bound", 11, 11, {}),
        ("bound and launched", 19, 36, GRAPH | {"cuGraphExecNodeSetParams": 1}),
    ],
)
def test_recorded_work_stays_within_its_budget(request, gpu, ways, way, native, python, driver):
    gpu[1].calls.clear()
    calls = counted(ways[way])
    assert {name: count for name, count in gpu[1].calls.items() if not name.startswith("cuCtx")} == driver
    assert calls <= (native if "native" in request.node.callspec.id else python)
