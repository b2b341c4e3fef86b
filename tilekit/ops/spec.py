"""`Spec`: the shape and dtype of a result that does not exist yet."""

from __future__ import annotations

from typing import Any

__all__ = ["Spec"]


class Spec:
    """What is known of a result before it exists: its shape and dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
