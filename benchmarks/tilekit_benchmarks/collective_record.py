"""What became of collectives: the record of a run, its table and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilekit_benchmarks.collective_cases import OPS, Case, size_label
from tilekit_benchmarks.report import OWN, Run, align

__all__ = ["CollectiveCase", "CollectiveResult", "CollectiveRun", "Samples", "results"]

_STYLES, _MARKS = ("-", "--", ":", "-."), "os^vDPX"
_EXPLAINED = """\
Medians, of the slowest member. Sizes and bus bandwidth are those of NCCL's tests: the larger of a member's tensors, and a factor
times size over time. Ratios are of torch's time to this one's, in the same round, above 1 where this one is faster; of what is
in a graph, to torch in a graph. Every element was compared with what it must be, with other data in each turn, before it was
timed."""


@dataclass(frozen=True, kw_only=True)
class CollectiveResult:
    """How a contestant did at one collective of one size. Times are of an op, of the slowest member.

    Attributes:
        name, version, variant: who, and in which way.
        device_us, device_quartiles_us: of the device, or, on CPU devices, until it was done: the median of the rounds, and the
            first and the third quartile.
        host_us, host_quartiles_us: of the host, until the call had returned; in a graph its part of a launch.
        bus_gb_per_s: the bus bandwidth, by the definitions of NCCL's tests, over the device's median (1 GB is 10^9 bytes).
        ratio, host_ratio: how much faster than the peer `reference`: the median, over the rounds, of the peer's time divided by
            this one's in the same round. None if that one was not measured.
        reference: the peer's variant.
        ops_per_launch: more than one in a graph.
        launches_per_sample: how many launches each sample is the mean of.
        device_samples_us, host_samples_us: each round's.
    """

    name: str
    version: str
    variant: str
    device_us: float
    device_quartiles_us: tuple[float, float]
    host_us: float
    host_quartiles_us: tuple[float, float]
    bus_gb_per_s: float
    ratio: float | None
    host_ratio: float | None
    reference: str
    ops_per_launch: int
    launches_per_sample: int
    device_samples_us: tuple[float, ...]
    host_samples_us: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveCase:
    """One collective of one size.

    Attributes:
        op: which, one of `collective_cases.OPS`.
        nbytes: the size, by the definitions of NCCL's tests: of the larger of a member's tensors.
        elements: as many float32.
        bus_factor: of the bus bandwidth, which is this times `nbytes` over the time.
        results: of each contestant.
    """

    op: str
    nbytes: int
    elements: int
    bus_factor: float
    results: tuple[CollectiveResult, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveRun(Run):
    """One run of the benchmark of collectives.

    Attributes:
        devices: labels of the members' devices, by rank.
        dtype: of the tensors.
        environment: the variables that were set for NCCL and torch's symmetric memory, such as to leave multicast off.
        cases: what was measured.
    """

    devices: tuple[str, ...]
    dtype: str
    environment: dict[str, str]
    cases: tuple[CollectiveCase, ...]

    @property
    def all_correct(self) -> bool:
        """Whether nobody was wrong, and tilekit has not failed."""
        own_failed = any(one.cause == "failed" and one.name.startswith(OWN) for one in self.left_out)
        return super().all_correct and not own_failed

    @property
    def title(self) -> str:
        """Which benchmark, and among how many."""
        return f"{self.benchmark}, {len(self.devices)} devices"

    def body(self) -> list[str]:
        """For each collective a table with a row for each contestant of each size."""
        lines = [f"among {', '.join(self.devices)}; {self.dtype}"]
        if self.environment:
            lines.append(", ".join(f"{name}={value}" for name, value in self.environment.items()))
        for op in OPS:
            cases = [case for case in self.cases if case.op == op]
            if not cases:
                continue
            rows: list[tuple[str, ...]] = [
                (op, "", "us", "quartiles", "bus GB/s", "to torch", "host us", "quartiles", "to torch")
            ]
            for case in cases:
                for at, r in enumerate(case.results):
                    device = (_short(r.device_us), _span(r.device_quartiles_us), _short(r.bus_gb_per_s), _ratio(r.ratio))
                    host = (_short(r.host_us), _span(r.host_quartiles_us), _ratio(r.host_ratio))
                    rows.append(("" if at else size_label(case.nbytes), f"{r.name}, {r.variant}", *device, *host))
            lines += ["", *align(rows)]
        if self.cases:
            lines += ["", _EXPLAINED]
        return lines

    def draw(self, figure: Any) -> None:
        """Bus bandwidth by size: a colour for each collective, a style of line for each contestant."""
        figure.set_size_inches(11, 6)
        axes = figure.subplots()
        sizes = sorted({case.nbytes for case in self.cases})
        who = list(dict.fromkeys((r.name, r.variant) for case in self.cases for r in case.results))
        ops = [op for op in OPS if any(case.op == op for case in self.cases)]
        for op in ops:
            for number, one in enumerate(who):
                points = [
                    (case.nbytes, r) for case in self.cases if case.op == op for r in case.results if (r.name, r.variant) == one
                ]
                if points:
                    axes.plot(
                        [sizes.index(nbytes) for nbytes, _ in points],
                        [r.bus_gb_per_s for _, r in points],
                        color=f"C{OPS.index(op)}",
                        linestyle=_STYLES[number % len(_STYLES)],
                        marker=_MARKS[number % len(_MARKS)],
                        markersize=4,
                        linewidth=1,
                    )
        handles = [axes.plot([], [], color=f"C{OPS.index(op)}", label=op)[0] for op in ops]
        for number, (name, variant) in enumerate(who):
            style = {"linestyle": _STYLES[number % len(_STYLES)], "marker": _MARKS[number % len(_MARKS)], "markersize": 4}
            handles += axes.plot([], [], color="black", linewidth=1, label=f"{name}, {variant}", **style)
        axes.set_xticks(range(len(sizes)), [size_label(size) for size in sizes], fontsize=8)
        axes.set_yscale("log")
        axes.set_xlabel("size")
        axes.set_ylabel("bus bandwidth, GB/s (median)")
        axes.legend(handles=handles, fontsize=8, frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")


@dataclass(kw_only=True)
class Samples:
    """What was measured of a contestant at one case.

    Attributes:
        name, version, variant, reference: see `CollectiveResult`.
        ops, launches: in a launch, and in a sample.
        device_us, host_us: each round's.
    """

    name: str
    version: str
    variant: str
    reference: str
    ops: int
    launches: int
    device_us: list[float]
    host_us: list[float]


def results(case: Case, measured: Mapping[str, Samples]) -> CollectiveCase:
    """The medians, quartiles and ratios of samples that were taken in the same rounds, by the contestants' labels."""
    rows = []
    for samples in measured.values():
        base = measured.get(f"torch, {samples.reference}")
        device_us = statistics.median(samples.device_us)
        rows.append(
            CollectiveResult(
                name=samples.name,
                version=samples.version,
                variant=samples.variant,
                device_us=device_us,
                device_quartiles_us=_quartiles(samples.device_us),
                host_us=statistics.median(samples.host_us),
                host_quartiles_us=_quartiles(samples.host_us),
                bus_gb_per_s=1e-3 * case.bus_factor * case.nbytes / device_us,
                ratio=_median_ratio(base.device_us, samples.device_us) if base else None,
                host_ratio=_median_ratio(base.host_us, samples.host_us) if base else None,
                reference=samples.reference,
                ops_per_launch=samples.ops,
                launches_per_sample=samples.launches,
                device_samples_us=tuple(samples.device_us),
                host_samples_us=tuple(samples.host_us),
            )
        )
    return CollectiveCase(op=case.op, nbytes=case.nbytes, elements=case.elements, bus_factor=case.bus_factor, results=tuple(rows))


def _median_ratio(base: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(other / mine for other, mine in zip(base, own, strict=True))


def _quartiles(samples: Sequence[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, third


def _span(quartiles: tuple[float, float]) -> str:
    return "-".join(map(_short, quartiles))


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
