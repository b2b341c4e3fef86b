"""saxpy, `y = a * x + y` in place on float32: two reads and a write of memory for each multiply-add.

All contestants work on the same two tensors, on one stream: tilekit allocates them, its peers see their addresses.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

import tilekit as tk
from tilekit import api
from tilekit._runtime.context import ExecutionContext
from tilekit._runtime.device import Device
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, saxpy_peers
from tilekit_benchmarks._tilekit_saxpy import saxpy
from tilekit_benchmarks.harness import Contestant, Measurement, Variant, compete, timer_for
from tilekit_benchmarks.report import OWN, LeftOut, Record, record, results

__all__ = ["BYTES_PER_ELEMENT", "DEFAULT_N", "run"]

DEFAULT_N = {"cuda": 2**28, "cpu": 2**22}
"""How many elements each vector has, by the kind of device. A GPU's caches hold a fraction of that."""

BYTES_PER_ELEMENT = 12
"""x and y are read, y is written."""

# Elements in a tile, and warps in a block (which a CPU device has not).
_SHAPES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "cuda": ((512, 1), (512, 4), (1024, 2), (1024, 4), (1024, 8), (2048, 4), (4096, 8)),
    "cpu": ((2**14, None), (2**16, None), (2**17, None)),
}
_FACTOR = float(np.float32(1.7))  # not a short binary fraction: every product has to be rounded
_SEED = 20261120
_CHUNK = 2**22  # elements that one thread of the host works on at a time
# y = a * x + y rounds once or twice; the expected value was rounded once too. 2 eps bounds that wherever |a x| <= |a x + y|.
_TOLERANCE = 2 * float(np.finfo(np.float32).eps)
_CACHE_BYTES = 256e6  # the largest last-level caches
T = TypeVar("T")
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Record:
    """Measure saxpy. Blocks until it is done.

    Raises:
        OutOfMemoryError: three vectors of `options.n` elements do not fit the device.
    """
    device = options.device
    n = options.n or DEFAULT_N[device.kind]
    left_out: list[LeftOut] = []
    with device.stream() as stream, ExitStack() as stack:
        _log.info("saxpy: making two vectors of %d elements on %s", n, device.label)
        data = _Data(device, stream, n)
        contestants: list[Contestant] = []
        errors: dict[str, float] = {}
        builders: dict[str, Callable[[saxpy_peers.Shared], Contestant]] = {OWN: _own, **saxpy_peers.PEERS[device.kind]}
        for name, build in builders.items():
            _log.info("saxpy: %s: compiling, checking", name)
            joined = _join(name, build, data, left_out)
            if joined is not None:
                contestants.append(joined[0])
                errors[joined[0].name] = joined[1]
        measurements: tuple[Measurement, ...] = ()
        if contestants:
            _log.info("saxpy: measuring")
            timer = timer_for(device, stream)
            stack.callback(timer.close)
            measurements = compete(contestants, timer, rounds=options.rounds)
    notes = []
    if 8 * n < _CACHE_BYTES:
        notes.append(f"the vectors have {8e-6 * n:.6g} MB together and may stay in a cache; a larger --n measures the memory")
    return record(
        device,
        benchmark="saxpy",
        n=n,
        bytes_per_launch=BYTES_PER_ELEMENT * n,
        rounds=options.rounds,
        timer="device events" if device.kind == "cuda" else "host clock",
        command=options.command,
        results=results(measurements, work=BYTES_PER_ELEMENT * n, unit="GB/s", errors=errors),
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _join(
    name: str, build: Callable[[saxpy_peers.Shared], Contestant], data: _Data, left_out: list[LeftOut]
) -> tuple[Contestant, float] | None:
    """Let a contestant take part, with the largest error of its variants, or write down why it does not."""
    try:
        contestant = build(data)
        with contestant.active():
            errors = {variant.label: data.error_of(variant.launch) for variant in contestant.variants}
    except saxpy_peers.Missing as missing:
        left_out.append(LeftOut(name=name, cause="missing", reason=str(missing)))
        return None
    except Exception as error:
        if name == OWN:
            raise
        # A peer that cannot run here says something about the peer; the others are still worth measuring.
        _log.warning("saxpy: %s failed", name, exc_info=error)
        left_out.append(LeftOut(name=name, cause="failed", reason=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
        return None
    wrong = [f"{label or name}: {error:.3g}" for label, error in errors.items() if not error <= _TOLERANCE]  # NaN is wrong
    if wrong:
        reason = f"the result differs from NumPy's by more than {_TOLERANCE:.2g} (relative): {', '.join(wrong)}"
        left_out.append(LeftOut(name=name, cause="wrong", reason=reason))
        return None
    return contestant, max(errors.values())


def _own(data: saxpy_peers.Shared) -> Contestant:
    def variant(tile: int, warps: int | None) -> Variant:
        y = data.y.partition(tile)

        def launch() -> object:
            op = saxpy(y, data.factor, data.x)
            return (op if warps is None else op.num_warps(warps)).async_on(data.stream)

        return Variant(label=f"tile {tile}" + (f", {warps} warps" if warps else ""), launch=launch)

    shapes = _SHAPES[data.stream.device.kind]
    return Contestant(name=OWN, version=tk.__version__, variants=tuple(variant(*shape) for shape in shapes))


class _Data(saxpy_peers.Shared):
    """The vectors, and what must come out."""

    def __init__(self, device: Device, stream: Stream, n: int) -> None:
        x, y, expected = (np.empty(n, np.float32) for _ in range(3))

        def fill(part: slice) -> None:
            rng = np.random.default_rng((_SEED, part.start))
            rng.random(out=x[part], dtype=np.float32)
            rng.random(out=y[part], dtype=np.float32)
            x[part] += 1  # so that a * x is never small: an element that nobody writes is always far off
            expected[part] = _FACTOR * x[part].astype(np.float64) + y[part]

        _in_chunks(fill, n)
        tensor = api.from_host(x).sync_on(stream)
        super().__init__(n=n, factor=_FACTOR, x=tensor, y=api.from_host(y).sync_on(stream), stream=stream)
        self._fresh = api.dup(self.y).sync_on(stream)
        self._expected = expected

    def error_of(self, launch: Callable[[], object]) -> float:
        """The largest relative error of any element after one launch on fresh data; NaN if any is NaN. Blocks."""
        tk.with_context(self._restore).sync_on(self.stream)
        launch()
        self.stream.synchronize()
        result = self.y.to_host().sync_on(self.stream)

        def error(part: slice) -> float:
            return float(np.max(np.abs(result[part] - self._expected[part]) / self._expected[part]))

        # Python's max() would lose a NaN.
        return float(np.max(_in_chunks(error, self.n)))

    def _restore(self, ctx: ExecutionContext) -> tk.DeviceOp[None]:
        source, target = self._fresh.storage, self.y.storage
        assert source is not None and target is not None, "neither is a meta tensor"
        ctx.acquire((source,), (target,))
        ctx.device.driver.copy(target.memory, 0, source.memory, 0, self.y.nbytes, ctx.stream.handle)
        ctx.note((source,), (target,))
        return tk.value(None)


def _in_chunks(function: Callable[[slice], T], n: int) -> list[T]:
    """`function` of each chunk of n elements, by several threads: NumPy holds no lock while it computes."""
    parts = [slice(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, parts))
