"""The peers of the benchmark `gemm` compute what tilekit computes."""

from __future__ import annotations

import pytest

import tilekit_benchmarks as bench
from tilekit_benchmarks import Options, gemm, kernel_peers


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("n", [256, 1000])
def test_a_peer_agrees(device, monkeypatch, name, n):
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.setattr(gemm, "PEERS", {"cuda": {name: kernel_peers.PEERS["cuda"][name]}})
    run = bench.run("gemm", Options(device=device, n=n, rounds=1))
    assert not run.left_out, run.left_out
    assert {r.name for r in run.cases[0].results} == {"tilekit", name}


@pytest.mark.parametrize("kernel", gemm._OF_OTHER_TYPES)
def test_torch_agrees_on_other_types(device, monkeypatch, kernel):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(gemm, "PEERS", {"cuda": {"torch": kernel_peers.PEERS["cuda"]["torch"]}})
    monkeypatch.setattr(gemm, "gemm_cases", lambda kind, n: [gemm._other_case(kernel, 1024)])
    run = bench.run("gemm", Options(device=device, rounds=1))
    assert not run.left_out, run.left_out
    assert {r.name for r in run.cases[0].results} == {"tilekit", "torch"}
