"""Products of groups: what they hide of what the members tell each other, beside torch's symmetric memory.

Four ways of each: the product alone, of what is all there; the collective alone; one after the other; and together, in one op.
What one after the other takes longer than the product alone is what is told; what together takes less of it is hidden.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import tilekit as tk
from tilekit_benchmarks import Options, saxpy_peers
from tilekit_benchmarks.collective_crew import Crew, Refused
from tilekit_benchmarks.product_members import OPS, WAYS, Product, of_tilekit
from tilekit_benchmarks.report import OWN, LeftOut, Run, align, surroundings

__all__ = ["DEFAULT_N", "ProductCase", "ProductResult", "ProductRun", "run"]

DEFAULT_N = {"cuda": 8192, "cpu": 128}
"""Rows and columns of the large matrices, by the kind of device."""

_SHORT = 4  # by what the rows of a short product are fewer
_SAMPLE_US, _MOST_CALLS = 3e4, 50
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_")  # which change what is measured
_log = logging.getLogger("tilekit_benchmarks")


@dataclass(frozen=True, kw_only=True)
class ProductResult:
    """What one contestant took for one product, in microseconds of the slowest member.

    Attributes:
        name, version: the library's.
        times_us: the median of each way, by its name.
        samples_us: each round's.
        hidden: what part is hidden of what one after the other takes longer than the product alone.
    """

    name: str
    version: str
    times_us: dict[str, float]
    samples_us: dict[str, tuple[float, ...]]
    hidden: float


@dataclass(frozen=True, kw_only=True)
class ProductCase:
    """One product: `op`, one of `product_members.OPS`, and its `shape`, `(M, N, K)` of the whole product."""

    op: str
    shape: tuple[int, int, int]
    results: tuple[ProductResult, ...]


@dataclass(frozen=True, kw_only=True)
class ProductRun(Run):
    """One run of the benchmark of groups' products.

    Attributes:
        devices: labels of the members' devices, by rank.
        dtype: of the matrices.
        environment: the variables that were set for NCCL and torch's symmetric memory.
        cases: what was measured.
    """

    devices: tuple[str, ...]
    dtype: str
    environment: dict[str, str]
    cases: tuple[ProductCase, ...]

    @property
    def title(self) -> str:
        """Which benchmark, and among how many."""
        return f"{self.benchmark}, {len(self.devices)} devices"

    def body(self) -> list[str]:
        """A row for each contestant of each product."""
        rows = [("", "", *(f"{way}, us" for way in WAYS), "hidden")]
        for case in self.cases:
            for at, r in enumerate(case.results):
                what = "" if at else f"{case.op} {'x'.join(map(str, case.shape))}"
                times = (f"{r.times_us[way]:.1f}" if way in r.times_us else "" for way in WAYS)
                rows.append((what, r.name, *times, f"{r.hidden:.0%}"))
        about = ", ".join(f"{name}={value}" for name, value in self.environment.items())
        return [f"among {', '.join(self.devices)}; {self.dtype}", *([about] if about else []), "", *align(rows)]

    def draw(self, figure: Any) -> None:
        """What is hidden: a bar for each contestant of each product."""
        axes = figure.subplots()
        names = list(dict.fromkeys(r.name for case in self.cases for r in case.results))
        for number, name in enumerate(names):
            shown = [(at, r.hidden) for at, case in enumerate(self.cases) for r in case.results if r.name == name]
            axes.barh([at + 0.4 * number for at, _ in shown], [100 * hidden for _, hidden in shown], 0.38, label=name)
        labels = [f"{case.op}\n{'x'.join(map(str, case.shape))}" for case in self.cases]
        axes.set_yticks([at + 0.2 * (len(names) - 1) for at in range(len(labels))], labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("hidden of what the members tell each other, %")
        axes.legend(frameon=False)


def run(options: Options) -> ProductRun:
    """Measure the products. Blocks until it is done.

    Raises:
        ValueError: there are fewer than two devices.
        CrewError: a process has died, or is late.
    """
    kind = options.device.kind
    labels = [device.label for device in tk.devices() if device.kind == kind]
    if len(labels) < 2:
        raise ValueError(f"products: they need two devices at least, and there is {', '.join(labels) or 'none'}")
    n, size = options.n or DEFAULT_N[kind], len(labels)
    least = size * 16
    rows = [max(least, m - m % size) for m in (n, n // _SHORT)]
    dtype = "bfloat16" if kind == "cuda" else "float32"
    products = [Product(op=op, shape=(m, n, n), dtype=dtype) for m in rows for op in OPS]
    left_out: list[LeftOut] = []
    with ExitStack() as stack:
        crews = _crews(stack, labels, kind, left_out)
        measured = [_measured(product, crews, options.rounds, left_out) for product in products]
    return ProductRun(
        **surroundings(options.device, [r for case in measured for r in case.results]),
        benchmark="products",
        rounds=options.rounds,
        timer="device events" if kind == "cuda" else "host clock",
        command=options.command,
        left_out=tuple(left_out),
        devices=tuple(labels),
        dtype=dtype,
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
        cases=tuple(measured),
    )


def torch_member(*arguments: Any) -> Any:
    """A member of torch.distributed's; only its own process imports PyTorch."""
    from tilekit_benchmarks import product_peers

    return product_peers.join(*arguments)


def _crews(stack: ExitStack, labels: Sequence[str], kind: str, left_out: list[LeftOut]) -> dict[str, Crew]:
    """Who takes part, by the library's name."""
    crews = {}

    def add(name: str, make: Callable[..., Any]) -> None:
        address, size = tk.Group.free_address(), len(labels)
        crews[name] = stack.enter_context(Crew(name, make, [(rank, size, address, label) for rank, label in enumerate(labels)]))
        crews[name].started()

    add(OWN, of_tilekit)
    if kind == "cuda":  # torch has such products on GPUs alone
        try:
            saxpy_peers.need(("torch", "torch"))
            add("torch", torch_member)
        except (saxpy_peers.Missing, Refused) as error:
            crews.pop("torch", None)
            left_out.append(LeftOut(name="torch", cause="missing", reason=str(error)))
    return crews


def _measured(product: Product, crews: dict[str, Crew], rounds: int, left_out: list[LeftOut]) -> ProductCase:
    """Check the contestants, then sample them in turns."""
    label = f"{product.op} {'x'.join(map(str, product.shape))}"
    _log.info("%s: building, checking", label)
    samples: dict[str, dict[str, list[float]]] = {}
    for name, crew in crews.items():
        try:
            wrong = [answer for answer in crew.ask("build", product) if answer is not None]
        except Refused as error:
            left_out.append(LeftOut(name=f"{name}, {label}", cause="failed", reason=str(error)))
            continue
        if wrong:
            left_out.append(LeftOut(name=f"{name}, {label}", cause="wrong", reason=wrong[0]))
            continue
        samples[name] = {way: [] for way in crew.ask("ways")[0]}

    def sample(name: str, way: str, calls: int) -> float:
        return float(max(crews[name].ask("sample", way, calls)))

    calls = {
        (name, way): max(1, min(_MOST_CALLS, math.ceil(_SAMPLE_US / max(1.0, sample(name, way, 2)))))
        for name, ways in samples.items()
        for way in ways
    }
    for _ in range(rounds):
        for name, ways in samples.items():
            for way, times in ways.items():
                times.append(sample(name, way, calls[name, way]))
    results = []
    for name, ways in samples.items():
        medians = {way: statistics.median(times) for way, times in ways.items()}
        exposed = medians["in turn"] - medians["product"]
        result = ProductResult(
            name=name,
            version=f"{crews[name].ask('version')[0]}",
            times_us=medians,
            samples_us={way: tuple(times) for way, times in ways.items()},
            hidden=1 - (medians["together"] - medians["product"]) / exposed,
        )
        results.append(result)
        _log.info("    %s: %s", name, ", ".join(f"{way} {us:.1f} us" for way, us in medians.items()))
    for name in samples:
        crews[name].ask("drop")
    return ProductCase(op=product.op, shape=product.shape, results=tuple(results))
