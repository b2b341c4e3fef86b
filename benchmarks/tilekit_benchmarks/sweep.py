"""Benchmarks of the host's side: contestants that wait for their own work, along an axis (how many ops, how many streams...).

At every point of the axis each contestant is run once and checked, then all are sampled in turns by the host's clock.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tilekit_benchmarks import Options
from tilekit_benchmarks.harness import Contestant, Measurement, Variant, WallTimer, compete
from tilekit_benchmarks.report import OWN, LeftOut, Run, align, bars, surroundings
from tilekit_benchmarks.saxpy_peers import Missing

__all__ = ["Candidate", "Point", "Series", "Sweep", "Work", "survey", "sweep"]

_log = logging.getLogger("tilekit_benchmarks")


_FEW = 6  # lines among which there is room for the legend


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a contestant does at one point of the axis.

    Attributes:
        launch: does it once, to the end; see `WallTimer`.
        reset: puts the data back to where a check begins.
        check: after `reset` and one launch, says what is wrong with the result; None if nothing is.
        active: makes a context in which `launch` may be called (one that sets the library's current stream).
    """

    launch: Callable[[], object]
    reset: Callable[[], object]
    check: Callable[[], str | None]
    active: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Who may take part.

    Attributes:
        name, version: the library's.
        variant: which of its ways.
        build: makes the work for a point of the axis. Raises `Missing` if the library is not installed.
        places: where on the axis there is such a way; None for everywhere.
    """

    name: str
    version: str
    variant: str
    build: Callable[[Any], Work]
    places: Sequence[float] | None = None

    @property
    def label(self) -> str:
        """Tells it from all others of a run."""
        return f"{self.name}, {self.variant}"


@dataclass(frozen=True, kw_only=True)
class Point:
    """How a contestant did at one point of the axis.

    Attributes:
        at: where.
        value, low, high: the median, the lowest and the highest of the rounds, in the record's unit.
        ratio: to the contestant `reference` of the record: the median, over the rounds, of this one's value divided by the
            other's in the same round. None if that one was not measured.
        median_us: of one launch of the whole work.
        launches_per_sample: how many launches each sample is the mean of.
        samples_us: each round's.
    """

    at: float
    value: float
    low: float
    high: float
    ratio: float | None
    median_us: float
    launches_per_sample: int
    samples_us: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """How a contestant did along the axis.

    Attributes:
        name, version, variant: who.
        points: where it was measured, in the order of the axis.
    """

    name: str
    version: str
    variant: str
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        """As the candidate's."""
        return f"{self.name}, {self.variant}"


@dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """One run of a benchmark along an axis.

    Attributes:
        axis: what `Point.at` counts.
        unit: what the values are.
        rate: whether a larger value is better; else it is time.
        reference: the label of the contestant that the ratios compare with.
        parameters: sizes and times that were chosen or measured beforehand, with their units in their names.
        results: a series for each contestant.
        agreement: how near each result is to NumPy's.
    """

    axis: str
    unit: str
    rate: bool
    reference: str
    parameters: dict[str, float]
    results: tuple[Series, ...]
    agreement: str

    @property
    def title(self) -> str:
        """Which benchmark, and what it was told."""
        return ", ".join([self.benchmark, *(f"{name} = {_short(value)}" for name, value in self.parameters.items())])

    def body(self) -> list[str]:
        """A row for each contestant; at several points, the medians with the ratios behind them."""
        places = sorted({point.at for series in self.results for point in series.points})
        named = [(f"{series.name} {series.version}", series.variant, {p.at: p for p in series.points}) for series in self.results]
        rows: list[tuple[str, ...]]
        if len(places) == 1:
            rows = [("", "variant", self.unit, "min-max", "ratio")]
            for who, variant, points in named:
                point = points[places[0]]
                rows.append((who, variant, _short(point.value), f"{_short(point.low)}-{_short(point.high)}", _ratio(point)))
        else:
            rows = [("", f"{self.unit}, by {self.axis}", *(f"{at:g}" for at in places))]
            for who, variant, points in named:
                cells = (f"{_short(p.value)} ({_ratio(p)})" if (p := points.get(at)) else "" for at in places)
                rows.append((who, variant, *cells))
        lines = ["", *align(rows)]
        if self.results:
            better = "larger is better" if self.rate else "smaller is better"
            lines += [
                "",
                f"Ratios are to {self.reference}; {better}. Every result was compared with NumPy's, and {self.agreement}.",
            ]
        return lines

    def draw(self, figure: Any) -> None:
        """Bars for a single point, else a line for each contestant."""
        places = sorted({point.at for series in self.results for point in series.points})
        if len(places) == 1:
            bars(
                figure,
                names=[f"{series.name} {series.version}\n{series.variant}" for series in self.results],
                spans=[(s.points[0].low, s.points[0].value, s.points[0].high) for s in self.results],
                own=[series.name == OWN for series in self.results],
                unit=self.unit,
            )
            return
        axes = figure.subplots()
        few = len(self.results) <= _FEW
        if not few:
            figure.set_size_inches(12, 5)
        for number, series in enumerate(self.results):
            values = [p.value for p in series.points]
            spans = [[p.value - p.low for p in series.points], [p.high - p.value for p in series.points]]
            axes.errorbar(
                [places.index(p.at) for p in series.points],
                values,
                yerr=spans,
                label=f"{series.name}: {series.variant}",
                marker="os^"[number // 10 % 3],  # there are ten colours
                capsize=3,
                linestyle="-" if series.name == OWN else "--",
            )
        axes.set_xticks(range(len(places)), [f"{at:g}" for at in places])
        axes.set_xlabel(self.axis)
        axes.set_ylabel(f"{self.unit} (median, lowest to highest round)", fontsize=9)
        if self.rate:
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
        axes.legend(fontsize=8, frameon=False, **({} if few else {"bbox_to_anchor": (1.01, 1), "loc": "upper left"}))


def sweep(
    options: Options,
    candidates: Sequence[Candidate],
    places: Sequence[float],
    *,
    benchmark: str,
    axis: str,
    unit: str,
    rate: bool = False,
    items: Callable[[float], float] = lambda _: 1,
    reference: str | None = None,
    parameters: Mapping[str, float],
    agreement: str = "equals it",
    notes: tuple[str, ...] = (),
) -> Sweep:
    """Measure the candidates at every place, and write down who did how, here and now. Blocks until all is done.

    Args:
        options: of the benchmark.
        candidates, places, items: see `survey`.
        benchmark, notes: see `Run`.
        axis, unit, rate, agreement: see `Sweep`.
        parameters: see `Sweep`; looked at when all is measured.
        reference: see `Sweep`; the first candidate's label, if it is not given.
    """
    reference = candidates[0].label if reference is None else reference
    left_out: list[LeftOut] = []
    results = survey(candidates, places, items=items, rate=rate, reference=reference, rounds=options.rounds, left_out=left_out)
    return Sweep(
        **surroundings(options.device, results),
        benchmark=benchmark,
        rounds=options.rounds,
        command=options.command,
        timer="host clock",
        axis=axis,
        unit=unit,
        rate=rate,
        reference=reference,
        parameters=dict(parameters),
        results=results,
        agreement=agreement,
        left_out=tuple(left_out),
        notes=notes,
    )


def survey(
    candidates: Sequence[Candidate],
    places: Sequence[float],
    *,
    items: Callable[[float], float],
    rate: bool,
    reference: str,
    rounds: int,
    left_out: list[LeftOut],
) -> tuple[Series, ...]:
    """Check and measure the candidates at every place. Blocks until all is done.

    Args:
        candidates: in the order of the results.
        places: along the axis.
        items: how many pieces of work a launch does there; the values are time for each, or a rate of them.
        rate: see `Sweep`.
        reference: see `Sweep`.
        rounds: how many samples count.
        left_out: gets whoever does not take part, or not any further, and why.

    Raises:
        Exception: whatever tilekit itself failed with. A peer that fails is left out.
    """
    points: dict[str, list[Point]] = {candidate.label: [] for candidate in candidates}
    taking_part = list(candidates)
    timer = WallTimer()
    try:
        for at in places:
            _log.info("%g: building, checking", at)
            here = [c for c in taking_part if c.places is None or at in c.places]
            works = [(c, work) for c in here if (work := _admit(c, at, timer, left_out)) is not None]
            admitted = [candidate for candidate, _ in works]
            taking_part = [c for c in taking_part if c not in here or c in admitted]
            if not works:
                continue
            _log.info("%g: measuring", at)
            measured = compete([_contestant(c, work) for c, work in works], timer, rounds=rounds)
            by_label = {c.label: m for c, m in zip(admitted, measured)}
            for label, m in by_label.items():
                points[label].append(_point(at, m, by_label.get(reference), items(at), rate))
    finally:
        timer.close()
    return tuple(
        Series(name=c.name, version=c.version, variant=c.variant, points=tuple(points[c.label]))
        for c in candidates
        if points[c.label]
    )


def _admit(candidate: Candidate, at: float, timer: WallTimer, left_out: list[LeftOut]) -> Work | None:
    """The candidate's work, run once and found right; or None, and it is written down why."""
    try:
        work = candidate.build(at)
        with work.active():
            timer.sample_us(work.launch, 1)  # whatever happens only once happens now
        work.reset()
        with work.active():
            timer.sample_us(work.launch, 1)
        wrong = work.check()
    except Missing as missing:
        left_out.append(LeftOut(name=candidate.label, cause="missing", reason=str(missing)))
        return None
    except Exception as error:
        if candidate.name == OWN:
            raise
        # A peer that cannot run here says something about the peer; the others are still worth measuring.
        _log.warning("%s failed", candidate.label, exc_info=error)
        reason = f"at {at:g}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        left_out.append(LeftOut(name=candidate.label, cause="failed", reason=reason))
        return None
    if wrong is not None:
        left_out.append(LeftOut(name=candidate.label, cause="wrong", reason=f"at {at:g}: {wrong}"))
        return None
    return work


def _contestant(candidate: Candidate, work: Work) -> Contestant:
    variant = Variant(label=candidate.variant, launch=work.launch)
    return Contestant(name=candidate.name, version=candidate.version, variants=(variant,), active=work.active)


def _point(at: float, m: Measurement, reference: Measurement | None, items: float, rate: bool) -> Point:
    values = [1e6 * items / us if rate else us / items for us in m.samples_us]
    ratio = None
    if reference is not None:
        pairs = zip(m.samples_us, reference.samples_us)
        ratio = statistics.median(other / own if rate else own / other for own, other in pairs)
    return Point(
        at=at,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        ratio=ratio,
        median_us=m.median_us,
        launches_per_sample=m.launches_per_sample,
        samples_us=m.samples_us,
    )


def _ratio(point: Point) -> str:
    return "-" if point.ratio is None else f"{point.ratio:.2f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
