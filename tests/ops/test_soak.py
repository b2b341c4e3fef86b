"""Many small ops leave nothing behind: memory ends where it was after the first tenth."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

import tilekit as tk
from tilekit import api

# A million on a GPU; TILEKIT_SOAK sets another number.
OPS = {"cpu": 50_000, "cuda": 1_000_000}
# What the resident memory may grow by between the first tenth and the end, in bytes: pages of the interpreter's own.
SLACK = 4 << 20


@tk.kernel
def increment(y: tk.InOut):
    y.store(y.load() + 1.0)


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def device_bytes(device):
    device.synchronize()
    device.collect()
    free, total = device.driver.memory_info()
    return total - free


@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory as Linux tells it")
def test_memory_does_not_grow(device):
    count = int(os.environ.get("TILEKIT_SOAK", OPS[device.kind]))
    y = api.zeros(64).sync()
    partition = y.partition(64)

    def submit(n):
        """Launches, temporary tensors, chains, futures that are dropped; a wait now and then."""
        for k in range(n // 5):
            increment(partition).async_on(streams[k % 4])
            increment(api.zeros(64).partition(64)).async_on(streams[(k + 1) % 4])
            api.dup(y).map(str).async_on(streams[(k + 2) % 4])
            if k % 50 == 0:
                increment(partition).sync()

    async def awaited(n):
        for _ in range(n // 100):
            await asyncio.gather(*(increment(y.dup().then(lambda t: tk.value(t.partition(64)))) for _ in range(10)))

    streams = [device.stream() for _ in range(4)]

    def tenth():
        submit(count // 10)
        asyncio.run(awaited(count // 10))
        device.synchronize()

    tenth()
    resident, used = resident_bytes(), device_bytes(device)
    for _ in range(9):
        tenth()
    assert resident_bytes() - resident < SLACK
    if device.kind == "cuda":
        assert device_bytes(device) - used <= 0
