"""Looking into a running kernel."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

from tilekit import dtypes
from tilekit.errors import CompileError
from tilekit.lang.registry import tile_op
from tilekit.lang.tile import Tile, scalar_kind

__all__ = ["print_"]


def _text(value: Any) -> str:
    """A scalar as the GPU prints it: `%g` for floats, decimal for integers."""
    kind = scalar_kind(value)
    if kind is float:
        return f"{float(value):g}"
    return str(bool(value)) if kind is bool else str(int(value))


@tile_op("print", host="Python's print")
def print_(*values: Any) -> None:
    """Print a line from every block: the values, separated by spaces.

    A tile among the values makes it a line for each of its elements, which ends with the element's index and value. On a GPU
    the lines of different blocks and threads come in any order, and appear when the device synchronises.

    Args:
        values: strings known when the kernel is compiled, scalars, and at most one tile, in the last place.

    Raises:
        CompileError: another kind of value, or a tile that is not the last.

    Examples:
        >>> @tk.kernel
        ... def hello():
        ...     tk.print("hello from block", tk.bid(0))
        >>> _ = hello().grid((2, 1, 1)).sync()
        hello from block 0
        hello from block 1
    """
    words = []
    for place, value in enumerate(values):
        if isinstance(value, str):
            words.append(value)
        elif scalar_kind(value) is not None:
            words.append(_text(value))
        elif not isinstance(value, Tile):
            raise CompileError(f"print: values are strings, scalars and a tile, not {type(value).__name__}")
        elif place != len(values) - 1:
            raise CompileError("print: a tile is the last of the values")
    if not values or not isinstance(values[-1], Tile):
        sys.stdout.write(" ".join(words) + "\n")
        return
    tile = values[-1]._array
    elements = tile.astype(np.float64) if dtypes.is_float(tile.dtype) else tile
    lines = [
        " ".join([*words, f"[{', '.join(map(str, index))}]", _text(elements[index])])
        for index in itertools.product(*map(range, tile.shape))
    ]
    sys.stdout.write("\n".join(lines) + "\n")
