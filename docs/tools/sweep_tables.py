"""Draw up what the docs say of sweeps: the tables of `docs/benchmarks/sweeps.md`, and that of the README.

    python docs/tools/sweep_tables.py

The figures are those of the records `docs/benchmarks/sweep-FAMILY-SEED-h200.json`; nothing is measured here. `record_sweeps.py`
makes the records of pieces. `tests/docs/test_sweep_tables.py` checks that the pages have these tables.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from tilekit_benchmarks.drawn import FAMILIES  # noqa: E402 - they are in the folder that was just named
from tilekit_benchmarks.drawn.record import CaseResult, DrawnRun, geometric_mean, load, worst  # noqa: E402

RECORDS = ROOT / "docs" / "benchmarks"
PAGE, README = RECORDS / "sweeps.md", ROOT / "README.md"

MEAN, QUANTILE, LOWEST = 1.0, 0.85, 0.7
"""What is aimed at in each sweep: a geometric mean and a 5 % quantile, and that nothing of `BOUNDED` is slower."""
BOUNDED = ("rows", "columns", "pointwise", "scans", "transposes", "losses", "gathers")
# What the README says, and the families that it means.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("softmax, norms, losses, elementwise kernels, sums, scans, transposes, embeddings", BOUNDED),
    ("products of matrices, also batched and grouped", ("gemm", "grouped")),
    ("attention, also with earlier keys, and decoding", ("attention", "prefill", "decode")),
    ("gradients of attention", ("gradients",)),
)
_SHOWN = 3  # of the slowest cases


@dataclass(frozen=True)
class Statistics:
    """What is said of some cases.

    Attributes:
        cases: how many were drawn.
        counted: those with a peer.
        failed: in how many of these tilekit failed or was wrong. Their ratio is 0.
        mean: the geometric mean of the others.
        low, tenth, median, high: the quantiles of 5 %, 10 %, 50 % and 95 %, failures included.
        lowest: the lowest ratio.
    """

    cases: int
    counted: int
    failed: int
    mean: float
    low: float
    tenth: float
    median: float
    high: float
    lowest: float


def statistics(results: Sequence[CaseResult]) -> Statistics:
    """Those of the cases `results`, of one sweep or several."""
    ratios = [result.ratio for result in results if result.ratio is not None]
    positive = [ratio for ratio in ratios if ratio > 0]
    low, tenth, median, high = map(float, np.quantile(ratios, (0.05, 0.1, 0.5, 0.95)))
    failed = len(ratios) - len(positive)
    return Statistics(len(results), len(ratios), failed, geometric_mean(positive), low, tenth, median, high, min(ratios))


def runs() -> dict[str, list[tuple[Path, DrawnRun]]]:
    """The records by family, in the order of the families and of the seeds."""
    records = [(path, load(path)) for path in RECORDS.glob("sweep-*-h200.json")]
    records.sort(key=lambda record: record[1].seed)
    by_family = {family: [record for record in records if record[1].family == family] for family in FAMILIES}
    return {family: mine for family, mine in by_family.items() if mine}


def of_families(families: Sequence[str]) -> list[CaseResult]:
    """All cases of these families, of all seeds."""
    return [result for family, mine in runs().items() if family in families for _, run in mine for result in run.results]


def table() -> list[str]:
    """A row for each sweep, with what misses the aim in bold; and one for all sweeps of a family that has several."""
    lines = [
        "| family | seed | commit | cases | geometric mean | 5 % | 10 % | median | lowest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family, mine in runs().items():
        for at, (path, run) in enumerate(mine):
            name = f"[`{family}`](sweep-{family}-h200.png)" if at == 0 else ""
            lines.append(_row(family, name, f"[{run.seed}]({path.name})", f"{(run.commit or '')[:7]}", run.results))
        if len(mine) > 1:
            lines.append(_row(family, "", "all", "", [result for _, run in mine for result in run.results]))
    return lines


def _row(family: str, name: str, seed: str, commit: str, results: Sequence[CaseResult]) -> str:
    of = statistics(results)
    mean = _aimed(of.mean, MEAN if not of.failed else np.inf) + (f" ({of.failed} failed)" if of.failed else "")
    lowest = _aimed(of.lowest, LOWEST) if family in BOUNDED else f"{of.lowest:.3f}"
    cases = f"{of.counted}" + (f" of {of.cases}" if of.counted < of.cases else "")
    low = _aimed(of.low, QUANTILE)
    return f"| {name} | {seed} | {commit} | {cases} | {mean} | {low} | {of.tenth:.3f} | {of.median:.3f} | {lowest} |"


def _aimed(value: float, aim: float) -> str:
    return f"{value:.3f}" if value >= aim else f"**{value:.3f}**"


def missed() -> list[str]:
    """Which aims are missed, in which families, a line for each aim."""
    means: list[str] = []
    quantiles: list[str] = []
    lowest: list[str] = []
    for family, mine in runs().items():
        each = [statistics(run.results) for _, run in mine]
        means += [f"`{family}`"] * any(of.failed or of.mean < MEAN for of in each)
        quantiles += [f"`{family}`"] * any(of.low < QUANTILE for of in each)
        lowest += [f"`{family}`"] * (family in BOUNDED and any(of.lowest < LOWEST for of in each))
    return [
        f"- a geometric mean of {MEAN:g}, failures counting as 0: {_listed(means)};",
        f"- a 5 % quantile of {QUANTILE:g}: {_listed(quantiles)};",
        f"- no case below {LOWEST:g}, of {_listed([f'`{family}`' for family in BOUNDED])}: {_listed(lowest)}.",
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "by none"


def slowest() -> list[str]:
    """A row for each of a family's slowest cases."""
    lines = ["| family | case | ratio | µs | best peer, µs |", "|---|---|---|---|---|"]
    for family in runs():
        for at, result in enumerate(worst(of_families([family]), _SHOWN)):
            if result.failure is not None:
                rest = f"0 | | {result.failure.cause}: {result.failure.reason.splitlines()[0]}"
            else:
                assert result.best_peer is not None, "it has a ratio"
                rest = f"{result.ratio:.3f} | {result.own_us:.1f} | {result.best_peer}, {result.peers_us[result.best_peer]:.1f}"
            lines.append(f"| {f'`{family}`' if at == 0 else ''} | {result.case.label} | {rest} |")
    return lines


def short() -> list[str]:
    """The README's: a row for each group of families."""
    lines = ["| | cases | geometric mean | 5 % quantile | slowest |", "|---|---|---|---|---|"]
    for name, families in GROUPS:
        of = statistics(of_families(families))
        mean = f"{of.mean:.2f}" + (f" without {of.failed} that failed" if of.failed else "")
        lines.append(f"| {name} | {of.counted} | {mean} | {of.low:.2f} | {_slowest(families)} |")
    return lines


def _slowest(families: Sequence[str]) -> str:
    """The lowest ratio of those that ran: how many did not is said elsewhere."""
    return f"{min(result.ratio for result in of_families(families) if result.ratio):.2f}"


PARTS = {PAGE: {"table": table, "missed": missed, "slowest": slowest}, README: {"sweeps": short}}
"""What stands in the pages between `<!-- NAME: sweep_tables.py -->` and `<!-- end -->`."""


def page(path: Path) -> str:
    """The page with its tables as the records have them."""
    text = path.read_text("utf-8")
    for name, lines in PARTS[path].items():
        pattern = rf"(<!-- {name}: sweep_tables\.py -->\n\n).*?(\n\n<!-- end -->)"
        body = "\n".join(lines())
        text, count = re.subn(pattern, lambda match, body=body: match[1] + body + match[2], text, flags=re.S)
        if count != 1:
            raise ValueError(f"{path} has {count} parts named {name}, not one")
    return text


def main() -> None:
    for path in PARTS:
        path.write_text(page(path), encoding="utf-8")


if __name__ == "__main__":
    main()
