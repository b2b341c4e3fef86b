"""Shapes and strides: what is one, and which views of a tensor there are. No memory is touched: NumPy works it out."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilekit import dtypes

if TYPE_CHECKING:
    from tilekit._tensor.tensor import Tensor

__all__ = ["as_shape", "contiguous_strides", "indexed", "numpy_like", "reinterpreted", "reshaped", "viewed"]

_FAR = 1 << 63

# Where the elements of a view are: its shape, strides, and offset.
ViewGeometry = tuple[tuple[int, ...], tuple[int, ...], int]


def as_shape(shape: Any) -> tuple[int, ...]:
    """`shape` (an int, or a sequence of ints) as a tuple.

    Raises:
        TypeError, ValueError: it is something else; an extent is negative.
    """
    if type(shape) is int and shape >= 0:
        return (shape,)
    if type(shape) is tuple:
        for n in shape:
            if type(n) is not int or n < 0:
                break
        else:
            return shape
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for n in extents:
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise TypeError(f"a shape is an int or a tuple of ints, not {shape!r}")
        if n < 0:
            raise ValueError(f"a shape has no negative extents, as {n} in {shape!r}")
    return tuple(int(n) for n in extents)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a C-contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


class _Layout:
    """What NumPy needs to know to make `numpy_like`, at an address that stands for the start of the storage."""

    def __init__(self, tensor: Tensor, shift: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.itemsize for stride in tensor.strides),
            # NumPy compares dtypes nowhere in what is asked of it; bytes of the same size spare it bfloat16.
            "typestr": f"|V{tensor.itemsize}",
            "data": ((1 << 40) + shift + tensor.offset * tensor.itemsize, True),
        }


def numpy_like(tensor: Tensor, shift: int = 0) -> np.ndarray[Any, Any]:
    """As `Tensor.numpy_like`."""
    return np.asarray(_Layout(tensor, shift))


def viewed(tensor: Tensor, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> ViewGeometry:
    """Let NumPy work out a view, on an array of the same shape and strides whose elements nobody touches."""
    array = numpy_like(tensor)
    try:
        view = change(array)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        kind = IndexError if type(error) is IndexError else TypeError if isinstance(error, TypeError) else ValueError
        raise kind(str(error)) from None
    moved = (view.__array_interface__["data"][0] - array.__array_interface__["data"][0]) // tensor.itemsize if view.size else 0
    return view.shape, tuple(step // tensor.itemsize for step in view.strides), tensor.offset + moved


def indexed(tensor: Tensor, key: Any) -> ViewGeometry:
    """As `Tensor.__getitem__`."""
    keys = key if isinstance(key, tuple) else (key,)
    for k in keys:
        if type(k) is int:
            if not -_FAR <= k < _FAR:  # NumPy would take it for something else than an index
                raise IndexError(f"index {k} is out of bounds for a tensor of shape {tensor.shape}")
            continue
        if k is None or isinstance(k, (slice, EllipsisType)):
            continue
        if isinstance(k, (bool, np.bool_, list, np.ndarray, type(tensor))):
            raise TypeError(f"tensors are indexed by ints, slices, None and ..., not {k!r}")
        if not hasattr(k, "__index__"):
            raise IndexError(f"tensors are indexed by ints, slices, None and ..., not {k!r}")
    if Ellipsis not in keys:
        keys = (*keys, Ellipsis)  # keeps NumPy from reading an element
    return viewed(tensor, lambda array: array[keys])


def reshaped(tensor: Tensor, shape: tuple[Any, ...]) -> ViewGeometry:
    """As `Tensor.reshape`, of its arguments."""
    extents = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if not shape:
        raise TypeError("reshape takes the new shape; () is that of a tensor without dimensions")
    for n in extents:
        if isinstance(n, (str, type, np.dtype)):
            raise TypeError(f"{n!r} is no extent; reinterpret(dtype) gives the same memory another dtype")
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise TypeError(f"reshape takes ints, not {n!r}")
        if n < -1:
            raise ValueError(f"reshape: {n} is no extent; -1 stands for what is left")

    def view(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        try:
            return array.reshape(extents, copy=False)
        except ValueError as error:
            if "copy" not in str(error):
                raise
            raise ValueError(
                f"a tensor of shape {tensor.shape} and strides {tensor.strides} has no view of shape {tuple(extents)}; "
                "make a dup() first"
            ) from None

    return viewed(tensor, view)


def reinterpreted(tensor: Tensor, dtype: dtypes.DType) -> ViewGeometry:
    """As `Tensor.reinterpret`."""
    old, new = tensor.itemsize, dtype.itemsize
    who = f"{tensor!r} as {dtype.name}"
    if new == old:
        return tensor.shape, tensor.strides, tensor.offset
    if not tensor.shape:
        raise ValueError(f"{who}: without dimensions, elements of {old} bytes cannot become some of {new}; reshape(1) first")
    *outer, last = tensor.shape
    *steps, step = tensor.strides
    if step != 1 and last != 1 and tensor.size:
        raise ValueError(
            f"{who}: its last dimension must be contiguous for elements of another size, and the stride is {step}; make a "
            "dup() first"
        )
    if last * old % new:
        raise ValueError(
            f"{who}: the {last * old} bytes of its last dimension are no multiple of {new}; slice it to a multiple first"
        )
    if tensor.size and any(n != 1 and stride * old % new for n, stride in zip(outer, steps, strict=True)):
        raise ValueError(
            f"{who}: a stride is no multiple of {new} bytes, so not every row begins on an element; make a dup() first"
        )
    if tensor.size and (tensor.offset * old % new or tensor.address % new):
        raise ValueError(
            f"{who}: it begins {tensor.offset * old} bytes into its memory, at an address that is no multiple of {new}; "
            "make a dup() first"
        )
    shape = (*outer, last * old // new)
    strides = (*(stride * old // new for stride in steps), 1)
    return shape, strides, tensor.offset * old // new
