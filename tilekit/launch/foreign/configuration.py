"""`LaunchConfig`: how many blocks of how many threads, for kernels that were not written in the tile language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilekit.compiler.grids import AXIS_LIMITS

__all__ = ["LaunchConfig"]

_BLOCK_LIMITS = (1024, 1024, 64)
_THREADS_LIMIT = 1024
_CLUSTER_LIMIT = 16  # blocks; 8 on every GPU that has clusters

Triple = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, init=False)
class LaunchConfig:
    """How a kernel that is not tilekit's is launched: `LaunchConfig(grid=(8, 8), block=256)`.

    (A tile kernel needs none: its grid follows from its partitions, and its threads are tilekit's affair.)

    Attributes:
        grid: the blocks along the three axes. With a 0, nothing is launched.
        block: the threads of a block along them.
        shared_bytes: dynamic shared memory of a block, in bytes. More than 48 KB is asked for where it is needed.
        cluster: the blocks of a thread block cluster along the three axes; None for no clusters. They need sm_90 or newer.
    """

    grid: Triple
    block: Triple
    shared_bytes: int
    cluster: Triple | None

    def __init__(
        self,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int = 0,
        cluster: int | Sequence[int] | None = None,
    ) -> None:
        """Check and keep.

        Args:
            grid, block, cluster: an int, or up to three; the axes that are left out have 1.
            shared_bytes: see above.

        Raises:
            TypeError, ValueError: CUDA launches no such thing.
        """
        blocks, threads = _triple("grid", grid, 0, AXIS_LIMITS), _triple("block", block, 1, _BLOCK_LIMITS)
        if math.prod(threads) > _THREADS_LIMIT:
            raise ValueError(f"LaunchConfig: block {threads} has {math.prod(threads)} threads; CUDA has {_THREADS_LIMIT} at most")
        shared = _integer("shared_bytes", shared_bytes)
        if not 0 <= shared < 2**32:
            raise ValueError(f"LaunchConfig: shared_bytes is a number of bytes from 0 to 2**32 - 1, not {shared}")
        clusters = None if cluster is None else _triple("cluster", cluster, 1, (_CLUSTER_LIMIT,) * 3)
        if clusters is not None:
            if math.prod(clusters) > _CLUSTER_LIMIT:
                raise ValueError(
                    f"LaunchConfig: cluster {clusters} has {math.prod(clusters)} blocks; CUDA has {_CLUSTER_LIMIT} at most"
                )
            if any(count % size for count, size in zip(blocks, clusters, strict=True)):
                raise ValueError(f"LaunchConfig: the grid {blocks} is not made of whole clusters {clusters}")
        for name, value in (("grid", blocks), ("block", threads), ("shared_bytes", shared), ("cluster", clusters)):
            object.__setattr__(self, name, value)

    @classmethod
    def for_num_elems(cls, n: int, block: int = 256) -> LaunchConfig:
        """As many blocks of `block` threads as `n` elements need, a thread for each; of 0 elements none.

        Raises:
            TypeError: `n` or `block` is no int.
            ValueError: `n` is negative, or more than one grid has threads; no block has so many threads.
        """
        count, threads = _integer("n", n), _integer("block", block)
        if count < 0:
            raise ValueError(f"LaunchConfig.for_num_elems: n is a number of elements, not {count}")
        return cls(grid=-(-count // max(threads, 1)), block=threads)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _integer(name: str, value: Any) -> int:
    if not _is_int(value):
        raise TypeError(f"LaunchConfig: {name} is one int, not {value!r}")
    return int(value)


def _triple(name: str, value: Any, least: int, limits: Triple) -> Triple:
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(map(_is_int, listed)):
        raise TypeError(f"LaunchConfig: {name} is an int or a tuple of up to three, not {value!r}")
    numbers = tuple(map(int, listed))
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f"LaunchConfig: {name} has one to three axes, not {len(numbers)} as {value!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    for axis, (n, limit) in enumerate(zip((x, y, z), limits, strict=True)):
        if not least <= n <= limit:
            raise ValueError(f"LaunchConfig: {name} {numbers} has {n} along axis {axis}; CUDA has {least} to {limit} there")
    return x, y, z
