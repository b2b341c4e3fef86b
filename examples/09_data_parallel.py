"""Data parallelism: the rows of a Mandelbrot picture dealt out to all devices, computed side by side, brought together on one.

    python examples/09_data_parallel.py
    python examples/09_data_parallel.py --height 8192 --width 8192 --limit 1000
    TILEKIT_DEVICE=cpu TILEKIT_CPU_DEVICES=4 python examples/09_data_parallel.py

It uses every GPU that tilekit can use, else every CPU device there is (TILEKIT_CPU_DEVICES makes more of them: they show how it
is done, not that it is faster, since all share the same cores). The picture of one device must be the same, bit by bit.
"""

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api

TILE = (1, 512)
Plane = NDArray[np.float32]


@tk.kernel
def escape(count: tk.Out, real: tk.In, imag: tk.In, limit: int) -> None:
    c, d = tk.load_tile_like(real, count), tk.load_tile_like(imag, count)
    x, y, n = c * 0.0, d * 0.0, c * 0.0
    for _ in range(limit):
        inside = x * x + y * y < 4.0
        following = x * x - y * y + c
        y = tk.where(inside, 2.0 * x * y + d, y)
        x = tk.where(inside, following, x)
        n = n + tk.where(inside, 1.0, 0.0)
    count.store(n)


class Band:
    """Every so many-th row of the picture, on a device of its own."""

    def __init__(self, device: tk.Device, real: Plane, imag: Plane) -> None:
        self.device = device
        self.real, self.imag = (api.from_host(part).on(device).sync() for part in (real, imag))

    def count(self, limit: int) -> tk.DeviceOp[Any]:
        """An op that counts, for each point, the steps until it escapes."""
        counts = api.empty(self.real.shape).on(self.device).partition(TILE)
        return escape(counts, self.real, self.imag, limit).first().unpartition()


def render(bands: list[Band], limit: int) -> list[tk.Tensor]:
    """The counts of all bands, gathered on the first band's device. Nobody waits before everything is submitted."""
    first = bands[0].device
    futures = [band.count(limit).then(lambda counts: counts.to(first)).schedule(band.device.policy) for band in bands]
    return [future.result() for future in futures]


def picture(devices: list[tk.Device], real: Plane, imag: Plane) -> list[Band]:
    """The picture's coordinates, dealt out to the devices row by row: neighbours take about as long as each other."""
    return [Band(device, real[i :: len(devices)], imag[i :: len(devices)]) for i, device in enumerate(devices)]


def assembled(parts: list[tk.Tensor]) -> Plane:
    """The whole picture on the host."""
    rows = sum(part.shape[0] for part in parts)
    whole = np.empty((rows, parts[0].shape[1]), np.float32)
    for i, part in enumerate(parts):
        whole[i :: len(parts)] = part.to_host().sync()
    return whole


def timed_ms(bands: list[Band], limit: int, rounds: int = 5) -> tuple[float, Plane]:
    """The best of several times, in milliseconds, and the picture."""
    best = float("inf")
    parts: list[tk.Tensor] = []
    for _ in range(rounds):
        start = time.perf_counter()
        parts = render(bands, limit)
        best = min(best, 1e3 * (time.perf_counter() - start))
    return best, assembled(parts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A Mandelbrot picture by all devices, and by one.")
    parser.add_argument("--height", type=int, default=64, help="rows (default: 64)")
    parser.add_argument("--width", type=int, default=512, help="columns (default: 512)")
    parser.add_argument("--limit", type=int, default=20, help="steps at most (default: 20)")
    args = parser.parse_args(argv)
    if min(args.height, args.width, args.limit) < 1:
        parser.exit(2, f"{parser.prog}: --height, --width and --limit are at least 1\n")

    kind = tk.default_device().kind
    devices = [device for device in tk.devices() if device.kind == kind]
    real, imag = np.meshgrid(
        np.linspace(-2, 0.5, args.width, dtype=np.float32), np.linspace(-1.25, 1.25, args.height, dtype=np.float32)
    )
    alone_ms, expected = timed_ms(picture(devices[:1], real, imag), args.limit)
    together_ms, found = timed_ms(picture(devices[: args.height], real, imag), args.limit)
    assert np.array_equal(found, expected), "the pictures differ"
    print(f"{args.height} x {args.width} points, {args.limit} steps: one device {alone_ms:.1f} ms")
    print(f"{len(devices)} devices {together_ms:.1f} ms: {alone_ms / together_ms:.2f} times as fast, and the same picture")


if __name__ == "__main__":
    main()
