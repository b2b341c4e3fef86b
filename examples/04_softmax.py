"""softmax: a reduction along rows, in three lines of a kernel, and what decides its speed.

    python examples/04_softmax.py
    python examples/04_softmax.py --rows 32768 --columns 4096

It computes softmax of a matrix of random numbers with a kernel of its own, and with the ready-made one, which takes rows of any
length; both are compared with NumPy's. It runs on the first GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu
or cuda chooses.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

# isort: split
# The tutorial begins here.
import numpy as np

import tilekit as tk
from tilekit import api, kernels


@tk.kernel
def softmax(y: tk.Out, x: tk.In) -> None:
    t = tk.load_tile_like(x, y, padding_mode="-inf")  # a row; beyond its end what adds nothing
    e = tk.exp(t - tk.max(t, 1, keepdims=True))
    y.store(e * (1.0 / tk.sum(e, 1, keepdims=True)))


def launch(y: tk.Tensor, x: tk.Tensor) -> tk.KernelLaunch:
    """An op: softmax of the rows of x, a block for each row."""
    columns = 1 << (x.shape[1] - 1).bit_length()  # the next power of two
    warps = min(16, max(1, columns // 512))  # 16 elements a thread
    return softmax(y.partition((1, columns)), x).num_warps(warps)


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.
LONGEST = 32768  # elements of a row that a block keeps in registers
Make = Callable[[tk.Tensor, tk.Tensor], tk.DeviceOp[Any]]


def ready_made(y: tk.Tensor, x: tk.Tensor) -> tk.DeviceOp[tk.Tensor]:
    """The same with tilekit.kernels."""
    return kernels.softmax(x, out=y)


def reference(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """NumPy's, in float64."""
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = e / e.sum(axis=1, keepdims=True)
    return result


def seconds_of(make: Make, y: tk.Tensor, x: tk.Tensor) -> float:
    """The best time of an op, run several times; the first run compiles the kernel."""
    make(y, x).sync()
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        make(y, x).sync()
        times.append(time.perf_counter() - start)
    return min(times)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="softmax of the rows of a matrix, compared with NumPy's.")
    parser.add_argument("--rows", type=int, help="number of rows (default: 8192 on a GPU, 64 on a CPU device)")
    parser.add_argument("--columns", type=int, default=1000, help="elements in a row (default: 1000, no power of two)")
    options = parser.parse_args(argv)
    device = tk.default_device()
    rows = options.rows if options.rows is not None else 8192 if device.kind == "cuda" else 64
    columns = options.columns
    if rows < 1 or columns < 1:
        parser.exit(2, f"{parser.prog}: --rows and --columns are at least 1\n")

    x = api.randn(0.0, 1.0, (rows, columns), seed=1).sync()
    y = api.empty((rows, columns)).sync()
    expected = reference(x.to_host().sync())
    contestants: list[tuple[str, Make]] = [("kernels.softmax", ready_made)]
    if columns <= LONGEST:
        contestants.insert(0, ("the kernel above", launch))
    else:
        print(f"rows of more than {LONGEST} elements take a loop: the ready-made kernel has one")
    print(f"{rows} x {columns} on {device.kind}:{device.ordinal} ({device.name})")
    for name, make in contestants:
        y.fill(0.0).sync()
        seconds = seconds_of(make, y, x)
        error = np.abs(y.to_host().sync() - expected).max()
        if not error <= 1e-6:
            parser.exit(1, f"{parser.prog}: {name}: off by {error:.3g}\n")
        print(f"{name:17} {1e3 * seconds:9.3f} ms, {2 * x.nbytes / seconds * 1e-9:8.1f} GB/s; the same as NumPy's to {error:.1e}")


if __name__ == "__main__":
    main()
