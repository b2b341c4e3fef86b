"""What a benchmark found: as a record, a table, a JSON file, a picture."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tilekit.bench.environment import DeviceInfo, DriverInfo, device_info, driver_info, sources, versions
from tilekit.bench.harness import Measurement
from tilekit.device import Device

__all__ = ["OWN", "LeftOut", "Record", "Result", "check_plot", "plot", "record", "results", "save", "table"]

OWN = "tilekit"
"""The contestant that is no peer."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a contestant did.

    Attributes:
        name, version, variant: who, and in which variant (the best of its own).
        median_us, min_us, max_us: of a launch, over the rounds.
        gb_per_s: the bytes that the work must move, over the median time; 1 GB is 10^9 bytes.
        min_gb_per_s, max_gb_per_s: over the longest and the shortest time.
        ratio_to_best_peer: how much faster than the fastest peer: the median, over the rounds, of the peer's time divided by
            this one's in the same round. None if there is no peer.
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
    gb_per_s: float
    min_gb_per_s: float
    max_gb_per_s: float
    ratio_to_best_peer: float | None
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
class Record:
    """One run of a benchmark.

    Attributes:
        benchmark: which.
        n: its size, in elements.
        bytes_per_launch: what a launch must move.
        rounds: how many samples count.
        timer: `"device events"` or `"host clock"`.
        device, driver, versions: where.
        commit, dirty: the state of tilekit's sources, see `environment.Sources`.
        date: when, in UTC, as ISO 8601 writes it.
        command: the command line, if one asked for it.
        results: fastest first.
        left_out: who was not measured, and why.
        notes: what a reader must know.
    """

    benchmark: str
    n: int
    bytes_per_launch: int
    rounds: int
    timer: str
    device: DeviceInfo
    driver: DriverInfo | None
    versions: dict[str, str | None]
    commit: str | None
    dirty: bool | None
    date: str
    command: str | None
    results: tuple[Result, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all_correct(self) -> bool:
        """Whether nobody computed anything wrong."""
        return not any(one.cause == "wrong" for one in self.left_out)


def results(measurements: Sequence[Measurement], *, bytes_per_launch: int, errors: dict[str, float]) -> tuple[Result, ...]:
    """Rates and ratios of measurements that were taken in the same rounds, fastest first.

    Args:
        measurements: of each contestant.
        bytes_per_launch: what a launch must move.
        errors: each contestant's largest relative error, by name.
    """
    peers = [m for m in measurements if m.name != OWN]
    best = min(peers, key=lambda m: m.median_us, default=None)
    return tuple(
        Result(
            name=m.name,
            version=m.version,
            variant=m.variant,
            median_us=m.median_us,
            min_us=min(m.samples_us),
            max_us=max(m.samples_us),
            gb_per_s=1e-3 * bytes_per_launch / m.median_us,
            min_gb_per_s=1e-3 * bytes_per_launch / max(m.samples_us),
            max_gb_per_s=1e-3 * bytes_per_launch / min(m.samples_us),
            ratio_to_best_peer=statistics.median(b / own for b, own in zip(best.samples_us, m.samples_us)) if best else None,
            max_relative_error=errors[m.name],
            launches_per_sample=m.launches_per_sample,
            samples_us=m.samples_us,
            tried_us=m.tried_us,
        )
        for m in sorted(measurements, key=lambda m: m.median_us)
    )


def record(device: Device, **fields: Any) -> Record:
    """A record of a run on `device`, here and now; `fields` are those of `Record` that this does not know."""
    state = sources()
    found: dict[str, Any] = {
        "device": device_info(device),
        "driver": driver_info() if device.kind == "cuda" else None,
        "versions": {**{result.name: result.version for result in fields["results"]}, **versions()},
        "commit": state.commit,
        "dirty": state.dirty,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Record(**found, **fields)


def table(run: Record) -> str:
    """The record as text."""
    where = f"{run.device.label}, {run.device.name}"
    if run.driver is not None:
        where += f", driver {run.driver.release or 'unknown'} (CUDA {run.driver.cuda or 'unknown'})"
    source = "no git checkout" if run.commit is None else run.commit[:12] + (" with uncommitted changes" if run.dirty else "")
    lines = [
        f"{run.benchmark}, n = {run.n} ({1e-6 * run.bytes_per_launch:.6g} MB a launch)",
        f"on {where}",
        f"tilekit {run.versions['tilekit']} ({source}); {run.rounds} rounds in turns, {run.timer}",
        "",
    ]
    rows = [("", "variant", "median us", "GB/s", "min-max GB/s", "to best peer", "max rel. error")]
    for r in run.results:
        ratio = "" if r.ratio_to_best_peer is None else f"{r.ratio_to_best_peer:.3f}"
        span = f"{_rate(r.min_gb_per_s)}-{_rate(r.max_gb_per_s)}"
        who = f"{r.name} {r.version}"
        rows.append((who, r.variant, f"{r.median_us:.1f}", _rate(r.gb_per_s), span, ratio, f"{r.max_relative_error:.1e}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:])]
        lines.append("  ".join([*left, *right]).rstrip())
    if run.results:
        lines += ["", "Every element was compared with NumPy in float64. GB/s counts the bytes that the work must move."]
    lines += [f"{one.name}: {one.cause}: {one.reason}" for one in run.left_out]
    lines += [f"Note: {note}" for note in run.notes]
    return "\n".join(lines)


def _rate(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f}" if gb_per_s >= 1000 else f"{gb_per_s:.4g}"


def save(run: Record, path: Path) -> None:
    """Write the record to `path` as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(run), indent=2) + "\n", encoding="utf-8")


def check_plot() -> None:
    """Raise ImportError, with the cure, where `plot` would."""
    if find_spec("matplotlib") is None:
        raise ImportError('drawing needs matplotlib, which is not installed: pip install "tilekit[bench]"')


def plot(run: Record, path: Path) -> None:
    """Draw the record's rates as bars, from the slowest round to the fastest, to a file whose suffix says how (.png, .svg, .pdf).

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: it knows no such suffix.
    """
    check_plot()
    from matplotlib.figure import Figure  # not pyplot: that keeps figures, and looks for a screen

    shown = run.results[::-1]
    figure = Figure(figsize=(8, 1.4 + 0.55 * len(shown)), layout="constrained")
    axes = figure.subplots()
    names = [f"{r.name} {r.version}" + (f"\n{r.variant}" if r.variant else "") for r in shown]
    rates = [r.gb_per_s for r in shown]
    spans = [[r.gb_per_s - r.min_gb_per_s for r in shown], [r.max_gb_per_s - r.gb_per_s for r in shown]]
    colours = ["#d9822b" if r.name == OWN else "#7b8794" for r in shown]
    axes.barh(names, rates, xerr=spans, color=colours, error_kw={"lw": 1, "capsize": 3})
    for at, rate in enumerate(rates):
        axes.annotate(_rate(rate), (0, at), (6, 0), textcoords="offset points", va="center", color="white", fontweight="bold")
    axes.set_xlabel("GB/s (median; the whisker goes from the slowest round to the fastest)")
    axes.set_title(f"{run.benchmark}, n = {run.n}, on {run.device.name}", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
