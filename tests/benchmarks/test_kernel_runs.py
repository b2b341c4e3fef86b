"""The benchmarks of the kernels: small, on any device, with and without a peer."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilekit as tk
import tilekit_benchmarks as bench
from tilekit import api
from tilekit_benchmarks import Options, gemm, kernel_cases, kernel_peers, kernel_runs, report
from tilekit_benchmarks.harness import Contestant, Variant

ALL = [
    *kernel_cases.softmax_cases(2),
    *kernel_cases.norm_cases(8),
    *kernel_cases.kernel_cases(40),
]


@pytest.fixture
def only(monkeypatch, device):
    def choose(**peers):
        monkeypatch.setattr(kernel_peers, "PEERS", {device.kind: peers})

    return choose


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.label)
def test_every_case_is_right(device, only, case):
    only()
    run = kernel_runs.measure("kernels", Options(device=device, rounds=1), [case])
    assert run.all_correct
    (found,) = run.cases
    (own,) = found.results
    assert own.name == "tilekit"
    assert own.max_relative_error <= case.tolerance
    assert found.copy_gb_per_s > 0


def test_every_case_has_a_peer():
    assert {case.kernel for case in (*ALL, *gemm.gemm_cases("cuda"))} == set(kernel_peers.TORCH)


def peer(change):
    """A peer that computes softmax on the host, and then something else."""

    def build(case, tensors, out, stream):
        def launch():
            stream.synchronize()
            x = tensors["x"].to_host().sync()
            e = np.exp(x - x.max(-1, keepdims=True))
            y = e / e.sum(-1, keepdims=True)
            change(y)
            api.memcpy(out, y).sync_on(stream)

        variant = Variant(label="v", launch=launch)
        return Contestant(name="peer", version="1", variants=(variant,)), lambda: out.to_host().sync_on(stream)

    return build


def one(device):
    return kernel_runs.measure("softmax", Options(device=device, rounds=2, command="c"), kernel_cases.softmax_cases(4)[:1])


def test_a_peer_is_compared(device, only, tmp_path):
    only(peer=peer(lambda y: None))
    run = one(device)
    assert {r.name for r in run.cases[0].results} == {"tilekit", "peer"}
    own = next(r for r in run.cases[0].results if r.name == "tilekit")
    assert own.ratio > 0
    assert len(own.samples_us) == 2
    text = report.table(run)
    assert "softmax float32 4x1024" in text
    assert "peer" in text
    report.save(run, tmp_path / "r.json")
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["cases"][0]["results"][0]["samples_us"]
    assert kept["versions"]["peer"] == "1"
    pytest.importorskip("matplotlib", reason="draws a plot")
    report.plot(run, tmp_path / "r.png")
    assert (tmp_path / "r.png").stat().st_size > 1000


@pytest.mark.parametrize("at", [(0, 0), (3, 1023)])
@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_peer_that_is_wrong_is_left_out(device, only, at, value):
    def change(y):
        y[at] = value

    only(peer=peer(change))
    run = one(device)
    assert not run.all_correct
    assert run.left_out[0].name == "peer, softmax float32 4x1024"
    assert [r.name for r in run.cases[0].results] == ["tilekit"]


def test_peers_that_are_not_there(device, only):
    def missing(case, tensors, out, stream):
        raise kernel_peers.Missing("pip install it")

    def unwritten(case, tensors, out, stream):
        raise NotImplementedError

    def broken(case, tensors, out, stream):
        raise RuntimeError("no such luck")

    only(missing=missing, unwritten=unwritten, broken=broken)
    run = kernel_runs.measure("softmax", Options(device=device, rounds=1), kernel_cases.softmax_cases(4)[:2])
    assert [(one.name, one.cause) for one in run.left_out] == [
        ("missing", "missing"),
        ("broken, softmax float32 4x1024", "failed"),
        ("broken, softmax float32 4x4096", "failed"),
    ]


def test_tilekit_may_not_be_wrong(device, only, monkeypatch):
    only()
    (case,) = kernel_cases.softmax_cases(4)[:1]
    wrong = kernel_cases.Case(**{**vars(case), "own": lambda t, y: y.fill(0.0)})
    run = kernel_runs.measure("softmax", Options(device=device, rounds=1), [wrong])
    assert not run.all_correct
    assert not run.cases


@pytest.mark.parametrize("name", ["softmax", "norms", "kernels"])
def test_they_are_benchmarks(name, monkeypatch, device):
    asked = []
    monkeypatch.setattr(f"tilekit_benchmarks.{name}.measure", lambda *given: asked.append(given))
    bench.run(name, Options(device=device, n=3))
    assert asked[0][0] == name
    assert asked[0][2]
    assert isinstance(asked[0][2][0].own, type(lambda: 0))
    assert tk.float32


@pytest.mark.parametrize(
    ("block", "warps"),
    [(16, ()), (64, (2,)), (4096, (2, 4, 8, 16, 32)), (16384, (4, 8, 16, 32)), (131072, (32,)), (262144, ())],
)
def test_threads_of_tritons_rows_have_no_more_than_fits_them(block, warps):
    assert kernel_cases.row_warps(block) == warps
