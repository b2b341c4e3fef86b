"""Rotary position embedding (Su and others, "RoFormer", 2021), in the form of GPT-NeoX and Llama.

The first half `a` and the second half `b` of each head's vector are the two coordinates of points, which are turned by an angle
that depends on the position and the place in the half:  (a, b) becomes (a * cos - b * sin, b * cos + a * sin).
"""

from __future__ import annotations

import math

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import Launches, Operand, check, compute_dtype, on_cpu, out_or_new, power, shaped, takes_ops
from tilekit.ops import DeviceOp

__all__ = ["rope", "rope_backward"]


@tk.kernel
def _rope(y: tk.Out, x: tk.In, cos: tk.In, sin: tk.In, back: tk.Const, dtype: tk.Const):
    # Dimensions: token, head, half, place in the half. The first two share an axis of the grid.
    tokens, heads, _, half = y.tile_shape
    groups = tk.cdiv(x.shape[1], heads)
    token, group = tk.bid(0) // groups, tk.bid(0) % groups
    position = token % tk.cdiv(cos.shape[0], tokens)
    a = tk.load(x, (token, group, 0, 0), (tokens, heads, 1, half)).astype(dtype)
    b = tk.load(x, (token, group, 1, 0), (tokens, heads, 1, half)).astype(dtype)
    c = tk.load(cos, (position, 0), (tokens, half)).astype(dtype).reshape((tokens, 1, 1, half))
    s = tk.load(sin, (position, 0), (tokens, half)).astype(dtype).reshape((tokens, 1, 1, half))
    if back:
        s = -s
    y.store(tk.cat((a * c - b * s, b * c + a * s), 2).astype(y.dtype))


@tk.kernel
def _rope_of_halves(y: tk.Out, x: tk.In, cos: tk.In, sin: tk.In, back: tk.Const, once: tk.Const, dtype: tk.Const):
    """Of heads whose half is a tile: nothing is left over, and a dimension less. Dimensions: head, token, place; the angles have
    these, too, and lie there once for all heads. `once` says that each position has one token."""
    heads, tokens, size = y.tile_shape
    group, token, shape = tk.bid(0), tk.bid(1), (heads, tokens, size // 2)
    position = token if once else token % tk.cdiv(cos.shape[1], tokens)
    a, b = tk.load(x, (group, token, 0), shape).astype(dtype), tk.load(x, (group, token, 1), shape).astype(dtype)
    c, s = tk.load(cos, (group, position, 0), shape).astype(dtype), tk.load(sin, (group, position, 0), shape).astype(dtype)
    if back:
        s = -s
    y.store(tk.cat((a * c - b * s, b * c + a * s), 2).astype(y.dtype))


@takes_ops
def rope(x: Operand, cos: Operand, sin: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """Turn the vectors of each head by the angles of their position.

    Args:
        x: a tensor of shape `(..., positions, heads, size)`, of an even size; of float16, bfloat16, float32 or float64.
        cos, sin: of the angles: tensors of shape `(positions, size // 2)`, of any of these dtypes that is no wider than what is
            calculated in (float32, and float64 for float64).
        out: where the result goes, a tensor of the same shape and dtype; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    return _turned("rope", x, cos, sin, out, False)


@takes_ops
def rope_backward(grad: Operand, cos: Operand, sin: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `rope` by `x`: the gradient by its result, turned back."""
    return _turned("rope_backward", grad, cos, sin, out, True)


def _turned(name, x, cos, sin, out, back):
    check(name, x=x, cos=cos, sin=sin)
    if len(x.shape) < 3 or x.shape[-1] % 2:
        raise ValueError(f"{name}: x has shape {x.shape}; it takes (..., positions, heads, size) with an even size")
    *batch, positions, heads, size = x.shape
    for what, tensor in (("cos", cos), ("sin", sin)):
        if tensor.shape != (positions, size // 2):
            raise ValueError(f"{name}: {what} has shape {tensor.shape}; x of shape {x.shape} needs {(positions, size // 2)}")
    tokens, half = math.prod(batch) * positions, power(size // 2)
    halves = 2 * half == size and not on_cpu(x)
    split = (tokens, heads, size) if halves else (tokens, heads, 2, size // 2)
    destination, source, dtype = shaped(out_or_new(name, out, x), split), shaped(x, split), compute_dtype(x.dtype)
    limit = max(1, (1 << 15 if on_cpu(x) else 2048) // half)
    group = _together(heads, limit)
    # Of few heads a tile has several tokens, whose positions follow each other: in a batch those of one sequence.
    following = power(positions) if tokens == positions else positions & -positions
    together = min(limit // group, following)

    def steps(new):
        y = new(destination)
        if halves:
            views = [Tensor(t.storage, (heads, *t.shape), t.dtype, (0, *t.strides), t.offset) for t in (cos, sin)]
            cut = y.permute(1, 0, 2).partition((group, together, size))  # blocks of the same tokens follow each other
            yield _rope_of_halves(cut, source.permute(1, 0, 2), *views, back, tokens == positions, dtype)
        else:
            yield _rope(y.partition((together, group, 2, half)), source, cos, sin, back, dtype)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)


def _together(heads: int, limit: int) -> int:
    """How many heads a tile has: those that are none cost as much as others, and fewer at a time read the angles again."""
    sizes = [1 << bit for bit in range(min(power(heads), limit).bit_length())]
    return min(sizes, key=lambda size: -(-heads // size) * (4 * size + 1))
