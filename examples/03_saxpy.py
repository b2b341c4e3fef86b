"""saxpy: y = a * x + y in place, on data of your own or on random numbers.

    python examples/03_saxpy.py
    python examples/03_saxpy.py --x X.npy --y Y.npy --a 0.5 --out result.npy

X.npy and Y.npy hold one-dimensional float32 arrays of one length (`numpy.save` writes such files). Without them the program
makes 2^24 elements. The result is compared with NumPy's. It runs on the first GPU that tilekit can use, else on the CPU
device, where NumPy's time is told, too; TILEKIT_DEVICE=cpu or cuda chooses.
"""

import argparse
from pathlib import Path
from typing import Any

# isort: split
# The tutorial begins here.
import time

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import api

TILE = 1024
Vector = NDArray[np.float32]


@tk.kernel
def saxpy(y: tk.InOut, a: float, x: tk.In) -> None:
    y.store(a * tk.load_tile_like(x, y) + y.load())


def run(a: float, x: Vector, y: Vector) -> tuple[Vector, float]:
    """a * x + y of NumPy arrays, and the time from launch to completion, in seconds."""
    on_device_x, on_device_y = api.from_host(x).sync(), api.from_host(y).sync()
    start = time.perf_counter()
    saxpy(on_device_y.partition(TILE), a, on_device_x).sync()  # on_device_y holds the result
    seconds = time.perf_counter() - start
    return on_device_y.to_host().sync(), seconds


# The tutorial ends here; what follows reads options and files, compares with NumPy, and measures.


class InputError(Exception):
    """What the user gave cannot be used; the text is one line that says why."""


def agrees(result: Vector, a: float, x: Vector, y: Vector) -> bool:
    """Whether `result` is a * x + y up to rounding: a GPU rounds once (a fused multiply-add), NumPy twice."""
    with np.errstate(all="ignore"):  # files may hold infinities and NaNs
        product = np.float32(a) * x
        expected = product + y
        bound = np.finfo(np.float32).eps * (np.abs(product) + np.abs(y))
        same = (result == expected) | (np.isnan(result) & np.isnan(expected))
        return bool(np.all(same | (np.abs(result - expected) <= bound)))


def numpys_time(a: float, x: Vector, y: Vector) -> float:
    """That of y += a * x by NumPy, in seconds; as of the launches, the second counts."""
    factor, y, seconds = np.float32(a), y.copy(), 0.0
    with np.errstate(all="ignore"):
        for _ in range(2):
            start = time.perf_counter()
            y += factor * x
            seconds = time.perf_counter() - start
    return seconds


def read_vector(path: Path) -> Vector:
    """The one-dimensional float32 array in the file `path`; InputError where there is none."""
    try:
        with open(path, "rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise InputError(f"{path}: not an .npy file; write one with numpy.save")
            file.seek(0)
            array: NDArray[Any] = np.load(file, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise InputError(f"{path}: a damaged .npy file ({str(error).partition(chr(10))[0]})") from None
    if array.dtype != np.float32 or array.ndim != 1:
        raise InputError(f"{path}: holds {array.dtype.name} of shape {array.shape}; expected a one-dimensional float32 array")
    return array


def write_vector(path: Path, array: Vector) -> None:
    """Write `array` to exactly the file `path`; InputError if that fails."""
    try:
        with open(path, "wb") as file:
            np.save(file, array)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="y = a * x + y in place.")
    parser.add_argument("--x", type=Path, metavar="X.npy", help="one-dimensional float32 array")
    parser.add_argument("--y", type=Path, metavar="Y.npy", help="another of the same length")
    parser.add_argument("--a", type=float, default=2.0, help="the factor (default: 2.0)")
    parser.add_argument("--n", type=int, default=2**24, help="how many elements to make without files (default: 2^24)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the result, as .npy")
    options = parser.parse_args(argv)
    try:
        if (options.x is None) != (options.y is None):
            raise InputError("--x and --y go together: give both files, or neither")
        if options.n < 0:
            raise InputError(f"--n {options.n}: a length is not negative")
        if options.out is not None and not options.out.absolute().parent.is_dir():
            raise InputError(f"{options.out}: cannot be written: its folder does not exist")
        if options.x is not None:
            x, y = read_vector(options.x), read_vector(options.y)
            if x.shape != y.shape:
                raise InputError(f"{options.x} holds {x.size} elements, {options.y} holds {y.size}: the lengths must agree")
        else:
            n: int = options.n
            rng = np.random.default_rng(0)
            x, y = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)

        result, first = run(options.a, x, y)
        _, second = run(options.a, x, y)  # finds the compiled kernel of the first run

        device = tk.default_device()
        print(f"saxpy of {x.size} elements on {device.kind}:{device.ordinal} ({device.name})")
        print(f"first launch  {1e3 * first:9.2f} ms (compiles the kernel, if it is not on disk)")
        print(f"second launch {1e3 * second:9.2f} ms ({12e-9 * x.size / second:.1f} GB/s)")
        if device.kind == "cpu":
            numpys = numpys_time(options.a, x, y)
            print(f"NumPy's       {1e3 * numpys:9.2f} ms for y += a * x; the second launch takes {second / numpys:.2f} of that")
        if not agrees(result, options.a, x, y):
            parser.exit(1, f"{parser.prog}: the result differs from NumPy's\n")
        print("the result agrees with NumPy's")
        if options.out is not None:
            write_vector(options.out, result)
            print(f"written to {options.out}")
    except InputError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
