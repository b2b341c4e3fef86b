"""Dropout (Srivastava and others, 2014): each element is zero with probability p, the others grow by 1 / (1 - p).

The random numbers are a function of the seed and the element's place (Philox, see `tk.rand`). So nothing has to be kept for the
gradient: with the same seed it drops the same elements.
"""

from __future__ import annotations

import numpy as np

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import Launches, Operand, check, compute_dtype, flat, out_or_new, shaped, takes_ops
from tilekit.kernels._tiles import flat_tile
from tilekit.ops import DeviceOp

__all__ = ["dropout", "dropout_backward"]


@tk.kernel
def _dropout(y: tk.Out, x: tk.In, seed: int, p: float, scale: float, tile: tk.Const, dtype: tk.Const):
    index = tk.arange(tile, dtype=tk.int64, start=tk.bid(0) * tile)
    t = tk.load_tile_like(x, y).astype(dtype)
    y.store(tk.where(tk.rand(seed, index) >= p, t * scale, 0.0).astype(y.dtype))


@takes_ops
def dropout(x: Operand, p: float, seed: int, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Zero each element with probability `p`, and multiply the others by `1 / (1 - p)`.

    Which elements are dropped depends on the seed and their index in C order, and on nothing else: element `i` where element `i`
    of `api.rand(x.size, seed)` is less than `p`.

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        p: the probability, 0 <= p <= 1.
        seed: 0 <= seed < 2**64; another one for each call, or else the same elements are dropped.
        out: where the result goes, a contiguous tensor of the same shape and dtype, `x` itself for one; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    return _dropped("dropout", x, p, seed, out)


@takes_ops
def dropout_backward(grad: Operand, p: float, seed: int, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `dropout` by its argument: the same elements of `grad` dropped, the others grown. Arguments as there."""
    return _dropped("dropout_backward", grad, p, seed, out)


def _dropped(name, x, p, seed, out):
    check(name, x=x)
    if isinstance(p, bool) or not isinstance(p, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: p is a number, not {type(p).__name__}")
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p is a probability, from 0 to 1, not {p!r}")
    if type(seed) is not int:
        raise TypeError(f"{name}: a seed is an int, not {seed!r}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"{name}: a seed is at least 0 and below 2**64, not {seed!r}")
    destination, tile = shaped(out_or_new(name, out, x), (x.size,)), flat_tile(x)
    signed = seed - 2**64 if seed >= 2**63 else seed  # the same 64 bits
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0

    def steps(new):
        y = new(destination)
        yield _dropout(y.partition(tile), flat(x), signed, float(p), scale, tile, compute_dtype(x.dtype))
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)
