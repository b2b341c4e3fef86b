"""The family `losses`: cross-entropy and its gradient."""

from __future__ import annotations

from typing import Any

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_REDUCTIONS = ("mean", "sum", "none")
_LAYOUTS = {CONTIGUOUS: 0.7, "rows with gaps": 0.3}


def _draw(d: Draw) -> Case:
    kernel, dtype = d.one_of(("cross_entropy", "cross_entropy_backward")), d.dtype()
    width = (2 if kernel.endswith("backward") else 1) * width_of(dtype)
    shape, layout, options = d.rows(width, _LAYOUTS)
    nbytes = shape[0] * shape[1] * width + 12 * shape[0]
    reduction = d.one_of(_REDUCTIONS)
    return d.case(kernel=kernel, dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, reduction=reduction, **options)


def _problem(case: Case, t: Operands) -> Problem:
    torch, reduction = t.torch, case.options["reduction"]
    x = t.normal(*case.shape)
    m, n = case.shape
    target = t.integers(0, n, m)
    loss = torch.nn.functional.cross_entropy
    if case.kernel == "cross_entropy":
        triton = ("cross_entropy", {"x": x, "target": target}, t.empty(m, dtype="float32")) if reduction == "none" else None
        return Problem(
            own=lambda: kernels.cross_entropy(x, target, reduction=reduction).first(),
            peers={"torch": lambda: loss(x, target, reduction=reduction)},
            reference=lambda: loss(x.double(), target, reduction=reduction),
            tolerance=tolerance_of("float32"),
            peers_tolerance=2 * tolerance_of(case.dtype),  # which theirs is rounded to
            triton=triton,
        )
    out = t.empty(m, n)
    grad = t.vector(m, "float32") if reduction == "none" else torch.ones((), device=t.device)
    lse = torch.logsumexp(x.float(), -1)
    # As autograd has it: the forward pass has kept the logarithms of the weights.
    code = {"none": 0, "mean": 1, "sum": 2}[reduction]
    kept = torch.log_softmax(x, -1)
    whole = torch.tensor(float(m), device=t.device, dtype=kept.dtype)
    theirs = grad.to(kept.dtype)

    def gradient() -> Any:
        of_kept = torch.ops.aten.nll_loss_backward(theirs, kept, target, None, code, -100, whole)
        return torch.ops.aten._log_softmax_backward_data(of_kept, kept, -1, x.dtype)

    def right() -> Any:
        p = torch.softmax(x.double(), -1)
        p[torch.arange(m, device=t.device), target] -= 1
        factor = grad.double()[:, None] if reduction == "none" else 1.0 / (m if reduction == "mean" else 1)
        return p * factor

    return Problem(
        own=lambda: kernels.cross_entropy_backward(grad, x, target, lse, reduction=reduction, out=out),
        peers={"torch": gradient},
        reference=right,
        tolerance=tolerance_of(case.dtype),
    )


FAMILY = Family(summary="cross-entropy and its gradient", draw=_draw, problem=_problem)
"""See the module."""
