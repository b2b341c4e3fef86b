"""Copies between the host and the device, from page-locked and from ordinary memory, beside the driver's own.

What is timed is one copy and the wait for it: an op that is built and run, or one that was prepared. Arrays have random bytes,
and what arrives is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from tilekit import __version__, api, memory
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, raw
from tilekit_benchmarks.awaiting import policy_of
from tilekit_benchmarks.report import OWN
from tilekit_benchmarks.sweep import Candidate, Sweep, Work, sweep

__all__ = ["DEFAULT_N", "run"]

DEFAULT_N = {"cuda": 2**28, "cpu": 2**24}
"""The largest copy in bytes, by the kind of device."""

_SMALLEST, _STEP, _SEED = 2**12, 2**4, 20261121
_log = logging.getLogger("tilekit_benchmarks")


def run(options: Options) -> Sweep:
    """Measure copies of 4 KiB, 64 KiB... up to `options.n` bytes. Blocks until it is done."""
    device, largest = options.device, options.n or DEFAULT_N[options.device.kind]
    sizes = [_SMALLEST]
    while sizes[-1] * _STEP <= largest:
        sizes.append(sizes[-1] * _STEP)
    with ExitStack() as stack:
        stream = stack.enter_context(device.stream())
        stack.enter_context(policy_of(device, stream))
        candidates = [*(_on_gpu(stream) if device.kind == "cuda" else _on_cpu(stream)), *_own(stream)]
        _log.info("copies: up to %d bytes, on %s", sizes[-1], device.label)
        return sweep(
            options,
            candidates,
            sizes,
            items=lambda nbytes: nbytes * 1e-9,
            benchmark="copies",
            axis="bytes",
            unit="GB/s",
            rate=True,
            parameters={"n": sizes[-1]},
        )


class _Data:
    """A tensor and two arrays of the host's of so many bytes.

    Attributes:
        array: what is copied from, or to.
        tensor: the other side.
    """

    def __init__(self, stream: Stream, nbytes: int, pinned: bool) -> None:
        self.stream = stream
        make: Callable[..., Any] = memory.pinned if pinned else np.empty
        self.array: np.ndarray[Any, Any] = make(nbytes, np.uint8)
        self._bytes = np.random.default_rng(_SEED).integers(0, 256, nbytes, np.uint8)
        self.tensor = api.from_host(self._bytes).sync_on(stream)
        self._blank = api.zeros(nbytes, np.uint8).sync_on(stream)

    def upload(self, launch: Callable[[], object]) -> Work:
        """The work of copying `array` to `tensor`."""
        self.array[:] = self._bytes

        def check() -> str | None:
            arrived = self.tensor.to_host().sync_on(self.stream)
            return None if np.array_equal(arrived, self._bytes) else "other bytes arrived on the device"

        return Work(launch=launch, reset=lambda: api.memcpy(self.tensor, self._blank).sync_on(self.stream), check=check)

    def download(self, launch: Callable[[], object]) -> Work:
        """The work of copying `tensor` to `array`."""

        def check() -> str | None:
            return None if np.array_equal(self.array, self._bytes) else "other bytes arrived on the host"

        return Work(launch=launch, reset=lambda: self.array.fill(0), check=check)


_KINDS = [("to device", True), ("to device", False), ("to host", True), ("to host", False)]


def _label(direction: str, pinned: bool) -> str:
    return f"{'page-locked' if pinned else 'ordinary'} memory, {direction}"


def _own(stream: Stream) -> list[Candidate]:
    def build(direction: str, pinned: bool) -> Callable[[Any], Work]:
        def make(nbytes: float) -> Work:
            data = _Data(stream, int(nbytes), pinned)
            if direction == "to device":
                return data.upload(lambda: api.memcpy(data.tensor, data.array).sync())
            return data.download(lambda: data.tensor.to_host(out=data.array).sync())

        return make

    def prepared(direction: str) -> Callable[[Any], Work]:
        def make(nbytes: float) -> Work:
            data = _Data(stream, int(nbytes), True)
            if direction == "to device":
                copy = api.memcpy(data.tensor, data.array).prepare()
                return data.upload(lambda: copy.sync_on(stream))
            copy = data.tensor.to_host(out=data.array).prepare()
            return data.download(lambda: copy.sync_on(stream))

        return make

    every = {_label(*kind): build(*kind) for kind in _KINDS}
    every |= {f"{_label(direction, True)}, prepared": prepared(direction) for direction, pinned in _KINDS if pinned}
    return [Candidate(name=OWN, version=__version__, variant=variant, build=make) for variant, make in every.items()]


def _on_gpu(stream: Stream) -> list[Candidate]:
    def build(direction: str, pinned: bool) -> Callable[[Any], Work]:
        def make(nbytes: float) -> Work:
            from cuda.bindings import driver as cu

            data, size = _Data(stream, int(nbytes), pinned), int(nbytes)
            host, device, handle = data.array.__array_interface__["data"][0], data.tensor.address, stream.handle

            def upload() -> None:
                _check(cu.cuMemcpyHtoDAsync(device, host, size, handle), cu.cuStreamSynchronize(handle))

            def download() -> None:
                _check(cu.cuMemcpyDtoHAsync(host, device, size, handle), cu.cuStreamSynchronize(handle))

            return data.upload(upload) if direction == "to device" else data.download(download)

        return make

    return [Candidate(name=raw.NAME, version=raw.version(), variant=_label(*kind), build=build(*kind)) for kind in _KINDS]


def _check(*results: Any) -> None:
    for code, *_ in results:
        if code:
            raise RuntimeError(f"the driver returned {code!r}")


def _on_cpu(stream: Stream) -> list[Candidate]:
    def build(nbytes: float) -> Work:
        data = _Data(stream, int(nbytes), False)
        return data.upload(lambda: np.copyto(data.tensor.host_view(), data.array))

    return [Candidate(name="numpy", version=np.__version__, variant="copyto", build=build)]
