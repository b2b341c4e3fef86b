"""What passes say of what they do, and of what they do not: for `op.explain()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from tilekit import errors
from tilekit.compiler.ir.nodes import Location

__all__ = ["Place", "Remark", "collected", "remark"]


class Place(NamedTuple):
    """A place in a user's text. `str` of it is `file:line:column`, or what IPython calls the cell of a notebook.

    Attributes:
        filename: the file, or the cell of a notebook.
        line: counts from 1.
        column: counts from 0, or None where only the line is known.
    """

    filename: str
    line: int
    column: int | None

    @classmethod
    def of(cls, at: Location) -> Place:
        """Where something of the IR stands."""
        return cls(at.source.filename, at.line, at.source.column(at.line, at.column) if at.end_line else None)

    def __str__(self) -> str:
        return errors.location(*self)


class Remark(NamedTuple):
    """One transformation of one place. A function that a kernel calls twice has two.

    Attributes:
        stack: where, and behind that the calls by which the kernel gets there, its own last.
        transformation: which.
        done: whether it was done; None of what was seen, and nothing done about.
        text: what was done or seen, or why it was not done.
    """

    stack: tuple[Place, ...]
    transformation: str
    done: bool | None
    text: str

    @property
    def filename(self) -> str:
        """The file of the place, which is not the kernel's for a function of another module."""
        return self.stack[0].filename

    @property
    def line(self) -> int:
        """The line of that file."""
        return self.stack[0].line

    @property
    def column(self) -> int | None:
        """The column, from 0, where it is known."""
        return self.stack[0].column


_collected: ContextVar[list[Remark] | None] = ContextVar("tilekit_remarks", default=None)


def remark(location: Location, transformation: str, text: str, *, done: bool | None = True) -> None:
    """Note one, if anybody wants to know.

    Args:
        location: of the operation that it is about.
        transformation: its name in `op.explain()`.
        text: what was done or seen, or why it was not done.
        done: whether it was; None of what was only seen.
    """
    remarks = _collected.get()
    if remarks is not None:
        remarks.append(Remark(tuple(map(Place.of, location.stack())), transformation, done, text))


@contextmanager
def collected() -> Iterator[list[Remark]]:
    """While the block runs, the list gets the remarks of this thread."""
    remarks: list[Remark] = []
    token = _collected.set(remarks)
    try:
        yield remarks
    finally:
        _collected.reset(token)
