"""A diagram as an SVG picture: boxes in rows, what runs first on top, arrows between them. No library draws it.

Boxes stand in the row behind the last one that leads to them; those that nothing leads to stand right above the first that they
lead to. In a row they are ordered by where their neighbours stand, which leaves few arrows crossed. An arrow over several rows
passes through a place of its own in each. A row that is too wide is broken into lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilekit.ops.drawing import Diagram

__all__ = ["DRAWN", "svg"]

DRAWN = 60  # boxes; of a diagram with more of them the first so many are drawn
_SWEEPS = 4  # over the rows, down and up, to order what is in them
_LONGEST = 48  # characters in a line of a box
_WIDEST = 1000  # a row of boxes, before it is broken

# In pixels. The font is the reader's own: a character of it is taken to be so wide.
_CHARACTER, _LINE, _SIZE = 7.3, 16, 12
_PADDING, _BETWEEN, _BELOW, _MARGIN = 10, 16, 34, 12
_PASSING = 10  # the width of the place that an arrow passes through

_INK, _PAPER, _EDGE = "#1f2933", "#ffffff", "#7b8794"
_FIRST, _INNER, _LAST = "#cfe3f7", "#eef1f4", "#d5efd6"  # boxes that nothing leads to, that are in between, that lead to nothing


@dataclass(eq=False)
class _Box:
    """A box of a picture; without lines it is a place where an arrow passes."""

    lines: Sequence[str] = ()
    width: float = _PASSING
    height: float = 0
    before: list[_Box] = field(default_factory=list)
    after: list[_Box] = field(default_factory=list)
    row: int = 0
    order: float = 0
    x: float = 0  # the middle
    y: float = 0  # the top
    cut: bool = False  # whether boxes that are not drawn lead to it, or it to them

    @property
    def bottom(self) -> float:
        return self.y + self.height


def svg(diagram: Diagram, note: str = "") -> str:
    """Draw a diagram; `note` is a line of text below it."""
    boxes = [_box(lines) for lines in diagram.nodes[:DRAWN]]
    for start, end in dict.fromkeys(diagram.edges):
        if start < len(boxes) and end < len(boxes):
            boxes[start].after.append(boxes[end])
            boxes[end].before.append(boxes[start])
        for at in (start, end):
            if at < len(boxes) and max(start, end) >= len(boxes):
                boxes[at].cut = True
    left_out = len(diagram.nodes) - len(boxes)
    rows = _rows(boxes)
    begins, ends = {start for start, _ in diagram.edges}, {end for _, end in diagram.edges}
    fills = {id(box): _LAST if at not in begins else _INNER if at in ends else _FIRST for at, box in enumerate(boxes)}
    ways = list(_ways(boxes, rows))
    _order(rows)
    notes = [f"{left_out} more are not drawn, beside the dashed boxes" if boxes and left_out else "", note]
    return _picture(rows, ways, fills, [text for text in notes if text], diagram.title)


def _box(lines: Sequence[str]) -> _Box:
    shown = [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in lines]
    width = max(map(len, shown), default=0) * _CHARACTER + 2 * _PADDING
    return _Box(shown, width, len(shown) * _LINE + _PADDING)


def _rows(boxes: Sequence[_Box]) -> list[list[_Box]]:
    """The boxes in rows, each of which is told its own."""
    missing = {id(box): len(box.before) for box in boxes}
    ready = [box for box in boxes if not box.before]
    for box in ready:  # which grows
        for following in box.after:
            following.row = max(following.row, box.row + 1)
            missing[id(following)] -= 1
            if not missing[id(following)]:
                ready.append(following)
    for box in boxes:
        if not box.before and box.after:
            box.row = min(following.row for following in box.after) - 1
    rows: list[list[_Box]] = [[] for _ in range(max((box.row for box in boxes), default=-1) + 1)]
    for box in boxes:
        rows[box.row].append(box)
    return rows


def _ways(boxes: Sequence[_Box], rows: Sequence[list[_Box]]) -> Iterable[list[_Box]]:
    """Each arrow: where it begins, the places it passes through, which are put into their rows, and where it ends."""
    for box in boxes:
        for end in list(box.after):
            way = [box]
            for row in range(box.row + 1, end.row):
                passing = _Box(row=row, before=[way[-1]])
                way[-1].after.append(passing)
                rows[row].append(passing)
                way.append(passing)
            if len(way) > 1:
                box.after.remove(end)
                end.before[end.before.index(box)] = way[-1]
                way[-1].after.append(end)
            yield [*way, end]


def _order(rows: Sequence[list[_Box]]) -> None:
    """Order each row by where the neighbours of its boxes are in the rows beside it."""
    for row in rows:
        _count(row)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2::-1]:
            for box in row:
                beside = box.before if down else box.after
                if beside:
                    box.order = sum(one.order for one in beside) / len(beside)
            row.sort(key=lambda box: box.order)
            _count(row)


def _count(row: Sequence[_Box]) -> None:
    """Number the boxes of a row from its middle, so that long rows and short ones can be compared."""
    for at, box in enumerate(row):
        box.order = at - (len(row) - 1) / 2


def _lines(row: Sequence[_Box]) -> Iterable[list[_Box]]:
    """A row in lines that are not too wide."""
    line: list[_Box] = []
    width = 0.0
    for box in row:
        if line and width + box.width > _WIDEST:
            yield line
            line, width = [], 0.0
        line.append(box)
        width += box.width + _BETWEEN
    if line:
        yield line


def _picture(
    rows: Sequence[Sequence[_Box]], ways: Sequence[Sequence[_Box]], fills: dict[int, str], notes: Sequence[str], title: str
) -> str:
    lines = [line for row in rows for line in _lines(row)]
    widths = [sum(box.width for box in line) + _BETWEEN * (len(line) - 1) for line in lines]
    width = max([*widths, *(len(text) * _CHARACTER for text in notes)], default=0) + 2 * _MARGIN
    y: float = _MARGIN
    for line, taken in zip(lines, widths, strict=True):
        x, height = (width - taken) / 2, max(box.height for box in line)
        for box in line:
            box.x, box.y = x + box.width / 2, y + (height - box.height) / 2
            x += box.width + _BETWEEN
        y += height + _BELOW
    y += _MARGIN - _BELOW if lines else 0
    parts = [part for way in ways for part in _arrow(way)]  # below the boxes
    parts += [part for line in lines for box in line if box.lines for part in _drawn(box, fills[id(box)])]
    for text in notes:
        y += _LINE
        parts.append(_text(width / 2, y - 4, text, "font-style='italic'"))
    height = y + _MARGIN if notes else y
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' role='img'>\n<title>{escape(title)}</title>\n"
        f"<rect width='100%' height='100%' rx='8' fill='{_PAPER}'/>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _drawn(box: _Box, fill: str) -> Iterable[str]:
    dashed = " stroke-dasharray='5 4'" if box.cut else ""
    yield (
        f"<rect x='{box.x - box.width / 2:.1f}' y='{box.y:.1f}' width='{box.width:.1f}' height='{box.height:.1f}' rx='4' "
        f"fill='{fill}' stroke='{_EDGE}'{dashed}/>"
    )
    for at, line in enumerate(box.lines):
        yield _text(box.x, box.y + _PADDING / 2 + _SIZE + at * _LINE, line, "" if at else "font-weight='bold'")


def _text(x: float, y: float, text: str, style: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-family='monospace' font-size='{_SIZE}' text-anchor='middle' fill='{_INK}'"
        f"{' ' if style else ''}{style}>{escape(text)}</text>"
    )


def _arrow(way: Sequence[_Box]) -> Iterable[str]:
    path = f"M{way[0].x:.1f},{way[0].bottom:.1f}"
    for start, end in pairwise(way):
        middle = (start.bottom + end.y) / 2
        path += f" C{start.x:.1f},{middle:.1f} {end.x:.1f},{middle:.1f} {end.x:.1f},{end.y:.1f}"
    x, y = way[-1].x, way[-1].y
    yield f"<path d='{path}' fill='none' stroke='{_EDGE}'/>"
    yield f"<path d='M{x - 4:.1f},{y - 7:.1f} L{x + 4:.1f},{y - 7:.1f} L{x:.1f},{y:.1f} z' fill='{_EDGE}'/>"
