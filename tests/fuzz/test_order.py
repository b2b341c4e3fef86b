"""Programs on arrays of another library, on several streams: whatever overlaps is used in one order, as the driver sees it.

What the driver is asked (records, waits, queries) says what runs behind what, by vector clocks. Each launch has to come behind
all that has used its memory before in another way, tilekit's work and what the library had submitted by then.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import fake_gpu
import numpy as np
import pytest
from exchanger import exchanging
from exporter import Exporter
from fake_gpu import FakeBindings, first_gpu, launch_through

import tilekit as tk
from tilekit import api, kernels

_WORDS, _CUT = 4096, 64


@tk.kernel
def add(z: tk.InOut, x: tk.In):
    z.store(tk.load_tile_like(x, z) + tk.load_tile_like(z, z))


class Clocks(FakeBindings):
    """A driver that knows what is over where: of each stream how many pieces of work of every stream."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Counter[int]] = {}
        self.over: Counter[int] = Counter()
        self.uses: list[tuple[int, int, int, int, bool, str]] = []  # stream, tick, low, high, written, whose
        self.problem: str | None = None
        self.rng = np.random.default_rng(0)  # says whether an event has passed that is asked for
        self._events: dict[int, Counter[int]] = {}
        self._ranges: list[tuple[int, int, bool]] = []

    def at(self, stream: Any) -> Counter[int]:
        return self.streams.setdefault(int(stream or 0), Counter())

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[int]:
        self._events[int(event)] = self.at(stream).copy()
        return (0,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[int]:
        clock = self.at(stream)
        clock |= self._events[int(event)]
        return (0,)

    def cuEventQuery(self, event: Any) -> tuple[int]:
        if self.rng.random() < 0.7:
            return (600,)
        return self.cuEventSynchronize(event)

    def cuEventSynchronize(self, event: Any) -> tuple[int]:
        self.over |= self._events[int(event)]
        return (0,)

    def cuStreamQuery(self, stream: Any) -> tuple[int]:
        return (600,)

    def launching(self, ranges: list[tuple[int, int, bool]]) -> None:
        """What the next launches use: bytes from, to, and whether they are written."""
        self._ranges = ranges

    def _launched(self, function: Any, *rest: Any) -> int:
        self.use(int(rest[7] or 0), self._ranges, "tilekit")
        return 0

    def use(self, stream: int, ranges: list[tuple[int, int, bool]], whose: str) -> None:
        """One piece of work. Behind whose it has to come it does, or there is a problem; the library's waits for nobody's."""
        clock = self.at(stream)
        if whose == "tilekit":
            clock |= self.over
            for other, tick, low, high, wrote, who in self.uses:
                for start, end, writes in ranges:
                    if low < end and start < high and (wrote or writes) and clock[other] < tick:
                        self.problem = f"work on stream {stream:#x} does not come behind that of {who} on {other:#x}"
        clock[stream] += 1
        self.uses += [(stream, clock[stream], low, high, wrote, whose) for low, high, wrote in ranges]


def run(seed: int, device: Any, clocks: Any) -> str | None:
    """One program; what is out of order in it, or None."""
    rng = clocks.rng = np.random.default_rng(seed)
    Array, exported = exchanging(), Exporter.__dlpack__

    def behind_the_library(array: Any, *, stream: Any = None, **newer: Any) -> Any:
        """As arrays are asked in full: the library lets that stream wait for what it has submitted."""
        clock = clocks.at(stream)
        clock |= clocks.at(Array.current)
        return exported(array, stream=stream, **newer)

    Array.__dlpack__ = behind_the_library
    memory, own = np.zeros(_WORDS, np.uint32), api.zeros(_WORDS).sync()
    base, kept, trace = memory.ctypes.data, [], []
    streams = [device.stream() for _ in range(int(rng.integers(1, 4)))]

    def part(limit: int = 16) -> tuple[int, int]:
        low = int(rng.integers(0, _WORDS // _CUT - limit))
        return low * _CUT, (low + int(rng.integers(1, limit + 1))) * _CUT

    def bytes_of(low: int, high: int, written: bool) -> tuple[int, int, bool]:
        return base + 4 * low, base + 4 * high, written

    def given(low: int, high: int) -> Any:
        """The array, or a tensor of it, which is kept for a while."""
        array = Array(memory[low:high])
        if rng.random() < 0.5:
            return array
        kept.append(tk.as_tensor(array))
        return kept[-1]

    for _ in range(int(rng.integers(5, 40))):
        stream, what = streams[rng.integers(len(streams))], rng.random()
        if what < 0.15:  # the library's turn, perhaps in another stream of its, which it lets wait for the one before
            before, Array.current = Array.current, int(rng.choice([0, 77, 99]))
            now = clocks.at(Array.current)
            now |= clocks.at(before)
            low, high = part()
            clocks.use(Array.current, [bytes_of(low, high, bool(rng.integers(2)))], "the library")
            trace.append(f"library on {Array.current}: {low}:{high}")
            continue
        if what < 0.25:
            del kept[: int(rng.integers(0, len(kept) + 1))]
            if rng.random() < 0.3:
                gc.collect()
            device.collect()
            continue
        (low, high), (start, _) = part(), part()
        size = high - low
        end = start + size
        if what < 0.45:  # a ready-made kernel, in rows of 64
            rows = (size // _CUT, _CUT)
            x, y = (Array(memory[at : at + size].reshape(rows)) for at in (start, low))
            make = lambda x=x, y=y: kernels.softmax(x, out=y)  # noqa: E731
            ranges = [bytes_of(start, end, False), bytes_of(low, high, True)]
        elif what < 0.55:  # from tilekit's memory, and to it
            z = Array(memory[low:high])
            make = lambda z=z, n=size: add(z, own[:n]).tile(_CUT)  # noqa: E731
            ranges = [bytes_of(low, high, True)]
        else:
            x, z = given(start, end), given(low, high)
            make = lambda x=x, z=z: add(z, x).tile(_CUT)  # noqa: E731
            ranges = [bytes_of(start, end, False), bytes_of(low, high, True)]
        trace.append(f"{low}:{high} by {start}:{end} on {stream.address:#x}")
        clocks.launching(ranges)
        try:
            op = make()
            op.sync_on(stream) if rng.random() < 0.15 else op.async_on(stream)
        except ValueError as error:
            if "overlap" not in str(error):
                raise
        if clocks.problem is not None:
            return "\n".join([*trace, clocks.problem])
    for stream in streams:
        stream.close()
    return None


@pytest.mark.parametrize("way", ["native", "python"])
def test_what_overlaps_is_used_in_one_order(way, cases, monkeypatch):
    pytest.importorskip("cuda.bindings.driver", reason="the stand-in is driven by cuda.bindings")
    launch_through(way, monkeypatch)
    monkeypatch.setattr(fake_gpu, "FakeBindings", Clocks)
    for seed in cases:
        with monkeypatch.context() as patch, first_gpu(patch) as (device, clocks):
            problem = run(seed, device, clocks)
        assert problem is None, cases.report(seed, problem)


BUDGET = 0.5
