"""`Partition`: a tensor cut into tiles, so that each block of a kernel owns one to write. Prefixes and maps of partitions."""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from tilekit._tensor.operators import NoOperators
from tilekit._tensor.shapes import as_shape

if TYPE_CHECKING:
    import numpy as np

    from tilekit._runtime.device import Device
    from tilekit._runtime.storage import Storage
    from tilekit._tensor.tensor import Tensor
    from tilekit.ops import DeviceOp

__all__ = ["MappedPartition", "Partition", "PrefixPartition", "Scattered", "Traits", "grouped_index", "try_partition"]

_RANKS = range(1, 5)
# What CUDA launches along axis 0; and tiles that are counted in 32 bits, and in 64.
_MOST_BLOCKS = _FEW_TILES = 2**31 - 1
_MOST_TILES = 2**62
_MOST_IN_CLUSTER = 8  # blocks that every GPU with clusters runs together
# How many shapes of tiles are remembered for tensors of one kind.
_CUTS_KEPT = 64


class Traits:
    """What a launch depends on in an argument, except for the address. There is one object for the same traits, so to compare
    them, and to look for something by them, takes no look inside.

    Attributes:
        cuts: of a tensor's traits, those of its partitions by the shape of the tiles; of shapes that were found to be some.
        reach: of a tensor's traits, see `Tensor.reach`; None until somebody asked.
    """

    __slots__ = ("__weakref__", "cuts", "reach")

    _known: ClassVar[weakref.WeakValueDictionary[Any, Traits]] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, description: tuple[Any, ...]) -> Traits:
        """The object for what `description` says. (Two threads may make two: then something is looked up twice.)"""
        return cls._known.get(description) or cls._known.setdefault(description, cls())

    def __init__(self) -> None:
        self.cuts: dict[tuple[int, ...], Traits] = {}
        self.reach: tuple[int, int] | None = None


class Partition(NoOperators):
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
        self.tensor, self.tile_shape, self.storage = tensor, tile_shape, tensor.storage
        cuts = tensor.traits.cuts
        known = cuts.get(tile_shape)
        if known is not None:
            self.traits = known
            return
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
        self.traits = Traits.of((tensor.traits, tile_shape))
        if len(cuts) >= _CUTS_KEPT:
            cuts.clear()
        cuts[tile_shape] = self.traits

    if not TYPE_CHECKING:  # which then says itself that there is no such thing

        def __getitem__(self, index: Any) -> NoReturn:
            raise TypeError(
                f"{self!r} has tiles, which blocks load and store: for a part of the tensor write x.unpartition()[...]"
            )

        def __setitem__(self, index: Any, value: Any) -> NoReturn:
            raise TypeError(f"{self!r} is written by kernels: pass it to one, kernel(x), whose y.store(tile) writes a tile")

        def __len__(self) -> NoReturn:
            raise TypeError(f"{self!r} has no length: the number of tiles is x.grid, the tensor's extents are x.shape")

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{self!r} is not iterated over: a kernel runs for each of its tiles, kernel(x).sync()")

        def __bool__(self) -> bool:
            return True

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

    def to_host(self, out: np.ndarray[Any, Any] | None = None) -> DeviceOp[np.ndarray[Any, Any]]:
        """An op that copies the whole tensor to a NumPy array, see `Tensor.to_host`."""
        return self.tensor.to_host(out)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole tensor as a NumPy array; blocks, see `Tensor.numpy`."""
        return self.tensor.numpy()

    def prefix(self, tiles: int | tuple[int, ...] | None = None) -> PrefixPartition:
        """The first tiles along each dimension: a launch writes these, and leaves the others as they are.

        Args:
            tiles: how many along each dimension: the grid of the launch. None leaves that to `.grid(...)` on the launch or to its
                other partitions: any grid is taken that has, along each axis, no more blocks than there are tiles.

        Raises:
            TypeError: this is a prefix or a map already.
            ValueError: more tiles than there are; or, of rank 4, a part of the tiles along the second dimension, which shares
                an axis of the grid with the first.
        """
        self._check_plain("prefix")
        return PrefixPartition(self.tensor, self.tile_shape, None if tiles is None else as_shape(tiles))

    def map(
        self,
        *,
        group: int | tuple[int, ...] | None = None,
        num_blocks: int | None = None,
        cluster: int | tuple[int, ...] | None = None,
        blocks_per_tile: int = 1,
    ) -> MappedPartition:
        """The partition for a persistent kernel: `num_blocks` blocks that visit all tiles, `for tile in y.tiles():`.

        Block `b` visits tiles `b`, `b + num_blocks`, `b + 2 * num_blocks`..., counted in grouped order: the tiles are cut into
        groups of shape `group`; the groups come in row-major order, and so do the tiles within a group. (Groups at the edge
        are smaller.) Blocks that run at the same time are thus close to each other, and find each other's inputs in the cache.

        Args:
            group: how many tiles a group has along each dimension. By default one, which makes the order row-major.
            cluster: how many tiles that lie beside each other, along each dimension, are visited by neighbouring blocks at the
                same time: `(2, 1)` for two, one below the other. What `tk.pipelined` loads for all of them, or for all along one
                dimension, then comes once, where the GPU has clusters of blocks. Tiles are counted cluster by cluster. Where the
                tiles or the blocks do not divide into clusters there are none.
            blocks_per_tile: how many neighbouring blocks visit each tile together, up to 8, where the GPU has clusters of blocks
                and `num_blocks` are that many for every tile. They share out the turns of a loop over `tk.pipelined` that adds up
                products (split-K), and what each has goes through their shared memory to those that add up some columns of it,
                and do the rest for these; or to the first of them, where the rest takes whole tiles. Of kernels that have no
                such loop, the first does all. Instead of `cluster`.
            num_blocks: the number of blocks. By default that of the device's multiprocessors; 4 on a CPU device, 1 for a meta
                tensor.

        Raises:
            TypeError: this is a prefix or a map already, or `num_blocks` is no int.
            ValueError: `group` does not fit the rank; a count is not positive, or there are more than 2^62 tiles;
                `blocks_per_tile` is not from 1 to 8, or stands beside a cluster.
        """
        self._check_plain("map")
        if num_blocks is None:
            num_blocks = self.storage.device.driver.multiprocessors if self.storage is not None else 1
        ones = (1,) * len(self.tile_shape)
        shapes = [ones if shape is None else as_shape(shape) for shape in (group, cluster)]
        return MappedPartition(self.tensor, self.tile_shape, shapes[0], num_blocks, shapes[1], blocks_per_tile)

    def _check_plain(self, what: str) -> None:
        if type(self) is not Partition:
            raise TypeError(f"{self!r} has no {what}() of its own: begin with the tensor's plain .partition({self.tile_shape})")

    def _dense(self) -> str:
        return "x.unpartition()"

    def device_operation(self) -> DeviceOp[Partition]:
        """The partition as an op that does nothing."""
        from tilekit.ops import value

        return value(self)

    def __repr__(self) -> str:
        return f"{self.tensor!r}.partition({self.tile_shape})"


class PrefixPartition(Partition):
    """The first tiles of a partition along each dimension. Made by `Partition.prefix`.

    Attributes:
        tiles: how many along each dimension; None if the launch decides.
    """

    __slots__ = ("tiles",)

    def __init__(self, tensor: Tensor, tile_shape: tuple[int, ...], tiles: tuple[int, ...] | None) -> None:
        super().__init__(tensor, tile_shape)
        self.tiles, self.traits = tiles, Traits.of((tensor.traits, tile_shape, "prefix", tiles))
        if tiles is None:
            return
        there = super().grid
        if len(tiles) != len(there):
            raise ValueError(f"a prefix of {tiles} tiles has {len(tiles)} dimensions, the partition has {len(there)}")
        for dim, (n, limit) in enumerate(zip(tiles, there, strict=True)):
            if n > limit:
                raise ValueError(f"a prefix of {tiles} tiles is more than the {there} there are, in dimension {dim}")
        if len(tiles) == 4 and tiles[1] != there[1] and tiles[0] > 1:
            raise ValueError(
                f"a prefix of {tiles} tiles takes a part of the {there[1]} along dimension 1, which shares an axis of the grid "
                f"with dimension 0: take all {there[1]}, or the partition of a slice"
            )

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of tiles along each dimension; all there are if the launch decides."""
        return super().grid if self.tiles is None else self.tiles

    def __repr__(self) -> str:
        return f"{super().__repr__()}.prefix({'' if self.tiles is None else self.tiles})"


class MappedPartition(Partition):
    """A partition whose tiles are visited by a given number of blocks, in a given order. Made by `Partition.map`.

    A launch of a kernel gives it back as it went in; `unpartition()` gives the tensor.

    Attributes:
        group: how many tiles a group has along each dimension.
        num_blocks: how many blocks a launch has, along axis 0 of its grid.
        cluster: how many tiles along each dimension neighbouring blocks visit together; None where they do not.
        blocks_per_tile: how many neighbouring blocks visit each tile; 1 where they are too few.
        many: whether to count its tiles takes more than 31 bits (internal).
    """

    __slots__ = ("blocks_per_tile", "cluster", "group", "many", "num_blocks")

    def __init__(
        self,
        tensor: Tensor,
        tile_shape: tuple[int, ...],
        group: tuple[int, ...],
        num_blocks: int,
        cluster: tuple[int, ...] | None = None,
        blocks_per_tile: int = 1,
    ) -> None:
        super().__init__(tensor, tile_shape)
        if isinstance(num_blocks, bool):
            raise TypeError(f"num_blocks is an int, not {num_blocks!r}")
        try:
            self.num_blocks = operator.index(num_blocks)
        except TypeError:
            raise TypeError(f"num_blocks is an int, not {num_blocks!r}") from None
        self.group = group
        if not 1 <= self.num_blocks <= _MOST_BLOCKS:
            raise ValueError(f"num_blocks is from 1 to 2^31 - 1, not {num_blocks}")
        if len(group) != len(tile_shape):
            raise ValueError(f"a group of shape {group} has {len(group)} dimensions, the partition has {len(tile_shape)}")
        if min(group) < 1:
            raise ValueError(f"a group has one tile at least along each dimension; {group} has not")
        counted = math.prod(map(max, self.grid, group))
        if counted > _MOST_TILES:
            raise ValueError(
                f"{self.grid} tiles in groups of {group}: a map counts up to 2^62 tiles; take larger tiles, or smaller groups"
            )
        self.many = counted > _FEW_TILES
        self.cluster = self._possible(cluster)
        self.blocks_per_tile = self._sharing(blocks_per_tile)
        key = tensor.traits, tile_shape, "map", group, self.num_blocks, self.cluster, self.blocks_per_tile
        self.traits = Traits.of(key)

    def _possible(self, cluster: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """A cluster, if tiles and blocks divide into such."""
        if cluster is None or math.prod(cluster) == 1:
            return None
        if len(cluster) != len(self.tile_shape):
            rank = len(self.tile_shape)
            raise ValueError(f"a cluster of shape {cluster} has {len(cluster)} dimensions, the partition has {rank}")
        if min(cluster) < 1 or math.prod(cluster) > _MOST_IN_CLUSTER:
            raise ValueError(f"a cluster has 1 to {_MOST_IN_CLUSTER} tiles; {cluster} has not")
        divides = all(count % n == 0 for count, n in zip(self.grid, cluster, strict=True))
        return cluster if divides and self.num_blocks % math.prod(cluster) == 0 else None

    def _sharing(self, blocks: int) -> int:
        """How many blocks visit a tile together, if there are as many for each."""
        if type(blocks) is not int or not 1 <= blocks <= _MOST_IN_CLUSTER:
            raise ValueError(f"blocks_per_tile is an int from 1 to {_MOST_IN_CLUSTER}, not {blocks!r}")
        if blocks > 1 and self.cluster is not None:
            raise ValueError(
                f"blocks_per_tile is {blocks}, and cluster {self.cluster}: blocks share a tile, or visit several together"
            )
        return blocks if self.num_blocks % blocks == 0 and math.prod(self.grid) * blocks <= self.num_blocks else 1

    def order(self) -> list[tuple[int, ...]]:
        """The indices of all tiles in the order in which they are counted: block `b` visits `order()[b::num_blocks]`."""
        tiles = self.grid
        return [grouped_index(at, tiles, self.group, self.cluster) for at in range(math.prod(tiles))]

    def __repr__(self) -> str:
        cluster = f", cluster={self.cluster}" if self.cluster else ""
        sharing = f", blocks_per_tile={self.blocks_per_tile}" if self.blocks_per_tile > 1 else ""
        return f"{super().__repr__()}.map(group={self.group}, num_blocks={self.num_blocks}{cluster}{sharing})"


class Scattered(Partition):
    """A tensor that the blocks of a kernel write anywhere, by `tk.scatter`, `tk.store` with an index, `tk.atomic_add`... Made by
    `Tensor.scattered`.

    No block owns a tile of it, and the grid does not follow from it.
    """

    __slots__ = ()

    def __init__(self, tensor: Tensor) -> None:
        rank = len(tensor.shape)
        if rank not in _RANKS:
            raise ValueError(f"kernels write tensors of 1 to 4 dimensions; one of shape {tensor.shape} has {rank}")
        super().__init__(tensor, (1,) * rank)
        self.traits = Traits.of((tensor.traits, "scattered"))

    def __repr__(self) -> str:
        return f"{self.tensor!r}.scattered()"


def grouped_index(at: int, tiles: Sequence[int], group: Sequence[int], cluster: Sequence[int] | None = None) -> tuple[int, ...]:
    """The index of the tile that comes at place `at` in grouped order, see `Partition.map`.

    Args:
        at: a place, from 0.
        tiles: the number of tiles along each dimension.
        group: the number of tiles in a group along each dimension.
        cluster: the number of tiles in a cluster, which divides that of all tiles; groups are rounded up to whole clusters.
    """
    if cluster is not None:
        which, rank = divmod(at, math.prod(cluster))
        groups = [-(-size // n) for size, n in zip(group, cluster, strict=True)]
        outer = grouped_index(which, [count // n for count, n in zip(tiles, cluster, strict=True)], groups)
        within = grouped_index(rank, cluster, [1] * len(cluster))
        return tuple(o * n + i for o, n, i in zip(outer, cluster, within, strict=True))
    # A group's place, dimension by dimension: so many tiles are in all groups that are as far along this dimension, given the
    # extents of the group along those before.
    first: list[int] = []
    extents: list[int] = []
    for dim, (count, size) in enumerate(zip(tiles, group, strict=True)):
        row = math.prod(extents) * math.prod(tiles[dim + 1 :])
        which, at = divmod(at, row * size)
        first.append(which * size)
        extents.append(min(size, count - which * size))
    index = []
    for start, extent in zip(reversed(first), reversed(extents), strict=True):
        at, inner = divmod(at, extent)
        index.append(start + inner)
    return tuple(reversed(index))


class _Alone:
    """What a tensor is to its storage, if nobody else knows the storage."""

    __slots__ = ("storage",)

    def __init__(self) -> None:
        self.storage: Any = type("Nothing", (), {})()


def _holders(view: Any) -> int:
    return sys.getrefcount(view.storage)


# What one holder counts as: which of the references that a call makes are counted differs between versions of Python.
_ONE = _holders(_Alone())


def try_partition(tensor: Tensor, tile_shape: tuple[int, ...]) -> Partition | None:
    """The partition, if nothing but `tensor` holds its memory; None if something does. See `Tensor.try_partition`."""
    kept = getattr(tensor.storage, "kept", False)  # of others' memory, by the device
    if tensor.storage is not None and _holders(tensor) > _ONE + kept:
        return None
    return Partition(tensor, tile_shape)
