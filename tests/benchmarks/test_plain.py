"""The benchmark `plain`: small, on any device; each way to write a kernel is right, beside the library's."""

from __future__ import annotations

import re

import hazards
import pytest

import tilekit as tk
import tilekit_benchmarks as bench
from tilekit import api
from tilekit_benchmarks import Options, _tilekit_plain, plain, report


@pytest.fixture
def peers(device, monkeypatch):
    monkeypatch.setattr(plain, "PEERS", {device.kind: {plain._LIBRARY: plain._library}})


@pytest.mark.usefixtures("peers")
def test_all_are_right_and_compared_with_the_library(device):
    run = bench.run("plain", Options(device=device, n=256, rounds=2, command="c"))
    assert run.all_correct and not run.left_out
    kernels = [case.kernel for case in run.cases]
    assert kernels[: len(plain._SPELLINGS)] == [f"gemm, {spelling}" for spelling in plain._SPELLINGS]
    assert {"attention, a loop", "causal attention, a loop"} == set(kernels[len(plain._SPELLINGS) :])
    for case in run.cases:
        assert {result.name for result in case.results} == {"tilekit", plain._LIBRARY}
    assert "to tilekit.kernels" in report.table(run)


def test_larger_sizes_have_fewer_spellings():
    cases = plain.plain_cases("cuda")
    assert [case.kernel for case in cases if case.shape == (8192,) * 3] == ["gemm, a loop", "gemm, blocks that stay"]
    assert len({case.label for case in cases}) == len(cases)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("kernel", [_tilekit_plain.attention, _tilekit_plain.causal_attention], ids=lambda kernel: kernel.name)
def test_attention_of_one_loop_loads_ahead(kernel, size):
    q, o = (api.meta((1, 8, 4096, size), tk.bfloat16) for _ in range(2))
    explained = kernel(o.partition((1, 1, 128, size)), q, q, q).generics(BM=128, BN=128, D=size).explain("sm_90a")
    assert max(ring.stages for ring in explained.pipelines) >= 2
    assert len(re.findall("HGMMA", explained.compiled.sass)) >= 12
    assert explained.compiled.local_bytes == 0
    hazards.check(explained.compiled)
