"""Random work on random streams gives what the same work gives in the order of its submission, however the streams interleave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit._driver.cpu import driver as cpu
from tilekit._runtime.context import ExecutionContext

N, TENSORS, STREAMS, OPS = 4, 4, 4, 14
GRAPHS = 500


@tk.kernel
def mix(y: tk.InOut, a, x: tk.In):
    y.store(y.load() * a + tk.load_tile_like(x, y))


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


class Lost(Exception):
    """What the ops that are meant to fail raise."""


def fail(*_):
    raise Lost


class Graph:
    """A sequence of random submissions, and what the tensors must hold after it."""

    def __init__(self, device, seed):
        self.random = random.Random(seed)
        self.streams = [device.stream() for _ in range(STREAMS)]
        self.tensors = [api.full(N, i + 1, tk.int64).sync_on(self.streams[0]) for i in range(TENSORS)]
        self.expected = [np.full(N, i + 1) for i in range(TENSORS)]
        self.shared = api.arange(N).shared()
        self.futures = []

    def submit(self):
        """One submission on one stream, without waiting; some of them fail, or are abandoned once submitted."""
        pick = self.random.choice
        stream, kind = pick(self.streams), pick(["mix", "mix", "mix", "copy", "chain", "zip", "shared", "fail", "cancel"])
        i, j = self.random.sample(range(TENSORS), 2)
        y, x, a = self.tensors[i], self.tensors[j], pick([2, 3, -1])
        after = self.expected[i] * a + self.expected[j]
        op = mix(y.partition(N), a, x)
        if kind == "copy":
            op._consumed = True
            op, after = copy(y.partition(N), x), self.expected[j].copy()
        elif kind == "chain":
            op, after = op.apply(lambda y, a, x: mix(y, a, x)), after * a + self.expected[j]
        elif kind == "zip":
            op = tk.zip(op, x.dup(), parallel=True)
        elif kind == "shared":
            op, after = tk.zip(op, self.shared).apply(lambda parts, s: mix(parts[0], 1, s)), after + np.arange(N)
        elif kind == "fail":  # the first part is submitted all the same
            with pytest.raises(Lost):
                op.then(fail).async_on(stream)
            op = None
        elif kind == "cancel":
            asyncio.run(self.cancelled(op))
            op = None
        if op is not None:
            self.futures.append(op.async_on(stream))
        self.expected[i] = after

    async def cancelled(self, op):
        """Start a task that awaits `op`, and cancel it as soon as it has submitted."""
        submitted = []
        task = asyncio.create_task(op.map(submitted.append).run())
        while not submitted:
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def results(self):
        self.shared.sync()  # in case nothing used it
        return [tensor.to_host().sync_on(self.random.choice(self.streams)) for tensor in self.tensors]


def run(device, seed):
    """Whether the graph of `seed` gave what it must."""
    graph = Graph(device, seed)
    for _ in range(OPS):
        graph.submit()
    return all(np.array_equal(a, b) for a, b in zip(graph.results(), graph.expected, strict=True))


@pytest.mark.parametrize("block", range(10))
def test_the_order_of_submission_decides(device, block):
    seeds = range(block * GRAPHS // 10, (block + 1) * GRAPHS // 10)
    if device.kind == "cuda":
        assert all(run(device, seed) for seed in seeds)
        return
    for seed in seeds:
        with cpu.Stepper(device, seed):
            assert run(device, seed), seed


def test_without_tracking_it_does_not(monkeypatch):
    """The same graphs, when no stream waits for another: the tests above would notice."""
    device = tk.Device("cpu")
    monkeypatch.setattr(ExecutionContext, "acquire", lambda self, reads, writes: None)
    monkeypatch.setattr(cpu, "Shadow", lambda nbytes: None)  # which would notice first: nobody waits for the writer either
    outcomes = []
    for seed in range(20):
        with cpu.Stepper(device, seed):
            outcomes.append(run(device, seed))
    assert not all(outcomes)


def test_nothing_is_left(device):
    """Memory that was in use before is in use after, and no more."""
    gc.collect()
    device.synchronize()
    device.collect()
    before = len(device.garbage)
    for seed in range(10):
        run(device, seed)
    gc.collect()
    device.synchronize()
    device.collect()
    assert len(device.garbage) == before == 0
