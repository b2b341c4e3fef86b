"""`do_bench`."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

import tilekit as tk
from tilekit import api
from tilekit.tuning.timing import Stopwatch


@tk.kernel
def add(y: tk.InOut, a: float) -> None:
    y.store(y.load() + a)


def test_an_op_is_recorded_once_and_run_for_each_sample(device: tk.Device) -> None:
    y = api.zeros(64).sync()
    timing = tk.do_bench(add(y.partition(64), 1.0), seconds=0)
    assert len(timing.samples) == 5
    assert (y.to_host().sync() == 6).all()
    assert timing.method == ("graph" if device.kind == "cuda" else "wall")
    assert timing.device == device.name
    assert (timing.clocks_mhz is None) == (device.kind == "cpu")


def test_a_function_is_called_for_each_sample(device: tk.Device) -> None:
    y, calls = api.zeros(64).sync(), []

    def make() -> tk.DeviceOp[Any]:
        calls.append(1)
        return add(y.partition(64), 1.0)

    timing = tk.do_bench(make, seconds=0)
    assert len(calls) == 6
    assert (y.to_host().sync() == 6).all()
    assert timing.method == ("events" if device.kind == "cuda" else "wall")


def test_the_numbers_are_those_of_the_samples(device: tk.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 1.0, 4.0, 2.0, 3.0])
    monkeypatch.setattr(Stopwatch, "sample_us", lambda self, op: op.consumed() or next(times))
    y = api.zeros(64).sync()
    timing = tk.do_bench(lambda: add(y.partition(64), 1.0), seconds=0)
    assert timing.samples == (5.0, 1.0, 4.0, 2.0, 3.0)
    assert (timing.lower_us, timing.median_us, timing.upper_us) == (2.0, 3.0, 4.0)
    assert str(timing).startswith("3.0 us (2.0 to 4.0, 5 samples, ")


def test_it_takes_samples_for_as_long_as_it_is_told(device: tk.Device) -> None:
    y = api.zeros(64).sync()
    timing = tk.do_bench(lambda: add(y.partition(64), 1.0), seconds=0.05)
    assert len(timing.samples) > 5
    assert statistics.median(timing.samples) == timing.median_us > 0


def test_a_stream_can_be_named(device: tk.Device) -> None:
    with device.stream() as stream:
        assert tk.do_bench(lambda: api.zeros(64), seconds=0, stream=stream).median_us > 0


@pytest.mark.parametrize(
    ("op", "seconds", "error", "text"),
    [
        (3, 0.1, TypeError, "do_bench takes an op"),
        (lambda: 3, 0.1, TypeError, "the function makes an op, not 3"),
        (lambda: tk.value(1), -1, ValueError, "seconds is a number that is not negative"),
        (lambda: tk.value(1), float("nan"), ValueError, "seconds is a number that is not negative"),
        (lambda: tk.value(1), "1", ValueError, "seconds is a number that is not negative"),
    ],
)
def test_what_cannot_be_timed(device: tk.Device, op: Any, seconds: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tk.do_bench(op, seconds=seconds)


def test_what_cannot_be_recorded_is_told(device: tk.Device) -> None:
    with pytest.raises(TypeError, match="cannot be recorded"):
        tk.do_bench(api.from_host(np.zeros(4, np.float32)))
