"""The benchmark `attention`: small, on any device, with and without a peer."""

from __future__ import annotations

import numpy as np
import pytest

import tilekit_benchmarks as bench
from tilekit import api, dtypes
from tilekit_benchmarks import Options, attention, attention_checks, report
from tilekit_benchmarks.attention_checks import attend
from tilekit_benchmarks.harness import Contestant, Variant


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
    for name in ("_SIZES", "_CPU_SIZES"):
        monkeypatch.setattr(attention, name, ((1, 2, 128, 64),))
    monkeypatch.setattr(attention, "_MORE_GRADIENTS", ())
    for name in ("_DECODED", "_CPU_DECODED"):
        monkeypatch.setattr(attention, name, ((2, 4, 2, 128, 64),))
    monkeypatch.setattr(attention, "_REFERENCE", {device.kind: "peer"})

    def measure(factor):
        monkeypatch.setattr(attention, "PEERS", {device.kind: {"peer": peer(factor)}})
        return bench.run("attention", Options(device=device, n=48, rounds=1))

    return measure


def test_a_peer_is_compared(measured, tmp_path):
    run = measured(1.0)
    assert run.all_correct
    assert not run.left_out
    once = 4 * 2 * 48 * 48 * 64
    names = "attention", "causal attention", "attention_backward", "causal attention_backward"
    for case, name, operations in zip(run.cases, names, (once, once / 2, 2.5 * once, 1.25 * once), strict=False):
        assert (case.kernel, case.shape, case.operations) == (name, (1, 2, 48, 64), operations)
        assert {r.name for r in case.results} == {"tilekit", "peer"}
        own = next(r for r in case.results if r.name == "tilekit")
        assert own.rate == pytest.approx(1e-6 * operations / own.median_us)
        assert own.ratio > 0
        assert case.copy_gb_per_s is None
    decode = run.cases[-1]
    assert (len(run.cases), decode.kernel, decode.shape) == (5, "attention_decode", (2, 4, 2, 48, 64))
    own = next(r for r in decode.results if r.name == "tilekit")
    assert own.rate == pytest.approx(1e-3 * decode.bytes_per_launch / own.median_us)
    assert decode.bytes_per_launch == 2 * 2 * 2 * 48 * 64 * np.dtype(dtypes.as_dtype(decode.dtype)).itemsize
    assert decode.copy_gb_per_s > 0
    text = report.table(run)
    assert f"causal attention {decode.dtype} 1x2x48x64" in text
    assert f"attention_decode {decode.dtype} 2x4x2x48x64" in text
    assert "TFLOP/s" in text
    assert "GB/s" in text
    pytest.importorskip("matplotlib", reason="draws a plot")
    report.plot(run, tmp_path / "r.png")
    assert (tmp_path / "r.png").stat().st_size > 1000


def test_a_peer_that_is_wrong_is_left_out(measured):
    run = measured(1.1)
    assert {one.cause for one in run.left_out} == {"wrong"}
    assert all(r.name == "tilekit" for case in run.cases for r in case.results)


def test_tilekit_that_is_wrong_is_not_measured(measured, monkeypatch):
    def wrong(q, k, v, causal=False, out=None, **more):
        return kernels_attention(q, k, v, causal=causal, **more) if out is None else out.fill(0.0)

    kernels_attention, backward = attention.kernels.attention, attention.kernels.attention_backward
    monkeypatch.setattr(attention.kernels, "attention", wrong)
    monkeypatch.setattr(attention.kernels, "attention_decode", wrong)
    monkeypatch.setattr(
        attention.kernels, "attention_backward", lambda *given, causal: backward(*given, causal=causal, scale=0.2)
    )
    run = measured(1.0)
    assert not run.cases
    assert [one.name.partition(",")[0] for one in run.left_out if one.cause == "wrong"] == ["tilekit"] * 5


def test_sizes():
    cases = attention.attention_cases("cuda")
    long, short = (1, 32, 8192, 128), (4, 16, 4096, 64)
    both = [(long, False), (long, True), (short, False), (short, True)]
    wide = [((1, 16, 8192, 256), False), ((1, 16, 8192, 256), True)]
    assert [(case.shape, case.kernel.startswith("causal")) for case in cases[:10]] == [*both, *both, *wide]
    assert [case.kernel.endswith("backward") for case in cases[:10]] == 4 * [False] + 6 * [True]
    assert all(case.kernel == "attention_decode" and case.nbytes > 256e6 for case in cases[10:])


def test_the_rows_that_are_checked_follow_the_mask():
    q, k, v = (np.random.default_rng(n).standard_normal((5, 4)) for n in range(3))
    assert np.allclose(attend(q, k, v, np.arange(5))[0], v[0])


@pytest.mark.parametrize("places", [None, np.arange(6)], ids=["all", "causal"])
def test_the_gradients_that_are_compared_with(places, monkeypatch):
    """Against differences of sums, and with several chunks."""
    monkeypatch.setattr(attention_checks, "_CHUNK", 4)
    q, k, v, grad = given = [np.random.default_rng(n).standard_normal((6, 4)) for n in range(4)]
    found = attention_checks.gradients(*given, places)
    for which, x in enumerate((q, k, v)):
        for at in np.ndindex(x.shape):
            sums = []
            for step in (1e-5, -1e-5):
                moved = [q, k, v]
                moved[which] = x.copy()
                moved[which][at] += step
                sums.append((grad * attend(*moved, places)).sum())
            assert found[which][at] == pytest.approx((sums[0] - sums[1]) / 2e-5, abs=1e-8)
