"""What a launch costs the host, counted: calls of Python functions, and of the driver's, on a GPU that does nothing.

Times differ between machines, counts do not. A change that needs a higher budget here makes every launch slower: on an H200's
host a call is about 0.1 microseconds.
"""

import asyncio
import gc
import os
import sys

import pytest
from fake_gpu import fake_gpu

import tilekit as tk
from tilekit import api
from tilekit.compiler import load
from tilekit.schedule import ExecutionContext, SingleStream

PACKAGE = os.path.dirname(tk.__file__)


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@pytest.fixture(params=["native", "python"])
def gpu(request, monkeypatch):
    pytest.importorskip("numba.cuda", reason="compiles a kernel")
    monkeypatch.setenv("TILEKIT_NATIVE", str(int(request.param == "native")))
    if request.param == "native" and load._Launcher is None:
        pytest.skip("tilekit was installed without a C compiler")
    device, driver = fake_gpu()
    with tk.use_device(device):
        device.policy = SingleStream(device)
        yield device, driver


def counted(function):
    """How many Python functions `function` calls, itself included."""
    calls = 0

    def profile(frame, event, argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    gc.disable()  # finalizers of other tests' would be counted
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.fixture
def launches(gpu):
    """Ways to launch one small op with three arguments, each run before, and the budget of Python calls."""
    x, y = api.zeros(2048).sync(), api.zeros(2048).sync()
    tiles, stream = y.partition(1024), gpu[0].policy.next_stream()
    loop = asyncio.new_event_loop()

    async def awaited():
        await scale(tiles, x, 1.5)

    def chained():
        op = scale(tiles, x, 1.5)
        for _ in range(9):
            op = op.apply(scale)
        op.sync()

    ways = {
        "sync": lambda: scale(tiles, x, 1.5).sync(),
        "async_on": lambda: scale(tiles, x, 1.5).async_on(stream),
        "await": lambda: loop.run_until_complete(awaited()),
        "a chain of ten": chained,
    }
    for way in ways.values():
        way()
        way()
    yield ways
    loop.close()


# Each launch: cuLaunchKernel. Each submission: one event recorded; each wait: a query, which this GPU answers at once.
@pytest.mark.parametrize(
    ("way", "native", "python", "driver"),
    [
        ("sync", 34, 42, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("async_on", 32, 40, {"cuLaunchKernel": 1, "cuEventRecord": 1}),
        ("await", 44, 52, {"cuLaunchKernel": 1, "cuEventRecord": 1, "cuEventQuery": 1}),
        ("a chain of ten", 201, 281, {"cuLaunchKernel": 10, "cuEventRecord": 1, "cuEventQuery": 1}),
    ],
)
def test_a_launch_stays_within_its_budget(request, gpu, launches, way, native, python, driver):
    gpu[1].calls.clear()
    calls = counted(launches[way])
    asked = {name: count for name, count in gpu[1].calls.items() if not name.startswith("cuCtx")}
    assert asked == driver
    assert calls <= (native if "native" in request.node.callspec.id else python)


# 4 KB of device memory, allocated and dropped: `ExecutionContext.allocate`, `storage.allocate`, and the storage's finalizer.
def test_allocating_stays_within_its_budget():
    device, driver = fake_gpu()
    ctx = ExecutionContext(device, device.stream())
    ctx.allocate(4096)
    driver.calls.clear()
    assert counted(lambda: ctx.allocate(4096)) <= 3
    assert not driver.calls
