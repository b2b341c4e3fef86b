"""`Symmetric`: memory that each member of a group has, and all others read and write: by kernels that communicate, or copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit._driver.ledger import ADDRESSABLE
from tilekit._driver.protocol import Memory
from tilekit._groups.group import Group
from tilekit._runtime.hazards import AccessHistory
from tilekit._runtime.storage import Imported
from tilekit._tensor.shapes import as_shape, contiguous_strides
from tilekit._tensor.tensor import Tensor

__all__ = ["Symmetric", "symmetric"]


def symmetric(group: Group, shape: int | tuple[int, ...], dtype: Any = dtypes.float32) -> Symmetric:
    """Memory of one shape that each member of a group has, and all others read and write. Blocks until all members have come.

    On GPUs it is memory of each GPU that the others map, in one process or several of one machine; the GPUs must be able to use
    each other's memory (NVLink, or PCIe). On CPU devices it is the host's, between processes that of a file without a name.

    Args:
        group: whose. All its members call this, in the same order.
        shape, dtype: of each member's tensor, the same for all.

    Returns:
        What has the tensors, filled with zeros.

    Raises:
        TypeError: `group` is no group.
        ValueError: another member asked for another shape or dtype.
        GroupError: the group is closed or broken, or a member did not come in time.
        DeviceError: the devices cannot use each other's memory, or are in several machines.
        OutOfMemoryError: there is not enough.
        OSError: processes with CPU devices have no room for the file.
    """
    if not isinstance(group, Group):
        raise TypeError(f"symmetric: group is a tk.Group, not {group!r}")
    extents, dtype = as_shape(shape), dtypes.as_dtype(dtype)
    with group.submitting:  # which raises if the group is closed
        pass
    exchange = group.exchange if group.joined else None
    if exchange is not None:
        asked = f"{dtype.name} {extents}"
        for rank, theirs in enumerate(exchange(asked)):
            if theirs != asked:
                raise ValueError(
                    f"symmetric: rank {rank} asks for {theirs}, and rank {group.ranks[0]} for {asked}: all members have the same"
                )
    return Symmetric(group, extents, dtype, exchange)


class Symmetric:
    """Tensors of one shape and dtype, one in the memory of each member of a group. Made by `tk.symmetric`.

    A member's kernels use all of them, through views that are tensors of its device. Work of one device is ordered by its memory
    as ever. Between devices nothing is: kernels that wait for each other have to run at the same time. So a kernel tells another
    that something is there, `tk.atomic_xchg(flags, ..., memory_order="release", memory_scope="system")`, and waits for others by
    `tk.atomic_add(flags, ..., 0, memory_order="acquire", memory_scope="system")`; or whole ops are ordered by `group.barrier()`.

    Attributes:
        group: whose.
        shape, dtype: of each member's tensor.
    """

    def __init__(self, group: Group, shape: tuple[int, ...], dtype: dtypes.DType, exchange: Any) -> None:
        self.group, self.shape, self.dtype = group, shape, dtype
        nbytes = math.prod(shape) * dtype.itemsize
        drivers = [device.driver for device in group.devices]
        if group.size * nbytes >= ADDRESSABLE:
            raise drivers[0].exhausted(nbytes)
        window = drivers[0].window(drivers, group.ranks, group.size, nbytes, exchange)
        self._stride = window.stride // dtype.itemsize
        self._storages = {
            rank: Imported(device, Memory(window.address, window.nbytes, window.raw), AccessHistory(), owner=window)
            for rank, device in zip(group.ranks, group.devices, strict=True)
        }

    def local(self, rank: int | None = None) -> Tensor:
        """A member's tensor, as it sees it itself.

        Args:
            rank: of the member, one of this process's; in a joined group by default this one.
        """
        at = self._member("local", rank)
        return self._view(at, at)

    def peer(self, rank: int, at: int | None = None) -> Tensor:
        """The tensor of member `rank` as member `at` sees it: on `at`'s device, in `rank`'s memory.

        Args:
            rank: any member's.
            at: a member of this process; in a joined group by default this one.

        Raises:
            ValueError: there is no such member.
        """
        self._check("peer", rank, range(self.group.size))
        return self._view(rank, self._member("peer", at))

    def whole(self, at: int | None = None) -> Tensor:
        """All members' tensors as one of shape `(size, *shape)`, by rank, as member `at` sees them: for kernels, which then need
        no parameter for each. It is not contiguous: each part begins at a page of its own."""
        storage = self._storages[self._member("whole", at)]
        strides = (self._stride, *contiguous_strides(self.shape))
        return Tensor(storage, (self.group.size, *self.shape), self.dtype, strides)

    def alias(self, at: int | None = None) -> Tensor:
        """As `whole`, with an order of its own: nothing waits for what is done through it, nor it for anything (internal)."""
        tensor = self.whole(at)
        storage = tensor.storage
        assert storage is not None, "it is no meta tensor"
        seen = storage.memory
        other = Imported(storage.device, Memory(seen.address, seen.nbytes, seen.raw), AccessHistory(), owner=storage.owner)
        return Tensor(other, tensor.shape, tensor.dtype, tensor.strides)

    def overwrite(self, value: int) -> None:
        """Set all elements of this process's members now, whatever runs on their devices: so that kernels that wait for words of
        members that are gone go on (internal). Blocks until that is done."""
        array = np.full(self.shape, value, self.dtype)
        for rank, storage in self._storages.items():
            stream = storage.device.stream()
            offset = rank * self._stride * self.dtype.itemsize
            storage.device.driver.copy_from_host(storage.memory, offset, array, stream.handle)
            storage.device.driver.stream_synchronize(stream.handle)
            stream.close()

    def _view(self, rank: int, at: int) -> Tensor:
        return Tensor(self._storages[at], self.shape, self.dtype, None, rank * self._stride)

    def _member(self, what: str, rank: int | None) -> int:
        """`rank`, a member of this process; by default the only one."""
        if rank is None and len(self._storages) == 1:
            return self.group.ranks[0]
        self._check(what, rank, self.group.ranks)
        assert rank is not None, "looked at above"
        return rank

    def _check(self, what: str, rank: Any, ranks: Any) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"{what}: the rank of a member is an int, not {rank!r}")
        if rank not in ranks:
            where = "the group has" if len(ranks) == self.group.size else "this process has"
            raise ValueError(f"{what}: {where} the members {', '.join(map(str, ranks))}, not {rank}")

    def __repr__(self) -> str:
        return f"<tilekit.Symmetric {self.dtype.name} {self.shape} of {self.group.size} members>"
