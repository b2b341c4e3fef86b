"""Members that are gone: their peers' kernels, which wait for them, end, and whoever waits for these is told who is gone."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from tilekit import api, kernels
from tilekit._groups import Group, free_address
from tilekit.errors import GroupError

LIMIT_S = 120


def _member(rank, address, which, ready, said):
    os.environ["TILEKIT_DEVICE"] = "cpu"
    with Group.join(rank, 2, address=address, timeout_s=LIMIT_S) as group:
        if which == "all_reduce":
            workspace = kernels.AllReduceWorkspace(group, 64)
            op = lambda: kernels.all_reduce(api.ones((64,)), workspace)  # noqa: E731
        else:
            workspace = kernels.AllGatherWorkspace(group, (16, 16))
            op = lambda: kernels.all_gather_matmul(api.ones((16, 16)), api.ones((16, 16)), workspace)  # noqa: E731
        op().sync()
        ready.release()
        if rank == 1:
            time.sleep(LIMIT_S)  # until it is killed
        start = time.monotonic()
        for _ in range(2):
            try:
                op().sync()
            except GroupError as error:
                said.put((str(error), error.ranks, time.monotonic() - start))


@pytest.mark.parametrize("which", ["all_reduce", "all_gather_matmul"])
def test_a_kernel_that_waits_for_a_killed_member_ends(which):
    context = multiprocessing.get_context("spawn")
    ready, said, address = context.Semaphore(0), context.Queue(), free_address()
    processes = [context.Process(target=_member, args=(rank, address, which, ready, said)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            assert ready.acquire(timeout=LIMIT_S)
        processes[1].kill()
        (first, ranks, seconds), (second, *_) = (said.get(timeout=LIMIT_S) for _ in range(2))
        assert first == "the process of rank 1 has ended" and ranks == (1,) and seconds < LIMIT_S / 2
        assert second.endswith("is broken: the process of rank 1 has ended")
        processes[0].join(LIMIT_S)
        assert processes[0].exitcode == 0
    finally:
        for process in processes:
            process.kill()
