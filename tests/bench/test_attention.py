"""The benchmark `attention`: small, on any device, with and without a peer."""

from __future__ import annotations

import numpy as np
import pytest

from tilekit import api, bench
from tilekit.bench import Options, attention, report
from tilekit.bench.harness import Contestant, Variant


def peer(factor):
    """A peer whose result is that of NumPy, times a factor."""

    def build(case, tensors, out, stream):
        contestant, made = attention._numpy(case, tensors, out, stream)

        def launch():
            contestant.variants[0].launch()
            api.memcpy(out, (factor * made()).astype(case.dtype)).sync_on(stream)

        variants = (Variant(label="v", launch=launch),)
        return Contestant(name="peer", version="1", variants=variants), lambda: out.to_host().sync_on(stream)

    return build


@pytest.fixture
def measured(device, monkeypatch):
    monkeypatch.setattr(attention, "_SIZES", ((1, 2, 128, 64),))
    monkeypatch.setattr(attention, "_REFERENCE", {device.kind: "peer"})

    def measure(factor):
        monkeypatch.setattr(attention, "PEERS", {device.kind: {"peer": peer(factor)}})
        return bench.run("attention", Options(device=device, n=96, rounds=2))

    return measure


def test_a_peer_is_compared(measured):
    run = measured(1.0)
    assert run.all_correct
    assert not run.left_out
    plain, causal = run.cases
    assert [(case.kernel, case.shape) for case in run.cases] == [
        ("attention", (1, 2, 96, 64)), ("causal attention", (1, 2, 96, 64))
    ]  # fmt: skip
    for case, operations in ((plain, 4 * 2 * 96 * 96 * 64), (causal, 2 * 2 * 96 * 96 * 64)):
        assert {r.name for r in case.results} == {"tilekit", "peer"}
        own = next(r for r in case.results if r.name == "tilekit")
        assert own.rate == pytest.approx(1e-6 * operations / own.median_us)
        assert own.ratio > 0
    text = report.table(run)
    assert f"causal attention {plain.dtype} 1x2x96x64" in text
    assert "TFLOP/s" in text
    assert "GB/s" not in text


def test_a_peer_that_is_wrong_is_left_out(measured):
    run = measured(1.1)
    assert {one.cause for one in run.left_out} == {"wrong"}
    assert all(r.name == "tilekit" for case in run.cases for r in case.results)


def test_tilekit_that_is_wrong_is_not_measured(measured, monkeypatch):
    monkeypatch.setattr(attention.kernels, "attention", lambda q, k, v, causal, out: out.fill(0.0))
    run = measured(1.0)
    assert not run.cases
    assert {one.name.partition(",")[0] for one in run.left_out} == {"tilekit"}


def test_sizes():
    cases = attention.attention_cases("cuda")
    assert [(case.shape, "causal" in case.kernel) for case in cases] == [
        ((1, 32, 8192, 128), False), ((1, 32, 8192, 128), True), ((4, 16, 4096, 64), False), ((4, 16, 4096, 64), True)
    ]  # fmt: skip


def test_the_rows_that_are_checked_follow_the_mask():
    q, k, v = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(3))
    assert np.allclose(attention._attend(q, k, v, np.arange(5))[0], v[0])
