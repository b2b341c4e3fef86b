"""A little SVG writer for the pictures of these docs: boxes, text, arrows."""

from __future__ import annotations

from html import escape

INK, PAPER, LINE = "#1f2933", "#ffffff", "#7b8794"
BLUE, GREEN, AMBER, GREY = "#cfe3f7", "#d5efd6", "#fbe3b5", "#eef1f4"


class Drawing:
    """Shapes on a white card, so that a picture reads the same on a light and on a dark page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str = GREY, dashed: bool = False, edge: str = LINE) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" stroke="{edge}"{dash}/>')

    def text(self, x: float, y: float, words: str, size: int = 14, anchor: str = "middle", mono: bool = False) -> None:
        family = "monospace" if mono else "sans-serif"
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-family="{family}" text-anchor="{anchor}" '
            f'fill="{INK}">{escape(words)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{LINE}" stroke-width="1.4"{dash} '
            'marker-end="url(#head)"/>'
        )

    def curve(self, *points: tuple[float, float]) -> None:
        """An arrow along the cubic curve with these four points."""
        start, *rest = (f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<path d="M{start} C{" ".join(rest)}" fill="none" stroke="{LINE}" stroke-width="1.4" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"
