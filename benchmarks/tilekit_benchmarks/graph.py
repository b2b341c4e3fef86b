"""What an op costs in a CUDA graph of N: replayed and waited for, beside prepared launches, with and without building it.

The op is that of `chain`: `y = y + x * g` on 32-bit integers, so that the result counts the ops. The floor is a graph that the
driver captured from prepared launches of the same machine code.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tilekit as tk
from tilekit_benchmarks import Options, chain, raw
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.harness import Prepared
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "run"]

DEFAULT_N = {"cuda": 1000, "cpu": 30}
"""The longest graph, by the kind of device."""

_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure graphs of 1, 10, 100... ops, up to `options.n`. Blocks until it is done."""
    device, longest = options.device, options.n or DEFAULT_N[options.device.kind]
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        data = chain.Data(stream, stack)
        candidates = [*(_on_gpu(data) if device.kind == "cuda" else chain.on_cpu(data)), *_own(data)]
        _log.info("graph: up to %d ops on %d elements, on %s", longest, chain.ELEMENTS, device.label)
        return sweep(
            options,
            candidates,
            chain.lengths(longest),
            items=lambda ops: ops,
            benchmark="graph",
            axis="ops in the graph",
            unit="us per op",
            parameters={"n": longest, "elements": chain.ELEMENTS},
        )


def _own(data: chain.Data) -> list[Candidate]:
    stream = data.stream

    def replayed(ops: int) -> Callable[[], object]:
        graph = data.chained(ops).graph()
        return lambda: graph.sync_on(stream)

    def launched(ops: int) -> Callable[[], object]:
        graph = data.chained(ops).graph()
        return lambda: graph.launch().sync_on(stream)

    def awaited(ops: int) -> Callable[[], object]:
        graph = data.chained(ops).graph()

        async def launch() -> None:
            await graph.launch()

        return launch

    def bound(ops: int) -> Callable[[], object]:
        first = data.op(tk.slot("x", data.x))
        graph = (tk.zip(first, data.chained(ops - 1)) if ops > 1 else first).graph()
        others = itertools.cycle([data.x.dup().sync_on(stream), data.x])  # the same values in another place
        return lambda: graph.sync_on(stream, x=next(others))

    def prepared(ops: int) -> Callable[[], object]:
        op = data.chained(ops).prepare()
        return lambda: op.sync_on(stream)

    def run_once(op: tk.DeviceOp[Any]) -> None:
        with op.graph() as graph:
            graph.sync_on(stream)

    ways: dict[str, Callable[[int], Callable[[], object]]] = {
        "graph, sync": replayed,
        "graph, launch as an op, sync": launched,
        "graph, launch as an op, await": awaited,
        "graph, a pointer of one op bound, sync": bound,
        "prepared, sync": prepared,
        "chain and graph built, sync": lambda ops: lambda: run_once(data.chained(ops)),
        "graph built of a chain built before, sync": lambda ops: Prepared(lambda: data.chained(ops), run_once),
        "no graph: chain built, sync": lambda ops: lambda: data.chained(ops).sync_on(stream),
    }

    def candidate(variant: str, launcher: Callable[[int], Callable[[], object]]) -> Candidate:
        return Candidate(name=OWN, version=tk.__version__, variant=variant, build=lambda ops: data.work(ops, launcher(ops)))

    return [candidate(variant, launcher) for variant, launcher in ways.items()]


def _on_gpu(data: chain.Data) -> list[Candidate]:
    def captured(ops: int) -> Work:
        graph = raw.RawGraph(raw.RawLaunch(data.op(), data.stream), ops, data.stream)
        data.stack.callback(graph.close)
        return data.work(ops, graph.launch_and_wait)

    replay = Candidate(name=raw.NAME, version=raw.version(), variant="cuGraphLaunch, cuStreamSynchronize", build=captured)
    return [replay, *chain.on_gpu(data)]
