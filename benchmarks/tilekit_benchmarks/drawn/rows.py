"""The family `rows`: softmax, log_softmax, norms along the last dimension, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_RMS_EPS, _EPS = 1e-6, 1e-5
_TRITON = ("softmax", "rms_norm", "layer_norm")
# These give several results, for which they have no `out`.
_SEVERAL = ("add_rms_norm", "rms_norm_backward", "layer_norm_backward")


class _Rows(NamedTuple):
    """A kernel of the family.

    Attributes:
        tensors: how many tensors of the shape a launch reads and writes.
        inputs: what it takes: "x", "g" (a gradient), "r" (a residual), "y" (the result of `before`), "w" and "b" (vectors).
        own, torch: tilekit's op and PyTorch's function, of `(torch, *inputs)` the second.
        right: the same in float64, of `(torch, *inputs)`.
        before: what gives "y", of `(torch, x)`.
    """

    tensors: int
    inputs: str
    own: Callable[..., Any]
    torch: Callable[..., Any]
    right: Callable[..., Any]
    before: Callable[[Any, Any], Any] | None = None


def _rms(torch: Any, x: Any, w: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps=_RMS_EPS)


def _centred(torch: Any, x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, eps=_EPS)


def _added(torch: Any, x: Any, r: Any, w: Any) -> Any:
    h = x + r
    return _rms(torch, h, w), h


def _rms_gradients(torch: Any, g: Any, x: Any, w: Any) -> Any:
    leaves = [tensor.detach().requires_grad_() for tensor in (x, w)]
    y = _rms(torch, *leaves)
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def _centred_gradients(torch: Any, g: Any, x: Any, w: Any) -> Any:
    b = torch.zeros_like(w)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, x.shape[-1:], w, b, _EPS)
    return lambda: torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, b, [True, True, True])


def _normed(x: Any, eps: float, centred: bool) -> tuple[Any, Any]:
    t = x - x.mean(-1, keepdim=True) if centred else x
    rstd = (t.square().mean(-1, keepdim=True) + eps).rsqrt()
    return t * rstd, rstd


def _right_gradients(g: Any, x: Any, w: Any, eps: float, centred: bool) -> tuple[Any, ...]:
    t, rstd = _normed(x, eps, centred)
    over = tuple(range(x.ndim - 1))
    h = g * w
    dx = h - t * (h * t).mean(-1, keepdim=True)
    if not centred:
        return dx * rstd, (g * t).sum(over)
    return (dx - h.mean(-1, keepdim=True)) * rstd, (g * t).sum(over), g.sum(over)


_KERNELS = {
    "softmax": _Rows(2, "x", kernels.softmax, lambda torch, x: torch.softmax(x, -1), lambda torch, x: torch.softmax(x, -1)),
    "log_softmax": _Rows(
        2, "x", kernels.log_softmax, lambda torch, x: torch.log_softmax(x, -1), lambda torch, x: torch.log_softmax(x, -1)
    ),
    "softmax_backward": _Rows(
        3, "gy", kernels.softmax_backward,
        lambda torch, g, y: torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype),
        lambda torch, g, y: y * (g - (g * y).sum(-1, keepdim=True)), lambda torch, x: torch.softmax(x, -1),
    ),
    "log_softmax_backward": _Rows(
        3, "gy", kernels.log_softmax_backward,
        lambda torch, g, y: torch.ops.aten._log_softmax_backward_data(g, y, -1, y.dtype),
        lambda torch, g, y: g - y.exp() * g.sum(-1, keepdim=True), lambda torch, x: torch.log_softmax(x, -1),
    ),
    "rms_norm": _Rows(
        2, "xw", lambda x, w, out: kernels.rms_norm(x, w, _RMS_EPS, out=out), _rms,
        lambda torch, x, w: _normed(x, _RMS_EPS, False)[0] * w
    ),
    "layer_norm": _Rows(
        2, "xwb", lambda x, w, b, out: kernels.layer_norm(x, w, b, _EPS, out=out), _centred,
        lambda torch, x, w, b: _normed(x, _EPS, True)[0] * w + b,
    ),
    "add_rms_norm": _Rows(
        4, "xrw", lambda x, r, w: kernels.add_rms_norm(x, r, w, _RMS_EPS), _added,
        lambda torch, x, r, w: (_normed(x + r, _RMS_EPS, False)[0] * w, x + r),
    ),
    "l2_norm": _Rows(
        2, "x", kernels.l2_norm, lambda torch, x: torch.nn.functional.normalize(x, dim=-1),
        lambda torch, x: x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12),
    ),
    "rms_norm_backward": _Rows(
        3, "gxw", lambda g, x, w: kernels.rms_norm_backward(g, x, w, _RMS_EPS), _rms_gradients,
        lambda torch, g, x, w: _right_gradients(g, x, w, _RMS_EPS, False),
    ),
    "layer_norm_backward": _Rows(
        3, "gxw", lambda g, x, w: kernels.layer_norm_backward(g, x, w, _EPS), _centred_gradients,
        lambda torch, g, x, w: _right_gradients(g, x, w, _EPS, True),
    ),
}  # fmt: skip


def _draw(d: Draw) -> Case:
    kernel, dtype = d.one_of(list(_KERNELS)), d.dtype()
    width = _KERNELS[kernel].tensors * width_of(dtype)
    shape, layout, options = d.rows(width)
    nbytes = width
    for extent in shape:
        nbytes *= extent
    return d.case(kernel=kernel, dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, **options)


def _problem(case: Case, t: Operands) -> Problem:
    kernel, torch = _KERNELS[case.kernel], t.torch
    tensors = []
    for letter in kernel.inputs:
        tensor = t.vector(case.shape[-1]) if letter in "wb" else t.normal(*case.shape)
        if letter == "y":
            assert kernel.before is not None, "it says what y is"
            tensor.copy_(kernel.before(torch, tensor.float()))
        tensors.append(tensor)
    call: Callable[[], Any] = lambda: kernel.torch(torch, *tensors)  # noqa: E731
    if case.kernel in ("rms_norm_backward", "layer_norm_backward"):  # the forward pass is not what is measured
        call = kernel.torch(torch, *tensors)
    options = {} if case.kernel in _SEVERAL else {"out": t.empty(*case.shape)}
    triton = None
    if case.kernel in _TRITON and case.layout in (CONTIGUOUS, "rows with gaps"):
        names = {"x": "x", "w": "weight", "b": "bias"}
        inputs = {names[letter]: tensor for letter, tensor in zip(kernel.inputs, tensors)}
        # A kernel writes rows that lie as those that it reads.
        triton = case.kernel, inputs, t.normal(*case.shape)
    return Problem(
        own=lambda: kernel.own(*tensors, **options),
        peers={"torch": call},
        reference=lambda: kernel.right(torch, *(tensor.double() for tensor in tensors)),
        tolerance=tolerance_of(case.dtype),
        triton=triton,
    )


FAMILY = Family(summary="softmax, log_softmax, norms, and their gradients", draw=_draw, problem=_problem)
"""See the module."""
