"""The benchmark `cpu`: the CPU device beside NumPy and numba, on one thread and on all, and what compiling costs there.

Elementwise work, rows, products, attention, a loop, counts and gathered elements: kernels of `tilekit.kernels` and of the
tutorials' kind. NumPy's elementwise functions use one thread whatever is asked for; its products take as many as tilekit.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, kernels
from tilekit._runtime.stream import Stream
from tilekit.compiler.cpu.machine import host
from tilekit.compiler.cpu.workers import cores
from tilekit_benchmarks import Options, _tilekit_cpu, kernel_peers
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_cases import Case, Tensors
from tilekit_benchmarks.kernel_runs import KernelRun, measure
from tilekit_benchmarks.saxpy_peers import Missing

__all__ = ["cpu_cases", "run"]

_F, _I = tk.float32, tk.int32
_FACTOR = float(np.float32(1.7))
_WIDTH, _TURNS, _BINS = 512, 50, 256
_LEFT, _TOP, _STEP = -2.0, -1.25, 2.5 / _WIDTH


def _randn(*shape: int, seed: int = 1) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
    return lambda: api.randn(0.0, 1.0, shape, seed=seed)


def _integers(high: int, n: int) -> Callable[[], tk.DeviceOp[tk.Tensor]]:
    return lambda: api.randint(0, high, n, dtype=_I, seed=3)


def cpu_cases(n: int | None = None) -> list[Case]:
    """What is measured; with `n`, vectors of so many elements, alone."""
    return _of_vectors(n or 1 << 24, n) + ([] if n else [*_of_rows(4096, 1024), *map(_product, (512, 1024)), _attention()])


def _of_vectors(long: int, n: int | None) -> list[Case]:
    points, counted, gathered = n or 1 << 18, n or 1 << 22, n or 1 << 20

    def counts(t: Tensors, y: tk.Tensor) -> tk.DeviceOp[Any]:
        launch = _tilekit_cpu.histogram(y.scattered(), t["x"]).generics(TILE=1 << 14, BINS=_BINS).grid(-(-counted >> 14))
        return y.fill(0).then(lambda _: launch).first().unpartition()

    return [
        Case(
            kernel="saxpy", shape=(long,), dtype=_F, nbytes=12 * long, output=((long,), _F),
            inputs={"x": _randn(long), "y": _randn(long, seed=2)},
            own=lambda t, y: _tilekit_cpu.saxpy(t["y"].partition(1 << 14), _FACTOR, t["x"]).first().unpartition(),
            expected=lambda a: _FACTOR * a["x"] + a["y"],
        ),
        Case(
            kernel="mandelbrot", shape=(points,), dtype=_F, nbytes=4 * points, output=((points,), _I), inputs={}, whole=True,
            own=lambda t, y: _tilekit_cpu.mandelbrot(y.partition(256), _LEFT, _TOP, _STEP, _WIDTH)
            .generics(TILE=256, TURNS=_TURNS).first().unpartition(),
            expected=lambda a: _escaped(points), tolerance=1e-9,
        ),
        Case(
            kernel="histogram", shape=(counted,), dtype=_I, nbytes=4 * counted, output=((_BINS,), _I), whole=True,
            inputs={"x": _integers(_BINS, counted)}, own=counts, tolerance=0,
            expected=lambda a: np.bincount(a["x"], minlength=_BINS),
        ),
        Case(
            kernel="gather", shape=(gathered,), dtype=_F, nbytes=12 * gathered, output=((gathered,), _F), whole=True,
            inputs={"x": _randn(gathered), "at": _integers(gathered, gathered)},
            own=lambda t, y: _tilekit_cpu.gather(y.partition(4096), t["x"], t["at"]).first().unpartition(),
            expected=lambda a: a["x"][a["at"]],
        ),
    ]  # fmt: skip


def _of_rows(rows: int, columns: int) -> list[Case]:
    shape = (rows, columns)
    vectors = {name: (lambda seed=seed: api.rand(columns, seed=seed)) for seed, name in ((4, "weight"), (5, "bias"))}
    return [
        Case(
            kernel="softmax", shape=shape, dtype=_F, nbytes=8 * rows * columns, output=(shape, _F), inputs={"x": _randn(*shape)},
            own=lambda t, y: kernels.softmax(t["x"], out=y), expected=lambda a: _softmax(a["x"]),
        ),
        Case(
            kernel="layer_norm", shape=shape, dtype=_F, nbytes=8 * rows * columns, output=(shape, _F),
            inputs={"x": _randn(*shape), **vectors}, own=lambda t, y: kernels.layer_norm(t["x"], t["weight"], t["bias"], out=y),
            expected=lambda a: _layer_norm(a["x"], a["weight"], a["bias"]),
        ),
    ]  # fmt: skip


def _product(n: int) -> Case:
    return Case(
        kernel="matmul", shape=(n, n, n), dtype=_F, nbytes=12 * n * n, output=((n, n), _F), operations=2 * n**3, whole=True,
        inputs={"x": _randn(n, n), "w": _randn(n, n, seed=2)}, own=lambda t, y: kernels.gemm(t["x"], t["w"], out=y),
        expected=lambda a: a["x"] @ a["w"],
    )  # fmt: skip


def _attention() -> Case:
    shape = batch, heads, length, size = 1, 4, 512, 64
    return Case(
        kernel="attention", shape=shape, dtype=_F, nbytes=16 * heads * length * size, output=(shape, _F), whole=True,
        inputs={name: _randn(*shape, seed=seed) for seed, name in enumerate("xkv")},
        operations=4 * batch * heads * length**2 * size,
        own=lambda t, y: kernels.attention(t["x"], t["k"], t["v"], out=y),
        expected=lambda a: _softmax(a["x"] @ a["k"].swapaxes(-1, -2) / size**0.5) @ a["v"],
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- what NumPy does


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    t = x - x.mean(-1, keepdims=True)
    return t * (1 / np.sqrt((t * t).mean(-1, keepdims=True) + 1e-5)) * weight + bias


def _points(n: int) -> tuple[Any, Any]:
    at = np.arange(n)
    left, top, step = (np.float32(number) for number in (_LEFT, _TOP, _STEP))
    return left + (at % _WIDTH).astype(np.float32) * step, top + (at // _WIDTH).astype(np.float32) * step


def _escaped(n: int) -> Any:
    (cr, ci), counts = _points(n), np.zeros(n, np.int32)
    zr, zi = np.zeros_like(cr), np.zeros_like(ci)
    for _ in range(_TURNS):
        rr, ii = zr * zr, zi * zi
        inside = rr + ii <= 4
        zr, zi = np.where(inside, rr - ii + cr, zr), np.where(inside, 2 * zr * zi + ci, zi)
        counts += inside
    return counts


_Work = tuple[Callable[[], object], Callable[[], Any]]


def _by_numpy(case: Case, a: Mapping[str, Any], y: Any) -> _Work:
    """A launch, and what gives its result."""

    def into(function: Callable[[], Any]) -> _Work:
        def launch() -> None:
            y[...] = function()

        return launch, lambda: y

    factor = np.float32(_FACTOR)
    match case.kernel.partition(",")[0]:
        case "saxpy":  # the sum alone, in place: the product would need a second pass
            first = a["x"] * factor
            return lambda: np.add(first, a["y"], out=a["y"]), lambda: a["y"]
        case "mandelbrot":
            return into(lambda: _escaped(y.size))
        case "histogram":
            return into(lambda: np.bincount(a["x"], minlength=_BINS))
        case "gather":
            return lambda: np.take(a["x"], a["at"], out=y, mode="raise"), lambda: y
        case "matmul":
            return lambda: np.matmul(a["x"], a["w"], out=y), lambda: y
        case "softmax":
            return into(lambda: _softmax(a["x"]))
        case "layer_norm":
            return into(lambda: _layer_norm(a["x"], a["weight"], a["bias"]).astype(np.float32))
        case "attention":
            scale = np.float32(case.shape[3] ** -0.5)
            return into(lambda: _softmax(a["x"] @ a["k"].swapaxes(-1, -2) * scale) @ a["v"])
    raise NotImplementedError


def _by_numba(case: Case, a: Mapping[str, Any], y: Any) -> _Work:
    from tilekit_benchmarks import _numba_cpu

    left, top, step = (np.float32(number) for number in (_LEFT, _TOP, _STEP))
    match case.kernel.partition(",")[0]:
        case "mandelbrot":
            return lambda: _numba_cpu.mandelbrot(y, left, top, step, _WIDTH, _TURNS), lambda: y
        case "histogram":

            def count() -> None:
                y[...] = 0
                _numba_cpu.histogram(y, a["x"], cores())

            return count, lambda: y
        case "gather":
            return lambda: _numba_cpu.gather(y, a["x"], a["at"]), lambda: y
    raise NotImplementedError


def _peer(name: str, version: Callable[[], str], work: Callable[[Case, Mapping[str, Any], Any], _Work]) -> kernel_peers.Build:
    def build(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
        # Made anew: who works in place has changed the others already.
        arrays = {name: make().on(stream.device).to_host().sync_on(stream) for name, make in case.inputs.items()}
        launch, result = work(case, arrays, np.empty(out.shape, out.dtype))
        return Contestant(name=name, version=version(), variants=(Variant(launch=launch),), active=_settled), result

    return build


@contextmanager
def _settled() -> Iterator[None]:
    """Behind the block BLAS's threads sleep: for some time after a product they look out for another, on cores of theirs."""
    yield
    time.sleep(0.3)


def _numba_version() -> str:
    import numba

    return str(numba.__version__)


PEERS: Mapping[str, kernel_peers.Build] = {
    "numpy": _peer("numpy", lambda: np.__version__, _by_numpy),
    "numba": _peer("numba", _numba_version, _by_numba),
}
"""The peers, by name."""


# ------------------------------------------------------------------------------------------------------------------ threads


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """While the block runs, tilekit, NumPy's products and numba have so many threads."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise Missing(
            "threadpoolctl is not installed, which limits the threads of NumPy's products: pip install threadpoolctl"
        ) from None
    import numba

    before, many = os.environ.get("TILEKIT_CPU_THREADS"), numba.get_num_threads()
    os.environ["TILEKIT_CPU_THREADS"] = str(count)
    numba.set_num_threads(min(count, many))
    try:
        with threadpool_limits(count):
            yield
    finally:
        numba.set_num_threads(many)
        if before is None:
            del os.environ["TILEKIT_CPU_THREADS"]
        else:
            os.environ["TILEKIT_CPU_THREADS"] = before


def run(options: Options) -> KernelRun:
    """Measure them, on one thread and on all that the process may use. Blocks until it is done.

    Raises:
        ValueError: the device is a GPU.
    """
    if options.device.kind != "cpu":
        raise ValueError(f"the benchmark cpu is of a CPU device, not of {options.device.label}: --device cpu")
    runs = []
    for count in dict.fromkeys((1, cores())):
        cases = [replace(case, kernel=f"{case.kernel}, {count} thread{'s' * (count > 1)}") for case in cpu_cases(options.n)]
        with _threads(count):
            runs.append(measure("cpu", options, cases, peers=PEERS))
    machine = host()
    return replace(
        runs[0],
        cases=tuple(case for run_ in runs for case in run_.cases),
        left_out=tuple(dict.fromkeys(one for run_ in runs for one in run_.left_out)),
        notes=(f"the CPU is {_model()}, to LLVM {machine.name}, with vectors of {machine.vector_bytes} bytes", *runs[0].notes),
    )


def _model() -> str:
    """What the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
