"""Activation functions of neural networks, each element by itself, and their gradients.

    gelu(x) = x * (1 + erf(x / sqrt(2))) / 2, or with tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)) in the place of erf
                                                                                      (Hendrycks and Gimpel, 2016)
    silu(x) = x * sigmoid(x)                                                          (Elfwing, Uchibe and Doya, 2017)
    swiglu(gate, up) = silu(gate) * up                                                (Shazeer, 2020)

Blocks have as many elements as keep the memory busy, in one dimension: the shape of the tensors does not matter. Where there are
gaps between rows, tiles have rows, and tensors are read and written as they lie.
"""

from __future__ import annotations

import tilekit as tk
from tilekit._tensor.tensor import Tensor
from tilekit.kernels._host import Launches, Operand, check, check_choice, compute_dtype, out_or_new, same_shape, shaped, takes_ops
from tilekit.kernels._tiles import joined
from tilekit.ops import DeviceOp, Spec

__all__ = ["gelu", "gelu_backward", "silu", "silu_backward", "swiglu", "swiglu_backward"]


@tk.function
def _twice(t):
    """2 * sqrt(2 / pi) * (t + 0.044715 * t**3): of its half, tanh is 2 * sigmoid(...) - 1, which takes one exponential."""
    return t * (1.5957691216057308 + 0.07135481627260025 * t * t)


@tk.function
def _bell(t):
    """exp(-t**2 / 2), by one approximate exponential."""
    return tk.exp2(-0.7213475204444817 * t * t, flush_to_zero=True)


@tk.function
def _below(t, bell):
    """The part of a normal distribution below `t`, (1 + erf(t / sqrt(2))) / 2, given `_bell(t)`.

    Of its tail a polynomial of r = 1 / (1 + 0.306 * abs(t)) times the bell, fitted to the least relative error: 3.2e-6.
    """
    r = tk.truediv(1.0, 1.0 + 0.306 * abs(t), rounding_mode="approx")
    by_bell = 0.12240812 + r * (0.11708873 + r * (0.14049598 + r * (-0.0026852399 + r * (0.19990345 - 0.077212595 * r))))
    tail = r * bell * by_bell
    return tk.where(t > 0.0, 1.0 - tail, tail)


@tk.kernel
def _gelu(y: tk.Out, x: tk.In, tanh: tk.Const, dtype: tk.Const):
    t = tk.load_tile_like(x, y).astype(dtype)
    if tanh:
        y.store((t * tk.sigmoid(_twice(t))).astype(y.dtype))
    elif dtype != y.dtype:  # of 16 bits, in which nobody sees the difference
        y.store((t * _below(t, _bell(t))).astype(y.dtype))
    else:
        y.store((0.5 * t * (1.0 + tk.erf(t * 0.7071067811865476))).astype(y.dtype))


@tk.kernel
def _gelu_backward(dx: tk.Out, dy: tk.In, x: tk.In, tanh: tk.Const, dtype: tk.Const):
    g, t = tk.load_tile_like(dy, dx).astype(dtype), tk.load_tile_like(x, dx).astype(dtype)
    if tanh:
        s = tk.sigmoid(_twice(t))
        slope = s + t * s * (1.0 - s) * (1.5957691216057308 + 0.21406444881780076 * t * t)
    elif dtype != dx.dtype:
        bell = _bell(t)
        slope = _below(t, bell) + 0.3989422804014327 * t * bell
    else:
        density = 0.3989422804014327 * tk.exp(-0.5 * t * t)
        slope = 0.5 * (1.0 + tk.erf(t * 0.7071067811865476)) + t * density
    dx.store((g * slope).astype(dx.dtype))


@tk.kernel
def _silu(y: tk.Out, x: tk.In, dtype: tk.Const):
    t = tk.load_tile_like(x, y).astype(dtype)
    y.store((t * tk.sigmoid(t)).astype(y.dtype))


@tk.kernel
def _silu_backward(dx: tk.Out, dy: tk.In, x: tk.In, dtype: tk.Const):
    g, t = tk.load_tile_like(dy, dx).astype(dtype), tk.load_tile_like(x, dx).astype(dtype)
    s = tk.sigmoid(t)
    dx.store((g * s * (1.0 + t * (1.0 - s))).astype(dx.dtype))


@tk.kernel
def _swiglu(y: tk.Out, gate: tk.In, up: tk.In, dtype: tk.Const):
    t, u = tk.load_tile_like(gate, y).astype(dtype), tk.load_tile_like(up, y).astype(dtype)
    y.store((t * tk.sigmoid(t) * u).astype(y.dtype))


@tk.kernel
def _swiglu_backward(dgate: tk.Out, dup: tk.Out, dy: tk.In, gate: tk.In, up: tk.In, dtype: tk.Const):
    g = tk.load_tile_like(dy, dup).astype(dtype)
    t, u = tk.load_tile_like(gate, dup).astype(dtype), tk.load_tile_like(up, dup).astype(dtype)
    s = tk.sigmoid(t)
    dup.store((g * t * s).astype(dup.dtype))
    dgate.store((g * u * s * (1.0 + t * (1.0 - s))).astype(dgate.dtype))


@takes_ops
def gelu(x: Operand, *, approximate: str = "none", out: Tensor | None = None) -> DeviceOp[Tensor]:
    """gelu of each element, calculated in float32 (float64 in float64).

    Args:
        x: a tensor of float16, bfloat16, float32 or float64; or an op that produces one.
        approximate: `"none"`, with erf; or `"tanh"`.
        out: where the result goes, a tensor of the same shape and dtype, contiguous or with gaps between rows, `x` itself for
            one; by default a new one.

    Returns:
        An op whose result is a tensor of the shape and dtype of `x`.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("gelu", x=x)
    tanh = _form("gelu", approximate)
    return _elementwise("gelu", out, (x,), lambda y, x: _gelu(y, x, tanh, compute_dtype(x.dtype)))


@takes_ops
def gelu_backward(grad: Operand, x: Operand, *, approximate: str = "none", out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `gelu` by its argument.

    Args:
        grad: the gradient by the result, of the shape and dtype of `x`.
        x, approximate: what `gelu` was given.
        out: where the gradient goes; by default a new tensor.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("gelu_backward", grad=grad, x=x)
    same_shape("gelu_backward", x=x, grad=grad)
    tanh = _form("gelu_backward", approximate)
    dtype = compute_dtype(x.dtype)
    return _elementwise("gelu_backward", out, (x, grad), lambda dx, x, grad: _gelu_backward(dx, grad, x, tanh, dtype))


@takes_ops
def silu(x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """silu of each element; arguments, result and errors as for `gelu`."""
    check("silu", x=x)
    return _elementwise("silu", out, (x,), lambda y, x: _silu(y, x, compute_dtype(x.dtype)))


@takes_ops
def silu_backward(grad: Operand, x: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """The gradient of `silu` by its argument; as `gelu_backward`."""
    check("silu_backward", grad=grad, x=x)
    same_shape("silu_backward", x=x, grad=grad)
    dtype = compute_dtype(x.dtype)
    return _elementwise("silu_backward", out, (x, grad), lambda dx, x, grad: _silu_backward(dx, grad, x, dtype))


@takes_ops
def swiglu(gate: Operand, up: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """`silu(gate) * up` for each element of two tensors of one shape and dtype; otherwise as `gelu`."""
    check("swiglu", gate=gate, up=up)
    same_shape("swiglu", gate=gate, up=up)
    dtype = compute_dtype(gate.dtype)
    return _elementwise("swiglu", out, (gate, up), lambda y, gate, up: _swiglu(y, gate, up, dtype))


@takes_ops
def swiglu_backward(grad: Operand, gate: Operand, up: Operand) -> DeviceOp[tuple[Tensor, ...]]:
    """The gradients of `swiglu` by `gate` and `up`, as a tuple.

    Args:
        grad: the gradient by the result.
        gate, up: what `swiglu` was given.

    Raises:
        TypeError, ValueError: other arguments.
    """
    check("swiglu_backward", grad=grad, gate=gate, up=up)
    same_shape("swiglu_backward", gate=gate, up=up, grad=grad)
    tile, like, operands = joined(Spec(gate.shape, gate.dtype), grad, gate, up)

    def steps(new):
        dgate, dup = new(like), new(like)
        yield _swiglu_backward(dgate.partition(tile), dup.partition(tile), *operands, compute_dtype(gate.dtype))
        return shaped(dgate, gate.shape), shaped(dup, gate.shape)

    return Launches(gate, steps)


def _form(name, approximate):
    check_choice(name, "approximate", approximate, ("none", "tanh"))
    return approximate == "tanh"


def _elementwise(name, out, operands, launch):
    """The op whose result is `out`, or new and like the first operand: what `launch` writes to a partition of the result, given
    views of the operands."""
    x = operands[0]
    tile, destination, views = joined(out_or_new(name, out, x), *operands)

    def steps(new):
        y = new(destination)
        yield launch(y.partition(tile), *views)
        return shaped(y, x.shape) if out is None else out

    return Launches(x, steps, x)
