"""The benchmark `kernels`: see `kernel_cases.kernel_cases`."""

from __future__ import annotations

from tilekit_benchmarks import Options
from tilekit_benchmarks.kernel_cases import kernel_cases
from tilekit_benchmarks.kernel_runs import KernelRun, measure

__all__ = ["run"]

# Rows on a CPU device, which computes a few at a time.
_CPU_ROWS = 64


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    rows = options.n or (_CPU_ROWS if options.device.kind == "cpu" else None)
    return measure("kernels", options, kernel_cases(rows))
