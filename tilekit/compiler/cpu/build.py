"""From a bound kernel to machine code for this CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import tilekit.compiler.cpu.operations  # noqa: F401  (the table of them)
from tilekit.compiler.cpu.code import Code
from tilekit.compiler.cpu.kernel import REASON, CpuKernel, Site
from tilekit.compiler.cpu.machine import Machine, host
from tilekit.compiler.cpu.program import Program
from tilekit.compiler.cpu.values import Unsupported
from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.ir.build import Unsupported as NotInTheIR
from tilekit.compiler.ir.nodes import Location, Region
from tilekit.compiler.ir.types import Unknown, sampling
from tilekit.compiler.ir.verdict import Accepted
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.canonical import canonicalize
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.traversals import count_traversals

__all__ = ["REFUSALS", "compile_for_cpu", "lowered"]

_PASSES = (canonicalize, count_traversals, hoist_invariants, accumulate_products, eliminate_dead_code)
REFUSALS = (Unsupported, NotInTheIR)
"""What says that a kernel is not compiled for CPUs."""

_BROKEN = "kernel %s: it could not be compiled for the CPU, by a mistake of tilekit's; it is interpreted. Please report:"


def compile_for_cpu(
    accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, *, aliased: bool = False
) -> CpuKernel | str:
    """A kernel in machine code; or why it has to be interpreted.

    Args:
        accepted, facts: the kernel.
        num_warps: of a block on a GPU, if they were given: they decide how large tiles may be.
        aliased: whether tensors that it writes may share memory with others.
    """
    try:
        return _compiled(accepted, facts, num_warps, aliased)
    except REFUSALS as reason:
        return str(reason)
    except Exception as error:
        logging.getLogger("tilekit").warning(_BROKEN, accepted.bound.source.name, exc_info=True)
        return f"{type(error).__name__}: {error}"


def _compiled(accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, aliased: bool) -> CpuKernel:
    _, code = lowered(accepted, facts, num_warps, host(), aliased=aliased)
    sites = tuple(Site(kind, tuple(about), _where(location)) for (kind, *about), location in code.sites)
    image = host().assembled(code.finish())
    return CpuKernel(name=accepted.bound.source.name, image=image, scratch_bytes=code.scratch_bytes, sites=sites)


def lowered(
    accepted: Accepted, facts: Sequence[ArgumentFacts], num_warps: int | None, machine: Machine, *, aliased: bool = False
) -> tuple[Region, Code]:
    """The IR of a kernel behind the passes, and its code for a CPU.

    Raises:
        REFUSALS: it has to be interpreted.
    """
    kernel = accepted.ir()
    _check(kernel)
    for rewrite in _PASSES:
        rewrite(kernel)
    with sampling(num_warps=num_warps):
        return kernel, Program(kernel, facts, machine, aliased=aliased).k


def _where(at: Location) -> tuple[Any, ...]:
    """Where an error is; see `kernel.Site`."""
    error = at.source.error_of(REASON, at.line, at.column, at.end_line, at.end_column)
    return error.reason, error.filename, error.lineno, error.column, error.width, error.line


def _check(kernel: Region) -> None:
    """Leave a kernel to the interpreter with something in it that nothing is known of."""
    for operation in kernel.walk():
        defined = [*operation.results, *(value for region in operation.regions for value in region.parameters)]
        if any(isinstance(value.type, Unknown) for value in defined):
            what = getattr(operation.what, "spelling", operation.what) or operation.kind
            raise Unsupported(f"{what} of unknown type, in {operation.location}")
