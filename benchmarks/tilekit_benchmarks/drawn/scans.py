"""The family `scans`: sums of each element and all before it."""

from __future__ import annotations

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_DTYPES = {"float32": 2.0, "float16": 1.0, "bfloat16": 1.0, "int64": 0.5, "int32": 0.5}
_SPREAD = 1000  # of integers


def _draw(d: Draw) -> Case:
    dtype = d.dtype(_DTYPES)
    return d.copied("cumsum", dtype, width_of(dtype))


def _problem(case: Case, t: Operands) -> Problem:
    torch = t.torch
    x = t.normal(*case.shape, dtype="float32") if "int" in case.dtype else t.normal(*case.shape)
    if "int" in case.dtype:
        x = x.mul_(_SPREAD).to(t.dtype())  # the strides stay
    floats = x.dtype.is_floating_point
    wide = torch.float64 if floats else torch.int64
    out = t.empty(*case.shape)
    triton = None
    if floats and case.layout in (CONTIGUOUS, "rows with gaps"):
        triton = "cumsum", {"x": x}, t.normal(*case.shape)
    return Problem(
        own=lambda: kernels.cumsum(x, out=out),
        # Of integers PyTorch makes 64 bits, unless it is told.
        peers={"torch": lambda: torch.cumsum(x, -1, dtype=x.dtype)},
        reference=lambda: torch.cumsum(x, -1, dtype=wide),
        tolerance=tolerance_of(case.dtype) if floats else 0.0,
        triton=triton,
    )


FAMILY = Family(summary="sums of each element and all before it", draw=_draw, problem=_problem)
"""See the module."""
