"""What a benchmark found: as a record, a table, a JSON file, a picture."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tilekit._environment import DeviceInfo, DriverInfo, device_info, driver_info, versions
from tilekit._runtime.device import Device
from tilekit_benchmarks.harness import Measurement
from tilekit_benchmarks.sources import sources

__all__ = [
    "OWN",
    "LeftOut",
    "Record",
    "Result",
    "Run",
    "Unit",
    "align",
    "bars",
    "check_plot",
    "plot",
    "record",
    "results",
    "save",
    "surroundings",
    "table",
]

OWN = "tilekit"
"""The contestant that is no peer."""

Unit = Literal["GB/s", "TFLOP/s"]
# What a byte or an operation in a microsecond is.
_PER_US: dict[Unit, float] = {"GB/s": 1e-3, "TFLOP/s": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a contestant did.

    Attributes:
        name, version, variant: who, and in which variant (the best of its own).
        median_us, min_us, max_us: of a launch, over the rounds.
        unit: of rates: `"GB/s"`, of the bytes that the work must move (1 GB is 10^9 bytes), or `"TFLOP/s"`, of 10^12 operations.
        rate: the work over the median time.
        min_rate, max_rate: over the longest and the shortest time.
        ratio: how much faster than the peer that the run names as its reference, or else the fastest: the median, over the
            rounds, of the peer's time divided by this one's in the same round. None if it did not take part.
        max_relative_error: the largest of any element, against NumPy in float64.
        launches_per_sample: how many launches each sample is the mean of.
        samples_us: each round's.
        tried_us: of each variant that was tried, by label, the median time.
    """

    name: str
    version: str
    variant: str
    median_us: float
    min_us: float
    max_us: float
    unit: Unit
    rate: float
    min_rate: float
    max_rate: float
    ratio: float | None
    max_relative_error: float
    launches_per_sample: int
    samples_us: tuple[float, ...]
    tried_us: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A contestant that was not measured.

    Attributes:
        name: who.
        cause: it is `"missing"`, it `"failed"`, or its result was `"wrong"`.
        reason: why, and what to do.
    """

    name: str
    cause: Literal["missing", "failed", "wrong"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a benchmark: what every record has, whatever was measured.

    Attributes:
        benchmark: which.
        rounds: how many samples count.
        timer: `"device events"` or `"host clock"`.
        device, driver, versions: where.
        commit, dirty: the state of tilekit's sources, see `sources.Sources`.
        date: when, in UTC, as ISO 8601 writes it.
        command: the command line, if one asked for it.
        left_out: who was not measured, and why.
        notes: what a reader must know.
    """

    benchmark: str
    rounds: int
    timer: str
    device: DeviceInfo
    driver: DriverInfo | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None
    date: str
    command: str | None
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all_correct(self) -> bool:
        """Whether nobody computed anything wrong."""
        return not any(one.cause == "wrong" for one in self.left_out)

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        return self.benchmark

    def body(self) -> list[str]:
        """The results as lines of text."""
        raise NotImplementedError

    def draw(self, figure: Any) -> None:
        """Draw the results into an empty figure of matplotlib's."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Record(Run):
    """One run of a benchmark whose contestants move the same bytes.

    Attributes:
        n: its size, in elements.
        bytes_per_launch: what a launch must move.
        results: fastest first.
    """

    n: int
    bytes_per_launch: int
    results: tuple[Result, ...]

    @property
    def title(self) -> str:
        """Which benchmark, and how large."""
        return f"{self.benchmark}, n = {self.n}"

    def body(self) -> list[str]:
        """A row for each contestant."""
        rows = [("", "variant", "median us", "GB/s", "min-max GB/s", "to best peer", "max rel. error")]
        for r in self.results:
            ratio = "" if r.ratio is None else f"{r.ratio:.3f}"
            span = f"{_rate(r.min_rate)}-{_rate(r.max_rate)}"
            who = f"{r.name} {r.version}"
            rows.append((who, r.variant, f"{r.median_us:.1f}", _rate(r.rate), span, ratio, f"{r.max_relative_error:.1e}"))
        lines = [f"{1e-6 * self.bytes_per_launch:.6g} MB a launch", "", *align(rows)]
        if self.results:
            lines += ["", "Every element was compared with NumPy in float64. GB/s counts the bytes that the work must move."]
        return lines

    def draw(self, figure: Any) -> None:
        """The rates as bars, from the slowest round to the fastest."""
        bars(
            figure,
            names=[f"{r.name} {r.version}" + (f"\n{r.variant}" if r.variant else "") for r in self.results],
            spans=[(r.min_rate, r.rate, r.max_rate) for r in self.results],
            own=[r.name == OWN for r in self.results],
            unit="GB/s",
        )


def results(
    measurements: Sequence[Measurement], *, work: float, unit: Unit, errors: Mapping[str, float], reference: str | None = None
) -> tuple[Result, ...]:
    """Rates and ratios of measurements that were taken in the same rounds, fastest first.

    Args:
        measurements: of each contestant.
        work: the bytes that a launch must move, or its operations.
        unit: of the rates.
        errors: each contestant's largest relative error, by name.
        reference: the peer that ratios are to, instead of the fastest.
    """
    peers = [m for m in measurements if m.name == reference or (reference is None and m.name != OWN)]
    base = min(peers, key=lambda m: m.median_us, default=None)
    amount = _PER_US[unit] * work
    return tuple(
        Result(
            name=m.name,
            version=m.version,
            variant=m.variant,
            median_us=m.median_us,
            min_us=min(m.samples_us),
            max_us=max(m.samples_us),
            unit=unit,
            rate=amount / m.median_us,
            min_rate=amount / max(m.samples_us),
            max_rate=amount / min(m.samples_us),
            ratio=statistics.median(b / own for b, own in zip(base.samples_us, m.samples_us)) if base else None,
            max_relative_error=errors[m.name],
            launches_per_sample=m.launches_per_sample,
            samples_us=m.samples_us,
            tried_us=m.tried_us,
        )
        for m in sorted(measurements, key=lambda m: m.median_us)
    )


def record(device: Device, **fields: Any) -> Record:
    """A record of a run on `device`, here and now; `fields` are those of `Record` that this does not know."""
    return Record(**surroundings(device, fields["results"]), **fields)


def surroundings(device: Device, results: Sequence[Any]) -> dict[str, Any]:
    """Where and when: the fields of `Run` that follow from here and now. `found` are results, with a name and a version."""
    state = sources()
    return {
        "device": device_info(device),
        "driver": driver_info() if device.kind == "cuda" else None,
        "versions": {**{result.name: result.version for result in results}, **versions()},
        "commit": state.commit,
        "dirty": state.dirty,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def table(run: Run) -> str:
    """The record as text."""
    where = f"{run.device.label}, {run.device.name}"
    if run.driver is not None:
        where += f", driver {run.driver.release or 'unknown'} (CUDA {run.driver.cuda or 'unknown'})"
    source = "no git checkout" if run.commit is None else run.commit[:12] + (" with uncommitted changes" if run.dirty else "")
    lines = [
        run.title,
        f"on {where}",
        f"tilekit {run.versions['tilekit']} ({source}); {run.rounds} rounds in turns, {run.timer}",
        *run.body(),
    ]
    lines += [f"{one.name}: {one.cause}: {one.reason}" for one in run.left_out]
    lines += [f"Note: {note}" for note in run.notes]
    return "\n".join(lines)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first two columns to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:])]
        lines.append("  ".join([*left, *right]).rstrip())
    return lines


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def save(run: Run, path: Path) -> None:
    """Write the record to `path` as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(run), indent=2) + "\n", encoding="utf-8")


def check_plot() -> None:
    """Raise ImportError, with the cure, where `plot` would."""
    if find_spec("matplotlib") is None:
        raise ImportError("drawing needs matplotlib, which is not installed: pip install matplotlib")


def plot(run: Run, path: Path) -> None:
    """Draw the record to a file whose suffix says how (.png, .svg, .pdf).

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it knows no such suffix.
    """
    check_plot()
    from matplotlib.figure import Figure  # not pyplot: that keeps figures, and looks for a screen

    figure = Figure(figsize=(8, 4), layout="constrained")
    run.draw(figure)
    for axes in figure.axes:
        axes.set_title(f"{run.title}, on {run.device.name}", fontsize=11)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


def bars(
    figure: Any, *, names: Sequence[str], spans: Sequence[tuple[float, float, float]], own: Sequence[bool], unit: str
) -> None:
    """Draw a bar for each (lowest, median, highest), the first on top; tilekit's own in another colour."""
    figure.set_size_inches(8, 1.4 + 0.55 * len(names))
    axes = figure.subplots()
    whiskers = [[mid - low for low, mid, _ in spans][::-1], [high - mid for _, mid, high in spans][::-1]]
    colours = ["#d9822b" if mine else "#7b8794" for mine in own][::-1]
    middles = [mid for _, mid, _ in spans][::-1]
    axes.barh(names[::-1], middles, xerr=whiskers, color=colours, error_kw={"lw": 1, "capsize": 3})
    for at, (middle, (_, _, high)) in enumerate(zip(middles, spans[::-1], strict=True)):
        axes.annotate(_rate(middle), (high, at), (6, 0), textcoords="offset points", va="center")
    axes.margins(x=0.12)  # room for the figures
    axes.set_xlabel(f"{unit} (median, lowest to highest round)")
