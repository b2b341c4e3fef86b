"""Uneven work over S streams: one thread that blocks, S threads that block, or one thread with S tasks that await.

Four of five units take the device about 50 us, one about 500 us, in random order. A unit is one block, so several run side by
side on a GPU. Whoever is free takes the next unit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

import tilekit as tk
from tilekit._runtime.device import Device
from tilekit_benchmarks import Options
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep
from tilekit_benchmarks.turning import Clock, Wheel, op_us

__all__ = ["DEFAULT_N", "STREAMS", "run"]

DEFAULT_N = {"cuda": 1000, "cpu": 40}
"""How many units, by the kind of device."""

STREAMS = (1, 2, 4, 8)

_SMALL_US, _LARGE_US, _SMALL_SHARE = 50.0, 500.0, 0.8
_SEED = 20261121
_REFERENCE = "a thread for each stream"
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure the three ways. Blocks until it is done."""
    device, n = options.device, options.n or DEFAULT_N[options.device.kind]
    with ExitStack() as stack:
        wheel = Wheel(stack.enter_context(device.stream()))
        clock = Clock.measure(wheel)
        small, large = clock.loops(_SMALL_US), clock.loops(_LARGE_US)
        units = _units(n, small, large)
        _log.info("bimodal: %d units of about %g and %g us, on %s", n, _SMALL_US, _LARGE_US, device.label)
        return sweep(
            options,
            _candidates(device, units, stack),
            STREAMS,
            items=lambda _: n,
            benchmark="bimodal",
            axis="streams",
            unit="units/s",
            rate=True,
            reference=f"{OWN}, {_REFERENCE}",
            parameters={
                "n": n,
                "small_us": op_us(wheel, small),
                "large_us": op_us(wheel, large),
                "large_units": units.count(large) if large != small else n,
            },
        )


def _units(n: int, small: int, large: int) -> list[int]:
    """How far each unit turns its wheel."""
    count = round(_SMALL_SHARE * n)
    loops_of_units = np.array([small] * count + [large] * (n - count))
    np.random.default_rng(_SEED).shuffle(loops_of_units)
    return [int(loops) for loops in loops_of_units]


def _candidates(device: Device, units: list[int], stack: ExitStack) -> list[Candidate]:
    def wheels(count: int) -> list[Wheel]:
        return [Wheel(stack.enter_context(device.stream())) for _ in range(count)]

    def one_stream(_: float) -> Work:
        (only,) = wheels(1)
        return _work([only], units, lambda: _block(only, iter(units)))

    def threads(count: float) -> Work:
        mine = wheels(int(count))
        pool = stack.enter_context(ThreadPoolExecutor(len(mine)))

        def launch() -> None:
            left = iter(units)  # a list's iterator gives each unit to one thread
            for done in [pool.submit(_block, wheel, left) for wheel in mine]:
                done.result()

        return _work(mine, units, launch)

    def tasks(count: float) -> Work:
        mine = wheels(int(count))

        async def launch() -> None:
            left = iter(units)
            await asyncio.gather(*(_suspend(wheel, left) for wheel in mine))

        return _work(mine, units, launch)

    ways: dict[str, Callable[[float], Work]] = {
        "one thread, one stream": one_stream,
        _REFERENCE: threads,
        "one thread, a task for each stream": tasks,
    }
    return [Candidate(name=OWN, version=tk.__version__, variant=variant, build=build) for variant, build in ways.items()]


def _block(wheel: Wheel, units: Iterator[int]) -> None:
    for loops in units:
        wheel.turn(loops).sync_on(wheel.stream)
        wheel.turned += loops


async def _suspend(wheel: Wheel, units: Iterator[int]) -> None:
    for loops in units:
        await wheel.turn(loops).async_on(wheel.stream)
        wheel.turned += loops


def _work(wheels: list[Wheel], units: list[int], launch: Callable[[], object]) -> Work:
    def reset() -> None:
        for wheel in wheels:
            wheel.reset()

    def check() -> str | None:
        turned = sum(wheel.turned for wheel in wheels)
        if turned != sum(units):
            return f"{turned} turns were asked for, where the units have {sum(units)}"
        return next((wrong for wheel in wheels if (wrong := wheel.check()) is not None), None)

    return Work(launch=launch, reset=reset, check=check)
