"""What a kernel that is not tilekit's may be given: memory that it writes must not be another argument's as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilekit.launcher.declared import Declaration
from tilekit.tensor import Tensor

__all__ = ["check_overlap"]

# How hard to think about two strided views before they count as overlapping (NumPy's measure; a second is about 10^8).
_OVERLAP_WORK = 100_000


def check_overlap(what: str, tensors: Sequence[tuple[Declaration, Tensor]]) -> None:
    """Refuse memory that one argument writes and another one uses, unless that only reads the very same view."""
    for at, (parameter, tensor) in enumerate(tensors):
        if parameter.access == "in":
            continue
        for other_at, (other, theirs) in enumerate(tensors):
            if other_at == at or not _share_memory(tensor, theirs):
                continue
            same = _view(tensor) == _view(theirs)
            if same and other.access == "in":
                continue
            reason = (
                "are the same memory, and both count as written; declare the one that the kernel only reads as In"
                if same
                else f"overlap in memory, and {parameter.name} is written; pass a dup() of one of them"
            )
            raise ValueError(f"{what}: arguments {parameter.name} and {other.name} {reason}")


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have an element in common, or are too intricate to tell."""
    assert a.storage is not None and b.storage is not None, "checked before"
    if a.storage is not b.storage and a.storage.owned and b.storage.owned:
        return False
    (low, high), (start, end) = a.span(), b.span()
    here, there = a.storage.memory.address, b.storage.memory.address
    if there + start >= here + high or here + low >= there + end:
        return False
    if a.storage is not b.storage:  # somebody else's memory, twice
        return True
    try:
        return bool(np.shares_memory(a.numpy_like(), b.numpy_like(), max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _view(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    return tensor.address, tensor.shape, tensor.strides, tensor.itemsize
