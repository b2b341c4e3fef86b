"""A transposed copy of a matrix.

A block reads a square and writes it turned. Both sides are accessed 16 bytes a thread, with neighbours next to each other: the
elements change places between the two, in shared memory, so that no two threads want the same bank at a time.
"""

from __future__ import annotations

import math

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import Launches, Operand, a_tensor, out_or_new, power, shaped, takes_ops
from tilekit.ops import DeviceOp, Spec

__all__ = ["transpose"]

_LINE = 128  # bytes that the L2 cache keeps together
_LONGEST = 1024  # side of a tile
# Rows and columns of a tile and warps of its block, by the bytes of an element; and where rows are no whole number of 16 bytes.
# (382 x 141817 float32 in squares of 64 takes 149 us on an H200, so 123; 189861 x 665 393 and 320.)
_TILES = {8: (32, 32, 4), 4: (64, 64, 4)}
_BEGINNING_ANYWHERE = {8: (32, 32, 4), 4: (128, 64, 8)}
_OTHERS = (128, 128, 8)


@tk.kernel
def _transpose(y: tk.Out, x: tk.In):
    """Of matrices along the last dimension; blocks that follow each other read along the rows of `x`."""
    shape = (y.tile_shape[1], y.tile_shape[0], 1)
    y.store(tk.transpose(tk.load(x, (tk.bid(1), tk.bid(0), tk.bid(2)), shape), 0, 1))


@tk.kernel
def _transpose_along(y: tk.Out, x: tk.In):
    """As `_transpose`, of a `y` with the dimensions of `x`: blocks that follow each other write along the rows of the result."""
    y.store(tk.load_tile_like(x, y))


@takes_ops
def transpose(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """A copy of `x` with its last two dimensions exchanged, contiguous. (`x.permute(...)` is a view, and copies nothing.)

    Args:
        x: a tensor of two dimensions or more, of any dtype; or an op that produces one.
        out: where the result goes; by default a new tensor.

    Returns:
        An op whose result is a tensor of the shape of `x` with the last two extents exchanged.

    Raises:
        TypeError, ValueError: other arguments.
    """
    a_tensor("transpose", x=x)
    if len(x.shape) < 2:
        raise ValueError(f"transpose: a tensor of shape {x.shape} has no two dimensions to exchange")
    *batch, m, n = x.shape
    count = math.prod(batch)
    destination = shaped(out_or_new("transpose", out, x, (*batch, n, m)), (count, n, m))
    source = shaped(x, (count, m, n))
    rows, columns, warps, along = _plan(m, n, x.itemsize)

    def steps(new):
        y, matrices = new(destination), source.permute(1, 2, 0)  # a grid has the fastest dimension first, and batches last
        if along:
            launch = _transpose_along(y.permute(2, 1, 0).partition((rows, columns, 1)), matrices)
        else:
            launch = _transpose(y.permute(1, 2, 0).partition((columns, rows, 1)), matrices)
        yield launch.num_warps(warps)
        return shaped(y, (*batch, n, m)) if out is None else out

    return Launches(x, steps, Spec((*batch, n, m), x.dtype))


def _plan(m, n, itemsize):
    """Rows and columns of a block's tile of a matrix of `m` x `n`, its warps, and whether blocks go along the rows of the result.

    Tiles cut lines that rows share, of the matrix or of the result. Those are whole again, in the L2 cache, where the neighbour
    comes soon: along the rows of the result, if only these are cut; of both, along the side that has fewer tiles.
    """
    ragged = any(extent * itemsize % 16 for extent in (m, n))
    high, wide, warps = (_BEGINNING_ANYWHERE if ragged else _TILES).get(itemsize, _OTHERS)
    rows, columns = _sides(m, n, high, wide)
    of_source, of_result = (extent * itemsize % _LINE != 0 for extent in (n, m))
    along = m > rows and of_result and (not of_source or -(-m // rows) <= -(-n // columns))
    return rows, columns, warps, along


def _sides(m, n, high, wide):
    """Rows and columns of a block's tile of a matrix of `m` x `n`: `high` and `wide`; of few of the one the more of the other."""
    rows, columns = min(high, power(m)), min(wide, power(n))
    if 4 * rows <= high:
        columns = min(_LONGEST, high * wide // rows, power(n))
    elif 4 * columns <= wide:
        rows = min(_LONGEST, high * wide // columns, power(m))
    return rows, columns
