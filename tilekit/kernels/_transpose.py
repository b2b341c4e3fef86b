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


@tk.kernel
def _transpose(y: tk.Out, x: tk.In):
    shape = (1, y.tile_shape[2], y.tile_shape[1])
    y.store(tk.transpose(tk.load(x, (tk.bid(0), tk.bid(2), tk.bid(1)), shape)))


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
    tile = (1, min(side, power(n)), min(side, power(m)))

    def steps(new):
        y = new(destination)
        yield _transpose(y.partition(tile), source).num_warps(warps)
        return shaped(y, (*batch, n, m)) if out is None else out

    return Launches(x, steps, Spec((*batch, n, m), x.dtype))
