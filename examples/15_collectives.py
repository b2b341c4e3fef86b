"""Collectives: a least-squares fit whose rows are dealt out to all devices; each step adds up the devices' gradients.

    python examples/15_collectives.py
    python examples/15_collectives.py --processes 2
    python examples/15_collectives.py --rows 100000 --columns 64 --steps 200

In one process it uses every GPU that tilekit can use, else four CPU devices (or TILEKIT_CPU_DEVICES). With `--processes` each of
so many processes is a member of the group, as in a program that a launcher starts on several machines: they meet at an address.
The result must be that of one device with all rows.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TILEKIT_CPU_DEVICES", "4")  # read when tilekit first looks for devices

import tilekit as tk
from tilekit import api, kernels

Array = NDArray[np.float32]
RATE = 0.4


class Share:
    """Some of the rows, on one device, and a copy of the parameters there."""

    def __init__(self, device: tk.Device, x: Array, y: Array, rows: int) -> None:
        self.device, self.rows = device, rows
        self.x, self.xt, self.y = (api.from_host(np.ascontiguousarray(a)).on(device).sync() for a in (x, x.T, y))
        self.parameters = api.zeros((x.shape[1], 1)).on(device).sync()

    def gradient(self) -> tk.DeviceOp[tk.Tensor]:
        """An op: this share's part of the gradient, x^T (x p - y)."""
        residual = kernels.gemm(self.x, self.parameters).then(lambda product: axpy(product, -1.0, self.y))
        return residual.then(lambda r: kernels.gemm(self.xt, r))

    def update(self, gradient: tk.Tensor) -> tk.DeviceOp[tk.Tensor]:
        """An op: go down the gradient."""
        return axpy(self.parameters, -RATE / self.rows, gradient)


@tk.kernel
def add_scaled(y: tk.InOut, a: float, x: tk.In) -> None:
    y.store(y.load() + a * tk.load_tile_like(x, y))


def axpy(y: tk.Tensor, a: float, x: Any) -> tk.DeviceOp[tk.Tensor]:
    """An op: y += a * x, in place."""
    return add_scaled(y.partition((64, 1)), a, x).first().unpartition()


def fit(shares: list[Share], total: Callable[[Any], tk.DeviceOp[Any]], steps: int) -> None:
    """All shares' parameters, fitted in step. `total` adds up this process's gradients, and those of other processes."""
    for _ in range(steps):
        summed = total([share.gradient() for share in shares])
        updates = summed.then(lambda sums: tk.join_all([s.update(g) for s, g in zip(shares, sums, strict=True)]))
        updates.sync()


def alone(gradient: tk.Tensor) -> list[tk.Tensor]:
    """A list of one: of a process with one share."""
    return [gradient]


def problem(rows: int, columns: int) -> tuple[Array, Array]:
    """x of (rows, columns), and y of (rows, 1), which is x times something, and noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    return x, (x @ rng.standard_normal((columns, 1)) + 0.01 * rng.standard_normal((rows, 1))).astype(np.float32)


def deal(x: Array, y: Array, size: int, rank: int, device: tk.Device) -> Share:
    """The rows of one of `size` members."""
    return Share(device, np.array_split(x, size)[rank], np.array_split(y, size)[rank], len(x))


def one_process(x: Array, y: Array, steps: int) -> Array:
    """A group of all devices of this process."""
    kind = tk.default_device().kind
    devices = [device for device in tk.devices() if device.kind == kind]
    with tk.Group(devices) as group:
        print(f"one process: {group}")
        shares = [deal(x, y, group.size, rank, device) for rank, device in enumerate(devices)]
        fit(shares, group.all_reduce, steps)
        copies = [share.parameters.to_host().sync() for share in shares]
    assert all(np.array_equal(copy, copies[0]) for copy in copies), "the devices' parameters differ"
    return copies[0]


def member(rank: int, size: int, address: str, problem_size: tuple[int, int], steps: int, results: Any) -> None:
    """What each of several processes does."""
    x, y = problem(*problem_size)
    ordinal = rank if tk.default_device().kind == "cuda" else 0
    with tk.Group.join(rank, size, address=address, device=f"{tk.default_device().kind}:{ordinal}", timeout_s=60) as group:
        share = deal(x, y, size, rank, group.devices[0])
        fit([share], lambda gradients: group.all_reduce(gradients[0]).map(alone), steps)
        results.put((rank, share.parameters.to_host().sync()))


def several_processes(size: int, problem_size: tuple[int, int], steps: int) -> Array:
    """As `one_process`, with a process for each member."""
    context = multiprocessing.get_context("spawn")
    results, address = context.Queue(), tk.Group.free_address()
    arguments = [(rank, size, address, problem_size, steps, results) for rank in range(size)]
    processes = [context.Process(target=member, args=each) for each in arguments]
    for process in processes:
        process.start()
    copies: dict[int, Array] = dict(results.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    print(f"{size} processes: members {sorted(copies)} at {address}")
    assert all(np.array_equal(copy, copies[0]) for copy in copies.values()), "the processes' parameters differ"
    return copies[0]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A fit by all devices, which add up their gradients.")
    parser.add_argument("--rows", type=int, default=1024, help="rows (default: 1024)")
    parser.add_argument("--columns", type=int, default=16, help="columns (default: 16)")
    parser.add_argument("--steps", type=int, default=30, help="steps (default: 30)")
    parser.add_argument("--processes", type=int, default=0, help="a process for each of so many members (default: one process)")
    args = parser.parse_args(argv)
    if min(args.rows, args.columns, args.steps) < 1 or args.processes < 0:
        parser.exit(2, f"{parser.prog}: --rows, --columns and --steps are at least 1, --processes at least 0\n")

    x, y = problem(args.rows, args.columns)
    if args.processes:
        fitted = several_processes(args.processes, (args.rows, args.columns), args.steps)
    else:
        fitted = one_process(x, y, args.steps)
    whole = deal(x, y, 1, 0, tk.default_device())
    fit([whole], lambda gradients: gradients[0].map(alone), args.steps)
    expected = whole.parameters.to_host().sync()
    assert np.allclose(fitted, expected, rtol=1e-3, atol=1e-4), "not the parameters of one device"
    loss = float(np.square(x @ fitted - y).mean())
    print(f"{args.steps} steps, {args.rows} rows: mean squared error {loss:.6f}, the same parameters as on one device")


if __name__ == "__main__":
    main()
