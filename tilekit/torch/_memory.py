"""PyTorch's memory as tilekit's tensors for the length of one call, and results as PyTorch's tensors.

All of it is PyTorch's own, results and workspaces too, and all work is on PyTorch's current stream: its allocator gives memory
out again in the order of that stream, so nobody else needs to know who uses it, or to keep it alive.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tilekit import dtypes
from tilekit._driver.protocol import Memory
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor

__all__ = ["DTYPES", "Guests", "described", "device_of", "dtype_of", "our_dtype", "torch_dtype"]

_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_OURS: dict[torch.dtype, dtypes.DType] = {getattr(torch, name): getattr(dtypes, name) for name in _NAMES} | {
    torch.bool: dtypes.bool_
}
DTYPES = tuple(_OURS)
"""PyTorch's element types that tilekit has."""
_TORCHS = {ours: theirs for theirs, ours in _OURS.items()}


class _Guest(Storage):
    """Memory of PyTorch's, which is there until the call returns, and for work on the current stream after that."""

    __slots__ = ()

    def __del__(self) -> None:
        """Nothing is left to be done."""


class Guests:
    """The memory of one call.

    Args:
        where: PyTorch's device.
        device: the same as tilekit's.
    """

    def __init__(self, where: torch.device, device: Device) -> None:
        self.where, self.device = where, device
        self._storages: dict[int, tuple[_Guest, list[str]]] = {}  # by address, with the names of the arguments that are in it

    def tensor(self, name: str, array: torch.Tensor, who: str) -> Tensor:
        """An argument as a tensor. Arguments that share memory have one storage.

        Raises:
            TypeError: elements of a type that tilekit does not have.
            ValueError: an address that is none of such elements.
        """
        dtype, shape = dtype_of(name, array, who), tuple(array.shape)
        strides = None if array.is_contiguous() else array.stride()
        if not array.numel():
            return Tensor(Storage(self.device, self.device.no_memory), shape, dtype, strides)
        start = array.untyped_storage().data_ptr()
        known = self._storages.get(start)
        if known is None:
            known = self._storages[start] = self._storage(array), []
        known[1].append(name)
        offset, rest = divmod(array.data_ptr() - start, dtype.itemsize)
        if rest or start % dtype.itemsize:
            raise ValueError(
                f"{who}: {name} begins at {array.data_ptr():#x}, which is no address of {dtype.name} elements; pass its clone()"
            )
        return Tensor(known[0], shape, dtype, strides, offset)

    def alone(self, name: str, array: torch.Tensor, who: str) -> Tensor:
        """An argument as a tensor at the start of a storage of its own: for who will find others in its place.

        Raises:
            TypeError: elements of a type that tilekit does not have.
        """
        dtype, shape = dtype_of(name, array, who), tuple(array.shape)
        strides = None if array.is_contiguous() else array.stride()
        return Tensor(_Guest(self.device, Memory(array.data_ptr(), array.nbytes), owner=array), shape, dtype, strides)

    def allocate(self, nbytes: int) -> Storage:
        """New memory, PyTorch's."""
        if not nbytes:
            return Storage(self.device, self.device.no_memory)
        return self._storage(torch.empty(nbytes, dtype=torch.uint8, device=self.where))

    def _storage(self, array: torch.Tensor) -> _Guest:
        whole = array.untyped_storage()
        buffer = None
        if self.device.kind == "cpu":
            buffer = torch.empty(0, dtype=torch.uint8).set_(whole).numpy()
        return _Guest(self.device, Memory(whole.data_ptr(), whole.nbytes(), buffer), owner=whole)

    def result(self, tensor: Any, who: str) -> torch.Tensor:
        """A result as PyTorch's tensor.

        Raises:
            TypeError, ValueError: it is no tensor, or not in memory that the op has allocated.
        """
        if isinstance(tensor, Partition):
            tensor = tensor.unpartition()
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{who}: the op gave {type(tensor).__name__} for a result, not a tensor; .out() of a launch gives what was "
                "written"
            )
        dtype, storage = torch_dtype(tensor.dtype, who), tensor.storage
        if not math.prod(tensor.shape):
            return torch.empty(tensor.shape, dtype=dtype, device=self.where)
        known = self._storages.get(storage.memory.address) if storage is not None else None
        if known is not None:
            raise ValueError(
                f"{who}: a result is its argument {known[1][0]}, which no operator of PyTorch's may return. One that writes into "
                f'an argument names it, mutates=("{known[1][0]}",), and returns None; else return .dup() of it'
            )
        if type(storage) is not _Guest:
            raise ValueError(f"{who}: a result is a tensor that was there before the call; return .dup() of it")
        empty = torch.empty(0, dtype=dtype, device=self.where)
        return empty.set_(storage.owner, tensor.offset, tensor.shape, tensor.strides)

    def written(self) -> list[str]:
        """The arguments whose memory was written."""
        return [name for storage, names in self._storages.values() if storage.last_write is not None for name in names]


def described(name: str, array: torch.Tensor, who: str) -> Tensor:
    """A tensor without memory of the shape, dtype and strides of `array`, which may have none either.

    Extents that PyTorch traces as symbols become the numbers that they are now: it traces anew for others.
    """
    shape, strides = (tuple(map(int, extents)) for extents in (array.shape, array.stride()))
    return Tensor(None, shape, dtype_of(name, array, who), None if array.is_contiguous() else strides)


def dtype_of(name: str, array: torch.Tensor, who: str) -> dtypes.DType:
    """The element type of an argument. TypeError if tilekit has no such."""
    known = _OURS.get(array.dtype)
    if known is None:
        raise TypeError(f"{who}: {name} holds {array.dtype}, which tilekit does not have; it has {', '.join(map(str, _OURS))}")
    return known


def our_dtype(dtype: torch.dtype, who: str) -> dtypes.DType:
    """tilekit's element type for one of PyTorch's. TypeError if there is none."""
    known = _OURS.get(dtype)
    if known is None:
        raise TypeError(f"{who}: tilekit does not have {dtype}; it has {', '.join(map(str, _OURS))}")
    return known


def torch_dtype(dtype: dtypes.DType, who: str) -> torch.dtype:
    """The element type of a result. TypeError if PyTorch has no such."""
    known = _TORCHS.get(dtype)
    if known is None:
        raise TypeError(f"{who}: a result holds {dtype.name}, which PyTorch does not have")
    return known


def device_of(arrays: dict[str, torch.Tensor], who: str) -> torch.device:
    """Where the arguments are.

    Raises:
        ValueError: on several devices.
    """
    (first, like), *others = arrays.items()
    for name, array in others:
        if array.device != like.device:
            raise ValueError(f"{who}: {first} is on {like.device}, {name} on {array.device}; move one of them with .to(...)")
    return like.device
