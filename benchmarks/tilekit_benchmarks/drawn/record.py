"""What became of drawn cases: the record of a run, its statistics, its picture, and how the records of pieces are joined."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilekit._environment import DeviceInfo, DriverInfo
from tilekit_benchmarks.drawn.distribution import SIZES, Case
from tilekit_benchmarks.report import OWN, LeftOut, Run, align

__all__ = ["CaseResult", "DrawnRun", "Piece", "geometric_mean", "join", "load", "worst"]

_WORST = 5
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_COLOURS = dict(zip(SIZES, ("#d9822b", "#7b8794", "#2b6cb0")))


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What became of a case.

    Attributes:
        case: what was drawn.
        drawn_again: the cases that were drawn before under this number, and why they were not taken.
        own_us: the median time of tilekit's op; None if it was not measured.
        peers_us: that of each peer.
        best_peer: the fastest.
        ratio: how many times as fast as the best peer tilekit is: the median, over the rounds, of the peer's time divided by
            tilekit's. 0 if tilekit failed or was wrong; None if no peer took part.
        error: how far off tilekit's result is, see `problem.error_of`.
        variants: of those that have several, the one that was measured.
        launched: who was launched one by one, since it could not be recorded in a CUDA graph.
        left_out: who was not measured, and why.
        seconds: that the case took altogether.
        explained: of the slowest cases, what `explain` says of tilekit's launches.
    """

    case: Case
    drawn_again: tuple[str, ...] = ()
    own_us: float | None = None
    peers_us: dict[str, float] = dataclasses.field(default_factory=dict)
    best_peer: str | None = None
    ratio: float | None = None
    error: float | None = None
    variants: dict[str, str] = dataclasses.field(default_factory=dict)
    launched: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    seconds: float = 0.0
    explained: tuple[str, ...] = ()

    @property
    def failure(self) -> LeftOut | None:
        """Why tilekit was not measured; None if it was."""
        return next((one for one in self.left_out if one.name == OWN), None)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a run that was made at once.

    Attributes:
        start, stop: from which case on, and up to which, that one not included.
        date: when it was measured.
        command: the command line, if one asked for it.
    """

    start: int
    stop: int
    date: str
    command: str | None


@dataclass(frozen=True, kw_only=True)
class DrawnRun(Run):
    """The cases that were drawn of a family, or some of them.

    Attributes:
        family, seed: what they were drawn of, and from what.
        cases: how many the whole run has.
        pieces: in which parts it was measured.
        results: of each case that was, in their order.
    """

    family: str
    seed: int
    cases: int
    pieces: tuple[Piece, ...]
    results: tuple[CaseResult, ...]

    @property
    def title(self) -> str:
        """The family and the seed."""
        return f"sweep {self.family}, seed {self.seed}"

    @property
    def all_correct(self) -> bool:
        """Whether tilekit was wrong nowhere, and failed nowhere."""
        return not any(result.failure for result in self.results)

    def body(self) -> list[str]:
        """Statistics, the slowest cases, and who was left out."""
        counted = [result for result in self.results if result.ratio is not None]
        numbers = {result.case.number for result in self.results}
        lacking = sorted(set(range(self.cases)) - numbers)
        lines = [f"{len(numbers)} of {self.cases} cases" + (f"; not measured: {_spans(lacking)}" if lacking else "")]
        lines += _statistics(counted)
        slowest = worst(self.results)
        lines += ["", f"The worst {len(slowest)}:"] if slowest else []
        for result in slowest:
            lines += ["", *_described(result), *(f"    {line}" for line in result.explained)]
        alone = [result.case.label for result in self.results if result.ratio is None]
        lines += ["", "Without a peer:", *(f"  {label}" for label in alone)] if alone else []
        again = [f"  {result.case.number}: {why}" for result in self.results for why in result.drawn_again]
        lines += ["", "Drawn again:", *again] if again else []
        peers = [one for result in self.results for one in result.left_out if one.name != OWN]
        # Each wrong result is off by something else.
        absent = Counter((one.name, one.cause, "" if one.cause == "wrong" else f": {one.reason}") for one in peers)
        rows = [f"  {name}, {cause} in {count}{reason}" for (name, cause, reason), count in absent.most_common()]
        return [*lines, *(["", "Peers that were left out:", *rows] if rows else [])]

    def draw(self, figure: Any) -> None:
        """The ratios in their order, and by the time of the best peer."""
        figure.set_size_inches(8, 8)
        ordered, by_time = figure.subplots(2)
        counted = sorted((result for result in self.results if result.ratio is not None), key=_ratio)
        positive = [result for result in counted if _ratio(result) > 0]
        lowest = 0.7 * min(map(_ratio, positive), default=1.0)  # where those are drawn that failed
        for sizes in SIZES:
            mine = [(at, r) for at, r in enumerate(counted) if r.case.sizes == sizes]
            ratios = [_ratio(r) or lowest for _, r in mine]
            ordered.plot([100 * (at + 0.5) / len(counted) for at, _ in mine], ratios, "o", color=_COLOURS[sizes], label=sizes)
            timed = [(r.peers_us[r.best_peer], ratio) for (_, r), ratio in zip(mine, ratios) if r.best_peer is not None]
            by_time.plot([us for us, _ in timed], [ratio for _, ratio in timed], "o", color=_COLOURS[sizes], label=sizes)
        for axes in (ordered, by_time):
            axes.axhline(1.0, color="black", lw=1, ls=":")
            axes.set_yscale("log")
            axes.set_ylabel("tilekit's speed, to the best peer's", fontsize=9)
        mean = geometric_mean(map(_ratio, positive))
        ordered.axhline(mean, color="#d9822b", lw=1, label=f"geometric mean {mean:.3f}")
        ordered.set_xlabel("% of the cases that are slower", fontsize=9)
        ordered.legend(fontsize=8, frameon=False)
        by_time.set_xscale("log")
        by_time.set_xlabel("us of the best peer", fontsize=9)


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean: 0 where one of them is 0, NaN of none."""
    values = list(ratios)
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


def worst(results: Sequence[CaseResult], count: int = _WORST) -> list[CaseResult]:
    """Those with the lowest ratios, the lowest first."""
    return sorted((result for result in results if result.ratio is not None), key=_ratio)[:count]


def _ratio(result: CaseResult) -> float:
    assert result.ratio is not None, "those without were left out"
    return result.ratio


def _spans(numbers: Sequence[int]) -> str:
    """`0 to 3, 7` for 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low} to {high}" if high > low else f"{low}" for low, high in spans)


def _statistics(counted: Sequence[CaseResult]) -> list[str]:
    """The geometric mean and quantiles of all, and of groups of them."""
    if not counted:
        return ["", "No case has a peer: there is nothing to compare."]
    ratios = [_ratio(result) for result in counted]
    failed = sum(result.failure is not None for result in counted)
    mean = f"geometric mean {geometric_mean(ratios):.3f}"
    if failed:
        others = geometric_mean(ratio for ratio in ratios if ratio > 0)
        mean += f": {failed} of {len(ratios)} failed, and count as 0; of the others {others:.3f}"
    share = sum(ratio >= 1 for ratio in ratios) / len(ratios)
    rows = [("", "", *(_quantile_name(q) for q in _QUANTILES)), ("", "", *(f"{x:.3f}" for x in np.quantile(ratios, _QUANTILES)))]
    groups: list[tuple[str, ...]] = [("", "", "cases", "geometric mean", "lowest")]
    keys: dict[str, Callable[[Case], str]] = {
        "sizes": lambda case: case.sizes,
        "kernel": lambda case: case.kernel,
        "dtype": lambda case: case.dtype,
        "layout": lambda case: case.layout,
    }
    for name, key in keys.items():
        values = sorted({key(result.case) for result in counted})
        for at, value in enumerate(values):
            mine = [_ratio(result) for result in counted if key(result.case) == value]
            groups.append(("" if at else name, value, f"{len(mine)}", f"{geometric_mean(mine):.3f}", f"{min(mine):.3f}"))
    return [
        f"{mean}; at least as fast as the best peer in {share:.0%}",
        *align(rows), "", *align(groups),
    ]  # fmt: skip


def _quantile_name(q: float) -> str:
    return {0.0: "lowest", 0.5: "median", 1.0: "highest"}.get(q, f"{q:.0%}")


def _described(result: CaseResult) -> list[str]:
    head = f"  {result.case.number}: {result.case.label}, {result.case.sizes}: {result.ratio:.3f}"
    if (failure := result.failure) is not None:
        return [head, f"    {failure.cause}: {failure.reason}"]
    assert result.best_peer is not None, "it has a ratio"
    return [f"{head}, {result.own_us:.1f} us, {result.best_peer} {result.peers_us[result.best_peer]:.1f} us"]


def load(path: Path) -> DrawnRun:
    """Read a record.

    Raises:
        ValueError: the file holds no record of a sweep.
    """
    try:
        fields = json.loads(path.read_text("utf-8"))
        fields["device"] = DeviceInfo(**fields["device"])
        fields["driver"] = None if fields["driver"] is None else DriverInfo(**fields["driver"])
        fields["notes"] = tuple(fields["notes"])
        fields["left_out"] = tuple(LeftOut(**one) for one in fields["left_out"])
        fields["pieces"] = tuple(Piece(**one) for one in fields["pieces"])
        fields["results"] = tuple(_result(one) for one in fields["results"])
        return DrawnRun(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no record of `bench sweep`: {type(error).__name__}: {error}") from error


def _result(fields: dict[str, Any]) -> CaseResult:
    case = fields.pop("case")
    left_out = tuple(LeftOut(**one) for one in fields.pop("left_out"))
    lists: dict[str, Any] = {name: tuple(fields.pop(name)) for name in ("drawn_again", "launched", "explained")}
    return CaseResult(case=Case(**{**case, "shape": tuple(case["shape"])}), left_out=left_out, **lists, **fields)


def join(paths: Sequence[Path]) -> DrawnRun:
    """One record of those of several pieces.

    Raises:
        ValueError: they are not pieces of one run: another family, seed, number of cases, GPU, commit or version; or two have
            measured the same case.
    """
    runs = [load(path) for path in paths]
    first = runs[0]
    results: dict[int, CaseResult] = {}
    where: dict[int, Path] = {}
    for path, run in zip(paths, runs):
        for name, of in _SAME.items():
            if of(run) != of(first):
                raise ValueError(f"{path} cannot be joined with {paths[0]}: its {name} is {of(run)}, not {of(first)}")
        for result in run.results:
            number = result.case.number
            if number in results:
                raise ValueError(f"{path} and {where[number]} have both measured case {number}: leave one of them out")
            results[number], where[number] = result, path
    return dataclasses.replace(
        first,
        dirty=any(run.dirty for run in runs) if first.dirty is not None else None,
        date=max(run.date for run in runs),
        command=None if len(runs) > 1 else first.command,
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        pieces=tuple(sorted((piece for run in runs for piece in run.pieces), key=lambda piece: piece.start)),
        results=tuple(results[number] for number in sorted(results)),
    )


# What the pieces of a run have in common.
_SAME: dict[str, Callable[[DrawnRun], Any]] = {
    "benchmark": lambda run: run.benchmark,
    "family": lambda run: run.family,
    "seed": lambda run: run.seed,
    "number of cases": lambda run: run.cases,
    "number of rounds": lambda run: run.rounds,
    "device": lambda run: run.device.name,
    "commit": lambda run: run.commit,
    "versions": lambda run: {name: version for name, version in sorted(run.versions.items()) if version},
}
