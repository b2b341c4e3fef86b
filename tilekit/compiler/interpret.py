"""Running a kernel without a GPU: block by block, every tile operation as its NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilekit.compiler.specialise import BoundKernel
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block

__all__ = ["interpret"]


def interpret(kernel: BoundKernel, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
    """Run every block of `grid`, axis 0 fastest, in this thread.

    Args:
        kernel: with its generics bound.
        grid: the number of blocks along each axis.
        arguments: `TensorView`s and scalars, one for each parameter.

    Raises:
        CompileError: the kernel uses the tile language wrongly; it points at the line.
        DeviceError: a block failed: an index outside a tensor, or any exception of Python's.
    """
    function = kernel.function
    with block.running(block.Block(grid)) as running, np.errstate(all="ignore"):
        try:
            for z in range(grid[2]):
                for y in range(grid[1]):
                    for x in range(grid[0]):
                        running.index = (x, y, z)
                        function(*arguments)
        except CompileError as error:
            raise kernel.source.error_from(error.reason, error.__traceback__) from None
        except (AttributeError, TypeError) as error:
            # Python's own words for what tiles and tensors cannot do, where the compiler would have refused it.
            raise kernel.source.error_from(_in_users_words(str(error)), error.__traceback__) from None
        except DeviceError as error:
            raise DeviceError(_where(kernel, running, str(error), error)) from None
        except Exception as error:
            raise DeviceError(_where(kernel, running, f"{type(error).__name__}: {error}", error)) from error


def _in_users_words(text: str) -> str:
    if "__array_ufunc__" in text:
        return "NumPy's functions do not take tiles: the operations on tiles are tk.*, the operators and abs"
    return text.replace("'Tile' object", "a tile").replace("'TensorView' object", "a tensor").replace("'Tile'", "a tile")


def _where(kernel: BoundKernel, running: block.Block, reason: str, error: BaseException) -> str:
    located = kernel.source.error_from(f"kernel {kernel.source.name}, block {running.index}: {reason}", error.__traceback__)
    return str(located)
