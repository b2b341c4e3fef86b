"""What asynchrony is for: a chain of device ops, and W microseconds of work for the host, one after the other or both at once.

A pipeline is the chain, built and run, and the host's work. In `sync` the host submits, waits, then works; in `async` it
submits, works, then waits: blocking, or by await. With `--graph` the chain is a CUDA graph.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tilekit as tk
from tilekit.ops import DeviceOp
from tilekit_benchmarks import Options
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep
from tilekit_benchmarks.turning import Clock, Wheel, op_us

__all__ = ["DEFAULT_N", "run"]

DEFAULT_N = {"cuda": 300, "cpu": 10}
"""How many ops the chain has, by the kind of device."""

_OP_US = 60.0  # what an op should take; at least 50 is what comes out
_SHARES = (0.0, 0.5, 1.0, 2.0)  # the host's work, in units of the device's
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure pipelines. Blocks until it is done."""
    device, ops = options.device, options.n or DEFAULT_N[options.device.kind]
    with ExitStack() as stack:
        wheel = Wheel(stack.enter_context(device.stream()))
        loops = Clock.measure(wheel).loops(_OP_US)
        chain_us = _chain_us(wheel, ops, loops)
        _log.info("overlap: %d ops of %.1f us, on %s", ops, chain_us / ops, device.label)
        candidates = [
            Candidate(name=OWN, version=tk.__version__, variant=variant, build=build)
            for variant, build in _ways(wheel, ops, loops, options.graph).items()
        ]
        single_us = op_us(wheel, loops)
        return sweep(
            options,
            candidates,
            [round(share * chain_us) for share in _SHARES],
            benchmark="overlap",
            axis="host work, us",
            unit="pipelines/s",
            rate=True,
            parameters={
                "n": ops,
                "op_us": single_us,
                "chain_us": chain_us,
                "loops": loops,
                **({"graph": 1} if options.graph else {}),
            },
            notes=_notes(single_us),
        )


def _notes(single_us: float) -> tuple[str, ...]:
    if single_us < 50:
        return (f"an op took {single_us:.1f} us, less than the 50 that it should",)
    return ()


def _chain_us(wheel: Wheel, ops: int, loops: int) -> float:
    """What the device takes for the chain, in microseconds: the median of several. Blocks."""
    samples = []
    with wheel.stream.device.event(timing=True) as start, wheel.stream.device.event(timing=True) as end:
        for _ in range(4):
            chain = wheel.chain(ops, loops)
            start.record(wheel.stream)
            chain.async_on(wheel.stream)
            end.record(wheel.stream)
            end.synchronize()
            wheel.turned += ops * loops
            samples.append(1e3 * start.elapsed_ms(end))
    return statistics.median(samples[1:])


def _ways(wheel: Wheel, ops: int, loops: int, as_graph: bool) -> dict[str, Callable[[float], Work]]:
    stream = wheel.stream
    graph = wheel.chain(ops, loops).graph_on(stream) if as_graph else None

    def chain() -> DeviceOp[Any]:
        return wheel.chain(ops, loops) if graph is None else graph.launch()

    def work(launch: Callable[[], object]) -> Work:
        def reset() -> None:
            wheel.reset()
            wheel.turned = ops * loops  # by the one launch that follows

        return Work(launch=launch, reset=reset, check=wheel.check)

    def one_after_the_other(host_us: float) -> Work:
        def launch() -> None:
            chain().sync_on(stream)
            _busy(host_us)

        return work(launch)

    def both_blocking(host_us: float) -> Work:
        def launch() -> None:
            future = chain().async_on(stream)
            _busy(host_us)
            future.result()

        return work(launch)

    def both_awaited(host_us: float) -> Work:
        async def launch() -> None:
            future = chain().async_on(stream)
            _busy(host_us)
            await future

        return work(launch)

    what = "graph: " if as_graph else ""
    return {
        f"{what}sync, host work": one_after_the_other,
        f"{what}async_on, host work, result": both_blocking,
        f"{what}async_on, host work, await": both_awaited,
    }


def _busy(us: float) -> None:
    """Work of the host's that takes so long."""
    end = time.perf_counter_ns() + round(1e3 * us)
    while time.perf_counter_ns() < end:
        pass
