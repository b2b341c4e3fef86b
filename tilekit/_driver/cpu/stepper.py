"""Tests that choose how the streams of a CPU device interleave, and choose the same again from the same seed."""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from tilekit._driver.cpu.queue import FREE, LOOK, WAIT, CpuStream, Item, Point
from tilekit.errors import DeviceError

if TYPE_CHECKING:
    from tilekit._driver.cpu.driver import CpuDriver

__all__ = ["Stepper"]


class Stepper:
    """While the `with` block runs, the device's workers rest and its work is executed one item at a time.

    Whoever waits (any synchronize, wait, or request for a signal) executes, or a call of `step` or `run`. Each time, the next
    item of one of the streams that can go on is chosen, with `random.Random(seed)`. A stream cannot go on while it waits for
    an event that has not passed. Memory is poisoned when allocated and when freed. What is left at the end of the block is
    executed then.

    Attributes:
        trace: for each item executed, which stream it came from: 0 for the first that was given work, 1 for the second...

    Args:
        device: a CPU device, or its driver.
        seed: of the choices.
    """

    def __init__(self, device: Any, seed: int) -> None:
        self._driver: CpuDriver = getattr(device, "driver", device)
        if self._driver.kind != "cpu":
            raise TypeError(f"only CPU devices can be stepped, not {device!r}")
        self.trace: list[int] = []
        self._random = random.Random(seed)
        # The lock is not held while an item runs: `_owner` is. Work that waits re-enters, in its own thread.
        self._state = threading.Condition()
        self._queues: dict[CpuStream, deque[Item]] = {}
        self._busy: list[CpuStream] = []
        self._owner: int | None = None

    def __enter__(self) -> Self:
        if self._driver.stepper is not None:
            raise ValueError(f"{self._driver.name} is being stepped already")
        self._driver.synchronize()
        self._driver.stepper = self
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self.run()
        except DeviceError:
            if error is None:
                raise  # else the block's own error tells more
        finally:
            self._driver.stepper = None

    def add(self, stream: CpuStream, item: Item) -> None:
        """Take an item that was put into a stream."""
        with self._state:
            self._queues.setdefault(stream, deque()).append(item)

    def step(self) -> bool:
        """Execute one item; False if no stream can go on."""
        me = threading.get_ident()
        with self._state:
            while self._owner not in (None, me):
                self._state.wait()
            ready = [stream for stream, queue in self._queues.items() if queue and stream not in self._busy and _can(queue[0])]
            if not ready:
                return False
            stream = self._random.choice(ready)
            item = self._queues[stream].popleft()
            self.trace.append(list(self._queues).index(stream))
            self._busy.append(stream)
            self._owner = me
        try:
            stream.execute(item)
        finally:
            with self._state:
                self._busy.pop()
                if not self._busy:
                    self._owner = None
                    self._state.notify_all()
        return True

    def run(self) -> None:
        """Execute everything.

        Raises:
            DeviceError: what is left can never run; the text says what it waits for.
        """
        while self.step() or self._wait_elsewhere(self._heads()):
            pass
        with self._state:
            left = [stream for stream, queue in self._queues.items() if queue and stream not in self._busy]
        if left:
            raise self._stuck("run")

    def run_until(self, point: Point) -> None:
        """Execute items until the stream of `point` has passed it.

        Raises:
            DeviceError: that can never happen; the text says what each stream waits for.
        """
        while not point.done:
            if not self.step() and not point.done and not self._wait_elsewhere([point]):
                raise self._stuck(f"pass a point of {point.stream!r}")

    def _heads(self) -> list[Point]:
        """What the streams that have work wait for."""
        with self._state:
            return [p for stream, queue in self._queues.items() if queue and stream not in self._busy for p in _awaited(queue[0])]

    def _wait_elsewhere(self, points: list[Point]) -> bool:
        """Block for an event of a device that is not stepped here, if one of the points waits for one, by way of other streams
        perhaps; False if none does. (Not for any such event: two devices might then wait for each other's, and never do what
        both wait for.)"""
        seen: set[Point] = set()
        while points:
            point = points.pop()
            if point.done or point in seen:
                continue
            seen.add(point)
            if point.stream.driver is not self._driver:
                point.wait()
                return True
            with self._state:
                queue = self._queues.get(point.stream)
                if queue and point.stream not in self._busy:
                    points += _awaited(queue[0])
        return False

    def _stuck(self, aim: str) -> DeviceError:
        with self._state:
            lines = [
                f"{stream!r}: {len(queue)} items, "
                + ("being executed now" if stream in self._busy else "waits for another stream")
                for stream, queue in self._queues.items()
                if queue or stream in self._busy
            ]
        return DeviceError(f"the stepper cannot {aim}: no stream can go on. " + ("; ".join(lines) or "All streams are empty"))


def _awaited(item: Item) -> list[Point]:
    """The points that must have been passed before an item can be executed."""
    if item[0] == WAIT:
        return [item[1]]
    return list(item[2]) if item[0] == FREE else []


def _can(item: Item) -> bool:
    if item[0] == LOOK:
        return bool(item[1][0] >= item[2])
    return all(point.done for point in _awaited(item))
