"""Draw how the modules of tilekit import each other, from their source: python docs/tools/draw_architecture.py

The rows of the whole package are the layers of the contract in setup.cfg; those of a room (a package inside it) follow from its
imports, and a circle is an error. An arrow is an import; one that a chain of other arrows implies is left out, as are those of
the bottom row, which everything may use. Boxes in amber import numba, llvmlite or CUDA.
"""

from __future__ import annotations

import ast
import configparser
import functools
from collections.abc import Iterator
from pathlib import Path

from drawing import AMBER, BLUE, GREY, Drawing

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGES = ROOT / "docs" / "images"
ROOMS = ("", "compiler", "launch", "ops")  # what there is a picture of: the whole package, and rooms of it
DEVICE_LIBRARIES = {"numba", "llvmlite", "cuda"}
WIDTH, BOX, HEIGHT = 1150, 118, 40
Edges = set[tuple[str, str]]
Point = tuple[float, float]


def layers(config: Path = ROOT / "setup.cfg") -> list[list[str]]:
    """The rows of modules, highest first."""
    parser = configparser.ConfigParser()
    parser.read(config)
    rows = parser["importlinter:contract:layers"]["layers"].split("\n")
    return [[name.strip(" ()") for name in row.split(":")] for row in rows if row.strip()]


def module_of(path: Path, room: Path) -> str:
    return path.relative_to(room).parts[0].removesuffix(".py")


def imported(path: Path, package: Path) -> Iterator[str]:
    """Dotted names of what a file imports, without what only type checkers see."""
    depth = len(path.relative_to(package).parts)  # a leading dot in tilekit/stream.py means tilekit
    within = [package.name, *path.relative_to(package).parts[:-1]]
    hidden: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            hidden.update(inner for statement in node.body for inner in ast.walk(statement))
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = within[: depth - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield prefix
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


@functools.cache
def imports(package: Path = ROOT / "tilekit", room: str = "") -> tuple[Edges, set[str]]:
    """Which module of a room of the package imports which other one of it, and those that import a device library."""
    inside = package / room
    files = [file for file in sorted(inside.rglob("*.py")) if not room or file.parent != inside or file.stem != "__init__"]
    modules = {module_of(file, inside) for file in files}
    dotted = ".".join([package.name, *([room] if room else [])]) + "."
    edges, close_to_device = set(), set()
    for file in files:
        source = module_of(file, inside)
        for name in imported(file, package):
            if name.partition(".")[0] in DEVICE_LIBRARIES:
                close_to_device.add(source)
            target = name.removeprefix(dotted).split(".")[0] if name.startswith(dotted) else source
            if target in modules and target != source:
                edges.add((source, target))
    return edges, close_to_device


def levels(edges: Edges) -> list[list[str]]:
    """The modules in rows, highest first, each above all that it imports.

    Raises:
        ValueError: some import each other in a circle.
    """
    left = {name for edge in edges for name in edge}
    rows: list[list[str]] = []
    while left:
        row = sorted(name for name in left if not any(a == name and b in left for a, b in edges))
        if not row:
            raise ValueError(f"a circle of imports: {', '.join(sorted(left))}")
        rows.insert(0, row)
        left -= set(row)
    return rows


def reduce(edges: Edges, row: dict[str, int]) -> Edges:
    """The edges to lower rows that no chain of other such edges implies."""
    down = {(a, b) for a, b in edges if a in row and b in row and row[a] < row[b]}
    below: dict[str, set[str]] = {}
    for name in sorted(row, key=lambda n: -row[n]):
        direct = {b for a, b in down if a == name}
        below[name] = direct.union(*(below[b] for b in direct))
    return {(a, b) for a, b in down if not any(b in below[via] for x, via in down if x == a)}


def around(start: Point, end: Point, boxes: list[Point]) -> tuple[Point, Point]:
    """The inner points of a curve from `start` to `end` that passes through no box, as little bent as possible."""
    (x1, y1), (x2, y2) = start, end
    for share in (0.2, 0.1, 0.35, 0.02):
        first, second = y1 + share * (y2 - y1), y2 - share * (y2 - y1)
        for cx in ((x1 + x2) / 2 + side * bend for bend in range(30, 1400, 15) for side in (-1, 1)):
            curve = []
            for t in (step / 80 for step in range(1, 80)):
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
                curve.append((a * x1 + (b + c) * cx + d * x2, a * y1 + b * first + c * second + d * y2))
            if min(curve)[0] > 10 and max(curve)[0] < WIDTH - 10 and not hits(curve, boxes):
                return (cx, first), (cx, second)
    raise ValueError(f"no way from {start} to {end}: give the picture more room")


def hits(curve: list[Point], boxes: list[Point]) -> bool:
    return any(abs(x - bx) < BOX / 2 + 6 and by - 3 < y < by + HEIGHT + 3 for x, y in curve for bx, by in boxes)


def draw(room: str = "") -> Drawing:
    edges, close_to_device = imports(room=room)
    present = {name for edge in edges for name in edge}
    rows = [[name for name in row if name in present] for row in (levels(edges) if room else layers())]
    rows = [row for row in rows if row]
    row_of = {name: at for at, row in enumerate(rows) for name in row}
    row_height = 96
    title = f"The modules of tilekit{room and '.' + room} and what they import"
    d = Drawing(WIDTH, row_height * len(rows) + 40, title)
    centers = {}
    for at, row in enumerate(rows):
        for k, name in enumerate(row):
            centers[name] = (WIDTH * (k + 1) / (len(row) + 1), 24 + row_height * at)
    base = set(rows[-1])
    for a, b in sorted(reduce({edge for edge in edges if edge[1] not in base}, row_of)):
        (x1, y1), (x2, y2) = centers[a], centers[b]
        start, end = (x1, y1 + HEIGHT), (x2, y2 - 1)
        others = [at for name, at in centers.items() if name not in (a, b)]
        straight = [(x1 + (x2 - x1) * step / 80, start[1] + (end[1] - start[1]) * step / 80) for step in range(81)]
        if hits(straight, others):
            d.curve(start, *around(start, end, others), end)
        else:
            d.arrow(*start, *end)
    for name, (x, y) in sorted(centers.items()):
        fill = AMBER if name in close_to_device else BLUE if (ROOT / "tilekit" / room / name).is_dir() else GREY
        d.box(x - BOX / 2, y, BOX, HEIGHT, fill)
        d.text(x, y + 25, name, 14, mono=True)
    d.text(
        20,
        d.height - 10,
        "amber: imports numba, llvmlite or CUDA; blue: a package; grey: a module. Imports of the bottom row are not drawn.",
        12,
        anchor="start",
    )
    return d


def picture(room: str) -> Path:
    """The file of a room's picture."""
    return IMAGES / f"architecture{room and '-' + room}.svg"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for room in ROOMS:
        picture(room).write_text(draw(room).svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
