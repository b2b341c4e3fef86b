"""Ops that say where their parts run, and the smaller combinators."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilekit as tk
from tilekit import api


def where_it_runs():
    """An op whose result is the stream it ran on."""
    return tk.with_context(lambda ctx: tk.value(ctx.stream))


def test_zip_keeps_one_stream_and_parallel_takes_one_each(device):
    assert len(set(tk.zip(*(where_it_runs() for _ in range(4))).sync())) == 1
    with device.stream() as stream:
        streams = tk.zip(*(where_it_runs() for _ in range(4)), parallel=True).sync_on(stream)
    assert streams[0] is stream
    assert len(set(streams)) == 4


def test_parallel_parts_start_after_what_came_before_and_end_before_what_comes_after():
    """Shown by a latch: the fork waits for the stream it forks from, and the join for all parts."""
    device, first, last, seen = tk.Device("cpu"), threading.Event(), threading.Event(), []

    def hold(latch, name):
        def submit(ctx):
            ctx.device.driver.submit(ctx.stream.handle, lambda: (latch.wait(), seen.append(name)))
            return tk.value(None)

        return tk.with_context(submit)

    free = threading.Event()
    free.set()
    op = hold(first, "before").then(lambda _: tk.zip(hold(free, "quick"), hold(last, "slow"), parallel=True))
    with device.stream() as stream:
        future = op.then(lambda _: hold(free, "after")).async_on(stream)
        assert seen == []
        first.set()
        while "quick" not in seen:
            threading.Event().wait(0.001)
        assert set(seen) == {"before", "quick"}
        last.set()
        future.result(timeout_s=60)
    assert seen[0] == "before"
    assert seen[-1] == "after"


def test_parallel_parts_that_split_for_host_values(device):
    def part(k):
        return api.full(8, k).to_host().then(lambda array: api.from_host(array + 1)).to_host()

    results = tk.zip(*map(part, range(5)), parallel=True).sync()
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(8, k + 1, np.float32))


def test_an_error_in_a_parallel_part_is_raised_and_the_others_finish(device):
    y = api.zeros(8).sync()

    def lost(_):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        tk.zip(api.memcpy(y, np.ones(8, np.float32)), tk.value(1).then(lost), parallel=True).sync()
    np.testing.assert_array_equal(y.to_host().sync(), np.ones(8))


def test_join_all(device):
    assert tk.join_all([tk.value(k) for k in range(5)]).sync() == [0, 1, 2, 3, 4]
    tensors = tk.join_all((api.full(4, k).to_host() for k in range(5)), parallel=True).sync()
    assert [t[0] for t in tensors] == [0, 1, 2, 3, 4]
    assert tk.join_all([]).sync() == []


def test_unzip_runs_once_and_gives_each_element(device):
    runs = []
    pair = tk.zip(tk.value(1).inspect(runs.append), api.ones(3))
    one, ones = pair.unzip()
    assert (ones.shape, ones.dtype) == ((3,), tk.float32)
    np.testing.assert_array_equal(ones.to_host().sync(), np.ones(3))
    assert one.sync() == 1
    assert runs == [1]


def test_unzip_has_to_know_how_many(device):
    unknown = tk.value((1, 2)).map(lambda pair: pair)
    with pytest.raises(ValueError, match=r"how many results .* has is not known before it runs; say \.unzip\(count\)"):
        unknown.unzip()
    a, b = unknown.unzip(2)
    assert (b.sync(), a.sync()) == (2, 1)
    both = tk.zip(1, 2)
    with pytest.raises(ValueError, match="has 2 results, not 3"):
        both.unzip(3)
    both.sync()
    first, *others = tk.value((1, 2)).map(lambda pair: pair).unzip(3)
    for op in others:
        op._spent = True
    with pytest.raises(TypeError, match="gave 2 results, not 3"):
        first.sync()


def test_inspect_passes_the_result_on(device):
    seen = []
    x = api.ones(3).inspect(seen.append).sync()
    assert seen == [x]


def test_or_else(device):
    def lost(_):
        raise KeyError("lost")

    assert tk.value(1).then(lost).or_else(lambda error: tk.value(repr(error))).sync() == "KeyError('lost')"
    assert tk.value(1).or_else(lost).sync() == 1
    np.testing.assert_array_equal(api.ones(3).to_host().or_else(lost).sync(), np.ones(3))


def test_and_then_with_context(device):
    with device.stream() as stream:
        result = tk.value(2).and_then_with_context(lambda ctx, x: tk.value((ctx.stream, ctx.device, x))).sync_on(stream)
    assert result == (stream, device, 2)


def test_a_host_function_is_called_when_the_stream_has_come_to_it():
    device, latch, seen = tk.Device("cpu"), threading.Event(), []
    with device.stream() as stream:
        device.driver.submit(stream.handle, lambda: (latch.wait(), seen.append("work")))
        future = tk.host_fn(seen.append, "function").map(lambda _: len(seen)).async_on(stream)
        assert seen == []
        latch.set()
        assert future.result(timeout_s=60) == 2
    assert seen == ["work", "function"]


def test_on_a_device(device):
    cpu = tk.Device("cpu")
    assert where_it_runs().on(cpu).sync().device is cpu
    made = tk.zip(where_it_runs(), where_it_runs().on(cpu), where_it_runs()).sync_on(device.stream())
    assert made[0] is made[2]
    assert made[1].device is cpu
    x = api.zeros(3).sync()
    if device is not cpu:
        with pytest.raises(ValueError, match="works on tensors of"):
            x.dup().on(cpu)


def test_to_another_device(device):
    x = api.arange(5).sync()
    cpu = tk.Device("cpu")
    there = x.to("cpu").sync()
    assert there.device is cpu
    np.testing.assert_array_equal(there.to_host().sync(), np.arange(5))
    assert x.to(device).sync() is x
    back = there.to(device).sync()
    assert back.device is device
    np.testing.assert_array_equal(back.to_host().sync(), np.arange(5))


def test_with_a_policy(device):
    policy = tk.SingleStream(device)
    streams = tk.zip(where_it_runs(), where_it_runs().with_policy(policy)).sync()
    assert streams[1] is policy.next_stream()
    assert streams[0] is not streams[1]


def test_the_least_loaded_stream():
    device, latch = tk.Device("cpu"), threading.Event()
    pool = tk.LeastLoaded(device, streams=3)
    busy = [pool.next_stream() for _ in range(3)]
    assert len(set(busy)) == 3, "in turn while all are idle"
    for stream in busy[:2]:
        device.driver.submit(stream.handle, latch.wait)
        stream.mark()
    assert {pool.next_stream() for _ in range(5)} == {busy[2]}
    busy[2].synchronize()
    latch.set()
    for stream in busy:
        stream.synchronize()
    assert len({pool.next_stream() for _ in range(3)}) == 3


def test_priorities_reach_the_streams(device):
    lowest, highest = device.driver.priority_range()
    pool = tk.StreamPoolRoundRobin(device, 2, priority=highest)
    assert pool.next_stream().priority == highest
    assert lowest >= highest


def test_device_contexts(device):
    with tk.use_device(device):
        devices = tk.init_device_contexts(0, 1)
        assert tk.default_device() is devices[0]
        assert tk.global_policy() is devices[0].policy
        assert tk.global_policy(device) is device.policy
        with pytest.raises(ValueError, match=r"init_device_contexts\(0, 99\): there are"):
            tk.init_device_contexts(0, 99)


def test_pictures():
    op = tk.zip(api.zeros((2, 3)).named("start"), tk.value(1)).first()
    assert repr(op) == "first(Zip(start, Value))"
    assert op.mermaid() == (
        'flowchart TD\n    n0["first float32[2, 3]"]\n    n1["Zip"]\n    n2["start float32[2, 3]"]\n    n3["Value"]\n'
        "    n2 --> n1\n    n3 --> n1\n    n1 --> n0\n"
    )
    assert op.graphviz().startswith("digraph op {")
    assert "n1 -> n0;" in op.graphviz()
    op.sync()


def test_random_numbers(device):
    x, y = (api.rand((50, 20), seed=3).to_host().sync() for _ in range(2))
    np.testing.assert_array_equal(x, y)
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() < 1
    normal = api.randn(5.0, 2.0, 10_000, seed=1).to_host().sync()
    assert abs(normal.mean() - 5) < 0.1
    assert abs(normal.std() - 2) < 0.1
    assert not np.array_equal(api.rand(8).to_host().sync(), api.rand(8).to_host().sync())
    with pytest.raises(
        TypeError, match="randn: random numbers are float16, bfloat16, float32, float64, not int32; cast them afterwards"
    ):
        api.randn(0, 1, 3, dtype=tk.int32)


def test_memcpy(device):
    y, x = api.zeros((4, 6)).sync(), api.arange(24, dtype=tk.float32).sync().reshape(4, 6)
    assert api.memcpy(y, x).sync() is y
    np.testing.assert_array_equal(y.to_host().sync(), np.arange(24).reshape(4, 6))
    api.memcpy(y[:, ::2], x[:, 3:]).sync()
    api.memcpy(y[0], np.full(6, 7, np.float32)).sync()
    api.memcpy(y[1], api.full(6, 8)).sync()
    expected = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected[:, ::2] = np.arange(24).reshape(4, 6)[:, 3:]
    expected[0], expected[1] = 7, 8
    np.testing.assert_array_equal(y.to_host().sync(), expected)
    with pytest.raises(ValueError, match=r"memcpy: float32 of shape \(6,\) into float32 of shape \(4, 6\)"):
        api.memcpy(y, x[0])
    with pytest.raises(TypeError, match="memcpy copies into a tensor that has memory"):
        api.memcpy(api.meta(3), x)
    with pytest.raises(TypeError, match="memcpy copies from a tensor or a NumPy array, not list"):
        api.memcpy(y, [1])


def test_or_else_works_side_by_side(device):
    """A part whose work fails on the device learns of it, and may go on; the others are not touched."""
    if device.kind != "cpu":
        pytest.skip("on a GPU a fault is for good")

    def fail():
        raise ArithmeticError("boom")

    def bad():
        return tk.with_context(lambda ctx: tk.value(ctx.device.driver.submit(ctx.stream.handle, fail)))

    for ops in (
        (bad().or_else(lambda error: tk.value(42)), tk.value(2)),
        (tk.value(2), bad().or_else(lambda error: tk.value(42))),
    ):
        assert sorted(tk.zip(*ops, parallel=True).sync()) == [2, 42]
    with pytest.raises(tk.errors.DeviceError, match="boom"):
        tk.zip(tk.value(1).map(lambda one: one), bad().then(lambda _: tk.host_fn(int)), parallel=True).sync()
