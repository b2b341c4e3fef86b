"""`Partition`: a tensor cut into tiles, so that each block of a kernel owns one to write."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tilekit.device import Device
    from tilekit.ops import DeviceOp
    from tilekit.storage import Storage
    from tilekit.tensor import Tensor

__all__ = ["Partition", "Traits"]

_RANKS = range(1, 5)


class Traits:
    """What a launch depends on in an argument, except for the address. There is one object for the same traits, so to compare
    them, and to look for something by them, takes no look inside.
    """

    __slots__ = ("__weakref__",)

    _known: ClassVar[weakref.WeakValueDictionary[Any, Traits]] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, description: tuple[Any, ...]) -> Traits:
        """The object for what `description` says. (Two threads may make two: then something is looked up twice.)"""
        return cls._known.get(description) or cls._known.setdefault(description, cls())


class Partition:
    """A view of a tensor cut into tiles of one shape. Made by `Tensor.partition`.

    Attributes:
        tensor: what is cut; the partition has no memory of its own.
        tile_shape: the extents of a tile.
        storage: the tensor's memory; None for a meta tensor.
        traits: all that a launch depends on except for the address (internal).
    """

    __slots__ = ("storage", "tensor", "tile_shape", "traits")

    storage: Storage | None
    traits: Traits

    def __init__(self, tensor: Tensor, tile_shape: tuple[int, ...]) -> None:
        rank = len(tensor.shape)
        if len(tile_shape) != rank:
            raise ValueError(
                f"a tensor of shape {tensor.shape} has {rank} dimensions; tiles of shape {tile_shape} have {len(tile_shape)}"
            )
        if rank not in _RANKS:
            raise ValueError(f"partitions have 1 to 4 dimensions; a tensor of shape {tensor.shape} has {rank}")
        for n in tile_shape:
            if n < 1 or n & (n - 1):
                below = 1 << max(0, n.bit_length() - 1)
                raise ValueError(
                    f"every extent of a tile is a power of two; {n} in {tile_shape} is not: use {below} or {2 * below}, "
                    "tiles may hang over the edge"
                )
        self.tensor, self.tile_shape, self.storage = tensor, tile_shape, tensor.storage

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The one that is worked out when it is first asked for."""
            if name != "traits":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self.traits = Traits.of((self.tensor.traits, self.tile_shape))
            return self.traits

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of tiles along each dimension, those that hang over the edge included."""
        return tuple(-(-extent // n) for extent, n in zip(self.tensor.shape, self.tile_shape, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's extents."""
        return self.tensor.shape

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.tensor.dtype

    @property
    def device(self) -> Device | None:
        """Where the memory is; None for a meta tensor."""
        return self.tensor.device

    @property
    def flat(self) -> tuple[int, ...]:
        """The tensor's."""
        return self.tensor.flat

    def unpartition(self) -> Tensor:
        """The tensor, whole again."""
        return self.tensor

    def device_operation(self) -> DeviceOp[Partition]:
        """The partition as an op that does nothing."""
        from tilekit.ops import value

        return value(self)

    def __repr__(self) -> str:
        return f"{self.tensor!r}.partition({self.tile_shape})"
