"""`kernels.all_reduce` on CPU devices: against NumPy, over many calls whose data changes, recorded, and what it refuses."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._groups import Group
from tilekit.errors import GroupError
from tilekit.kernels._collective.all_reduce import AllReduceWorkspace, all_reduce

LIMIT_S = 60

NUMPY = {
    "sum": lambda parts: sum(parts),
    "avg": lambda parts: sum(parts) / len(parts),
    "prod": lambda parts: np.prod(parts, axis=0),
    "max": lambda parts: np.max(parts, axis=0),
    "min": lambda parts: np.min(parts, axis=0),
}


def drawn(rng, size, shape, dtype=np.float32):
    """Small whole numbers, whose sums and products every dtype holds."""
    return [rng.integers(-3, 4, shape).astype(dtype) for _ in range(size)]


@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums_of_all_sizes(group_of, placed, size, two_shot):
    """One element, tails of tiles and of pieces, all blocks and several turns of each: always every member's numbers."""
    group, rng = group_of(size), np.random.default_rng(size)
    workspace = AllReduceWorkspace(group, 5000)
    for count in (1, 1023, 5000, 257):
        parts = drawn(rng, size, count)
        found = all_reduce(placed(group, parts), workspace, two_shot=two_shot).sync()
        assert [y.device for y in found] == list(group.devices)
        for y in found:
            assert np.array_equal(y.numpy(), sum(parts))


@pytest.mark.parametrize("op", list(NUMPY))
@pytest.mark.parametrize("dtype", [tk.float32, tk.float16, tk.bfloat16], ids=lambda dtype: dtype.name)
def test_reductions(group_of, placed, op, dtype):
    group, rng = group_of(3), np.random.default_rng(5)
    workspace = AllReduceWorkspace(group, (4, 30), dtype)
    parts = drawn(rng, 3, (4, 30), dtype)
    wanted = NUMPY[op]([part.astype(np.float32) for part in parts]).astype(dtype)
    for y in all_reduce(placed(group, parts), workspace, op).sync():
        assert y.shape == (4, 30) and y.dtype == dtype
        assert np.array_equal(y.numpy().astype(np.float32), wanted.astype(np.float32))


def test_sums_of_16_bits_are_rounded_once(group_of, placed):
    group = group_of(3)
    parts = [np.full(8, value, np.float16) for value in (2048, 1, 1)]
    for y in all_reduce(placed(group, parts), AllReduceWorkspace(group, 8, tk.float16)).sync():
        assert y.numpy().tolist() == [2050] * 8, "2048 + 1 is 2048 in float16"


@pytest.mark.parametrize("size", [2, 4])
def test_many_calls_whose_data_changes(group_of, placed, size):
    """The halves of the stages are used in turns, by both ways, and by calls of different lengths."""
    group, rng = group_of(size), np.random.default_rng(size)
    workspace = AllReduceWorkspace(group, 3000)
    for call in range(60):
        parts = drawn(rng, size, (3000, 257)[call % 3 == 1])
        two_shot = call % 2 == 0
        for y in all_reduce(placed(group, parts), workspace, two_shot=two_shot).sync():
            assert np.array_equal(y.numpy(), sum(parts)), call


def test_calls_under_way_at_the_same_time(group_of, placed):
    """Several are submitted before the first is waited for; all devices have them in one order."""
    group, rng = group_of(2), np.random.default_rng(0)
    workspace = AllReduceWorkspace(group, 500)
    calls = [drawn(rng, 2, 500) for _ in range(12)]

    async def together():
        ops = [all_reduce(placed(group, parts), workspace) for parts in calls]
        return await asyncio.gather(*(op.run() for op in ops))

    for parts, found in zip(calls, asyncio.run(together()), strict=True):
        for y in found:
            assert np.array_equal(y.numpy(), sum(parts))


def test_it_takes_ops_views_and_places_for_results(group_of, placed):
    group = group_of(2)
    workspace = AllReduceWorkspace(group, (6, 4))
    parts = [np.arange(24, dtype=np.float32).reshape(6, 4) + rank for rank in range(2)]
    ops = [api.from_host(part) for part in parts]
    for y in all_reduce(ops, workspace).sync():
        assert np.array_equal(y.numpy(), sum(parts))
    turned = [tensor.T for tensor in placed(group, parts)]
    out = placed(group, [np.zeros((4, 6), np.float32)] * 2)
    found = all_reduce(turned, workspace, out=out).sync()
    assert found[0] is out[0] and found[1] is out[1]
    for y in out:
        assert np.array_equal(y.numpy(), sum(parts).T)
    assert all_reduce([api.zeros(0), api.zeros(0)], workspace).sync()[0].shape == (0,)


def test_what_is_done_with_it_next(group_of, placed):
    """Its result is ordered with other work by its memory."""
    group = group_of(2)
    workspace = AllReduceWorkspace(group, 64)
    x = placed(group, [np.full(64, rank + 1, np.float32) for rank in range(2)])
    for _ in range(5):
        x = all_reduce(x, workspace).sync()
    doubled = all_reduce(x, workspace).then(lambda ys: ys[0].dup()).sync()
    assert doubled.numpy().tolist() == [3.0 * 2**5] * 64


def test_joined_members_and_graphs(members):
    """A recorded call finds its number in memory: it is launched again and again, between others."""

    def use(group):
        workspace, rank = AllReduceWorkspace(group, 700, tk.float32), group.rank
        device = group.devices[0]
        x = api.full(700, 0.0).on(device).sync()
        op = all_reduce(x, workspace)
        assert op.spec.shape == (700,)
        stream = device.stream()
        graph = op.graph_on(stream)
        found = []
        for call in range(8):
            x.fill(float(call + rank)).sync_on(stream)
            graph.run(stream)
            stream.synchronize()
            found.append(set(graph.output.numpy().tolist()))
            direct = all_reduce(x, workspace, "max", two_shot=call % 2 == 1).sync_on(stream)
            found.append(set(direct.numpy().tolist()))
        return found

    for found in members(use, 3):
        assert found == [{value} for call in range(8) for value in (3.0 * call + 3, call + 2.0)]


def test_who_waits_for_a_member_that_is_gone_can_be_released(members):
    def use(group):
        workspace, device = AllReduceWorkspace(group, 300), group.devices[0]
        group.barrier().sync()
        if group.rank == 0:
            future = all_reduce(api.zeros(300).on(device).sync(), workspace).async_on(device.stream())
            with pytest.raises(TimeoutError):
                future.result(timeout_s=0.2)
            workspace.release()
            future.result(timeout_s=LIMIT_S)
        group.barrier().sync()

    members(use, 2)


def test_several_devices_are_not_recorded_in_one_graph(group_of, placed):
    group = group_of(2)
    op = all_reduce(placed(group, [np.zeros(4, np.float32)] * 2), AllReduceWorkspace(group, 4))
    with pytest.raises(TypeError, match="works on 2 devices, and a graph is of one"):
        op.graph_on(group.devices[0].stream())


def test_interpreted(group_of, placed, monkeypatch):
    """Under TILEKIT_CHECKS=1 the kernels run as Python, with all their checks, and wait for each other all the same."""
    monkeypatch.setenv("TILEKIT_CHECKS", "1")
    group, rng = group_of(2), np.random.default_rng(1)
    workspace = AllReduceWorkspace(group, 300)
    for two_shot in (False, True):
        parts = drawn(rng, 2, 300)
        for y in all_reduce(placed(group, parts), workspace, two_shot=two_shot).sync():
            assert np.array_equal(y.numpy(), sum(parts))


def test_the_way_follows_from_the_size(group_of):
    for size, count, two_shot in ((2, 1 << 20, False), (4, 1 << 14, False), (4, 1 << 17, True)):
        workspace = AllReduceWorkspace(group_of(size), count)
        assert workspace.schedule(count).two_shot is two_shot


def test_misuse(group_of, placed):
    group = group_of(2)
    workspace = AllReduceWorkspace(group, 8)
    x = placed(group, [np.zeros(8, np.float32)] * 2)
    cases = [
        (TypeError, "workspace is a kernels.AllReduceWorkspace, not 8", lambda: all_reduce(x, 8)),
        (ValueError, "op is", lambda: all_reduce(x, workspace, "mean")),
        (TypeError, "two_shot is True, False or None, not 1", lambda: all_reduce(x, workspace, two_shot=1)),
        (TypeError, "x of rank 0 holds int32", lambda: all_reduce(placed(group, [np.zeros(8, np.int32)] * 2), workspace)),
        (
            ValueError,
            "has 9 elements, and the workspace room for 8",
            lambda: all_reduce(placed(group, [np.zeros(9, np.float32)] * 2), workspace),
        ),
        (ValueError, r"rank 1 has shape \(4,\)", lambda: all_reduce([x[0], x[1][:4]], workspace)),
        (ValueError, r"out of rank 0 is float32 \(4,\)", lambda: all_reduce(x, workspace, out=[t[:4] for t in x])),
        (ValueError, "out of rank 0 shares memory with x", lambda: all_reduce(x, workspace, out=x)),
        (ValueError, "1 tensors for x", lambda: all_reduce(x[:1], workspace)),
        (TypeError, "group is a tk.Group, not 2", lambda: AllReduceWorkspace(2, 8)),
        (TypeError, "adds up float16, bfloat16, float32, not int32", lambda: AllReduceWorkspace(group, 8, tk.int32)),
        (ValueError, "one at least", lambda: AllReduceWorkspace(group, 0)),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
    gap = placed(group, [np.zeros((8, 2), np.float32)] * 2)
    with pytest.raises(ValueError, match="out of rank 0 has gaps"):
        all_reduce(x, workspace, out=[t[:, 0] for t in gap])
    op = all_reduce(x, workspace)
    group.close()
    with pytest.raises(GroupError, match="was closed"):
        op.sync()


def test_repr(group_of):
    assert "AllReduceWorkspace of up to 1,000 float16 for <tilekit.Group of 2" in repr(
        AllReduceWorkspace(group_of(2), 1000, tk.float16)
    )


def test_groups_share_devices(group_of, placed):
    """Two groups of the same devices have workspaces of their own."""
    first, second = group_of(2), group_of(2)
    assert isinstance(first, Group)
    spaces = [AllReduceWorkspace(group, 16) for group in (first, second)]
    for call in range(6):
        parts = [np.full(16, call + rank, np.float32) for rank in range(2)]
        for y in all_reduce(placed(first, parts), spaces[call % 2]).sync():
            assert np.array_equal(y.numpy(), sum(parts))
