"""What PyTorch's contestants do, against a stand-in: the same arithmetic, on tilekit's memory, on its stream, waited for."""

import sys
from contextlib import ExitStack

import pytest
from fake_torch import fake_torch

from tilekit_benchmarks import decode, launch, launch_peers
from tilekit_benchmarks.sweep import Candidate, survey


@pytest.fixture
def seen(monkeypatch):
    torch, seen = fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return seen


def variants(candidates, place):
    """Those that were right."""
    left_out = []
    found = survey(candidates, [place], items=lambda _: 1, rate=False, reference="", rounds=1, left_out=left_out)
    assert not left_out
    return [series.variant for series in found]


def test_decode(seen, cpu):
    with cpu.stream() as stream:
        candidates = decode._on_gpu(decode._Models(stream, 3))
        assert variants(candidates[:1], 64) == ["CUDA graph"]
        assert seen[:4] == ["wait", "capture", "replay", "wait"]
        assert seen.count("capture") == 1
        del seen[:]
        assert variants(candidates[1:], 64) == ["eager"]
        assert set(seen) == {"wait"}


@pytest.mark.parametrize("count", [3, 16])
def test_launches_with_its_tensors(seen, cpu, count):
    with cpu.stream() as stream, ExitStack() as stack:
        data = launch._Data(stream, 100, stack)
        foreign = Candidate(name="tilekit", version="1", variant="foreign", build=lambda n: launch._with_torch(data, n))
        assert variants([foreign], count) == ["foreign"]


def test_its_own_addition(seen, cpu):
    with cpu.stream() as stream, ExitStack() as stack:
        data, peer = launch._Data(stream, 100, stack), launch_peers.PEERS["torch"]
        assert peer.places == (3,)

        def build(count):
            once, active = peer.build(data.tensors(count), stream)
            return data.unwaited(count, once, active=active)

        assert variants([Candidate(name="torch", version="1", variant=peer.variant, build=build)], 3) == [peer.variant]
