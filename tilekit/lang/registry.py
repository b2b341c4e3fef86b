"""The table of tile operations. A row's signature, docstring and NumPy reference stand here; its lowering in `compiler.lower`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tilekit.lang import block

__all__ = ["OPS", "TileOp", "tile_op"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class TileOp:
    """One operation of the tile language.

    Attributes:
        name: as users spell it, `load` for `tk.load`.
        family: the file it stands in, here and in `compiler.lower`.
        function: what kernels call. Run by Python, it is the NumPy reference; numba lowers it instead.
        signature: its parameters, compared with the lowering's.
    """

    name: str
    family: str
    function: Callable[..., Any]
    signature: inspect.Signature


OPS: dict[str, TileOp] = {}


def tile_op(name: str, *, host: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Enter the decorated function into the table as `tk.<name>`; calling it outside a kernel is an error.

    Args:
        name: what users call it.
        host: what to use outside a kernel instead, for the error message.
    """

    def enter(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def op(*args: P.args, **kwargs: P.kwargs) -> R:
            if block.current() is None:
                instead = f" On the host use {host}." if host else ""
                raise TypeError(f"tk.{name} is a tile operation: it works inside a function decorated with @tk.kernel.{instead}")
            return function(*args, **kwargs)

        op.__name__ = op.__qualname__ = name
        family = function.__module__.rpartition(".")[2]
        OPS[name] = TileOp(name=name, family=family, function=op, signature=inspect.signature(function))
        return op

    return enter
