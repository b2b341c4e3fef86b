"""What products of matrices share: dtypes, and how they are dealt out to blocks, by tiles, warps, and parts of long sums.

On GPUs of compute capability 9.0 the candidates are compared by a model in clocks (`model`). Elsewhere, and for operands that no
ring of stages takes, tiles follow from the dtype; those of exact products of float32 have a model of their own (`exact`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from tilekit import dtypes
from tilekit._tensor.partition import MappedPartition
from tilekit._tensor.tensor import Tensor
from tilekit.errors import CompileError
from tilekit.kernels._gemm.abreast import columns_of
from tilekit.kernels._gemm.exact import FEW_STEPS, exact_way, fits_stages, staged_blocks
from tilekit.kernels._gemm.model import CLUSTER, FEW_ROWS, LARGE, MOST_SPLITS, Product, cheapest, held, together
from tilekit.kernels._gemm.stream_k import StreamK, stream_k
from tilekit.kernels._host import check_choice, power
from tilekit.kernels._launches import New
from tilekit.lang.matmul import PRECISIONS, accumulator_dtype
from tilekit.launch.launch import check_warps
from tilekit.ops import Spec

__all__ = [
    "FEW_ROWS", "Schedule", "check_tile", "result_dtype", "schedule_of", "sum_dtype",
]  # fmt: skip

_WARPGROUP_ROWS = 64
_WARPS_ALONE = 8  # of a block that has no room beside another one
_LOADING_WARPS = 16  # of a multiprocessor, where tiles are loaded as the loop goes
# Tiles for 16-bit operands in stages of shared memory on GPUs without products by warpgroups: a warp multiplies 64 x 32.
_COPIED = (128, 128, 64, 8, None)
# Tiles that are loaded as the loop goes, by the operands' dtype: rows, columns, depth, warps, and the blocks of a multiprocessor.
_LOADED = {
    2: (128, 64, 64, 4, None),
    1: (128, 128, 64, 8, None),
    8: (64, 64, 16, 8, None),
}
_LOADED_TF32 = (128, 128, 32, 8, None)
_LEAST = 16  # rows, columns and depth of a tile of tensor cores
_CPU_TILE = 256
# Tiles that are near each other use the same operands while these are in the cache.
_GROUP = 8


class Schedule(NamedTuple):
    """How a product is dealt out.

    Attributes:
        rows, columns, depth: of tiles: `BM`, `BN` and `BK`.
        splits: the parts that the sum is taken in.
        share: how many tiles along K each part has.
        blocks: of the launch.
        num_warps, occupancy: for the launch; None leaves the latter to the compiler.
        stream: how the last tiles are dealt out, if not whole.
        clocks: that it takes by the model; infinity where there is none.
        cluster: how many blocks, below and next to each other, load tiles together; None leaves it to the size of tiles.
        sharing: how many blocks share the turns of each tile.
    """

    rows: int
    columns: int
    depth: int
    splits: int
    share: int
    blocks: int
    num_warps: int
    occupancy: int | None
    stream: StreamK | None = None
    clocks: float = math.inf
    cluster: tuple[int, int] | None = None
    sharing: int = 1

    @property
    def abreast(self) -> tuple[int, ...] | None:
        """The columns of the two or three tiles that stand next to each other; None if there is one."""
        return columns_of(self.columns)

    @property
    def generics(self) -> dict[str, int]:
        """What generics of the kernels stand for."""
        columns, *more = self.abreast or (self.columns,)
        return {"BM": self.rows, "BN": columns, "BK": self.depth, **dict(zip(("BE", "BF"), more, strict=False))}

    def mapped(self, tensor: Tensor) -> MappedPartition:
        """The partition of the result, or of a batch of them, for these blocks."""
        batch = (1,) * (len(tensor.shape) - 2)
        tiles = math.prod(tensor.shape[:-2]) * -(-tensor.shape[-2] // self.rows) * -(-tensor.shape[-1] // self.columns)
        cluster = self.cluster
        if cluster is None and together(self.rows, self.columns, self.num_warps) and tiles > self.blocks:
            cluster = CLUSTER
        return tensor.partition((*batch, self.rows, self.columns)).map(
            group=(*batch, _GROUP, _GROUP),
            num_blocks=self.blocks,
            cluster=None if cluster is None else (*batch, *cluster),
            blocks_per_tile=self.sharing,
        )

    def places(self, new: New, tensor: Tensor) -> MappedPartition:
        """The places of tiles that are no partition of a result, as those of two next to each other: an element each, (product of
        a batch, row, column), which nobody writes. They are visited eight rows of a column at a time."""
        rows, columns = (-(-size // side) for size, side in zip(tensor.shape[-2:], (self.rows, self.columns), strict=True))
        places = new(Spec((math.prod(tensor.shape[:-2]), rows, columns), dtypes.uint8))
        cluster = None if self.cluster is None else (1, *self.cluster)
        return places.partition((1, 1, 1)).map(
            group=(1, _GROUP, 1), num_blocks=self.blocks, cluster=cluster, blocks_per_tile=self.sharing
        )


def sum_dtype(name: str, a: Any, b: Any, precision: str) -> Any:
    """The dtype in which a product of these is added up."""
    check_choice(name, "precision", precision, PRECISIONS)
    try:
        return accumulator_dtype(a.dtype, b.dtype, name)
    except CompileError as error:
        raise TypeError(str(error)) from None


def result_dtype(a: Any, dtype: Any, wide: Any) -> Any:
    """That of a product, which is added up in `wide`, if `dtype` was asked for."""
    return dtypes.as_dtype(dtype) if dtype is not None else a.dtype if a.itemsize > 1 else wide


def check_tile(name: str, tile: Any, *, abreast: int = 1) -> tuple[int, int, int] | None:
    """The tile of a product as a tuple, or None; ValueError if it is none. How many it may be `abreast`."""
    if tile is None:
        return None
    fits = type(tile) in (tuple, list) and len(tile) == 3 and all(type(n) is int and n > 0 for n in tile)
    if not fits or any(n != power(n) and not (at == 1 and columns_of(n, tiles=abreast)) for at, n in enumerate(tile)):
        wide = "" if abreast == 1 else f", of which BN may be the sum of {'two or three' if abreast > 2 else 'two'}"
        raise ValueError(f"{name}: tile is (BM, BN, BK), three powers of two{wide}, not {tile!r}")
    return tuple(tile)  # type: ignore[return-value]


def schedule_of(
    product: Product, *, staged: bool, copied: bool, even: bool, cpu: bool, tf32: bool, tile: tuple[int, int, int] | None,
    num_warps: int | None, splits: int | str | None, abreast: tuple[int, ...] = (), fetched: bool = False,
) -> Schedule:  # fmt: skip
    """The schedule for a product.

    Args:
        product: which.
        staged: see `_staging.staged_operands`.
        copied: whether they come to stages for products without warpgroups, see `_staging.in_stages`.
        even: see `_staging.aligned`.
        cpu: whether it is for a CPU device.
        tf32: whether float32 operands are rounded for tensor cores.
        tile, num_warps, splits: what the caller wants; None for what is best.
        abreast: columns that a tile may have besides powers of two.
        fetched: see `_staging.exact_in_stages`.
    """
    check_warps(num_warps)
    return _schedule(product, staged, copied, even, cpu, tf32, tile, num_warps, splits, abreast, fetched)


@functools.lru_cache(maxsize=1024)
def _schedule(
    product: Product, staged: bool, copied: bool, even: bool, cpu: bool, tf32: bool, tile: tuple[int, int, int] | None,
    num_warps: int | None, splits: int | str | None, abreast: tuple[int, ...] = (), fetched: bool = False,
) -> Schedule:  # fmt: skip
    (batch, m, n, k), count, itemsize, beside = product[:4]
    clocks = math.inf
    occupancy: int | None = None
    cluster: tuple[int, int] | None = None
    sharing = 1
    parts: int | str
    if tile is not None:
        bm, bn, bk = tile
        # A warpgroup has 64 rows of two tiles next to each other, and all of their columns.
        warps = num_warps or max(1, min(8, bm * bn // 2048 if columns_of(bn) is None else bm // 16))
        if num_warps is None and staged and bm >= _WARPGROUP_ROWS:
            warps = max(4, warps)  # a warpgroup
        parts = splits or 1
    elif cpu:
        bm, bn, bk = (min(_CPU_TILE, power(extent)) for extent in (m, n, k))
        warps, parts = 1, splits or 1
    elif staged:
        (bm, bn, warps, dealt, cluster, sharing, depth), clocks = cheapest(product, splits, abreast)
        bk, parts = depth // itemsize, dealt if isinstance(dealt, int) else "stream"
        if n <= FEW_ROWS and warps < 8 and batch * -(-m // bm) > count:
            occupancy = held(1, bn, warps)  # else one block had all of the shared memory, and others waited until it was through
    elif itemsize == 4 and not tf32 and not copied:
        fixed = splits if isinstance(splits, int) else 1 if splits else None
        way = exact_way(product, even=even, fetched=fetched, splits=fixed)
        bm, bn, bk, warps, occupancy = way[:5]
        parts, clocks = splits or way.parts, way.clocks
    else:
        loaded = _LOADED_TF32 if tf32 else _LOADED[itemsize]
        bm, bn, bk, warps, occupancy = _COPIED if copied else loaded
        bm, bn, bk, warps = _smaller(product.shape, count, (bm, bn, bk, warps))
        if not copied and -(-k // bk) <= FEW_STEPS and bm * bn >= LARGE:
            bm, warps = bm // 2, warps // 2
        occupancy = occupancy if bm * bn >= LARGE and even and not beside else None
        parts = splits or _parts(batch * -(-m // bm) * -(-n // bn), -(-k // bk), count, warps if min(m, n) <= FEW_ROWS else None)
    if num_warps is not None:
        warps = num_warps
    steps = -(-k // bk)
    ahead = staged or copied or (fetched and fits_stages(bm, bn, bk, warps, k))
    places = held(count, bn, warps)
    if fetched and ahead:
        occupancy = staged_blocks(bm, bn, warps)
        places = count * (occupancy or 1)
    # Blocks that stay, one after the other visiting tiles; where nothing is fetched ahead, the GPU deals tiles out better.
    stream = None
    if isinstance(parts, str):
        stream, parts = stream_k(-(-m // bm), -(-n // bn), steps, places), 1
    share = -(-steps // min(parts, steps))
    parts = -(-steps // share)  # so many have some
    tiles = max(1, batch * -(-m // bm) * -(-n // bn) * parts * sharing)
    if stream is not None:
        tiles = max(1, stream.top * stream.columns)
    elif staged and warps < _WARPS_ALONE and (tiles <= count or places <= count):
        occupancy = 1  # all of the shared memory is for the stages of one block
    blocks = min(tiles, places) if ahead else tiles
    return Schedule(bm, bn, bk, parts, share, blocks, warps, occupancy, stream, clocks, cluster, sharing)


def _smaller(shape: tuple[int, int, int, int], count: int, tile: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The tile, halved while it is larger than the product, or there are too few of them for all multiprocessors."""
    batch, m, n, k = shape
    bm, bn, bk, warps = tile
    bm, bn, bk = (max(_LEAST, min(size, power(extent))) for size, extent in zip((bm, bn, bk), (m, n, k), strict=True))
    while max(bm, bn) > 64 and batch * -(-m // bm) * -(-n // bn) < count:
        bm, bn = (bm // 2, bn) if bm >= bn else (bm, bn // 2)
    return bm, bn, bk, max(1, min(warps, bm * bn // 512))


def _parts(tiles: int, steps: int, count: int, few: int | None = None) -> int:
    """As many parts as give each multiprocessor a block, of 8 tiles along K at least; where tiles of few rows or columns are
    fewer, several blocks of so many warps, of 4 tiles: memory bounds these. (7 x 3766 x 10868: 79 us in 2 parts, 60 in 17.)
    """
    blocks, least = (1, 8) if few is None or tiles >= count else (max(1, _LOADING_WARPS // few), 4)
    return max(1, min(MOST_SPLITS, count * blocks // max(1, tiles), steps // least))
