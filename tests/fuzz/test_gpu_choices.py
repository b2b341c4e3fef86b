"""Ready-made kernels on drawn arguments, dealt out as on a GPU.

How many elements a block has, how many blocks and parts there are, and so what is at the edges, is a GPU's; what runs them is the
CPU device, which has other tiles for them. The arguments are those of the sweeps of the benchmarks; what is right, PyTorch's in
float64.
"""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

import tilekit.kernels  # noqa: E402, F401
from tilekit import kernels  # noqa: E402
from tilekit._tensor.partition import Partition  # noqa: E402
from tilekit_benchmarks.drawn.distribution import Limits  # noqa: E402
from tilekit_benchmarks.drawn.families import FAMILIES, drawn_case  # noqa: E402
from tilekit_benchmarks.drawn.problem import Operands, error_of  # noqa: E402

LIMITS = Limits(nbytes=(2**12, 2**20), extent=2**8, row=2**15, length=(2**3, 2**7), operations=2.0**24, shortest_us=0.0)


@pytest.fixture
def gpu_choices(monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith(kernels.__name__) and hasattr(module, "on_cpu"):
            monkeypatch.setattr(module, "on_cpu", lambda tensor: False)


def tensors(result):
    if isinstance(result, (tuple, list)):
        return [tensor for each in result for tensor in tensors(each)]
    if isinstance(result, Partition):
        result = result.unpartition()
    return [result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)]


def problem_of(family, seed):
    """What is wrong with a case; None if nothing is."""
    case = drawn_case(family, seed, 0, LIMITS, 0)
    problem = FAMILIES[family].problem(case, Operands(torch, torch.device("cpu"), seed, case))
    right = tensors(problem.reference())
    results = problem.part(tuple(tensors(problem.own().sync())))
    error = error_of(torch, results, right, problem.by_rows)
    return None if error <= problem.tolerance else f"{family}, {case.label}: off by {error:.3g}, {problem.tolerance:.3g} is right"


def test_drawn_arguments(cpu, gpu_choices, cases):
    families = sorted(FAMILIES)
    for seed in cases:
        wrong = problem_of(families[seed % len(families)], seed)
        assert wrong is None, cases.report(seed, wrong)


def test_more_heads_than_a_block_has(cpu, gpu_choices):
    x, angles = torch.randn(3, 70, 64), torch.randn(3, 32)
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    y = kernels.rope(x, angles.cos(), angles.sin()).sync()
    torch.testing.assert_close(
        tensors(y)[0].double(), torch.cat((a * cos - b * sin, b * cos + a * sin), -1), rtol=1e-5, atol=1e-5
    )
