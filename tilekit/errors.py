"""What can go wrong, by whose hand it went wrong.

Misuse of an API raises Python's own `TypeError` or `ValueError`. The classes here are for the rest: the source of a kernel
(`CompileError`), the device (`DeviceError` and its children).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import takewhile
from types import FrameType
from typing import Any

import numpy as np

__all__ = [
    "CompileError",
    "DeviceError",
    "DeviceUnavailableError",
    "GroupError",
    "OutOfMemoryError",
    "SpillWarning",
    "TilekitError",
    "UnusedOpWarning",
    "check_flag",
    "location",
]


def location(filename: str | None, line: int | None, column: int | None = None) -> str:
    """Where something stands, for messages: `file:line`, or of a notebook's cell what IPython calls it, `Cell In[3], line 2`.

    A column, which counts from 0, is shown as editors count, from 1: `file:line:column`.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    cell = None if name_of is None else name_of(filename)
    if cell is None:
        return f"{filename}:{line}" if column is None else f"{filename}:{line}:{column + 1}"
    return f"{' '.join(cell)}, line {line}" if column is None else f"{' '.join(cell)}, line {line}, column {column + 1}"


class TilekitError(Exception):
    """Base of every exception that tilekit defines."""


class UnusedOpWarning(UserWarning):
    """An op was built, and is gone without having run. The text names the op and the line that built it, warned of once."""


class CompileError(TilekitError):
    """A kernel cannot be compiled. The text shows the user's line, with a caret, and what to change.

    Attributes:
        reason: the message alone, without the source excerpt.
        filename, lineno, column: where in the user's source, as far as it is known (`lineno` counts from 1, `column` from 0).
    """

    def __init__(
        self,
        reason: str,
        *,
        filename: str | None = None,
        lineno: int | None = None,
        column: int | None = None,
        width: int = 1,
        line: str | None = None,
    ) -> None:
        self.reason, self.filename, self.lineno, self.column = reason, filename, lineno, column
        self.width, self.line = width, line
        super().__init__(reason)

    def __str__(self) -> str:
        if self.lineno is None:
            return self.reason
        text = f"{location(self.filename, self.lineno)}: {self.reason}"
        if self.line:
            stripped = self.line.lstrip()
            text += f"\n    {stripped.rstrip()}"
            if self.column is not None:
                at = max(0, self.column - (len(self.line) - len(stripped)))
                text += f"\n    {' ' * at}{'^' * max(1, self.width)}"
        return text

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the lines that led to tilekit, and the kernel's. What is between them is tilekit's own."""
        import traceback  # for errors only

        steps = list(takewhile(lambda step: not _within(step, __name__), traceback.walk_tb(self.__traceback__)))
        theirs = [step for step in steps if not _within(step, "IPython")]
        calls = traceback.StackSummary.extract(iter(theirs))
        shown = [f"  {location(call.filename, call.lineno)}, in {call.name}\n    {call.line}" for call in calls]
        notes = [str(note) for note in getattr(self, "__notes__", ())]
        lines = ["Traceback (most recent call last):", *shown, f"{type(self).__name__}: {self}", *notes]
        return ["\n".join(lines)]  # some of IPython's modes would join them otherwise


def _within(step: tuple[FrameType, int], name: str) -> bool:
    """Whether a step of a traceback is in the package that the module `name` belongs to."""
    package = name.partition(".")[0]
    module = str(step[0].f_globals.get("__name__"))
    return module == package or module.startswith(f"{package}.")


class SpillWarning(UserWarning):
    """A compiled kernel keeps registers in memory: it runs, and waits for memory where it need not."""


class DeviceError(TilekitError):
    """A device refused a request, or failed while it worked.

    Attributes:
        code: the driver's name for the failure (`"CUDA_ERROR_ILLEGAL_ADDRESS"`), or None where the device has none.
        lost: whether the process cannot use the device any more. A fault of a GPU does that, one of a CPU device does not.
        unfinished: names of the work that was not known to be finished on the stream that somebody waited for, oldest first.
    """

    unfinished: tuple[str, ...] = ()

    def __init__(self, message: str, *, code: str | None = None, lost: bool = False) -> None:
        self.code, self.lost = code, lost
        super().__init__(message)


class DeviceUnavailableError(DeviceError):
    """The device that was asked for does not exist here, or is too old. The text says what is missing."""


class GroupError(DeviceError):
    """A group of devices (`tilekit.Group`) is broken: a member is gone, late, or does something else than the others.

    Attributes:
        ranks: of whom the message speaks.
    """

    def __init__(self, message: str, *, ranks: Iterable[int] = ()) -> None:
        try:
            self.ranks = tuple(ranks)
        except TypeError:
            raise TypeError(f"GroupError: ranks are the numbers of members, not {ranks!r}") from None
        super().__init__(message)


class OutOfMemoryError(DeviceError):
    """Device memory ran out. Everything allocated so far stays valid.

    Attributes:
        requested_bytes, free_bytes, total_bytes: what was asked for, and what the device had (within the limit, if one is set).
        pooled_bytes: what of the free bytes the device's pool held.
    """

    def __init__(
        self,
        message: str,
        *,
        requested_bytes: int,
        free_bytes: int,
        total_bytes: int,
        pooled_bytes: int = 0,
        code: str | None = None,
    ) -> None:
        self.requested_bytes, self.free_bytes, self.total_bytes = requested_bytes, free_bytes, total_bytes
        self.pooled_bytes = pooled_bytes
        super().__init__(message, code=code)


def check_flag(what: str, flag: Any) -> bool:
    """An argument that is True or False; `what` says which, for the message.

    Raises:
        TypeError: it is neither. What is only true or false to Python, such as a list, is mostly a mistake.
    """
    if not isinstance(flag, (bool, np.bool_)):
        raise TypeError(f"{what} is True or False, not {flag!r}")
    return bool(flag)
