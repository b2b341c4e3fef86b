"""Kernels on partitions that several test files launch, and what they are to write."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import tilekit as tk

__all__ = ["copy", "expected_places", "host", "mark", "numbers", "order", "places", "refuse", "scale"]


@tk.kernel
def mark(y: tk.Out):
    y.store(7.0)


@tk.kernel
def copy(y: tk.Out, x: tk.In):
    y.store(tk.load_tile_like(x, y))


@tk.kernel
def scale(y: tk.Out, x: tk.In, a):
    for tile in y.tiles():
        y.store(a * tk.load_tile_like(x, tile), tile)


@tk.kernel
def places(y: tk.InOut):
    """To each tile, the place in which it is visited: added, so that a second visit shows."""
    at = tk.bid(0)
    for tile in y.tiles():
        y.store(y.load(tile) + tk.full(y.tile_shape, at + 1, tk.int64), tile)
        at += tk.num_blocks(0)


def host(tensor: tk.Tensor) -> Any:
    return tensor.to_host().sync()


def refuse(op: tk.DeviceOp, error: type[Exception], message: str) -> str:
    """The op raises that error, with a message that matches; the whole of it."""
    with pytest.raises(error, match=message) as found:
        op.sync()
    return str(found.value)


def numbers(shape: int | tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def order(tiles: tuple[int, ...], group: tuple[int, ...], cluster: tuple[int, ...] | None = None) -> list[tuple[int, ...]]:
    """The tiles in grouped order: groups are cut out of the array of tiles, one after the other; so are clusters, of which the
    groups are made then."""
    if cluster is not None:
        each = zip(tiles, group, cluster, strict=True)
        counts, groups = zip(*((count // n, math.ceil(size / n)) for count, size, n in each), strict=True)
        starts = [[i * n for i, n in zip(index, cluster, strict=True)] for index in order(counts, groups)]
        return [tuple(s + i for s, i in zip(start, within, strict=True)) for start in starts for within in np.ndindex(cluster)]
    numbered = np.arange(math.prod(tiles)).reshape(tiles)
    starts = itertools.product(*(range(0, n, g) for n, g in zip(tiles, group, strict=True)))
    groups = [numbered[tuple(slice(s, s + g) for s, g in zip(start, group, strict=True))].ravel() for start in starts]
    return [tuple(map(int, np.unravel_index(n, tiles))) for n in (np.concatenate(groups) if groups else ())]


def expected_places(
    shape: tuple[int, ...], tile: tuple[int, ...], group: tuple[int, ...], cluster: tuple[int, ...] | None = None
) -> Any:
    """What `places` writes."""
    tiles = tuple(-(-n // t) for n, t in zip(shape, tile, strict=True))
    made = np.zeros(tuple(n * t for n, t in zip(tiles, tile, strict=True)), np.int64)
    for at, index in enumerate(order(tiles, group, cluster)):
        made[tuple(slice(i * t, i * t + t) for i, t in zip(index, tile, strict=True))] = at + 1
    return made[tuple(slice(n) for n in shape)]
