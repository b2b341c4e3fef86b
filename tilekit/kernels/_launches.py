"""`Launches`: what the functions of this package return, an op that launches kernels, also on new tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from tilekit._runtime.context import ExecutionContext
from tilekit._tensor.tensor import Tensor, new_tensor
from tilekit.launch.launch import KernelLaunch
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.stepwise import Stepwise

__all__ = ["Destination", "Launches", "New", "allocated"]

Destination = Tensor | Spec
"""Where a result goes: a tensor, or what a new one is to be."""

New = Callable[[Destination], Tensor]
"""Makes a tensor of a `Destination`: that which is one is it already."""


class Launches(Stepwise[Any]):
    """What the functions return: an op that makes new tensors when it is run, and launches kernels on them.

    Args:
        like: a tensor that the kernels get, on the device of all.
        steps: a generator function, called with a function that makes tensors (`New`) when the op is run. It yields the launches
            (any ops) in order, is sent their results, and returns the op's. What it does follows from what the function was
            given, but for the addresses of tensors: see `_recall`.
        spec: what is known of the result, if it is one tensor.
    """

    def __init__(self, like: Tensor, steps: Callable[[New], Generator[DeviceOp[Any], Any, Any]], spec: Any = None) -> None:
        self._like, self._steps = like, steps
        if spec is not None:
            self.spec = Spec(tuple(spec.shape), spec.dtype)

    @property
    def device(self) -> Any:
        """That of what the kernels get."""
        return self._like.device

    def begin(self, ctx: ExecutionContext) -> Generator[DeviceOp[Any], Any, Any]:
        """The steps, with tensors in the memory of the device."""
        return self._steps(partial(allocated, ctx))

    def parts(self) -> tuple[DeviceOp[Any], ...]:
        """What the steps yield, tried out with tensors that have no memory: for pictures, and to compile without running."""
        return tuple(self._tried()[0])

    def outcome(self) -> Any:
        """What its result looks like, with tensors that have no memory."""
        return self._tried()[1]

    def _tried(self) -> tuple[list[DeviceOp[Any]], Any]:
        steps_tried: list[DeviceOp[Any]] = []
        steps, result = self._steps(_described), None
        try:
            while True:
                steps_tried.append(steps.send(result))
                steps_tried[-1].consumed()
                result = _outcome(steps_tried[-1])
        except StopIteration as stop:
            return steps_tried, stop.value


def allocated(ctx: ExecutionContext, destination: Destination) -> Tensor:
    """The tensor of a `Destination`, a new one in the memory of the context's device."""
    if type(destination) is Spec:
        shape, dtype = destination.shape, destination.dtype
        return new_tensor(ctx.allocate(math.prod(shape) * dtype.itemsize), shape, dtype)
    return destination  # type: ignore[return-value]


def _described(destination: Destination) -> Tensor:
    return Tensor(None, destination.shape, destination.dtype) if isinstance(destination, Spec) else destination


def _outcome(op: DeviceOp[Any]) -> Any:
    """What the result of an op looks like."""
    if isinstance(op, KernelLaunch):
        return op.arguments
    if isinstance(op, Launches):
        return op.outcome()
    return None if op.spec is None else _described(op.spec)
