"""Alias analysis of a launch: whether its blocks keep apart, none reading of a tensor what another one writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilekit._tensor.partition import MappedPartition, Partition, Scattered
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.passes.footprints import Access, Along, Extent, Own, Region, Visited, accesses_of

__all__ = ["apart"]


def apart(bound: BoundKernel, tensors: Mapping[str, Any], grid: tuple[int, int, int], written: str, read: str) -> bool:
    """Alias analysis: whether blocks keep to own tiles, of a tensor that is written under one name and read under another.

    They do if along each axis of the grid that has several blocks there is a dimension in which all tiles that are touched lie at
    the block's own index, in one extent.
    """
    of = accesses_of(bound).of
    touched = [*of.get(written, ()), *of.get(read, ())]
    if any(written in access.after for access in of.get(read, ())):  # the threads of a block do not wait for each other there
        return False
    wide = [axis for axis, blocks in enumerate(grid) if blocks > 1]
    if not wide:
        return True
    visits = {access.region.partition for access in touched if isinstance(access.region, Visited)}
    if visits:
        cuts = [_cut(tensors.get(name)) for name in visits]
        return all(_is_visited(access.region, tensors) for access in touched) and cuts.count(cuts[0]) == len(cuts)
    own_dims = [dims for access in touched if (dims := _along(access, tensors))]
    if len(own_dims) < len(touched) or len(set(map(len, own_dims))) > 1:  # what is written through one of another rank
        return False
    return all(any(_agree(at, axis) for at in zip(*own_dims, strict=True)) for axis in wide)


def _agree(along: Sequence[Along | None], axis: int) -> bool:
    return all(one is not None and one.axis == axis and one == along[0] for one in along)


def _is_visited(region: Region, tensors: Mapping[str, Any]) -> bool:
    """Whether it is a whole tile that a turn visits, no more and no less."""
    if not isinstance(region, Visited) or region.extents is None:
        return isinstance(region, Visited)
    tile = getattr(tensors.get(region.partition), "tile_shape", ())
    return (
        tuple(tile[one.dim] if isinstance(one, Extent) and one.partition == region.partition else one for one in region.extents)
        == tile
    )


def _cut(partition: Any) -> Any:
    """What decides which tiles of a mapped partition a block visits."""
    if not isinstance(partition, MappedPartition):
        return object()  # nothing is known of it
    visits = partition.cluster, partition.blocks_per_tile, partition.num_blocks
    return partition.shape, partition.tile_shape, partition.group, *visits


def _along(access: Access, tensors: Mapping[str, Any]) -> tuple[Along | None, ...] | None:
    """Where a tile lies along each dimension, if there is a block's own index in it; None where nothing is known."""
    region = access.region
    if isinstance(region, Own):
        partition = tensors.get(region.partition)
        if not isinstance(partition, Partition) or isinstance(partition, (MappedPartition, Scattered)):
            return None
        tile, there = partition.tile_shape, partition.grid
        if len(tile) < 4:
            return tuple(Along(axis, extent) for axis, extent in enumerate(tile))
        # The first two dimensions share an axis: where one of them has one tile, the other has the axis.
        first = (Along(0, tile[0]), None) if there[1] == 1 else (None, Along(0, tile[1])) if there[0] == 1 else (None, None)
        return (*first, Along(1, tile[2]), Along(2, tile[3]))
    if region is None or isinstance(region, Visited):
        return None
    dims: list[Along | None] = []
    for one in region:
        if one is not None and isinstance(one.extent, Extent):
            tile_shape = getattr(tensors.get(one.extent.partition), "tile_shape", None)
            one = one._replace(extent=tile_shape[one.extent.dim]) if tile_shape and one.extent.dim < len(tile_shape) else None
        dims.append(one)
    return tuple(dims)
