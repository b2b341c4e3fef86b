"""Recorded nodes that run on other memory each time (`FAST_PATH.movable_program`), and what is refused."""

from __future__ import annotations

import struct

import pytest
from fake_gpu import fake_device

import tilekit as tk
from tilekit import _native, api
from tilekit._capture.recorder import Recording
from tilekit.ops.fast_path import FAST_PATH

if _native.compiled is None:
    pytest.skip("tilekit was installed without a C compiler", allow_module_level=True)
pytest.importorskip("numba.cuda", reason="compiles kernels")
program = pytest.importorskip("tilekit._native.program")


@tk.kernel
def scale(y: tk.Out, x: tk.In, factor):
    y.store(tk.astype(tk.load_tile_like(x, y) * factor, tk.float32))


@pytest.fixture
def gpu():
    with fake_device(5) as made:
        yield made


def written(device, op):
    """The nodes of an op, and the memory that it was given and has made."""
    recording = Recording(device, device.policy.next_stream(), op)
    recording.run(op)
    recording.finish()
    return recording.nodes, [storage.memory for storage in (*recording.reads.values(), *recording.writes.values())]


def test_all_kinds_of_nodes_are_moved(gpu):
    device, driver = gpu
    x, y = (api.ones(100).sync() for _ in range(2))
    nodes, _ = written(device, tk.zip(scale(y, x, 2.0).tile(64), api.memcpy(y, x)))
    memories = [x.storage.memory, y.storage.memory]
    made = FAST_PATH.movable_program(device.driver, nodes, memories)
    before = len(driver.launches)
    for to in (1 << 20, 1 << 21):
        assert made.run_at((to, 2 * to), 77) == 0
        launch = driver.launches[-1]
        assert launch[4] == 77, "the stream"
        assert struct.unpack("=4qd", launch[-1]) == (2 * to, 100, to, 100, 2.0)
        assert ("cuMemcpyAsync", 2 * to, to, 400) in driver.copies
    assert len(driver.launches) == before + 2


def test_memory_that_nobody_named_is_not_moved(gpu):
    device, _ = gpu
    x, y = (api.ones(100).sync() for _ in range(2))
    nodes, _ = written(device, scale(y, x, 2.0).tile(64))
    assert FAST_PATH.movable_program(device.driver, nodes, [x.storage.memory]) is None


def test_another_current_device_and_too_few_addresses(gpu):
    device, driver = gpu
    x, y = (api.ones(100).sync() for _ in range(2))
    nodes, _ = written(device, scale(y, x, 2.0).tile(64))
    made = FAST_PATH.movable_program(device.driver, nodes, [x.storage.memory, y.storage.memory])
    before = len(driver.launches)
    assert made.run_at((1 << 20,), 0) == -1
    driver.context = 8
    assert made.run_at((1 << 20, 1 << 21), 0) == -1
    driver.context = 7
    driver.refuse = 700
    assert made.run_at((1 << 20, 1 << 21), 0) == 700
    assert len(driver.launches) == before + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"moves": struct.pack("=4q", -8, 0, 0, 0)},
        {"moves": struct.pack("=4q", 4, 0, 0, 0)},
        {"moves": struct.pack("=4q", 1 << 20, 0, 0, 0)},
        {"moves": struct.pack("=4q", 8, -1, 0, 0)},
        {"moves": struct.pack("=4q", 8, 0, 0, 1)},
        {"moves": b"123"},
        {"moves": None},
        {"blocks": b""},
    ],
    ids=str,
)
def test_moves_and_blocks_outside_of_a_program_are_refused(gpu, changed):
    device, _ = gpu
    calls = program._calls(device.driver)
    steps = program._packed(_native.compiled.LAUNCH, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0)
    good = {"blocks": bytes(64), "moves": struct.pack("=4q", 128, 0, 0, 0)}
    assert _native.compiled.Program(steps=steps, **good, **calls)
    options = {name: value for name, value in (good | changed).items() if value is not None}
    with pytest.raises(ValueError, match="a launch or a move is outside of the steps and blocks"):
        _native.compiled.Program(steps=steps, **options, **calls)


def test_what_is_not_taken(gpu):
    device, _ = gpu
    fixed = program.program(device.driver, [])
    for asked in ((), ((1,),), ([1], 2), ((1,), 2)):
        with pytest.raises(TypeError, match="expected a tuple of addresses"):
            fixed.run_at(*asked)
    with pytest.raises(TypeError, match="expected a dict, a tuple, and two functions"):
        _native.compiled.repeat({}, [], min, min)
    assert _native.compiled.repeat({}, (1, 2.0, "a", None, [3], True), min, min) == (
        int, 1, float, 2.0, str, "a", type(None), None, (3,), bool, True,
    )  # fmt: skip
    assert _native.compiled.repeat({}, (0.0,), min, min) is None
    assert _native.compiled.repeat({}, (object(),), min, min) is None
