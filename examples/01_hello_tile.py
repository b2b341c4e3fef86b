"""Hello, tile: every block of a launch says which one it is.

    python examples/01_hello_tile.py
    python examples/01_hello_tile.py --grid 3 2

It runs on the first GPU that tilekit can use, else on the CPU device; TILEKIT_DEVICE=cpu or cuda chooses.
"""

import argparse
import time

# The tutorial begins here.
import tilekit as tk


@tk.kernel
def hello() -> None:
    i, j = tk.bid(0), tk.bid(1)
    tk.print("Hello from block", i, j, "of", tk.num_blocks(0), "by", tk.num_blocks(1))


def launch(rows: int, columns: int) -> tk.KernelLaunch:
    """An op, the description of a launch: nothing runs until it is told to."""
    return hello().grid((rows, columns, 1))


# The tutorial ends here; what follows reads options, compares with NumPy, and measures.


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Every block of a launch says which one it is.")
    parser.add_argument("--grid", type=int, nargs=2, default=(2, 2), metavar=("ROWS", "COLUMNS"), help="default: 2 2")
    rows, columns = parser.parse_args(argv).grid
    if rows < 1 or columns < 1:
        parser.exit(2, f"{parser.prog}: --grid {rows} {columns}: a grid has at least one block along each axis\n")

    device = tk.default_device()
    op = launch(rows, columns)
    start = time.perf_counter()
    op.sync()  # now it runs, and we wait for it
    device.synchronize()  # a GPU hands over what its blocks printed when it synchronises
    elapsed_ms = 1e3 * (time.perf_counter() - start)
    print(f"{rows * columns} blocks on {device.kind}:{device.ordinal} ({device.name}) in {elapsed_ms:.1f} ms")


if __name__ == "__main__":
    main()
