"""Launches compiled in processes, for GPUs that need not be there."""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import pytest

import tilekit as tk
from tilekit import api
from tilekit.compiler.kernel import CompiledKernel
from tilekit.tuning import compiling


@tk.kernel
def double(y: tk.Out, x: tk.In) -> None:
    y.store(2.0 * tk.load_tile_like(x, y))


def launches(*tiles: int) -> list[tk.KernelLaunch]:
    return [double(api.meta(4096).partition(tile), api.meta(4096)) for tile in tiles]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_processes_compile_and_this_one_does_not() -> None:
    ops, done = launches(128, 256, 512), []
    kernels = compiling.compile_all(ops, "sm_90a", lambda: done.append(1), processes=2)
    assert len(done) == 3
    assert [kernel.block[0] for kernel in kernels if isinstance(kernel, CompiledKernel)] == [
        op.compile("sm_90a").block[0] for op in ops
    ]
    assert all(op.compile("sm_90a") is kernel for op, kernel in zip(ops, kernels))
    assert [op._plan("a test").specialisation.compilations for op in ops] == [0, 0, 0]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_cannot_be_compiled_is_told(processes: int) -> None:
    ops = [*launches(128), double(api.meta(4096).partition(128), api.meta(4096, tk.float8_e4m3fn))]
    first, second = compiling.compile_all(ops, "sm_90a", lambda: None, processes=processes)
    assert isinstance(first, CompiledKernel)
    assert isinstance(second, Exception)
    assert "float8_e4m3fn" in str(second)


def test_what_does_not_come_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(mine: Any, target: str, writer: Any) -> None:
        writer.close()

    monkeypatch.setattr(compiling, "_work", die)
    ops = launches(64, 1024)
    kernels = compiling.compile_all(ops, "sm_90a", lambda: None, processes=2)
    assert all(isinstance(kernel, CompiledKernel) for kernel in kernels)
    assert [op._plan("a test").specialisation.compilations for op in ops] == [1, 1]


def test_a_process_that_may_have_none_compiles_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    kernels = compiling.compile_all(launches(16, 4096), "sm_90a", lambda: None, processes=2)
    assert all(isinstance(kernel, CompiledKernel) for kernel in kernels)


def test_processes_that_hang_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_work", lambda mine, target, writer: time.sleep(100))
    monkeypatch.setattr(compiling, "_PATIENCE_S", 0.1)
    kernels = compiling.compile_all(launches(32, 2048), "sm_90a", lambda: None, processes=2)
    assert all(isinstance(kernel, CompiledKernel) for kernel in kernels)
