"""The tuner on a GPU that does nothing, at once: what the driver is asked."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api
from tilekit.tuning import records

SPACE = tk.Space(tile=[128, 512, 8192], num_warps=[1, 4])


@tk.kernel
def add(y: tk.InOut, x: tk.In) -> None:
    y.store(y.load() + tk.exp(tk.load_tile_like(x, y)))


def test_an_op_is_timed_between_events_behind_a_cleared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: SimpleNamespace(stdout="1980, 2619\n"))
    with fake_device(slots=4) as (_, bindings):
        y, x = api.zeros(1 << 16).sync(), api.ones(1 << 16).sync()
        filled: list[Any] = []
        fill = bindings.cuMemsetD32Async
        bindings.cuMemsetD32Async = lambda *asked: filled.append(asked) or fill(*asked)
        before = bindings.calls["cuLaunchKernel"]
        timing = tk.do_bench(lambda: tk.Config(tile=512).apply(add(y, x)), seconds=0)
        assert bindings.calls["cuLaunchKernel"] - before == 6
        assert [4 * count for _, _, count, _ in filled] == [100 << 20] * 5
        assert bindings.calls["cuEventElapsedTime"] == 5
        assert (timing.median_us, timing.method, timing.clocks_mhz) == (250.0, "events", (1980, 2619))
        assert str(timing).endswith("on fake GPU; clocks 1980 and 2619 MHz")


def test_an_op_is_recorded_as_a_graph() -> None:
    with fake_device(slots=4) as (_, bindings):
        y, x = api.zeros(1 << 16).sync(), api.ones(1 << 16).sync()
        timing = tk.do_bench(tk.Config(tile=512).apply(add(y, x)), seconds=0)
        assert timing.method == "graph"
        assert bindings.calls["cuGraphLaunch"] == 6


@pytest.mark.parametrize(("answer", "error"), [("[N/A], 5", None), ("", None), ("", OSError("no such program"))])
def test_clocks_that_nobody_tells(answer: str, error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert "--id=00000000:1B:00.0" in command
        if error is not None:
            raise error
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(subprocess, "run", run)
    with fake_device() as (device, _):
        assert device.driver.clocks_mhz() is None
        assert device.driver.l2_bytes == 50 << 20


def test_candidates_are_compiled_and_thrown_out_by_their_code() -> None:
    with fake_device(slots=4):
        y, x = api.zeros(1 << 16).sync(), api.ones(1 << 16).sync()
        tuning = tk.tune(lambda config: config.apply(add(y, x)), SPACE, check=False)
    reasons = {one.config: one.reason for one in tuning.candidates}
    assert "spills: each thread keeps" in str(reasons[tk.Config(tile=8192, num_warps=1)])
    assert all(one.registers for one in tuning.candidates)
    assert tuning.best["tile"] != 8192 or tuning.best["num_warps"] == 4
    assert "registers" in str(tuning)


def test_a_record_names_the_gpu_and_the_compiler() -> None:
    with fake_device() as (device, _):
        assert records.device_name(device) == "fake GPU (sm_90a)"
        assert "numba-cuda" in records.toolkit_name(device)
