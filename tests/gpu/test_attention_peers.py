"""The peers of the benchmark `attention` compute what tilekit computes: forward, backward, decoding."""

from __future__ import annotations

import pytest

import tilekit_benchmarks as bench
from tilekit_benchmarks import Options, attention, varlen

FORWARD = {"attention", "causal attention"}
BOTH = {*FORWARD, "attention_backward", "causal attention_backward"}


@pytest.mark.parametrize(
    ("name", "library", "kernels"),
    [
        ("cudnn", "torch", BOTH),
        ("flash-attention-2", "torch", BOTH),
        ("triton", "triton", FORWARD),
    ],
)
@pytest.mark.parametrize("n", [256, 1000])
def test_a_peer_agrees(device, monkeypatch, name, library, kernels, n):
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.setattr(attention, "_SIZES", ((1, 3, n, 64), (2, 2, n, 128)))
    monkeypatch.setattr(attention, "_MORE_GRADIENTS", ((1, 2, n, 256),))
    monkeypatch.setattr(attention, "_DECODED", ((2, 8, 2, n, 128),))
    monkeypatch.setattr(attention, "PEERS", {"cuda": {name: attention.PEERS["cuda"][name]}})
    run = bench.run("attention", Options(device=device, rounds=1))
    refused = [one for one in run.left_out if "attention_decode" not in one.name]  # a backend need not take a single query
    assert run.all_correct
    assert not refused
    assert {case.kernel for case in run.cases} == {*BOTH, "attention_decode"}
    assert {case.kernel for case in run.cases if name in {r.name for r in case.results}} >= kernels


def test_the_peer_of_packed_sequences(device, monkeypatch):
    pytest.importorskip("torch", reason="the peer is PyTorch's")
    monkeypatch.setattr(varlen, "_SIZES", ((3, 64), (2, 128)))
    run = bench.run("varlen", Options(device=device, n=300, rounds=1))
    assert run.all_correct
    assert not run.left_out
    assert all({r.name for r in case.results} == {"tilekit", "flash-attention-2"} for case in run.cases)
    assert len(run.cases) == 8
