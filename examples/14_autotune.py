"""Tuning: a product and a softmax that choose their tiles and warps by themselves, and an exhaustive search beside it.

    python examples/14_autotune.py
    python examples/14_autotune.py --size 4096

The tuner compiles all configurations, throws out those whose code cannot be good or whose results differ, and measures the others
in turns, the slower ones ever more rarely. What the product's kernel finds is kept on disk, and used when the program runs again:
then it searches nothing. Afterwards each configuration is measured equally often, to see how near the tuner came. It runs on the
first GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu or cuda chooses.
"""

import argparse
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

import tilekit as tk
from tilekit import api

BM, BN, BK = tk.generics("BM BN BK")
LARGE = tk.default_device().kind == "cuda"
PRODUCTS = tk.Space(
    tile=[(64, 64), (128, 64), (128, 128), (128, 256)] if LARGE else [(16, 16), (32, 32), (64, 64)],
    BK=[32, 64] if LARGE else [16, 32],
    num_warps=[4, 8] if LARGE else [4],
    where=lambda config: config.tile[0] * config.tile[1] <= 4096 * config.num_warps,
)
ROWS = tk.Space(rows=[1, 2, 4, 8], num_warps=[2, 4, 8] if LARGE else [4])
Launch = Callable[[tk.Config], tk.DeviceOp[Any]]


@tk.autotune(PRODUCTS)
@tk.kernel
def product(c: Annotated[tk.Out, BM, BN], a: tk.In, b: tk.In) -> None:
    i, j = tk.bid(0), tk.bid(1)
    total = tk.zeros((BM, BN))
    for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
        total = tk.mma(ta, tb, total)
    c.store(total.astype(c.dtype))


@tk.kernel
def softmax(y: tk.Out, x: tk.In) -> None:
    t = tk.load_tile_like(x, y, padding_mode="-inf")
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(e * (1.0 / tk.sum(e, 1, keepdims=True)))


def exhaustive(launch: Launch, space: tk.Space, samples: int) -> dict[tk.Config, float]:
    """Microseconds of each configuration, all of them measured so often."""
    for config in space:
        launch(config).sync()  # compiles
    return {config: float(np.median([measured(launch, config) for _ in range(samples)])) for config in space}


def measured(launch: Launch, config: tk.Config) -> float:
    op = launch(config)
    start = time.perf_counter()
    op.sync()
    return 1e6 * (time.perf_counter() - start)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A product and a softmax, tuned.")
    parser.add_argument("--size", type=int, help="rows and columns (default: 4096 on a GPU, 200 on a CPU device)")
    parser.add_argument("--samples", type=int, default=30, help="of each configuration in the exhaustive search (default: 30)")
    options = parser.parse_args(argv)
    device = tk.default_device()
    size = (4096 if LARGE else 200) if options.size is None else options.size
    if min(size, options.samples) < 1:
        parser.exit(2, f"{parser.prog}: --size and --samples are at least 1\n")

    a, b = (api.randn(0.0, 1.0, (size, size), seed=seed, dtype=tk.float16).sync() for seed in (1, 2))
    c, x, y = api.empty((size, size), tk.float32).sync(), a.astype(tk.float32).sync(), api.empty((size, size)).sync()
    print(f"{size} x {size} on {device.kind}:{device.ordinal} ({device.name})")

    columns = 1 << (size - 1).bit_length()
    ways: tuple[tuple[str, Launch, tk.Space, Callable[[], Any]], ...] = (
        ("product", lambda config: config.apply(product.kernel(c, a, b)), PRODUCTS, lambda: product.tune(c, a, b)),
        (
            "softmax",
            lambda config: config.apply(softmax(y.partition((config.rows, columns)), x)),
            ROWS,
            lambda: tk.tune(lambda config: config.apply(softmax(y.partition((config.rows, columns)), x)), ROWS),
        ),
    )
    for name, launch, space, tune in ways:
        start = time.perf_counter()
        tuning = tune()
        seconds = time.perf_counter() - start
        source = "from a record" if tuning.from_record else f"searched among {len(space)}"
        print(f"{name}: {tuning.best}, {source} in {seconds:.2f} s")
        times = exhaustive(launch, space, options.samples)
        print(f"  the best of an exhaustive search: {min(times, key=times.__getitem__)}")
        print(f"  the tuner's takes {times[tuning.best] / min(times.values()):.2f} times as long")

    product(c, a, b).sync()
    expected = a.to_host().sync().astype(np.float64) @ b.to_host().sync().astype(np.float64)
    error = np.abs(c.to_host().sync() - expected).max() / np.abs(expected).max()
    if not error <= 1e-3:
        parser.exit(1, f"{parser.prog}: the product is off by {error:.3g} of the largest element\n")
    print(f"the product is the same as NumPy's to {error:.1e}")


if __name__ == "__main__":
    main()
