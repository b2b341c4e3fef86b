"""What an op's results will be, results without running it."""

from __future__ import annotations

from typing import Any

from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._launches import Launches
from tilekit.ops import AsyncKernelLaunch, DeviceOp, Spec
from tilekit.ops.placement import Zip

__all__ = ["results_of"]


def results_of(op: DeviceOp[Any], who: str) -> list[Tensor]:
    """The results of an op as tensors without memory.

    Raises:
        TypeError: the op does not know the shapes and dtypes of its results.
    """
    if isinstance(op, Zip):
        return [result for part in op.ops for result in results_of(part, who)]
    if op.spec is not None:
        results: Any = (op.spec,)
    elif isinstance(op, Launches):
        results = op.outcome()
        results = results if isinstance(results, tuple) else (results,)
    elif isinstance(op, AsyncKernelLaunch):
        results = op.written_specs
    else:
        results = getattr(op, "specs", None) or (None,)
    return [_described(result, op, who) for result in results]


def _described(result: Any, op: DeviceOp[Any], who: str) -> Tensor:
    if isinstance(result, Partition):
        result = result.unpartition()
    if isinstance(result, Spec) and result.shape is not None:
        return Tensor(None, tuple(result.shape), result.dtype)
    if isinstance(result, Tensor):
        return result
    raise TypeError(
        f"{who}: {op!r} does not know the shape and dtype of its results before it runs, as PyTorch must to compile a program. "
        "Launches with .out(), tilekit.kernels and tilekit.api know them; a function given to map or then hides them"
    )
