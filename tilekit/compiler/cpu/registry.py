"""The table of what is compiled for the CPU: for operations of the tile language, and methods, what writes their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["LOWERINGS", "lowers"]

LOWERINGS: dict[str, Callable[..., Any]] = {}
"""By the name of an operation. Each takes the program, and the arguments by their names, those that were left out too."""


def lowers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into the table."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            LOWERINGS[name] = function
        return function

    return enter
