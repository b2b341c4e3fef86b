"""Device work that takes a chosen time and whose result tells how much of it was done.

One block turns a linear congruential generator, t = t * a + b on 32-bit integers: neither NVVM nor a CPU can foresee the result
of a loop whose a and b come at run time, and any number of turns can be worked out beforehand. All turns are alike, so it does
not matter who did which.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit import api
from tilekit._runtime.stream import Stream
from tilekit.launch import KernelLaunch
from tilekit.ops import DeviceOp
from tilekit_benchmarks._tilekit_host import turn

__all__ = ["Clock", "Wheel", "advanced", "op_us"]

_A, _B = 1664525, 1013904223  # Numerical Recipes' generator, which runs through all 2^32 values
_ELEMENTS = 128  # one tile, one warp of a GPU: several run side by side
_SEED = 20261121
_BACK_TO_BACK = 10  # ops between two events, so that what lies between them on the host does not count
# The time of one turn is worked out from so many that an op takes as long, and from a tenth of them.
_LONG_US, _MOST_TURNS = 200.0, 100_000


class Wheel:
    """A tile of generators on a stream, and how far they should have turned.

    Attributes:
        stream: where they are turned.
        turned: how many turns were asked for since `reset`; whoever launches adds to it.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.turned = stream, 0
        self._start = np.random.default_rng(_SEED).integers(-(2**31), 2**31, _ELEMENTS, dtype=np.int32)
        self._fresh = api.from_host(self._start).sync_on(stream)
        self._tensor = api.from_host(self._start).sync_on(stream)
        self._partition = self._tensor.partition(_ELEMENTS)

    def turn(self, loops: int) -> KernelLaunch:
        """An op that turns so many times; count them in `turned`."""
        op: KernelLaunch = turn(self._partition, loops, _A, _B)
        return op

    def chain(self, ops: int, loops: int) -> DeviceOp[Any]:
        """`ops` such ops, one after the other; count them too."""
        op: DeviceOp[Any] = self.turn(loops)
        for _ in range(ops - 1):
            op = op.apply(turn)
        return op

    def reset(self) -> None:
        """Back to the start. Blocks."""
        api.memcpy(self._tensor, self._fresh).sync_on(self.stream)
        self.turned = 0

    def check(self) -> str | None:
        """Whether it has turned as often as it should have. Blocks."""
        self.stream.synchronize()
        generators = self._tensor.to_host().sync_on(self.stream)
        wrong = np.count_nonzero(generators != advanced(self._start, self.turned))
        return f"{wrong} of {_ELEMENTS} generators are not where {self.turned} turns lead" if wrong else None


def advanced(start: np.ndarray[Any, Any], turns: int) -> np.ndarray[Any, Any]:
    """Where the generators are after so many turns: the map is squared, and the squares that `turns` consists of composed."""
    a, b = _A, _B
    all_a, all_b = 1, 0
    while turns:
        if turns & 1:
            all_a, all_b = all_a * a % 2**32, (all_b * a + b) % 2**32
        a, b = a * a % 2**32, (b * a + b) % 2**32
        turns >>= 1
    return (start.astype(np.uint64) * np.uint64(all_a) + np.uint64(all_b)).astype(np.uint32).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How long an op on a wheel takes the device.

    Attributes:
        fixed_us: whatever the number of turns.
        turn_us: for each turn.
    """

    fixed_us: float
    turn_us: float

    @classmethod
    def measure(cls, wheel: Wheel) -> Clock:
        """Time ops of two lengths. Blocks."""
        many = 10
        while op_us(wheel, many) < _LONG_US and many < _MOST_TURNS:  # meanwhile the device's clock rises
            many *= 10
        few = many // 10
        short, long = op_us(wheel, few), op_us(wheel, many)
        turn_us = max((long - short) / (many - few), 1e-5)
        return cls(fixed_us=max(short - few * turn_us, 0.0), turn_us=turn_us)

    def loops(self, us: float) -> int:
        """How many turns take so long."""
        return max(1, math.ceil((us - self.fixed_us) / self.turn_us))


def op_us(wheel: Wheel, loops: int) -> float:
    """What an op of so many turns takes the device, in microseconds: the median of several. Blocks."""
    stream, samples = wheel.stream, []
    with stream.device.event(timing=True) as start, stream.device.event(timing=True) as end:
        for _ in range(5):
            start.record(stream)
            for _ in range(_BACK_TO_BACK):
                wheel.turn(loops).async_on(stream)
                wheel.turned += loops
            end.record(stream)
            end.synchronize()
            samples.append(1e3 * start.elapsed_ms(end) / _BACK_TO_BACK)
    return statistics.median(samples)
