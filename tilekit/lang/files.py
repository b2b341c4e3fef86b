"""The text that a function was written in: a file, a cell of a notebook, or one that a magic of IPython's runs."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["file_of"]

# IPython registers the text of each cell with linecache, but not of those that `%%timeit` and `%%time` compile under these names.
_TIMED = {"<magic-timeit>": "timeit", "<timed exec>": "time"}


def file_of(function: Callable[..., Any]) -> Sequence[str]:
    """The lines of the file or cell that `function` stands in, as they are now; none if there is no such file.

    Of a cell under `%%timeit` or `%%time` they are known while it runs: ask when the function is defined.
    """
    filename = function.__code__.co_filename
    magic = _TIMED.get(filename)
    if magic is not None:
        return _timed_cell(magic)
    linecache.checkcache(filename)  # the file may have been edited, and its module loaded again
    return linecache.getlines(filename, function.__globals__)


def _timed_cell(magic: str) -> Sequence[str]:
    """The lines of the cell that a magic is running, as IPython compiles it; none if none runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == magic and str(frame.f_globals.get("__name__")).startswith("IPython."):
            inside = frame.f_locals
            cell, magics = inside.get("cell"), inside.get("self")
            if isinstance(cell, str) and magics is not None:
                return str(magics.shell.transform_cell(cell)).splitlines(keepends=True)
        frame = frame.f_back
    return ()
