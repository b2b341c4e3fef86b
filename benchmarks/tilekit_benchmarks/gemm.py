"""The benchmark `gemm`: products of matrices, `kernels.gemm` beside cuBLAS (through PyTorch) and Triton's tutorial kernel.

On a GPU products of bfloat16 come first, of row-major matrices; then of 8-bit floats and integers, and of float32 as tf32, by the
transpose of such a matrix. PyTorch's peers of 8-bit floats are its `_scaled_mm` without fast accumulation, and with it where
tilekit's `precision` is "fast"; that of integers is `_int_mm`.

tilekit's op is prepared (`op.prepare()`), so that what is measured is the device's time also where that is short. On a CPU device
matrices are small, and of float32; the peer is NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api, dtypes, kernels
from tilekit._runtime.stream import Stream
from tilekit_benchmarks import Options, kernel_peers
from tilekit_benchmarks.harness import Contestant, Variant
from tilekit_benchmarks.kernel_cases import Case, Tensors
from tilekit_benchmarks.kernel_runs import KernelRun, measure

__all__ = ["PEERS", "gemm_cases", "run"]

# M, N and K.
_SIZES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192, 16384)),
    (8192, 8192, 1024), (512, 8192, 8192), (16, 8192, 8192),
)  # fmt: skip
_CPU_SIZES = ((128, 128, 128), (512, 512, 512), (16, 512, 512))
# Rows that are compared, and how many columns NumPy multiplies at a time in float64.
_ROWS, _COLUMNS = 16, 1024
# Of the largest element: bfloat16 results are rounded to half a unit of their last place, 2**-8 of what is just above a power of
# two; and what additions in float32 lose before.
_TOLERANCES = {dtypes.bfloat16: 4.2e-3, dtypes.float32: 2e-5}
# Of other types, M = N = K; the dtype of the result, and what is right: tensor cores cut off sums of 8-bit floats, and tf32 what
# float32 has beyond its 11 bits.
_OTHERS = 8192
_OF_OTHER_TYPES = {
    "gemm e4m3": (dtypes.float8_e4m3fn, "ieee", dtypes.bfloat16, 5e-3),
    "gemm e4m3 fast": (dtypes.float8_e4m3fn, "fast", dtypes.bfloat16, 1.2e-2),
    "gemm int8": (dtypes.int8, "ieee", dtypes.int32, 0.0),
    "gemm tf32": (dtypes.float32, "tf32", dtypes.float32, 2e-3),
}
_REFERENCE = {"cuda": "torch", "cpu": "numpy"}


def gemm_cases(kind: str, n: int | None = None) -> list[Case]:
    """The products for a kind of device, or only that of square matrices of `n` rows."""
    dtype, sizes = (tk.bfloat16, _SIZES) if kind == "cuda" else (tk.float32, _CPU_SIZES)
    cases = [_case(size, dtype) for size in (((n, n, n),) if n else sizes)]
    return cases if n or kind != "cuda" else [*cases, *(_other_case(kernel, _OTHERS) for kernel in _OF_OTHER_TYPES)]


def _case(size: tuple[int, int, int], dtype: Any) -> Case:
    m, n, k = size
    return Case(
        kernel="gemm",
        shape=size,
        dtype=dtype,
        nbytes=dtype.itemsize * (m * k + k * n + m * n),
        inputs={
            "x": lambda: api.randn(0.0, 1.0, (m, k), seed=1, dtype=dtype),
            "weight": lambda: api.randn(0.0, 1.0, (k, n), seed=2, dtype=dtype),
        },
        output=((m, n), dtype),
        own=lambda t, y: kernels.gemm(t["x"], t["weight"], out=y),
        tolerance=_TOLERANCES[dtype],
        operations=2 * m * n * k,
        prepared=True,
        check=_Rows,
    )


def _other_case(kernel: str, n: int) -> Case:
    dtype, precision, into, tolerance = _OF_OTHER_TYPES[kernel]

    def operand(seed: int) -> tk.DeviceOp[tk.Tensor]:
        if dtype == dtypes.int8:
            return api.randint(-128, 128, (n, n), dtype=dtype, seed=seed)
        values = api.randn(0.0, 1.0, (n, n), seed=seed)
        return values if dtype == dtypes.float32 else values.astype(dtype)

    return Case(
        kernel=kernel,
        shape=(n, n, n),
        dtype=dtype,
        nbytes=n * n * (2 * dtype.itemsize + into.itemsize),
        inputs={"x": lambda: operand(1), "turned": lambda: operand(2)},
        output=((n, n), into),
        own=lambda t, y: kernels.gemm(t["x"], t["turned"].T, out=y, dtype=into, precision=precision),
        tolerance=tolerance,
        operations=2 * n**3,
        prepared=True,
        check=_Rows,
    )


class _Rows:
    """Some rows of the right result."""

    def __init__(self, case: Case, tensors: Tensors, stream: Stream) -> None:
        count, columns = case.output[0]
        self._rows = np.unique(np.linspace(0, count - 1, min(_ROWS, count)).astype(int))
        left = tensors["x"].to_host().sync_on(stream)[self._rows].astype(np.float64)
        right = tensors["weight" if "weight" in tensors else "turned"].to_host().sync_on(stream)
        right = right if "weight" in tensors else right.T
        parts = [left @ right[:, at : at + _COLUMNS].astype(np.float64) for at in range(0, columns, _COLUMNS)]
        self._right = np.concatenate(parts, axis=1)

    def error(self, result: Any) -> float:
        """The largest error of these rows; NaN where an element of any row is NaN."""
        if bool(np.isnan(result).any()):
            return float("nan")
        off = np.abs(result[self._rows].astype(np.float64) - self._right).max()
        return float(off / np.abs(self._right).max())


def _numpy(case: Case, tensors: Tensors, out: tk.Tensor, stream: Stream) -> tuple[Contestant, Callable[[], Any]]:
    a, b = (tensors[name].to_host().sync_on(stream) for name in ("x", "weight"))
    product = np.empty(case.output[0], a.dtype)
    variant = Variant(launch=lambda: np.matmul(a, b, out=product))
    return Contestant(name="numpy", version=np.__version__, variants=(variant,)), lambda: product


PEERS: Mapping[str, Mapping[str, kernel_peers.Build]] = {"cuda": kernel_peers.PEERS["cuda"], "cpu": {"numpy": _numpy}}
"""The peers on each kind of device, by name."""


def run(options: Options) -> KernelRun:
    """Measure them. Blocks until it is done."""
    kind = options.device.kind
    return measure("gemm", options, gemm_cases(kind, options.n), peers=PEERS[kind], reference=_REFERENCE[kind])
