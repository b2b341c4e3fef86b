"""`kernels.all_gather_matmul` and `kernels.matmul_reduce_scatter` on CPU devices: against NumPy, over calls whose data changes,
recorded, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.errors import GroupError
from tilekit.kernels._collective.products import (
    AllGatherWorkspace,
    ReduceScatterWorkspace,
    all_gather_matmul,
    matmul_reduce_scatter,
)

LIMIT_S = 60


def drawn(rng, count, shape, dtype=np.float32):
    """Small whole numbers, whose products are exact in any order."""
    return [rng.integers(-4, 5, shape).astype(dtype) for _ in range(count)]


def wide(arrays):
    return [array.astype(np.float32) for array in arrays]


@pytest.mark.parametrize(("m", "k", "n"), [(32, 64, 48), (5, 7, 9)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gathered(group_of, placed, size, m, k, n):
    group, rng = group_of(size), np.random.default_rng(size)
    workspace = AllGatherWorkspace(group, (m, k))
    for _ in range(3):
        lefts, rights = drawn(rng, size, (m, k)), drawn(rng, size, (k, n))
        found = all_gather_matmul(placed(group, lefts), placed(group, rights), workspace).sync()
        for y, right, device in zip(found, rights, group.devices, strict=True):
            assert y.device is device
            assert np.array_equal(y.numpy(), np.concatenate(lefts) @ right)


@pytest.mark.parametrize(("m", "k", "n"), [(32, 64, 48), (5, 7, 9)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_scattered(group_of, placed, size, m, k, n):
    group, rng = group_of(size), np.random.default_rng(size)
    workspace = ReduceScatterWorkspace(group, (size * m, n))
    for _ in range(3):
        lefts, rights = drawn(rng, size, (size * m, k)), drawn(rng, size, (k, n))
        whole = sum(left @ right for left, right in zip(lefts, rights, strict=True))
        found = matmul_reduce_scatter(placed(group, lefts), placed(group, rights), workspace).sync()
        for rank, y in enumerate(found):
            assert y.device is group.devices[rank]
            assert np.array_equal(y.numpy(), whole[rank * m : (rank + 1) * m])


@pytest.mark.parametrize("tile", [None, (16, 16, 16), (32, 64, 16)])
def test_many_tiles(group_of, placed, tile):
    """Blocks that visit several tiles, of all members' rows, and tiles that hang over the edge of each."""
    group, rng = group_of(2), np.random.default_rng(3)
    lefts, rights = drawn(rng, 2, (70, 40)), drawn(rng, 2, (40, 90))
    gathered = all_gather_matmul(placed(group, lefts), placed(group, rights), AllGatherWorkspace(group, (70, 40)), tile=tile)
    for y, right in zip(gathered.sync(), rights, strict=True):
        assert np.array_equal(y.numpy(), np.concatenate(lefts) @ right)
    space = ReduceScatterWorkspace(group, (70, 90))
    whole = sum(left @ right for left, right in zip(lefts, rights, strict=True))
    for rank, y in enumerate(matmul_reduce_scatter(placed(group, lefts), placed(group, rights), space, tile=tile).sync()):
        assert np.array_equal(y.numpy(), whole[35 * rank : 35 * rank + 35])


@pytest.mark.parametrize("tile", [None, (64, 16, 16)])
@pytest.mark.parametrize("size", [2, 3])
def test_rows_leave_in_chunks(group_of, placed, size, tile):
    """Members have other sums, and so other tiles perhaps; their rows go by the same chunks."""
    group, rng, rows = group_of(size), np.random.default_rng(5), 2500
    space = ReduceScatterWorkspace(group, (size * rows, 24))
    for _ in range(3):
        pairs = [
            [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((size * rows, k), (k, 24))] for k in (16, 48, 5)[:size]
        ]
        whole, operands = sum(a @ b for a, b in pairs), zip(*pairs, strict=True)
        found = matmul_reduce_scatter(*(placed(group, list(each)) for each in operands), space, tile=tile).sync()
        for rank, y in enumerate(found):
            assert np.array_equal(y.numpy(), whole[rows * rank : rows * rank + rows])


@pytest.mark.parametrize("dtype", [tk.float16, tk.bfloat16, tk.float32, tk.float64], ids=lambda dtype: dtype.name)
def test_dtypes(group_of, placed, dtype):
    group, rng = group_of(2), np.random.default_rng(4)
    lefts, rights = drawn(rng, 2, (16, 16), dtype), drawn(rng, 2, (16, 16), dtype)
    space = AllGatherWorkspace(group, (16, 16), dtype)
    for y, right in zip(all_gather_matmul(placed(group, lefts), placed(group, rights), space).sync(), rights, strict=True):
        assert y.dtype == dtype
        wanted = (np.concatenate(wide(lefts)) @ right.astype(np.float32)).astype(dtype)
        assert np.array_equal(y.numpy().astype(np.float32), wanted.astype(np.float32))
    space = ReduceScatterWorkspace(group, (16, 16), dtype)
    whole = sum(left @ right for left, right in zip(wide(lefts), wide(rights), strict=True))
    for rank, y in enumerate(matmul_reduce_scatter(placed(group, lefts), placed(group, rights), space).sync()):
        assert np.allclose(y.numpy().astype(np.float32), whole[8 * rank : 8 * rank + 8], rtol=0.01, atol=0.5)


def test_many_calls_whose_data_changes(group_of, placed):
    group, rng = group_of(3), np.random.default_rng(6)
    gather, scatter = AllGatherWorkspace(group, (8, 16)), ReduceScatterWorkspace(group, (24, 16))
    for call in range(25):
        lefts, rights = drawn(rng, 3, (8, 16)), drawn(rng, 3, (16, 16))
        w = placed(group, rights)
        rows = all_gather_matmul(placed(group, lefts), w, gather)
        found = rows.then(lambda ys, w=w: matmul_reduce_scatter(ys, w, scatter)).sync()
        whole = sum(np.concatenate(lefts) @ right @ right for right in rights)
        for rank, y in enumerate(found):
            assert np.array_equal(y.numpy(), whole[8 * rank : 8 * rank + 8]), call


def test_operands_may_be_ops_and_views_and_results_have_places(group_of, placed):
    group, rng = group_of(2), np.random.default_rng(7)
    lefts, rights = drawn(rng, 2, (8, 16)), drawn(rng, 2, (16, 12))
    out = placed(group, [np.zeros((16, 12), np.float32)] * 2)
    turned = [
        api.from_host(np.ascontiguousarray(right.T)).on(device).sync().T
        for right, device in zip(rights, group.devices, strict=True)
    ]
    op = all_gather_matmul([api.from_host(left) for left in lefts], turned, AllGatherWorkspace(group, (8, 16)), out=out)
    found = op.sync()
    for y, target, right in zip(found, out, rights, strict=True):
        assert y is target
        assert np.array_equal(y.numpy(), np.concatenate(lefts) @ right)
    gaps = [
        api.from_host(np.repeat(left, 2, axis=1)).on(device).sync()[:, ::2]
        for left, device in zip(lefts, group.devices, strict=True)
    ]
    whole = sum(left @ right for left, right in zip(lefts, rights, strict=True))
    for rank, y in enumerate(matmul_reduce_scatter(gaps, turned, ReduceScatterWorkspace(group, (8, 12))).sync()):
        assert np.array_equal(y.numpy(), whole[4 * rank : 4 * rank + 4])


def test_joined_members_and_graphs(members):
    """A recorded call is launched again and again, with other data."""

    def use(group):
        rank, device = group.rank, group.devices[0]
        gather, scatter = AllGatherWorkspace(group, (8, 16)), ReduceScatterWorkspace(group, (16, 16))
        x, w = api.zeros((8, 16)).on(device).sync(), api.zeros((16, 16)).on(device).sync()
        op = all_gather_matmul(x, w, gather)
        assert op.spec.shape == (16, 16)
        stream = device.stream()
        graph = op.then(lambda y: matmul_reduce_scatter(y, w, scatter)).graph_on(stream)
        found = []
        for call in range(5):
            x.fill(float(call + rank)).sync_on(stream)
            w.fill(float(rank + 1)).sync_on(stream)
            graph.run(stream)
            stream.synchronize()
            found.append(graph.output.numpy())
        return found

    for rank, found in enumerate(members(use, 2)):
        for call, y in enumerate(found):
            # Rows of what was gathered are `call + rank of the row's member` everywhere; then two products with a full `w`.
            wanted = sum((call + rank) * 16 * (other + 1) * 16 * (other + 1) for other in range(2))
            assert np.array_equal(y, np.full((8, 16), wanted)), (rank, call)


def test_who_waits_for_a_member_that_is_gone_can_be_released(members):
    def use(group):
        device, stream = group.devices[0], group.devices[0].stream()
        gather, scatter = AllGatherWorkspace(group, (8, 16)), ReduceScatterWorkspace(group, (16, 16))
        group.barrier().sync()
        if group.rank == 0:
            x, w = api.zeros((8, 16)).on(device).sync(), api.zeros((16, 16)).on(device).sync()
            gathered = all_gather_matmul(x, w, gather).async_on(stream)
            with pytest.raises(TimeoutError):
                gathered.result(timeout_s=0.2)
            gather.release()
            scattered = matmul_reduce_scatter(gathered.result(timeout_s=LIMIT_S), w, scatter).async_on(stream)
            with pytest.raises(TimeoutError):
                scattered.result(timeout_s=0.2)
            scatter.release()
            scattered.result(timeout_s=LIMIT_S)
        group.barrier().sync()

    members(use, 2)


def test_interpreted(group_of, placed, monkeypatch):
    monkeypatch.setenv("TILEKIT_CHECKS", "1")
    group, rng = group_of(2), np.random.default_rng(8)
    lefts, rights = drawn(rng, 2, (8, 16)), drawn(rng, 2, (16, 12))
    found = all_gather_matmul(placed(group, lefts), placed(group, rights), AllGatherWorkspace(group, (8, 16))).sync()
    for y, right in zip(found, rights, strict=True):
        assert np.array_equal(y.numpy(), np.concatenate(lefts) @ right)
    whole = sum(left @ right for left, right in zip(lefts, rights, strict=True))
    found = matmul_reduce_scatter(placed(group, lefts), placed(group, rights), ReduceScatterWorkspace(group, (8, 12))).sync()
    for rank, y in enumerate(found):
        assert np.array_equal(y.numpy(), whole[4 * rank : 4 * rank + 4])


def test_misuse(group_of, placed):
    group = group_of(2)
    gather, scatter = AllGatherWorkspace(group, (8, 16)), ReduceScatterWorkspace(group, (8, 12))
    x, w = placed(group, [np.zeros((8, 16), np.float32)] * 2), placed(group, [np.zeros((16, 12), np.float32)] * 2)
    narrow = [tensor[:, :8] for tensor in x]
    cases = [
        (TypeError, "workspace is a kernels.AllGatherWorkspace, not <Reduce", lambda: all_gather_matmul(x, w, scatter)),
        (TypeError, "workspace is a kernels.ReduceScatterWorkspace, not <All", lambda: matmul_reduce_scatter(x, w, gather)),
        (ValueError, r"x of rank 0 is float32 \(8, 8\), and the workspace is for", lambda: all_gather_matmul(narrow, w, gather)),
        (ValueError, r"x of rank 0 has shape \(8, 8\), w \(16, 12\)", lambda: matmul_reduce_scatter(narrow, w, scatter)),
        (ValueError, "the product of rank 0 is float32", lambda: matmul_reduce_scatter(x, [t[:, :4] for t in w], scatter)),
        (ValueError, "the product of rank 0 is float16", lambda: matmul_reduce_scatter(x, w, scatter, dtype=tk.float16)),
        (ValueError, "out of rank 0 is", lambda: all_gather_matmul(x, w, gather, out=x)),
        (ValueError, "three powers of two", lambda: matmul_reduce_scatter(x, w, scatter, tile=(3, 16, 16))),
        (ValueError, "with BM up to 1024", lambda: matmul_reduce_scatter(x, w, scatter, tile=(2048, 16, 16))),
        (ValueError, "8 rows are dealt out to 3 members", lambda: ReduceScatterWorkspace(group_of(3), (8, 12))),
        (ValueError, "the shape of a matrix has two extents", lambda: AllGatherWorkspace(group, (8,))),
        (TypeError, "group is a tk.Group, not 2", lambda: AllGatherWorkspace(2, (8, 8))),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
    op = all_gather_matmul(x, w, gather)
    group.close()
    with pytest.raises(GroupError, match="was closed"):
        op.sync()


def test_repr(group_of):
    group = group_of(2)
    assert repr(AllGatherWorkspace(group, (4, 6))).startswith("<AllGatherWorkspace of float32 (4, 6) for <tilekit.Group of 2")
    assert repr(ReduceScatterWorkspace(group, (4, 6))).startswith("<ReduceScatterWorkspace of float32 (4, 6) for")
