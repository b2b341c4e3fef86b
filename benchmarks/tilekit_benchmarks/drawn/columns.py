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
_COLUMNS, _BYTES = 128, 16 << 10  # of a tile: no more columns than the matrix has, as a power of two
_BLOCKS = 512  # keep a GPU busy: where there are few columns, the rows are dealt out to several


def _draw(d: Draw) -> Case:
    dtype = d.dtype()
    shape, layout, options = d.rows(width_of(dtype), _LAYOUTS)
    nbytes = (shape[0] + 1) * shape[1] * width_of(dtype)
    return d.case(kernel=d.one_of(list(_KERNELS)), dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, **options)


def _parts_of(extent: int, size: int) -> int:
    return -(-extent // size)


def _own(kernel: tk.Kernel, x: Any, t: Operands) -> Callable[[], tk.DeviceOp[Any]]:
    m, n = x.shape
    columns = min(_COLUMNS, 1 << (n - 1).bit_length())
    rows = _BYTES // (columns * x.itemsize)
    tiles = _parts_of(m, rows)
    share = _parts_of(tiles, max(1, min(tiles, _BLOCKS // _parts_of(n, columns))))
    parts = _parts_of(tiles, share)
    y, partial = t.empty(1, n), t.empty(parts, n, dtype="float32")

    def reduced(into: Any, of: Any, tiles: int, share: int) -> Any:
        return kernel(into, of, tiles, share, rows).tile((1, columns)).out()

    def op() -> tk.DeviceOp[Any]:
        if parts == 1:
            one: tk.DeviceOp[Any] = reduced(y, x, tiles, tiles)
            return one
        few = _parts_of(parts, rows)
        both: tk.DeviceOp[Any] = tk.zip(reduced(partial, x, tiles, share), reduced(y, partial, few, few)).last()
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
