"""The verdict on a kernel: what the language refuses is decided once, in the IR, before any device compiles or interprets it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tilekit.compiler.facts import ArgumentFacts
from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.ir.accesses import Access, accesses
from tilekit.compiler.ir.build import Unsupported, build
from tilekit.compiler.ir.inference import samples_of
from tilekit.compiler.ir.nodes import Operation, Region
from tilekit.compiler.ir.products import is_product
from tilekit.compiler.ir.python import to_python
from tilekit.compiler.layouts.linear import Config, elements
from tilekit.errors import CompileError
from tilekit.lang.debug import static_line
from tilekit.lang.registry import OPS

__all__ = ["Accepted", "verdict"]

_BROKEN = "kernel %s: its IR could not be built, by a mistake of tilekit's; it is compiled as it is written. Please report:"


@dataclass(frozen=True, eq=False)
class Accepted:
    """A kernel that the language takes, as far as that is known.

    Attributes:
        bound: the kernel.
        kernel: its IR, which nobody changes; None if the kernel has what the IR has no form for, such as numba's own functions.
        reason: why there is none.
        lines: what `tk.static_print` prints when the kernel is compiled.
    """

    bound: BoundKernel
    kernel: Region | None
    reason: str = ""
    lines: tuple[str, ...] = ()

    def announce(self) -> None:
        """Print these lines."""
        if self.lines:
            sys.stdout.write("".join(f"{line}\n" for line in self.lines))

    def ir(self, config: Config | None = None) -> Region:
        """A copy of the IR, for passes to rewrite.

        Args:
            config: for which blocks, where that is known.

        Raises:
            Unsupported: there is none.
        """
        if self.kernel is None:
            raise Unsupported(self.reason)
        kernel = self.kernel.copy()
        kernel.config = config
        return kernel

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The tiles that it loads and stores, as far as that is known."""
        return () if self.kernel is None else tuple(accesses(self.kernel))

    @property
    def folded(self) -> int:
        """The elements of the largest tile that it loads, where it multiplies no matrices: of a fold, what is stored is small,
        and the time is that of the loads. 0 of other kernels, whose products say how many warps there are."""
        if self.kernel is None or any(map(is_product, self.kernel.walk())):
            return 0
        return max((elements(access.shape) for access in self.accesses), default=0)

    @property
    def compilable(self) -> BoundKernel:
        """The kernel in forms that numba knows."""
        if self.kernel is None or not self.kernel.rewritten:
            return self.bound
        return to_python(self.kernel.copy(), self.bound)


def verdict(bound: BoundKernel, facts: Sequence[ArgumentFacts], num_warps: int | None = None) -> Accepted:
    """Look at a kernel by the rules of the language.

    Args:
        bound, facts: the kernel.
        num_warps: of a block, if they were given; they decide how large tiles may be.

    Raises:
        CompileError: the language does not take it; it points at the user's line.
    """
    try:
        kernel = build(bound, facts, num_warps)
        lines = [static_line(samples_of(operation)) for operation in kernel.walk() if _is_static(operation, "static_print")]
        for region in kernel.regions():
            region.operations = [o for o in region.operations if not _is_static(o, "static_print", "static_assert")]
        return Accepted(bound, kernel, lines=tuple(lines))
    except CompileError:
        raise
    except Unsupported as reason:
        return Accepted(bound, None, str(reason))
    except Exception as error:
        logging.getLogger("tilekit").warning(_BROKEN, bound.source.name, exc_info=True)
        return Accepted(bound, None, f"{type(error).__name__}: {error}")


def _is_static(operation: Operation, *names: str) -> bool:
    """Whether an operation is one that is over with the verdict."""
    return operation.kind == "call" and any(operation.what.value is OPS[name].function for name in names)
