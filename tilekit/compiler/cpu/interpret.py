"""Running a kernel without a GPU: block by block, every tile operation as its NumPy reference."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.builtin_calls import NAMES, Renamed
from tilekit.compiler.frontend.names import check_numba
from tilekit.compiler.frontend.zero_division import QUOTIENTS, Quotients
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.size import sized

__all__ = ["interpret"]

_known: weakref.WeakKeyDictionary[BoundKernel, BoundKernel] = weakref.WeakKeyDictionary()


def interpret(kernel: BoundKernel, grid: tuple[int, int, int], arguments: tuple[Any, ...], num_warps: int | None = None) -> None:
    """Run every block of `grid`, axis 0 fastest, in this thread.

    Args:
        kernel: with its generics bound; the language takes it, see `compiler.ir.verdict`.
        grid: the number of blocks along each axis.
        arguments: `TensorView`s and scalars, one for each parameter.
        num_warps: of a block on a GPU, if they were given: they decide how large tiles may be.

    Raises:
        CompileError: a value is none that an operation takes; it points at the line.
        DeviceError: a block failed: an index outside a tensor, or any exception of Python's.
    """
    kernel = _interpretable(kernel)
    function = kernel.function
    with block.running(block.Block(grid)) as running, sized(num_warps), np.errstate(all="ignore"):
        try:
            for z in range(grid[2]):
                for y in range(grid[1]):
                    for x in range(grid[0]):
                        running.index = (x, y, z)
                        function(*arguments)
        except CompileError as error:
            raise kernel.error_from(error.reason, error.__traceback__) from None
        except DeviceError as error:
            raise DeviceError(_where(kernel, running, str(error), error)) from None
        except Exception as error:
            raise DeviceError(_where(kernel, running, f"{type(error).__name__}: {error}", error)) from error


def _interpretable(kernel: BoundKernel) -> BoundKernel:
    """A kernel whose quotients and builtins are the language's, and not Python's."""
    if kernel not in _known:
        check_numba(kernel)
        _known[kernel] = kernel.changed(
            lambda path, tree: Quotients().visit(Renamed(kernel, path).visit(tree)), {**QUOTIENTS, **NAMES}
        )
    return _known[kernel]


def _where(kernel: BoundKernel, running: block.Block, reason: str, error: BaseException) -> str:
    located = kernel.error_from(f"kernel {kernel.source.name}, block {running.index}: {reason}", error.__traceback__)
    return str(located)
