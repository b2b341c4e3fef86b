"""Tiles for what is done by rows or element by element: how many rows a block gets, and in which views."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from tilekit._tensor.partition import Partition
from tilekit._tensor.tensor import Tensor
from tilekit.compiler.facts import divisor
from tilekit.kernels._host import MULTIPROCESSORS, flat, multiprocessors, on_cpu, power, shaped
from tilekit.kernels._launches import Destination, New
from tilekit.launch import copying
from tilekit.ops import Spec

__all__ = [
    "Joined", "Measured", "RowTile", "flat_tile", "joined", "narrow_rows", "of_parts", "row_tile", "rows_tile", "vector_width",
]  # fmt: skip

# A thread's share of a row, in registers of 32 bits: fewer leave the memory idle, more leave room for too few blocks. On an H200,
# 16 for float32 (four accesses of 16 bytes), and 32 for 16-bit types, which are loaded two to a register.
_SHARE, _SHARE_16_BIT = 16, 32
# At most so many warps, and so many values in a thread: what a row takes that is held in registers from end to end. As many of a
# 16-bit type would be half the bytes, too few for the one block that there is room for.
_WARPS, _MOST, _MOST_16_BIT = 16, 64, 32
# Warps of a block that goes over a row tile by tile.
_LOOP_WARPS = 8
# Fewer rows than so many for each multiprocessor are taken apart, into about so many blocks for each.
_FEW, _BUSY = 2, 4
# What a block of a CPU device works on: this much stays in the caches of a core.
_CPU_ELEMENTS = 1 << 15
_MOST_BLOCKS = 32  # that a multiprocessor holds
_FLAT_BYTES = 4096
_MOST_DIMS = 3  # of views that a kernel takes for each element by itself


class Measured(dict[tuple[int, int], tuple[int, int | None]]):
    """For the size of an element and a number of columns the warps and the occupancy that were best on an H200."""

    __hash__ = object.__hash__  # it is told from others by what it is, not by what is in it

    def __eq__(self, other: object) -> bool:
        return self is other


class RowTile(NamedTuple):
    """How rows are dealt out to blocks.

    Attributes:
        rows, columns: the tile's extents.
        chunks: how many tiles a row takes; 1 if it fits one.
        num_warps, occupancy: for the launch; None where the compiler does better without.
    """

    rows: int
    columns: int
    chunks: int
    num_warps: int
    occupancy: int | None

    def cut(self, matrix: Tensor) -> Partition:
        """The partition of a matrix for a block to have whole rows.

        Of a row that takes several tiles a block goes from one to the next by itself, and so has the first of them only.
        """
        cut = Partition(matrix, self.shape(matrix))
        return cut if self.chunks == 1 else cut.prefix((*matrix.shape[:-2], -(-matrix.shape[-2] // self.rows), 1))

    def shape(self, matrix: Destination) -> tuple[int, ...]:
        """The tile's extents in a matrix, or in batches of rows, of one of which a block has rows."""
        return (*(1,) * (len(matrix.shape) - 2), self.rows, self.columns)

    def parts(self, matrix: Tensor) -> tuple[int, int]:
        """Into how many parts each row is taken apart, for a block each, where rows are too few to keep a GPU busy; 1 elsewhere.
        And how many tiles a part has.
        """
        count = math.prod(matrix.shape[:-1])
        if self.chunks == 1 or on_cpu(matrix) or not 0 < count < _FEW * multiprocessors(matrix):
            return 1, self.chunks
        share = -(-self.chunks * count // (_BUSY * multiprocessors(matrix)))
        return -(-self.chunks // share), share

    def launch(self, op: Any) -> Any:
        """The launch `op`, with the warps and the occupancy."""
        op = op.num_warps(self.num_warps)
        return op if self.occupancy is None else op.occupancy(self.occupancy)


def vector_width(*matrices: Destination) -> int:
    """How many elements a thread takes at once, up to 16 bytes, for which the rows of one of these matrices are aligned."""
    vector = max(map(_aligned, matrices))
    if any(_aligned(matrix) < min(vector, 16 // matrix.dtype.itemsize) for matrix in matrices):
        # Where only some are aligned, a lane has no more than four bytes.
        vector = min(vector, max(1, 4 // min(matrix.dtype.itemsize for matrix in matrices)))
    return vector


def _aligned(matrix: Destination) -> int:
    """How many elements lanes have next to each other, as `choose_config` of the compiler has it for a matrix."""
    itemsize, address, strides = matrix.dtype.itemsize, 0, (matrix.shape[-1], 1)
    if isinstance(matrix, Tensor):
        address, strides = matrix.address if matrix.storage is not None else 0, matrix.strides
    if strides[-1] != 1:
        return 16 // itemsize
    return max(1, min(16 // itemsize, divisor(address) // itemsize, *map(divisor, strides[:-1])))


def narrow_rows(matrix: Tensor, nbytes: int) -> bool:
    """Whether its rows are aligned to fewer bytes: accesses are narrower then, and each takes registers for where it is."""
    return any(stride * matrix.itemsize % nbytes for stride in matrix.strides[:-1])


def row_tile(
    matrix: Tensor,
    held: int = 1,
    room: int = 2,
    blocks: int | None = None,
    measured: Measured | None = None,
    more: tuple[int, int] = (1, 1),
) -> RowTile:
    """The tile for a kernel that goes over the rows of `matrix`, each in one block.

    Args:
        matrix: what is read, a matrix or batches of rows.
        held: how many tiles of that shape a block keeps at a time.
        room: how many registers a thread needs for each 32 bits that it keeps, to do without local memory.
        blocks: where a row takes several tiles, how many blocks of that loop a multiprocessor shall hold.
        measured: what was measured; the rule here is for all others.
        more: where a block would be one warp, and there are more blocks than fit at once: how many warps it has instead, and how
            many times as many rows each of these.
    """
    (count, length), cpu = matrix.shape[-2:], on_cpu(matrix)
    more = (1, 1) if cpu else more
    return _row_tile(count, length, matrix.dtype.itemsize, cpu, held, room, blocks, None if cpu else measured, more)


@functools.lru_cache(maxsize=256)
def _row_tile(
    count: int,
    length: int,
    itemsize: int,
    cpu: bool,
    held: int,
    room: int,
    blocks: int | None,
    measured: Measured | None,
    more: tuple[int, int],
) -> RowTile:
    columns, words = power(length), held * max(1, itemsize // 4)  # 16-bit floats are calculated in 32 bits
    if measured is not None and (itemsize, columns) in measured:
        return RowTile(1, columns, 1, *measured[itemsize, columns])
    share = max(4, (_SHARE_16_BIT if itemsize < 4 else _SHARE) // words)
    if columns * words > 32 * _WARPS * (_MOST_16_BIT if itemsize < 4 and held == 1 else _MOST):
        columns = 32 * _LOOP_WARPS * share
        return RowTile(1, columns, -(-length // columns), _LOOP_WARPS, blocks)
    warps = max(1, min(_WARPS, columns // (32 * share)))
    elements = _CPU_ELEMENTS if cpu else 32 * warps * share
    rows = min(max(1, elements // columns), power(count))
    if warps == 1 and more != (1, 1) and count > rows * MULTIPROCESSORS * _MOST_BLOCKS:
        warps, rows = more[0], more[0] * more[1] * rows
        return RowTile(rows, columns, 1, warps, None)
    values = max(1, columns // (32 * warps)) * words
    # Up to 16 values, threads take few enough registers by themselves, but of the largest blocks, of which there shall be two.
    # A multiprocessor has 64 K of them.
    occupancy = max(1, 2048 // (warps * values * room)) if values > _SHARE else 2 if warps == _WARPS else None
    return RowTile(rows, columns, 1, warps, occupancy)


def of_parts(new: New, count: int | tuple[int, ...], parts: int, dtype: Any) -> Tensor:
    """A new tensor for a number of each part of each row, of which there are so many (in batches). Its rows begin anywhere, so
    that how wide others are read and written, which are large, does not follow from it."""
    counts = count if isinstance(count, tuple) else (count,)
    return new(Spec((*counts, parts | 1), dtype))[..., :parts]


def flat_tile(x: Tensor) -> int:
    """How many elements a block gets, where each is calculated by itself: 32 bytes for each of 128 threads."""
    return min(_CPU_ELEMENTS if on_cpu(x) else _FLAT_BYTES // x.itemsize, power(x.size))


class Joined(NamedTuple):
    """Tensors of one shape for a kernel that takes each element by itself: views in the fewest dimensions, which all have.

    Attributes:
        tile: the extents of a block's tile.
        result: where the result goes.
        operands: views of the others, or ops that copy them.
    """

    tile: tuple[int, ...]
    result: Destination
    operands: list[Any]


def joined(result: Destination, *operands: Tensor) -> Joined:
    """The tensors in one dimension if none has gaps. If some have, which lie in rows, they are read and written as they lie; of
    others there are copies.

    Raises:
        ValueError: the result has no such view.
    """
    target = Tensor(None, result.shape, result.dtype) if type(result) is Spec else result
    tensors, shape, tile = (target, *operands), (target.size,), (flat_tile(operands[0]),)
    if not all(x.is_contiguous for x in tensors):
        dims, offsets = copying.fewest_dims(tensors)
        if len(dims) <= _MOST_DIMS and all(stride == 1 for stride in dims[-1][1]):
            shape = tuple(extent for extent, _ in dims)
            views = [
                Tensor(x.storage, shape, x.dtype, tuple(strides[k] for _, strides in dims), offsets[k])
                for k, x in enumerate(tensors)
            ]
            return Joined(rows_tile(shape, tile[0]), Spec(shape, result.dtype) if type(result) is Spec else views[0], views[1:])
    return Joined(tile, shaped(result, shape), [flat(x) for x in operands])


def rows_tile(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The extents of a tile of about so many elements: whole rows, or as much of one as leaves little of the last tile empty.

    Parts of rows that begin anywhere share sectors of memory, which whole rows do only at their ends: 330711 rows of 286 bfloat16
    with gaps take 332 us in tiles of 64 columns, of 256 250, and of 512 180.
    """
    widths = [1 << bit for bit in range(6, elements.bit_length()) if 1 << bit <= power(shape[-1])] or [power(shape[-1])]
    covered = [-(-shape[-1] // width) * width for width in widths]
    fitting = [width for width, many in zip(widths, covered, strict=True) if 8 * many <= 9 * min(covered)]
    tile = [power(shape[-1]) if power(shape[-1]) <= elements else max(fitting)]
    for extent in reversed(shape[:-1]):
        elements //= tile[0]
        tile.insert(0, min(elements, power(extent)))
    return tuple(tile)
