"""What a kernel that is not tilekit's may be given: memory that it writes must not be another argument's as well."""

from __future__ import annotations

from collections.abc import Sequence

from tilekit._tensor.tensor import Tensor
from tilekit.launch.foreign.declared import Declaration

__all__ = ["check_overlap"]


def check_overlap(what: str, tensors: Sequence[tuple[Declaration, Tensor]]) -> None:
    """Refuse memory that one argument writes and another one uses, unless that only reads the very same view."""
    for at, (parameter, tensor) in enumerate(tensors):
        if parameter.access == "in":
            continue
        for other_at, (other, theirs) in enumerate(tensors):
            if other_at == at or not tensor.shares_memory(theirs):
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


def _view(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    return tensor.address, tensor.shape, tensor.strides, tensor.itemsize
