"""The peers of the kernels' benchmarks compute what tilekit computes: PyTorch always, Triton where it has a kernel."""

from __future__ import annotations

import pytest

from tilekit_benchmarks import Options, kernel_cases, kernel_peers, kernel_runs

CASES = [*kernel_cases.softmax_cases(50), *kernel_cases.norm_cases(50), *kernel_cases.kernel_cases(300)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_torch_agrees(device, monkeypatch, case):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(kernel_peers, "PEERS", {"cuda": {"torch": kernel_peers.torch_eager}})
    run = kernel_runs.measure("kernels", Options(device=device, rounds=1), [case])
    assert not run.left_out, run.left_out
    assert {r.name for r in run.cases[0].results} == {"tilekit", "torch"}


TRITONS = ("softmax", "rms_norm", "layer_norm", "cross_entropy", "gelu", "dropout", "cumsum", "transpose")


@pytest.mark.parametrize("case", [case for case in CASES if case.kernel in TRITONS], ids=lambda case: case.label)
def test_triton_agrees(device, monkeypatch, case):
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(kernel_peers, "PEERS", {"cuda": {"triton": kernel_peers.triton_kernel}})
    run = kernel_runs.measure("kernels", Options(device=device, rounds=1), [case])
    assert not run.left_out, run.left_out
    assert {r.name for r in run.cases[0].results} == {"tilekit", "triton"}
