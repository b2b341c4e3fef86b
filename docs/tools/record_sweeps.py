"""Make the records of sweeps from a folder of their pieces, and from these the pictures, tables and claims of the docs.

    python docs/tools/record_sweeps.py FOLDER [--commit HASH] [--replace]

A piece is what `python -m tilekit bench sweep FAMILY --seed S --from K --to L --json FILE` writes; FOLDER has any number of them,
of any families and seeds. A sweep that lacks cases is left out, and said so. Records of other families and seeds stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import draw_speed
import sweep_tables
from sweep_tables import RECORDS

from tilekit_benchmarks import report
from tilekit_benchmarks.drawn.record import DrawnRun, Piece, join, load

_COLOURS = 32  # of a picture: half of its bytes are shades of the edges of letters


def sweeps(folder: Path) -> list[DrawnRun]:
    """The sweeps whose pieces are all in `folder`, joined."""
    pieces: dict[tuple[str, int], list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        run = load(path)
        pieces[run.family, run.seed].append(path)
    whole = []
    for (family, seed), paths in sorted(pieces.items()):
        run = join(paths)
        if len(run.results) < run.cases:
            print(f"{family}, seed {seed}: left out, it has {len(run.results)} of {run.cases} cases", file=sys.stderr)
        else:
            whole.append(run)
    return whole


def signed(run: DrawnRun, commit: str | None) -> DrawnRun:
    """`run` with the commands as users would type them, and with the commit where git did not know it, which a note says.

    Whether that commit had changes is then not known.
    """
    if commit is not None and (run.commit != commit or run.dirty):
        stale = f"{run.commit}{', with changes' if run.dirty else ''}" if run.commit else "nothing"
        note = f"the commit was entered afterwards: git was out of date where this was measured, and said {stale}"
        run = dataclasses.replace(run, commit=commit, dirty=None, notes=(*run.notes, note))
    command = f"python -m tilekit bench sweep {run.family} --cases {run.cases} --seed {run.seed} --rounds {run.rounds}"
    return dataclasses.replace(run, command=command, pieces=tuple(map(_typed, run.pieces)))


def _typed(piece: Piece) -> Piece:
    """Without the folders of the machine that it was measured on."""
    if piece.command is None:
        return piece
    return dataclasses.replace(piece, command=re.sub(r"(--(?:lock|json|out|plot)) \S*/", r"\1 ", piece.command))


def picture(run: DrawnRun, path: Path) -> None:
    """Draw `run`, in few colours, since the repository keeps it."""
    from PIL import Image  # matplotlib brings it

    report.plot(run, path)
    with Image.open(path) as full:
        full.convert("RGB").quantize(_COLOURS).save(path, optimize=True)


def write(whole: Sequence[DrawnRun], commit: str | None, replace: bool) -> None:
    """Write the records and the pictures, one for the first seed of each family."""
    for family in {run.family for run in whole} if replace else ():
        for old in RECORDS.glob(f"sweep-{family}-*h200.*"):
            old.unlink()
    for run in whole:
        report.save(signed(run, commit), RECORDS / f"sweep-{run.family}-{run.seed}-h200.json")
    for family, mine in sweep_tables.runs().items():
        if any(run.family == family for run in whole):
            picture(mine[0][1], RECORDS / f"sweep-{family}-h200.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", metavar="HASH", help="what was measured, where the pieces name another commit, or none")
    parser.add_argument("--replace", action="store_true", help="remove the records of other seeds of the families in FOLDER")
    options = parser.parse_args()
    whole = sweeps(options.folder)
    if strange := {run.device.name for run in whole} - {"NVIDIA H200"}:
        raise SystemExit(f"the records are of an NVIDIA H200, not {', '.join(strange)}")
    write(whole, options.commit, options.replace)
    sweep_tables.main()
    draw_speed.main()


if __name__ == "__main__":
    main()
