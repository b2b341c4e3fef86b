"""A cluster: work sent to workers, results that stay there and move between them, a worker that is lost and its work done again.

    python examples/17_cluster.py
    python examples/17_cluster.py --ray
    python examples/17_cluster.py --ray --gpus 8

Without `--ray` the workers are this process's GPUs, or four CPU devices (or TILEKIT_CPU_DEVICES). With it each is a process of
Ray's with a device of its own, here or on other machines; that takes `pip install "tilekit-cuda[ray]"`, and seconds to start.

Each worker draws random points of the unit square and counts those within the circle: four times their share is about pi. The
points stay where they are; the program gets the counts, which must be those that NumPy finds among the same points.
"""

import argparse
import os
import signal
import tempfile
from typing import Any

import numpy as np

os.environ.setdefault("TILEKIT_CPU_DEVICES", "4")  # read when tilekit first looks for devices

import tilekit as tk
from tilekit import api, distributed

TILE = 1024


@tk.kernel
def count_tile(counts: tk.Out, points: tk.In) -> None:
    x, y = tk.load(points, (0, tk.bid(0)), (1, TILE)), tk.load(points, (1, tk.bid(0)), (1, TILE))
    counts.store(tk.sum(tk.where(tk.mul(x, x) + tk.mul(y, y) < 1.0, 1.0, 0.0), axis=1))


def draw(seed: int, tiles: int) -> tk.DeviceOp[Any]:
    """Points, the same ones for the same seed on every device."""
    return api.rand((2, tiles * TILE), seed=seed)


def count(points: tk.Tensor) -> tk.DeviceOp[Any]:
    """How many points of each tile lie within the circle: workers run the whole chain in one call."""
    counts = api.empty(points.shape[1] // TILE).partition(1)
    return count_tile(counts, points).first().unpartition()


def killed_once(points: tk.Tensor, mark: str) -> tk.DeviceOp[Any]:
    """As `count`, but the first time the process is killed on the way."""

    def kill() -> None:
        if not os.path.exists(mark):
            with open(mark, "w"):
                os.kill(os.getpid(), signal.SIGKILL)

    return tk.host_fn(kill).then(lambda _: count(points))


def show(cluster: distributed.Cluster, tiles: int) -> None:
    workers = cluster.workers
    print(cluster)

    seeds = range(len(workers))
    drawn = tk.join_all([worker.run(draw, seed, tiles) for worker, seed in zip(workers, seeds)], parallel=True).sync()
    counts = tk.join_all([points.worker.run(count, points) for points in drawn], parallel=True).sync()
    hosts = [draw(seed, tiles).to_host().sync() for seed in seeds]
    expected = [(x * x + y * y < 1).reshape(tiles, TILE).sum(axis=1) for x, y in hosts]
    found = [part.to_host().sync() for part in counts]
    assert np.array_equal(found, expected), "the workers count otherwise than NumPy"
    print(f"pi is about {4 * np.sum(found) / (len(workers) * tiles * TILE):.3f}, of {len(drawn)} x {tiles * TILE} points")

    moved = drawn[0].to(workers[-1]).sync()
    assert np.array_equal(moved.to_host().sync(), hosts[0])
    print(f"the points of {workers[0]!r} went to {moved.worker!r}")

    group = cluster.group()
    sums = group.collective("all_reduce", counts, op="sum").sync()
    assert all(np.array_equal(part.to_host().sync(), np.sum(expected, axis=0)) for part in sums)
    group.close()
    print("the counts of all workers were added up on each")

    halves = cluster.map(count, [host[:, : TILE * (1 + at % tiles)] for at, host in enumerate(hosts * 2)]).sync()
    assert all(half.to_host().sync()[0] == expected[at % len(workers)][0] for at, half in enumerate(halves))
    print(f"{len(halves)} pieces were counted by whoever was free")


def lose(cluster: distributed.Cluster, points: np.ndarray[Any, Any]) -> None:
    worker = cluster.workers[0]
    with tempfile.TemporaryDirectory() as folder:
        try:
            worker.run(killed_once, points, os.path.join(folder, "first")).sync()
        except distributed.WorkerLostError as error:
            print(f"without retries: {error}")
        else:
            raise AssertionError("nobody noticed")
        again = worker.run(killed_once, points, os.path.join(folder, "second"), retries=1).to_host().sync()
    assert again.sum() == np.sum(points[0] * points[0] + points[1] * points[1] < 1)
    print(f"with retries=1: {int(again.sum())} points, counted by the process that came after")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A cluster of workers that count points.")
    parser.add_argument("--ray", action="store_true", help="workers are processes of Ray's")
    parser.add_argument("--gpus", type=int, default=0, help="with --ray: workers with a GPU each, so many")
    parser.add_argument("--tiles", type=int, default=16, help=f"tiles of {TILE} points for each worker (default: 16)")
    args = parser.parse_args(argv)
    if args.tiles < 1 or args.gpus < 0:
        parser.exit(2, f"{parser.prog}: --tiles is at least 1, --gpus not negative\n")
    if not args.ray:
        with distributed.connect("local") as cluster:
            show(cluster, args.tiles)
        return
    with distributed.connect("ray", **({"gpus": args.gpus} if args.gpus else {"workers": 2})) as cluster:
        show(cluster, args.tiles)
        lose(cluster, draw(0, args.tiles).to_host().sync())


if __name__ == "__main__":
    main()
