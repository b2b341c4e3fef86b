"""The family `columns`: sums and maxima along the first axis, by kernels as a user writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilekit as tk
from tilekit_benchmarks import _tilekit_columns
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_KERNELS = {"sum": _tilekit_columns.sums, "max": _tilekit_columns.maxima}
_LAYOUTS = {CONTIGUOUS: 0.7, "rows with gaps": 0.3}
# Bytes of a tile, and of one row at least.
_BYTES, _ROW = 8 << 10, 64
_COLUMNS = (128, 64, 32)  # of a tile, if that is not too few for all blocks to run at the same time
_LEAST, _MOST = 4, 512  # rows of a tile that has more columns, at least; of partial results, at most
# Blocks of a multiprocessor: so many are enough to read at full speed; so many shall have room at the same time.
_BUSY, _ROOM = 4, 6
_TURNS = 2  # tiles one after the other that take no longer than a second launch
_MULTIPROCESSORS = 132  # where there are none: of an H200


def _draw(d: Draw) -> Case:
    dtype = d.dtype()
    shape, layout, options = d.rows(width_of(dtype), _LAYOUTS)
    nbytes = (shape[0] + 1) * shape[1] * width_of(dtype)
    return d.case(kernel=d.one_of(list(_KERNELS)), dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, **options)


def _parts_of(extent: int, size: int) -> int:
    return -(-extent // size)


def _power(extent: int) -> int:
    """The least power of two that is no less."""
    return 1 << (extent - 1).bit_length()


def _beyond(n: int, columns: int) -> float:
    """Which part of the columns of tiles is beyond the edge."""
    return 1 - n / (_parts_of(n, columns) * columns)


def _tile(m: int, n: int, itemsize: int, count: int) -> tuple[int, int]:
    """Rows and columns of a tile: few columns beyond the edge, and as many columns as let all blocks run at once.

    Blocks that run one after the other would read the matrix in stripes, and the last of them leave memory idle.
    """
    widths = [c for c in _COLUMNS if c * itemsize >= _ROW]
    columns = next((c for c in widths if _beyond(n, c) <= 1 / 8), min(widths, key=lambda c: _beyond(n, c)))
    columns = min(columns, _power(n))
    while _parts_of(n, columns) > _ROOM * count and 2 * columns * itemsize * _LEAST <= _BYTES:
        columns *= 2
    return min(_power(m), _BYTES // (columns * itemsize)), columns


def _own(kernel: tk.Kernel, x: Any, t: Operands) -> Callable[[], tk.DeviceOp[Any]]:
    m, n = x.shape
    count = t.torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else _MULTIPROCESSORS
    rows, columns = _tile(m, n, x.itemsize, count)
    tiles = _parts_of(m, rows)
    share = _parts_of(tiles, max(1, min(tiles, _MOST, _BUSY * count // _parts_of(n, columns)))) if tiles > _TURNS else tiles
    parts = _parts_of(tiles, share)
    y, partial = t.empty(1, n), t.empty(parts, n, dtype="float32")

    def reduced(into: Any, of: Any, share: int, tile: tuple[int, int]) -> Any:
        (rows, columns), tiles = tile, _parts_of(of.shape[0], tile[0])
        return kernel(into, of, tiles, share, rows).tile((1, columns)).occupancy(_ROOM).out()

    def op() -> tk.DeviceOp[Any]:
        if parts == 1:
            one: tk.DeviceOp[Any] = reduced(y, x, share, (rows, columns))
            return one
        few = _power(parts)  # in one tile, if it is not too narrow
        second = few, min(_power(n), max(_BYTES // (few * partial.itemsize), 8), 128)
        both: tk.DeviceOp[Any] = tk.zip(reduced(partial, x, share, (rows, columns)), reduced(y, partial, 1, second)).last()
        return both

    return op


def _problem(case: Case, t: Operands) -> Problem:
    x, torch = t.normal(*case.shape), t.torch
    reduce = torch.sum if case.kernel == "sum" else torch.amax
    return Problem(
        own=_own(_KERNELS[case.kernel], x, t),
        peers={"torch": lambda: reduce(x, 0, keepdim=True)},
        reference=lambda: reduce(x.double(), 0, keepdim=True),
        tolerance=tolerance_of(case.dtype),
    )


FAMILY = Family(summary="sums and maxima along the first axis", draw=_draw, problem=_problem)
"""See the module."""
