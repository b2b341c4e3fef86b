"""Draw the pictures of collectives, of what they were measured at, and of the model of their costs.

    python docs/tools/draw_collectives.py

The figures are those of `collective_costs.py`; nothing is measured here. `tests/docs/test_collective_costs.py` checks that the
pictures are up to date.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import collective_costs as costs
from drawing import AMBER, BLUE, GREEN, INK, LINE, PAPER, Drawing

IMAGES = Path(__file__).resolve().parents[1] / "images"
RED = "#f6d0d3"
RANKS = (BLUE, GREEN, AMBER, RED)
CELL, ROW = 27, 28  # pixels: the width of a part, and of a rank's row

# A part is the colours that are summed in it, and a label; None is memory that nobody reads.
Part = tuple[Sequence[str], str] | None
Memory = Sequence[Part]  # of a rank


def _part(d: Drawing, x: float, y: float, part: Part) -> None:
    if part is None:
        d.box(x, y, CELL - 2, ROW - 4, PAPER, dashed=True)
        return
    colours, label = part
    width = (CELL - 2) / len(colours)
    for at, colour in enumerate(colours):
        d.parts.append(f'<rect x="{x + at * width:g}" y="{y:g}" width="{width:g}" height="{ROW - 4}" fill="{colour}"/>')
    d.box(x, y, CELL - 2, ROW - 4, "none")
    d.text(x + (CELL - 2) / 2, y + 16, label, 12, mono=True)


def _panel(d: Drawing, x: float, y: float, title: str, before: Sequence[Memory], after: Sequence[Memory]) -> None:
    d.text(x, y, title, 14, anchor="start", mono=True)
    widest = max(map(len, before))
    for rank in range(4):
        top = y + 14 + ROW * rank
        d.text(x + 34, top + 16, f"rank {rank}", 11, anchor="end")
        for at, part in enumerate(before[rank]):
            _part(d, x + 42 + CELL * at, top, part)
        for at, part in enumerate(after[rank]):
            _part(d, x + 42 + CELL * widest + 44 + CELL * at, top, part)
    middle = y + 14 + 2 * ROW - 2
    d.arrow(x + 42 + CELL * widest + 4, middle, x + 42 + CELL * widest + 36, middle)


def collectives() -> Drawing:
    """What each of four ranks has before and after."""
    d = Drawing(650, 500, "What collectives give to each of four ranks: a colour is the rank that a part comes from")
    ranks = range(4)
    one: list[Memory] = [[((RANKS[rank],), "")] for rank in ranks]
    four: list[Memory] = [[((RANKS[rank],), str(part)) for part in ranks] for rank in ranks]
    _panel(d, 20, 28, "all_reduce", one, [[(RANKS, "")] for _ in ranks])
    _panel(d, 315, 28, "broadcast(root=0)", [one[0], *([[None]] * 3)], [one[0]] * 4)
    _panel(d, 20, 183, "all_gather", one, [[((RANKS[part],), "") for part in ranks] for _ in ranks])
    _panel(d, 315, 183, "reduce_scatter", four, [[(RANKS, str(rank))] for rank in ranks])
    empty: list[Memory] = [[None]] * 4
    _panel(d, 20, 338, "send(to=2), recv(source=0)", [one[0], *empty[1:]], [*empty[:2], one[0], empty[3]])
    _panel(d, 315, 338, "all_to_all", four, [[((RANKS[part],), str(rank)) for part in ranks] for rank in ranks])
    d.text(325, 488, "A colour is the rank that a part comes from; all four together are the sum.", 13)
    return d


BARS = ("torch.distributed", "prototype, a process a GPU", "prototype, one process")


def measured() -> Drawing:
    """The time of an all-reduce on the device, by size: in each group of bars the longest has the same length."""
    row, bar, left = 24, 250, 215
    d = Drawing(570, 366, "The time of an all-reduce of 64 KB, 32 MB and 1 GB on two H200, with PyTorch and with the prototype")
    y = 26
    for size, times in costs.STREAM["all_reduce"].items():
        d.text(12, y, f"all_reduce, {costs.size_of(size)}", 14, anchor="start")
        for name, time, fill in zip(BARS, times, (BLUE, AMBER, GREEN)):
            d.text(left - 8, y + row - 3, name, 12, anchor="end")
            d.box(left, y + row - 17, bar * time / max(times), 18, fill)
            d.text(left + bar * time / max(times) + 8, y + row - 3, f"{time:g} µs", 12, anchor="start")
            y += row
        y += 32
    d.text(12, y - 6, "Two H200 by NVLink, NCCL; time in the stream, op after op. Each group has", 13, anchor="start")
    d.text(12, y + 12, "a scale of its own. At 64 KB it is the host that takes the time.", 13, anchor="start")
    return d


def model() -> Drawing:
    """The measured times of all-reduces, and the model's lines, both axes logarithmic."""
    left, top, width, height = 70, 20, 500, 300
    d = Drawing(620, 400, "Measured times of an all-reduce on two H200, and the times of the model, by size")
    ends = (math.log2(costs.KB), math.log2(costs.GB))

    def place(size: float, us: float) -> tuple[float, float]:
        return (
            left + width * (math.log2(size) - ends[0]) / (ends[1] - ends[0]),
            top + height * (1 - math.log10(us) / 4),
        )

    for power in range(5):
        y = place(costs.KB, 10**power)[1]
        d.parts.append(f'<line x1="{left}" y1="{y:g}" x2="{left + width}" y2="{y:g}" stroke="{LINE}" stroke-width="0.4"/>')
        d.text(left - 8, y + 4, costs.shown(10**power).replace(".00", "").replace(".0", ""), 12, anchor="end")
    for size in (costs.KB, 64 * costs.KB, 4 * costs.MB, 32 * costs.MB, costs.GB):
        d.text(place(size, 1)[0], top + height + 18, costs.size_of(size), 12)
    sizes = [2 ** (ends[0] + (ends[1] - ends[0]) * step / 80) for step in range(81)]
    lines = (
        [(size, costs.predicted("all_reduce", size)) for size in sizes],
        [(size, costs.fastest(costs.DIRECTLY, costs.one_shot(2, size))) for size in sizes if size <= 4 * costs.MB],
    )
    for curve, dash in zip(lines, ("", ' stroke-dasharray="5 4"')):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve)
        d.parts.append(f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.4"{dash}/>')
    stream = [(size, times[0]) for size, times in costs.STREAM["all_reduce"].items()]
    dots = (
        (list(costs.GRAPH["NCCL"].items()), GREEN, "NCCL in a CUDA graph"),
        (stream, BLUE, "NCCL in a stream (torch)"),
        (list(costs.GRAPH["tile kernel"].items()), AMBER, "tile kernel in a CUDA graph"),
    )
    for at, (marks, fill, words) in enumerate(dots):
        for x, y in [*(place(*point) for point in marks), (left + 20, top + 18 + 20 * at)]:
            d.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{INK}" stroke-width="0.8"/>')
        d.text(left + 32, top + 22 + 20 * at, words, 12, anchor="start")
    d.text(
        left,
        top + height + 44,
        "Lines: the model; dashed, that of the tile kernel. Both axes are logarithmic.",
        13,
        anchor="start",
    )
    d.text(
        left, top + height + 64, "At 64 KB in a stream the host takes the time; no line was fitted to that.", 13, anchor="start"
    )
    return d


PICTURES = {"collectives": collectives, "collectives-measured": measured, "collectives-model": model}


def main() -> None:
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
