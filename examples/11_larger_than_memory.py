"""A file that need not fit into the GPU's memory, nor the host's: a kernel scales it, chunk by chunk, into another file.

    python examples/11_larger_than_memory.py
    python examples/11_larger_than_memory.py --rows 524288 --chunk-mib 32
    python examples/11_larger_than_memory.py --input x.npy --output y.npy --factor 0.5

The copies of one chunk run while the device computes on another.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilekit as tk
from tilekit import memory

COLUMNS = 1024
TILE = (4, 256)


@tk.kernel
def scale(y: tk.InOut, factor: float) -> None:
    y.store(factor * y.load())


def process(source: Path, target: Path, factor: float, chunk_bytes: int) -> tuple[int, list[float]]:
    """Read one .npy file, write the other. Gives the bytes read, and the fraction that was done after each chunk."""
    array: NDArray[Any] = np.load(source, mmap_mode="r")
    if array.ndim != 2 or array.dtype != np.float32:
        raise ValueError(f"{source} is {array.dtype.name} of shape {array.shape}: a float32 matrix is needed")
    result = np.lib.format.open_memmap(target, "w+", array.dtype, array.shape)
    done: list[float] = []
    op = memory.stream_chunks(
        lambda chunk: scale(chunk.partition(TILE), factor).first().unpartition(),
        array,
        result,
        chunk_bytes=chunk_bytes,
        progress=lambda done_bytes, total_bytes: done.append(done_bytes / total_bytes),
    )
    op.sync()
    result.flush()
    return array.nbytes, done


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Scale a matrix that is in a file, in chunks.")
    parser.add_argument("--rows", type=int, default=2000, help=f"of the made-up matrix with {COLUMNS} columns (default: 2000)")
    parser.add_argument("--chunk-mib", type=int, default=1, help="MiB on the device at a time, for each of three (default: 1)")
    parser.add_argument("--factor", type=float, default=2.0, help="what to multiply by (default: 2)")
    parser.add_argument("--input", type=Path, help="a .npy file with a float32 matrix, instead of a made-up one")
    parser.add_argument("--output", type=Path, help="where to write; by default the result is checked and deleted")
    args = parser.parse_args(argv)
    if min(args.rows, args.chunk_mib) < 1:
        parser.exit(2, f"{parser.prog}: --rows and --chunk-mib are at least 1\n")

    with tempfile.TemporaryDirectory() as folder:
        source, target = args.input or Path(folder, "in.npy"), args.output or Path(folder, "out.npy")
        if args.input is None:
            np.save(source, np.random.default_rng(0).random((args.rows, COLUMNS), np.float32))
        start = time.perf_counter()
        try:
            nbytes, done = process(source, target, args.factor, args.chunk_mib << 20)
        except (OSError, ValueError) as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        seconds = time.perf_counter() - start
        expected = np.float32(args.factor) * np.load(source, mmap_mode="r")
        assert np.array_equal(np.load(target, mmap_mode="r"), expected), "the result differs from NumPy's"
    print(f"{nbytes / 2**20:.1f} MiB in {len(done)} chunks, {nbytes / seconds * 1e-9:.2f} GB/s each way, equal to NumPy's")


if __name__ == "__main__":
    main()
