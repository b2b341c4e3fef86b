"""What passes say of what they do, and of what they do not: for `op.explain()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from tilekit.compiler.ir.nodes import Location

__all__ = ["Remark", "collected", "remark"]


class Remark(NamedTuple):
    """One transformation of one place.

    Attributes:
        line: of the kernel's file.
        transformation: which.
        done: whether it was done; None of what was seen, and nothing done about.
        text: what was done or seen, or why it was not done.
    """

    line: int
    transformation: str
    done: bool | None
    text: str


_collected: ContextVar[list[Remark] | None] = ContextVar("tilekit_remarks", default=None)


def remark(location: Location, transformation: str, text: str, *, done: bool | None = True) -> None:
    """Note one, if anybody wants to know."""
    remarks = _collected.get()
    if remarks is not None:
        remarks.append(Remark(location.line, transformation, done, text))


@contextmanager
def collected() -> Iterator[list[Remark]]:
    """While the block runs, the list gets the remarks of this thread."""
    remarks: list[Remark] = []
    token = _collected.set(remarks)
    try:
        yield remarks
    finally:
        _collected.reset(token)
