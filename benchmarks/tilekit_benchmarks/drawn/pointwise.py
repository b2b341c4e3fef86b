"""The family `pointwise`: activations, gated ones, rotary embeddings, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_SIZES = (64, 128)  # of the heads of rotary embeddings


class _Pointwise(NamedTuple):
    """A kernel of the family.

    Attributes:
        inputs: how many tensors it takes.
        results: how many it gives.
        own, torch: tilekit's op and PyTorch's function, of `(torch, *inputs)` the second, which gives what is right in float64.
    """

    inputs: int
    results: int
    own: Callable[..., Any]
    torch: Callable[..., Any]


def _swiglu_gradients(torch: Any, g: Any, gate: Any, up: Any) -> Any:
    return torch.ops.aten.silu_backward(g * up, gate), g * torch.nn.functional.silu(gate)


def _turned(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    c, s = (angle[:, None, :].to(x.dtype) for angle in (cos, sin))
    return torch.cat((a * c - b * s, b * c + a * s), -1)


_KERNELS = {
    "gelu": _Pointwise(1, 1, kernels.gelu, lambda torch, x: torch.nn.functional.gelu(x)),
    "gelu tanh": _Pointwise(
        1,
        1,
        lambda x, out: kernels.gelu(x, approximate="tanh", out=out),
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "gelu_backward": _Pointwise(2, 1, kernels.gelu_backward, lambda torch, g, x: torch.ops.aten.gelu_backward(g, x)),
    "silu": _Pointwise(1, 1, kernels.silu, lambda torch, x: torch.nn.functional.silu(x)),
    "silu_backward": _Pointwise(2, 1, kernels.silu_backward, lambda torch, g, x: torch.ops.aten.silu_backward(g, x)),
    "swiglu": _Pointwise(2, 1, kernels.swiglu, lambda torch, gate, up: torch.nn.functional.silu(gate) * up),
    "swiglu_backward": _Pointwise(3, 2, kernels.swiglu_backward, _swiglu_gradients),
    "rope": _Pointwise(1, 1, kernels.rope, _turned),
    "rope_backward": _Pointwise(1, 1, kernels.rope_backward, lambda torch, g, cos, sin: _turned(torch, g, cos, -sin)),
}


def _draw(d: Draw) -> Case:
    kernel, dtype = d.one_of(list(_KERNELS)), d.dtype()
    width = (_KERNELS[kernel].inputs + _KERNELS[kernel].results) * width_of(dtype)
    if kernel.startswith("rope"):
        size = d.one_of(_SIZES)
        positions, heads = d.matrix(width * size, (1, 64))
        return d.case(kernel=kernel, dtype=dtype, shape=(positions, heads, size), nbytes=positions * heads * size * width)
    shape, layout, options = d.rows(width)
    return d.case(kernel=kernel, dtype=dtype, shape=shape, layout=layout, nbytes=math.prod(shape) * width, **options)


def _problem(case: Case, t: Operands) -> Problem:
    kernel, torch = _KERNELS[case.kernel], t.torch
    tensors = [t.normal(*case.shape) for _ in range(kernel.inputs)]
    if case.kernel.startswith("rope"):
        positions, _, size = case.shape
        angles = t.normal(positions, size // 2, dtype="float32")
        tensors += [angles.cos(), angles.sin()]
    options = {"out": t.empty(*case.shape)} if kernel.results == 1 else {}
    triton = None
    if case.kernel == "gelu" and case.layout == CONTIGUOUS:
        triton = "gelu", {"x": tensors[0]}, t.empty(*case.shape)
    return Problem(
        own=lambda: kernel.own(*tensors, **options),
        peers={"torch": lambda: kernel.torch(torch, *tensors)},
        reference=lambda: kernel.torch(torch, *(tensor.double() for tensor in tensors)),
        tolerance=tolerance_of(case.dtype),
        triton=triton,
    )


FAMILY = Family(summary="activations, gated ones, rotary embeddings, and their gradients", draw=_draw, problem=_problem)
"""See the module."""
