"""Draw the front page's picture: how fast tilekit is in sweeps, with the fastest of the other libraries as 1.

    python docs/tools/draw_speed.py

The figures are those of the records of sweeps in `docs/benchmarks`, all seeds together; nothing is measured here.
`tests/docs/test_pictures.py` checks that the picture is up to date.
"""

from __future__ import annotations

import math

from drawing import AMBER, INK, LINE, Drawing
from sweep_tables import ROOT, of_families, runs, statistics

PICTURE = ROOT / "docs" / "images" / "speed.svg"

NAMES = {
    "rows": "softmax, norms, and gradients",
    "columns": "sums and maxima of columns",
    "pointwise": "gelu, silu, swiglu, rope",
    "scans": "cumsum",
    "transposes": "transpose",
    "losses": "cross-entropy",
    "gathers": "embedding",
    "gemm": "products of matrices",
    "grouped": "products by groups of rows",
    "attention": "attention",
    "gradients": "gradients of attention",
    "prefill": "attention, with earlier keys",
    "decode": "attention, decoding",
}
WIDTH, LEFT, OCTAVE, ROW, BAR = 480, 18, 74, 40, 13  # pixels of the picture, before the axis, of twice the speed, and of a row
SLOWEST, FASTEST = 0.25, 16.0  # of the axis


def at(ratio: float) -> float:
    """Where a ratio lies; beyond the axis, at its end."""
    return LEFT + OCTAVE * math.log2(min(max(ratio, SLOWEST), FASTEST) / SLOWEST)


def draw() -> Drawing:
    families = runs()
    end = 14 + ROW * len(families)
    d = Drawing(
        WIDTH, end + 44, "The speed of tilekit's kernels in sweeps on an H200, with the fastest of the other libraries as 1"
    )
    for exponent in range(round(math.log2(SLOWEST)), round(math.log2(FASTEST)) + 1):
        x, dashes = at(2.0**exponent), ' stroke-dasharray="3 3"' if exponent else ""
        d.parts.append(
            f'<line x1="{x:g}" y1="14" x2="{x:g}" y2="{end}" stroke="{LINE}" stroke-width="{0.5 + (not exponent)}"{dashes}/>'
        )
        d.text(x, end + 16, f"{2.0**exponent:g}", 12)
    for row, family in enumerate(families):
        y = 14 + ROW * row
        of = statistics(of_families([family]))
        failed = f", {of.failed} failed" if of.failed else ""
        d.box(at(of.low), y + 20, max(at(of.high) - at(of.low), 1), BAR, AMBER)
        x = at(of.mean)
        d.parts.append(f'<line x1="{x:g}" y1="{y + 17}" x2="{x:g}" y2="{y + 23 + BAR}" stroke="{INK}" stroke-width="3"/>')
        for anchor, x_of_words, words in (
            ("start", LEFT, NAMES[family]),
            ("end", WIDTH - 18, f"mean {of.mean:.2f}, 5 % {of.low:.2f}{failed}"),
        ):
            width = 6.6 * len(words)  # of a card behind the words, so that no line goes through them
            left = x_of_words if anchor == "start" else x_of_words - width
            d.parts.append(f'<rect x="{left:g}" y="{y + 2}" width="{width:g}" height="15" fill="#ffffff"/>')
            d.text(x_of_words, y + 14, words, 13, anchor=anchor)
    d.text(WIDTH / 2, end + 36, "the geometric mean, and from the 5 % to the 95 % quantile", 13)
    return d


def main() -> None:
    PICTURE.write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
