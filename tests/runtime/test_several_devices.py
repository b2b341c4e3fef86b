"""Tensors on several devices of one kind, and copies between them. On one GPU these tests use CPU devices."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu import driver as cpu
from tilekit._runtime.device import Device

ROOT = Path(__file__).resolve().parents[2]


@tk.kernel
def scale(y: tk.InOut, g: float):
    y.store(y.load() * g)


@pytest.fixture
def pair(device):
    """Two devices of one kind: GPUs where there are two."""
    gpus = [found for found in tk.devices() if found.kind == "cuda"]
    if device.kind == "cuda" and len(gpus) > 1:
        found = gpus[:2]
    else:
        found = [Device.of_driver(driver) for driver in cpu.discover(2)]
    yield found
    for used in found:
        used.synchronize()


def on(device, array):
    return api.from_host(array).on(device).sync()


def test_a_copy_goes_straight_to_the_other_device(pair):
    here, there = pair
    array = np.arange(3000, dtype=np.float32).reshape(30, 100)
    x = on(here, array)
    y = x.to(there).sync()
    assert (x.device, y.device) == (here, there)
    np.testing.assert_array_equal(y.to_host().sync(), array)
    np.testing.assert_array_equal(y.to(here).sync().to_host().sync(), array)
    assert x.to(here).sync() is x


def test_nothing_is_waited_for_on_the_way(pair):
    here, there = pair
    gate = threading.Event()
    if here.kind != "cpu":
        pytest.skip("a gate holds up a CPU device's stream, not a GPU's")
    with here.stream() as stream:
        x = on(here, np.ones(64, np.float32))
        here.driver.submit(stream.handle, gate.wait)
        changed = scale(x.partition(32), 3.0).async_on(stream)
        with there.stream() as other:
            copied = x.to(there).async_on(other)
            assert not copied.done()
            gate.set()
            assert copied.result(60).to_host().sync().tolist() == [3] * 64
        changed.result(60)


def test_views_and_empty_tensors_are_copied(pair):
    here, there = pair
    array = np.arange(64 * 48, dtype=np.int32).reshape(64, 48)
    x = on(here, array)
    np.testing.assert_array_equal(x[3:50:3, 5:40].to(there).sync().to_host().sync(), array[3:50:3, 5:40])
    np.testing.assert_array_equal(x[7].to(there).sync().to_host().sync(), array[7])
    assert x[5:5].to(there).sync().to_host().sync().shape == (0, 48)


def test_a_chain_may_change_devices(pair):
    here, there = pair
    x = on(here, np.full(256, 2, np.float32))
    chain = (
        scale(x.partition(64), 3.0)
        .first()
        .unpartition()
        .then(lambda made: made.to(there))
        .then(lambda moved: scale(moved.partition(64), 5.0).first().unpartition().on(there))
        .then(lambda made: made.to(here))
    )
    back = chain.sync_on(here.policy.next_stream())
    assert back.device is here
    assert back.to_host().sync().tolist() == [30] * 256
    assert x.to_host().sync().tolist() == [6] * 256


def test_the_source_may_be_dropped_or_overwritten_at_once(pair):
    here, there = pair
    copies = []
    for i in range(50):
        x = on(here, np.full(10_000, i, np.float32))
        future = x.to(there).schedule(there.policy)
        if i % 2:
            scale(x.partition(1024), -1.0).sync()
        del x
        gc.collect()
        copies.append(future)
    for i, future in enumerate(copies):
        assert (future.result().to_host().sync() == i).all()


def test_a_launch_does_not_mix_devices(pair):
    here, there = pair

    @tk.kernel
    def add(y: tk.InOut, x: tk.In):
        y.store(y.load() + tk.load_tile_like(x, y))

    x, y = on(here, np.ones(64, np.float32)), on(there, np.ones(64, np.float32))
    with pytest.raises(
        ValueError, match=f"arguments y and x are on .*{there.label}.* and .*{here.label}.*; all must be on one device"
    ):
        add(y.partition(32), x).sync()


def test_the_data_parallel_example_uses_every_cpu_device():
    env = {**os.environ, "TILEKIT_DEVICE": "cpu", "TILEKIT_CPU_DEVICES": "3", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(ROOT / "examples" / "09_data_parallel.py"), "--height", "16", "--limit", "5"]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 devices" in done.stdout
    assert "the same picture" in done.stdout


# chains that go from device to device

START = np.arange(1, 65, dtype=np.float32)


def scaled(x, g):
    return scale(x.partition(32), g).first().unpartition()


def added(x, value):
    return x.dup().then(lambda copy: scaled(copy, value))


@pytest.mark.parametrize("step", [scaled, added], ids=["launches", "other ops"])
def test_a_chain_goes_on_where_its_tensors_are(pair, step):
    """And comes back: what follows on either device comes after what was before it on the other."""
    here, there = pair
    x = on(here, START)
    chain = step(x, 2.0).then(lambda a: a.to(there)).then(lambda b: step(b, 3.0)).then(lambda b: b.to(here))
    result = chain.then(lambda c: step(c, 5.0)).sync()
    assert result.device is here
    np.testing.assert_array_equal(result.numpy(), START * 30.0)


def test_parts_of_a_chain_on_each_device(pair):
    here, there = pair
    x, y = on(here, START), on(there, START)
    first, second = tk.value((x, y)).apply(lambda a, b: tk.zip(scaled(a, 2.0), scaled(b, 4.0), parallel=True)).sync()
    assert (first.device, second.device) == (here, there)
    np.testing.assert_array_equal(second.numpy() - first.numpy(), START * 2.0)


def test_what_a_chain_does_elsewhere_is_waited_for(pair):
    """Nobody is told that the chain is done before its work on the other device is."""
    here, there = pair
    if here.kind != "cpu":
        pytest.skip("a gate holds up a CPU device's stream, not a GPU's")
    gate, y = threading.Event(), on(there, START)
    with there.stream() as stream:
        stream.device.driver.submit(stream.handle, lambda: gate.wait(30))
        y.fill(1.0).async_on(stream)
        future = tk.value(on(here, START)).then(lambda x: scaled(x, 2.0)).then(lambda _: scaled(y, 3.0)).schedule(here.policy)
        assert not future.done()
        gate.set()
        np.testing.assert_array_equal(future.result().numpy(), np.full(64, 3.0))


def test_a_recorded_copy_from_the_other_device_takes_what_is_there_then(pair):
    """In a graph, one by one, and in a graph that is part of another; behind whoever writes it there."""
    here, there = pair
    x = on(there, START)
    op = x.to(here).then(lambda copy: scaled(copy, 2.0))
    stream = here.stream()
    graph = op.graph_on(stream)
    prepared = x.to(here).prepare()
    outer = tk.zip(graph.launch(), api.zeros(4).on(here)).graph_on(stream)
    for turn in range(3):
        x.fill(float(turn + 1)).sync_on(there.stream())
        np.testing.assert_array_equal(graph.sync_on(stream).numpy(), np.full(64, 2.0 * (turn + 1)))
        np.testing.assert_array_equal(prepared.sync_on(stream).numpy(), np.full(64, turn + 1.0))
        np.testing.assert_array_equal(outer.sync_on(stream)[0].numpy(), np.full(64, 2.0 * (turn + 1)))


def test_who_overwrites_what_a_graph_copies_waits_for_the_graph(pair):
    here, there = pair
    if here.kind != "cpu":
        pytest.skip("a gate holds up a CPU device's stream, not a GPU's")
    x, gate = on(there, START), threading.Event()
    with here.stream() as stream, there.stream() as other:
        graph = x.to(here).graph_on(stream)
        here.driver.submit(stream.handle, lambda: gate.wait(30))
        graph.run(stream)
        overwritten = x.fill(-1.0).async_on(other)
        assert not overwritten.done()
        gate.set()
        overwritten.result()
        np.testing.assert_array_equal(graph.output.numpy(), START)


def test_work_on_two_devices_cannot_be_recorded(pair):
    here, there = pair
    x = on(here, START)
    with pytest.raises(TypeError, match="a part of it runs on .*and it on"):
        x.to(there).then(lambda a: scaled(a, 2.0)).then(lambda b: b.to(here)).graph_on(there.stream())
