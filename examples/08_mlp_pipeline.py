"""A data-parallel network of two layers: batches are dealt out to a pool of streams, and the copies of one overlap the products
of another.

    python examples/08_mlp_pipeline.py
    python examples/08_mlp_pipeline.py --batches 32 --rows 1024 --features 512 --hidden 2048 --outputs 512 --streams 8

For each batch: copy it to the device, hidden = relu(batch @ w1), scores = hidden @ w2, copy the scores back. That is one op, with
no stream in it. All batches are submitted before any is awaited: once to one stream, where they run one after the other, and once
to the streams of a pool in turn. What the pool saves is the overlap. On the CPU device streams are threads, and kernels, which
use all cores anyway, leave little to save.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api, kernels, memory
from tilekit.kernels import epilogues

ROUNDS = 5
Half = NDArray[np.float16]
SIZES = {  # by the kind of device: rows of a batch, features, hidden, outputs, batches
    "cuda": (4096, 1024, 4096, 1024, 12),
    "cpu": (32, 48, 64, 16, 6),
}


class Network:
    """Two layers: w1 of shape (features, hidden), w2 of shape (hidden, outputs), on the device for all batches."""

    def __init__(self, w1: Half, w2: Half) -> None:
        self.host = w1, w2
        self.w1, self.w2 = api.from_host(w1).sync(), api.from_host(w2).sync()

    def scores(self, batch: Half, out: Half) -> tk.DeviceOp[Any]:
        """An op: from a batch in the host's memory to its scores there, in `out`."""
        hidden = kernels.gemm(api.from_host(batch), self.w1, epilogue=epilogues.relu)
        return kernels.gemm(hidden, self.w2).then(lambda scores: scores.to_host(out=out))

    def on_host(self, batch: Half) -> NDArray[np.float32]:
        """The same by NumPy."""
        w1, w2 = (w.astype(np.float32) for w in self.host)
        scores: NDArray[np.float32] = np.maximum(batch.astype(np.float32) @ w1, 0) @ w2
        return scores


async def run_all(network: Network, batches: list[Half], outs: list[Half], policy: tk.SchedulingPolicy) -> float:
    """Submit all batches, then wait for them. The time, in milliseconds."""
    start = time.perf_counter()
    futures = [network.scores(batch, out).schedule(policy) for batch, out in zip(batches, outs)]
    await asyncio.gather(*futures)
    return 1e3 * (time.perf_counter() - start)


def pinned_copy(array: Half) -> Half:
    """The array in page-locked memory, which a GPU copies by itself, beside the kernels."""
    copy = memory.pinned(array.shape, array.dtype)
    copy[...] = array
    return copy


def main(argv: list[str] | None = None) -> None:
    device = tk.default_device()
    parser = argparse.ArgumentParser(description="Batches through a network of two layers, on one stream and on several.")
    names = ("rows", "features", "hidden", "outputs", "batches", "streams")
    for name, default in zip(names, (*SIZES[device.kind], 4)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    options = parser.parse_args(argv)
    for name, value in vars(options).items():
        if value < 1:
            parser.exit(2, f"{parser.prog}: --{name} {value}: at least one\n")

    rng = np.random.default_rng(0)

    def numbers(*shape: int, scale: float = 1.0) -> Half:
        return (rng.standard_normal(shape, np.float32) * scale).astype(np.float16)

    network = Network(
        numbers(options.features, options.hidden, scale=options.features**-0.5),
        numbers(options.hidden, options.outputs, scale=options.hidden**-0.5),
    )
    batches = [pinned_copy(numbers(options.rows, options.features)) for _ in range(options.batches)]
    outs = [memory.pinned((options.rows, options.outputs), np.float16) for _ in batches]
    expected = [network.on_host(batch) for batch in batches]
    shape = f"{options.rows} x {options.features} -> {options.hidden} -> {options.outputs}"
    print(f"{options.batches} batches of {shape} on {device.kind}:{device.ordinal} ({device.name})")

    ways: dict[str, tk.SchedulingPolicy] = {
        "one stream": tk.SingleStream(device),
        f"{options.streams} streams": tk.StreamPoolRoundRobin(device, options.streams),
    }
    taken_ms: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + ROUNDS):  # in turns, so that all see the same machine; the first compiles
        for name, policy in ways.items():
            for out in outs:
                out.fill(np.nan)
            ms = asyncio.run(run_all(network, batches, outs, policy))
            if not all(np.allclose(out, right, rtol=5e-3, atol=5e-3) for out, right in zip(outs, expected)):
                parser.exit(1, f"{parser.prog}: {name}: the scores of a batch differ from NumPy's\n")
            if turn:
                taken_ms[name].append(ms)
    alone, together = (statistics.median(samples) for samples in taken_ms.values())
    for name, samples in taken_ms.items():
        print(f"{name:12} {statistics.median(samples):9.3f} ms, the same as NumPy's (median of {ROUNDS})")
    print(f"overlap: the pool takes {together / alone:.2f} of the time of one stream (speed-up {alone / together:.2f})")


if __name__ == "__main__":
    main()
