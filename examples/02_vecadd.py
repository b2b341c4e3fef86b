"""Vector addition: z = x + y, one tile a block, for any length.

    python examples/02_vecadd.py
    python examples/02_vecadd.py --n 10 --tile 4

It runs on the first GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu or cuda chooses.
"""

import argparse
import time

# The tutorial begins here.
import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api


@tk.kernel
def vecadd(z: tk.Out, x: tk.In, y: tk.In) -> None:
    tx = tk.load_tile_like(x, z)  # the tile of x that lies where this block's tile of z does
    ty = tk.load_tile_like(y, z)
    z.store(tx + ty)


def add(x: NDArray[np.float32], y: NDArray[np.float32], tile: int = 1024) -> NDArray[np.float32]:
    """x + y of two NumPy arrays, computed on the device."""
    out = api.zeros(x.size).partition(tile)
    z, _, _ = vecadd(out, api.from_host(x), api.from_host(y)).sync()
    result: NDArray[np.float32] = z.unpartition().to_host().sync()
    return result


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Add two vectors of random numbers and compare with NumPy.")
    parser.add_argument("--n", type=int, default=1_000_003, help="number of elements (default: 1000003, no multiple of a tile)")
    parser.add_argument("--tile", type=int, default=1024, help="elements a block, a power of two (default: 1024)")
    options = parser.parse_args(argv)
    n: int = options.n
    tile: int = options.tile
    if n < 0:
        parser.exit(2, f"{parser.prog}: --n {n}: a length is not negative\n")
    if tile < 1 or tile & (tile - 1):
        parser.exit(2, f"{parser.prog}: --tile {tile}: a tile's extent is a power of two\n")

    rng = np.random.default_rng(0)
    x, y = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)

    start = time.perf_counter()
    result = add(x, y, tile)
    elapsed_ms = 1e3 * (time.perf_counter() - start)

    if not np.array_equal(result, x + y):
        parser.exit(1, f"{parser.prog}: the result differs from NumPy's\n")
    device = tk.default_device()
    print(f"{n} elements in {-(-n // tile)} blocks on {device.kind}:{device.ordinal} ({device.name})")
    print(f"copies and first launch: {elapsed_ms:.1f} ms; the same as NumPy's x + y")


if __name__ == "__main__":
    main()
