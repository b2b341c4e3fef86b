"""Async execution: saxpy awaited, several at a time, and host work done while the device works.

    python examples/07_async.py
    python examples/07_async.py --n 1000000 --launches 20 --batches 8

It awaits one saxpy, gathers several batches that share the device, and measures what waiting later is worth: the same device work
and the same host work, once one after the other, once side by side. It runs on the first GPU that tilekit can use, else on the
CPU device; TILEKIT_DEVICE=cpu or cuda chooses.
"""

import argparse
import statistics
import time
from typing import Any

# isort: split
# The tutorial begins here.
import asyncio

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api

TILE = 4096
Vector = NDArray[np.float32]


@tk.kernel
def saxpy(y: tk.InOut, a: float, x: tk.In) -> None:
    y.store(a * tk.load_tile_like(x, y) + y.load())


async def async_saxpy(a: float, x: Vector, y: Vector) -> Vector:
    """a * x + y of NumPy arrays, computed on the device while other tasks go on."""
    # Ops as arguments: the copies to the device belong to the launch.
    launch = saxpy(api.from_host(y).partition(TILE), a, api.from_host(x))
    result: Vector = await launch.first().unpartition().to_host()
    return result


async def gather_batches(a: float, batches: list[tuple[Vector, Vector]]) -> list[Vector]:
    """saxpy of several pairs (x, y): all are submitted, on streams in turn, then awaited."""
    return await asyncio.gather(*(async_saxpy(a, x, y) for x, y in batches))


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.
ROUNDS = 5


def device_work(y: tk.Tensor, a: float, x: tk.Tensor, launches: int) -> tk.DeviceOp[Any]:
    """An op: many launches, one after the other on one stream."""
    return tk.join_all([saxpy(y.partition(TILE), a, x) for _ in range(launches)])


def host_work(numbers: NDArray[np.float64]) -> None:
    """What the host has to do anyway, in one call that needs no Python while it works."""
    np.sort(numbers)


def one_after_the_other(y: tk.Tensor, a: float, x: tk.Tensor, launches: int, numbers: NDArray[np.float64]) -> float:
    """Blocks until the device is done; only then the host works. The time, in seconds."""
    start = time.perf_counter()
    device_work(y, a, x, launches).sync()
    host_work(numbers)
    return time.perf_counter() - start


async def side_by_side(y: tk.Tensor, a: float, x: tk.Tensor, launches: int, numbers: NDArray[np.float64]) -> float:
    """Submits, works, and waits for what is left. The time, in seconds."""
    start = time.perf_counter()
    future = device_work(y, a, x, launches).schedule(tk.default_device().policy)  # submitted when this returns
    host_work(numbers)
    await future
    return time.perf_counter() - start


def host_work_of(seconds: float) -> NDArray[np.float64]:
    """Numbers that take about so long to sort."""
    numbers = np.random.default_rng(0).random(2**16)
    start = time.perf_counter()
    np.sort(numbers)
    return np.random.default_rng(0).random(max(1, round(2**16 * seconds / (time.perf_counter() - start))))


async def measure(y: tk.Tensor, a: float, x: tk.Tensor, launches: int) -> tuple[float, float, int]:
    """Median times of both ways, in seconds, and how many launches there were in all."""
    nothing = np.empty(0)
    one_after_the_other(y, a, x, launches, nothing)  # the first run compiles the kernel
    numbers = host_work_of(one_after_the_other(y, a, x, launches, nothing))  # host work as long as the device's
    blocking: list[float] = []
    overlapped: list[float] = []
    for _ in range(ROUNDS):  # in turns, so that both see the same machine
        blocking.append(one_after_the_other(y, a, x, launches, numbers))
        overlapped.append(await side_by_side(y, a, x, launches, numbers))
    return statistics.median(blocking), statistics.median(overlapped), launches * (2 + 2 * ROUNDS)


async def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    device, a = tk.default_device(), 0.5
    n: int = options.n
    x, y = (np.arange(n) % 16).astype(np.float32), np.ones(n, np.float32)  # exact in float32, whatever the order

    result = await async_saxpy(a, x, y)
    if not np.array_equal(result, a * x + y):
        parser.exit(1, f"{parser.prog}: the awaited result differs from NumPy's\n")
    print(f"awaited: saxpy of {options.n} elements on {device.kind}:{device.ordinal} ({device.name}), the same as NumPy's")

    results = await gather_batches(a, [(x, np.full_like(y, i)) for i in range(options.batches)])
    if not all(np.array_equal(result, a * x + np.float32(i)) for i, result in enumerate(results)):
        parser.exit(1, f"{parser.prog}: a gathered result differs from NumPy's\n")
    print(f"gathered: {options.batches} batches, the same as NumPy's")

    on_device_x, on_device_y = await tk.zip(api.from_host(x), api.zeros(options.n))
    blocking, overlapped, added = await measure(on_device_y, a, on_device_x, options.launches)
    if not np.array_equal(await on_device_y.to_host(), added * a * x):
        parser.exit(1, f"{parser.prog}: the measured result differs from NumPy's\n")
    print(f"{options.launches} launches, and host work of the same length (medians of {ROUNDS}):")
    print(f"  one after the other {1e3 * blocking:9.2f} ms")
    print(f"  side by side        {1e3 * overlapped:9.2f} ms (speed-up {blocking / overlapped:.2f})")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="saxpy awaited, gathered, and overlapped with host work.")
    parser.add_argument("--n", type=int, help="number of elements (default: 2^24 on a GPU, 2^16 on a CPU device)")
    parser.add_argument("--batches", type=int, default=4, help="how many batches to gather (default: 4)")
    parser.add_argument("--launches", type=int, default=20, help="how many launches to overlap with (default: 20)")
    options = parser.parse_args(argv)
    if options.n is None:
        options.n = 2**24 if tk.default_device().kind == "cuda" else 2**16
    if options.n < 0:
        parser.exit(2, f"{parser.prog}: --n {options.n}: a length is not negative\n")
    for name in ("batches", "launches"):
        if getattr(options, name) < 1:
            parser.exit(2, f"{parser.prog}: --{name} {getattr(options, name)}: at least one\n")
    asyncio.run(run(options, parser))


if __name__ == "__main__":
    main()
