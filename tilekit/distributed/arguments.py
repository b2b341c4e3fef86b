"""What goes to a worker: values in tuples, lists and dicts at any depth, of which some must be turned into something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor, refuse_mask
from tilekit.ops import DeviceOp
from tilekit.ops.execution import Steps
from tilekit.ops.host_values import moments, unwrap

__all__ = ["as_result", "as_sent", "leaves", "run_ops", "turned"]


def leaves(value: Any) -> Iterator[Any]:
    """All that is in `value` and is no tuple, list or dict; of dicts the values."""
    if type(value) in (tuple, list):
        for part in value:
            yield from leaves(part)
    elif type(value) is dict:
        yield from leaves(list(value.values()))
    else:
        yield value


def turned(value: Any, turn: Callable[[Any], Any]) -> Any:
    """`value` with `turn(leaf)` for each of its leaves. What holds other classes of tuples, lists and dicts is a leaf."""
    if type(value) is tuple or type(value) is list:
        return type(value)(turned(part, turn) for part in value)
    if type(value) is dict:
        return {key: turned(part, turn) for key, part in value.items()}
    return turn(value)


def run_ops(value: Any, ctx: Any) -> Steps:
    """Steps that run the ops in `value`, one after the other, and give it with their results for them."""
    results = {}
    for op in leaves(value):
        if isinstance(op, DeviceOp) and id(op) not in results:
            result = yield op.start(ctx)
            if pending := moments(result):
                yield pending
                result = unwrap(result)
            results[id(op)] = result
    return turned(value, lambda leaf: results.get(id(leaf), leaf) if isinstance(leaf, DeviceOp) else leaf)


def as_sent(value: Any, who: str) -> Any:
    """An argument as it is sent: arrays checked, partitions as their tensors. `who` takes it, for messages.

    Raises:
        TypeError: an array of a dtype that tensors cannot have, or with a mask; a tensor without memory.
    """

    def turn(leaf: Any) -> Any:
        if isinstance(leaf, Partition):
            leaf = leaf.unpartition()
        if isinstance(leaf, Tensor) and leaf.storage is None:
            raise TypeError(f"{who}: {leaf!r} has no memory, so there is nothing to send")
        if isinstance(leaf, np.ndarray):
            refuse_mask(who, leaf)
            try:
                dtypes.as_dtype(leaf.dtype)
            except TypeError as error:
                raise TypeError(
                    f"{who}: NumPy arrays arrive as tensors, and {error}; what shall arrive as it is can be read by the function"
                ) from None
        return leaf

    return turned(value, turn)


def as_result(value: Any, who: str) -> Any:
    """What a worker keeps of a result: partitions count as their tensors. `who` gave it, for messages.

    Raises:
        TypeError: an op in a tuple, list or dict, which nobody would run; a tensor without memory.
    """

    def turn(leaf: Any) -> Any:
        if isinstance(leaf, Partition):
            leaf = leaf.unpartition()
        if isinstance(leaf, DeviceOp):
            for op in leaves(value):
                if isinstance(op, DeviceOp):
                    op.consumed()
            raise TypeError(f"{who} gave {leaf!r} in a {type(value).__name__}: return one op, such as tk.join_all([...])")
        if isinstance(leaf, Tensor) and leaf.storage is None:
            raise TypeError(f"{who} gave {leaf!r}, which has no memory, so there is nothing to keep")
        return leaf

    return turned(value, turn)
