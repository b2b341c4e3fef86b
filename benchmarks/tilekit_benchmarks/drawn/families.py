"""The families that cases are drawn of, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tilekit_benchmarks.drawn import attention, columns, gathers, losses, pointwise, products, rows, scans, transposes
from tilekit_benchmarks.drawn.distribution import Case, Draw, Limits
from tilekit_benchmarks.drawn.problem import Family

__all__ = ["FAMILIES", "drawn_case"]

FAMILIES: Mapping[str, Family] = {
    "rows": rows.FAMILY,
    "columns": columns.FAMILY,
    "pointwise": pointwise.FAMILY,
    "scans": scans.FAMILY,
    "transposes": transposes.FAMILY,
    "losses": losses.FAMILY,
    "gathers": gathers.FAMILY,
    "gemm": products.GEMM,
    "grouped": products.GROUPED,
    "attention": attention.ATTENTION,
    "gradients": attention.GRADIENTS,
    "prefill": attention.PREFILL,
    "decode": attention.DECODE,
}
"""The families."""


def drawn_case(family: str, seed: int, number: int, limits: Limits, attempt: int = 0) -> Case:
    """The case of this number; the same whenever it is asked for. `attempt` counts how often it was drawn again."""
    return FAMILIES[family].draw(Draw(family, seed, number, attempt, limits))
