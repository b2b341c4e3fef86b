"""Tables of explanations: as text in columns, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tilekit.compiler.ir.remarks import Remark

__all__ = ["Table", "as_html", "as_text", "of_remarks"]

_DONE = {True: "yes", False: "no", None: "-"}


class Table(NamedTuple):
    """Rows below a head."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def of_remarks(remarks: Sequence[Remark], filename: str) -> Table:
    """What passes said of a kernel in a file: with line and column there, or the files and the calls of any other place."""

    def where(one: Remark) -> str:
        if len(one.stack) == 1 and one.filename == filename:
            return str(one.line) if one.column is None else f"{one.line}:{one.column + 1}"
        return ", called in ".join(map(str, one.stack))

    rows = [(where(one), one.transformation, _DONE[one.done], one.text) for one in remarks]
    return Table(("line", "transformation", "done", "what, or why not"), rows)


def as_text(parts: Sequence[str | Table]) -> str:
    """Sentences, each a line, and tables in columns behind an empty one. Tables without rows are left out."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        elif part.rows:
            every = (part.head, *part.rows)
            widths = [max(len(row[column]) for row in every) for column in range(len(part.head))]
            lines += [
                "",
                *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every),
            ]
    return "\n".join(lines)


def as_html(parts: Sequence[str | Table]) -> str:
    """The same as HTML: paragraphs and tables."""
    text: list[str] = []
    for part in parts:
        if isinstance(part, str):
            text.append(f"<p>{escape(part)}</p>")
        elif part.rows:
            text += ["<table>", f"<thead>{_row('th', part.head)}</thead>", "<tbody>"]
            text += [*(_row("td", row) for row in part.rows), "</tbody>", "</table>"]
    return "\n".join(text)


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"
