"""What products of matrices share: dtypes, and how they are dealt out to blocks, by tiles, warps, and parts of long sums.

On GPUs of compute capability 9.0 the candidates are compared by a model of what happens, in clocks: the tensor cores multiply and
add so many elements, and wait so long in each step; so many bytes come from the L2 cache to each multiprocessor, and to all of
them; and so many from memory. These go on at the same time, and delay each other the more, the more alike they are (the norm of
order 4); what comes before and after the loop is not hidden. The numbers are an H200's: fitted to 218 random products, each with
all tiles and numbers of parts, and to 26 of which one side is short; the choices by the model are 1.7 and 3.7 % slower than the
best ones. Elsewhere, and for operands that no ring of stages takes, tiles follow from the dtype; those of exact products of
float32 have a model of their own (`exact`).
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
from tilekit.kernels._gemm.stream_k import StreamK, stream_k
from tilekit.kernels._host import check_choice, multiprocessors, power
from tilekit.lang.matmul import PRECISIONS, accumulator_dtype
from tilekit.launch.launch import check_warps

__all__ = [
    "FEW_ROWS", "Schedule", "check_tile", "result_dtype", "schedule_of", "sum_dtype",
]  # fmt: skip

# Of a multiprocessor, in a clock: products of elements, by the bytes that each has. What else a step along K costs those that do
# it at the same time, in clocks and by its products: waiting for the tiles, and saying that they were read.
_PRODUCTS, _WAITING, _ASKING = 4300, 90, 0.5
# Clocks for which a tile is on its way, as others are of the stages of a block: 4, or up to 8 where it is alone on a
# multiprocessor, of so many bytes together (see `compiler.nvidia.multibuffer`).
_COMING, _STAGES, _STAGES_ALONE, _ROOM = 570, 4, 8, 224 << 10
# Bytes that come from the L2 cache in a clock, to a multiprocessor and to all of them: fewer where rows lie across its lines.
_FETCHED, _CACHED, _ACROSS = 80, 7500, 6000
# Rows that a tile has beyond a matrix are zeros, and take longer: with tiles of 128 x 128, 256 x 8192 x 8192 takes 50 us, and
# with 224, 194, 160, 129 rows 51, 73, 83, 93.
_BEYOND = 1750
# The same where short sums of 8-bit floats are added up: by one warpgroup, and by several, of which another multiplies meanwhile.
_SUMMING_WAITS, _SUMMING, _SUMMING_TOGETHER = 150, 1.4, 0.9
# Clocks before the first tile has come and after the last, with `_STORED` elements of the result written in one; fewer by the
# other factor of a transpose, whose rows lie across what a warp has.
_LATENCY, _STORED, _TURNED = 3200, 10, 1.7
# Of a GPU: bytes a clock from memory or to it; and clocks from the end of one kernel to the work of the next.
_MEMORY, _NEXT = 2360, 3100
# Two tiles next to each other, which are stored one after the other, are no gain unless by so much.
_TWO = 1.02
# Shares are none where operands are much larger than the L2 cache: blocks that are at different places of K share nothing in it.
# (Measured: gains of 8 to 30 % up to 105 MB, a loss of 13 % at 210 MB.)
_STREAMED = 128 << 20
# Tiles for operands in stages of shared memory: rows, columns, warps. Each warpgroup has 64 rows, or more.
_STAGED = ((128, 256, 8), (128, 128, 8), (64, 256, 4), (64, 128, 4), (128, 64, 8), (64, 64, 4))
_STAGED_BYTES = 128  # along K: what one swizzle covers
# Of a product with so few rows, the transpose is taken, with so many of its rows (see `products`) in a tile.
FEW_ROWS = 32
_FEW_STAGED, _FEW_BYTES = 64, 512  # rows, and bytes along K: as many blocks as there are, each with much on its way to it
# With tiles of so many bytes for each of its elements beside it, a larger accumulator does not fit the registers.
_LARGE, _BESIDE = 128 * 128, 4
# Blocks next to each other, or one below the other, that load a tile once for all of them. Of large tiles, two do if they visit
# several. Those that have one do where the model says so, if as many fit on the GPU, which has parts of 16 or 18 multiprocessors.
# They have the larger operand's tiles in common, or the other's if no two blocks can have those. (75 x 10240 x 8192 with tiles of
# 128 x 128: 60 us, with clusters of two 57, of four 48; 194 x 8192 x 8192: 73, with those of the larger operand 60, else 71.)
_CLUSTER = (2, 1)
_CLUSTERS, _TOGETHER, _FITTING = ((2, 1), (1, 2), (4, 1), (1, 4)), 1.02, 0.85
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
_MOST_SPLITS = 64
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

    @property
    def abreast(self) -> tuple[int, int] | None:
        """The columns of the two tiles that stand next to each other; None if there is one."""
        return columns_of(self.columns)

    @property
    def generics(self) -> dict[str, int]:
        """What generics of the kernels stand for."""
        columns, more = self.abreast or (self.columns, 0)
        return {"BM": self.rows, "BN": columns, "BK": self.depth, **({"BE": more} if more else {})}

    def mapped(self, tensor: Tensor) -> MappedPartition:
        """The partition of the result, or of a batch of them, for these blocks."""
        batch = (1,) * (len(tensor.shape) - 2)
        tiles = math.prod(tensor.shape[:-2]) * -(-tensor.shape[-2] // self.rows) * -(-tensor.shape[-1] // self.columns)
        cluster = self.cluster
        if cluster is None and _together(self.rows, self.columns, self.num_warps) and tiles > self.blocks:
            cluster = _CLUSTER
        return tensor.partition((*batch, self.rows, self.columns)).map(
            group=(*batch, _GROUP, _GROUP),
            num_blocks=self.blocks,
            cluster=None if cluster is None else (*batch, *cluster),
        )


def _together(rows: int, columns: int, warps: int) -> bool:
    """Whether tiles are so large that a tile of `b` is loaded once for two blocks, if they visit several."""
    return rows * columns > _LARGE and warps >= 8


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


def check_tile(name: str, tile: Any, *, abreast: bool = False) -> tuple[int, int, int] | None:
    """The tile of a product as a tuple, or None; ValueError if it is none. Whether it may be several `abreast`."""
    if tile is None:
        return None
    fits = type(tile) in (tuple, list) and len(tile) == 3 and all(type(n) is int and n > 0 for n in tile)
    if not fits or any(n != power(n) and not (abreast and at == 1 and columns_of(n)) for at, n in enumerate(tile)):
        wide = ", of which BN may be the sum of two" if abreast else ""
        raise ValueError(f"{name}: tile is (BM, BN, BK), three powers of two{wide}, not {tile!r}")
    return tuple(tile)  # type: ignore[return-value]


def schedule_of(
    a: Tensor, shape: tuple[int, int, int, int], *, staged: bool, copied: bool, even: bool, cpu: bool, tf32: bool, beside: int,
    tile: tuple[int, int, int] | None, num_warps: int | None, splits: int | str | None, summed: bool = False,
    abreast: tuple[int, ...] = (), turned: bool = False, lines: bool = True, clusters: bool = True, fetched: bool = False,
) -> Schedule:  # fmt: skip
    """The schedule for a product of shape `(batch, M, N, K)`.

    Args:
        a: one of the operands.
        shape: of the product.
        staged: see `_staging.staged_operands`.
        copied: whether they come to stages for products without warpgroups, see `_staging.in_stages`.
        even: see `_staging.aligned`.
        cpu: whether it is for a CPU device.
        tf32: whether float32 operands are rounded for tensor cores.
        beside: the bytes of an element of all matrices that the epilogue takes.
        tile, num_warps, splits: what the caller wants; None for what is best.
        summed: whether short sums of 8-bit floats are added up in float32 (see `tk.mma`).
        abreast: columns that a tile may have besides powers of two.
        turned: whether it is the transpose that is stored, whose rows go across what a warp has.
        lines: whether rows, or columns, of the operands are whole lines of the cache, of 128 bytes.
        clusters: whether blocks may load tiles together, and have shares of one, which those of kernels that find their tiles by
            themselves do not.
        fetched: see `_staging.exact_in_stages`.
    """
    check_warps(num_warps)
    return _schedule(
        shape, multiprocessors(a), a.itemsize, staged, copied, even, cpu, tf32, beside, tile, num_warps, splits, summed,
        abreast, turned, lines, clusters, fetched,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _schedule(
    shape: tuple[int, int, int, int], count: int, itemsize: int, staged: bool, copied: bool, even: bool, cpu: bool, tf32: bool,
    beside: int, tile: tuple[int, int, int] | None, num_warps: int | None, splits: int | str | None, summed: bool = False,
    abreast: tuple[int, ...] = (), turned: bool = False, lines: bool = True, clusters: bool = True, fetched: bool = False,
) -> Schedule:  # fmt: skip
    batch, m, n, k = shape
    clocks = math.inf
    occupancy: int | None = None
    cluster: tuple[int, int] | None = None
    parts: int | str
    if tile is not None:
        bm, bn, bk = tile
        # A warpgroup has 64 rows of two tiles next to each other, and all of their columns.
        warps = num_warps or max(1, min(8, bm * bn // 2048 if columns_of(bn) is None else bm // 16))
        parts = splits or 1
    elif cpu:
        bm, bn, bk = (min(_CPU_TILE, power(extent)) for extent in (m, n, k))
        warps, parts = 1, splits or 1
    elif staged and n <= FEW_ROWS < m:
        bm, bn, bk, warps = _FEW_STAGED, max(_LEAST, power(n)), _FEW_BYTES // itemsize, 4
        parts = splits or max(1, min(_MOST_SPLITS, -(-k // bk), count // max(1, batch * -(-m // bm))))
    elif staged:
        bm, bn, warps, parts, cluster, clocks = _cheapest(
            shape, count, itemsize, summed, beside, splits, abreast, turned, lines, clusters
        )  # fmt: skip
        bk = _STAGED_BYTES // itemsize
    elif itemsize == 4 and not tf32 and not copied:
        fixed = splits if isinstance(splits, int) else 1 if splits else None
        way = exact_way(shape, count, beside=beside, even=even, fetched=fetched, splits=fixed)
        bm, bn, bk, warps, occupancy = way[:5]
        parts, clocks = splits or way.parts, way.clocks
    else:
        loaded = _LOADED_TF32 if tf32 else _LOADED[itemsize]
        bm, bn, bk, warps, occupancy = _COPIED if copied else loaded
        bm, bn, bk, warps = _smaller(shape, count, (bm, bn, bk, warps))
        if not copied and -(-k // bk) <= FEW_STEPS and bm * bn >= _LARGE:
            bm, warps = bm // 2, warps // 2
        occupancy = occupancy if bm * bn >= _LARGE and even and not beside else None
        parts = splits or _parts(batch * -(-m // bm) * -(-n // bn), -(-k // bk), count)
    if num_warps is not None:
        warps = num_warps
    steps = -(-k // bk)
    ahead = staged or copied or (fetched and fits_stages(bm, bn, bk, warps, k))
    held = _held(count, warps)
    if fetched and ahead:
        occupancy = staged_blocks(bm, bn, warps)
        held = count * (occupancy or 1)
    # Blocks that stay, one after the other visiting tiles; where nothing is fetched ahead, the GPU deals tiles out better.
    stream = None
    if isinstance(parts, str):
        stream, parts = stream_k(-(-m // bm), -(-n // bn), steps, held), 1
    share = -(-steps // min(parts, steps))
    parts = -(-steps // share)  # so many have some
    tiles = max(1, batch * -(-m // bm) * -(-n // bn) * parts)
    if stream is not None:
        tiles = max(1, stream.top * stream.columns)
    elif staged and tiles <= count < held:
        occupancy = 1  # all of the shared memory is for the stages of one block
    return Schedule(bm, bn, bk, parts, share, min(tiles, held) if ahead else tiles, warps, occupancy, stream, clocks, cluster)


def _held(count: int, warps: int) -> int:
    """How many blocks of so many warps multiprocessors hold."""
    return count * max(1, 4 // warps * 2 if warps < 8 else 1)


def _cheapest(
    shape: tuple[int, int, int, int], count: int, itemsize: int, summed: bool, beside: int, splits: int | str | None,
    abreast: tuple[int, ...] = (), turned: bool = False, lines: bool = True, clusters: bool = True,
) -> tuple[int, int, int, int | str, tuple[int, int] | None, float]:  # fmt: skip
    """For operands that come in stages the tile, the warps, the parts, or "stream", and the clusters; and the clocks that these
    take.
    """
    batch, m, n, k = shape
    best = math.inf
    chosen: tuple[int, int, int, int | str, tuple[int, int] | None] = (128, 128, 8, 1, None)
    fitting = [columns for columns in abreast if columns_of(columns)[0] < n]  # else the second tile has none
    more = [(rows, columns, warps) for columns in fitting for rows, warps in ((128, 8), (64, 4))]
    steps = -(-k * itemsize // _STAGED_BYTES)
    for bm, bn, warps in (*_STAGED, *more):
        odd = bn in abreast
        if (beside >= _BESIDE and bm * bn > _LARGE) or (odd and splits == "stream"):
            continue
        tiles = max(1, batch * -(-m // bm) * -(-n // bn))
        limit = min(_MOST_SPLITS, steps, max(1, 2 * count // tiles))
        ways: list[int | str] = list(range(1, limit + 1)) if splits is None else [1 if splits == "stream" else splits]
        stream = stream_k(-(-m // bm), -(-n // bn), steps, _held(count, warps)) if batch == 1 and clusters and not odd else None
        # Of tiles that are too few from the start, the sums are split, as long as nobody says otherwise.
        near = itemsize * (m * k + k * n) <= _STREAMED
        if stream is not None and (splits == "stream" or (splits is None and stream.top and near)):
            ways = ["stream"] if splits else [*ways, "stream"]
        for parts in ways:
            dealt = stream if parts == "stream" else parts
            for cluster in (None, *(_clusters_of(shape, count, (bm, bn), dealt) if clusters and not odd else ())):
                clocks = _clocks(shape, count, itemsize, summed, (bm, bn, warps), dealt, turned, lines, clusters, cluster)
                if odd:
                    clocks *= _TWO
                if clocks < best:
                    best, chosen = clocks, (bm, bn, warps, parts, cluster)
    return *chosen, best


def _clusters_of(shape: tuple[int, int, int, int], count: int, tile: tuple[int, int], parts: Any) -> list[tuple[int, int]]:
    """The clusters that blocks may have which visit one tile each."""
    batch, m, n, _ = shape
    rows, columns = -(-m // tile[0]), -(-n // tile[1])
    blocks = math.inf if isinstance(parts, StreamK) else batch * rows * columns * parts
    return [
        (below, beside)
        for below, beside in _CLUSTERS
        if rows % below == columns % beside == 0
        and blocks <= count * (1 if below * beside == 2 else _FITTING)
        and (n >= m or columns % 2 if below > 1 else m >= n or rows % 2)
    ]


def _clocks(
    shape: tuple[int, int, int, int], count: int, itemsize: int, summed: bool, tile: tuple[int, int, int],
    parts: Any, turned: bool, lines: bool, clusters: bool = True, cluster: tuple[int, int] | None = None,
) -> float:  # fmt: skip
    """How long a product takes with a tile of so many rows, columns and warps, by the model.

    Args:
        shape, summed, turned, lines, clusters: see `schedule_of`.
        count: of multiprocessors.
        itemsize: of the operands.
        tile: rows, columns, warps.
        parts: that sums are taken in, or how the last tiles are dealt out.
        cluster: see `Schedule`.
    """
    batch, m, n, k = shape
    bm, bn, warps = tile
    steps, each = -(-k * itemsize // _STAGED_BYTES), _held(count, warps) // count
    tiles = max(1, batch * -(-m // bm) * -(-n // bn))
    products = bm * bn * _STAGED_BYTES / _PRODUCTS
    rows = parts.top if isinstance(parts, StreamK) else -(-m // bm)
    together = _together(bm, bn, warps) and tiles > _held(count, warps) and rows % _CLUSTER[0] == 0
    below, beside = cluster or (_CLUSTER if together and clusters and columns_of(bn) is None else (1, 1))
    fetched = (bm / beside + bn / below) * _STAGED_BYTES
    alone = each == 1 or (not isinstance(parts, StreamK) and tiles * parts <= count)
    stages = min(_STAGES_ALONE if alone else _STAGES, _ROOM // ((bm + bn) * _STAGED_BYTES))
    waiting = _WAITING + _COMING / (stages - 1)

    def step(blocks: int) -> float:
        """Of the blocks of a multiprocessor."""
        if summed:
            return _SUMMING_WAITS + (_SUMMING if blocks * warps <= 4 else _SUMMING_TOGETHER) * blocks * products
        return max(blocks * products, waiting + _ASKING * blocks * products)

    def turns_of(pieces: int) -> tuple[int, float]:
        """How many of these a multiprocessor has, and the clocks of a step in all of its turns."""
        turns = -(-pieces // count)
        return turns, turns // each * step(each) + (step(turns % each) if turns % each else 0)

    if isinstance(parts, StreamK):
        # Rounds of whole tiles, and the blocks of a multiprocessor that each have a share, with two ends at most.
        turns, clocks = turns_of(parts.top * parts.columns)
        loop, stored = clocks * steps + parts.share * step(each), turns + 2 * each
        mine, all_of_them = turns * steps + each * parts.share, (parts.top * parts.columns + parts.tiles) * steps
        after = _NEXT + 8 * parts.places * bm * bn / _MEMORY + _LATENCY
    else:
        share = -(-steps // parts)
        stored, clocks = turns_of(tiles * parts)
        loop, mine, all_of_them = clocks * share, stored * share, tiles * parts * share
        after = _NEXT + 8 * batch * m * n * parts / _MEMORY if parts > 1 else 0  # they are written, and read
    operands = itemsize * batch * (m * k + k * n) / _MEMORY
    rows, columns = -(-m // bm), -(-n // bn)
    beyond = batch * steps * _STAGED_BYTES * ((rows * bm - m) * columns / beside + (columns * bn - n) * rows / below)
    cached = (all_of_them * fetched - beyond) / (_CACHED if lines else _ACROSS) + beyond / _BEYOND
    fetching = mine * (fetched - beyond / all_of_them) / _FETCHED
    hidden = math.hypot(*(clocks**2 for clocks in (loop, fetching, cached, operands))) ** 0.5
    clocks = hidden + stored * bm * bn / (_STORED / _TURNED if turned else _STORED) + _LATENCY + after
    return clocks if cluster is None else clocks * _TOGETHER ** math.log2(below * beside)


def _smaller(shape: tuple[int, int, int, int], count: int, tile: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The tile, halved while it is larger than the product, or there are too few of them for all multiprocessors."""
    batch, m, n, k = shape
    bm, bn, bk, warps = tile
    bm, bn, bk = (max(_LEAST, min(size, power(extent))) for size, extent in zip((bm, bn, bk), (m, n, k), strict=True))
    while max(bm, bn) > 64 and batch * -(-m // bm) * -(-n // bn) < count:
        bm, bn = (bm // 2, bn) if bm >= bn else (bm, bn // 2)
    return bm, bn, bk, max(1, min(warps, bm * bn // 512))


def _parts(tiles: int, steps: int, count: int) -> int:
    """As many parts as give each multiprocessor a block, of 8 tiles along K at least."""
    return max(1, min(_MOST_SPLITS, count // max(1, tiles), steps // 8))
