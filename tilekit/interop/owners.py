"""What a library's array is a part of, as far as the library says."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["owner_range"]


def owner_range(obj: Any, low: int, high: int) -> tuple[int, int]:
    """The addresses between which the memory lies that `obj` is a view of, as far as its library says; at least `low` to `high`.

    All views of one owner are then one Storage. NumPy is asked for the outermost array, PyTorch for the tensor's storage, CuPy
    for the allocation.
    """
    start, end = low, high
    if isinstance(obj, np.ndarray):
        start, end = _of_bases(obj, low, high)
    elif callable(storage := getattr(obj, "untyped_storage", None)):
        try:
            start = storage().data_ptr()
            end = start + storage().nbytes()
        except (RuntimeError, NotImplementedError):  # PyTorch's, of tensors that have none
            return low, high
    elif (memory := getattr(getattr(obj, "data", None), "mem", None)) is not None:
        address, size = getattr(memory, "ptr", None), getattr(memory, "size", None)
        if not isinstance(address, int) or not isinstance(size, int):
            return low, high
        start, end = address, address + size
    return (start, end) if start <= low and high <= end else (low, high)


def _of_bases(array: np.ndarray[Any, Any], low: int, high: int) -> tuple[int, int]:
    """The extent of the outermost array that has the bytes of `array`."""
    base = array.base
    while base is not None:  # what as_strided makes has a base that is no array itself
        if isinstance(base, np.ndarray) and base.size:
            start = base.__array_interface__["data"][0]
            ends = [(n - 1) * stride for n, stride in zip(base.shape, base.strides, strict=True)]
            before, behind = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
            if start + before <= low and high <= start + behind + base.itemsize:
                low, high = start + before, start + behind + base.itemsize
        base = getattr(base, "base", None)
    return low, high
