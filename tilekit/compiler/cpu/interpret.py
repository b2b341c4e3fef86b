"""Running a kernel without a GPU: block by block, every tile operation as its NumPy reference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilekit.compiler.frontend.bound import BoundKernel
from tilekit.compiler.frontend.flow import UNSET
from tilekit.compiler.frontend.syntax import NOT_CALLED, NOT_UNPACKED, WRONG_LENGTH
from tilekit.compiler.frontend.type_stability import checked
from tilekit.errors import CompileError, DeviceError
from tilekit.lang import block
from tilekit.lang.size import sized

__all__ = ["interpret"]


def interpret(kernel: BoundKernel, grid: tuple[int, int, int], arguments: tuple[Any, ...], num_warps: int | None = None) -> None:
    """Run every block of `grid`, axis 0 fastest, in this thread.

    Args:
        kernel: with its generics bound.
        grid: the number of blocks along each axis.
        arguments: `TensorView`s and scalars, one for each parameter.
        num_warps: of a block on a GPU, if they were given: they decide how large tiles may be.

    Raises:
        CompileError: the kernel uses the tile language wrongly; it points at the line.
        DeviceError: a block failed: an index outside a tensor, or any exception of Python's.
    """
    kernel = checked(kernel)
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
        except (AttributeError, TypeError) as error:
            # Python's own words for what tiles and tensors cannot do, where the compiler would have refused it.
            raise kernel.error_from(_in_users_words(str(error)), error.__traceback__) from None
        except ValueError as error:
            unpacked = re.search(r"values to unpack \(expected (\d+)", str(error))
            if unpacked is None or not kernel.raised(error.__traceback__):
                raise DeviceError(_where(kernel, running, f"ValueError: {error}", error)) from error
            raise kernel.error_from(WRONG_LENGTH.format(wanted=unpacked[1]), error.__traceback__) from None
        except UnboundLocalError as error:
            match = re.search(r"'(\w+)'", str(error))
            raise kernel.error_from(UNSET.format(name=match[1] if match else "it"), error.__traceback__) from None
        except DeviceError as error:
            raise DeviceError(_where(kernel, running, str(error), error)) from None
        except Exception as error:
            raise DeviceError(_where(kernel, running, f"{type(error).__name__}: {error}", error)) from error


# Python's words for what tiles and tensors cannot do, and the compiler's.
_LOAD = "load a tile of it (tk.load, tk.load_tile_like, .load()) and store one (.store(...))"
_OURS = {
    r"object of type 'Tile' has no len\(\)": "len: a tile has no len; its extents are tile.shape",
    r"'Tile' object does not support item assignment": (
        "[]: elements cannot be assigned to: tile operations work on all its elements at once; use tk.where or tk.insert"
    ),
    r"'Tile' object has no attribute '(\w+)'": (
        r"a tile has no attribute \1; there are shape, dtype, ndim, and the methods astype, reshape, permute, transpose, "
        "broadcast_to and item"
    ),
    r"(?:'[\w.]+' object|a tile|a tensor) is not callable": NOT_CALLED,
    r"cannot unpack non-iterable (?!Tile)": NOT_UNPACKED,
    r"type Tile doesn't define __round__ method": (
        "round does not take tiles: the operations on tiles are tk.*, the operators and abs"
    ),
    r"'float' object cannot be interpreted as an integer": "range: its bounds and step are ints, not floats",
    r"'TensorView' object is not subscriptable": f"a tensor in a kernel has no index: {_LOAD}",
    r"'TensorView' object does not support item assignment": f"a tensor in a kernel has no assignment to an index: {_LOAD}",
}


_NAMES = {
    "'Tile' object": "a tile", "'TensorView' object": "a tensor", "'Tile'": "a tile", "'TensorView'": "a tensor",
    "TensorView.": "", "'NoneType' object": "None", "'NoneType'": "None",
}  # fmt: skip


def _in_users_words(text: str) -> str:
    if "__array_ufunc__" in text:
        return "NumPy's functions do not take tiles: the operations on tiles are tk.*, the operators and abs"
    for words, ours in _OURS.items():
        if re.match(words, text):
            return re.sub(f"{words}.*", ours, text)
    for words, ours in _NAMES.items():
        text = text.replace(words, ours)
    return text


def _where(kernel: BoundKernel, running: block.Block, reason: str, error: BaseException) -> str:
    located = kernel.error_from(f"kernel {kernel.source.name}, block {running.index}: {reason}", error.__traceback__)
    return str(located)
