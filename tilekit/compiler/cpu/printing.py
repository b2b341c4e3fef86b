"""What a block prints, by Python: machine code calls it back, with the values in scratch memory. No compiler here."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilekit import dtypes
from tilekit.lang.registry import OPS
from tilekit.lang.tile import Tile

__all__ = ["Saved", "printed"]


class Saved(NamedTuple):
    """A value that a block prints.

    Attributes:
        at: where it lies in the scratch memory, in bytes.
        dtype: of its elements, a name.
        shape: of a tile; None of a number.
        python: whether it is one of Python's numbers.
    """

    at: int
    dtype: str
    shape: tuple[int, ...] | None
    python: bool

    def value(self, memory: int) -> Any:
        """It, for the reference: a tile, or a number."""
        dtype, shape = dtypes.as_dtype(self.dtype), self.shape or ()
        data = ctypes.string_at(memory + self.at, dtype.itemsize * math.prod(shape))
        array = np.frombuffer(data, dtype).reshape(shape)
        if self.shape is not None:
            return Tile(array)
        return array.item() if self.python else array[()]


def printed(name: str, values: Sequence[Any], memory: int) -> None:
    """Print what a block says, by the operation's reference; a value is a constant, or a tuple, the fields of a `Saved`."""
    OPS[name].function(*(Saved(*value).value(memory) if isinstance(value, tuple) else value for value in values))
