"""The family `gathers`: rows of a table, and the gradient by the table."""

from __future__ import annotations

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["FAMILY"]

_WIDEST = 2**13  # row of a table
_SPREAD = 64  # a table has between so many times as many rows as are asked for, and so many times fewer


def _draw(d: Draw) -> Case:
    kernel, dtype = d.one_of(("embedding", "embedding_backward")), d.dtype()
    width = 2 * width_of(dtype)

    def once() -> tuple[int, int, int, int] | None:
        ids, n = d.matrix(width, (16, min(_WIDEST, d.limits.row)))
        rows = d.near(d.log_uniform(max(1, ids / _SPREAD), _SPREAD * ids))
        table = rows * n * width // 2
        # What is asked for is read and written; the gradient by the table is written, too, whole.
        nbytes = ids * n * width + 8 * ids + (table if kernel.endswith("backward") else 0)
        return (rows, n, ids, nbytes) if d.within(nbytes) and table <= d.limits.nbytes[1] else None

    rows, n, ids, nbytes = d.fitting(once)
    index = d.one_of(("int64", "int32"))
    return d.case(kernel=kernel, dtype=dtype, shape=(rows, n), nbytes=nbytes, ids=ids, index=index)


def _problem(case: Case, t: Operands) -> Problem:
    torch, (rows, n), count = t.torch, case.shape, case.options["ids"]
    ids = t.integers(0, rows, count, dtype=case.options["index"])
    if case.kernel == "embedding":
        table, out = t.normal(rows, n), t.empty(count, n)
        return Problem(
            own=lambda: kernels.embedding(table, ids, out=out),
            peers={"torch": lambda: torch.nn.functional.embedding(ids, table)},
            reference=lambda: table.index_select(0, ids),
            tolerance=0.0,
        )
    grad = t.normal(count, n)
    return Problem(
        own=lambda: kernels.embedding_backward(grad, ids, rows),
        peers={"torch": lambda: torch.ops.aten.embedding_dense_backward(grad, ids, rows, -1, False)},
        reference=lambda: torch.zeros(rows, n, device=t.device, dtype=torch.float64).index_add_(0, ids, grad.double()),
        tolerance=tolerance_of(case.dtype),
    )


FAMILY = Family(summary="rows of a table, and the gradient by the table", draw=_draw, problem=_problem)
"""See the module."""
