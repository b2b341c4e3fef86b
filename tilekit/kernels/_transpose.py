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

_SECTOR = 32  # bytes of memory that are read and written as one
_LONGEST = 1024  # side of a tile


@tk.kernel
def _transpose(y: tk.Out, x: tk.In):
    shape = (1, y.tile_shape[2], y.tile_shape[1])
    y.store(tk.transpose(tk.load(x, (tk.bid(0), tk.bid(2), tk.bid(1)), shape)))


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
    side, warps = {8: (32, 4), 4: (64, 4)}.get(x.itemsize, (128, 8))
    rows, columns = _sides(m, n, side)
    # Tiles cut sectors that rows of the result share: those are whole again where the neighbours are written soon.
    along = m * x.itemsize % _SECTOR != 0 and m > rows

    def steps(new):
        y = new(destination)
        if along:
            launch = _transpose_along(y.permute(0, 2, 1).partition((1, rows, columns)), source)
        else:
            launch = _transpose(y.partition((1, columns, rows)), source)
        yield launch.num_warps(warps)
        return shaped(y, (*batch, n, m)) if out is None else out

    return Launches(x, steps, Spec((*batch, n, m), x.dtype))


def _sides(m, n, side):
    """Rows and columns of a block's tile of a matrix of `m` x `n`: squares; of few rows or columns the more of the others."""
    rows, columns = min(side, power(m)), min(side, power(n))
    if 4 * rows <= side:
        columns = min(_LONGEST, side * side // rows, power(n))
    elif 4 * columns <= side:
        rows = min(_LONGEST, side * side // columns, power(m))
    return rows, columns
