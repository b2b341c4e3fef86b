"""What it costs the host to run a ready-made kernel, and a launch whose result is new, counted in calls of Python functions.

As in `tests/native/test_host_path.py`, on a GPU that does nothing. A kernel of 64 MB takes 30 microseconds on an H200; at 0.1 a
call, a few hundred calls would be as much. What is counted are ops that are recalled (`kernels._recall`).
"""

import pytest
from counting import counted
from fake_gpu import fake_device, launch_through

import tilekit as tk
from tilekit import api, kernels


@tk.kernel
def scale(y: tk.Out, x: tk.In, g: float):
    y.store(tk.load_tile_like(x, y) * g)


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    launch_through(request.param, monkeypatch)
    return request.param


@pytest.fixture
def gpu(way):
    pytest.importorskip("numba.cuda", reason="compiles kernels")
    with fake_device() as (_, driver):
        yield driver


@pytest.fixture
def ways(gpu):
    """What is run, each once before."""
    stream = tk.default_device().policy.next_stream()
    x, g = (api.empty((256, 4096), tk.float16).sync() for _ in range(2))
    w, b = (api.empty(4096, tk.float16).sync() for _ in range(2))
    flat, out = api.empty(2048).sync(), api.empty((256, 4096), tk.float16).sync()
    tiles = api.empty(2048).sync().partition(1024)
    made = {
        "launch": lambda: scale(tiles, flat, 1.5),
        "lazy output": lambda: scale(api.empty(2048).partition(1024), flat, 1.5).first().unpartition(),
        "rms_norm": lambda: kernels.rms_norm(x, w),
        "rms_norm, out": lambda: kernels.rms_norm(x, w, out=out),
        "layer_norm": lambda: kernels.layer_norm(x, w, b),
        "softmax": lambda: kernels.softmax(x),
        "l2_norm": lambda: kernels.l2_norm(x),
        "swiglu_backward": lambda: kernels.swiglu_backward(g, x, x),
        "rms_norm_backward": lambda: kernels.rms_norm_backward(g, x, w),
        "layer_norm_backward": lambda: kernels.layer_norm_backward(g, x, w),
    }
    return {name: lambda build=build: build().sync_on(stream) for name, build in made.items()}


# Of the compiled part, and of Python alone where it is not even installed; and of the driver's: launches, and blocks of memory
# beside the one of each size that is kept.
BUDGETS = {
    "lazy output": (97, 108, 1, 0),
    "rms_norm": (5, 77, 1, 0),
    "rms_norm, out": (5, 68, 1, 0),
    "layer_norm": (5, 77, 1, 0),
    "softmax": (5, 77, 1, 0),
    "l2_norm": (5, 77, 1, 0),
    "swiglu_backward": (40, 106, 1, 1),
    "rms_norm_backward": (99, 205, 3, 0),
    "layer_norm_backward": (101, 212, 3, 0),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_kernel_stays_within_its_budget(gpu, way, ways, name):
    native, python, launches, blocks = BUDGETS[name]
    for _ in range(3):
        ways[name]()  # what the others left is freed by now, and kept for the next
    gpu.calls.clear()
    assert counted(ways[name]) <= (native if way == "native" else python)
    assert (gpu.calls["cuLaunchKernel"], gpu.calls["cuMemAllocAsync"]) == (launches, blocks)
    assert not [call for call in gpu.calls if call.startswith("cuMemset")]  # nothing is filled that is written anyway


def test_a_new_result_costs_no_more_than_its_memory(gpu, ways):
    new, given = (ways[name] for name in ("rms_norm", "rms_norm, out"))
    for way in (new, given) * 3:
        way()
    assert counted(new) <= counted(given) + 24
