"""A product of matrices: tiles that are added up in the registers, operands that come in a pipeline, and what decides the speed.

    python examples/05_matmul.py
    python examples/05_matmul.py --m 4096 --n 4096 --k 4096

It multiplies two matrices of random numbers with a kernel of its own, in float16, and with the ready-made one, which also adds a
bias and applies gelu while it is at it; both are compared with NumPy's. It runs on the first GPU that tilekit can use, else on
the CPU device; TILEKIT_DEVICE=cpu or cuda chooses.
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

BM, BN, BK = tk.generics("BM BN BK")  # extents of tiles: integers once the kernel is compiled


@tk.kernel
def matmul(c: tk.Out, a: tk.In, b: tk.In) -> None:
    for tile in c.tiles():  # those that this block visits
        i, j = tile.index
        acc = tk.zeros((BM, BN), tk.float32)
        for ta, tb in tk.pipelined(a.tiles((BM, BK))[i, :], b.tiles((BK, BN))[:, j]):
            acc = tk.mma(ta, tb, acc)
        c.store(acc.astype(c.dtype), tile)


def launch(c: tk.Tensor, a: tk.Tensor, b: tk.Tensor) -> tk.KernelLaunch:
    """An op: c = a @ b."""
    m, n, warps = (128, 256, 8) if min(c.shape) >= 1024 else (64, 64, 4)
    op = matmul(c.partition((m, n)).map(group=(8, 8)), a, b)
    return op.generics(BM=m, BN=n, BK=64).num_warps(warps)


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.
CHECKED = 64  # rows that are compared with NumPy's
Make = Callable[..., tk.DeviceOp[Any]]


def own(c: tk.Tensor, a: tk.Tensor, b: tk.Tensor, bias: tk.Tensor) -> tk.DeviceOp[Any]:
    """a @ b with the kernel above."""
    return launch(c, a, b)


def ready_made(c: tk.Tensor, a: tk.Tensor, b: tk.Tensor, bias: tk.Tensor) -> tk.DeviceOp[Any]:
    """The same with tilekit.kernels."""
    return kernels.gemm(a, b, out=c)


def with_epilogue(c: tk.Tensor, a: tk.Tensor, b: tk.Tensor, bias: tk.Tensor) -> tk.DeviceOp[Any]:
    """gelu(a @ b + bias), still one kernel."""
    return kernels.gemm(a, b, out=c, epilogue=kernels.epilogues.bias_gelu, operands=(bias,))


def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """NumPy's, to the fourth digit: with the hyperbolic tangent."""
    result: NDArray[np.float64] = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def seconds_of(make: Make, *tensors: tk.Tensor) -> float:
    """The best time of an op, run several times; the first run compiles the kernel."""
    make(*tensors).sync()
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        make(*tensors).sync()
        times.append(time.perf_counter() - start)
    return min(times)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A product of float16 matrices, compared with NumPy's.")
    for name in "mnk":
        parser.add_argument(f"--{name}", type=int, help="(default: 4096 on a GPU, 200 on a CPU device)")
    options = parser.parse_args(argv)
    device = tk.default_device()
    usual = 4096 if device.kind == "cuda" else 200
    m, n, k = (usual if given is None else given for given in (options.m, options.n, options.k))
    if min(m, n, k) < 1:
        parser.exit(2, f"{parser.prog}: --m, --n and --k are at least 1\n")

    a, b = (api.randn(0.0, 1.0, shape, seed=seed, dtype=tk.float16).sync() for seed, shape in ((1, (m, k)), (2, (k, n))))
    bias = api.randn(0.0, 1.0, n, seed=3).sync()
    c = api.empty((m, n), tk.float16).sync()
    rows = np.unique(np.linspace(0, m - 1, min(m, CHECKED)).astype(int))
    product = a.to_host().sync()[rows].astype(np.float64) @ b.to_host().sync().astype(np.float64)
    contestants = (
        ("the kernel above", own, product),
        ("kernels.gemm", ready_made, product),
        ("... with bias, gelu", with_epilogue, gelu(product + bias.to_host().sync())),
    )
    print(f"{m} x {n} x {k} on {device.kind}:{device.ordinal} ({device.name})")
    for name, make, expected in contestants:
        c.fill(np.nan).sync()
        seconds = seconds_of(make, c, a, b, bias)
        error = np.abs(c.to_host().sync()[rows] - expected).max() / np.abs(expected).max()
        if not error <= 1e-3:
            parser.exit(1, f"{parser.prog}: {name}: off by {error:.3g} of the largest element\n")
        tflops = 2e-12 * m * n * k / seconds
        print(f"{name:20} {1e3 * seconds:9.3f} ms, {tflops:8.3f} TFLOP/s; the same as NumPy's to {error:.1e}")


if __name__ == "__main__":
    main()
