"""What only several GPUs show: all-reduces by the million, in graphs, whose data changes; and what is left of a group when a
process is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

import tilekit as tk
from tilekit import api, kernels
from tilekit._groups import Group, free_address
from tilekit.errors import GroupError

pytestmark = pytest.mark.alone

SPAWN = multiprocessing.get_context("spawn")
LIMIT_S = 120
CALLS = 100  # in a graph


@pytest.fixture(autouse=True)
def _two_gpus(device):
    if device.kind != "cuda" or len([one for one in tk.devices() if one.kind == "cuda"]) < 2:
        pytest.skip("needs two GPUs")


@tk.kernel
def checked_and_changed(x: tk.InOut, total: tk.In, wrong: tk.InOut, rank: float):
    """Rank r has the number of the call plus r; so the total is known. Then the number of the next call."""
    found, mine = tk.load_tile_like(total, x), x.load()
    missed = tk.sum((found != 2.0 * (mine - rank) + 1.0).astype(tk.int32))
    tk.atomic_add(wrong, 0, missed)
    x.store(tk.where(mine - rank < 1000.0, mine + 1.0, rank))


def reduced(group, count, launches, two_shot):
    """How many elements of how many all-reduces were wrong."""
    device, rank = group.devices[0], group.rank
    workspace = kernels.AllReduceWorkspace(group, count)
    x, total = api.full((count,), float(rank)).on(device).sync(), api.zeros(count).on(device).sync()
    wrong = api.zeros(1, tk.int32).on(device).sync()

    def call(_):
        return kernels.all_reduce(x, workspace, out=total, two_shot=two_shot).then(
            lambda total: checked_and_changed(x.partition(1024), total, wrong.scattered(), float(rank))
        )

    op = call(None)
    for _ in range(CALLS - 1):
        op = op.then(call)
    stream = device.stream()
    graph = op.graph_on(stream)
    for _ in range(launches):
        graph.run(stream)
    stream.synchronize()
    return int(wrong.numpy()[0])


def _reducing(rank, address, told, count, launches, two_shot):
    with Group.join(rank, 2, address=address, device=f"cuda:{rank}", timeout_s=LIMIT_S) as group:
        told.put(reduced(group, count, launches, two_shot))


@pytest.mark.parametrize(("count", "launches", "two_shot"), [(16384, 10_000, False), (1 << 18, 500, False), (1 << 18, 500, True)])
def test_all_reduces_in_graphs(count, launches, two_shot):
    address, told = free_address(), SPAWN.Queue()
    members = [SPAWN.Process(target=_reducing, args=(rank, address, told, count, launches, two_shot)) for rank in range(2)]
    try:
        for member in members:
            member.start()
        assert [told.get(timeout=LIMIT_S) for _ in members] == [0, 0]
    finally:
        for member in members:
            member.kill()


def _kept_on(rank, address, told, way):
    group = Group.join(rank, 2, address=address, device=f"cuda:{rank}", timeout_s=20)
    x = api.ones(1 << 20).on(group.devices[0]).sync()
    workspace = kernels.AllReduceWorkspace(group, 1 << 20)
    try:
        for call in range(10**6):
            (group.all_reduce(x, op="max") if way == "nccl" else kernels.all_reduce(x, workspace, "max")).sync()
            if call == 20:
                told.put((rank, os.getpid()))
    except (GroupError, tk.DeviceError) as error:
        told.put((rank, f"{type(error).__name__}: {error}"))


@pytest.mark.parametrize("way", ["nccl"])
def test_a_killed_member_leaves_no_other_hanging(way):
    address, told = free_address(), SPAWN.Queue()
    members = [SPAWN.Process(target=_kept_on, args=(rank, address, told, way)) for rank in range(2)]
    try:
        for member in members:
            member.start()
        pids = dict(told.get(timeout=LIMIT_S) for _ in members)
        os.kill(pids[1], signal.SIGKILL)
        killed = time.monotonic()
        rank, error = told.get(timeout=60)
        assert (rank, error.startswith("GroupError")) == (0, True), error
        assert time.monotonic() - killed < 30
    finally:
        for member in members:
            member.kill()


@pytest.mark.parametrize("shape", [(512, 512, 512), (2048, 8192, 8192), (1000, 777, 300)], ids=str)
def test_products_beside_what_is_communicated(shape):
    """Over calls whose data changes; whole numbers, so that the order of the sums does not matter."""
    m, k, n = shape
    with Group(["cuda:0", "cuda:1"]) as group:
        gathering = kernels.AllGatherWorkspace(group, (m // 2, k), tk.float16)
        scattering = kernels.ReduceScatterWorkspace(group, (m, n), tk.float16)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            lefts = [rng.integers(-2, 3, (m, k)).astype(np.float16) for _ in range(2)]
            rights = [rng.integers(-1, 2, (k, n)).astype(np.float16) for _ in range(2)]
            xs, ws = ([api.from_host(a).on(d).sync() for a, d in zip(arrays, group.devices)] for arrays in (lefts, rights))
            whole = np.concatenate([left[: m // 2] for left in lefts])
            found = kernels.all_gather_matmul([x[: m // 2] for x in xs], ws, gathering).sync()
            for y, x, w in zip(found, [whole] * 2, rights, strict=True):
                wanted = kernels.gemm(*(api.from_host(a).on(y.device).sync() for a in (x, w))).sync()
                assert np.array_equal(y.numpy(), wanted.numpy())
            parts = [kernels.gemm(x, w, dtype=tk.float32).sync().numpy() for x, w in zip(xs, ws)]
            for rank, y in enumerate(kernels.matmul_reduce_scatter(xs, ws, scattering).sync()):
                rows = slice(rank * m // 2, (rank + 1) * m // 2)
                np.testing.assert_allclose(y.numpy().astype(np.float32), (parts[0] + parts[1])[rows], rtol=2e-3, atol=1)
