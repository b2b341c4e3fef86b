"""The benchmark `gemm`: small, on any device, with and without a peer."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilekit_benchmarks as bench
from tilekit import api
from tilekit_benchmarks import Options, gemm, report
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_peers import Missing


@pytest.fixture
def only(monkeypatch, device):
    def choose(**peers):
        monkeypatch.setattr(gemm, "PEERS", {device.kind: peers})

    return choose


def peer(change, name="peer"):
    """A peer that multiplies on the host, and then changes the result."""

    def build(case, tensors, out, stream):
        a, b = (tensors[what].to_host().sync_on(stream).astype(np.float32) for what in ("x", "weight"))
        made = a @ b
        change(made)

        def launch():
            api.memcpy(out, made.astype(case.output[1])).sync_on(stream)

        variant = Variant(label="v", launch=launch)
        return Contestant(name=name, version="1", variants=(variant,)), lambda: out.to_host().sync_on(stream)

    return build


def test_a_peer_is_compared(device, only, tmp_path, monkeypatch):
    only(peer=peer(lambda y: None))
    monkeypatch.setattr(gemm, "_REFERENCE", {device.kind: "peer"})
    run = bench.run("gemm", Options(device=device, n=96, rounds=3, command="c"))
    assert run.all_correct
    assert not run.left_out
    (case,) = run.cases
    assert case.shape == (96, 96, 96)
    assert {r.name for r in case.results} == {"tilekit", "peer"}
    own = next(r for r in case.results if r.name == "tilekit")
    assert len(own.samples_us) == 3
    assert own.rate == pytest.approx(2e-6 * 96**3 / own.median_us)
    assert own.min_rate <= own.rate <= own.max_rate
    assert own.ratio > 0
    assert next(r for r in case.results if r.name == "peer").ratio == 1
    text = report.table(run)
    assert "96x96x96" in text
    assert "to peer" in text
    report.save(run, tmp_path / "r.json")
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["cases"][0]["results"][0]["unit"] == "TFLOP/s"
    assert kept["versions"]["peer"] == "1"
    pytest.importorskip("matplotlib", reason="draws a plot")
    report.plot(run, tmp_path / "r.png")
    assert (tmp_path / "r.png").stat().st_size > 1000


def test_sizes(device):
    cases = gemm.gemm_cases("cuda")
    assert [case.shape for case in cases][:5] == [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
    assert [case.dtype.name for case in cases[:8]] == ["bfloat16"] * 8
    assert [case.kernel for case in cases[8:]] == ["gemm e4m3", "gemm e4m3 fast", "gemm int8", "gemm tf32"]
    assert {case.shape for case in cases[8:]} == {(8192, 8192, 8192)}
    assert len(gemm.gemm_cases("cuda", 4096)) == 1
    assert [case.shape for case in gemm.gemm_cases("cpu", 40)] == [(40, 40, 40)]


@pytest.mark.parametrize("kernel", gemm._OF_OTHER_TYPES)
def test_other_types(device, only, monkeypatch, kernel):
    """The second matrix is the transpose of a row-major one, and the result is checked in the dtype that it has."""

    def turned(case, tensors, out, stream):
        given = {"x": tensors["x"], "weight": tensors["turned"].T}
        return peer(lambda y: None)(case, given, out, stream)

    only(peer=turned)
    monkeypatch.setattr(gemm, "_REFERENCE", {device.kind: "peer"})
    monkeypatch.setattr(gemm, "gemm_cases", lambda kind, n: [gemm._other_case(kernel, n)])
    run = bench.run("gemm", Options(device=device, n=96, rounds=1))
    assert run.all_correct, run.left_out
    (case,) = run.cases
    dtype, _, _, tolerance = gemm._OF_OTHER_TYPES[kernel]
    assert (case.kernel, case.dtype) == (kernel, dtype.name)
    assert {r.name for r in case.results} == {"tilekit", "peer"}
    assert all(r.max_relative_error <= tolerance for r in case.results if r.name == "tilekit")
    assert f"{kernel} {dtype.name} 96x96x96" in report.table(run)


@pytest.mark.parametrize("at", [(0, 0), (79, 79)])
@pytest.mark.parametrize("value", [1e3, np.nan])
def test_a_peer_that_is_wrong_is_left_out(device, only, at, value):
    def change(y):
        y[at] = value

    only(peer=peer(change))
    run = bench.run("gemm", Options(device=device, n=80, rounds=1))
    assert not run.all_correct
    assert [one.cause for one in run.left_out] == ["wrong"]
    assert [r.name for r in run.cases[0].results] == ["tilekit"]
    assert run.cases[0].results[0].ratio is None


def test_peers_that_are_not_there(device, only):
    def missing(case, tensors, out, stream):
        raise Missing("pip install it")

    only(missing=missing)
    run = bench.run("gemm", Options(device=device, n=32, rounds=1))
    assert [(one.name, one.cause) for one in run.left_out] == [("missing", "missing")]


def test_tilekit_may_not_be_wrong(device, only, monkeypatch):
    only()
    monkeypatch.setattr(gemm.kernels, "gemm", lambda a, b, out: out.fill(0.0))
    run = bench.run("gemm", Options(device=device, n=32, rounds=1))
    assert not run.all_correct
    assert not run.cases


def test_numpy_takes_part_on_a_cpu_device(cpu):
    run = bench.run("gemm", Options(device=cpu, n=64, rounds=1))
    assert {r.name for r in run.cases[0].results} == {"tilekit", "numpy"}
    assert (run.reference, run.cases[0].dtype) == ("numpy", "float32")
