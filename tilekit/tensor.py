"""`Tensor`: a view of device memory with a shape, strides and a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilekit import dtypes
from tilekit.device import Device
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import Steps
from tilekit.ops.transfer import copy_out
from tilekit.partition import Partition, Traits
from tilekit.schedule import ExecutionContext
from tilekit.storage import Storage

__all__ = ["DEVICE_CODE", "Tensor", "as_shape", "contiguous_strides"]

# Tensor methods that need kernels; `tilekit.api`, which has them, fills this in.
DEVICE_CODE: dict[str, Callable[..., Any]] = {}


def as_shape(shape: Any) -> tuple[int, ...]:
    """`shape` (an int, or a sequence of ints) as a tuple.

    Raises:
        TypeError, ValueError: it is something else; an extent is negative.
    """
    if type(shape) is int and shape >= 0:
        return (shape,)
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


class Tensor:
    """A view of device memory.

    Made by `tilekit.api` and by views of other tensors. A tensor without memory (`api.meta`) has a shape and a dtype only, to
    compile kernels for.

    Attributes:
        storage: the memory; views share it. None for a meta tensor.
        offset: where the first element is, in elements from the start of the storage.
        shape: the extents.
        strides: the distance between neighbours along each dimension, in elements.
        dtype: the element type.
        flat: what a compiled kernel gets: the address, the extents, the strides of all dimensions but `unit` (internal).
        traits: all that a launch depends on except for the address (internal).
    """

    __slots__ = ("__weakref__", "dtype", "flat", "offset", "shape", "storage", "strides", "traits")

    flat: tuple[int, ...]
    traits: Traits

    def __init__(
        self,
        storage: Storage | None,
        shape: tuple[int, ...],
        dtype: dtypes.DType,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.storage, self.shape, self.dtype, self.offset = storage, shape, dtype, offset
        self.strides = contiguous_strides(shape) if strides is None else strides

    if not TYPE_CHECKING:  # which would take it to have any attribute

        def __getattr__(self, name: str) -> Any:
            """The two that are worked out when they are first asked for. From then on they cost no more than any other."""
            if name == "traits":
                self.traits = Traits.of((self.shape, self.strides, self.dtype, self.align, self.device))
            elif name == "flat":
                unit = self.unit
                steps = (stride for dim, stride in enumerate(self.strides) if dim != unit)
                self.flat = (self.address, *self.shape, *steps)
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self, name)

    @property
    def device(self) -> Device | None:
        """Where the memory is; None for a meta tensor."""
        return None if self.storage is None else self.storage.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The size of an element, in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements, in bytes."""
        return self.size * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in C order, without gaps."""
        step = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != step:
                return self.size == 0
            step *= n
        return True

    @property
    def unit(self) -> int | None:
        """The last dimension whose neighbours are next to each other in memory, or None if there is none."""
        for dim in reversed(range(len(self.strides))):
            if self.strides[dim] == 1:
                return dim
        return None

    @property
    def is_meta(self) -> bool:
        """Whether it has no memory."""
        return self.storage is None

    @property
    def address(self) -> int:
        """The device address of the first element; 0 for a meta tensor."""
        return 0 if self.storage is None else self.storage.memory.address + self.offset * self.itemsize

    @property
    def align(self) -> int:
        """The largest power of two, at most 16, that divides the address."""
        address = self.offset * self.itemsize if self.storage is None else self.address
        return min(16, address & -address) if address else 16

    def numpy_like(self) -> np.ndarray[Any, Any]:
        """An array of the same shape, strides and place in the storage, for NumPy to calculate with. It has no elements."""
        return np.asarray(_Layout(self))

    def span(self) -> tuple[int, int]:
        """The bytes of the storage that the elements lie in: first, and one past the last."""
        if self.size == 0:
            return (0, 0)
        ends = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(end for end in ends if end < 0)
        high = self.offset + sum(end for end in ends if end > 0) + 1
        return (low * self.itemsize, high * self.itemsize)

    # views

    def partition(self, shape: int | tuple[int, ...]) -> Partition:
        """The tensor cut into tiles of `shape`, for a kernel to write. Tiles at the edge may hang over it.

        Args:
            shape: an extent for each dimension, powers of two.

        Raises:
            ValueError: another number of extents than dimensions, or an extent that is no power of two.
        """
        return Partition(self, as_shape(shape))

    def __getitem__(self, key: Any) -> Tensor:
        """A view of a part, by ints, slices, None and `...`, as NumPy's. IndexError as NumPy's."""
        keys = key if isinstance(key, tuple) else (key,)
        for k in keys:
            if isinstance(k, bool) or not (k is None or isinstance(k, (int, np.integer, slice, EllipsisType))):
                raise TypeError(f"tensors are indexed by ints, slices, None and ..., not {k!r}")
        if Ellipsis not in keys:
            keys = (*keys, Ellipsis)  # keeps NumPy from reading an element
        return self._view(lambda array: array[keys])

    def permute(self, *axes: int) -> Tensor:
        """A view with the dimensions in another order; without `axes`, reversed. ValueError as NumPy's."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return self._view(lambda array: array.transpose(*order))

    def reshape(self, *shape: Any) -> Tensor:
        """A view in another shape; -1 stands for what is left.

        Raises:
            ValueError: the number of elements differs, or no strides give that view (make a `dup()` first).
        """
        extents = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape

        def view(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            try:
                return array.reshape(extents, copy=False)
            except ValueError as error:
                if "copy" not in str(error):
                    raise
                raise ValueError(
                    f"a tensor of shape {self.shape} and strides {self.strides} has no view of shape {tuple(extents)}; "
                    "make a dup() first"
                ) from None

        return self._view(view)

    def _view(self, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Tensor:
        """Let NumPy work out a view, on an array of the same shape and strides whose elements nobody touches."""
        array = self.numpy_like()
        view = change(array)
        moved = (view.__array_interface__["data"][0] - array.__array_interface__["data"][0]) // self.itemsize if view.size else 0
        return Tensor(
            self.storage, view.shape, self.dtype, tuple(step // self.itemsize for step in view.strides), self.offset + moved
        )

    # ops

    def to_host(self) -> DeviceOp[np.ndarray[Any, Any]]:
        """An op that copies the tensor to a new NumPy array, C-contiguous, of the same shape and dtype."""
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory, so there is nothing to copy")
        return _ToHost(self) if self.is_contiguous else self.dup().then(_ToHost)

    to_host_vec = to_host

    def dup(self) -> DeviceOp[Tensor]:
        """An op that copies the tensor to new memory, C-contiguous, on the same device."""
        made: DeviceOp[Tensor] = DEVICE_CODE["dup"](self)
        return made

    def to(self, device: Device | str) -> DeviceOp[Tensor]:
        """An op that copies the tensor to another device; on that device already, it is the tensor itself.

        Raises:
            TypeError: it has no memory.
        """
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory, so there is nothing to copy")
        made: DeviceOp[Tensor] = DEVICE_CODE["to"](self, Device(device))
        return made

    def device_operation(self) -> DeviceOp[Tensor]:
        """The tensor as an op that does nothing."""
        from tilekit.ops import value

        return value(self)

    def host_view(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array over the memory of a CPU device; for code that runs on its streams."""
        assert self.storage is not None and self.storage.memory.buffer is not None, "only CPU devices have host memory"
        return np.ndarray(
            self.shape,
            self.dtype,
            self.storage.memory.buffer,
            self.offset * self.itemsize,
            tuple(stride * self.itemsize for stride in self.strides),
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or deep-copied: use .dup(), or .to_host() and api.from_host(array)")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        strides = "" if self.is_contiguous else f", strides={self.strides}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype.name}{strides}, device={self.device or 'meta'})"

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self!r} lives on a device; NumPy cannot read it. Use .to_host().sync()")

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r} lives on a device; Python cannot iterate over it. Use .to_host().sync()")


class _Layout:
    """What NumPy needs to know to make `Tensor.numpy_like`, at an address that stands for the start of the storage."""

    def __init__(self, tensor: Tensor) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.itemsize for stride in tensor.strides),
            # NumPy compares dtypes nowhere in what is asked of it; bytes of the same size spare it bfloat16.
            "typestr": f"|V{tensor.itemsize}",
            "data": ((1 << 40) + tensor.offset * tensor.itemsize, True),
        }


class _ToHost(DeviceOp[Any]):
    """Copy a contiguous tensor to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self._label = tensor, "to_host"
        self.spec = Spec(tensor.shape, tensor.dtype)

    @property
    def device(self) -> Device | None:
        """The tensor's."""
        return self.tensor.device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Make the array, copy to it."""
        tensor, storage = self.tensor, self.tensor.storage
        assert storage is not None, "checked by to_host"
        array = np.empty(tensor.shape, tensor.dtype)
        return (yield from copy_out(ctx, array, storage, tensor.offset * tensor.itemsize))
