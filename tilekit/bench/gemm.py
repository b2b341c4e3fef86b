"""The benchmark `gemm`: products of matrices, `kernels.gemm` beside cuBLAS (through PyTorch) and Triton's tutorial kernel.

On a GPU products of bfloat16 come first, of row-major matrices; then of 8-bit floats and integers, and of float32 as tf32, by the
transpose of such a matrix. PyTorch's peers of 8-bit floats are its `_scaled_mm` without fast accumulation, and with it where
tilekit's `precision` is "fast"; that of integers is `_int_mm`.

tilekit's op is prepared (`op.prepare()`), so that what is measured is the device's time also where that is short. On a CPU device
matrices are small, and of float32; the peer is NumPy.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit.bench import Options, kernel_peers
from tilekit.bench.harness import Contestant, Measurement, Variant, compete, timer_for
from tilekit.bench.kernel_cases import Case, Tensors
from tilekit.bench.kernel_runs import join
from tilekit.bench.report import OWN, LeftOut, Run, align, surroundings
from tilekit.stream import Stream

__all__ = ["PEERS", "GemmCase", "GemmResult", "GemmRun", "compared", "gemm_cases", "run"]

# M, N and K.
_SIZES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192, 16384)),
    (8192, 8192, 1024), (512, 8192, 8192), (16, 8192, 8192),
)  # fmt: skip
_CPU_SIZES = ((128, 128, 128), (512, 512, 512), (16, 512, 512))
# Rows that are compared, and how many columns NumPy multiplies at a time in float64.
_ROWS, _COLUMNS = 16, 1024
# Of the largest element: bfloat16 results are rounded to half a unit of their last place, 2**-8 of what is just above a power of
# two; and what additions in float32 lose before.
_TOLERANCES = {dtypes.bfloat16: 4.2e-3, dtypes.float32: 2e-5}
# Of other types, M = N = K; the dtype of the result, and what is right: tensor cores cut off sums of 8-bit floats, and tf32 what
# float32 has beyond its 11 bits.
_OTHERS = 8192
_OF_OTHER_TYPES = {
    "gemm e4m3": (dtypes.float8_e4m3fn, "ieee", dtypes.bfloat16, 5e-3),
    "gemm e4m3 fast": (dtypes.float8_e4m3fn, "fast", dtypes.bfloat16, 1.2e-2),
    "gemm int8": (dtypes.int8, "ieee", dtypes.int32, 0.0),
    "gemm tf32": (dtypes.float32, "tf32", dtypes.float32, 2e-3),
}
_REFERENCE = {"cuda": "torch", "cpu": "numpy"}
_log = logging.getLogger("tilekit.bench")


@dataclass(frozen=True, kw_only=True)
class GemmResult:
    """How a contestant did.

    Attributes:
        name, version, variant: who, and in which variant (the best of its own).
        median_us, min_us, max_us: of a launch, over the rounds.
        tflop_per_s: `2 * M * N * K` operations over the median time, in 10^12 a second.
        min_tflop_per_s, max_tflop_per_s: over the longest and the shortest time.
        ratio_to_reference: how much faster than PyTorch, which is cuBLAS (NumPy on a CPU device): the median, over the rounds,
            of its time divided by this one's in the same round. None if it did not take part.
        max_relative_error: of the rows compared, against float64, relative to the largest element.
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
    tflop_per_s: float
    min_tflop_per_s: float
    max_tflop_per_s: float
    ratio_to_reference: float | None
    max_relative_error: float
    launches_per_sample: int
    samples_us: tuple[float, ...]
    tried_us: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class GemmCase:
    """One size.

    Attributes:
        m, n, k: of a product of an `(M, K)` and a `(K, N)` matrix.
        dtype: of the operands; of the result, too, if that is a float of 16 bits or more.
        results: of each contestant, fastest first.
        precision: as for `kernels.gemm`.
    """

    m: int
    n: int
    k: int
    dtype: str
    results: tuple[GemmResult, ...]
    precision: str = "ieee"

    @property
    def label(self) -> str:
        """The size, and the precision if it is a special one."""
        return f"{self.m}x{self.n}x{self.k}" + f" {self.precision}" * (self.precision != "ieee")


@dataclass(frozen=True, kw_only=True)
class GemmRun(Run):
    """One run of the benchmark.

    Attributes:
        reference: the peer that ratios are to.
        cases: what was measured.
    """

    reference: str
    cases: tuple[Any, ...]
    sizes: ClassVar[str] = "MxNxK"

    def body(self) -> list[str]:
        """For each size a row for each contestant."""
        rows = [(self.sizes, "", "variant", "us", "TFLOP/s", "min-max", f"to {self.reference}", "error")]
        for case in self.cases:
            for at, r in enumerate(case.results):
                ratio = "" if r.ratio_to_reference is None else f"{r.ratio_to_reference:.3f}"
                span, label = f"{r.min_tflop_per_s:.4g}-{r.max_tflop_per_s:.4g}", "" if at else f"{case.label} {case.dtype}"
                us, error = f"{r.median_us:.1f}", f"{r.max_relative_error:.1e}"
                rows.append((label, r.name, r.variant, us, f"{r.tflop_per_s:.4g}", span, ratio, error))
        return ["", *align(rows), "", "`error` is the largest of some rows of each result, against NumPy in float64."]

    def draw(self, figure: Any) -> None:
        """For each size a bar for each contestant."""
        figure.set_size_inches(9, 1.2 + 0.62 * len(self.cases))
        axes = figure.subplots()
        names = sorted({r.name for case in self.cases for r in case.results}, key=lambda name: (name != OWN, name))
        colours = dict(zip(names, ["#d9822b", "#7b8794", "#b0bec5", "#546e7a"]))
        height = 0.8 / max(1, len(names))
        for at, case in enumerate(self.cases):
            for r in case.results:
                place = at + height * (names.index(r.name) - (len(names) - 1) / 2)
                error = [[r.tflop_per_s - r.min_tflop_per_s], [r.max_tflop_per_s - r.tflop_per_s]]
                axes.barh(place, r.tflop_per_s, height, xerr=error, color=colours[r.name], error_kw={"lw": 0.8})
        axes.set_yticks(range(len(self.cases)), [f"{case.label} {case.dtype}" for case in self.cases], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("TFLOP/s (median, lowest to highest round)", fontsize=9)
        handles = [axes.barh(0, 0, color=colours[name], label=name) for name in names]
        axes.legend(handles=handles, fontsize=8, frameon=False, loc="lower right")


def gemm_cases(kind: str, n: int | None = None) -> list[Case]:
    """The products for a kind of device, or only that of square matrices of `n` rows."""
    dtype, sizes = (tk.bfloat16, _SIZES) if kind == "cuda" else (tk.float32, _CPU_SIZES)
    cases = [_case(size, dtype) for size in (((n, n, n),) if n else sizes)]
    return cases if n or kind != "cuda" else [*cases, *(_other_case(kernel, _OTHERS) for kernel in _OF_OTHER_TYPES)]


def _case(size: tuple[int, int, int], dtype: Any) -> Case:
    m, n, k = size
    return Case(
        kernel="gemm",
        shape=size,
        dtype=dtype,
        nbytes=dtype.itemsize * (m * k + k * n + m * n),
        inputs={
            "x": lambda: api.randn(0.0, 1.0, (m, k), seed=1, dtype=dtype),
            "weight": lambda: api.randn(0.0, 1.0, (k, n), seed=2, dtype=dtype),
        },
        output=((m, n), dtype),
        own=lambda t, y: kernels.gemm(t["x"], t["weight"], out=y),
        expected=lambda a: a["x"] @ a["weight"],
        tolerance=_TOLERANCES[dtype],
    )


def _other_case(kernel: str, n: int) -> Case:
    dtype, precision, into, tolerance = _OF_OTHER_TYPES[kernel]

    def operand(seed: int) -> tk.DeviceOp[tk.Tensor]:
        if dtype == dtypes.int8:
            return api.randint(-128, 128, (n, n), dtype=dtype, seed=seed)
        made = api.randn(0.0, 1.0, (n, n), seed=seed)
        return made if dtype == dtypes.float32 else made.astype(dtype)

    return Case(
        kernel=kernel,
        shape=(n, n, n),
        dtype=dtype,
        nbytes=n * n * (2 * dtype.itemsize + into.itemsize),
        inputs={"x": lambda: operand(1), "turned": lambda: operand(2)},
        output=((n, n), into),
        own=lambda t, y: kernels.gemm(t["x"], t["turned"].T, out=y, dtype=into, precision=precision),
        expected=lambda a: a["x"] @ a["turned"].T,
        tolerance=tolerance,
    )


class _Rows:
    """Some rows of the right result."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        count, columns = case.output[0]
        self._rows = np.unique(np.linspace(0, count - 1, min(_ROWS, count)).astype(int))
        left = tensors["x"].to_host().sync_on(stream)[self._rows].astype(np.float64)
        right = tensors["weight" if "weight" in tensors else "turned"].to_host().sync_on(stream)
        right = right if "weight" in tensors else right.T
        parts = [left @ right[:, at : at + _COLUMNS].astype(np.float64) for at in range(0, columns, _COLUMNS)]
        self._right = np.concatenate(parts, axis=1)

    def error(self, result: Any) -> float:
        """The largest error of these rows; NaN where an element of any row is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        off = np.abs(result[self._rows].astype(np.float64) - self._right).max()
        return float(off / np.abs(self._right).max())


def _own(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    prepared = case.own(tensors, out).prepare()
    variant = Variant(label="prepared", launch=lambda: prepared.run(stream))
    return Contestant(name=OWN, version=tk.__version__, variants=(variant,)), lambda: out.to_host().sync_on(stream)


def _numpy(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    a, b = (tensors[name].to_host().sync_on(stream) for name in ("x", "weight"))
    made = np.empty(case.output[0], a.dtype)
    variant = Variant(launch=lambda: np.matmul(a, b, out=made))
    return Contestant(name="numpy", version=np.__version__, variants=(variant,)), lambda: made


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {"cuda": kernel_peers.PEERS["cuda"], "cpu": {"numpy": _numpy}}
"""The peers on each kind of device, by name."""


def run(options: Options) -> GemmRun:
    """Measure them. Blocks until it is done."""
    device = options.device
    cases = gemm_cases(device.kind, options.n)
    measured, left_out = compared(options, cases, PEERS[device.kind], _REFERENCE[device.kind], _Rows, _operations)
    found = []
    for case, results in measured:
        m, n, k = case.shape
        precision = _OF_OTHER_TYPES[case.kernel][1] if case.kernel in _OF_OTHER_TYPES else "ieee"
        found.append(GemmCase(m=m, n=n, k=k, dtype=case.dtype.name, results=results, precision=precision))
    return GemmRun(
        **surroundings(device, [r for case in found for r in case.results]),
        benchmark="gemm",
        rounds=options.rounds,
        timer="device events" if device.kind == "cuda" else "host clock",
        command=options.command,
        left_out=tuple(left_out),
        reference=_REFERENCE[device.kind],
        cases=tuple(found),
    )


def _operations(case: Case) -> int:
    m, n, k = case.shape
    return 2 * m * n * k


def compared(
    options: Options, cases: Sequence[Case], peers: Mapping[str, kernel_peers.Build], reference: str,
    check_of: Callable[[Case, Tensors, Stream], Any], operations: Callable[[Case], int],
) -> tuple[list[tuple[Case, tuple[GemmResult, ...]]], list[LeftOut]]:  # fmt: skip
    """For each case the results of tilekit and its peers, in turns, each checked before; and who is left out.

    Args:
        options: of the benchmark.
        cases: what is measured.
        peers: those of the device.
        reference: the peer that ratios are to.
        check_of: what looks at results, of a case, its tensors and the stream.
        operations: how many a case takes.
    """
    device, left_out, found = options.device, list[LeftOut](), list[tuple[Case, tuple[GemmResult, ...]]]()
    with device.stream() as stream, ExitStack() as stack:
        timer = timer_for(device, stream)
        stack.callback(timer.close)
        for case in cases:
            _log.info("%s: making data, compiling, checking", case.label)
            tensors = {what: make().on(device).sync_on(stream) for what, make in case.inputs.items()}
            out = api.empty(*case.output).on(device).sync_on(stream)
            check = check_of(case, tensors, stream)
            taking_part, errors = list[Contestant](), dict[str, float]()
            for who, build in {OWN: _own, **peers}.items():
                joined = join(who, build, case, tensors, out, stream, check, left_out)
                if joined is not None:
                    taking_part.append(joined[0])
                    errors[who] = joined[1]
            if OWN not in errors:
                continue
            _log.info("%s: measuring", case.label)
            measured = compete(taking_part, timer, rounds=options.rounds)
            found.append((case, _results(measured, operations(case), reference, errors)))
    return found, left_out


def _results(
    measured: Sequence[Measurement], operations: int, reference: str, errors: Mapping[str, float]
) -> tuple[GemmResult, ...]:
    base = next((m for m in measured if m.name == reference), None)
    return tuple(
        GemmResult(
            name=m.name,
            version=m.version,
            variant=m.variant,
            median_us=m.median_us,
            min_us=min(m.samples_us),
            max_us=max(m.samples_us),
            tflop_per_s=1e-6 * operations / m.median_us,
            min_tflop_per_s=1e-6 * operations / max(m.samples_us),
            max_tflop_per_s=1e-6 * operations / min(m.samples_us),
            ratio_to_reference=statistics.median(b / own for b, own in zip(base.samples_us, m.samples_us)) if base else None,
            max_relative_error=errors[m.name],
            launches_per_sample=m.launches_per_sample,
            samples_us=m.samples_us,
            tried_us=m.tried_us,
        )
        for m in sorted(measured, key=lambda m: m.median_us)
    )
