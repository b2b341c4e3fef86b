"""`tilekit.torch.current_stream` where PyTorch has no streams, and what decides the stream of an op in a block."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

import tilekit as tk  # noqa: E402
import tilekit.torch  # noqa: E402
from tilekit import api  # noqa: E402


def test_on_a_cpu_device_nothing_changes(cpu):
    before = cpu.policy
    with tilekit.torch.current_stream():
        assert cpu.policy is before
        assert api.ones(3).sync().numpy().tolist() == [1, 1, 1]
    assert cpu.policy is before


def test_pytorchs_memory_in_kernels_and_operators(cpu):
    x = torch.arange(6.0)
    y = tk.as_tensor(x, device="cpu")
    with tilekit.torch.current_stream():
        assert tilekit.torch.ops.silu(x).shape == (6,)
        assert y.dup().sync().numpy().tolist() == list(range(6))


def test_operators_from_several_threads(cpu):
    failed = []

    def work(seed):
        x = torch.full((64, 33), float(seed), requires_grad=True)
        for _ in range(20):
            y = tilekit.torch.ops.silu(x)
            y.sum().backward()
            if not torch.allclose(y, torch.nn.functional.silu(x), rtol=1e-4):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
