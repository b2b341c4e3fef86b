"""Benchmarks of `tilekit.kernels`: for each case all contestants in turns, each checked before; and a copy of as many bytes.

The copy is the ceiling where the memory is: the driver's, of half the bytes that the case moves, so that it reads and writes as
many together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, kernel_peers
from tilekit_benchmarks.harness import Contestant, Variant, compete, timer_for
from tilekit_benchmarks.kernel_cases import Case, Check, Tensors
from tilekit_benchmarks.report import OWN, LeftOut, Result, Run, Unit, align, results, surroundings

__all__ = ["CaseResult", "KernelRun", "measure", "prepared"]

_COPY = "copy"
# Rows that are compared, at the beginning, in the middle, and at the end.
_ROWS = 24
# What peers may be off where they round to float16 what tilekit does not.
_PEERS_TOLERANCE = 5e-3
_log = logging.getLogger("tilekit_benchmarks")


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One kernel at one size.

    Attributes:
        kernel, dtype, shape: which, and of what.
        bytes_per_launch, operations: what a launch must move, or what it must calculate if that is what counts.
        copy_gb_per_s: what a copy of as many bytes reached in the same rounds, if bytes count.
        results: of each contestant, fastest first.
    """

    kernel: str
    dtype: str
    shape: tuple[int, ...]
    bytes_per_launch: int
    operations: int | None
    copy_gb_per_s: float | None
    results: tuple[Result, ...]

    @property
    def label(self) -> str:
        """The kernel, the dtype and the shape."""
        return f"{self.kernel} {self.dtype} {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True, kw_only=True)
class KernelRun(Run):
    """One run of a benchmark of kernels.

    Attributes:
        cases: what was measured, and what each contestant reached; `results` has the contestants, whose versions are recorded.
        reference: the peer that ratios are to; None if they are to each case's fastest.
    """

    cases: tuple[CaseResult, ...]
    reference: str | None = None

    def by_unit(self) -> dict[Unit, list[CaseResult]]:
        """The cases, by the unit of their rates."""
        cases: dict[Unit, list[CaseResult]] = {}
        for case in self.cases:
            cases.setdefault(case.results[0].unit, []).append(case)
        return cases

    def body(self) -> list[str]:
        """For each case a row for each contestant."""
        lines = []
        for unit, cases in self.by_unit().items():
            rows: list[tuple[str, ...]] = [
                ("", "", "variant", "us", unit, "min-max", "of copy", f"to {self.reference or 'best peer'}", "error")
            ]
            for case in cases:
                for at, r in enumerate(case.results):
                    ratio = "" if r.ratio is None else f"{r.ratio:.3f}"
                    span, error = f"{r.min_rate:.4g}-{r.max_rate:.4g}", f"{r.max_relative_error:.1e}"
                    of_copy = "" if case.copy_gb_per_s is None else f"{r.rate / case.copy_gb_per_s:.3f}"
                    label, us, rate = "" if at else case.label, f"{r.median_us:.1f}", f"{r.rate:.4g}"
                    rows.append((label, r.name, r.variant, us, rate, span, of_copy, ratio, error))
            lines += ["", *align(rows)]
        what = "GB/s counts the bytes that the work must move. " if "GB/s" in self.by_unit() else ""
        return [*lines, "", f"{what}`error` is the largest of some rows of each result, against NumPy in float64."]

    def draw(self, figure: Any) -> None:
        """For each case a bar for each contestant, and a mark where the copy is."""
        figure.set_size_inches(9, 1.2 + 0.62 * len(self.cases))
        units = self.by_unit()
        names = sorted({r.name for case in self.cases for r in case.results}, key=lambda name: (name != OWN, name))
        colours = dict(zip(names, ["#d9822b", "#7b8794", "#b0bec5", "#546e7a"]))
        rows = figure.subplots(max(1, len(units)), squeeze=False, height_ratios=[len(cases) for cases in units.values()] or None)
        for (axes,), (unit, cases) in zip(rows, units.items(), strict=False):
            here = [name for name in names if any(r.name == name for case in cases for r in case.results)]
            height = 0.8 / max(1, len(here))
            for at, case in enumerate(cases):
                for r in case.results:
                    y = at + height * (here.index(r.name) - (len(here) - 1) / 2)
                    error = [[r.rate - r.min_rate], [r.max_rate - r.rate]]
                    axes.barh(y, r.rate, height, xerr=error, color=colours[r.name], error_kw={"lw": 0.8})
                if case.copy_gb_per_s is not None:
                    axes.plot([case.copy_gb_per_s] * 2, [at - 0.45, at + 0.45], color="black", lw=1, ls=":")
            axes.set_yticks(range(len(cases)), [case.label for case in cases], fontsize=8)
            axes.invert_yaxis()
            copied = "; dotted: a copy of as many bytes" if unit == "GB/s" else ""
            axes.set_xlabel(f"{unit} (median, lowest to highest round{copied})", fontsize=9)
        first = rows[0][0]  # of one colour everywhere, so that one legend will do
        handles = [first.barh(0, 0, color=colours[name], label=name) for name in names]
        first.legend(handles=handles, fontsize=8, frameon=False, loc="lower right")


def measure(
    name: str, options: Options, cases: Sequence[Case], *, peers: Mapping[str, kernel_peers.Build] | None = None,
    reference: str | None = None,
) -> KernelRun:  # fmt: skip
    """Measure `cases` one after the other, as the benchmark `name`. Blocks until it is done.

    Args:
        name: the benchmark's.
        options: of the benchmark.
        cases: what is measured.
        peers: who takes part, instead of `kernel_peers.PEERS`.
        reference: the peer that ratios are to, instead of each case's fastest.
    """
    device, left_out = options.device, list[LeftOut]()
    peers = kernel_peers.PEERS[device.kind] if peers is None else peers
    case_results = []
    with device.stream() as stream, ExitStack() as stack:
        timer = timer_for(device, stream)
        stack.callback(timer.close)
        for case in cases:
            _log.info("%s: making data, compiling, checking", case.label)
            tensors = {what: make().on(device).sync_on(stream) for what, make in case.inputs.items()}
            out = api.empty(*case.output).on(device).sync_on(stream)
            check = (case.check or _Host)(case, tensors, stream)
            taking_part: list[Contestant] = []
            errors: dict[str, float] = {}
            for who, build in {OWN: _own, **peers}.items():
                joined = _join(who, build, case, tensors, out, stream, check, left_out)
                if joined is not None:
                    taking_part.append(joined[0])
                    errors[who] = joined[1]
            if not errors.get(OWN, -1.0) >= 0:
                continue
            _log.info("%s: measuring", case.label)
            if case.operations is None:
                source, target = (api.empty(case.nbytes // 2, tk.uint8).on(device).sync_on(stream) for _ in range(2))
                source.fill(1).sync_on(stream)
                copy = Variant(launch=lambda source=source, target=target: api.memcpy(target, source).async_on(stream))  # type: ignore[misc]
                taking_part.append(Contestant(name=_COPY, version="", variants=(copy,)))
            measured = compete(taking_part, timer, rounds=options.rounds)
            copied = next((m for m in measured if m.name == _COPY), None)
            work = case.nbytes if case.operations is None else case.operations
            case_results.append(
                CaseResult(
                    kernel=case.kernel,
                    dtype=case.dtype.name,
                    shape=case.shape,
                    bytes_per_launch=case.nbytes,
                    operations=case.operations,
                    copy_gb_per_s=1e-3 * case.nbytes / copied.median_us if copied else None,
                    results=results(
                        [m for m in measured if m is not copied], work=work, unit=case.unit, errors=errors, reference=reference
                    ),
                )
            )  # fmt: skip
    small = [case.label for case in cases if case.operations is None and case.nbytes < 256e6]
    notes = (f"these may stay in a cache: {', '.join(small)}; a larger --n measures the memory",) if small else ()
    return KernelRun(
        **surroundings(device, [r for case in case_results for r in case.results]),
        benchmark=name,
        rounds=options.rounds,
        timer="device events" if device.kind == "cuda" else "host clock",
        command=options.command,
        left_out=tuple(left_out),
        notes=notes,
        cases=tuple(case_results),
        reference=reference,
    )


def prepared(name: str, op: tk.DeviceOp[Any], stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    """An op of tilekit's as a contestant, prepared, so that the device's time is measured also where that is short."""
    ready = op.prepare()
    variant = Variant(label="prepared", launch=lambda: ready.run(stream))
    return Contestant(name=name, version=tk.__version__, variants=(variant,)), lambda: _on_host(ready.output, stream)


def _own(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    if case.prepared:
        return prepared(OWN, case.own(tensors, out), stream)
    future: list[Any] = [None]

    def launch() -> None:
        future[0] = case.own(tensors, out).async_on(stream)

    contestant = Contestant(name=OWN, version=tk.__version__, variants=(Variant(launch=launch),))
    return contestant, lambda: future[0].result().reshape(case.output[0]).to_host().sync_on(stream)


def _on_host(result: Any, stream: Stream) -> Any:
    """A tensor as an array; several of the same shape as one."""
    if isinstance(result, tuple):
        return np.stack([_on_host(one, stream) for one in result])
    return result.to_host().sync_on(stream)


def _join(
    who: str, build: kernel_peers.Build, case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream, check: Check,
    left_out: list[LeftOut],
) -> tuple[Contestant, float] | None:  # fmt: skip
    """Let a contestant take part, with the largest error of its variants, or write down why it does not."""
    label = f"{who}, {case.label}"
    try:
        contestant, result = build(case, tensors, out, stream)
        worst = 0.0
        right = []
        with contestant.active():
            for variant in contestant.variants:
                out.fill(np.nan if dtypes.is_float(out.dtype) else -7).sync_on(stream)
                try:
                    variant.launch()
                except Exception:
                    if len(contestant.variants) == 1:
                        raise
                    continue  # a block size that does not fit this GPU
                stream.synchronize()
                worst = float(np.maximum(worst, check.error(result())))  # Python's max() would lose a NaN
                right.append(variant)
    except kernel_peers.Missing as missing:
        if not any(one.name == who for one in left_out):
            left_out.append(LeftOut(name=who, cause="missing", reason=str(missing)))
        return None
    except NotImplementedError:  # nobody wrote one
        return None
    except Exception as error:
        if who == OWN:
            raise
        _log.warning("%s failed", label, exc_info=error)
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        left_out.append(LeftOut(name=label, cause="failed", reason=reason))
        return None
    tolerance = case.tolerance if who == OWN else max(case.tolerance, _PEERS_TOLERANCE)
    if not worst <= tolerance:
        left_out.append(LeftOut(name=label, cause="wrong", reason=f"off by {worst:.3g}, and {tolerance:.3g} is right"))
        return None
    kept = Contestant(name=contestant.name, version=contestant.version, variants=tuple(right), active=contestant.active)
    return kept, worst


class _Host:
    """The inputs of a case on the host, as far as the check needs them."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        self._case = case
        count = case.output[0][0]
        starts = {0, max(0, count // 2 - _ROWS), max(0, count - _ROWS)}
        self._parts = [slice(0, count)] if case.whole else [slice(at, min(count, at + _ROWS)) for at in sorted(starts)]
        self._arrays = [{name: self._part(name, t, part, stream) for name, t in tensors.items()} for part in self._parts]

    def _part(self, name: str, tensor: tk.Tensor, part: slice, stream: Stream) -> Any:
        """The rows of `tensor` that belong to rows `part` of the result."""
        if self._case.whole or not tensor.shape:
            return tensor.to_host().sync_on(stream)
        if self._case.turned:
            return tensor[:, part].to_host().sync_on(stream)
        by_row = tensor.shape[0] == self._case.shape[0] and name not in ("weight", "bias")
        return (tensor[part] if by_row else tensor).to_host().sync_on(stream)

    def error(self, result: Any) -> float:
        """The largest error of the rows compared; NaN where an element of any row is NaN."""
        if dtypes.is_float(result.dtype) and bool(np.isnan(result).any()):
            return float("nan")
        return max(self._case.error(a, result[part]) for a, part in zip(self._arrays, self._parts, strict=True))
