"""Ready-made kernels on drawn arguments, dealt out as on a GPU.

How many elements a block has, how many blocks and parts there are, and so what is at the edges, is a GPU's; what runs them is the
CPU device, which has other tiles for them. The arguments are those of the sweeps of the benchmarks; what is right, PyTorch's in
float64.

Those of a CPU device are small. Of the sizes that a GPU is measured with nothing runs: each launch is planned, for tensors that
have a shape and no memory.
"""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-torch]'")

import tilekit.kernels  # noqa: E402, F401
from tilekit import api, kernels  # noqa: E402
from tilekit._tensor.arrays import DEVICE_CODE  # noqa: E402
from tilekit._tensor.partition import Partition  # noqa: E402
from tilekit._tensor.tensor import Tensor  # noqa: E402
from tilekit.kernels import _loss  # noqa: E402
from tilekit.ops import DeviceOp  # noqa: E402
from tilekit_benchmarks.drawn import measuring  # noqa: E402
from tilekit_benchmarks.drawn.distribution import LIMITS as SWEPT  # noqa: E402
from tilekit_benchmarks.drawn.distribution import Limits  # noqa: E402
from tilekit_benchmarks.drawn.families import FAMILIES, drawn_case  # noqa: E402
from tilekit_benchmarks.drawn.problem import Operands, error_of  # noqa: E402

BUDGET = 0.5  # of the time of the file, of which there are two fuzzers
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


class Shapes(Operands):
    """The tensors of a case without memory. Bounds of groups alone have values: the first peer looks at them."""

    def __init__(self, case):
        self.torch, self.device, self._case, self._generator = _Torch(), torch.device("meta"), case, None

    def integers(self, low, high, *shape, dtype="int64"):
        where = "cpu" if self._case.kernel == "grouped_gemm" else self.device
        return torch.zeros(shape, dtype=self.dtype(dtype), device=where)


class _Torch:
    """PyTorch; it takes a tensor of tilekit's without memory for what it would be with it."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def from_dlpack(self, tensor):
        return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype.name), device="meta")


def described(array):
    strides = None if array.is_contiguous() else tuple(array.stride())
    return Tensor(None, tuple(array.shape), api.meta(0, str(array.dtype).removeprefix("torch.")).dtype, strides)


@pytest.fixture
def shapes_alone(monkeypatch):
    """Lets tensors without memory take part wherever a case has tensors."""
    monkeypatch.setitem(DEVICE_CODE, "described", described)
    monkeypatch.setitem(DEVICE_CODE, "dup", lambda x: api.empty(x.shape, x.dtype))
    # What the gradients of attention are given comes from a launch before.
    monkeypatch.setattr(DeviceOp, "sync", lambda op: (op.consumed(), op.outcome())[1])


def what_fails(family, seed):
    """What is wrong with the launches of a case; None if nothing is."""
    case = drawn_case(family, seed, 0, SWEPT["cuda"])
    try:
        for launch in measuring._launches(FAMILIES[family].problem(case, Shapes(case)).own()):
            launch._plan("plan")
    except Exception as error:
        return f"{family}, {case.label}: {type(error).__name__}: {error}"
    return None


def test_launches_of_a_gpus_sizes_are_planned(shapes_alone, cases):
    families = sorted(FAMILIES)
    for seed in cases:
        wrong = what_fails(families[seed % len(families)], seed)
        assert wrong is None, cases.report(seed, wrong)


def test_a_launch_that_cannot_be_planned_is_seen(shapes_alone, monkeypatch):
    """By the case that a sweep came upon: 7 warps added up what 511 blocks had."""
    seeds = range(2000)
    rows = {seed: drawn_case("losses", seed, 0, SWEPT["cuda"]) for seed in seeds}
    seed = next(s for s, c in rows.items() if c.shape[0] > 2_000_000 and c.options["reduction"] != "none")
    assert what_fails("losses", seed) is None
    before = _loss._shares
    monkeypatch.setattr(_loss, "_shares", lambda count: before(count)._replace(num_warps=7))
    assert "num_warps is a power of two" in what_fails("losses", seed)
