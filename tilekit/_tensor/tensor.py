"""`Tensor`: a view of device memory with a shape, strides and a dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from tilekit import dtypes
from tilekit._driver.shadow import ShadowView
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._tensor.operators import NoOperators
from tilekit._tensor.partition import Partition, Scattered, Traits, try_partition
from tilekit._tensor.shapes import as_shape, contiguous_strides, indexed, numpy_like, reinterpreted, reshaped, viewed
from tilekit.ops import DeviceOp, Spec
from tilekit.ops.execution import Steps
from tilekit.ops.transfer import copy_out

__all__ = ["DEVICE_CODE", "Tensor", "new_tensor", "refuse_mask"]

# How hard to think about two strided views before they count as overlapping (NumPy's measure; a second is about 10^8).
_OVERLAP_WORK = 100_000

# Tensor methods that need kernels; `tilekit.api`, which has them, fills this in.
DEVICE_CODE: dict[str, Callable[..., Any]] = {}

# How many shapes and dtypes of new tensors are remembered. Programs whose shapes never repeat would otherwise keep one for each.
_NEW_KEPT = 1024
_new: dict[tuple[tuple[int, ...], dtypes.DType], _Contiguous] = {}


class _Contiguous(NamedTuple):
    """What new tensors of one shape and dtype have in common.

    Attributes:
        strides: theirs.
        flat: what a compiled kernel gets of one, behind the address.
        device: where the last of them was made.
        traits: of those there whose address is a multiple of 16.
    """

    strides: tuple[int, ...]
    flat: tuple[int, ...]
    device: Device
    traits: Traits


def new_tensor(storage: Storage, shape: tuple[int, ...], dtype: dtypes.DType) -> Tensor:
    """A C-contiguous tensor from the start of `storage` on, as `Tensor(storage, shape, dtype)`; quick for shapes seen before."""
    known = _new.get((shape, dtype))
    address = storage.memory.address
    self: Tensor = object.__new__(Tensor)
    self.storage, self.shape, self.dtype, self.offset = storage, shape, dtype, 0
    if known is not None and known.device is storage.device and not address % 16:
        self.strides, self.traits, self.flat = known.strides, known.traits, (address, *known.flat)
        return self
    self.strides = contiguous_strides(shape)
    if not address % 16:
        if len(_new) >= _NEW_KEPT:
            _new.clear()
        _new[shape, dtype] = _Contiguous(self.strides, self.flat[1:], storage.device, self.traits)
    return self


def refuse_mask(what: str, array: Any) -> None:
    """Raise a TypeError for a masked array: its mask would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what}: {type(array).__module__}.{type(array).__qualname__} has a mask, which tensors have not: pass "
            ".filled(value), a copy, or .data, all its elements"
        )


class Tensor(NoOperators):
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
                super().__getattr__(name)  # raises
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

    def numpy_like(self, shift: int = 0) -> np.ndarray[Any, Any]:
        """An array of the same shape, strides and place in the storage, for NumPy to calculate with (internal). It has none
        of the elements.

        Args:
            shift: how many bytes further on the storage shall seem to start.
        """
        return numpy_like(self, shift)

    @property
    def reach(self) -> tuple[int, int]:
        """How many bytes the elements lie in before the first one, and from that on; none for no elements (internal)."""
        if self.traits.reach is None:
            steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
            low, high = (sum(step for step in steps if (step < 0) is negative) for negative in (True, False))
            self.traits.reach = (0, 0) if 0 in self.shape else (-low * self.itemsize, (high + 1) * self.itemsize)
        return self.traits.reach

    def span(self) -> tuple[int, int]:
        """The bytes of the storage that the elements lie in: first, and one past the last (internal)."""
        (below, above), first = self.reach, self.offset * self.itemsize
        return (first - below, first + above) if above else (0, 0)

    def shares_memory(self, other: Tensor) -> bool:
        """Whether the two have a byte in common, or are too intricate to tell. Memory of others' may be met in two storages."""
        if not isinstance(other, Tensor):
            raise TypeError(f"shares_memory compares two tensors, not one and {type(other).__name__}")
        if self.storage is None or other.storage is None:
            return False
        apart = self.storage is not other.storage
        if apart and self.storage.owned and other.storage.owned:
            return False
        (low, high), (start, end) = self.span(), other.span()
        here, there = self.storage.memory.address, other.storage.memory.address
        if there + start >= here + high or here + low >= there + end:
            return False
        theirs = other.numpy_like(there - here)
        try:
            return bool(np.shares_memory(self.numpy_like(), theirs, max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True

    # views

    def partition(self, shape: int | tuple[int, ...]) -> Partition:
        """The tensor cut into tiles of `shape`, for a kernel to write. Tiles at the edge may hang over it.

        Args:
            shape: an extent for each dimension, powers of two.

        Raises:
            ValueError: another number of extents than dimensions, or an extent that is no power of two.
        """
        return Partition(self, as_shape(shape))

    def scattered(self) -> Scattered:
        """The tensor as an argument that blocks write anywhere, by `tk.scatter`, `tk.store` with an index, or atomics.

        The grid does not follow from it: other partitions give it, or `.grid(...)` on the launch. `.unpartition()` of what the
        launch gives back is the tensor.

        Raises:
            ValueError: the tensor has no dimensions, or more than four.
        """
        return Scattered(self)

    def try_partition(self, shape: int | tuple[int, ...]) -> Partition | None:
        """As `partition`, but None if anything else holds the memory: another tensor or partition that is alive, even of other
        elements, or work that uses the memory and is being submitted. More names of this very tensor do not count.

        Raises:
            ValueError: as `partition`.
        """
        return try_partition(self, as_shape(shape))

    def __getitem__(self, key: Any) -> Tensor:
        """A view of a part, by ints, slices with any step, None and `...`, as NumPy's. Nothing is copied.

        Raises:
            IndexError: as NumPy's: an int outside, too many of them, or what is no index at all.
            TypeError: what copies elements in NumPy: arrays, lists and bools.
            ValueError: a step of zero.
        """
        return self._at(*indexed(self, key))

    def permute(self, *axes: Any) -> Tensor:
        """A view with the dimensions in another order; without `axes`, reversed. (torch's `transpose(a, b)` swaps two: this is
        NumPy's, which takes all.)

        Raises:
            ValueError: as NumPy's: not every dimension once.
        """
        order = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes or None
        return self._at(*viewed(self, lambda array: array.transpose(order)))

    transpose = permute

    @property
    def T(self) -> Tensor:
        """The view with the dimensions reversed."""
        return self.permute()

    def reshape(self, *shape: Any) -> Tensor:
        """A view in another shape; -1 stands for what is left. `view` is another name for it. Never a copy, as NumPy makes one
        where it must.

        Raises:
            ValueError: the number of elements differs, or no strides give that view (make a `dup()` first).
        """
        return self._at(*reshaped(self, shape))

    view = reshape

    def reinterpret(self, dtype: Any) -> Tensor:
        """A view of the same bytes as another dtype, as NumPy's `array.view(dtype)`. Nothing is converted: see `astype`.

        The last dimension's extent changes with the size of the elements: 6 float32 are 24 uint8, or 3 float64.

        Raises:
            TypeError: no dtype of tilekit's.
            ValueError: the size of the elements changes, and the tensor has no dimensions, or the elements along its last one are
                not neighbours, or these or the start of the tensor do not fall on elements of the new dtype.
        """
        chosen = dtypes.as_dtype(dtype)
        shape, strides, offset = reinterpreted(self, chosen)
        return Tensor(self.storage, shape, chosen, strides, offset)

    def _at(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        """A view of the same dtype."""
        return Tensor(self.storage, shape, self.dtype, strides, offset)

    # ops

    def to_host(self, out: np.ndarray[Any, Any] | None = None) -> DeviceOp[np.ndarray[Any, Any]]:
        """An op that copies the tensor to a NumPy array, C-contiguous, of the same shape and dtype.

        Args:
            out: where to; the op's result is this array. A GPU fills one of `memory.pinned` by itself. By default a new one.

        Raises:
            TypeError: the tensor has no memory, or `out` is no NumPy array.
            ValueError: `out` has another shape or dtype, is not C-contiguous, or read-only.
        """
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory, so there is nothing to copy")
        if out is not None:
            _check_target(self, out)
        return _ToHost(self, out) if self.is_contiguous else self.dup().then(lambda copy: _ToHost(copy, out))

    to_host_vec = to_host

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array of their own; blocks until what writes the tensor is done. `to_host()` is the op.

        Raises:
            TypeError: the tensor has no memory. DeviceError: the work that it waits for has failed.
        """
        return self.to_host().sync()

    def dup(self) -> DeviceOp[Tensor]:
        """An op that copies the tensor to new memory, C-contiguous, on the same device."""
        op: DeviceOp[Tensor] = DEVICE_CODE["dup"](self)
        return op

    def astype(self, dtype: Any) -> DeviceOp[Tensor]:
        """An op that converts the elements to `dtype`, in new memory, C-contiguous, on the same device; see `api.convert`."""
        op: DeviceOp[Tensor] = DEVICE_CODE["astype"](self, dtype)
        return op

    def copy_into(self, target: Tensor) -> DeviceOp[Tensor]:
        """An op that copies the elements into the memory of `target`, any view; its result is `target`. See `api.memcpy`."""
        op: DeviceOp[Tensor] = DEVICE_CODE["copy_into"](target, self)
        return op

    def fill(self, value: Any) -> DeviceOp[Tensor]:
        """An op that sets every element, of any view, to a scalar; its result is this tensor.

        Raises:
            TypeError: `value` is no scalar, or the tensor has no memory.
            ValueError: the dtype does not hold it; or a view with more than 4 dimensions that do not join.
        """
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory, so there is nothing to fill")
        op: DeviceOp[Tensor] = DEVICE_CODE["fill"](self, value)
        return op

    def to(self, device: Device | str) -> DeviceOp[Tensor]:
        """An op that copies the tensor to another device; on that device already, it is the tensor itself.

        Raises:
            TypeError: it has no memory.
        """
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory, so there is nothing to copy")
        op: DeviceOp[Tensor] = DEVICE_CODE["to"](self, Device(device))
        return op

    def device_operation(self) -> DeviceOp[Tensor]:
        """The tensor as an op that does nothing."""
        from tilekit.ops import value

        return value(self)

    def host_view(self, *, noted: bool = False) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array over the memory of a CPU device; for code that runs on its streams (internal).

        Args:
            noted: whether the caller notes what it writes, by `shadow_view`. Else all counts as written from now on.

        Raises:
            TypeError: the memory is a GPU's, or there is none.
        """
        if self.storage is None:
            raise TypeError(f"{self!r} has no memory to view")
        buffer = self.storage.memory.raw if noted else self.storage.memory.buffer
        if buffer is None:
            raise TypeError(f"{self!r} lives on a GPU, whose memory NumPy cannot view. Use .numpy()")
        strides = tuple(stride * self.itemsize for stride in self.strides)
        return np.ndarray(self.shape, self.dtype, buffer, self.offset * self.itemsize, strides)

    def shadow_view(self) -> ShadowView | None:
        """Where is noted which elements have been written; None if all have, or nobody keeps account."""
        shadow = None if self.storage is None else self.storage.memory.shadow
        if shadow is None or not shadow.left:
            return None
        strides = tuple(stride * self.itemsize for stride in self.strides)
        return ShadowView(shadow, self.shape, strides, self.offset * self.itemsize, self.itemsize)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or deep-copied: use .dup(), or .to_host() and api.from_host(array)")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        strides = "" if self.is_contiguous else f", strides={self.strides}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype.name}{strides}, device={self.device or 'meta'})"

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r} lives on a device; Python cannot iterate over it. Use .numpy()")

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} lives on a device; it has no truth value here. Use .numpy(), or .size")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is not written by assignment, which could not wait for the device: use tensor[...].fill(value), "
            "api.memcpy(tensor[...], source), or a kernel on tensor[...].partition(shape)"
        )

    # for other libraries, see `tilekit.interop`

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the tensor's memory, for `from_dlpack` of other libraries: nothing is copied.

        On a GPU the consumer's stream waits for the tensor's users so far. On a CPU device this blocks until they are done.

        Args:
            stream: the consumer's, by the rules of the array API: None or 1 (the legacy default stream), 2 (that of the
                thread), an address, -1 (wait for nothing). None on a CPU device.
            max_version: the newest DLPack that the consumer knows; None for those before 1.0.
            dl_device: where the consumer wants it, as `__dlpack_device__`.
            copy: whether it must be a copy.

        Raises:
            BufferError: it has no memory, or must be copied or moved for that; it is read-only, and the consumer cannot be told.
            TypeError, ValueError: `stream` is none.
        """
        return DEVICE_CODE["dlpack"](self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind and number of the device. BufferError for a meta tensor."""
        device: tuple[int, int] = DEVICE_CODE["dlpack_device"](self)
        return device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as version 3 of that protocol describes it, with a stream that waits for the tensor's users so far.

        AttributeError for a tensor that is not in a GPU's memory.
        """
        described: dict[str, Any] = DEVICE_CODE["array_interface"](self)
        return described


def _check_target(tensor: Tensor, out: Any) -> None:
    """Whether `tensor` can be copied to `out`; TypeError or ValueError if not."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"to_host: out is a NumPy array, not {type(out).__name__}")
    if out.shape != tensor.shape or out.dtype != tensor.dtype:
        raise ValueError(
            f"to_host: {tensor.dtype.name} of shape {tensor.shape} does not fit out, {out.dtype} of shape {out.shape}"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"to_host: out is {'read-only' if out.flags.c_contiguous else 'not C-contiguous'}")


class _ToHost(DeviceOp[Any]):
    """Copy a contiguous tensor to the host."""

    def __init__(self, tensor: Tensor, out: np.ndarray[Any, Any] | None = None) -> None:
        self.tensor, self.target, self._label = tensor, out, "to_host"
        self.spec = Spec(tensor.shape, tensor.dtype)

    @property
    def device(self) -> Device | None:
        """The tensor's."""
        return self.tensor.device

    def steps(self, ctx: ExecutionContext) -> Steps:
        """Make the array, if none was given, and copy to it."""
        tensor, storage = self.tensor, self.tensor.storage
        assert storage is not None, "checked by to_host"
        from_caller = self.target is not None
        array = self.target if self.target is not None else np.empty(tensor.shape, tensor.dtype)
        return (yield from copy_out(ctx, array, storage, tensor.offset * tensor.itemsize, from_caller=from_caller))
