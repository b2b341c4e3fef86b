"""The passes over the kernel IR, in order: what a user writes as plain loops becomes loops over streams."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.build import Unsupported, build
from tilekit.compiler.ir.nodes import Region
from tilekit.compiler.ir.printer import printed
from tilekit.compiler.ir.python import to_python
from tilekit.compiler.passes.accumulation import accumulate_products
from tilekit.compiler.passes.counted import count_loops
from tilekit.compiler.passes.dead_code import eliminate_dead_code
from tilekit.compiler.passes.hoisting import hoist_invariants
from tilekit.compiler.passes.streams import streams_from_loads
from tilekit.lang import matmul, pipelines
from tilekit.settings import load_settings

__all__ = ["PASSES", "dump", "optimized", "simplified", "streamed", "text_of"]

_STREAMED = (matmul.mma, matmul.matmul, pipelines.pipelined)
_BROKEN = "kernel %s: a pass over its IR failed, by a mistake of tilekit's; it is compiled as it is written. Please report:"

Watch = Callable[[str, Region], None]

PASSES = (hoist_invariants, count_loops, accumulate_products, streams_from_loads, eliminate_dead_code)
"""In the order in which they run. Each rewrites a kernel in place; its module says when that is legal."""


def optimized(bound: BoundKernel, facts: Sequence[ArgumentFacts], watch: Watch | None = None) -> Region:
    """The IR of a kernel behind all passes.

    Args:
        bound, facts: the kernel.
        watch: called with a name and the IR once it is built (`"built"`), and behind each pass.

    Raises:
        Unsupported: the kernel has a statement that the IR has no form for.
    """
    kernel = build(bound, facts)
    if watch is not None:
        watch("built", kernel)
    for rewrite in PASSES:
        rewrite(kernel)
        if watch is not None:
            watch(rewrite.__name__, kernel)
    return kernel


def text_of(bound: BoundKernel, facts: Sequence[ArgumentFacts]) -> str:
    """The IR of a kernel behind all passes, as text; or why it has none."""
    try:
        return printed(optimized(bound, facts), bound.source.name)
    except Unsupported as error:
        return f"# no IR: {error}"
    except Exception as error:  # a mistake of tilekit's, of which `streamed` warns
        return f"# no IR: {type(error).__name__}: {error}"


def dump(bound: BoundKernel, facts: Sequence[ArgumentFacts]) -> None:
    """Print what `TILEKIT_DUMP` asks for, on standard error."""
    wanted = load_settings().dump
    if not wanted:
        return

    def watch(step: str, kernel: Region) -> None:
        if ("ir" if step == "built" else "passes") in wanted:
            sys.stderr.write(f"# {step}\n{printed(kernel, bound.source.name)}\n\n")

    try:
        optimized(bound, facts, watch)
    except Unsupported as error:
        sys.stderr.write(f"# no IR: {error}\n\n")


def streamed(bound: BoundKernel, facts: Sequence[ArgumentFacts]) -> BoundKernel | None:
    """A kernel whose loops over streams, written as such or not, stand where rings of stages are made for them.

    None if it has none, or the IR has no form for it.
    """
    if not _may_have_streams(bound):
        return None
    try:
        kernel = optimized(bound, facts)
        streams = any(operation.kind == "stream" for operation in kernel.walk())
        return to_python(kernel, bound) if streams else None
    except Unsupported:
        return None
    except Exception:
        logging.getLogger("tilekit").warning(_BROKEN, bound.source.name, exc_info=True)
        return None


def simplified(bound: BoundKernel, facts: Sequence[ArgumentFacts]) -> BoundKernel | None:
    """A kernel written anew, with a value for each variable ahead of all that reads it, but otherwise as it stands; or None."""
    try:
        return to_python(build(bound, facts), bound)
    except Exception:
        return None


def _may_have_streams(bound: BoundKernel) -> bool:
    """Whether a kernel may have products, or loops over `tk.pipelined`: others gain nothing."""
    named = any(name in bound.text for name in ("mma", "matmul", "MatMult", "pipelined"))
    return named or any(value is function for value in bound.outside.values() for function in _STREAMED)
