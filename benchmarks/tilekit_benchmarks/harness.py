"""A fair comparison: contestants that do the same work, sampled in turns.

Every sample times several launches of one contestant. In a round each contestant is sampled once, and each round begins with
another one, so that what drifts (clocks, temperature, other users) drifts for all. A contestant may have variants (block sizes,
tiles); the best of them is chosen beforehand, by samples that do not count.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from tilekit._runtime.device import Device
from tilekit._runtime.stream import Stream

__all__ = [
    "Contestant",
    "EventTimer",
    "HostTimer",
    "Measurement",
    "Prepared",
    "Timer",
    "Unwaited",
    "Variant",
    "WallTimer",
    "compete",
    "timer_for",
]

_MOST_LAUNCHES = 1000  # in a sample: CUDA blocks whoever submits more than about 1024 launches ahead


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way a contestant does the work.

    Attributes:
        label: tells it from the others, such as `"256 threads"`; empty if it is the only one.
        launch: submits the work once, on the stream that all share, or does it at once. What it returns is ignored. A
            `WallTimer` takes what waits for its own work: a function, a coroutine function, a `Prepared` of either; or else an
            `Unwaited`.
    """

    label: str = ""
    launch: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A library that takes part.

    Attributes:
        name: the library's.
        version: the library's.
        variants: one or more.
        active: makes a context in which `launch` may be called (one that sets the library's current stream).
    """

    name: str
    version: str
    variants: tuple[Variant, ...]
    active: Callable[[], AbstractContextManager[object]] = nullcontext


class Timer(Protocol):
    """How samples are taken."""

    def sample_us(self, launch: Callable[[], object], launches: int) -> float:
        """Microseconds a launch takes, as the mean of `launches`. Blocks until they are done."""
        ...


class EventTimer:
    """By the device's own clock, with events around the launches; they must go to `stream`. Needs `close`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._start, self._end = stream.device.event(timing=True), stream.device.event(timing=True)

    def sample_us(self, launch: Callable[[], object], launches: int) -> float:
        """See `Timer`."""
        # The first launch is not timed. While the device is busy with it the others queue up behind the event, so that what a
        # launch costs the host does not count, unless it is longer than the work.
        launch()
        self._start.record(self._stream)
        for _ in range(launches):
            launch()
        self._end.record(self._stream)
        self._end.synchronize()
        return 1e3 * self._start.elapsed_ms(self._end) / launches

    def close(self) -> None:
        """Give the events up."""
        self._start.close()
        self._end.close()


class HostTimer:
    """By the host's clock, for work that the host does; `wait` blocks until what was submitted is done."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def sample_us(self, launch: Callable[[], object], launches: int) -> float:
        """See `Timer`."""
        launch()
        self._wait()
        start = time.perf_counter_ns()
        for _ in range(launches):
            launch()
        self._wait()
        return 1e-3 * (time.perf_counter_ns() - start) / launches

    def close(self) -> None:
        """Nothing to give up."""


class Prepared:
    """A launch in two parts, of which a `WallTimer` times the second: `run(make())`.

    Args:
        make: prepares one launch; a plain function.
        run: takes what `make` returned; a function or a coroutine function.
    """

    def __init__(self, make: Callable[[], Any], run: Callable[[Any], object]) -> None:
        self.make, self.run = make, run

    def __call__(self) -> object:
        """Both parts."""
        return self.run(self.make())


class Unwaited:
    """A launch that a `WallTimer` does not wait for: the clock stops when the last call has returned, then `wait` is called.

    Args:
        launch: submits the work, with what `make` gives; a plain function.
        wait: blocks until what was submitted is done.
        make: makes the arguments of one launch: of all that are timed before the clock starts.
    """

    def __init__(self, launch: Callable[..., object], wait: Callable[[], object], make: Callable[[], Any] = tuple) -> None:
        self.launch, self.wait, self.make = launch, wait, make

    def __call__(self) -> object:
        """Submit it once."""
        return self.launch(*self.make())


class WallTimer:
    """By the host's clock, for work that ends with its own wait, blocking or awaited. Needs `close`.

    The launches of a coroutine function are awaited one after the other by one running task, of a loop that is kept between
    samples: starting a loop is not what is measured.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def sample_us(self, launch: Callable[[], object], launches: int) -> float:
        """See `Timer`. The first launch is not timed, unless it is the only one."""
        if isinstance(launch, Unwaited):
            taken_ns = _unwaited(launch, launches)
            launch.wait()
            return 1e-3 * taken_ns / launches
        make, run = (launch.make, launch.run) if isinstance(launch, Prepared) else (None, launch)
        if inspect.iscoroutinefunction(run):
            taken_ns = self._loop.run_until_complete(_awaited(make, run, launches))
        else:
            taken_ns = _blocked(make, run, launches)
        return 1e-3 * taken_ns / launches

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()


def _unwaited(work: Unwaited, launches: int) -> int:
    """Nanoseconds that `launches` calls take together until they have returned."""
    clock, launch = time.perf_counter_ns, work.launch
    if launches > 1:
        work()
        work.wait()
    made = [work.make() for _ in range(launches)]
    start = clock()
    for arguments in made:
        launch(*arguments)
    return clock() - start


def _blocked(make: Callable[[], Any] | None, run: Callable[..., object], launches: int) -> int:
    """Nanoseconds that `launches` calls take together, one after the other."""
    clock = time.perf_counter_ns
    if make is None:
        if launches > 1:
            run()
        start = clock()
        for _ in range(launches):
            run()
        return clock() - start
    if launches > 1:
        run(make())
    taken_ns = 0
    for _ in range(launches):
        built = make()
        start = clock()
        run(built)
        taken_ns += clock() - start
    return taken_ns


async def _awaited(make: Callable[[], Any] | None, run: Callable[..., Any], launches: int) -> int:
    """As `_blocked`, by a task that awaits each call."""
    clock = time.perf_counter_ns
    if make is None:
        if launches > 1:
            await run()
        start = clock()
        for _ in range(launches):
            await run()
        return clock() - start
    if launches > 1:
        await run(make())
    taken_ns = 0
    for _ in range(launches):
        built = make()
        start = clock()
        await run(built)
        taken_ns += clock() - start
    return taken_ns


def timer_for(device: Device, stream: Stream) -> EventTimer | HostTimer:
    """Events on a GPU; on a CPU device, whose peers run in the host's own thread, the host's clock."""
    return EventTimer(stream) if device.kind == "cuda" else HostTimer(stream.synchronize)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a contestant took.

    Attributes:
        name, version: the contestant's.
        variant: the label of its best variant, which was measured.
        launches_per_sample: how many launches a sample is the mean of.
        samples_us: a launch's time, in microseconds, in each round.
        tried_us: of each variant, by label, the median of the samples by which the best was chosen.
    """

    name: str
    version: str
    variant: str
    launches_per_sample: int
    samples_us: tuple[float, ...]
    tried_us: dict[str, float]

    @property
    def median_us(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples_us)


def compete(
    contestants: Sequence[Contestant], timer: Timer, *, rounds: int, tuning_rounds: int = 3, sample_ms: float = 20.0
) -> tuple[Measurement, ...]:
    """Measure the contestants, in turns. Blocks until all is done.

    Args:
        contestants: at least one; each has run before, so that it is compiled and warm.
        timer: takes the samples.
        rounds: how many samples count.
        tuning_rounds: how many are taken of each variant before, where there are several.
        sample_ms: how long a sample should last, in milliseconds, at least.

    Returns:
        A measurement of each, in the order of `contestants`.
    """
    runners = [_Runner(contestant, variant, timer, sample_ms) for contestant in contestants for variant in contestant.variants]
    several = [runner for runner in runners if len(runner.contestant.variants) > 1]
    _in_turns(several, tuning_rounds)
    chosen, tried = [], []
    for contestant in contestants:
        mine = [runner for runner in runners if runner.contestant is contestant]
        tried.append({r.variant.label: statistics.median(r.samples_us) for r in mine if r.samples_us})
        chosen.append(min(mine, key=lambda r: statistics.median(r.samples_us)) if len(mine) > 1 else mine[0])
    for runner in chosen:
        runner.samples_us = []
    _in_turns(chosen, rounds)
    return tuple(
        Measurement(
            name=r.contestant.name,
            version=r.contestant.version,
            variant=r.variant.label,
            launches_per_sample=r.launches,
            samples_us=tuple(r.samples_us),
            tried_us=times,
        )
        for r, times in zip(chosen, tried)
    )


class _Runner:
    """One variant, with its samples so far."""

    def __init__(self, contestant: Contestant, variant: Variant, timer: Timer, sample_ms: float) -> None:
        self.contestant, self.variant, self._timer = contestant, variant, timer
        self.samples_us: list[float] = []
        self.launches = 1
        once_us = self._sample()
        self.launches = max(1, min(_MOST_LAUNCHES, math.ceil(1e3 * sample_ms / max(once_us, 1e-3))))

    def _sample(self) -> float:
        with ExitStack() as stack:
            stack.enter_context(self.contestant.active())
            return self._timer.sample_us(self.variant.launch, self.launches)

    def sample(self) -> None:
        self.samples_us.append(self._sample())


def _in_turns(runners: Sequence[_Runner], rounds: int) -> None:
    for first in range(rounds):
        for at in range(len(runners)):
            runners[(first + at) % len(runners)].sample()
