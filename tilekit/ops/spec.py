"""`Spec`: the shape and dtype of a result that does not exist yet."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["Spec", "reshaped"]


class Spec:
    """What is known of a result before it exists: its shape and dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


def reshaped(spec: Spec | None, shape: tuple[Any, ...]) -> Spec | None:
    """What is known of a result in another shape, as `Tensor.reshape` takes it; None if it is not known, or has no such shape."""
    if spec is None or spec.shape is None:
        return None
    extents = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not all(type(n) is int for n in extents):
        return None
    size, known = math.prod(spec.shape), math.prod(n for n in extents if n != -1)
    if extents.count(-1) == 1 and known > 0 and size % known == 0:
        extents = tuple(size // known if n == -1 else n for n in extents)
    return Spec(extents, spec.dtype) if min(extents, default=0) >= 0 and math.prod(extents) == size else None
