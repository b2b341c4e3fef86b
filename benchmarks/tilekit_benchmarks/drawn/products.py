"""The families `gemm` and `grouped`: products of matrices, of batches of them, and of groups of rows by a matrix each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["GEMM", "GROUPED"]

# What operands hold, and how often; "tf32" is float32 whose products may be rounded.
_DTYPES = {"bfloat16": 3.0, "float16": 3.0, "float32": 1.0, "tf32": 1.0, "float8_e4m3fn": 1.0, "int8": 1.0}
_RESULTS = {"tf32": "float32", "float8_e4m3fn": "bfloat16", "int8": "int32"}  # else as the operands
_TOLERANCES = {"tf32": 1e-2, "float8_e4m3fn": 4e-2, "int8": 0.0}
_LAYOUTS = ("NN", "NT", "TN", "TT")
_STEP = 16  # of N and K of 8-bit numbers
_GAPS, _BATCHED = 0.2, 0.25
_LONGEST_GAP, _BATCHES, _GROUPS = 64, 64, 64


def _operand(t: Operands, case: Case, dtype: str, transposed: bool, *shape: int) -> Any:
    """A matrix, or a batch of them; where it is transposed, the first of the two extents is that which is contiguous."""
    outer = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    layout = "rows with gaps" if "gap" in case.options else CONTIGUOUS
    if dtype == "int8":
        x = t.integers(-128, 128, *outer, dtype="int8")
    else:
        x = t.normal(*outer, dtype=dtype, layout=layout)
    return x.transpose(-1, -2) if transposed else x


def _draw(d: Draw) -> Case:
    dtype = d.dtype(_DTYPES)
    of_bytes = dtype in ("float8_e4m3fn", "int8")
    # No peer takes other layouts of these.
    layout = "NT" if of_bytes else d.one_of(_LAYOUTS)
    batched = not of_bytes and d.chance(_BATCHED)
    options = {"gap": d.size(1, _LONGEST_GAP)} if not of_bytes and d.chance(_GAPS) else {}
    width, written = _width(dtype), _width(_RESULTS.get(dtype, dtype))
    least = min(_STEP if of_bytes else 1, d.limits.extent)

    def once() -> tuple[tuple[int, ...], int, int] | None:
        m, n, k = (d.size(1, d.limits.extent) for _ in range(3))
        if of_bytes:
            m, n, k = max(m, least + 1), *(-(-x // _STEP) * _STEP for x in (n, k))
        batches = d.count(2, _BATCHES) if batched else 1
        nbytes = batches * (width * (m * k + k * n) + written * m * n)
        operations = 2 * batches * m * n * k
        fits = nbytes <= d.limits.nbytes[1] and operations <= d.limits.operations
        return ((batches, m, n, k) if batched else (m, n, k), nbytes, operations) if fits else None

    shape, nbytes, operations = d.fitting(once)
    return d.case(
        kernel="gemm", dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, operations=operations, **options
    )  # fmt: skip


def _width(dtype: str) -> int:
    return 4 if dtype == "tf32" else width_of(dtype)


def _problem(case: Case, t: Operands) -> Problem:
    torch = t.torch
    *batch, m, n, k = case.shape
    dtype = "float32" if case.dtype == "tf32" else case.dtype
    a = _operand(t, case, dtype, case.layout[0] == "T", *batch, m, k)
    b = _operand(t, case, dtype, case.layout[1] == "T", *batch, k, n)
    result = _RESULTS.get(case.dtype, dtype)
    peers: dict[str, Callable[[], Any]] = {"torch": lambda: torch.matmul(a, b)}
    if dtype == "int8":
        peers = {"torch": lambda: torch._int_mm(a, b)}
    elif dtype == "float8_e4m3fn":
        one = torch.ones((), device=t.device)
        options = {"scale_a": one, "scale_b": one, "out_dtype": t.dtype(result), "use_fast_accum": False}
        peers = {"torch": lambda: torch._scaled_mm(a, b, **options)}
    elif case.dtype == "tf32":
        peers = {"torch": _as_tf32(torch, peers["torch"])}
    if t.device.type == "cuda" and dtype not in ("int8", "float8_e4m3fn"):
        peers["cublaslt"] = _by_library(torch, "cublaslt", peers["torch"])
    triton = None
    if case.layout == "NN" and not batch and "gap" not in case.options and dtype in ("float16", "bfloat16"):
        triton = "gemm", {"x": a, "weight": b}, t.empty(m, n)
    out = t.empty(*batch, m, n, dtype=result)
    precision = "tf32" if case.dtype == "tf32" else "ieee"
    return Problem(
        own=lambda: kernels.gemm(a, b, dtype=result, precision=precision, out=out),
        peers=peers,
        reference=lambda: a.double() @ b.double(),
        tolerance=_TOLERANCES[case.dtype] if case.dtype in _TOLERANCES else tolerance_of(dtype),
        triton=triton,
    )


def _as_tf32(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    def rounded() -> Any:
        before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
        try:
            return call()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return rounded


def _by_library(torch: Any, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, by one of the libraries that PyTorch multiplies with."""

    @contextmanager
    def chosen() -> Any:
        prefer = torch.backends.cuda.preferred_blas_library
        before = prefer()
        prefer(name)
        try:
            yield
        finally:
            prefer(before)

    def launch() -> Any:
        with chosen():
            return call()

    return launch


GEMM = Family(summary="products of matrices and of batches of them", draw=_draw, problem=_problem)
"""See the module."""


def _draw_grouped(d: Draw) -> Case:
    dtype, layout = d.one_of(("bfloat16", "float16")), d.one_of(("NN", "NT"))
    width = width_of(dtype)

    def once() -> tuple[tuple[int, int, int], int, int, int] | None:
        rows, n, k = (d.size(1, d.limits.extent) for _ in range(3))
        groups = d.count(1, _GROUPS)
        nbytes, operations = width * (rows * (k + n) + groups * k * n), 2 * rows * n * k
        fits = nbytes <= d.limits.nbytes[1] and operations <= d.limits.operations
        return ((rows, n, k), groups, nbytes, operations) if fits else None

    shape, groups, nbytes, operations = d.fitting(once)
    return d.case(
        kernel="grouped_gemm", dtype=dtype, shape=shape, layout=layout, nbytes=nbytes, operations=operations, groups=groups
    )


def _problem_grouped(case: Case, t: Operands) -> Problem:
    torch, (rows, n, k), groups = t.torch, case.shape, case.options["groups"]
    a, b = t.normal(rows, k), _operand(t, case, case.dtype, case.layout[1] == "T", groups, k, n)
    # Rows go to groups as they like, so that some have many and some have none.
    ends = torch.bincount(t.integers(0, groups, rows), minlength=groups).cumsum(0).to(torch.int32)
    bounds = [0, *ends.tolist()]
    parts = [(slice(low, high), group) for group, (low, high) in enumerate(pairwise(bounds)) if high > low]

    def each() -> Any:
        result = torch.empty((rows, n), device=t.device, dtype=a.dtype)
        for part, group in parts:
            torch.mm(a[part], b[group], out=result[part])
        return result

    def right() -> Any:
        result = torch.empty((rows, n), device=t.device, dtype=torch.float64)
        for part, group in parts:
            result[part] = a[part].double() @ b[group].double()
        return result

    out = t.empty(rows, n)
    return Problem(
        own=lambda: kernels.grouped_gemm(a, b, ends, out=out),
        peers={"torch": lambda: torch.nn.functional.grouped_mm(a, b, offs=ends), "torch, one by one": each},
        reference=right,
        tolerance=tolerance_of(case.dtype),
    )


GROUPED = Family(summary="products of groups of rows by a matrix each", draw=_draw_grouped, problem=_problem_grouped)
"""See the module."""
