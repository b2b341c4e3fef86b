"""`Layout`: what tensors of one shape, with the same strides and dtype, have in common."""

from __future__ import annotations

from tilekit import dtypes
from tilekit._runtime.device import Device
from tilekit._runtime.storage import Storage
from tilekit._tensor.partition import Traits
from tilekit._tensor.tensor import Tensor

__all__ = ["Layout"]


class Layout:
    """What follows from a shape, strides and a dtype, worked out once.

    Attributes:
        shape, strides, dtype, itemsize: theirs; strides in elements.
        is_of: the first three.
        before, behind: how many bytes the elements lie in before the first one, and from that on.
        tail: what a compiled kernel gets of one, behind the address.
        device: where the last of them was whose address is a multiple of 16.
        traits: of those there.
    """

    __slots__ = ("before", "behind", "device", "dtype", "is_of", "itemsize", "shape", "strides", "tail", "traits")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: dtypes.DType) -> None:
        self.shape, self.strides, self.dtype, self.itemsize = shape, strides, dtype, dtype.itemsize
        self.is_of = shape, strides, dtype
        like = Tensor(None, shape, dtype, strides)
        self.before, self.behind = like.reach
        self.tail = like.flat[1:]
        self.device: Device | None = None
        self.traits: Traits | None = None

    def tensor(self, storage: Storage, address: int) -> Tensor:
        """The tensor that begins at an address, somewhere in a storage."""
        tensor: Tensor = object.__new__(Tensor)
        tensor.storage, tensor.shape, tensor.strides, tensor.dtype = storage, self.shape, self.strides, self.dtype
        tensor.offset = (address - storage.memory.address) // self.itemsize
        tensor.flat = (address, *self.tail)
        if not address % 16:
            if self.device is not storage.device:
                self.device, self.traits = storage.device, tensor.traits
            tensor.traits = self.traits  # type: ignore[assignment]
        return tensor
