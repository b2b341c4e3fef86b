"""An array library of which nothing is known but DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit.interop import dlpack


class _Held(np.ndarray[Any, Any]):
    """The memory of an array, which keeps that array."""

    owner: Any


class Exporter:
    """An array of that library. What is exported keeps it, as PyTorch's tensors and CuPy's arrays are kept.

    Args:
        array: its memory.
        dtype: of its elements, where that is not the array's; of the same size.
        device: what it says where it is.
        versioned: whether it knows DLPack 1.0.

    Attributes:
        asked: with which arguments `__dlpack__` was called: the stream, and a dict of the others.
    """

    def __init__(
        self, array: np.ndarray[Any, Any], dtype: Any = None, device: tuple[int, int] = (1, 0), versioned: bool = True
    ) -> None:
        self.array, self.device, self.versioned = array, device, versioned
        self.dtype = array.dtype if dtype is None else np.dtype(dtype)
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, **newer: Any) -> Any:
        if newer and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked.append((stream, newer))
        held = self.array.view(_Held)
        held.owner = self
        return dlpack.capsule_of(held, self.dtype, self.device, newer.get("max_version"))
