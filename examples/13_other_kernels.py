"""Kernels that were not written in the tile language: saxpy by CUDA C++ and by numba, as ops like any other.

    python examples/13_other_kernels.py
    python examples/13_other_kernels.py --n 1000000 --a 0.5
    NUMBA_ENABLE_CUDASIM=1 TILEKIT_DEVICE=cpu python examples/13_other_kernels.py --n 1000

Each of them adds a * x to y, one after the other, each on another stream than the one before; nothing is waited for in between.
Without a GPU the CUDA C++ is compiled, where the CUDA compiler is installed, and not run; numba's kernel runs only in numba's
simulator, as in the third line.
"""

import argparse
from typing import Any

import numpy as np

import tilekit as tk
from tilekit import api

TILE = 1024
CODE = """
extern "C" __global__ void saxpy(float* y, float a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""


@tk.kernel
def tile_saxpy(y: tk.InOut, a: float, x: tk.In) -> None:
    y.store(a * tk.load_tile_like(x, y) + y.load())


source_saxpy = tk.cuda_source(CODE, "saxpy", "y: InOut[f32], a: f32, x: In[f32], n: i32")


def numba_saxpy(y: Any, a: float, x: Any) -> None:
    i = cuda.grid(1)
    if i < y.size:
        y[i] += a * x[i]


wrapped_saxpy = None
try:
    from numba import cuda as untyped

    cuda: Any = untyped  # numba has no types
    wrapped_saxpy = tk.wrap(cuda.jit(numba_saxpy), signature="InOut[f32], f32, In[f32]")
except (ImportError, RuntimeError):  # numba looks for a part of the CUDA toolkit, also where there is no GPU
    pass


def launches(y: tk.Tensor, a: float, x: tk.Tensor, config: tk.LaunchConfig) -> dict[str, tk.DeviceOp[Any]]:
    """The launches that can be run here, by name."""
    found: dict[str, tk.DeviceOp[Any]] = {"tilekit": tile_saxpy(y.partition(TILE), a, x)}
    kind = tk.default_device().kind
    if kind == "cuda":
        found["CUDA C++"] = source_saxpy[config](y, a, x, x.size)
    if wrapped_saxpy is not None and (kind == "cpu") == wrapped_saxpy.simulated:
        found["numba"] = wrapped_saxpy[config](y, a, x)
    return found


def compiled_for(target: str) -> str:
    """What the compiler has to say of the CUDA C++, which runs on a GPU only."""
    try:
        code = source_saxpy.compile(target)
    except tk.CompileError:
        raise
    except tk.TilekitError as missing:  # the CUDA compiler: the first sentence says how to get it
        return f"not compiled. {str(missing).partition('. ')[0]}"
    return f"compiled for {code.target}, {code.registers} registers a thread; it runs on a GPU"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="saxpy by kernels of three kinds, in a row.")
    parser.add_argument("--n", type=int, default=2**14, help="how many elements (default: 2^14)")
    parser.add_argument("--a", type=float, default=2.0, help="the factor (default: 2.0)")
    options = parser.parse_args(argv)
    if options.n < 0:
        parser.exit(2, f"{parser.prog}: --n {options.n}: a length is not negative\n")
    device = tk.default_device()
    print(f"{options.n} elements on {device.kind}:{device.ordinal} ({device.name})")
    if device.kind == "cpu":
        print(f"CUDA C++: {compiled_for('sm_90a')}")

    n: int = options.n
    a: float = options.a
    values = np.random.default_rng(0).random(n, dtype=np.float32)
    x, y = api.from_host(values).sync(), api.zeros(options.n).sync()
    config = tk.LaunchConfig.for_num_elems(options.n)
    ops = launches(y, a, x, config)
    streams = [device.stream() for _ in ops]
    for stream, op in zip(streams, ops.values()):
        op.async_on(stream)  # each waits for the one before: all of them write y
    result = y.to_host().sync()
    expected = len(ops) * np.float32(a) * values
    if not np.allclose(result, expected, rtol=1e-5):
        parser.exit(1, f"{parser.prog}: the result differs from NumPy's\n")
    print(f"{', '.join(ops)}: {len(ops)} x a * x, the same as NumPy's")
    if wrapped_saxpy is None:
        print('numba: needs the CUDA toolkit: pip install "numba-cuda[cu13]" (or cu12, for a driver of CUDA 12)')
    elif "numba" not in ops:
        print("numba: needs a GPU, or its simulator: set NUMBA_ENABLE_CUDASIM=1")


if __name__ == "__main__":
    main()
