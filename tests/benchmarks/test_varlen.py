"""The benchmark `varlen`: small, on any device; what its results are compared with."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit_benchmarks as bench
from tilekit import api
from tilekit_benchmarks import Options, attention_checks, varlen
from tilekit_benchmarks.attention_checks import attend, gradients
from tilekit_benchmarks.harness import Contestant, Variant

NAMES = ["attention_varlen", "causal attention_varlen", "attention_varlen_backward", "causal attention_varlen_backward"]


@pytest.fixture
def measured(device, monkeypatch):
    """Runs it with a peer whose result is that of NumPy, times a factor."""
    for name in ("_SIZES", "_CPU_SIZES"):
        monkeypatch.setattr(varlen, name, ((1, 64),))
    monkeypatch.setattr(varlen, "_REFERENCE", {device.kind: "peer"})

    def measure(factor):
        def build(case, tensors, out, stream):
            contestant, made = varlen._numpy(case, tensors, out, stream)

            def launch():
                contestant.variants[0].launch()
                api.memcpy(out, (factor * made()).astype(case.dtype)).sync_on(stream)

            return Contestant(name="peer", version="1", variants=(Variant(launch=launch),)), lambda: out.to_host().sync_on(stream)

        monkeypatch.setattr(varlen, "PEERS", {device.kind: {"peer": build}})
        return bench.run("varlen", Options(device=device, n=41, rounds=1))

    return measure


def test_a_peer_is_compared(measured):
    run = measured(1.0)
    assert run.all_correct
    assert not run.left_out
    lengths = varlen.lengths_of(41)
    assert (len(lengths), max(lengths), min(lengths)) == (10, 41, 2)
    once = 4 * 64 * sum(n * n for n in lengths)
    assert [case.kernel for case in run.cases] == NAMES
    assert [case.operations for case in run.cases] == [once, once // 2, 5 * once // 2, 5 * (once // 2) // 2]
    assert {case.shape for case in run.cases} == {(sum(lengths), 1, 64)}
    for case in run.cases:
        assert {r.name for r in case.results} == {"tilekit", "peer"}
        assert all(r.ratio > 0 for r in case.results)


def test_a_peer_that_is_wrong_is_left_out(measured):
    run = measured(1.1)
    assert [one.cause for one in run.left_out] == ["wrong"] * 4
    assert all(r.name == "tilekit" for case in run.cases for r in case.results)


def test_tilekit_that_is_wrong_is_not_measured(measured, monkeypatch):
    forward, backward = varlen.kernels.attention_varlen, varlen.kernels.attention_varlen_backward
    monkeypatch.setattr(varlen.kernels, "attention_varlen", lambda *given, **options: forward(*given, **options, scale=0.2))
    monkeypatch.setattr(
        varlen.kernels, "attention_varlen_backward", lambda *given, **options: backward(*given, **options, scale=0.3)
    )
    run = measured(1.0)
    assert not run.cases
    assert [one.name.partition(",")[0] for one in run.left_out if one.cause == "wrong"] == ["tilekit"] * 4


def test_sizes():
    cases = varlen.varlen_cases("cuda")
    assert [case.kernel for case in cases] == [name for kind in (NAMES[:2], NAMES[2:]) for name in kind * 2]
    assert {case.shape[1:] for case in cases} == {(16, 128), (32, 64)}
    assert {case.shape[0] for case in cases} == {sum(varlen.lengths_of(4096))}


@pytest.mark.parametrize("causal", [False, True])
def test_what_a_sequence_is_compared_with(causal):
    q, k, v, grad = (np.random.default_rng(n).standard_normal((6, 4)) for n in range(4))
    places = np.arange(6) if causal else None
    assert np.array_equal(attention_checks.of_sequences(q, k, v, causal=causal), attend(q, k, v, places))
    three = attention_checks.of_sequences(q, k, v, grad, causal=causal)
    assert np.array_equal(three, np.stack(gradients(q, k, v, grad, places)))
