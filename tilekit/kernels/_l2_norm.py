"""l2_norm: rows divided by their Euclidean norms.

    l2_norm(x) = x / max(sqrt(sum(x * x)), eps)

A row that fits a tile is read once and stays in registers. A longer one is read twice: for the sum, and for the result.
"""

from __future__ import annotations

import math
import numbers

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import (
    Launches,
    Operand,
    check,
    compute_dtype,
    index_dtype,
    of_parts,
    out_or_new,
    power,
    row_tile,
    rows_of,
    shaped,
    takes_rows,
)
from tilekit.kernels._norm import norm_parts
from tilekit.launch.copying import as_real
from tilekit.ops import DeviceOp

__all__ = ["l2_norm"]


@tk.kernel
def _l2_norm(y: tk.Out, x: tk.In, steepest: float, dtype: tk.Const):
    t = tk.load_tile_like(x, y).astype(dtype)
    y.store((t * tk.minimum(tk.rsqrt(tk.sum(t * t, 1, keepdims=True)), steepest)).astype(y.dtype))


@tk.kernel
def _l2_norm_long(y: tk.Out, x: tk.In, chunks: int, steepest: float, threads: tk.Const, dtype: tk.Const):
    i = tk.bid(0)
    square = tk.sum(tk.zeros(threads, dtype), (0, 2), keepdims=True)  # one for each thread, and in it
    for j in range(chunks):
        t = tk.load(x, (i, j), y.tile_shape).astype(dtype).reshape(threads)
        square = square + tk.sum(t * t, (0, 2), keepdims=True)
    r = tk.minimum(tk.rsqrt(tk.sum(square, 1)), steepest)
    for j in range(chunks):
        tk.store(y, (i, j), (tk.load(x, (i, j), y.tile_shape).astype(dtype) * r).astype(y.dtype))


@tk.kernel
def _l2_norm_joined(y: tk.Out, x: tk.In, squares: tk.In, steepest: float, parts: tk.Const):
    """Of rows whose parts other blocks have gone over."""
    square = tk.sum(tk.load(squares, (tk.bid(0), 0), (1, parts)), 1, keepdims=True)
    y.store((tk.load_tile_like(x, y).astype(squares.dtype) * tk.minimum(tk.rsqrt(square), steepest)).astype(y.dtype))


@takes_rows
def l2_norm(x: Operand, eps: float = 1e-12, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Rows divided by their Euclidean norms, along the last dimension: `x / max(sqrt(sum(x * x)), eps)`.

    Calculated in float32 (float64 in float64), where squares are infinite from 1e38 on: such a row becomes 0.

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        eps: the smallest divisor, a positive number.
        out: where the result goes, a tensor of the shape and dtype of `x`, `x` itself for one; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("l2_norm", x=x)
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real):
        raise TypeError(f"l2_norm: eps is a number, not {eps!r}")
    if not 0 < eps < math.inf:
        raise ValueError(f"l2_norm: eps is positive and finite, not {eps!r}")
    rows, dtype = rows_of("l2_norm", x), compute_dtype(x.dtype)
    tile, destination = row_tile(rows), shaped(out_or_new("l2_norm", out, x), rows.shape)
    # 1 / max(norm, eps) is min(1 / norm, 1 / eps), which divides nothing. Finite, so that a row of zeros stays one.
    steepest = 1.0 / max(as_real(eps, "l2_norm: eps"), 1e-300 if dtype == tk.float64 else 1e-38)

    parts, share = tile.parts(rows)

    def steps(new):
        y = new(destination)
        target = tile.cut(y)
        if tile.chunks == 1:
            launch = _l2_norm(target, rows, steepest, dtype)
        elif parts > 1:
            n, shape = rows.shape[1], (1, tile.columns)
            means, squares = (of_parts(new, rows.shape[0], parts, dtype) for _ in range(2))
            cuts, threads = (means.partition((1, 1)), squares.partition((1, 1))), tile.threads(rows, destination)
            yield tile.launch(norm_parts(*cuts, rows, tile.chunks, share, n, shape, threads, False, index_dtype(n)))
            launch = _l2_norm_joined(y.partition(shape), rows, squares, steepest, power(parts))
        else:
            launch = _l2_norm_long(target, rows, tile.chunks, steepest, tile.threads(rows, destination), dtype)
        yield tile.launch(launch)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)
