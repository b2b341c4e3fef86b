"""A sharded array drawn with letters: which worker holds which part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilekit.distributed.sharding.specs import Region, coordinates, regions, shown_region

if TYPE_CHECKING:
    from tilekit.distributed.sharding.sharded import Sharded

__all__ = ["picture"]


def picture(sharded: Sharded) -> str:
    """A drawing: rows and columns are the dimensions that are split, if there are no more than two; else a list.

    In each part stand the numbers of the workers that hold it: copies are separated by commas, summands by plus signs.
    """
    shape, spec, axes = sharded.shape, sharded.spec, sharded.mesh.axes
    holders: dict[Region, dict[tuple[int, ...], list[str]]] = {}
    for number, (held, at) in enumerate(zip(regions(shape, spec, axes), coordinates(axes))):
        copy = tuple(index for name, index in at.items() if name not in spec.split and name not in spec.partial)
        holders.setdefault(held, {}).setdefault(copy, []).append(str(number))
    cells = {held: ", ".join(" + ".join(summands) for summands in copies.values()) for held, copies in holders.items()}
    split = [dim for dim in range(len(shape)) if spec.names(dim)]
    workers = ", ".join(f"{number} {worker.device}" for number, worker in enumerate(sharded.mesh.workers))
    if len(split) > 2:
        width = max(len(shown_region(held, shape)) for held in cells)
        lines = [f"{shown_region(held, shape):{width}}  {cell}" for held, cell in sorted(cells.items())]
    else:
        across = split[-1] if split and split[-1] != 0 else None
        down = split[0] if split and split[0] != across else None
        lines = _grid(cells, down, across)
    return "\n".join([str(sharded), *lines, f"workers: {workers}"])


def _grid(cells: dict[Region, str], down: int | None, across: int | None) -> list[str]:
    """The parts by row and column."""
    rows = sorted({_ends(held, down) for held in cells}, key=lambda ends: ends or (0, 0))
    columns = sorted({_ends(held, across) for held in cells}, key=lambda ends: ends or (0, 0))
    texts: dict[tuple[object, object], str] = {}
    for held, cell in cells.items():  # parts without elements coincide with others of their row or column
        texts[_ends(held, down), _ends(held, across)] = cell
    table = [[texts.get((row, column), "") for column in columns] for row in rows]
    heads = ["" if column is None else f"{column[0]}:{column[1]}" for column in columns]
    sides = ["" if row is None else f"{row[0]}:{row[1]}" for row in rows]
    widths = [max(map(len, (head, *texts_of))) for head, *texts_of in zip(heads, *table)]
    margin = max(map(len, sides))
    indent = " " * margin + (" " if margin else "")
    rule = indent + "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    over = "   ".join(f"{head:^{width}}" for head, width in zip(heads, widths))
    lines = [rule] if across is None else [f"{indent}  {over}".rstrip(), rule]
    for side, row_texts in zip(sides, table):
        margin_text = f"{side:>{margin}} " if margin else ""
        lines += [margin_text + "|" + "|".join(f" {text:{width}} " for text, width in zip(row_texts, widths)) + "|", rule]
    return lines


def _ends(held: Sequence[tuple[int, int]], dim: int | None) -> tuple[int, int] | None:
    return None if dim is None else held[dim]
