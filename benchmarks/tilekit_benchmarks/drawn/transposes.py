"""The family `transposes`: copies with the last two dimensions exchanged."""

from __future__ import annotations

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, width_of

__all__ = ["FAMILY"]

_DTYPES = {"float32": 1.0, "float16": 1.0, "bfloat16": 1.0, "int8": 0.5, "float64": 0.5}


def _draw(d: Draw) -> Case:
    dtype = d.dtype(_DTYPES)
    return d.copied("transpose", dtype, width_of(dtype))


def _problem(case: Case, t: Operands) -> Problem:
    x = t.integers(-128, 128, *case.shape, dtype="int8") if case.dtype == "int8" else t.normal(*case.shape)
    out = t.empty(*case.shape[:-2], case.shape[-1], case.shape[-2])
    triton = None
    if case.layout == CONTIGUOUS:
        triton = "transpose", {"x": x}, t.empty(*case.shape[::-1])
    return Problem(
        own=lambda: kernels.transpose(x, out=out),
        peers={"torch": lambda: x.transpose(-1, -2).contiguous()},
        reference=lambda: x.transpose(-1, -2),
        tolerance=0.0,
        triton=triton,
    )


FAMILY = Family(summary="copies with the last two dimensions exchanged", draw=_draw, problem=_problem)
"""See the module."""
